//! What the lanes of one process share.
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use jobqueue::breaker::{self, Breaker};
use jobqueue::protocol::Protocol;
use jobqueue::store::{LaneHandle, Registration};
use tokio::sync::{Notify, watch};

use crate::coroner::Coroner;
use crate::handler::Handler;
use crate::health::Readiness;
use crate::metrics::{Metrics, QueueMetrics};
use crate::presence::Presence;
use crate::slots::Slots;
use crate::traces::Tracer;

/// How lanes work.
#[derive(Debug, Clone)]
pub struct LaneSettings {
    /// How long a heartbeat lives.
    pub ttl: Duration,
    /// How long a fetch stays parked.
    pub park_timeout: Duration,
    /// Entries the completed list keeps.
    pub completed_max: Option<u64>,
    /// From the first signal to the release of what still runs.
    pub drain_timeout: Duration,
    /// How often each queue is asked first; empty: always in their order.
    pub weights: Vec<u32>,
    /// Between two tries to reach Redis, at most: lanes must be back before a reaper may look at them.
    pub longest_backoff: Duration,
}

/// How the slots are shared out among the lanes: anew when a shard of another layout is found.
#[derive(Debug, Default)]
pub struct Shares {
    lanes: AtomicUsize,
    shards: AtomicUsize,
    /// Lanes that wait for a slot where there are fewer slots than lanes: in the order of their turns.
    turns: Mutex<Vec<usize>>,
}

impl Shares {
    /// So many more lanes serve one more shard.
    pub fn serve(&self, lanes: usize) {
        self.lanes.fetch_add(lanes, Ordering::Relaxed);
        self.shards.fetch_add(1, Ordering::Relaxed);
    }

    /// The slots of one lane: as many as it may always use. Where the lanes serve different shards, those of all lanes
    /// together are no more than there are: else some could have all of them, and a shard none as long as they are busy.
    pub fn share(&self, slots: usize, lane: usize) -> usize {
        let lanes = self.lanes.load(Ordering::Relaxed).max(1);
        let whole = match slots % lanes {
            0 => 0,
            rest if self.shards.load(Ordering::Relaxed) > 1 => usize::from(lane < rest),
            _ => 1,
        };
        (slots / lanes + whole).max(1)
    }

    /// Not every lane can have a slot of its own, and they serve different shards: they take turns.
    pub fn are_short(&self, slots: usize) -> bool {
        self.shards.load(Ordering::Relaxed) > 1 && self.lanes.load(Ordering::Relaxed) > slots
    }

    /// A lane waits for its turn, or does not any more. One that waits keeps its place.
    pub fn waits(&self, lane: usize, waits: bool) {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        let at = turns.iter().position(|waiting| *waiting == lane);
        match at {
            None if waits => turns.push(lane),
            Some(at) if !waits => drop(turns.remove(at)),
            _ => {}
        }
    }

    /// How many other lanes have their turn before this one: the next slots are theirs.
    pub fn before(&self, lane: usize) -> usize {
        let turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        turns.iter().position(|waiting| *waiting == lane).unwrap_or(turns.len())
    }

    /// Slots that a lane leaves free when it goes beyond its share: one for each other lane to wake up with, but most of
    /// them may go to a shard that alone has jobs. `None` where all lanes serve the same queues.
    pub fn spare(&self, slots: usize) -> Option<usize> {
        let lanes = self.lanes.load(Ordering::Relaxed);
        (self.shards.load(Ordering::Relaxed) > 1).then(|| lanes.saturating_sub(1).min(slots / 4))
    }
}

