//! How jobs are fetched, run, retried and rescued.
use super::secret::mask_url;
use super::{Duration, Url};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// How jobs are fetched, run, retried and rescued.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Worker {
    /// How many jobs one process runs at the same time.
    #[schemars(range(min = 1, max = 100_000))]
    pub count: u32,
    /// How many lanes (worker ids, each with a processing list, a heartbeat and a connection) share the
    /// `count` slots; 0 is automatic, `count` gives each slot its own id.
    #[schemars(range(min = 0, max = 100_000))]
    pub lanes: u32,
    /// Over how many keys each queue is spread: at most `count`, since each needs a slot to be served. More than 1 uses
    /// other key names: see Sharding below.
    #[schemars(range(min = 1, max = 1024))]
    pub shards: u32,
    /// How long a dead worker's jobs stay with it: at least 5s. A living worker renews it, however long its
    /// jobs run.
    pub heartbeat_ttl: Duration,
    /// How often a failed job is run again before it becomes a dead letter. For `sidekiq` the default is
    /// 25 (24 with `sidekiq.retry: exponential`), and a job's own `retry` wins.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub max_retries: u32,
    /// How often a process may die while a job runs alone in it before the job becomes a dead letter.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max_interruptions: u32,
    /// How long a failed job waits before it is run again.
    pub backoff: Backoff,
    /// The names of the queues in strict order: the first is served first. For `sidekiq` they are Sidekiq's
    /// queue names; for `sidekiq` and `async` the default is `default`.
    pub priorities: Vec<String>,
    /// The key of each queue. An entry here replaces the defaults of all; a variable such as
    /// `WORKER_QUEUES_HIGH` changes only its own. For `sidekiq` the keys are derived: `queue:NAME`. A list
    /// means `worker.priorities`.
    pub queues: BTreeMap<String, String>,
    /// Makes the order of the queues weighted instead of strict: a queue of weight 5 is asked first five
    /// times as often as one of weight 1; all 1 is random. Empty is strict.
    pub weights: BTreeMap<String, u16>,
    /// The key of a lane's processing list; `%s` is the worker id.
    pub processing_list_pattern: String,
    /// The key of a lane's heartbeat; `%s` is the worker id.
    pub heartbeat_key_pattern: String,
    /// The key of the jobs that wait for their next attempt; `%s` is the name of the queue. Without effect with
    /// `sidekiq`: they are in its own sets.
    pub delayed_set_pattern: String,
    /// The list of completed jobs. Without effect with `sidekiq` and `async`, which keep none.
    pub completed_list: String,
    /// The list of dead letters: jobs that will not be run again by themselves. Without effect with `sidekiq`: they are
    /// in its own set of dead jobs.
    pub dead_letter_list: String,
    /// How many completed jobs are kept; 0 keeps none, -1 keeps all. Without effect with `sidekiq`, which keeps none, and
    /// with `async`, which keeps them for `api.result_ttl`.
    #[schemars(range(min = -1))]
    pub completed_max: i64,
    /// How many dead letters are kept; -1 keeps all. What is trimmed is counted in the metrics. For `sidekiq` -1 means
    /// Sidekiq's own limits: 9,999 jobs, 180 days. 10000 for `async`, where they only name jobs that are gone after
    /// `api.result_ttl`.
    #[schemars(range(min = -1))]
    pub dead_letter_max: i64,
    /// How long one blocking fetch on an idle queue waits: at least 50ms, at most half of `heartbeat_ttl`.
    /// A new job ends the wait at once.
    pub brpoplpush_timeout: Duration,
    /// How long running jobs may take to finish after SIGTERM; then they are released, uncounted.
    pub drain_timeout: Duration,
    /// Larger jobs become dead letters unread. 16 MiB for `sidekiq`.
    #[schemars(range(min = 1, max = 536_870_912))]
    pub max_payload_bytes: u64,
    /// What runs a job.
    pub handler: Handler,
    /// The rescue of dead workers' jobs.
    pub reaper: Reaper,
    /// The uid of the pod this process runs in; the operator sets it. A restarted container then takes back
    /// its predecessor's jobs at once.
    pub pod_uid: String,
    /// The uid of the `JobQueue` this process belongs to; the operator sets it.
    pub jobqueue_uid: String,
    /// The namespace this process runs in; the operator sets it, the logs carry it.
    pub namespace: String,
}

impl Default for Worker {
    fn default() -> Self {
        let queue = |name: &str| (name.to_owned(), format!("jobqueue:{name}_priority"));
        Self {
            count: 16,
            lanes: 0,
            shards: 1,
            heartbeat_ttl: Duration::from_secs(30),
            max_retries: 3,
            max_interruptions: 3,
            backoff: Backoff::default(),
            priorities: vec!["high".into(), "low".into()],
            queues: BTreeMap::from([queue("high"), queue("low")]),
            weights: BTreeMap::new(),
            processing_list_pattern: "jobqueue:worker:%s:processing".into(),
            heartbeat_key_pattern: "jobqueue:processing:worker:%s".into(),
            delayed_set_pattern: "jobqueue:delayed:%s".into(),
            completed_list: "jobqueue:completed".into(),
            dead_letter_list: "jobqueue:dead_letter".into(),
            completed_max: 10_000,
            dead_letter_max: -1,
            brpoplpush_timeout: Duration::from_secs(1),
            drain_timeout: Duration::from_secs(25),
            max_payload_bytes: 1_048_576,
            handler: Handler::default(),
            reaper: Reaper::default(),
            pod_uid: String::new(),
            jobqueue_uid: String::new(),
            namespace: String::new(),
        }
    }
}

