//! The circuit breaker of one queue: a sliding window of recent results. Pure: time is passed in.
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// When it opens and for how long.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// Open at this share of failures.
    pub failure_threshold: f64,
    /// Over this time.
    pub window: Duration,
    /// Stay open this long, then probe.
    pub cooldown: Duration,
    /// With fewer results in the window it stays closed.
    pub min_samples: u32,
}

/// What the queue's lanes may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Fetch.
    Closed,
    /// Fetch exactly one job and see.
    HalfOpen,
    /// Do not fetch.
    Open,
}

impl State {
    /// As `circuit_breaker_state` exports it.
    pub const fn as_gauge(self) -> i64 {
        match self {
            Self::Closed => 0,
            Self::HalfOpen => 1,
            Self::Open => 2,
        }
    }

    /// As records and people call it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::HalfOpen => "half-open",
            Self::Open => "open",
        }
    }
}

/// Results are kept in this many slices of the window, not one by one: 200,000 jobs a second would
/// otherwise be 12,000,000 entries for the default minute.
const SLICES: u32 = 60;

#[derive(Debug, Clone, Copy)]
struct Slice {
    number: u64,
    ok: u64,
    failed: u64,
}

/// The breaker of one queue in one process.
#[derive(Debug)]
pub struct Breaker {
    settings: Settings,
    born: Instant,
    slices: VecDeque<Slice>,
    opened: Option<Instant>,
    probing: bool,
    /// Whether it has ever had results enough to know: a new one is closed for want of them.
    judged: bool,
}

impl Breaker {
    /// A closed breaker.
    pub fn new(settings: Settings, now: Instant) -> Self {
        Self { settings, born: now, slices: VecDeque::new(), opened: None, probing: false, judged: false }
    }

    /// Its state at `now`: an open one turns half-open when its cooldown is over.
    pub fn state(&self, now: Instant) -> State {
        match self.opened {
            None => State::Closed,
            Some(at) if now.saturating_duration_since(at) < self.settings.cooldown => State::Open,
            Some(_) => State::HalfOpen,
        }
    }

    /// Its state as others may rely on it: nothing before it has seen `min_samples` results in one window. The process
    /// that is started to try an open queue must not close it for all by having tried nothing yet.
    pub fn verdict(&self, now: Instant) -> Option<State> {
        self.judged.then(|| self.state(now))
    }

    /// How long it still stays open.
    pub fn open_for(&self, now: Instant) -> Duration {
        let left = |at| self.settings.cooldown.saturating_sub(now.saturating_duration_since(at));
        self.opened.map_or(Duration::ZERO, left)
    }

    /// How many jobs may be fetched: `wanted` when closed, one when half-open and no probe runs, else none.
    pub fn allows(&self, wanted: usize, now: Instant) -> usize {
        match self.state(now) {
            State::Closed => wanted,
            State::HalfOpen if !self.probing => wanted.min(1),
            State::HalfOpen | State::Open => 0,
        }
    }

    /// A job was fetched; in the half-open state it is the probe.
    pub fn fetched(&mut self, now: Instant) {
        self.probing = self.probing || self.state(now) == State::HalfOpen;
    }

    /// The probe ended without a result (released, taken away): another may be sent.
    pub fn abandoned(&mut self) {
        self.probing = false;
    }

    /// A result. Results of jobs fetched before it opened do not decide the half-open state: only the
    /// probe's does. Answers true when the state changed.
    pub fn record(&mut self, ok: bool, now: Instant) -> bool {
        match self.state(now) {
            State::Open => false,
            State::HalfOpen if !self.probing => false,
            State::HalfOpen => {
                self.probing = false;
                self.slices.clear();
                self.opened = (!ok).then_some(now);
                true
            }
            State::Closed => {
                self.count(ok, now);
                let (total, failed) = self.totals(now);
                let enough = total >= u64::from(self.settings.min_samples);
                self.judged |= enough;
                #[expect(clippy::cast_precision_loss, reason = "a ratio of counts far below 2^52")]
                let trips = enough && failed as f64 >= self.settings.failure_threshold * total as f64;
                if trips && !ok {
                    self.opened = Some(now);
                    self.slices.clear();
                }
                trips && !ok
            }
        }
    }

    fn slice_number(&self, now: Instant) -> u64 {
        let width = (self.settings.window / SLICES).max(Duration::from_millis(1));
        let passed = now.saturating_duration_since(self.born).as_nanos() / width.as_nanos();
        u64::try_from(passed).unwrap_or(u64::MAX)
    }

