//! What an operator tells workers and what it sees of them: quiet and drained, the causes of deaths, lanes.
#![allow(clippy::unwrap_used, reason = "a panic is the report")]

use std::time::Duration;

use e2e::engine::{Bench, Lane, job, reaper_settings, registration};
use e2e::wait::eventually;
use jobqueue::effects::Side;
use jobqueue::reaper::{Reaper, Settings};
use jobqueue::store::{Fenced, Registration};
use redis::AsyncCommands as _;

const LONG: Duration = Duration::from_secs(600);
const LONGER: Duration = Duration::from_secs(1200);

/// A lane of a pod, which is told to be quiet by the pod's uid.
async fn lane_of(bench: &Bench, pod: &str) -> Lane {
    let who = Registration { control: pod.into(), pod_uid: pod.into(), ..registration(600_000) };
    bench.lane_of(who).await
}

async fn drained(bench: &Bench, pods: &[&str]) -> Vec<bool> {
    let told: Vec<_> = pods.iter().map(|pod| ((*pod).to_owned(), "G1".to_owned())).collect();
    bench.session().drained(&told, LONGER).await.unwrap()
}

/// Has the lane obey the word it read in its last cycle.
async fn acknowledge(lane: &mut Lane, word: &str) {
    let mut cycle = lane.next();
    cycle.quiet = word.into();
    lane.cycle(&cycle).await;
}

#[tokio::test]
async fn a_process_is_drained_once_it_has_acknowledged_its_word_and_holds_nothing() {
    let mut bench = Bench::new().await;
    let high = bench.high().queue;
    bench.push(&high, &[job("a")]).await;
    let mut lane = lane_of(&bench, "pod").await;
    let jobs = lane.reserve(1).await;
    assert_eq!(drained(&bench, &["pod"]).await, [false], "it was not told");
    bench.session().quiet("pod", "G1", LONG).await.unwrap();
    assert_eq!(drained(&bench, &["pod"]).await, [false], "it has not acknowledged");
    acknowledge(&mut lane, "G1").await;
    assert_eq!(drained(&bench, &["pod"]).await, [false], "it still holds a job");
    lane.settle(0, &jobs[0], &jobqueue::outcome::Outcome::Done).await;
    acknowledge(&mut lane, "G1").await;
    assert_eq!(drained(&bench, &["pod"]).await, [true]);
    bench.push(&high, &[job("b")]).await;
    assert!(lane.reserve(1).await.is_empty(), "and it takes nothing more");
}

#[tokio::test]
async fn who_is_seen_drained_stays_so_for_as_long_as_it_takes_to_stop_it() {
    let mut bench = Bench::new().await;
    let mut lane = lane_of(&bench, "pod").await;
    bench.session().quiet("pod", "G1", LONG).await.unwrap();
    let key = bench.keys.quiet("pod");
    acknowledge(&mut lane, "G1").await;
    assert_eq!(drained(&bench, &["pod"]).await, [true]);
    let left: u64 = bench.redis.pttl(&key).await.unwrap();
    assert!(u128::from(left) > LONG.as_millis(), "{left}");
}

#[tokio::test]
async fn an_older_word_an_expired_one_and_a_parked_job_are_not_drained() {
    let mut bench = Bench::new().await;
    let mut lane = lane_of(&bench, "pod").await;
    bench.session().quiet("pod", "G1", LONG).await.unwrap();
    acknowledge(&mut lane, "G0").await;
    assert_eq!(drained(&bench, &["pod"]).await, [false], "that was another drain");
    acknowledge(&mut lane, "G1").await;
    let parked = lane.handle.lists[0].parked.clone();
    bench.push(&parked, &[job("late")]).await;
    assert_eq!(drained(&bench, &["pod"]).await, [false], "a parked fetch has brought a job");
    bench.redis.del::<_, ()>(&parked).await.unwrap();
    bench.session().resume("pod").await.unwrap();
    assert_eq!(drained(&bench, &["pod"]).await, [false], "it may take jobs again");
}

#[tokio::test]
async fn every_lane_of_a_process_must_rest_and_other_processes_do_not_matter() {
    let bench = Bench::new().await;
    let (mut one, mut two, _other) =
        (lane_of(&bench, "pod").await, lane_of(&bench, "pod").await, lane_of(&bench, "busy").await);
    for pod in ["pod", "new"] {
        bench.session().quiet(pod, "G1", LONG).await.unwrap();
    }
    acknowledge(&mut one, "G1").await;
    assert_eq!(drained(&bench, &["pod", "new", "busy"]).await, [false, true, false], "new has no lanes yet");
    acknowledge(&mut two, "G1").await;
    assert_eq!(drained(&bench, &["pod", "new", "busy"]).await, [true, true, false]);
}

/// Lanes of other pods, more than are looked at in one step, each with two jobs.
async fn crowd(bench: &mut Bench, lanes: u64) {
    let mut commands = redis::pipe();
    for lane in 0..lanes {
        let (id, pod) = (format!("host-1-x{lane}"), format!("other-{lane}"));
        commands.zadd(bench.keys.lanes(), &id, lane).ignore();
        commands.hset_multiple(bench.keys.record(&id), &[("pod", pod.as_str()), ("held", "2")]).ignore();
    }
    commands.query_async::<()>(&mut bench.redis).await.unwrap();
}

