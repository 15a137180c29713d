//! The configuration: one type, rendered by the operator and read by the worker.
//!
//! [`Config::load`] reads YAML, lays the environment over it, fills in what depends on the protocol and
//! the key prefix, and reports every problem at once. A loaded [`Config`] is *resolved*: every key name
//! in it is the one that is used. The doc comments of the fields are the reference in
//! `docs/configuration.md`, so they speak to the person who operates the queue.
mod accepted;
mod async_jobs;
mod duration;
mod keys;
mod load;
mod problem;
mod redis;
mod reference;
mod secret;
#[cfg(test)]
mod tests;
mod validate;
mod worker;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use async_jobs::{AsyncJobs, TypeHandler};
pub use duration::{Duration, NotADuration};
pub use load::{Loaded, environment};
pub use problem::{Note, Problem, Problems};
pub use redis::{Redis, Sentinel, Tls};
pub use reference::reference_markdown;
pub use secret::{Secret, Url};
pub use worker::{Backoff, Command, Handler, HandlerKind, Http, Reaper, Simulate, Worker};

/// Everything that can be configured, resolved.
///
/// Deserializing reads back what was serialized; what a person wrote goes through [`Config::load`] or
/// [`Config::from_value`], which derive the key names and check the rules.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Which wire format the jobs have, and so who can enqueue them.
    pub protocol: Protocol,
    /// What every default key name begins with. Empty means `jobqueue` for `files`, `jobs` for `async` and
    /// `jobqueue:sidekiq` for `sidekiq` (there it names our own keys only; Sidekiq's keep their names).
    /// Two queues that share one Redis need two prefixes.
    pub key_prefix: String,
    /// How Redis is reached.
    pub redis: Redis,
    /// How jobs are fetched, run, retried and rescued.
    pub worker: Worker,
    /// What `--role=producer` scans and enqueues.
    pub producer: Producer,
    /// When a queue whose jobs keep failing is left alone for a while.
    pub circuit_breaker: CircuitBreaker,
    /// Metrics, logs and traces.
    pub observability: Observability,
    /// The HTTP API of `--role=api`.
    pub api: Api,
    /// What only the `sidekiq` protocol reads.
    pub sidekiq: Sidekiq,
    /// What only the `async` protocol reads.
    #[serde(rename = "async")]
    pub async_jobs: AsyncJobs,
}

impl Default for Config {
    /// The `files` protocol with the prefix `jobqueue`: what an empty file gives.
    fn default() -> Self {
        Self {
            protocol: Protocol::default(),
            key_prefix: Protocol::default().default_prefix().to_owned(),
            redis: Redis::default(),
            worker: Worker::default(),
            producer: Producer::default(),
            circuit_breaker: CircuitBreaker::default(),
            observability: Observability::default(),
            api: Api::default(),
            sidekiq: Sidekiq::default(),
            async_jobs: AsyncJobs::default(),
        }
    }
}

impl Config {
    /// What every key of ours begins with, without the colon.
    pub fn prefix(&self) -> &str {
        &self.key_prefix
    }

    /// The effective configuration without its secrets: what people and support bundles may see.
    pub fn masked(&self) -> Value {
        let mut tree = serde_json::to_value(self).unwrap_or_default();
        for key in &keys::known().leaves {
            if let Some(value) = keys::get_mut(&mut tree, &key.path) {
                *value = key.masked(value);
            }
        }
        tree
    }

    /// [`Config::masked`] as a YAML document.
    pub fn to_yaml_masked(&self) -> String {
        let masked = self.masked();
        // JSON is YAML: whatever the serializer cannot lay out nicely is still a valid document.
        serde_saphyr::to_string(&Plain(&masked)).unwrap_or_else(|_| masked.to_string())
    }
}

/// A tree whose numbers are numbers to every serializer: those of `serde_json`, which keep any precision, are a
/// private map to all serializers but its own.
pub struct Plain<'a>(pub &'a Value);

