use jobqueue::config::Duration;
use proptest::prelude::*;

use super::*;

fn spec() -> Scaling {
    Scaling { backlog_per_worker: 10, scale_down_delay: Duration::from_secs(60), ..Scaling::default() }
}

fn seen(backlog: u64, in_flight: u64, current: i32) -> Seen {
    Seen { backlog, in_flight, current, now_ms: 1_000_000, ..Seen::default() }
}

/// A queue that is looked at each second, and whose workers are what was decided on.
struct Queue {
    seen: Seen,
    history: History,
    spec: Scaling,
    concurrency: u32,
}

impl Queue {
    fn new(seen: Seen, spec: Scaling) -> Self {
        Self { seen, history: History::default(), spec, concurrency: 4 }
    }

    /// One look at what is there, a second after the last one.
    fn look(&mut self) -> Decision {
        let decision = decide(&self.seen, &mut self.history, &self.spec, self.concurrency, None);
        self.seen.now_ms += 1000;
        self.seen.current = decision.replicas;
        decision
    }

    /// That many looks, and the last decision.
    fn watch(&mut self, looks: u32) -> Decision {
        (0..looks).map(|_| self.look()).last().unwrap_or_default()
    }

    /// That many seconds of load: each second so many jobs come and end, each of which took so long.
    fn busy(&mut self, seconds: u32, jobs: u64, run_ms: u64) -> Decision {
        let look = |_| {
            self.seen.finished += jobs;
            self.seen.busy_ms += jobs * run_ms;
            self.look()
        };
        (0..seconds).map(look).last().unwrap_or_default()
    }
}

fn once(seen: Seen, spec: &Scaling) -> Decision {
    decide(&seen, &mut History::default(), spec, 4, None)
}

#[test]
fn a_backlog_at_zero_workers_starts_all_of_them_in_one_step() {
    let decision = once(seen(95, 0, 0), &spec());
    assert_eq!((decision.replicas, decision.reason.as_str()), (10, "95 jobs, 10 a worker"));
}

#[test]
fn one_job_starts_one_worker() {
    assert_eq!(once(seen(1, 0, 0), &spec()).replicas, 1);
}

#[test]
fn more_than_the_most_workers_are_never_wanted_and_the_reason_says_so() {
    let decision = once(seen(1000, 0, 0), &spec());
    assert_eq!(decision.replicas, 10);
    assert_eq!(decision.reason, "1000 jobs, 10 a worker, maxReplicas is 10");
    assert_eq!(decision.inputs.by_depth, 100);
}

#[test]
fn the_fewest_workers_are_there_without_jobs() {
    let decision = once(seen(0, 0, 0), &Scaling { min_replicas: 2, ..spec() });
    assert_eq!((decision.replicas, decision.reason.as_str()), (2, "minReplicas is 2"));
}

#[test]
fn pods_that_start_are_capacity() {
    let mut queue = Queue::new(seen(50, 0, 0), spec());
    assert_eq!(queue.look().replicas, 5);
    // None of them has started: the jobs still wait, and five workers are still enough for them.
    assert_eq!(queue.watch(30).replicas, 5);
}

#[test]
fn fewer_workers_come_only_after_the_delay() {
    let mut queue = Queue::new(seen(50, 0, 5), spec());
    queue.look();
    queue.seen.backlog = 0;
    assert_eq!(queue.watch(59).replicas, 5);
    let decision = queue.look();
    assert_eq!((decision.replicas, decision.reason.as_str()), (0, "0 jobs, and 0 workers sufficed for 1m"));
}

#[test]
fn fewer_workers_are_as_many_as_the_highest_wish_within_the_delay() {
    let mut queue = Queue::new(seen(100, 0, 10), spec());
    queue.look();
    queue.seen.backlog = 20;
    queue.watch(30);
    queue.seen.backlog = 0;
    assert_eq!(queue.watch(29).replicas, 10);
    assert_eq!(queue.look().replicas, 2);
}

