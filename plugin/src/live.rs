//! What `worker --role=admin` answers, as far as this program reads it: fields are only ever added, so what is missing in
//! an older worker's answer has its default. docs/admin.md has the contract.
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The answer of `stats`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Stats {
    /// When, by Redis' clock.
    pub at: String,
    /// Each queue, in the order of priority.
    pub queues: Vec<Queue>,
    /// All of them.
    pub totals: Queue,
    /// Finished jobs that are kept.
    pub completed: u64,
    /// Jobs that were given up.
    pub dead_letters: u64,
    /// What was done so far.
    pub counters: Counters,
    /// What was done a second, from the second look on.
    pub per_second: Option<Rates>,
    /// Who runs jobs.
    pub processes: Vec<Process>,
    /// Whether nobody takes jobs.
    pub paused: bool,
    /// What could not be read.
    pub errors: Vec<String>,
}

/// One queue.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Queue {
    /// Its name.
    pub queue: String,
    /// Its key.
    pub key: String,
    /// Jobs that wait.
    pub waiting: u64,
    /// Of jobs whose process died while it held them.
    pub suspects: u64,
    /// Jobs that wait for their next attempt.
    pub delayed: u64,
    /// Of those, whose time has come.
    pub due: u64,
    /// Jobs that workers hold.
    pub in_flight: u64,
    /// How long its next job has waited.
    pub oldest_age_ms: Option<u64>,
    /// `open`, `half-open` or `closed`.
    pub breaker: Option<String>,
}

/// What was done so far.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counters {
    /// Attempts that ended well.
    pub done: u64,
    /// Attempts that failed.
    pub failed: u64,
}

/// What was done a second.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rates {
    /// Jobs that were taken.
    pub reserved: f64,
    /// Attempts that ended well.
    pub done: f64,
    /// Attempts that failed.
    pub failed: f64,
}

/// A process that runs jobs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Process {
    /// Its name.
    pub process: String,
    /// The name of its pod.
    pub host: String,
    /// The uid of its pod.
    pub pod_uid: String,
    /// Since when.
    pub started_at: Option<String>,
    /// Jobs that it holds.
    pub in_flight: u64,
    /// The one that it has run the longest.
    pub oldest_job: Option<String>,
    /// `active`, `quiet`, `drained`, `expired` or `fenced`.
    pub state: String,
}

/// The answer of `dlq list`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Letters {
    /// The newest first.
    pub letters: Vec<Letter>,
    /// How many there are in all.
    pub total: u64,
    /// How many were looked at.
    pub looked_at: u64,
    /// How many of those were meant.
    pub matched: u64,
    /// Whether all were looked at.
    pub complete: bool,
    /// Ids that none of those has.
    pub not_found: Vec<String>,
}

/// A dead letter.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Letter {
    /// Of the job.
    pub id: Option<String>,
    /// Where it came from.
    pub queue: Option<String>,
    /// Of a Sidekiq job.
    pub class: Option<String>,
    /// Why it was given up.
    pub reason: Option<String>,
    /// In the words of what ran it.
    pub error: Option<String>,
    /// How long ago.
    pub age_ms: Option<u64>,
    /// How often it was tried again.
    pub retries: Option<u64>,
}

/// The answer of `dlq requeue` and `dlq purge`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Turned {
    /// Whether nothing was done.
    pub dry_run: bool,
    /// Dead letters when it began.
    pub total: u64,
    /// How many were looked at.
    pub looked_at: u64,
    /// How many of those were meant.
    pub matched: u64,
    /// How many are back in their queues.
    pub requeued: u64,
    /// How many were deleted.
    pub deleted: u64,
    /// Lines of the archive that are no letters deleted by this.
    pub not_deleted: u64,
    /// Ids that no letter has.
    pub not_found: Vec<String>,
    /// Whether it was stopped.
    pub interrupted: bool,
    /// Whether somebody else moved letters at the same time.
    pub contended: bool,
    /// Letters that are no jobs, and stay.
    pub unusable: u64,
    /// How long it took.
    pub elapsed_ms: u64,
}

/// How far a requeue or purge has come.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Progress {
    /// How many were looked at.
    pub looked_at: u64,
    /// How many of those were moved or deleted.
    pub matched: u64,
    /// Of how many.
    pub total: u64,
    /// Since when.
    pub elapsed_ms: u64,
}

impl Progress {
    /// What a line beside the answer says, if it is about progress.
    pub fn of(line: &str) -> Option<Self> {
        let mut line: Value = serde_json::from_str(line).ok()?;
        serde_json::from_value(line.get_mut("progress")?.take()).ok()
    }
}

/// The answer of `job`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Search {
    /// Where it is.
    pub found: Vec<Found>,
    /// Whether every place was looked at whole.
    pub complete: bool,
}

/// A place where a job is.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Found {
    /// `waiting`, `held`, `dead`, ...
    pub place: String,
    /// Of which queue.
    pub queue: Option<String>,
    /// Under which key.
    pub key: String,
    /// How many jobs are before it.
    pub ahead: Option<u64>,
    /// The pod that holds it.
    pub host: Option<String>,
    /// When it is tried again.
    pub due_at: Option<String>,
    /// What happened to it.
    pub history: History,
    /// As it stands in Redis.
    pub job: Value,
}

/// What happened to a job.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct History {
    /// When it was made.
    pub created_at: Option<String>,
    /// How often it was tried again.
    pub retries: Option<u64>,
    /// How often its process died while it ran alone.
    pub interruptions: Option<u64>,
    /// How often its process died.
    pub deaths: Option<u64>,
    /// Why it was interrupted last.
    pub interrupted_by: Option<String>,
    /// Why it was given up.
    pub reason: Option<String>,
    /// How it failed last.
    pub error: Option<String>,
    /// When it was given up.
    pub failed_at: Option<String>,
}

/// The answer of `doctor`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Examined {
    /// The worst first.
    pub findings: Vec<Finding>,
}

/// Something that is not as it should be.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Finding {
    /// One word.
    pub id: String,
    /// `error`, `warning` or `info`.
    pub severity: String,
    /// What it is.
    pub what: String,
    /// Why that matters.
    pub why: String,
    /// What to do.
    pub fix: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_older_worker_does_not_say_has_its_default_and_what_a_newer_one_adds_is_ignored() {
        let stats: Stats = serde_json::from_str(
            r#"{"queues":[{"queue":"high","waiting":3,"colour":"red"}],"totals":{"waiting":3},"shards":1}"#,
        )
        .unwrap();
        assert_eq!((stats.queues[0].waiting, stats.per_second, stats.processes.len()), (3, None, 0));
    }

    #[test]
    fn progress_is_told_from_other_lines() {
        let line = r#"{"progress":{"verb":"requeue","looked_at":5,"matched":5,"total":9,"elapsed_ms":1}}"#;
        assert_eq!(Progress::of(line).unwrap().looked_at, 5);
        assert_eq!(Progress::of(r#"{"result":{}}"#), None);
        assert_eq!(Progress::of("Error: no"), None);
    }
}
