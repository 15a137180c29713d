//! `spec.scaling`: how many workers there are, and when that changes.
use jobqueue::config::Duration;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::duration;

/// How many workers there are, and when that changes.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.minReplicas <= self.maxReplicas").message("minReplicas must not exceed maxReplicas"),
    validation = Rule::new("!has(self.targetLatency) || duration(self.targetLatency) > duration('0s')").message("targetLatency must be more than 0s")
)]
pub struct Scaling {
    /// `Auto`: the number of workers follows the number of jobs, between `minReplicas` and `maxReplicas`. `Manual`: it
    /// is `spec.replicas`, which `kubectl scale`, an HPA or KEDA may write.
    #[serde(default)]
    pub mode: ScalingMode,
    /// The fewest workers in mode Auto. 0: none runs while there are no jobs.
    #[serde(default)]
    #[schemars(range(min = 0, max = 10000))]
    pub min_replicas: i32,
    /// The most workers in mode Auto.
    #[serde(default = "max_replicas")]
    #[schemars(range(min = 1, max = 10000))]
    pub max_replicas: i32,
    /// How many jobs, waiting and running, one worker is started for.
    #[serde(default = "backlog_per_worker")]
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub backlog_per_worker: i32,
    /// How soon a waiting job should be started: there are more workers than `backlogPerWorker` asks for when, by the
    /// measured arrivals and run times, it would take longer. Not set: only the number of jobs counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "duration")]
    pub target_latency: Option<Duration>,
    /// How long fewer workers must have been enough before any is stopped.
    #[serde(default = "scale_down_delay")]
    #[schemars(schema_with = "duration")]
    pub scale_down_delay: Duration,
    /// How long a worker that is to be stopped may take to finish its jobs; then they are given to others. Not set: as
    /// long as they take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "duration")]
    pub drain_timeout: Option<Duration>,
}

// A validated type cannot take its defaults as a whole: the derive makes a second one of it.
fn max_replicas() -> i32 {
    10
}

fn backlog_per_worker() -> i32 {
    100
}

fn scale_down_delay() -> Duration {
    Duration::from_secs(60)
}

impl Default for Scaling {
    fn default() -> Self {
        Self {
            mode: ScalingMode::Auto,
            min_replicas: 0,
            max_replicas: max_replicas(),
            backlog_per_worker: backlog_per_worker(),
            target_latency: None,
            scale_down_delay: scale_down_delay(),
            drain_timeout: None,
        }
    }
}

/// Who decides how many workers there are.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScalingMode {
    /// The operator, by the number of jobs.
    #[default]
    Auto,
    /// Whoever writes `spec.replicas`.
    Manual,
}
