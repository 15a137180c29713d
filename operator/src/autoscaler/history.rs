//! What decisions remember: the wishes of the recent past, and how fast jobs come and how long they take.
use std::collections::VecDeque;

use super::{Seen, real};

/// Averages forget at this pace: what was seen so many seconds ago counts 1/e of what is seen now. Long enough that chance
/// evens out, short enough to follow a day.
const MEMORY_SECONDS: f64 = 120.0;
/// Arrivals are an average over at least this long: a single look at a burst says little about a rate.
const SHORTEST_AVERAGE_SECONDS: f64 = 15.0;
/// No two looks count as further apart than this. What happened between them was not seen (Redis could not be read), or did
/// not take that long (its clock was set): neither proves that fewer workers were enough.
const LONGEST_STEP_MS: u64 = 10_000;

/// What is remembered of earlier looks. An empty one is that of a leader who has just begun.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// Milliseconds that were watched, so a clock that never jumps.
    watched_ms: u64,
    last: Option<Seen>,
    /// When, and how many workers were wanted; ever lower, since a wish before a higher one can never be the highest.
    wishes: VecDeque<(u64, i32)>,
    decided: Option<i32>,
    flow: Flow,
}

/// Averages as sums that fade: each is divided by another that fades alike, so irregular looks weigh what they should,
/// and a time without news changes nothing.
#[derive(Debug, Clone, Default)]
struct Flow {
    arrived: f64,
    seconds: f64,
    finished: f64,
    busy_ms: f64,
    run_seconds: Option<f64>,
}

impl History {
    /// Takes note of a look, and says how many jobs came since the last one.
    pub(super) fn look(&mut self, seen: &Seen) -> u64 {
        let Some(last) = self.last.replace(*seen) else { return 0 };
        if seen.finished < last.finished || seen.busy_ms < last.busy_ms {
            // Redis has lost its data, or is another. What was enqueued there comes again: nobody goes before it can.
            self.wish(seen.current);
            return 0;
        }
        // Jobs that leave the blocked ones were counted, or left out, when they came.
        let unblocked = last.blocked.saturating_sub(seen.blocked);
        let came = total(seen).saturating_sub(total(&last).saturating_add(unblocked));
        // A clock that was set back says nothing about how long this took.
        let Some(elapsed_ms) = seen.now_ms.checked_sub(last.now_ms) else { return came };
        let step_ms = elapsed_ms.min(LONGEST_STEP_MS);
        self.watched_ms = self.watched_ms.saturating_add(step_ms);
        let share = if step_ms < elapsed_ms { real(step_ms) / real(elapsed_ms) } else { 1.0 };
        let finished = real(seen.finished - last.finished) * share;
        let busy_ms = real(seen.busy_ms - last.busy_ms) * share;
        self.flow.add(real(step_ms) / 1000.0, real(came) * share, finished, busy_ms);
        came
    }

    /// How many jobs come each second.
    pub(super) fn arrivals_per_second(&self) -> f64 {
        self.flow.arrived / self.flow.seconds.max(SHORTEST_AVERAGE_SECONDS)
    }

    /// How long an attempt takes; not known before one has ended.
    pub(super) fn run_seconds(&self) -> Option<f64> {
        self.flow.run_seconds
    }

    /// How many workers there are of the `current` ones without those that leave: what was decided on last, once a number
    /// above it is only waiting to be drained. Whoever decides for the first time does not know the past: the workers that
    /// are there were wanted, but for those that somebody has told to drain.
    pub(super) fn base(&mut self, seen: &Seen) -> i32 {
        let staying = seen.current.saturating_sub(seen.draining).max(0);
        if self.wishes.is_empty() {
            self.wish(staying);
        }
        self.decided.map_or(staying, |decided| decided.min(seen.current))
    }

    /// Whether nothing was decided yet: the next decision depends on who drains.
    pub fn is_undecided(&self) -> bool {
        self.decided.is_none()
    }

    /// Remembers a wish, and says the highest one of the last `window_ms`.
    pub(super) fn highest(&mut self, window_ms: u64, wish: i32) -> i32 {
        let now = self.watched_ms;
        while self.wishes.front().is_some_and(|(at, _)| at.saturating_add(window_ms) <= now) {
            self.wishes.pop_front();
        }
        self.wish(wish);
        self.wishes.front().map_or(wish, |(_, highest)| *highest)
    }

    fn wish(&mut self, wish: i32) {
        while self.wishes.back().is_some_and(|(_, earlier)| *earlier <= wish) {
            self.wishes.pop_back();
        }
        self.wishes.push_back((self.watched_ms, wish));
    }

    /// Remembers how many workers there shall be.
    pub(super) fn decided(&mut self, replicas: i32) {
        self.decided = Some(replicas);
    }

    /// Somebody else decides now: who takes over from them finds the workers that are there.
    pub(super) fn forget_wishes(&mut self) {
        self.wishes.clear();
        self.decided = None;
    }
}

/// All that came so far, but for what is blocked.
fn total(seen: &Seen) -> u64 {
    seen.backlog.saturating_add(seen.in_flight).saturating_add(seen.finished)
}

impl Flow {
    fn add(&mut self, seconds: f64, arrived: f64, finished: f64, busy_ms: f64) {
        let kept = (-seconds / MEMORY_SECONDS).exp();
        self.seconds = self.seconds * kept + seconds;
        self.arrived = self.arrived * kept + arrived;
        self.finished = self.finished * kept + finished;
        self.busy_ms = self.busy_ms * kept + busy_ms;
        if finished > 0.0 {
            self.run_seconds = Some(self.busy_ms / self.finished / 1000.0);
        }
    }
}