#[test]
fn running_jobs_are_load_until_they_end() {
    let mut queue = Queue::new(seen(0, 41, 10), spec());
    assert_eq!(queue.watch(120).replicas, 5);
}

#[test]
fn while_workers_drain_the_decision_to_stop_them_stands() {
    let mut queue = Queue::new(seen(0, 20, 10), spec());
    assert_eq!(queue.watch(61).replicas, 2);
    // They have jobs that take long, so the Deployment still asks for ten.
    for _ in 0..100 {
        queue.seen.current = 10;
        let decision = queue.look();
        assert_eq!(decision.replicas, 2);
        assert_eq!(decision.reason, "20 jobs, and 2 workers sufficed for 1m");
    }
    queue.seen.current = 10;
    queue.seen.backlog = 15;
    assert_eq!(queue.look().replicas, 4, "work returned: two of those that drain are kept");
}

#[test]
fn hole_a_new_leader_counts_the_workers_that_are_there_as_a_wish_of_now() {
    let mut queue = Queue::new(seen(0, 0, 7), spec());
    assert_eq!(queue.watch(60).replicas, 7);
    assert_eq!(queue.look().replicas, 0);
}

#[test]
fn hole_a_new_leader_goes_on_with_a_drain_that_it_finds() {
    let mut queue = Queue::new(Seen { draining: 3, ..seen(0, 20, 5) }, spec());
    for _ in 0..100 {
        assert_eq!(queue.look().replicas, 2, "three of five were told to drain");
        // They have jobs that take long, so the Deployment still asks for five.
        queue.seen.current = 5;
    }
    queue.seen.backlog = 25;
    assert_eq!(queue.look().replicas, 5, "work returned");
}

#[test]
fn who_takes_over_from_somebody_who_decided_goes_on_with_the_drain() {
    let manual = Scaling { mode: ScalingMode::Manual, ..spec() };
    let mut queue = Queue::new(Seen { draining: 1, ..seen(0, 20, 3) }, manual);
    queue.look();
    queue.spec.mode = ScalingMode::Auto;
    queue.seen.current = 3;
    assert_eq!(queue.look().replicas, 2);
}

#[test]
fn hole_a_breaker_that_is_open_at_zero_workers_gets_one_that_tries() {
    let mut queue = Queue::new(Seen { blocked: 400, ..seen(0, 0, 0) }, spec());
    let decision = queue.look();
    assert_eq!(decision.replicas, 1);
    assert_eq!(decision.reason, "400 jobs behind an open breaker, one worker to try it");
    assert_eq!(queue.watch(300).replicas, 1, "and it stays");
}

#[test]
fn hole_an_open_breaker_sends_those_home_that_cannot_work_but_for_one() {
    let mut queue = Queue::new(seen(100, 0, 10), spec());
    queue.look();
    queue.seen = Seen { blocked: 100, backlog: 0, ..queue.seen };
    assert_eq!(queue.watch(59).replicas, 10);
    let decision = queue.look();
    assert_eq!(decision.reason, "100 jobs behind an open breaker for 1m");
    assert_eq!((decision.replicas, queue.watch(300).replicas), (1, 1));
    queue.seen = Seen { blocked: 0, backlog: 100, ..queue.seen };
    assert_eq!(queue.look().replicas, 10, "the breaker closed: all at once");
}

#[test]
fn hole_only_the_backlog_of_open_queues_is_left_out() {
    assert_eq!(once(Seen { blocked: 1000, ..seen(35, 0, 0) }, &spec()).replicas, 4);
}

#[test]
fn jobs_that_a_closed_breaker_lets_go_have_not_arrived_again() {
    let mut queue = Queue::new(seen(500, 0, 10), spec());
    queue.watch(20);
    for _ in 0..5 {
        queue.seen = Seen { blocked: 500, backlog: 0, ..queue.seen };
        queue.watch(5);
        queue.seen = Seen { blocked: 0, backlog: 500, ..queue.seen };
        assert_eq!(queue.watch(5).inputs.arrivals_per_minute, 0);
    }
}

