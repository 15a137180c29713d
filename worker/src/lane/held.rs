//! A job that the lane holds, from its reservation to its settlement.
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use jobqueue::effects::{Decision, Effect, Verdict};
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
    /// Kept until the job is settled, not only finished: whoever has all slots is alone in the lists too. Given back when
    /// Redis refuses the settlement, for that may last.
    pub(super) permit: Option<Permit>,
    /// It has as many slots as it needs, and has waited for them if they are more than one.
    pub(super) admitted: bool,
    /// The job that tells whether a half-open breaker closes.
    pub(super) probe: bool,
    pub(super) refused: Option<Instant>,
    /// Its handler gave it back: it keeps its slot until then, and so nobody runs it again at once.
    pub(super) rests_until: Option<Instant>,
    /// A parked fetch brought it (true: from the suspects), and no cycle has moved it to the held list yet.
    pub(super) adopting: Option<bool>,
}

/// How far it has come.
pub(super) enum Phase {
    /// The list only names it: it has to be opened, that is read and marked as started.
    Closed,
    /// A suspect waits for its slots.
    Waiting(Arc<Job>, JoinHandle<()>),
    /// It has its slots; one that is to run alone starts once its record says so.
    Admitted(Arc<Job>),
    /// The handler has it.
    Running(Arc<Job>, JoinHandle<()>),
    /// The handler has answered: the next cycle settles it.
    Finished(Arc<Job>, Outcome, Duration),
    /// The same, and somebody changed the job meanwhile: it has to be read again first.
    Outdated(Arc<Job>, Outcome),
    /// It was not run, and what becomes of it is decided: the next cycle carries it out.
    Decided(Decision),
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
        matches!(self.phase, Phase::Finished(..) | Phase::Rejected(_) | Phase::Decided(_))
            && self.is_not_refused()
            && self.rests_until.is_none_or(|until| Instant::now() >= until)
    }

    /// It has to be read before anything can become of it.
    pub(super) fn is_to_be_opened(&self) -> bool {
        matches!(self.phase, Phase::Closed | Phase::Outdated(..)) && self.is_not_refused()
    }

    fn is_not_refused(&self) -> bool {
        self.refused.is_none_or(|at| at.elapsed() >= TICK)
    }

    /// About how many bytes it takes to say what becomes of it. A job is said twice, as it was and as it becomes; of one
    /// that is done and does not stand apart from its list, the list's own bytes are enough.
    pub(super) fn weight(&self, apart: bool) -> usize {
        let more = match &self.phase {
            Phase::Finished(job, outcome, _) if apart => {
                let result = if let Outcome::DoneWith(result) = outcome { result.len() } else { 0 };
                2 * job.raw.len() + result
            }
            Phase::Finished(_, Outcome::Done | Outcome::DoneWith(_) | Outcome::Discard(_), _)
            | Phase::Closed
            | Phase::Waiting(..)
            | Phase::Admitted(_)
            | Phase::Running(..)
            | Phase::Outdated(..) => 0,
            Phase::Finished(job, ..) => job.raw.len(),
            Phase::Rejected(_) => self.raw.len(),
            Phase::Decided(decision) => decision.effects.iter().map(Effect::size).sum(),
        };
        self.raw.len() + more
    }

    /// What we read of it; nothing when it is not a job.
    pub(super) fn fields(&self) -> Option<&Fields> {
        match &self.phase {
            Phase::Waiting(job, _)
            | Phase::Admitted(job)
            | Phase::Running(job, _)
            | Phase::Finished(job, ..)
            | Phase::Outdated(job, _) => Some(&job.fields),
            Phase::Closed | Phase::Rejected(_) | Phase::Decided(_) => None,
        }
    }
}

/// Forgets a settled job as Redis does, so that both keep one order: large jobs go by their place, of all others the
/// first of equal bytes. Which of several equal jobs stands where means nothing to Redis, so they may change places.
pub(super) fn forget(held: &mut Vec<Held>, at: usize) -> Held {
    let raw = &held[at].raw;
    let first = if raw.len() > COMPLETED_ENTRY_MAX {
        at
    } else {
        held[..at].iter().position(|earlier| earlier.raw == *raw).unwrap_or(at)
    };
    held.swap(first, at);
    held.remove(first)
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

#[cfg(test)]
mod tests {
    use jobqueue::outcome::{Failure, Reason};
    use proptest::prelude::*;

    use super::*;

    fn held(key: u64, raw: Bytes) -> Held {
        let job = Arc::new(Job { raw: raw.clone(), fields: Fields::default() });
        let phase = Phase::Finished(job, Outcome::Done, Duration::ZERO);
        let reserved = Instant::now();
        Held {
            key,
            raw,
            reserved,
            phase,
            permit: None,
            admitted: false,
            probe: false,
            refused: None,
            rests_until: None,
            adopting: None,
        }
    }

    #[test]
    fn a_job_that_goes_on_elsewhere_weighs_what_is_said_of_it_and_what_becomes_of_it() {
        let raw = Bytes::from(vec![b'x'; 4096]);
        let mut job = held(1, raw.clone());
        assert_eq!(job.weight(false), 4096, "done: its bytes are in the list");
        let Phase::Finished(body, ..) = &job.phase else { panic!("finished") };
        let body = Arc::clone(body);
        let failed = Outcome::Failed(Failure::new(Reason::Handler, "no"));
        job.phase = Phase::Finished(Arc::clone(&body), failed, Duration::ZERO);
        assert_eq!(job.weight(false), 2 * 4096, "retried: 200 of them are no page of 1 MiB");
        assert_eq!(job.weight(true), 3 * 4096);
        job.phase = Phase::Rejected(NotAJob::NoData);
        assert_eq!(job.weight(false), 2 * 4096);
    }

    proptest! {
        #[test]
        fn jobs_of_equal_bytes_leave_in_any_order_and_the_lane_still_knows_what_stands_where(
            jobs in proptest::collection::vec(0..3u8, 1..12),
            order in proptest::collection::vec(any::<proptest::sample::Index>(), 1..12),
        ) {
            let raw = |job: &u8| Bytes::from(vec![b'a' + job; 4]);
            let mut ours: Vec<_> = jobs.iter().zip(0..).map(|(job, key)| held(key, raw(job))).collect();
            let mut redis: Vec<_> = jobs.iter().map(raw).collect();
            for next in order {
                if ours.is_empty() {
                    break;
                }
                let at = next.index(ours.len());
                let (key, raw) = (ours[at].key, ours[at].raw.clone());
                prop_assert_eq!(forget(&mut ours, at).key, key);
                // LREM key 1 raw.
                redis.remove(redis.iter().position(|entry| *entry == raw).unwrap());
                let known: Vec<_> = ours.iter().map(|held| held.raw.clone()).collect();
                prop_assert_eq!(&known, &redis);
            }
        }
    }
}
