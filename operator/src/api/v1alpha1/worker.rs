//! `spec.worker`: the processes that run the jobs.
use jobqueue::config::Duration;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Resources, SecretReference, duration, pod_template};

/// The processes that run the jobs.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.app) || (has(self.handler) && has(self.handler.http))")
        .message("app needs handler.http: the worker posts the jobs to it"),
    validation = Rule::new("!has(self.handler) || !has(self.handler.http) || [has(self.handler.http.url), has(self.handler.http.unixSocket), has(self.app)].filter(set, set).size() == 1")
        .message("handler.http needs exactly one of app (a container beside the worker), handler.http.url (a service elsewhere) and handler.http.unixSocket (a container of template)"),
    validation = Rule::new("!has(self.shards) || self.shards <= self.concurrency")
        .message("shards must not exceed concurrency: each shard needs a slot to be served"),
    validation = Rule::new("has(self.processingListPattern) == has(oldSelf.processingListPattern) && (!has(self.processingListPattern) || self.processingListPattern == oldSelf.processingListPattern)").message("processingListPattern cannot be changed: jobs would be left behind under the old keys"),
    validation = Rule::new("has(self.delayedSetPattern) == has(oldSelf.delayedSetPattern) && (!has(self.delayedSetPattern) || self.delayedSetPattern == oldSelf.delayedSetPattern)").message("delayedSetPattern cannot be changed: jobs would be left behind under the old keys"),
    validation = Rule::new("has(self.deadLetterList) == has(oldSelf.deadLetterList) && (!has(self.deadLetterList) || self.deadLetterList == oldSelf.deadLetterList)").message("deadLetterList cannot be changed: jobs would be left behind under the old keys")
)]
pub struct Worker {
    /// The image of the worker. Not set: the one that belongs to the operator; an upgrade of the operator then rolls
    /// the workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub image: Option<String>,
    /// How many jobs one worker runs at the same time.
    #[serde(default = "concurrency")]
    #[schemars(range(min = 1, max = 100_000))]
    pub concurrency: i32,
    /// What runs a job: `simulate`, `http` or `command`. Not set: simulate; for sidekiq it must be set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handler: Option<Handler>,
    /// Your application as a container beside the worker. Its image and settings stand in `template`, in the container
    /// named `app`. Jobs start when it answers, and it outlives the worker when a pod stops. With the protocol sidekiq it
    /// has the variables that the gem of `sidecar/rails` needs, unless it sets them: where to listen, how many jobs to
    /// take, and the secret of `handler.http.secretRef`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app: Option<App>,
    /// A partial pod template that is merged into the worker's: your containers, volumes, environment, node selectors,
    /// tolerations. The containers `worker` and `app` may be extended. Fields that the operator sets are refused by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "pod_template")]
    pub template: Option<Map<String, Value>>,
    /// CPU and memory of the worker's own container. Not set: requests of 50m and 32Mi, a memory limit of 256Mi; with
    /// the handler `command`, where your program runs in it, no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
    /// How long running jobs may take to finish when a pod is stopped from outside; then they are given to others,
    /// uncounted. Not set: as long as a job may take (the longest timeout of a handler), but 25s at least and 10m at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "duration")]
    pub drain_timeout: Option<Duration>,
    /// How long the jobs of a worker that vanished stay with it: at least 5s. A living worker renews it, however long
    /// its jobs run. Not set: 30s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "duration")]
    pub heartbeat_ttl: Option<Duration>,
    /// How many lanes (connections with a processing list each) one worker has; 0 is automatic. Not set: 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100_000))]
    pub lanes: Option<i32>,
    /// Over how many keys each queue is spread, at most `concurrency`. Not set: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1024))]
    pub shards: Option<i32>,
    /// How many completed jobs are kept; 0 keeps none, -1 keeps all. Not set: 10000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = -1))]
    pub completed_max: Option<i64>,
    /// How many dead letters are kept; -1 keeps all (for `sidekiq`: as many as Sidekiq keeps). Not set: -1; 10000 for
    /// `async`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = -1))]
    pub dead_letter_max: Option<i64>,
    /// Larger jobs become dead letters unread. Not set: 1 MiB; 16 MiB for `sidekiq`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 536_870_912))]
    pub max_payload_bytes: Option<i64>,
    /// How long one blocking fetch on an idle queue waits; a new job ends the wait at once. Not set: 1s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "duration")]
    pub brpoplpush_timeout: Option<Duration>,
    /// The key of a processing list; `%s` is the worker id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 3, max = 256), regex(pattern = "%s"))]
    pub processing_list_pattern: Option<String>,
    /// The key of a heartbeat; `%s` is the worker id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 3, max = 256), regex(pattern = "%s"))]
    pub heartbeat_key_pattern: Option<String>,
    /// The key of the jobs that wait for their next attempt; `%s` is the name of the queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 3, max = 256), regex(pattern = "%s"))]
    pub delayed_set_pattern: Option<String>,
    /// The list of completed jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub completed_list: Option<String>,
    /// The list of dead letters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub dead_letter_list: Option<String>,
    /// The rescue of dead workers' jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reaper: Option<Reaper>,
}