#[test]
fn hole_a_paused_queue_holds_and_then_goes_down_to_the_fewest() {
    let mut queue = Queue::new(seen(100, 0, 10), Scaling { min_replicas: 1, ..spec() });
    queue.look();
    queue.seen.paused = true;
    queue.seen.backlog = 500;
    let decision = queue.watch(59);
    assert_eq!((decision.replicas, decision.reason.as_str()), (10, "paused"));
    let decision = queue.look();
    assert_eq!((decision.replicas, decision.reason.as_str()), (1, "paused for 1m"));
    queue.seen.paused = false;
    assert_eq!(queue.look().replicas, 10);
}

#[test]
fn a_paused_queue_starts_nobody() {
    assert_eq!(once(Seen { paused: true, ..seen(1000, 0, 0) }, &spec()).replicas, 0);
}

#[test]
fn jobs_of_a_queue_that_sidekiq_has_paused_ask_for_nobody_and_are_no_arrivals_when_it_is_resumed() {
    assert_eq!(once(Seen { held: 10_000, ..seen(0, 0, 0) }, &spec()).replicas, 0);
    assert_eq!(once(Seen { held: 10_000, ..seen(35, 0, 0) }, &spec()).replicas, 4);
    let mut queue = Queue::new(Seen { held: 35, ..seen(0, 0, 0) }, spec());
    queue.look();
    queue.seen = Seen { held: 0, backlog: 35, now_ms: queue.seen.now_ms + 1000, ..queue.seen };
    let decision = queue.look();
    assert_eq!((decision.replicas, decision.inputs.arrivals_per_minute), (4, 0));
}

#[test]
fn hole_while_run_times_are_unknown_the_number_of_jobs_decides_alone() {
    let spec = Scaling { target_latency: Some(Duration::from_secs(1)), ..spec() };
    let decision = once(seen(25, 0, 0), &spec);
    assert_eq!(decision.replicas, 3);
    assert_eq!((decision.inputs.run_millis, decision.inputs.by_latency), (None, None));
}

#[test]
fn arrivals_and_run_times_ask_for_workers_before_a_backlog_does() {
    let latency = Some(Duration::from_secs(30));
    let spec = Scaling { target_latency: latency, backlog_per_worker: 100, max_replicas: 30, ..spec() };
    // 10 jobs a second of 2 s keep 20 slots busy; workers of 4 slots, used to 80 %, make 6.25.
    let mut queue = Queue::new(seen(0, 20, 1), spec);
    let decision = queue.busy(60, 10, 2000);
    assert_eq!(decision.replicas, 7);
    let inputs = decision.inputs;
    assert_eq!((inputs.arrivals_per_minute, inputs.run_millis), (600, Some(2000)));
    assert_eq!((inputs.by_depth, inputs.by_latency), (1, Some(7)));
    // 150 that wait shall be started within 30 s: 10 more slots; and more seem to arrive.
    queue.seen.backlog = 150;
    let decision = queue.busy(1, 10, 2000);
    assert_eq!(decision.reason, "150 jobs waiting and more arriving, to be started within 30s");
    assert_eq!(decision.replicas, 12);
}

#[test]
fn a_waiting_job_wants_at_most_one_slot_however_long_it_takes() {
    let spec = Scaling {
        target_latency: Some(Duration::from_secs(1)),
        max_replicas: 1000,
        backlog_per_worker: 1000,
        ..spec()
    };
    let mut queue = Queue::new(seen(0, 0, 1), spec);
    queue.busy(1, 0, 0);
    queue.seen = Seen { finished: 1, busy_ms: 3_600_000, backlog: 32, ..queue.seen };
    // An hour for each job, 33 of which came in the last 15 s: the arrivals want much, the backlog 32 of 3.2.
    let inputs = queue.look().inputs;
    let arrivals = 33.0 / 15.0 * 3600.0 / 3.2;
    assert_eq!(inputs.by_latency, Some(saturated((arrivals + 10.0f64).ceil())));
}

