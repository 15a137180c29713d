//! The seam between a wire format and the engine: a protocol reads jobs and decides what becomes of them,
//! as pure functions; the engine holds leases, moves bytes and knows nothing of formats.
use bytes::Bytes;

use crate::effects::{Decision, Effect, Side};
use crate::job::{Job, NotAJob};
use crate::keys::QueueKeys;
use crate::outcome::{OUT_OF_MEMORY, Outcome};

pub mod files;

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

/// What a wire format decides. All pure: `now_ms` is Redis' clock.
pub trait Protocol: Send + Sync + 'static {
    /// Where jobs are taken from; they are pushed at the opposite end.
    fn consuming_side(&self) -> Side;

    /// Reads a job.
    fn decode(&self, raw: Bytes) -> Result<Job, (Bytes, NotAJob)>;

    /// What becomes of a job that ran. `unique` is never used twice: it keeps equal delayed jobs apart.
    fn settle(&self, job: &Job, outcome: &Outcome, queue: &QueueKeys, now_ms: u64, unique: &str) -> Decision;

    /// What becomes of bytes that are not a job.
    fn reject(&self, raw: &Bytes, why: &NotAJob, queue: &QueueKeys, now_ms: u64) -> Decision;

    /// What becomes of a job whose process died, or whose handler did.
    fn interrupted(&self, raw: &Bytes, queue: &QueueKeys, how: Interruption<'_>, now_ms: u64) -> Decision;

    /// What a due member of the delayed set becomes.
    fn promote(&self, member: &Bytes, queue: &QueueKeys) -> Vec<Effect>;

    /// A dead letter as it is enqueued again: the queue's key it came from, if it says so, and its bytes.
    fn revive(&self, letter: &Bytes) -> (Option<String>, Bytes);

    /// Whether a run says something about the handler's health: `Some(ok)` is a sample for the breaker.
    fn breaker_sample(&self, outcome: &Outcome) -> Option<bool>;
}
