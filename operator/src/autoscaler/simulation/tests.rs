use super::*;

/// By then the first workers have started, run times are known, and what waited for that is done.
const RAMP_UP: u64 = 180;
const FIVE_MINUTES: u64 = 300;

fn named(name: &str) -> Vec<Point> {
    run(traces().iter().find(|trace| trace.name == name).unwrap())
}

/// When the number of workers, having gone one way, went the other.
fn turns(points: &[Point]) -> Vec<u64> {
    let (mut turns, mut way) = (vec![], 0);
    for pair in points.windows(2) {
        let step = (pair[1].desired - pair[0].desired).signum();
        if step != 0 && way != 0 && step != way {
            turns.push(pair[1].second);
        }
        way = if step == 0 { way } else { step };
    }
    turns
}

/// Ten minutes of steady load with these seeds: hardly any change of mind, and hardly more workers than it takes.
fn is_steady(concurrency: u32, per_worker: i32, latency: Option<u64>, rates: &[f64], run_times: &[f64]) {
    for (&rate, &run_seconds) in rates.iter().flat_map(|rate| run_times.iter().map(move |run| (rate, run))) {
        for seed in 0..8 {
            let mut scenario = Scenario::new("steady", RAMP_UP + 600, Arrivals::Steady(rate));
            scenario = Scenario { run_seconds, concurrency, seed, ..scenario };
            scenario.scaling.max_replicas = 1000;
            scenario.scaling.backlog_per_worker = per_worker;
            scenario.scaling.target_latency = latency.map(Duration::from_secs);
            let points = run(&scenario).split_off(usize::try_from(RAMP_UP).unwrap());
            let turns = turns(&points);
            let what = format!(
                "{rate}/s of {run_seconds} s, {concurrency} slots, {per_worker} jobs a worker, seed {seed}"
            );
            assert!(
                turns.windows(2).all(|pair| pair[1] - pair[0] >= FIVE_MINUTES),
                "changed its mind at {turns:?}: {what}"
            );
            let slots = rate * run_seconds;
            let by_depth = slots / f64::from(per_worker);
            let ideal =
                (slots / (f64::from(concurrency) * crate::autoscaler::UTILISATION)).max(by_depth).ceil();
            let most = points.iter().map(|point| point.desired).max().unwrap();
            assert!(f64::from(most) <= ideal * 1.2 + 1.0, "{most} workers where {ideal} do: {what}");
        }
    }
}

#[test]
fn never_flapping_on_steady_load_by_depth() {
    is_steady(16, 16, None, &[0.5, 2.0, 10.0, 50.0], &[0.5, 2.0, 10.0]);
    is_steady(16, 100, None, &[0.5, 2.0, 10.0, 50.0], &[0.5, 2.0, 10.0]);
    is_steady(4, 20, None, &[0.5, 2.0, 10.0], &[0.5, 2.0, 10.0]);
}

#[test]
fn never_flapping_on_steady_load_with_a_target_latency() {
    is_steady(16, 100, Some(30), &[0.5, 2.0, 10.0, 50.0], &[0.5, 2.0, 10.0, 30.0]);
    is_steady(4, 100, Some(30), &[0.5, 2.0, 10.0], &[0.5, 2.0, 10.0]);
    is_steady(4, 100, Some(10), &[10.0], &[2.0]);
}

#[test]
fn the_same_seed_gives_the_same_run_and_another_one_another() {
    let scenario = Scenario::new("steady", 100, Arrivals::Steady(10.0));
    assert_eq!(run(&scenario), run(&scenario));
    assert_ne!(run(&scenario), run(&Scenario { seed: 1, ..scenario.clone() }));
}

#[test]
fn a_burst_goes_from_zero_to_all_workers_in_one_step_and_back_to_zero() {
    let scenario = Scenario::new("burst", 400, Arrivals::Bursts(0.0, vec![(10, 2000)]));
    let points = run(&scenario);
    assert_eq!((points[9].desired, points[10].desired), (0, 20), "2000 jobs, 100 a worker");
    let done = points.iter().find(|point| point.second > 10 && point.backlog + point.in_flight == 0).unwrap();
    let last = points.last().unwrap();
    assert_eq!((last.desired, last.replicas, last.backlog, last.in_flight), (0, 0, 0, 0));
    let gone = points.iter().rfind(|point| point.replicas > 0).unwrap();
    assert!(gone.second >= done.second + 59, "{gone:?} after {done:?}");
}

#[test]
fn while_redis_cannot_be_read_the_number_of_workers_stays_and_afterwards_all_is_as_before() {
    let points = named("outage");
    let during: Vec<_> = points[420..480].iter().map(|point| point.replicas).collect();
    assert!(during.iter().all(|replicas| *replicas == during[0] && *replicas > 0), "{during:?}");
    assert!(points[480].backlog > 400, "ten a second waited with their clients: {:?}", points[480]);
    assert!(points[481..].iter().all(|point| point.desired >= during[0]), "nobody was sent home");
    assert_eq!(points.last().unwrap().backlog, 0);
}

#[test]
fn a_day_is_followed_up_and_down_to_zero() {
    let points = named("diurnal");
    let noon = points[300..600].iter().map(|point| point.desired).max().unwrap();
    // 30 a second of 2 s keep 60 slots busy, workers of 4 used to 80 %: 18.75. This day lasts 15 minutes, so averages lag.
    assert!((16..=24).contains(&noon), "{noon}");
    assert_eq!(points[870..960].iter().map(|point| point.desired).min(), Some(0));
    let waited = points.iter().map(|point| point.waited_ms).max().unwrap();
    assert!(waited <= 30_000, "targetLatency is 30 s, somebody waited {waited} ms");
}

#[test]
fn in_the_model_who_holds_a_job_stays() {
    for scenario in traces() {
        let points = run(&scenario);
        let busiest =
            points.iter().all(|point| point.in_flight <= u64::try_from(point.replicas).unwrap() * 4);
        assert!(busiest, "{}: who holds a job stays", scenario.name);
    }
}

#[test]
fn a_run_prints_as_a_table() {
    let text = table(&named("steady"));
    assert_eq!(text.lines().count(), 91);
    assert!(text.starts_with(
        "    time  replicas  desired  backlog  in flight\n    0:00         0        0        0"
    ));
}