#[test]
fn workers_that_arrivals_keep_busy_stay_without_a_target_latency() {
    let mut queue = Queue::new(seen(100, 20, 10), Scaling { backlog_per_worker: 100, ..spec() });
    queue.busy(30, 10, 2000);
    queue.seen.backlog = 0;
    let decision = queue.busy(300, 10, 2000);
    assert_eq!(decision.inputs.by_depth, 1);
    assert!((7..=8).contains(&decision.replicas), "20 busy slots of workers with 4: {decision:?}");
}

#[test]
fn jobs_that_come_and_go_between_two_looks_keep_a_worker() {
    let mut queue = Queue::new(seen(0, 0, 1), spec());
    assert_eq!(queue.busy(600, 1, 5).replicas, 1);
    assert_eq!(queue.watch(61).replicas, 0, "until none comes any more");
}

#[test]
fn an_average_of_arrivals_does_not_keep_workers_when_there_are_no_jobs() {
    let spec = Scaling { target_latency: Some(Duration::from_secs(30)), ..spec() };
    let mut queue = Queue::new(seen(0, 20, 0), spec);
    assert_eq!(queue.busy(120, 10, 2000).replicas, 7);
    queue.seen.in_flight = 0;
    assert_eq!(queue.watch(61).replicas, 0);
}

#[test]
fn counters_that_start_again_make_no_arrivals_and_nobody_is_sent_home_at_once() {
    let spec = Scaling { target_latency: Some(Duration::from_secs(30)), ..spec() };
    let mut queue = Queue::new(seen(0, 20, 0), spec);
    let before = queue.busy(120, 10, 2000);
    queue.watch(50);
    // Redis came back empty.
    queue.seen = Seen { finished: 0, busy_ms: 0, in_flight: 0, ..queue.seen };
    let after = queue.look();
    assert!(after.inputs.arrivals_per_minute <= before.inputs.arrivals_per_minute);
    assert_eq!(after.inputs.run_millis, Some(2000));
    assert_eq!(queue.watch(59).replicas, 7);
    assert_eq!(queue.look().replicas, 0);
}

#[test]
fn a_clock_that_is_set_neither_speeds_up_nor_stops_the_delay() {
    for jump in [-86_400_000, -1, 86_400_000_i64] {
        let mut queue = Queue::new(seen(0, 20, 0), spec());
        queue.seen.now_ms = 1_000_000_000;
        let before = queue.busy(120, 10, 2000).inputs;
        queue.seen.in_flight = 0;
        queue.seen.now_ms = queue.seen.now_ms.checked_add_signed(jump).unwrap();
        let after = queue.busy(1, 10, 2000).inputs;
        let (before, after) = (before.arrivals_per_minute, after.arrivals_per_minute);
        assert!(after <= before && after * 5 >= before * 4, "{jump}: {before} to {after} a minute");
        assert!(queue.watch(45).replicas > 0, "{jump}");
        assert_eq!(queue.watch(30).replicas, 0, "{jump}");
    }
}

#[test]
fn time_in_which_redis_could_not_be_read_does_not_count_as_time_in_which_fewer_were_enough() {
    let mut queue = Queue::new(seen(50, 0, 5), spec());
    queue.look();
    // An hour later Redis answers again, and is empty.
    queue.seen.now_ms += 3_600_000;
    queue.seen.backlog = 0;
    assert_eq!(queue.watch(50).replicas, 5);
    assert_eq!(queue.watch(10).replicas, 0);
}

#[test]
fn what_came_during_an_outage_is_an_average_over_it() {
    let mut queue = Queue::new(seen(0, 20, 0), spec());
    queue.busy(300, 10, 2000);
    // For ten minutes nobody looked; ten jobs a second went on.
    queue.seen.now_ms += 600_000;
    let inputs = queue.busy(1, 6010, 2000).inputs;
    assert_eq!((inputs.arrivals_per_minute, inputs.run_millis), (600, Some(2000)));
}