#[tokio::test]
async fn a_process_among_thousands_is_seen_to_rest_and_every_lane_is_counted() {
    let mut bench = Bench::new().await;
    crowd(&mut bench, 2500).await;
    let mut lane = lane_of(&bench, "pod").await;
    bench.session().quiet("pod", "G1", LONG).await.unwrap();
    assert_eq!(drained(&bench, &["pod", "other-7"]).await, [false, false], "it has not acknowledged");
    acknowledge(&mut lane, "G1").await;
    assert_eq!(drained(&bench, &["pod", "other-7"]).await, [true, false]);
    let snapshot = bench.session().snapshot(Side::Right).await.unwrap();
    assert_eq!((snapshot.lanes, snapshot.open_lanes.len(), snapshot.in_flight), (2501, 2501, 5000));
}

#[tokio::test]
async fn an_open_breaker_is_remembered_until_somebody_says_otherwise_or_its_time_is_over() {
    let bench = Bench::new().await;
    let remembered = async || {
        let queues = bench.session().snapshot(Side::Right).await.unwrap().queues;
        queues.iter().map(|queue| queue.breaker).collect::<Vec<_>>()
    };
    bench.session().tell_breaker("high", Some(LONG)).await.unwrap();
    assert_eq!(remembered().await, [true, false]);
    bench.session().tell_breaker("high", None).await.unwrap();
    assert_eq!(remembered().await, [false, false]);
    bench.session().tell_breaker("low", Some(Duration::from_millis(1))).await.unwrap();
    eventually(LONG, "the end of a cooldown", async || remembered().await == [false, false]).await;
}

#[tokio::test]
async fn a_snapshot_shows_each_lane_with_its_pod_and_what_it_holds() {
    let mut bench = Bench::new().await;
    let (high, low) = (bench.high().queue, bench.low().queue);
    bench.push(&high, &[job("a"), job("b")]).await;
    bench.push(&low, &[job("c")]).await;
    let who = Registration {
        pod_uid: "pod".into(),
        jobqueue_uid: "queue".into(),
        started_ms: 17,
        ..registration(600_000)
    };
    let mut lane = bench.lane_of(who).await;
    lane.reserve(2).await;
    let parked = lane.handle.lists[1].parked.clone();
    bench
        .redis
        .lmove::<_, _, ()>(&low, &parked, redis::Direction::Right, redis::Direction::Right)
        .await
        .unwrap();
    bench.session().extend(&[(&lane.handle, b"")], 600_000, "high=open").await.unwrap();
    let snapshot = bench.session().snapshot(Side::Right).await.unwrap();
    let seen = &snapshot.open_lanes[0];
    assert_eq!((seen.lane.as_str(), seen.pod_uid.as_str()), (lane.handle.id.as_str(), "pod"));
    assert_eq!(
        (seen.jobqueue_uid.as_str(), seen.started_ms, seen.breakers.as_str()),
        ("queue", 17, "high=open")
    );
    assert_eq!((seen.held, snapshot.in_flight), (3, 3));
}

#[tokio::test]
async fn who_saw_a_process_die_knows_better_than_its_successor() {
    let bench = Bench::new().await;
    let lane = lane_of(&bench, "pod").await;
    let mut session = bench.session();
    assert_eq!(session.fence(&lane.handle.id, true, "restarted").await.unwrap(), Fenced::Fenced);
    assert_eq!(session.fence(&lane.handle.id, true, "oom").await.unwrap(), Fenced::Fenced);
    assert_eq!(session.lane(&lane.handle.id).await.unwrap().unwrap().fenced, "oom");
    session.fence(&lane.handle.id, true, "restarted").await.unwrap();
    session.fence(&lane.handle.id, false, "heartbeat").await.unwrap();
    assert_eq!(session.lane(&lane.handle.id).await.unwrap().unwrap().fenced, "oom");
}

#[tokio::test]
async fn a_lane_fenced_by_its_successor_waits_for_whoever_saw_it_die() {
    let mut bench = Bench::new().await;
    let high = bench.high().queue;
    bench.push(&high, &[job("a")]).await;
    let mut lane = lane_of(&bench, "pod").await;
    lane.reserve(1).await;
    bench.session().fence(&lane.handle.id, true, "restarted").await.unwrap();
    let patient = Settings { cause_wait: LONG, ..reaper_settings(LONG) };
    let mut reaper = Reaper::new(bench.session(), bench.engine.protocol.clone(), patient);
    assert!(reaper.pass().await.unwrap().moved.is_empty(), "nobody has said why");
    bench.session().fence(&lane.handle.id, true, "oom").await.unwrap();
    let mut shared = bench.session();
    assert_eq!(reaper.pass_on(&mut shared).await.unwrap().moved.len(), 1);
    bench.assert_conserved(&["a"]).await;
}
