//! `cycle`: adopt, settle and reserve in one step.
use bytes::Bytes;
use redis::Value;

use super::{
    CYCLE, Call, PAGE_BYTES, PAGE_COUNT, PageKind, Session, StoreError, bytes, list, number, text, unexpected,
};
use crate::effects::{Effect, Side, Verdict};
use crate::keys::LaneLists;

/// What to do with a parked fetch's list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Parked {
    /// A fetch is parked on it, or nothing can be there.
    #[default]
    Leave,
    /// It holds the one job we know of: it becomes a held one.
    Adopt,
    /// It may hold a job we never heard of: adopt it and tell.
    Look,
    /// Whatever it holds goes back to the consuming end of its queue.
    Release,
}

impl Parked {
    const fn word(self) -> &'static str {
        match self {
            Self::Leave => "-",
            Self::Adopt => "1",
            Self::Look => "0",
            Self::Release => "r",
        }
    }
}

/// What is asked of one queue.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QueueAsk {
    /// At most this many jobs; 0 = leave it alone.
    pub limit: usize,
    /// At most this many of them suspects.
    pub suspects: usize,
    /// The parked fetch of the queue.
    pub parked: Parked,
    /// The parked fetch of its suspects.
    pub parked_suspects: Parked,
    /// How many jobs we believe to hold, those to be adopted included.
    pub expected: usize,
    /// Finished jobs whose bytes go to the completed list as they are.
    pub done: Vec<Bytes>,
    /// The done are the first of the held list, in its order, and nothing else of this queue is settled by this
    /// call: then naming the first and the last is enough. If the list is not as we believe, all of them are
    /// refused and the whole list is told.
    pub done_at_head: bool,
}

/// One finished job that takes more than the fast path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settlement {
    /// The index of its queue.
    pub queue: usize,
    /// Its bytes as they stand in the held list.
    pub raw: Bytes,
    /// Large jobs are named by their place in the held list: sending them back would halve the throughput.
    pub position: Option<usize>,
    /// What it is counted as, once it took place.
    pub verdict: Verdict,
    /// What becomes of it.
    pub effects: Vec<Effect>,
}

impl Settlement {
    /// The counter it belongs to. What goes back for no fault of its own (released, suspected) is neither.
    const fn counter(&self) -> &'static str {
        match self.verdict {
            Verdict::Done | Verdict::Discarded => "done",
            Verdict::Retried | Verdict::Dead(_) | Verdict::GivenUp => "failed",
            Verdict::Released | Verdict::Suspected | Verdict::Dropped => "",
        }
    }
}

/// One call. It can be repeated as it is: an equal `seq` changes nothing and says again what happened.
#[derive(Debug, Clone, Default)]
pub struct Cycle {
    /// One more than the last that was answered.
    pub seq: u64,
    /// The digest of the suspect that is about to run, or runs, alone in this process; else empty.
    pub alone: String,
    /// The `quiet` word we have obeyed.
    pub quiet: String,
    /// The process was told to stop: whoever finds it dead knows why.
    pub stopping: bool,
    /// Free slots.
    pub room: usize,
    /// In which order each free slot asks the queues: see [`crate::fetch`]. Empty: in theirs.
    pub orders: Vec<u8>,
    /// Time the handlers spent on what is settled here for the first time.
    pub busy_ms: u64,
    /// One a queue, in order.
    pub queues: Vec<QueueAsk>,
    /// Those with a position first.
    pub settlements: Vec<Settlement>,
}

/// What a record says of the job that runs alone: enough to know it again.
pub fn digest(raw: &[u8]) -> String {
    sha1_smol::Sha1::from(raw).digest().to_string()
}

/// What became of one settlement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// It took place.
    Settled,
    /// We did not hold the job.
    NotHeld,
    /// A destination refused it: see the refusals; or the held list was not as expected. The job is still held.
    Refused,
    /// The job is not any more what the decision was made for: it is still held, to be read and decided again.
    Changed,
}