impl Worker {
    /// The key of a lane's processing list.
    pub fn processing_list(&self, lane_id: &str) -> String {
        self.processing_list_pattern.replacen("%s", lane_id, 1)
    }

    /// The key of a lane's heartbeat.
    pub fn heartbeat_key(&self, lane_id: &str) -> String {
        self.heartbeat_key_pattern.replacen("%s", lane_id, 1)
    }

    /// The key of the jobs of queue `name` that wait for their next attempt.
    pub fn delayed_set(&self, name: &str) -> String {
        self.delayed_set_pattern.replacen("%s", name, 1)
    }
}

/// How long a failed job waits before it is run again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Backoff {
    /// The wait after the first failure; each further one doubles it. `15s` for `sidekiq`.
    pub base: Duration,
    /// The longest wait. `24h` for `sidekiq`.
    pub max: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { base: Duration::from_millis(500), max: Duration::from_secs(10) }
    }
}

/// What runs a job.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Handler {
    /// Which of the handlers below is used. Not set: `http` with a `url` or `unix_socket`, `command` with an `argv`; with
    /// neither `simulate`, but for `sidekiq`, where it must be set.
    pub kind: HandlerKind,
    /// Pretends to work, for trying things out.
    pub simulate: Simulate,
    /// Posts each job to an application.
    pub http: Http,
    /// Runs a program per job.
    pub command: Command,
}

/// The kinds of handlers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum HandlerKind {
    /// Pretends to work.
    #[default]
    Simulate,
    /// Posts each job to an application.
    Http,
    /// Runs a program per job.
    Command,
}

/// Pretends to work, for trying things out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Simulate {
    /// How long every job takes. `JOB_SIMULATION_DURATION` sets it too.
    pub base: Duration,
    /// How much longer it takes per MiB of the job's file. Without effect with `async` and `sidekiq`, whose jobs have none.
    pub per_mib: Duration,
    /// Jobs whose `filepath` matches this glob fail. Empty: none does. Without effect with `async` and `sidekiq`, whose
    /// jobs have none.
    pub fail_glob: String,
}

impl Default for Simulate {
    fn default() -> Self {
        Self { base: Duration::ZERO, per_mib: Duration::from_millis(100), fail_glob: String::new() }
    }
}

/// Posts each job to an application.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Http {
    /// Where the application listens, such as `http://127.0.0.1:3000`. This or `unix_socket`.
    pub url: Url,
    /// The unix socket the application listens on.
    pub unix_socket: String,
    /// The path that jobs are posted to.
    pub path: String,
    /// How long one job may take; then it has failed.
    pub timeout: Duration,
    /// A file with the bearer token that is sent along, read again when it changes.
    pub token_file: String,
    /// A file with the key that requests are signed with (HMAC-SHA256) instead of a bearer token.
    pub hmac_key_file: String,
    /// PEM file with the authorities that are trusted instead of the system's, for an `https://` URL.
    pub ca_file: String,
    /// PEM file with our certificate, for an application that asks for one.
    pub cert_file: String,
    /// PEM file with the key of `cert_file`.
    pub key_file: String,
}

impl Default for Http {
    fn default() -> Self {
        Self {
            url: Url::default(),
            unix_socket: String::new(),
            path: "/jobs/execute".into(),
            timeout: Duration::from_secs(60),
            token_file: String::new(),
            hmac_key_file: String::new(),
            ca_file: String::new(),
            cert_file: String::new(),
            key_file: String::new(),
        }
    }
}

/// Runs a program per job.
#[derive(Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Command {
    /// The program and its arguments; the job is its standard input. Exit 0 is done, 75 is retry later,
    /// anything else a failure.
    pub argv: Vec<String>,
    /// How long it may run; then it is killed with everything it started, and the job has failed.
    pub timeout: Duration,
}

impl Default for Command {
    fn default() -> Self {
        Self { argv: Vec::new(), timeout: Duration::from_secs(60) }
    }
}

impl fmt::Debug for Command {
    /// Arguments are where people put the URLs of their databases.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let argv: Vec<_> = self.argv.iter().map(|argument| mask_url(argument)).collect();
        f.debug_struct("Command").field("argv", &argv).field("timeout", &self.timeout).finish()
    }
}

/// The rescue of dead workers' jobs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Reaper {
    /// Rescue from this process whenever no operator does it for all.
    pub enabled: bool,
    /// How long it waits between two passes, give or take a quarter.
    pub interval: Duration,
    /// How long it waits between two pages of one pass, give or take a half.
    pub page_delay: Duration,
    /// How many keys Redis looks at for one page of the search for lists that no record names (`COUNT` of `SCAN`). Pages of
    /// jobs are bounded by 100 jobs and 1 MiB.
    #[schemars(range(min = 1, max = 10_000))]
    pub scan_count: u32,
    /// A pass ends after this time and the next one goes on.
    pub pass_budget: Duration,
}

impl Default for Reaper {
    fn default() -> Self {
        Self {
            enabled: true,
            interval: Duration::from_secs(1),
            page_delay: Duration::from_millis(20),
            scan_count: 100,
            pass_budget: Duration::from_millis(200),
        }
    }
}