impl Serialize for Plain<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Value::Number(number) => match (number.as_i64(), number.as_f64()) {
                (Some(whole), _) => serializer.serialize_i64(whole),
                (None, Some(broken)) => serializer.serialize_f64(broken),
                (None, None) => serializer.serialize_str(&number.to_string()),
            },
            Value::Array(items) => serializer.collect_seq(items.iter().map(Plain)),
            Value::Object(fields) => {
                serializer.collect_map(fields.iter().map(|(name, value)| (name, Plain(value))))
            }
            other => other.serialize(serializer),
        }
    }
}

/// The wire format of the jobs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// JSON jobs in plain lists, from the directory producer or anything that can `LPUSH`.
    #[default]
    Files,
    /// What Rails and every other Sidekiq client enqueues.
    Sidekiq,
    /// Jobs created and watched over HTTP.
    Async,
}

impl Protocol {
    /// The word for it in the configuration, metrics and logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Files => "files",
            Self::Sidekiq => "sidekiq",
            Self::Async => "async",
        }
    }

    /// The key prefix when none is configured. Sidekiq has one of its own, so that a `files` queue on the
    /// same Redis does not share its registry and its pause switch.
    pub const fn default_prefix(self) -> &'static str {
        match self {
            Self::Files => "jobqueue",
            Self::Sidekiq => "jobqueue:sidekiq",
            Self::Async => "jobs",
        }
    }
}

impl std::fmt::Display for Protocol {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What `--role=producer` scans and enqueues.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Producer {
    /// Names this producer: what it has seen is remembered per name and directory. Give two producers
    /// that scan different volumes mounted at one path different names.
    pub name: String,
    /// The directory that is scanned, with everything below it.
    pub scan_dir: String,
    /// Files are enqueued when their path below `scan_dir` matches one of these.
    pub include_globs: Vec<String>,
    /// Files that match one of these are left out.
    pub exclude_globs: Vec<String>,
    /// The priority of files whose extension is not in `high_priority_exts`: one of `worker.priorities`.
    /// Not set: `low`, or the last priority where there is no `low`.
    pub default_priority: String,
    /// Files with these extensions get the first of `worker.priorities`.
    pub high_priority_exts: Vec<String>,
    /// How many jobs all producers of this queue together enqueue in a second; 0 is no limit.
    pub rate_limit_per_sec: u32,
    /// The counter that the producers share.
    pub rate_limit_key: String,
    /// How long a producer waits between two scans.
    pub rescan_interval: Duration,
    /// Scan once and exit, instead of rescanning.
    pub once: bool,
    /// Enqueue a file once per content state (size and modification time). `false` enqueues every file
    /// at every scan.
    pub remember: bool,
}

impl Default for Producer {
    fn default() -> Self {
        Self {
            name: "producer".into(),
            scan_dir: "./data".into(),
            include_globs: vec!["**/*".into()],
            exclude_globs: vec!["**/*.tmp".into(), "**/.DS_Store".into()],
            default_priority: "low".into(),
            high_priority_exts: [".pdf", ".docx", ".xlsx", ".zip"].map(String::from).to_vec(),
            rate_limit_per_sec: 100,
            rate_limit_key: "jobqueue:rate_limit:producer".into(),
            rescan_interval: Duration::from_secs(10),
            once: false,
            remember: true,
        }
    }
}

/// When a queue whose jobs keep failing is left alone for a while.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CircuitBreaker {
    /// The share of failed runs in the window that opens the breaker: above 0, at most 1.
    #[schemars(extend("exclusiveMinimum" = 0, "maximum" = 1))]
    pub failure_threshold: f64,
    /// How far back runs count.
    pub window: Duration,
    /// How long an open breaker stops fetching before it probes with a single job.
    pub cooldown_period: Duration,
    /// With fewer runs in the window the breaker stays closed.
    #[schemars(range(min = 1))]
    pub min_samples: u32,
}

impl Default for CircuitBreaker {
    fn default() -> Self {
        Self {
            failure_threshold: 0.5,
            window: Duration::from_secs(60),
            cooldown_period: Duration::from_secs(30),
            min_samples: 20,
        }
    }
}

/// Metrics, logs and traces.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Observability {
    /// The port of `/metrics`, `/healthz` and `/readyz`; 0 picks a free one and logs it.
    pub metrics_port: u16,
    /// The least severe log lines that are written. Lines about single jobs are `debug`.
    pub log_level: LogLevel,
    /// How often queue lengths and ages are read for the gauges.
    pub queue_sample_interval: Duration,
    /// OpenTelemetry traces of enqueueing and running jobs.
    pub tracing: Tracing,
}