impl Status {
    /// As the scripts write them, one letter each.
    pub(super) fn all(letters: &[u8]) -> Vec<Self> {
        let status = |letter: &u8| match letter {
            b'1' => Self::Settled,
            b'e' => Self::Refused,
            b'c' => Self::Changed,
            _ => Self::NotHeld,
        };
        letters.iter().map(status).collect()
    }
}

/// What a queue gave.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Returned {
    /// The held list was not as expected: `jobs` is all of it, else only what is new.
    pub whole: bool,
    /// Jobs.
    pub jobs: Vec<Bytes>,
}

/// A key that refused a job, or cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The key.
    pub key: String,
    /// Why.
    pub reason: String,
}

impl Refusal {
    /// As the scripts write it: the key and the reason, the last two of a list.
    pub(super) fn read(value: Value) -> Result<Self, StoreError> {
        let mut parts = list(value)?;
        let mut last = || parts.pop().map(text).unwrap_or_default();
        let (reason, key) = (last(), last());
        Ok(Self { key, reason })
    }
}

impl From<Refusal> for StoreError {
    /// What helps depends on why: only a key of the wrong type has to go.
    fn from(Refusal { key, reason }: Refusal) -> Self {
        let says = |words: &str| reason.contains(words);
        if says("NOPERM") || says("can't run this command") || says("can't access") {
            Self::Denied { what: format!("key {key}") }
        } else if says("OOM") {
            Self::OutOfMemory(format!("{key}: {reason}"))
        } else {
            Self::Unfit { key, reason }
        }
    }
}

/// What a cycle answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cycled {
    /// Nobody may reserve.
    pub paused: bool,
    /// This process may not reserve; the word to acknowledge.
    pub quiet: String,
    /// This answers an earlier call with the same `seq`.
    pub replayed: bool,
    /// Of the settlements, then of the done of each queue.
    pub statuses: Vec<Status>,
    /// One a queue.
    pub queues: Vec<Returned>,
    /// Which destinations refused.
    pub refusals: Vec<Refusal>,
}

impl Session {
    /// Settles and reserves for one lane. `None`: the lease is lost, nothing was done and nothing ever will be.
    pub async fn cycle(
        &mut self,
        lane: &LaneHandle,
        cycle: &Cycle,
        side: Side,
        completed_max: Option<u64>,
    ) -> Result<Option<Cycled>, StoreError> {
        let mut call = Call::new(lane.keys.clone());
        call.arg(&lane.token).arg(cycle.seq).arg(&cycle.alone).arg(&cycle.quiet);
        call.arg(cycle.room).arg(PAGE_BYTES).arg(side.letter());
        match completed_max {
            Some(max) => call.arg(max),
            None => call.arg(-1),
        };
        call.arg(cycle.busy_ms).arg(cycle.queues.len()).arg(&cycle.orders[..]);
        call.arg(if cycle.stopping { "1" } else { "" });
        for queue in &cycle.queues {
            call.arg(queue.limit).arg(queue.suspects).arg(queue.parked.word());
            call.arg(queue.parked_suspects.word()).arg(queue.expected);
        }
        call.arg(cycle.settlements.len());
        for settlement in &cycle.settlements {
            call.arg(settlement.queue + 1);
            match settlement.position {
                Some(position) => {
                    let head = &settlement.raw[..settlement.raw.len().min(256)];
                    call.arg("p").arg(position).arg(settlement.raw.len()).arg(head)
                }
                None => call.arg("b").arg(&settlement.raw[..]).arg("").arg(""),
            };
            call.arg(settlement.counter());
            call.effects(&settlement.effects, &lane.counters);
        }
        for queue in &cycle.queues {
            match &queue.done[..] {
                // Two by their bytes are as cheap.
                [first, _, .., last] if queue.done_at_head => {
                    call.arg(format!("-{}", queue.done.len())).arg(&first[..]).arg(&last[..]);
                }
                done => {
                    call.arg(done.len());
                    for raw in done {
                        call.arg(&raw[..]);
                    }
                }
            }
        }
        let reply = list(self.eval(&CYCLE, &call).await?)?;
        if !cycle.settlements.is_empty() || cycle.queues.iter().any(|queue| !queue.done.is_empty()) {
            self.replicated().await?;
        }
        let mut cycled = self.understand_cycle(reply)?;
        for (returned, lists) in cycled.iter_mut().flat_map(|cycled| &mut cycled.queues).zip(&lane.lists) {
            if returned.whole {
                returned.jobs = self.all_of(&lists.held).await?;
            }
        }
        Ok(cycled)
    }

