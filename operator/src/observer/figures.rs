//! How many jobs are where.
use std::collections::BTreeMap;

use jobqueue::store::{LaneSnapshot, Snapshot};

/// As many lanes of a shard as one look shows. With no more it is certain that none is missing.
pub const MOST_LANES: u64 = 100_000;

/// How many jobs are where, in all shards.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Figures {
    /// Waiting, by queue in the order of priority; suspects included.
    pub waiting: Vec<u64>,
    /// Of each queue, since when its next job waits (Unix milliseconds), if it says so.
    pub oldest: Vec<Option<u64>>,
    /// Of each queue, whether its breaker is open.
    pub open: Vec<bool>,
    /// Of each queue, whether nobody may fetch from it.
    pub held: Vec<bool>,
    /// Of each queue, what is due.
    pub due_by_queue: Vec<u64>,
    /// Held by workers.
    pub in_flight: u64,
    /// Waiting for their next attempt, by queue.
    pub delayed_by_queue: Vec<u64>,
    /// Given up.
    pub dead_letters: u64,
    /// Held back on purpose.
    pub paused: bool,
    /// Attempts that ended so far.
    pub finished: u64,
    /// How long they took, in milliseconds.
    pub busy_ms: u64,
    /// Redis' clock.
    pub now_ms: u64,
    /// There are more lanes than one look shows: nobody is known to have come to rest.
    pub crowded: bool,
}

impl Figures {
    /// Adds what one shard holds.
    pub(super) fn add(&mut self, snapshot: &Snapshot) {
        let queues = snapshot.queues.len();
        self.waiting.resize(queues, 0);
        self.due_by_queue.resize(queues, 0);
        self.delayed_by_queue.resize(queues, 0);
        self.oldest.resize(queues, None);
        self.open.resize(queues, false);
        self.held.resize(queues, false);
        for (at, queue) in snapshot.queues.iter().enumerate() {
            self.waiting[at] += queue.waiting + queue.suspects;
            self.delayed_by_queue[at] += queue.delayed;
            self.due_by_queue[at] += queue.due;
            self.held[at] |= queue.paused;
            let age =
                queue.oldest_age(snapshot.now_ms).map(|age| u64::try_from(age.as_millis()).unwrap_or(0));
            let since = age.map(|age| snapshot.now_ms.saturating_sub(age));
            self.oldest[at] = [self.oldest[at], since].into_iter().flatten().min();
        }
        self.in_flight += snapshot.in_flight;
        self.dead_letters += snapshot.dead_letters;
        self.paused |= snapshot.paused;
        self.finished += snapshot.counter("done") + snapshot.counter("failed");
        self.busy_ms += snapshot.counter("busy_ms");
        self.now_ms = self.now_ms.max(snapshot.now_ms);
        self.crowded |= snapshot.lanes > MOST_LANES;
    }

    /// Waiting for their next attempt.
    pub fn delayed(&self) -> u64 {
        self.delayed_by_queue.iter().sum()
    }

    /// Of those, due.
    pub fn due(&self) -> u64 {
        self.due_by_queue.iter().sum()
    }

    /// What workers could run now: of queues whose breaker is closed, and of those whose is open. What nobody may fetch
    /// is neither.
    pub(super) fn backlog(&self) -> (u64, u64) {
        let of = |wanted: bool| self.sum(|at| !self.is_held(at) && self.open.get(at) == Some(&wanted));
        (of(false), of(true))
    }

    /// What waits where nobody may fetch it.
    pub(super) fn held(&self) -> u64 {
        self.sum(|at| self.is_held(at))
    }

    fn is_held(&self, queue: usize) -> bool {
        self.held.get(queue) == Some(&true)
    }

    fn sum(&self, of: impl Fn(usize) -> bool) -> u64 {
        let queues = self.waiting.iter().zip(&self.due_by_queue).enumerate();
        queues.filter(|(at, _)| of(*at)).map(|(_, (waiting, due))| waiting + due).sum()
    }

