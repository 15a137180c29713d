//! `status`: what the operator saw and decided.
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What the operator saw and decided.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct JobQueueStatus {
    /// The generation of the spec that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// How many worker pods there are.
    #[serde(default)]
    pub replicas: i32,
    /// Selects the worker pods, for autoscalers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// Jobs that wait to be run, of all queues. A figure for people: read every second, written when something changes
    /// or every 30 seconds.
    #[serde(default)]
    pub waiting: i64,
    /// Jobs that workers hold.
    #[serde(default)]
    pub in_flight: i64,
    /// Jobs that wait for their next attempt.
    #[serde(default)]
    pub delayed: i64,
    /// Jobs that were given up.
    #[serde(default)]
    pub dead_letters: i64,
    /// Each queue, in the order of priority.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub queues: Vec<QueueStatus>,
    /// The worker pods.
    #[serde(default)]
    pub workers: WorkersStatus,
    /// The last change of the number of workers, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scaling: Option<ScalingStatus>,
    /// `Ready`: jobs can be enqueued and are being run. `RedisReachable`, `Durable`, `WorkersAvailable`, `ScalingActive`,
    /// `HandlerHealthy`: the parts of it. `Reconciling`: a change waits for something and then takes place by itself.
    /// `Stalled`: something must be changed by hand. The messages say what.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// One queue.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct QueueStatus {
    /// Its name.
    pub name: String,
    /// Its Redis key: where to push jobs. With several shards it is that of the first.
    pub key: String,
    /// Jobs that wait to be run.
    pub waiting: i64,
    /// Since when its next job waits; not set when none does, or when it does not say when it was made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oldest_waiting_since: Option<Time>,
    /// `open`: at least half of its workers take no jobs from it, because those that they took failed. A single one is
    /// tried from time to time.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub breaker: String,
}

/// The worker pods.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkersStatus {
    /// How many are wanted.
    pub desired: i32,
    /// How many are ready.
    pub ready: i32,
    /// How many take no more jobs, and go when theirs are done.
    pub draining: i32,
    /// The ready ones, of those that are to stay, for `kubectl get`.
    pub summary: String,
}

/// A change of the number of workers, and why.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ScalingStatus {
    /// How many workers were decided on.
    pub replicas: i32,
    /// Why, in words.
    pub reason: String,
    /// When.
    pub time: Time,
    /// What it was decided on.
    #[serde(default)]
    pub inputs: Option<ScalingInputs>,
}

/// What the number of workers was decided on. What is not known is written as null: the status is merged into what is there,
/// and a field that was merely left out would stay.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct ScalingInputs {
    /// Jobs that waited, suspects and due ones included, of queues whose breaker was not open.
    #[schemars(with = "i64")]
    pub backlog: u64,
    /// The same, of queues whose breaker was open: they ask for no workers but one that tries.
    #[schemars(with = "i64")]
    pub blocked: u64,
    /// Jobs that workers held.
    #[schemars(with = "i64")]
    pub in_flight: u64,
    /// Jobs that came a minute, on average of the last minutes.
    #[schemars(with = "i64")]
    pub arrivals_per_minute: u64,
    /// How long an attempt took, on average of the last minutes; not set before one has ended.
    #[schemars(with = "Option<i64>")]
    pub run_millis: Option<u64>,
    /// Workers wanted for the number of jobs, before `minReplicas` and `maxReplicas`.
    pub by_depth: i32,
    /// Workers wanted for `targetLatency`; not set without it, and before run times are known.
    pub by_latency: Option<i32>,
    /// The most workers wanted within `scaleDownDelay`, with the margin that is kept when there shall be fewer.
    pub highest: i32,
}