/// What the lanes of one process share.
pub struct Shared {
    /// The wire format.
    pub protocol: Arc<dyn Protocol>,
    /// What runs a job.
    pub handler: Handler,
    /// How many may run.
    pub slots: Slots,
    /// One a queue.
    pub breakers: Vec<Mutex<Breaker>>,
    /// One a queue.
    pub queue_metrics: Vec<Arc<QueueMetrics>>,
    /// All of them.
    pub metrics: Arc<Metrics>,
    /// Spans.
    pub tracer: Tracer,
    /// How lanes work.
    pub settings: LaneSettings,
    /// Who this process is.
    pub registration: Registration,
    /// For `/readyz`.
    pub readiness: Readiness,
    /// Wakes lanes that have nothing to do: there is more than one of them can take.
    pub wake: Notify,
    /// Tells lanes without room that another has left slots free that it does not need: once a cycle, not once a job.
    pub freed: Notify,
    /// One a lane: it has obeyed `quiet` and holds nothing.
    pub drained: Mutex<Vec<bool>>,
    /// How the slots are shared out.
    pub shares: Shares,
    /// Knows why the handler died, where somebody can tell.
    pub coroner: Option<Coroner>,
    /// Wakes the heartbeat: its record has something to tell before its time.
    pub news: watch::Sender<()>,
    /// What Sidekiq's API and web page see of this process, and tell it.
    pub presence: Option<Presence>,
}

impl Shared {
    /// The slots of one lane: as many as it may always use.
    pub fn share(&self, lane: usize) -> usize {
        self.shares.share(self.slots.total() as usize, lane)
    }

    /// Not every lane can have a slot of its own: they take turns.
    pub fn are_short(&self) -> bool {
        self.shares.are_short(self.slots.total() as usize)
    }

    /// Slots that a lane leaves free when it goes beyond its share.
    pub fn spare(&self) -> Option<usize> {
        self.shares.spare(self.slots.total() as usize)
    }

    /// The breaker of a queue.
    pub fn breaker(&self, queue: usize) -> std::sync::MutexGuard<'_, Breaker> {
        self.breakers[queue].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// There is a lane of this number, or will be: nobody is drained before it is.
    pub fn expect_lane(&self, index: usize) {
        let mut drained = self.drained.lock().unwrap_or_else(PoisonError::into_inner);
        let lanes = drained.len().max(index + 1);
        drained.resize(lanes, false);
    }

    /// A lane has obeyed `quiet` and holds nothing, or is at work: the process is ready for work accordingly.
    pub fn lane_drained(&self, index: usize, is: bool) {
        let mut drained = self.drained.lock().unwrap_or_else(PoisonError::into_inner);
        let was = std::mem::replace(&mut drained[index], is);
        if is && drained.iter().all(|lane| *lane) {
            self.readiness.drained();
        } else if was && !is {
            self.readiness.resumed();
        }
    }

    /// People want this process to take no more jobs.
    pub fn is_quiet(&self) -> bool {
        self.presence.as_ref().is_some_and(Presence::is_quiet)
    }

    /// People want nobody to take jobs of this queue.
    pub fn is_paused(&self, queue: usize) -> bool {
        self.presence.as_ref().is_some_and(|presence| presence.is_paused(queue))
    }

    /// The verdicts of the breakers as records hold them: `high=open low=closed`. One that has none says nothing.
    pub fn breaker_verdicts(&self, names: &[String]) -> String {
        let now = Instant::now();
        let verdict = |(queue, name): (usize, &String)| {
            self.breaker(queue).verdict(now).map(|state| format!("{name}={}", state.as_str()))
        };
        names.iter().enumerate().filter_map(verdict).collect::<Vec<_>>().join(" ")
    }

    /// A run of a job of this queue ended: counts for its breaker. While it is half-open only the probe's does, not
    /// that of a job reserved before it opened.
    pub fn sampled(&self, queue: usize, ok: bool, probe: bool) {
        let now = Instant::now();
        let mut breaker = self.breaker(queue);
        let before = breaker.verdict(now);
        let changed = (probe || breaker.state(now) != breaker::State::HalfOpen) && breaker.record(ok, now);
        let (state, judged) = (breaker.state(now), breaker.verdict(now) != before);
        drop(breaker);
        if changed {
            self.breaker_changed(queue, state);
        } else if judged {
            // The operator may be waiting for the first verdict before it starts more workers.
            self.news.send_replace(());
        }
    }

