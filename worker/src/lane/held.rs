//! A job that the lane holds, from its reservation to its settlement.
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use jobqueue::effects::Verdict;
use jobqueue::job::{Fields, Job, NotAJob};
use jobqueue::outcome::Outcome;
use jobqueue::protocol::files::COMPLETED_ENTRY_MAX;
use tokio::task::JoinHandle;

use super::TICK;
use crate::slots::Permit;

/// A job that the lane holds.
pub(super) struct Held {
    pub(super) key: u64,
    pub(super) raw: Bytes,
    pub(super) reserved: Instant,
    pub(super) phase: Phase,
    /// Kept until the job is settled, not only finished: whoever has all slots is alone in the lists too.
    pub(super) permit: Option<Permit>,
    /// The job that tells whether a half-open breaker closes.
    pub(super) probe: bool,
    pub(super) refused: Option<Instant>,
    /// A parked fetch brought it (true: from the suspects), and no cycle has moved it to the held list yet.
    pub(super) adopting: Option<bool>,
}

/// How far it has come.
pub(super) enum Phase {
    /// A suspect waits for its slots.
    Waiting(Arc<Job>, JoinHandle<()>),
    /// It has its slots; one that is to run alone starts once its record says so.
    Admitted(Arc<Job>),
    /// The handler has it.
    Running(Arc<Job>, JoinHandle<()>),
    /// The handler has answered: the next cycle settles it.
    Finished(Arc<Job>, Outcome, Duration),
    /// It is not a job: the next cycle buries it.
    Rejected(NotAJob),
}

/// A settlement that the cycle under way carries out.
pub(super) struct Planned {
    pub(super) queue: usize,
    pub(super) key: u64,
    pub(super) verdict: Verdict,
}

impl Held {
    /// The next cycle can say what becomes of it; what was refused is said again after a while.
    pub(super) fn is_settleable(&self) -> bool {
        matches!(self.phase, Phase::Finished(..) | Phase::Rejected(_))
            && self.refused.is_none_or(|at| at.elapsed() >= TICK)
    }

    /// What we read of it; nothing when it is not a job.
    pub(super) fn fields(&self) -> Option<&Fields> {
        match &self.phase {
            Phase::Waiting(job, _)
            | Phase::Admitted(job)
            | Phase::Running(job, _)
            | Phase::Finished(job, ..) => Some(&job.fields),
            Phase::Rejected(_) => None,
        }
    }
}

/// One slot of those at hand.
pub(super) fn one_of(permits: &mut Vec<Permit>) -> Option<Permit> {
    loop {
        let last = permits.last_mut()?;
        match last.num_permits() {
            0 => drop(permits.pop()),
            1 => return permits.pop(),
            _ => return last.split(1),
        }
    }
}

/// A heartbeat's value: the oldest job in flight, unless it is large; then only who it is.
pub(super) fn oldest_job(held: &Held) -> Bytes {
    if held.raw.len() <= COMPLETED_ENTRY_MAX {
        return held.raw.clone();
    }
    let id = held.fields().map_or("", |fields| fields.id.as_str());
    Bytes::from(serde_json::json!({ "id": id }).to_string())
}

/// Text that is there; an empty field of a job says nothing.
pub(super) fn given(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

/// For logs and counters.
pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