    /// Whether no job waits or runs.
    pub(super) fn is_empty(&self) -> bool {
        self.in_flight == 0 && self.waiting.iter().all(|waiting| *waiting == 0)
    }

    /// Whether somebody who was told `earlier` should be told this: more than a tenth of difference.
    pub(super) fn differs_from(&self, earlier: &Self) -> bool {
        let far = |now: u64, then: u64| now.abs_diff(then) * 10 > now.max(then);
        let total = |figures: &Self| figures.waiting.iter().sum::<u64>();
        far(total(self), total(earlier))
            || far(self.in_flight, earlier.in_flight)
            || far(self.delayed(), earlier.delayed())
            || far(self.dead_letters, earlier.dead_letters)
            || self.paused != earlier.paused
            || self.crowded != earlier.crowded
    }
}

/// What the processes that serve a queue say of its breaker: it is open where at least half of those say so that have run
/// enough of its jobs to say anything.
pub(super) fn breakers(lanes: &[LaneSnapshot]) -> BTreeMap<&str, bool> {
    let mut said: BTreeMap<&str, BTreeMap<&str, bool>> = BTreeMap::new();
    for lane in lanes {
        // All lanes of a process say the same.
        let process = if lane.pod_uid.is_empty() { &lane.lane } else { &lane.pod_uid };
        for (queue, state) in lane.breakers.split(' ').filter_map(|word| word.split_once('=')) {
            said.entry(queue).or_default().insert(process.as_str(), state != "closed");
        }
    }
    let is_open = |processes: BTreeMap<&str, bool>| {
        processes.values().filter(|open| **open).count() * 2 >= processes.len()
    };
    said.into_iter().map(|(queue, processes)| (queue, is_open(processes))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use jobqueue::store::QueueSnapshot;

    fn lane(process: &str, breakers: &str) -> LaneSnapshot {
        LaneSnapshot { pod_uid: process.into(), breakers: breakers.into(), ..LaneSnapshot::default() }
    }

    #[test]
    fn a_breaker_is_open_when_half_of_the_processes_say_so() {
        let lanes = [
            lane("a", "high=open low=open"),
            lane("a", "high=open low=open"),
            lane("b", "high=half-open low=closed"),
            lane("c", "high=closed low=closed"),
        ];
        assert_eq!(breakers(&lanes), BTreeMap::from([("high", true), ("low", false)]));
        assert_eq!(breakers(&lanes[3..]), BTreeMap::from([("high", false), ("low", false)]));
        assert!(breakers(&[]).is_empty(), "nobody speaks of any");
    }

    #[test]
    fn what_is_due_counts_as_backlog_and_what_is_behind_an_open_breaker_apart() {
        let figures = Figures {
            waiting: vec![5, 7],
            due_by_queue: vec![1, 2],
            delayed_by_queue: vec![10, 10],
            open: vec![false, true],
            ..Figures::default()
        };
        assert_eq!(figures.backlog(), (6, 9));
        assert_eq!((figures.due(), figures.delayed()), (3, 20));
    }

    #[test]
    fn what_sidekiq_has_paused_is_no_backlog() {
        let queue = |waiting, paused| QueueSnapshot { waiting, paused, ..QueueSnapshot::default() };
        let mut figures = Figures::default();
        figures.add(&Snapshot { queues: vec![queue(5, false), queue(10_000, true)], ..Snapshot::default() });
        assert_eq!((figures.backlog(), figures.held()), ((5, 0), 10_000));
        assert!(!figures.is_empty(), "it still waits");
        figures.open = vec![false, true];
        assert_eq!(figures.backlog(), (5, 0), "nobody needs to try it");
    }

    #[test]
    fn more_lanes_than_a_look_shows_are_told() {
        for (lanes, crowded) in [(MOST_LANES, false), (MOST_LANES + 1, true)] {
            let mut figures = Figures::default();
            figures.add(&Snapshot { lanes, ..Snapshot::default() });
            assert_eq!(figures.crowded, crowded, "{lanes} lanes");
        }
    }
}
