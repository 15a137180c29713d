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
    /// `Ready`: jobs can be enqueued and are being run. `RedisReachable`, `Durable`, `WorkersAvailable`, `ScalingActive`:
    /// the parts of it. `Stalled`: something must be changed by hand; the message says what.
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
    /// Its Redis key: where to push jobs.
    pub key: String,
    /// Jobs that wait to be run.
    pub waiting: i64,
}

/// The worker pods.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkersStatus {
    /// How many are wanted.
    pub desired: i32,
    /// How many are ready.
    pub ready: i32,
    /// Both, for `kubectl get`.
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
}