impl Default for Observability {
    fn default() -> Self {
        Self {
            metrics_port: 9090,
            log_level: LogLevel::default(),
            queue_sample_interval: Duration::from_secs(5),
            tracing: Tracing::default(),
        }
    }
}

/// The severities of log lines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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

impl LogLevel {
    /// The word for it in the configuration and in log lines.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Error => "error",
        }
    }
}

/// Where traces go.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Tracing {
    /// Export traces.
    pub enabled: bool,
    /// The OTLP endpoint, gRPC or HTTP. Empty: what `OTEL_EXPORTER_OTLP_ENDPOINT` says, or the standard one.
    pub endpoint: Url,
}

/// The HTTP API of `--role=api`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Api {
    /// The port it listens on; 0 picks a free one and logs it.
    pub port: u16,
    /// The largest request body in bytes.
    #[schemars(range(min = 1, max = 536_870_912))]
    pub body_limit: u64,
    /// How deep a request body may nest.
    #[schemars(range(min = 1, max = 99))]
    pub depth_limit: u32,
    /// A file with the accepted bearer tokens, one a line, read again when it changes. Empty: no authentication.
    pub token_file: String,
    /// How long a finished job can be read.
    pub result_ttl: Duration,
    /// The longest that `GET /jobs/{id}?wait=` waits.
    pub max_wait: Duration,
    /// How often a request that waits looks at its job by itself, should the event of a change get lost.
    pub look_interval: Duration,
    /// How long Redis may take before a request is answered with 503.
    pub redis_timeout: Duration,
    /// How long the head of a request may take to arrive.
    pub header_timeout: Duration,
    /// How long the body of a request may take to arrive.
    pub body_timeout: Duration,
    /// How long a client may take to read an answer of more than 1 KiB; then its connection is closed.
    pub answer_timeout: Duration,
    /// Connections that are open at once; others wait to be accepted.
    #[schemars(range(min = 1, max = 100_000))]
    pub max_connections: u32,
    /// How long new requests are still taken after SIGTERM, while load balancers learn that this process goes.
    pub drain_delay: Duration,
}

impl Default for Api {
    fn default() -> Self {
        Self {
            port: 8080,
            body_limit: 1_048_576,
            depth_limit: 64,
            token_file: String::new(),
            result_ttl: Duration::from_secs(24 * 60 * 60),
            max_wait: Duration::from_secs(60),
            look_interval: Duration::from_secs(1),
            redis_timeout: Duration::from_millis(1500),
            header_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(30),
            answer_timeout: Duration::from_secs(30),
            max_connections: 1024,
            drain_delay: Duration::ZERO,
        }
    }
}

/// What only the `sidekiq` protocol reads.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Sidekiq {
    /// What Sidekiq's own keys begin with, for applications that use `redis-namespace`: `app` means
    /// `app:queue:default`.
    pub namespace: String,
    /// How long a failed job waits. `sidekiq`: Sidekiq's own formula, `count^4 + 15` seconds and jitter.
    /// `exponential`: doubling from `worker.backoff.base` to `worker.backoff.max`, with jitter.
    pub retry: SidekiqRetry,
    /// Which due jobs of the `retry` and `schedule` sets workers bring back to their queues. `all`: those of every
    /// queue, also of queues that only Ruby processes serve. `off`: none, Ruby processes do. Client middleware does
    /// not run for a job that is brought back here.
    pub promote: SidekiqPromote,
}

/// Which due jobs are brought back to their queues.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SidekiqPromote {
    /// Those of every queue.
    #[default]
    All,
    /// None: Ruby processes do it.
    Off,
}

/// The retry formulas of the `sidekiq` protocol.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SidekiqRetry {
    /// Sidekiq's own: `count^4 + 15` seconds and jitter, 25 retries unless the job says otherwise.
    #[default]
    Sidekiq,
    /// Doubling from `worker.backoff.base` to `worker.backoff.max` with jitter, 25 attempts in all.
    Exponential,
}
