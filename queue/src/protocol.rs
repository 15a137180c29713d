//! The seam between a wire format and the engine: a protocol reads jobs and decides what becomes of them,
//! as pure functions; the engine holds leases, moves bytes and knows nothing of formats.
use bytes::Bytes;

use crate::effects::{Decision, Effect, Side, Verdict};
use crate::job::{Data, Job, NotAJob};
use crate::keys::{JobKeys, Keys, QueueKeys};
use crate::outcome::{Failure, OUT_OF_MEMORY, Outcome};
use crate::store::PageKind;

pub mod async_jobs;
pub mod files;
pub mod record;
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

    /// The same of a job that has failed, of this: what it failed of may decide.
    fn is_last_failure(&self, job: &Job, failure: &Failure, now_ms: u64) -> Option<bool> {
        let _ = failure;
        self.is_last_attempt(job, now_ms)
    }

    /// Why a job is given up instead of being run, where that was found out when nobody could tell its application.
    fn condemned(&self, job: &Job) -> Option<Failure> {
        let _ = job;
        None
    }

    /// What an application is told of a job that is given up without its own word, where it wants to know.
    fn obituary(&self, job: &Job, failure: &Failure) -> Option<Bytes> {
        let _ = (job, failure);
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

    /// What further has to be decided when lists hold only the names of jobs; `None` when they hold the jobs.
    fn records(&self) -> Option<&dyn Records> {
        None
    }
}

/// What a wire format decides whose lists hold only the names of jobs: they are read before anything is decided, and
/// whatever changes them says what it has read. All pure.
pub trait Records: Send + Sync {
    /// The key of the job that an entry names; one that no job has when it can be the name of none.
    fn key(&self, entry: &[u8], keys: &JobKeys) -> String;

    /// Larger jobs are not read.
    fn largest(&self) -> usize;

    /// Reads a job.
    fn read(&self, entry: &Bytes, data: Data) -> Result<Job, NotAJob>;

    /// A lane has reserved it and is about to run it.
    fn start(&self, job: &Job, lane: &str, queue: &QueueKeys, now_ms: u64) -> Start;

    /// What becomes of a job that a lane holds and that was changed meanwhile: `None` when its run still counts.
    fn disowned(&self, job: &Job, lane: &str, queue: &QueueKeys, now_ms: u64) -> Option<Decision>;

    /// What becomes of a job of this lane whose process died, or whose handler did.
    fn interrupted(
        &self,
        job: &Job,
        lane: &str,
        queue: &QueueKeys,
        how: Interruption<'_>,
        now_ms: u64,
    ) -> Decision;

    /// What enqueueing a dead letter's job again does to the job itself.
    fn revived(&self, job: &Job, queue: &QueueKeys, now_ms: u64) -> Vec<Effect>;
}

/// What becomes of a reserved job that is about to run.
#[derive(Debug, Clone)]
pub enum Start {
    /// It runs, once this has taken place: the job as it is then.
    Run(Box<Job>, Vec<Effect>),
    /// It does not run.
    Drop(Decision),
}

/// Back to the end of its queue from which it will be taken next, as it is.
pub fn returned(raw: Bytes, queue: &QueueKeys, consuming: Side) -> Decision {
    let effects = vec![Effect::Push { key: queue.queue.clone(), side: consuming, bytes: raw }];
    Decision { verdict: Verdict::Released, effects }
}

/// The same decision, but the job goes behind all others of its queue. For a probe that could not be carried out: as the
/// next one out it would be the next probe as well, and if it is the job that makes its handler unavailable (a proxy
/// answers 503 when what is behind it breaks), none of the others would ever run.
pub fn behind_the_others(mut decision: Decision, queue: &QueueKeys, consuming: Side) -> Decision {
    for effect in &mut decision.effects {
        match effect {
            Effect::Push { key, side, .. } if *key == queue.queue => *side = consuming.opposite(),
            _ => {}
        }
    }
    decision
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::tests::naming;

    #[test]
    fn only_the_place_in_its_own_queue_changes_for_a_job_that_goes_behind_the_others() {
        let queue = Keys::new(&naming(1, false), 0).queues[0].clone();
        let push = |key: &str, side| Effect::Push { key: key.into(), side, bytes: Bytes::from_static(b"a") };
        for consuming in [Side::Left, Side::Right] {
            let effects = vec![push("elsewhere", consuming), push(&queue.queue, consuming)];
            let decision = Decision { verdict: Verdict::Released, effects };
            let expected = [push("elsewhere", consuming), push(&queue.queue, consuming.opposite())];
            assert_eq!(behind_the_others(decision, &queue, consuming).effects, expected);
        }
    }
}