#[test]
fn a_lowered_maximum_is_obeyed_at_once() {
    let mut queue = Queue::new(seen(100, 0, 10), spec());
    queue.look();
    queue.spec.max_replicas = 4;
    let decision = queue.look();
    assert_eq!((decision.replicas, decision.reason.as_str()), (4, "maxReplicas is 4"));
}

#[test]
fn in_manual_mode_the_spec_decides() {
    let manual = Scaling { mode: ScalingMode::Manual, ..spec() };
    let by = |replicas| decide(&seen(1000, 0, 0), &mut History::default(), &manual, 4, replicas);
    assert_eq!(by(Some(3)).replicas, 3);
    assert_eq!(by(Some(0)).replicas, 0);
    assert_eq!((by(None).replicas, by(None).reason.as_str()), (1, "spec.replicas is 1"));
}

#[test]
fn who_takes_over_from_manual_mode_begins_with_the_workers_that_are_there() {
    let mut queue = Queue::new(seen(0, 0, 0), spec());
    queue.watch(100);
    queue.spec.mode = ScalingMode::Manual;
    decide(&queue.seen, &mut queue.history, &queue.spec, 4, Some(6));
    (queue.spec.mode, queue.seen.current) = (ScalingMode::Auto, 6);
    assert_eq!(queue.watch(60).replicas, 6);
    assert_eq!(queue.look().replicas, 0);
}

prop_compose! {
    /// Anything that a look can show; clocks and counters too.
    fn any_look()(
        backlog in 0u64..10_000, blocked in prop_oneof![Just(0), 0u64..10_000], in_flight in 0u64..1000,
        finished in 0u64..5000, busy_ms in 0u64..1_000_000, later in 0u64..30_000, lost in 0u8..20, paused in 0u8..5,
    ) -> (Seen, u64, bool) {
        let seen = Seen { backlog, blocked, in_flight, finished, busy_ms, paused: paused == 0, ..Seen::default() };
        (seen, later, lost == 0)
    }
}

prop_compose! {
    fn any_spec()(
        min in 0i32..5, more in 0i32..50, per_worker in 1i32..200, latency in prop::option::of(1u64..120),
        delay in 0u64..120,
    ) -> Scaling {
        Scaling {
            min_replicas: min,
            max_replicas: (min + more).max(1),
            backlog_per_worker: per_worker,
            target_latency: latency.map(Duration::from_secs),
            scale_down_delay: Duration::from_secs(delay),
            ..Scaling::default()
        }
    }
}

/// Replays looks, each as long after the one before as it says and with counters that grow by what it says (or start again),
/// and hands every one with its decision to `check`.
fn replay(
    looks: Vec<(Seen, u64, bool)>,
    spec: &Scaling,
    mut check: impl FnMut(&Seen, &History, &Decision) -> Result<(), TestCaseError>,
) -> Result<(), TestCaseError> {
    let (mut history, mut last) = (History::default(), Seen::default());
    for (mut seen, later, lost) in looks {
        seen.now_ms = if lost { 0 } else { last.now_ms + later };
        seen.finished += if lost { 0 } else { last.finished };
        seen.busy_ms += if lost { 0 } else { last.busy_ms };
        seen.current = last.current;
        let before = history.clone();
        let decision = decide(&seen, &mut history, spec, 4, None);
        check(&seen, &before, &decision)?;
        last = Seen { current: decision.replicas, ..seen };
    }
    Ok(())
}

