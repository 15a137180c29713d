//! `JobQueue`, version `v1alpha1`: a queue, its workers and its Redis.
//!
//! The doc comments are what `kubectl explain` prints, so they speak to the person who writes the object. What
//! depends on the protocol (queues, retries, the key prefix) has no default in the schema: the configuration type
//! of the worker fills it in, the same for everybody.
mod async_jobs;
mod redis;
mod scaling;
mod status;
mod times;
mod worker;

use std::collections::BTreeMap;

use jobqueue::config::Duration;
use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use async_jobs::{AsyncJobs, TypeHandler, TypeHttp};
pub use redis::{External, Managed, Redis, SecretReference, Sentinel, Storage, Tls};
pub use scaling::{Scaling, ScalingMode};
pub use status::{JobQueueStatus, QueueStatus, ScalingInputs, ScalingStatus, WorkersStatus};
pub use worker::{App, Command, Handler, Http, Reaper, Simulate, Worker};

/// A queue of background jobs, the workers that run them, and the Redis that keeps them. `spec: {}` is complete:
/// it gives a queue on a Redis of its own with workers that scale from zero to ten with the number of jobs.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "jobqueue.dev",
    version = "v1alpha1",
    kind = "JobQueue",
    plural = "jobqueues",
    shortname = "jobq",
    category = "jobqueue",
    namespaced,
    status = "JobQueueStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "A queue of background jobs, the workers that run them, and the Redis that keeps them. `spec: {}` is complete: it gives a queue on a Redis of its own with workers that scale from zero to ten with the number of jobs.",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status",
        description = "Whether jobs can be enqueued and are being run"
    ),
    printcolumn(
        name = "Waiting",
        type_ = "integer",
        json_path = ".status.waiting",
        description = "Jobs that wait to be run, of all queues"
    ),
    printcolumn(name = "Running", type_ = "integer", json_path = ".status.inFlight", description = "Jobs that workers hold"),
    printcolumn(
        name = "Workers",
        type_ = "string",
        json_path = ".status.workers.summary",
        description = "Worker pods that are ready, of those wanted"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Dead",
        type_ = "integer",
        json_path = ".status.deadLetters",
        priority = 1,
        description = "Jobs that were given up"
    ),
    printcolumn(name = "Protocol", type_ = "string", json_path = ".spec.protocol", priority = 1),
    printcolumn(
        name = "Status",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].message",
        priority = 1
    ),
    cel,
    validation = Rule::new("self.metadata.name.size() <= 40 && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')")
        .message("metadata.name must have at most 40 characters, begin with a letter, and contain only a-z, 0-9 and -: it is part of the names of pods and services")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.protocol == oldSelf.protocol").message("spec.protocol cannot be changed: the jobs in Redis have its format; create another JobQueue"),
    validation = Rule::new("has(self.keyPrefix) == has(oldSelf.keyPrefix) && (!has(self.keyPrefix) || self.keyPrefix == oldSelf.keyPrefix)")
        .message("spec.keyPrefix cannot be changed: the jobs would be left behind under the old keys; create another JobQueue"),
    validation = Rule::new("(has(self.redis) && has(self.redis.external)) == (has(oldSelf.redis) && has(oldSelf.redis.external))")
        .message("spec.redis cannot change between managed and external: the jobs would be left behind; create another JobQueue"),
    validation = Rule::new("(has(self.redis) && has(self.redis.managed) && has(self.redis.managed.storage) && has(self.redis.managed.storage.ephemeral)) == (has(oldSelf.redis) && has(oldSelf.redis.managed) && has(oldSelf.redis.managed.storage) && has(oldSelf.redis.managed.storage.ephemeral))")
        .message("spec.redis.managed.storage cannot change between a volume and ephemeral: the jobs would be lost; create another JobQueue"),
    validation = Rule::new("(has(self.redis) && has(self.redis.managed) && has(self.redis.managed.storage) && has(self.redis.managed.storage.storageClassName) ? self.redis.managed.storage.storageClassName : '') == (has(oldSelf.redis) && has(oldSelf.redis.managed) && has(oldSelf.redis.managed.storage) && has(oldSelf.redis.managed.storage.storageClassName) ? oldSelf.redis.managed.storage.storageClassName : '')")
        .message("spec.redis.managed.storage.storageClassName cannot be changed: a volume keeps its class; create another JobQueue"),
    validation = Rule::new("!has(self.producer) || self.protocol == 'files'")
        .message("spec.producer scans files: it needs protocol: files"),
    validation = Rule::new("!has(self.api) || self.protocol == 'async'")
        .message("spec.api is the HTTP API of protocol: async"),
    validation = Rule::new("!has(self.sidekiq) || self.protocol == 'sidekiq'")
        .message("spec.sidekiq needs protocol: sidekiq"),
    validation = Rule::new("!has(self.async) || self.protocol == 'async'")
        .message("spec.async needs protocol: async"),
    validation = Rule::new("self.protocol != 'sidekiq' || has(self.worker.handler)")
        .message("spec.worker.handler must be set with protocol: sidekiq, or jobs would be done without being run: http with worker.app or http.url, command, or simulate to try things out")
)]
pub struct JobQueueSpec {
    /// The format of the jobs, and so who can enqueue them: `files` (the directory producer, or anything that can
    /// LPUSH), `sidekiq` (Rails and every other Sidekiq client) or `async` (an HTTP API). It cannot be changed.
    #[serde(default)]
    pub protocol: Protocol,
    /// What every Redis key of this queue begins with. Not set: `jobqueue` for files, `jobs` for async,
    /// `jobqueue:<namespace>:<name>` for sidekiq. Two queues on one Redis need two prefixes. It cannot be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    pub key_prefix: Option<String>,
    /// The Redis that keeps the jobs. Not set: one that is run for this queue alone, on a volume of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redis: Option<Redis>,
    /// The queues in the order of their priority: the first is served first. Not set: `high` and `low` for files,
    /// `default` for the others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 50))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub queues: Vec<Queue>,
    /// What becomes of a job that fails or whose worker dies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<Retry>,
    /// How many workers there are in `scaling.mode: Manual`; `kubectl scale` and autoscalers write it. Not set: 1.
    /// It has no effect in mode Auto.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 10000))]
    pub replicas: Option<i32>,
    /// How many workers there are, and when that changes.
    #[serde(default)]
    pub scaling: Scaling,
    /// The processes that run the jobs.
    #[serde(default)]
    pub worker: Worker,
    /// Scans a volume and enqueues its files (protocol files). Not set: none runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub producer: Option<Producer>,
    /// Serves the HTTP API that creates and shows jobs (protocol async). Not set: none runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api: Option<Api>,
    /// When a queue whose jobs keep failing is left alone for a while.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub circuit_breaker: Option<CircuitBreaker>,
    /// Logs and traces of the pods. Metrics are always served on port 9090.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observability: Option<Observability>,
    /// What only the sidekiq protocol reads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sidekiq: Option<Sidekiq>,
    /// What only the async protocol reads.
    #[serde(default, rename = "async", skip_serializing_if = "Option::is_none")]
    pub async_jobs: Option<AsyncJobs>,
    /// Stops the workers from taking jobs. What runs is finished, what waits is kept, and enqueueing goes on.
    #[serde(default)]
    pub paused: bool,
    /// What becomes of the jobs when this object is deleted: `Retain` leaves keys, volume and password of Redis
    /// where they are, `Delete` removes them.
    #[serde(default)]
    pub deletion_policy: DeletionPolicy,
}