    /// A whole list, page by page: together its jobs may be more than a reply should carry. Nobody but the lane that asks
    /// adds to it, and what a reaper takes meanwhile is not the lane's any more, as its next call will tell.
    async fn all_of(&mut self, list: &str) -> Result<Vec<Bytes>, StoreError> {
        let mut jobs = Vec::new();
        loop {
            let skip = u64::try_from(jobs.len()).unwrap_or(u64::MAX);
            let page = self.page_after(list, PageKind::Head, skip, PAGE_COUNT).await?;
            if page.entries.is_empty() {
                return Ok(jobs);
            }
            jobs.extend(page.entries);
            if page.length <= u64::try_from(jobs.len()).unwrap_or(u64::MAX) {
                return Ok(jobs);
            }
        }
    }

    fn understand_cycle(&mut self, reply: Vec<Value>) -> Result<Option<Cycled>, StoreError> {
        let mut reply = reply.into_iter();
        match text(reply.next().unwrap_or(Value::Nil)).as_str() {
            "OK" => {}
            "LOST" => return Ok(None),
            // Somebody spoke in this lane's name after us: its holder cannot be sure of anything any more.
            "STALE" => {
                tracing::error!("A newer call of this lane was answered");
                return Ok(None);
            }
            other => return Err(unexpected(other)),
        }
        let mut next = || reply.next().ok_or_else(|| unexpected("a short answer"));
        let (seconds, micros) = (next()?, next()?);
        let paused = number(&next()?) == Some(1);
        let quiet = text(next()?);
        let replayed = number(&next()?) == Some(1);
        let statuses = bytes(next()?);
        let queues = list(next()?)?;
        let errors = list(next()?)?;
        self.saw_time(&seconds, &micros);
        let returned = |value: Value| {
            let mut jobs = list(value)?.into_iter().map(bytes);
            let whole = jobs.next().is_some_and(|flag| flag == "1");
            Ok(Returned { whole, jobs: jobs.collect() })
        };
        Ok(Some(Cycled {
            paused,
            quiet,
            replayed,
            statuses: Status::all(&statuses),
            queues: queues.into_iter().map(returned).collect::<Result<_, StoreError>>()?,
            refusals: errors.into_iter().map(Refusal::read).collect::<Result<_, StoreError>>()?,
        }))
    }
}

/// A lane as its holder knows it.
#[derive(Debug, Clone)]
pub struct LaneHandle {
    /// `hostname-PID-idx`.
    pub id: String,
    /// The lease.
    pub token: String,
    /// Its lists, one entry a queue.
    pub lists: Vec<LaneLists>,
    pub(crate) counters: String,
    pub(crate) keys: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_what_helps() {
        let table = [
            ("WRONGTYPE holds a string, must be a list", "rename or delete it"),
            ("NOPERM this user has no permissions to access one of the keys", "give the ACL user"),
            ("ERR The user executing the script can't run this command or subcommand", "give the ACL user"),
            ("OOM command not allowed when used memory > 'maxmemory'", "raise maxmemory"),
        ];
        for (reason, advice) in table {
            let said = StoreError::from(Refusal { key: "q".into(), reason: reason.into() }).to_string();
            assert!(said.contains(advice) && said.contains('q'), "{said}");
        }
    }
}