    /// Says that a breaker changed.
    pub fn breaker_changed(&self, queue: usize, state: breaker::State) {
        self.queue_metrics[queue].breaker_is(state);
        self.news.send_replace(());
        let name = &**self.queue_metrics[queue].name();
        match state {
            breaker::State::Open => tracing::warn!(queue = name, value = "open", "Breaker opened"),
            state => tracing::info!(queue = name, value = state.as_str(), "Breaker changed"),
        }
    }
}

/// What the heartbeat task knows of one lane.
#[derive(Debug)]
pub struct Beat {
    born: Instant,
    ticked_ms: AtomicU64,
    renewed_ms: AtomicU64,
    state: Mutex<(Option<LaneHandle>, Bytes)>,
}

impl Beat {
    /// Of a lane that does not exist yet.
    pub fn new() -> Self {
        Self {
            born: Instant::now(),
            ticked_ms: AtomicU64::new(0),
            renewed_ms: AtomicU64::new(0),
            state: Mutex::new((None, Bytes::new())),
        }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.born.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// The lane's loop goes round.
    pub fn tick(&self) {
        self.ticked_ms.store(self.now_ms(), Ordering::Relaxed);
    }

    /// Since its last tick.
    pub fn silent_for(&self) -> Duration {
        Duration::from_millis(self.now_ms().saturating_sub(self.ticked_ms.load(Ordering::Relaxed)))
    }

    /// The heartbeat was renewed at `asked`.
    pub fn renewed(&self, asked: Instant) {
        let ms = u64::try_from(asked.saturating_duration_since(self.born).as_millis()).unwrap_or(0);
        self.renewed_ms.fetch_max(ms, Ordering::Relaxed);
    }

    /// How much of the lease is left, at least.
    pub fn lease_left(&self, ttl: Duration) -> Duration {
        let age = self.now_ms().saturating_sub(self.renewed_ms.load(Ordering::Relaxed));
        ttl.saturating_sub(Duration::from_millis(age))
    }

    /// The lane has registered, or is closed.
    pub fn set_lane(&self, lane: Option<LaneHandle>) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).0 = lane;
    }

    /// The oldest job it holds.
    pub fn set_oldest(&self, oldest: Bytes) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).1 = oldest;
    }

    /// The lane and its oldest job.
    pub fn lane(&self) -> Option<(LaneHandle, Bytes)> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.0.clone().map(|lane| (lane, state.1.clone()))
    }
}

impl Default for Beat {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(lanes: usize, shards: usize) -> Shares {
        let dealt = Shares::default();
        (0..shards).for_each(|shard| dealt.serve((shard..lanes).step_by(shards).count()));
        dealt
    }

    #[test]
    fn lanes_of_different_shards_share_all_slots_and_no_more() {
        for (slots, lanes, shards) in [(16, 5, 5), (16, 3, 3), (7, 4, 2), (5, 5, 5), (100, 7, 3)] {
            let shares = shares(lanes, shards);
            let each: Vec<_> = (0..lanes).map(|lane| shares.share(slots, lane)).collect();
            assert_eq!(each.iter().sum::<usize>(), slots, "{each:?}");
            assert!(each.iter().all(|share| *share >= slots / lanes), "{each:?}");
        }
        assert_eq!(
            [0, 1, 2].map(|lane| shares(3, 1).share(16, lane)),
            [6, 6, 6],
            "they serve the same queues"
        );
        assert_eq!([0, 1].map(|lane| shares(2, 2).share(1, lane)), [1, 1], "in turn");
    }

    #[test]
    fn lanes_that_are_more_than_the_slots_have_their_turns_in_the_order_in_which_they_came() {
        assert!(!shares(2, 2).are_short(2) && !shares(3, 1).are_short(2));
        let shares = shares(3, 3);
        assert!(shares.are_short(2));
        for lane in [1, 2, 1] {
            shares.waits(lane, true);
        }
        assert_eq!([0, 1, 2].map(|lane| shares.before(lane)), [2, 0, 1]);
        shares.waits(1, false);
        shares.waits(0, true);
        assert_eq!([0, 1, 2].map(|lane| shares.before(lane)), [1, 2, 0]);
    }
}