/// The format of the jobs.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// JSON jobs in plain lists.
    #[default]
    Files,
    /// What Sidekiq clients enqueue.
    Sidekiq,
    /// Jobs over HTTP.
    Async,
}

/// What becomes of the jobs when their `JobQueue` is deleted.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeletionPolicy {
    /// They stay where they are.
    #[default]
    Retain,
    /// They are removed with everything of the queue.
    Delete,
}

/// One queue.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.key) == has(oldSelf.key) && (!has(self.key) || self.key == oldSelf.key)")
        .message("the key of a queue cannot be changed: its jobs would be left behind; add another queue")
)]
pub struct Queue {
    /// The name in metrics, logs and commands.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$"))]
    pub name: String,
    /// The Redis key of the list that jobs are pushed to. Not set: made from the prefix and the name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub key: Option<String>,
    /// Makes the order weighted instead of strict: a queue of weight 5 is asked first five times as often as one of
    /// weight 1. Given to all queues or to none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub weight: Option<i32>,
}

/// What becomes of a job that fails or whose worker dies.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Retry {
    /// How often a failed job is run again before it becomes a dead letter. Not set: 3, and 25 for sidekiq.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000_000))]
    pub max_retries: Option<i32>,
    /// How often a worker may die while a job runs alone in it before the job becomes a dead letter. Not set: 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max_interruptions: Option<i32>,
    /// How long a failed job waits before it is run again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backoff: Option<Backoff>,
}