    fn count(&mut self, ok: bool, now: Instant) {
        let number = self.slice_number(now);
        while self.slices.front().is_some_and(|slice| slice.number + u64::from(SLICES) <= number) {
            self.slices.pop_front();
        }
        if self.slices.back().is_none_or(|slice| slice.number != number) {
            self.slices.push_back(Slice { number, ok: 0, failed: 0 });
        }
        if let Some(slice) = self.slices.back_mut() {
            if ok { slice.ok += 1 } else { slice.failed += 1 }
        }
    }

    fn totals(&self, now: Instant) -> (u64, u64) {
        let number = self.slice_number(now);
        let recent = self.slices.iter().filter(|slice| slice.number + u64::from(SLICES) > number);
        recent.fold((0, 0), |(total, failed), slice| (total + slice.ok + slice.failed, failed + slice.failed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn breaker(now: Instant) -> Breaker {
        let settings = Settings {
            failure_threshold: 0.5,
            window: Duration::from_secs(60),
            cooldown: Duration::from_secs(30),
            min_samples: 20,
        };
        Breaker::new(settings, now)
    }

    fn fail(breaker: &mut Breaker, times: u32, now: Instant) {
        (0..times).for_each(|_| {
            breaker.record(false, now);
        });
    }

    #[test]
    fn stays_closed_below_min_samples() {
        let now = Instant::now();
        let mut breaker = breaker(now);
        fail(&mut breaker, 19, now);
        assert_eq!(breaker.state(now), State::Closed);
    }

    #[test]
    fn opens_at_the_threshold_and_fetches_nothing() {
        let now = Instant::now();
        let mut breaker = breaker(now);
        (0..10).for_each(|_| {
            breaker.record(true, now);
        });
        fail(&mut breaker, 9, now);
        assert_eq!(breaker.state(now), State::Closed, "19 samples, 9 failed");
        assert!(breaker.record(false, now), "20 samples, half of them failed");
        assert_eq!((breaker.state(now), breaker.allows(100, now)), (State::Open, 0));
    }

    #[test]
    fn a_single_probe_closes_or_reopens_it() {
        let start = Instant::now();
        let mut breaker = breaker(start);
        fail(&mut breaker, 20, start);
        let later = start + Duration::from_secs(30);
        assert_eq!((breaker.state(later), breaker.allows(100, later)), (State::HalfOpen, 1));
        breaker.fetched(later);
        assert_eq!(breaker.allows(100, later), 0, "one probe at a time");
        assert!(breaker.record(false, later));
        assert_eq!(breaker.state(later), State::Open, "the probe failed");
        let again = later + Duration::from_secs(30);
        breaker.fetched(again);
        assert!(breaker.record(true, again));
        assert_eq!((breaker.state(again), breaker.allows(100, again)), (State::Closed, 100));
    }

    #[test]
    fn a_straggler_from_before_it_opened_does_not_close_it() {
        let start = Instant::now();
        let mut breaker = breaker(start);
        fail(&mut breaker, 20, start);
        let later = start + Duration::from_secs(30);
        assert!(!breaker.record(true, later), "nobody probed yet");
        assert_eq!(breaker.state(later), State::HalfOpen);
    }

    #[test]
    fn an_abandoned_probe_makes_room_for_another() {
        let start = Instant::now();
        let mut breaker = breaker(start);
        fail(&mut breaker, 20, start);
        let later = start + Duration::from_secs(30);
        breaker.fetched(later);
        breaker.abandoned();
        assert_eq!(breaker.allows(5, later), 1);
    }

    #[test]
    fn it_has_no_verdict_before_it_has_seen_enough() {
        let start = Instant::now();
        let mut breaker = breaker(start);
        fail(&mut breaker, 19, start);
        assert_eq!(breaker.verdict(start), None, "closed, but for want of results");
        fail(&mut breaker, 1, start);
        assert_eq!(breaker.verdict(start), Some(State::Open));
        let later = start + Duration::from_secs(30);
        breaker.fetched(later);
        breaker.record(true, later);
        assert_eq!(breaker.verdict(later), Some(State::Closed), "the probe has shown it");
    }

    #[test]
    fn results_older_than_the_window_do_not_count() {
        let start = Instant::now();
        let mut breaker = breaker(start);
        fail(&mut breaker, 19, start);
        let later = start + Duration::from_secs(61);
        fail(&mut breaker, 1, later);
        assert_eq!(breaker.state(later), State::Closed);
    }
}
