//! How many workers there should be: a pure decision on what was seen. Up at once and in one step; down only after
//! fewer have been enough for `scaleDownDelay`, and only while nothing runs.
use std::collections::VecDeque;

use crate::api::v1alpha1::{Scaling, ScalingMode};

/// What one look at Redis and the cluster showed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Seen {
    /// Jobs that wait, suspects and due ones included.
    pub backlog: u64,
    /// Jobs that workers hold.
    pub in_flight: u64,
    /// How many workers are asked for now.
    pub current: i32,
    /// Whether jobs are held back on purpose.
    pub paused: bool,
}

/// How many workers there should be, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// So many.
    pub replicas: i32,
    /// In words, for events and the status.
    pub reason: String,
}

/// The wishes of the recent past.
#[derive(Debug, Clone, Default)]
pub struct History {
    wishes: VecDeque<(u64, i32)>,
}

impl History {
    /// Remembers a wish, forgets what is older than the window, and says the highest one within.
    fn highest(&mut self, now_ms: u64, window_ms: u64, wish: i32) -> i32 {
        while self.wishes.front().is_some_and(|(at, _)| at + window_ms <= now_ms) {
            self.wishes.pop_front();
        }
        // A lower wish that came before a higher one can never be the highest again.
        while self.wishes.back().is_some_and(|(_, earlier)| *earlier <= wish) {
            self.wishes.pop_back();
        }
        self.wishes.push_back((now_ms, wish));
        self.wishes.front().map_or(wish, |(_, highest)| *highest)
    }
}

/// Decides. `manual` is `spec.replicas`, which holds in mode Manual.
pub fn decide(
    seen: Seen,
    history: &mut History,
    spec: &Scaling,
    manual: Option<i32>,
    now_ms: u64,
) -> Decision {
    if spec.mode == ScalingMode::Manual {
        let replicas = manual.unwrap_or(1);
        return Decision { replicas, reason: format!("spec.replicas is {replicas}") };
    }
    let wish = wish(seen, spec);
    let window = u64::try_from(spec.scale_down_delay.get().as_millis()).unwrap_or(u64::MAX);
    if history.wishes.is_empty() {
        // Whoever decides for the first time does not know the past: the workers that are there were wanted.
        history.wishes.push_back((now_ms, seen.current));
    }
    let highest = history.highest(now_ms, window, wish);
    let jobs = seen.backlog + seen.in_flight;
    if wish > seen.current {
        let reason = if wish == spec.min_replicas {
            format!("minReplicas is {wish}")
        } else {
            format!("{jobs} jobs, {} a worker", spec.backlog_per_worker)
        };
        return Decision { replicas: wish, reason };
    }
    if highest < seen.current && seen.in_flight == 0 {
        let reason = format!("{jobs} jobs, and {highest} workers were enough for {}", spec.scale_down_delay);
        return Decision { replicas: highest, reason };
    }
    // More than allowed only where somebody has lowered the bound.
    Decision {
        replicas: seen.current.min(spec.max_replicas),
        reason: format!("maxReplicas is {}", spec.max_replicas),
    }
}

/// How many workers this many jobs want.
fn wish(seen: Seen, spec: &Scaling) -> i32 {
    if seen.paused {
        return spec.min_replicas;
    }
    let per_worker = u64::try_from(spec.backlog_per_worker).unwrap_or(1).max(1);
    let wish = (seen.backlog + seen.in_flight).div_ceil(per_worker);
    i32::try_from(wish).unwrap_or(i32::MAX).clamp(spec.min_replicas, spec.max_replicas)
}

#[cfg(test)]
mod tests {
    use jobqueue::config::Duration;
    use proptest::prelude::*;

    use super::*;

    fn spec() -> Scaling {
        Scaling { backlog_per_worker: 10, scale_down_delay: Duration::from_secs(60), ..Scaling::default() }
    }

    fn seen(backlog: u64, in_flight: u64, current: i32) -> Seen {
        Seen { backlog, in_flight, current, paused: false }
    }

    #[test]
    fn a_backlog_at_zero_workers_starts_all_of_them_in_one_step() {
        let decision = decide(seen(95, 0, 0), &mut History::default(), &spec(), None, 0);
        assert_eq!((decision.replicas, decision.reason.as_str()), (10, "95 jobs, 10 a worker"));
    }

    #[test]
    fn one_job_starts_one_worker() {
        assert_eq!(decide(seen(1, 0, 0), &mut History::default(), &spec(), None, 0).replicas, 1);
    }

    #[test]
    fn fewer_workers_come_only_after_the_delay() {
        let mut history = History::default();
        assert_eq!(decide(seen(50, 0, 5), &mut history, &spec(), None, 0).replicas, 5);
        assert_eq!(decide(seen(0, 0, 5), &mut history, &spec(), None, 59_999).replicas, 5);
        assert_eq!(decide(seen(0, 0, 5), &mut history, &spec(), None, 60_000).replicas, 0);
    }

    #[test]
    fn a_new_leader_takes_the_workers_that_are_there_for_wanted() {
        let mut history = History::default();
        assert_eq!(decide(seen(0, 0, 7), &mut history, &spec(), None, 1_000_000).replicas, 7);
        assert_eq!(decide(seen(0, 0, 7), &mut history, &spec(), None, 1_060_000).replicas, 0);
    }

    #[test]
    fn no_worker_is_stopped_while_jobs_run() {
        let mut history = History::default();
        decide(seen(0, 3, 5), &mut history, &spec(), None, 0);
        assert_eq!(decide(seen(0, 3, 5), &mut history, &spec(), None, 70_000).replicas, 5);
    }

    #[test]
    fn a_paused_queue_starts_nobody() {
        let paused = Seen { paused: true, ..seen(1000, 0, 0) };
        assert_eq!(decide(paused, &mut History::default(), &spec(), None, 0).replicas, 0);
    }

    #[test]
    fn in_manual_mode_the_spec_decides() {
        let manual = Scaling { mode: ScalingMode::Manual, ..spec() };
        assert_eq!(decide(seen(1000, 0, 0), &mut History::default(), &manual, Some(3), 0).replicas, 3);
        assert_eq!(decide(seen(1000, 0, 0), &mut History::default(), &manual, None, 0).replicas, 1);
    }

    proptest! {
        #[test]
        fn the_decision_stays_within_bounds(
            looks in prop::collection::vec((0u64..10_000, 0u64..100, 0u64..5_000), 1..50),
            min in 0i32..5, more in 0i32..50,
        ) {
            let spec = Scaling { min_replicas: min, max_replicas: (min + more).max(1), ..spec() };
            let (mut history, mut current, mut now) = (History::default(), 0, 0);
            for (backlog, in_flight, later) in looks {
                now += later;
                current = decide(seen(backlog, in_flight, current), &mut history, &spec, None, now).replicas;
                prop_assert!((spec.min_replicas..=spec.max_replicas).contains(&current));
            }
        }

        #[test]
        fn more_jobs_never_want_fewer_workers(fewer in 0u64..100_000, more in 0u64..100_000) {
            let of = |backlog| wish(seen(backlog, 0, 0), &spec());
            prop_assert!(of(fewer) <= of(fewer + more));
        }
    }
}