/// How long a failed job waits before it is run again.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Backoff {
    /// The wait after the first failure, such as 500ms; each further one doubles it. Not set: 500ms, and 15s for
    /// sidekiq.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "duration")]
    pub base: Option<Duration>,
    /// The longest wait. Not set: 10s, and 24h for sidekiq.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "duration")]
    pub max: Option<Duration>,
}

/// Scans a volume and enqueues its files.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Producer {
    /// The volume with the files, as in a pod: `persistentVolumeClaim`, `nfs`, `csi` and so on. It is mounted
    /// read-only at `scanDir`.
    #[schemars(schema_with = "volume_source")]
    pub volume: Map<String, Value>,
    /// Where the volume is mounted; workers of the handler `command` see it at the same place. Not set: /data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 2, max = 256), regex(pattern = r"^/[^:]+$"))]
    pub scan_dir: Option<String>,
    /// Names this producer: what it has seen is remembered per name and directory. Not set: producer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub name: Option<String>,
    /// Files are enqueued when their path matches one of these. Not set: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "texts")]
    pub include_globs: Option<Vec<String>>,
    /// Files that match one of these are left out. Not set: `**/*.tmp` and `**/.DS_Store`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "texts")]
    pub exclude_globs: Option<Vec<String>>,
    /// The queue of files whose extension is not in `highPriorityExts`. Not set: low, or the last queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub default_priority: Option<String>,
    /// Files with these extensions go to the first queue. Not set: .pdf, .docx, .xlsx and .zip.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "texts")]
    pub high_priority_exts: Option<Vec<String>>,
    /// How many jobs are enqueued in a second; 0 is no limit. Not set: 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000_000_000))]
    pub rate_limit_per_second: Option<i32>,
    /// How long to wait between two scans. Not set: 10s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "duration")]
    pub rescan_interval: Option<Duration>,
    /// Enqueue a file once per content state (size and modification time). `false` enqueues every file at every
    /// scan. Not set: true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remember: Option<bool>,
    /// A partial pod template that is merged into the producer's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "pod_template")]
    pub template: Option<Map<String, Value>>,
}

/// Serves the HTTP API that creates and shows jobs.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Api {
    /// How many pods serve it. Not set: 2 at first, and then as many as a `HorizontalPodAutoscaler` or `kubectl scale`
    /// asks for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1000))]
    pub replicas: Option<i32>,
    /// The largest request body in bytes. Not set: 1 MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 536_870_912))]
    pub body_limit: Option<i64>,
    /// A Secret whose key `tokens` holds the accepted bearer tokens, one a line. Not set: no authentication.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_secret_ref: Option<SecretReference>,
    /// How long a finished job can be read. Not set: 24h.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "duration")]
    pub result_ttl: Option<Duration>,
    /// How deep a request body may nest. Not set: 64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 99))]
    pub depth_limit: Option<i32>,
    /// The longest that `GET /jobs/{id}?wait=` waits. Not set: 1m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "duration")]
    pub max_wait: Option<Duration>,
    /// How long Redis may take before a request is answered with 503. Not set: 1500ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "duration")]
    pub redis_timeout: Option<Duration>,
    /// How long the head of a request may take to arrive. Not set: 10s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "duration")]
    pub header_timeout: Option<Duration>,
    /// How long the body of a request may take to arrive. Not set: 30s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "duration")]
    pub body_timeout: Option<Duration>,
    /// How long a client may take to read an answer of more than 1 KiB; then its connection is closed. Not set: 30s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "duration")]
    pub answer_timeout: Option<Duration>,
    /// Connections that a pod has open at once; others wait to be accepted. Not set: 1024.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub max_connections: Option<i32>,
    /// How long a pod that is to go still takes new requests, while the Service learns of it. Not set: 5s, or half of
    /// `worker.drainTimeout` if that is less.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "duration")]
    pub drain_delay: Option<Duration>,
    /// What each pod of the API asks for and may use. Not set: a memory limit that goes with `bodyLimit`, 256Mi for 1 MiB;
    /// a lower one is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
    /// A partial pod template that is merged into the API's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "pod_template")]
    pub template: Option<Map<String, Value>>,
}