proptest! {
    #[test]
    fn the_decision_stays_within_bounds(looks in prop::collection::vec(any_look(), 1..50), spec in any_spec()) {
        replay(looks, &spec, |_, _, decision| {
            prop_assert!((spec.min_replicas..=spec.max_replicas).contains(&decision.replicas));
            Ok(())
        })?;
    }

    #[test]
    fn more_jobs_never_want_fewer_workers(
        looks in prop::collection::vec(any_look(), 1..30), spec in any_spec(), more in 1u64..5000,
    ) {
        replay(looks, &spec, |seen, before, decision| {
            let fuller = Seen { backlog: seen.backlog + more, ..*seen };
            let wanted = decide(&fuller, &mut before.clone(), &spec, 4, None).replicas;
            prop_assert!(wanted >= decision.replicas, "{wanted} for more than {decision:?}");
            Ok(())
        })?;
    }

    #[test]
    fn nobody_is_started_into_an_open_breaker_but_one(
        looks in prop::collection::vec(any_look(), 1..30), spec in any_spec(), blocked in 1u64..10_000,
    ) {
        replay(looks, &spec, |seen, before, _| {
            let open = Seen { backlog: 0, blocked, paused: false, ..*seen };
            let replicas = decide(&open, &mut before.clone(), &spec, 4, None).replicas;
            prop_assert!(replicas <= seen.current.max(1).max(spec.min_replicas));
            prop_assert!(replicas >= 1, "a probe can run");
            Ok(())
        })?;
    }

    #[test]
    fn what_is_blocked_adds_nothing_to_the_wish(
        looks in prop::collection::vec(any_look(), 1..30), spec in any_spec(), more in 1u64..10_000,
    ) {
        replay(looks, &spec, |seen, before, _| {
            // More than were blocked at any look: none of them has left the blocked ones.
            let blocked = |blocked| Seen { backlog: seen.backlog.max(1), blocked: 10_000 + blocked, ..*seen };
            let few = decide(&blocked(0), &mut before.clone(), &spec, 4, None);
            let many = decide(&blocked(more), &mut before.clone(), &spec, 4, None);
            prop_assert_eq!(many.replicas, few.replicas);
            Ok(())
        })?;
    }

    #[test]
    fn a_paused_queue_never_gets_more_workers_than_it_has_or_must_have(
        looks in prop::collection::vec(any_look(), 1..30), spec in any_spec(),
    ) {
        replay(looks, &spec, |seen, before, _| {
            let paused = Seen { paused: true, ..*seen };
            let replicas = decide(&paused, &mut before.clone(), &spec, 4, None).replicas;
            prop_assert!(replicas <= seen.current.max(spec.min_replicas));
            Ok(())
        })?;
    }

    #[test]
    fn nobody_goes_before_the_delay_is_over(jobs in 1u64..100, spec in any_spec(), looks in 1u32..119) {
        let delay = u32::try_from(spec.scale_down_delay.get().as_secs()).unwrap();
        let mut queue = Queue::new(seen(jobs, 0, 0), spec);
        let first = queue.look().replicas;
        queue.seen.backlog = 0;
        if looks < delay {
            prop_assert_eq!(queue.watch(looks).replicas, first);
        }
        prop_assert_eq!(queue.watch(delay + 1).replicas, queue.spec.min_replicas);
    }

    #[test]
    fn any_backlog_at_zero_workers_is_answered_in_one_step(backlog in 1u64..100_000, spec in any_spec()) {
        let mut queue = Queue::new(seen(backlog, 0, 0), spec);
        let first = queue.look().replicas;
        prop_assert!(first >= 1);
        prop_assert_eq!(queue.watch(20).replicas, first);
    }

    #[test]
    fn figures_stay_sane_whatever_clocks_and_counters_do(
        looks in prop::collection::vec(any_look(), 1..50), spec in any_spec(),
    ) {
        replay(looks, &spec, |_, _, decision| {
            // No more can come in 15 s, the shortest time of an average, than four looks of them can show.
            prop_assert!(decision.inputs.arrivals_per_minute < 60 * 60 * 16_000, "{decision:?}");
            prop_assert!(decision.inputs.run_millis.is_none_or(|run| run <= 1_000_000), "{decision:?}");
            Ok(())
        })?;
    }
}
