//! The seam between a wire format and the engine: a protocol reads jobs and decides what becomes of them,
//! as pure functions; the engine holds leases, moves bytes and knows nothing of formats.
use bytes::Bytes;

use crate::effects::{Decision, Effect, Side};
use crate::job::{Job, NotAJob};
use crate::keys::{Keys, QueueKeys};
use crate::outcome::{OUT_OF_MEMORY, Outcome};
use crate::store::PageKind;

pub mod files;
pub mod sidekiq;

/// Why a lane's jobs came back without its process having settled them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interruption<'a> {
    /// In a word, recorded in the job: `heartbeat`, `restarted`, `oom`, `evicted`, ...
    pub cause: &'a str,
    /// Something outside the process ended it (eviction, node lost, shutdown): the job is above suspicion.
    pub outside: bool,
    /// The job ran alone in its process, so nothing else can have killed it.
    pub alone: bool,
}

impl Interruption<'_> {
    /// The handler died while it ran the job, not our process. Why it did is known when somebody who saw it told.
    pub fn of_handler(why: &str, alone: bool) -> Self {
        Self { cause: if why == OUT_OF_MEMORY { OUT_OF_MEMORY } else { "handler" }, outside: false, alone }
    }
}

/// A sorted set whose members wait until they are due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delayed {
    /// The sorted set.
    pub key: String,
    /// How its scores are read.
    pub kind: PageKind,
    /// The queue its members belong to, where they do not name one themselves.
    pub queue: QueueKeys,
}

/// What a wire format decides. All pure: `now_ms` is Redis' clock.
pub trait Protocol: Send + Sync + 'static {
    /// Where jobs are taken from; they are pushed at the opposite end.
    fn consuming_side(&self) -> Side;

    /// Reads a job.
    fn decode(&self, raw: Bytes) -> Result<Job, (Bytes, NotAJob)>;

    /// What becomes of a job that ran. `unique` is never used twice: it keeps equal delayed jobs apart.
    fn settle(&self, job: &Job, outcome: &Outcome, queue: &QueueKeys, now_ms: u64, unique: &str) -> Decision;

    /// Whether a job is given up if it fails now, where a handler may want to know: an application runs its last words.
    fn is_last_attempt(&self, job: &Job, now_ms: u64) -> Option<bool> {
        let _ = (job, now_ms);
        None
    }

    /// What becomes of bytes that are not a job.
    fn reject(&self, raw: &Bytes, why: &NotAJob, queue: &QueueKeys, now_ms: u64) -> Decision;

    /// What becomes of a job whose process died, or whose handler did.
    fn interrupted(&self, raw: &Bytes, queue: &QueueKeys, how: Interruption<'_>, now_ms: u64) -> Decision;

    /// The sets that are looked at for due jobs: as a rule one a queue.
    fn delayed(&self, keys: &Keys) -> Vec<Delayed> {
        let of = |queue: &QueueKeys| Delayed {
            key: queue.delayed.clone(),
            kind: PageKind::Due,
            queue: queue.clone(),
        };
        keys.queues.iter().map(of).collect()
    }

    /// What a due member of a delayed set becomes.
    fn promote(&self, member: &Bytes, queue: &QueueKeys, now_ms: u64) -> Vec<Effect>;

    /// A dead letter as it is enqueued again: the queue's key it came from, if it says so, and its bytes.
    fn revive(&self, letter: &Bytes) -> (Option<String>, Bytes);

    /// Whether a run says something about the handler's health: `Some(ok)` is a sample for the breaker.
    fn breaker_sample(&self, outcome: &Outcome) -> Option<bool>;
}