/// When a queue whose jobs keep failing is left alone for a while.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct CircuitBreaker {
    /// The share of failed runs in the window, in per cent, that opens the breaker. Not set: 50.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub failure_percent: Option<i32>,
    /// How far back runs count. Not set: 1m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "duration")]
    pub window: Option<Duration>,
    /// How long an open breaker stops fetching before it probes with a single job. Not set: 30s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "duration")]
    pub cooldown: Option<Duration>,
    /// With fewer runs in the window the breaker stays closed. Not set: 20.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub min_samples: Option<i32>,
}

/// Logs and traces of the pods.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Observability {
    /// The least severe log lines that are written; lines about single jobs are `debug`. Not set: info.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_level: Option<LogLevel>,
    /// How often pods read lengths and ages of queues for gauges of their own, which they have while no operator exports
    /// them. Not set: 5s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "duration")]
    pub queue_sample_interval: Option<Duration>,
    /// OpenTelemetry traces of enqueueing and running jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tracing: Option<Tracing>,
}

/// The severities of log lines.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Everything, each job included.
    Debug,
    /// What happened to the process and its queues.
    #[default]
    Info,
    /// What someone should look at.
    Warn,
    /// What failed.
    Error,
}

/// Where traces go.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Tracing {
    /// Whether traces are exported.
    #[serde(default)]
    pub enabled: bool,
    /// The OTLP endpoint, such as `http://collector.observability:4317`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512), regex(pattern = "^https?://"))]
    pub endpoint: Option<String>,
}

/// What only the sidekiq protocol reads.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Sidekiq {
    /// What Sidekiq's own keys begin with, for applications that use redis-namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    pub namespace: Option<String>,
    /// How long a failed job waits: `sidekiq` is Sidekiq's own formula, `exponential` doubles from
    /// `retry.backoff.base` to `retry.backoff.max`. Not set: sidekiq.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<SidekiqRetry>,
    /// Which due jobs of Sidekiq's `retry` and `schedule` sets the workers bring back to their queues: `all` is those of
    /// every queue, `off` leaves it to Ruby processes. Not set: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub promote: Option<SidekiqPromote>,
}

/// Which due jobs are brought back to their queues.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum SidekiqPromote {
    /// Those of every queue.
    #[default]
    All,
    /// None.
    Off,
}

/// The retry formulas of the sidekiq protocol.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum SidekiqRetry {
    /// Sidekiq's own.
    #[default]
    Sidekiq,
    /// Doubling, with jitter.
    Exponential,
}

/// CPU, memory and so on, as in a container.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Resources {
    /// What is reserved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "quantities")]
    pub requests: Option<BTreeMap<String, Value>>,
    /// What may not be exceeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "quantities")]
    pub limits: Option<BTreeMap<String, Value>>,
}

/// Durations as the worker reads them. In 32 characters no sum of these is longer than what it can count, 584 years.
const DURATION: &str = r"^(0|([0-9]{1,5}(\.[0-9]+)?h|[0-9]{1,7}(\.[0-9]+)?m|[0-9]{1,9}(\.[0-9]+)?s|[0-9]{1,12}(\.[0-9]+)?(ms|us|ns))+)$";

/// A duration; the pattern takes only what the worker's parser takes.
fn duration(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "maxLength": 32, "pattern": DURATION })
}

/// A short list of short texts.
fn texts(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "array", "maxItems": 100, "items": { "type": "string", "minLength": 1, "maxLength": 256 } })
}

/// Amounts such as `500m` or `1`, by resource.
fn quantities(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "maxProperties": 20, "additionalProperties": { "x-kubernetes-int-or-string": true } })
}

/// Kubernetes checks what is inside when the pod is made.
fn volume_source(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "minProperties": 1, "maxProperties": 1, "x-kubernetes-preserve-unknown-fields": true })
}

/// Kubernetes checks what is inside when the pod is made.
fn pod_template(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
}

#[cfg(test)]
mod tests;