// A validated type cannot take its defaults as a whole: the derive makes a second one of it.
fn concurrency() -> i32 {
    16
}

impl Default for Worker {
    fn default() -> Self {
        Self {
            image: None,
            concurrency: concurrency(),
            handler: None,
            app: None,
            template: None,
            resources: None,
            drain_timeout: None,
            heartbeat_ttl: None,
            lanes: None,
            shards: None,
            completed_max: None,
            dead_letter_max: None,
            max_payload_bytes: None,
            brpoplpush_timeout: None,
            processing_list_pattern: None,
            heartbeat_key_pattern: None,
            delayed_set_pattern: None,
            completed_list: None,
            dead_letter_list: None,
            reaper: None,
        }
    }
}

/// What runs a job: exactly one of these.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("[has(self.simulate), has(self.http), has(self.command)].filter(set, set).size() == 1")
        .message("set exactly one of simulate, http and command")
)]
pub struct Handler {
    /// Pretends to work, for trying things out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub simulate: Option<Simulate>,
    /// Posts each job to your application.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<Http>,
    /// Runs a program of your image per job: the image of the container `worker` in `template`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Command>,
}

/// Pretends to work.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Simulate {
    /// How long every job takes. Not set: 0s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "duration")]
    pub base: Option<Duration>,
    /// How much longer it takes per MiB of the job's file. Not set: 100ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "duration")]
    pub per_mib: Option<Duration>,
    /// Jobs whose `filepath` matches this glob fail. Not set: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub fail_glob: Option<String>,
}

/// Posts each job to your application.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Http {
    /// Where the application listens, such as `http://thumbnails.default:3000`. Not set with `worker.app`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512), regex(pattern = "^https?://"))]
    pub url: Option<String>,
    /// The unix socket that a container of `worker.template` listens on, instead of a URL: on a volume of the template
    /// that this container and `worker` mount, with the same user in both.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 2, max = 107), regex(pattern = "^/"))]
    pub unix_socket: Option<String>,
    /// The path that jobs are posted to. Not set: /jobs/execute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512), regex(pattern = "^/"))]
    pub path: Option<String>,
    /// How long one job may take; then it has failed. Not set: 60s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "duration")]
    pub timeout: Option<Duration>,
    /// A Secret of this namespace with the key `token` (sent as a bearer token) or `hmac` (signs the requests); for an
    /// `https://` URL also `ca.crt` (the authorities to trust), `tls.crt` and `tls.key` (our certificate and its key).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretReference>,
}

/// Runs a program per job.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Command {
    /// The program and its arguments; the job is its standard input. Exit 0 is done, 75 again in 10 s (it counts as an
    /// attempt), anything else a failure.
    #[schemars(schema_with = "argv")]
    pub argv: Vec<String>,
    /// How long it may run; then it is killed with everything it started, and the job has failed. Not set: 60s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "duration")]
    pub timeout: Option<Duration>,
}

fn argv(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "array", "minItems": 1, "maxItems": 100, "items": { "type": "string", "maxLength": 1024 },
    })
}

/// Your application as a container beside the worker.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct App {
    /// The port it listens on: on the pod's loopback address for the worker, and on the pod's own for the kubelet, which
    /// asks whether it has started (0.0.0.0 is both).
    #[schemars(range(min = 1, max = 65535))]
    pub port: i32,
    /// The path that says, with status 200, that the application is ready. Not set: that it accepts connections is
    /// enough. With the protocol sidekiq it is asked while it runs too: it is started again when the answer is another
    /// three times, 10 s apart.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512), regex(pattern = "^/"))]
    pub health_path: Option<String>,
    /// How long it may take to start.
    #[schemars(schema_with = "duration")]
    pub start_timeout: Duration,
    /// How long it may take to stop once the worker has.
    #[schemars(schema_with = "duration")]
    pub stop_timeout: Duration,
}

impl Default for App {
    fn default() -> Self {
        Self {
            port: 3000,
            health_path: None,
            start_timeout: Duration::from_secs(300),
            stop_timeout: Duration::from_secs(5),
        }
    }
}

/// The rescue of dead workers' jobs.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.enabled) || self.enabled").message("enabled cannot be false: workers rescue each other's jobs, and nobody else does")
)]
pub struct Reaper {
    /// Whether workers rescue each other's jobs. Not set: true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// How long to wait between two passes. Not set: 1s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "duration")]
    pub interval: Option<Duration>,
    /// How long to wait between two pages of one pass. Not set: 20ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "duration")]
    pub page_delay: Option<Duration>,
    /// How many entries one page has. Not set: 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_000))]
    pub scan_count: Option<i32>,
    /// A pass ends after this time and the next one goes on. Not set: 200ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "duration")]
    pub pass_budget: Option<Duration>,
}
