//! Fencing the dead and giving their jobs back. TTLs are far below what a configuration allows, so that a test
//! waits for the two looks only.
#![allow(
    clippy::unwrap_used,
    clippy::wildcard_imports,
    reason = "tests: a panic is the report, and modules only group them"
)]

use std::time::{Duration, Instant};

use bytes::Bytes;
use e2e::engine::{Bench, CONSUMING, Lane, config, failure, id_of, ids, job, reaper_settings, shared_server};
use e2e::{Proxy, eventually};
use jobqueue::effects::Verdict;
use jobqueue::outcome::{Outcome, Reason};
use jobqueue::reaper::{Reaped, Reaper, Settings};
use jobqueue::store::{Fenced, Rest, digest};
use redis::AsyncCommands as _;
use serde_json::{Value, json};

const SHORT: Duration = Duration::from_millis(50);
const SOON: Duration = Duration::from_secs(20);

fn field(raw: &Bytes, name: &str) -> Value {
    serde_json::from_slice::<Value>(raw).unwrap()[name].clone()
}

/// A lane that holds these jobs of the high queue.
async fn lane_with(bench: &mut Bench, ttl_ms: u64, jobs: &[Bytes]) -> Lane {
    bench.push(&bench.high().queue, jobs).await;
    let mut lane = bench.lane_with_ttl(ttl_ms).await;
    assert_eq!(lane.reserve(jobs.len()).await.len(), jobs.len());
    lane
}

/// Passes until something was fenced; answers what that pass did.
async fn until_fenced(reaper: &mut Reaper) -> Reaped {
    eventually(SOON, "a lane to be fenced", async || {
        let done = reaper.pass().await.unwrap();
        if done.fenced > 0 { Ok(done) } else { Err("none") }
    })
    .await
}

mod looking {
    use super::*;

    #[tokio::test]
    async fn a_dead_lane_is_fenced_after_two_looks_2_s_apart_and_its_jobs_are_moved_at_once() {
        let mut bench = Bench::new().await;
        let lane = lane_with(&mut bench, 1, &["a", "b"].map(job)).await;
        let mut reaper = bench.reaper(SHORT);
        let first_look = Instant::now();
        let done = until_fenced(&mut reaper).await;
        assert!(first_look.elapsed() >= Duration::from_secs(2), "{:?}", first_look.elapsed());
        println!("fenced {:?} after the first look", first_look.elapsed());
        assert_eq!(
            done.moved,
            [("high".to_owned(), Verdict::Suspected), ("high".to_owned(), Verdict::Suspected)]
        );
        bench.assert_conserved(&["a", "b"]).await;
        eventually(SOON, "the lane to be forgotten", async || {
            reaper.pass().await.unwrap();
            bench.session().lane(&lane.handle.id).await.unwrap().is_none()
        })
        .await;
        let snapshot = bench.session().snapshot(CONSUMING).await.unwrap();
        assert_eq!((snapshot.lanes, snapshot.reaping), (0, 0));
    }

    #[tokio::test]
    async fn nothing_is_fenced_before_the_reapers_own_connection_has_stood_a_ttl() {
        let mut bench = Bench::new().await;
        lane_with(&mut bench, 1, &[job("a")]).await;
        let connected = Instant::now();
        let mut reaper = bench.reaper(Duration::from_secs(3));
        until_fenced(&mut reaper).await;
        assert!(connected.elapsed() >= Duration::from_secs(3), "{:?}", connected.elapsed());
    }

    #[tokio::test]
    async fn after_trouble_with_redis_both_looks_are_taken_anew() {
        let server = shared_server().await;
        let proxy = Proxy::start(server.addr()).await;
        let mut bench = Bench::through(server, proxy.addr(), json!({})).await;
        lane_with(&mut bench, 1, &[job("a")]).await;
        let mut reaper = bench.reaper(SHORT);
        let before = Instant::now();
        while before.elapsed() < Duration::from_millis(1500) {
            assert_eq!(reaper.pass().await.unwrap().fenced, 0);
            tokio::time::sleep(SHORT).await;
        }
        proxy.cut();
        assert!(reaper.pass().await.unwrap_err().is_transient());
        let after = Instant::now();
        until_fenced(&mut reaper).await;
        assert!(after.elapsed() >= Duration::from_secs(2), "{:?}", after.elapsed());
    }

    #[tokio::test]
    async fn a_dead_lane_that_the_registry_does_not_know_is_found_by_its_lists() {
        let mut bench = Bench::new().await;
        lane_with(&mut bench, 1, &[job("a")]).await;
        bench.redis.del::<_, ()>(bench.keys.lanes()).await.unwrap();
        until_fenced(&mut bench.reaper(SHORT)).await;
        bench.assert_conserved(&["a"]).await;
    }

    #[tokio::test]
    async fn a_heartbeat_without_a_ttl_counts_as_absent() {
        let mut bench = Bench::new().await;
        let lane = lane_with(&mut bench, 60_000, &[job("a")]).await;
        bench.redis.persist::<_, ()>(bench.keys.heartbeat(&lane.handle.id)).await.unwrap();
        bench.redis.zadd::<_, _, _, ()>(bench.keys.lanes(), &lane.handle.id, 1).await.unwrap();
        until_fenced(&mut bench.reaper(SHORT)).await;
        assert_eq!(bench.ids(&bench.high().suspects).await, ["a"]);
    }

    #[tokio::test]
    async fn a_live_lane_is_never_fenced() {
        let mut bench = Bench::new().await;
        let lane = lane_with(&mut bench, 60_000, &[job("a")]).await;
        // Even when the registry has it as expired for long.
        bench.redis.zadd::<_, _, _, ()>(bench.keys.lanes(), &lane.handle.id, 1).await.unwrap();
        let mut reaper = bench.reaper(SHORT);
        let started = Instant::now();
        while started.elapsed() < Duration::from_millis(2500) {
            assert_eq!(reaper.pass().await.unwrap().fenced, 0);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert_eq!(bench.session().fence(&lane.handle.id, false, "heartbeat").await.unwrap(), Fenced::Alive);
        assert_eq!(bench.ids(&lane.handle.lists[0].held).await, ["a"]);
    }

    #[tokio::test]
    async fn a_lane_that_renews_between_the_looks_is_spared() {
        let mut bench = Bench::new().await;
        let mut lane = lane_with(&mut bench, 1, &[job("a")]).await;
        let mut reaper = bench.reaper(SHORT);
        tokio::time::sleep(SHORT).await;
        reaper.pass().await.unwrap();
        assert_eq!(lane.session.extend(&[(&lane.handle, b"")], 60_000, "").await.unwrap(), [true]);
        tokio::time::sleep(Duration::from_millis(2100)).await;
        assert_eq!(reaper.pass().await.unwrap().fenced, 0);
        assert_eq!(
            lane.settle(0, &job("a"), &Outcome::Done).await.statuses,
            [jobqueue::store::Status::Settled]
        );
    }

    #[tokio::test]
    async fn workers_are_relieved_while_somebody_central_reaps() {
        let bench = Bench::new().await;
        let mut reaper = bench.reaper(SHORT);
        assert!(!reaper.is_relieved().await.unwrap());
        let mut operator = bench.session();
        assert!(operator.keep(&bench.keys.central(), "operator", Duration::from_secs(15)).await.unwrap());
        assert!(operator.keep(&bench.keys.central(), "operator", Duration::from_secs(15)).await.unwrap());
        assert!(
            !bench.session().keep(&bench.keys.central(), "other", Duration::from_secs(15)).await.unwrap()
        );
        assert!(reaper.is_relieved().await.unwrap());
        let before = operator.round_trips;
        assert!(operator.keep(&bench.keys.central(), "operator", Duration::from_secs(15)).await.unwrap());
        assert_eq!(operator.round_trips - before, 1, "in one step: it cannot lapse between two");
    }
}

mod moving {
    use super::*;

    async fn fence(bench: &Bench, lane: &Lane, cause: &str) {
        assert_eq!(bench.session().fence(&lane.handle.id, true, cause).await.unwrap(), Fenced::Fenced);
    }

    #[tokio::test]
    async fn jobs_of_an_outside_cause_go_back_above_suspicion_in_the_order_they_had() {
        for cause in ["shutdown", "deleted", "evicted", "preempted", "node-lost"] {
            let mut bench = Bench::new().await;
            let mut jobs: Vec<Bytes> = (0..25).map(|n| job(&format!("{n:02}"))).collect();
            jobs.push(Bytes::from_static(b"not a job"));
            let lane = lane_with(&mut bench, 60_000, &jobs).await;
            bench.push(&bench.high().queue, &[job("younger")]).await;
            fence(&bench, &lane, cause).await;
            let reaped = bench.reaper(SHORT).pass().await.unwrap();
            assert!(reaped.moved.iter().all(|(_, verdict)| *verdict == Verdict::Released), "{cause}");
            let mut back = bench.list(&bench.high().queue).await;
            back.reverse();
            // Said of those that something has interrupted, which a shutdown is not.
            let told = |raw: &Bytes| match id_of(raw) {
                id if id == "not a job" || cause == "shutdown" => raw.clone(),
                id => Bytes::from(format!(r#"{{"id":"{id}","interrupted_by":"{cause}"}}"#)),
            };
            let mut jobs: Vec<Bytes> = jobs.iter().map(told).collect();
            jobs.push(job("younger"));
            assert_eq!(back, jobs, "{cause}: from the consuming end");
            assert_eq!(bench.ids(&bench.high().suspects).await, [""; 0]);
        }
    }

    #[tokio::test]
    async fn jobs_of_any_other_death_become_suspects_that_say_so() {
        let mut bench = Bench::new().await;
        let jobs = [
            job("a"),
            Bytes::from_static(br#"{"id":"b","deaths":1,"n":12345678901234567890,"e":[]}"#),
            job("c"),
        ];
        let lane = lane_with(&mut bench, 60_000, &jobs).await;
        fence(&bench, &lane, "restarted").await;
        bench.reaper(SHORT).pass().await.unwrap();
        let suspects = bench.list(&bench.high().suspects).await;
        assert_eq!(ids(&suspects), ["c", "b", "a"], "the oldest is the next to be taken");
        assert_eq!(
            suspects.iter().map(|raw| field(raw, "deaths")).collect::<Vec<_>>(),
            [json!(1), json!(2), json!(1)]
        );
        assert!(suspects.iter().all(|raw| field(raw, "interrupted_by") == "restarted"));
        assert!(suspects.iter().all(|raw| field(raw, "interruptions") == 0), "nobody ran alone");
        let text = String::from_utf8_lossy(&suspects[1]).into_owned();
        assert!(text.contains(r#""n":12345678901234567890,"e":[]"#), "{text}");
    }

    #[tokio::test]
    async fn jobs_of_a_lane_that_was_told_to_stop_are_above_suspicion_unless_somebody_knows_better() {
        for (cause, recorded) in [
            ("heartbeat", "shutdown"),
            ("restarted", "shutdown"),
            ("crashed", "shutdown"),
            ("evicted", "evicted"),
            ("oom", "oom"),
        ] {
            let mut bench = Bench::new().await;
            let mut lane = lane_with(&mut bench, 60_000, &[job("a")]).await;
            let mut cycle = lane.next();
            cycle.stopping = true;
            lane.cycle(&cycle).await;
            fence(&bench, &lane, cause).await;
            // Whoever fences it again knows no more.
            fence(&bench, &lane, "restarted").await;
            let record = bench.session().lane(&lane.handle.id).await.unwrap().unwrap();
            assert_eq!(record.fenced, recorded, "{cause}");
            let [(_, verdict)] = &bench.reaper(SHORT).pass().await.unwrap().moved[..] else {
                panic!("{cause}")
            };
            let expected = if cause == "oom" { Verdict::Suspected } else { Verdict::Released };
            assert_eq!(*verdict, expected, "{cause}");
        }
    }

    #[tokio::test]
    async fn a_fenced_lane_that_is_not_among_those_to_be_reaped_is_found_by_its_lists() {
        let mut bench = Bench::new().await;
        let lane = lane_with(&mut bench, 60_000, &[job("a")]).await;
        fence(&bench, &lane, "heartbeat").await;
        bench.redis.del::<_, ()>(bench.keys.reaping()).await.unwrap();
        let mut reaper = bench.reaper(SHORT);
        eventually(SOON, "its job", async || !reaper.pass().await.unwrap().moved.is_empty()).await;
        assert_eq!(bench.ids(&bench.high().suspects).await, ["a"]);
        bench.assert_conserved(&["a"]).await;
    }

    #[tokio::test]
    async fn a_suspect_that_ran_alone_is_counted_and_buried_as_poison_at_the_limit() {
        for (cause, reason) in [("heartbeat", "poison"), ("oom", "oom")] {
            let mut bench = Bench::new().await;
            let lane = lane_with(&mut bench, 60_000, &[job("killer")]).await;
            fence(&bench, &lane, cause).await;
            bench.reaper(SHORT).pass().await.unwrap();
            for interruptions in 1..=3 {
                let mut lane = bench.lane().await;
                let cycle = lane.asking(1);
                let got = lane.cycle(&cycle).await.queues[0].jobs.clone();
                assert_eq!(field(&got[0], "interruptions"), interruptions - 1);
                let mut alone = lane.next();
                alone.alone = digest(&got[0]);
                lane.cycle(&alone).await;
                fence(&bench, &lane, cause).await;
                bench.reaper(SHORT).pass().await.unwrap();
            }
            let letters = bench.list(&bench.high().dead_letters).await;
            assert_eq!(ids(&letters), ["killer"]);
            assert_eq!(
                (field(&letters[0], "interruptions"), field(&letters[0], "reason")),
                (json!(3), json!(reason))
            );
            bench.assert_conserved(&["killer"]).await;
        }
    }

    #[tokio::test]
    async fn a_suspect_that_waits_beside_the_one_that_runs_alone_is_not_blamed() {
        let mut bench = Bench::new().await;
        bench.push(&bench.high().suspects, &[Bytes::from_static(br#"{"id":"s","deaths":4}"#)]).await;
        bench.push(&bench.high().queue, &[job("a")]).await;
        let mut lane = bench.lane().await;
        let mut cycle = lane.asking(2);
        cycle.alone = digest(&job("a"));
        lane.cycle(&cycle).await;
        fence(&bench, &lane, "heartbeat").await;
        bench.reaper(SHORT).pass().await.unwrap();
        for raw in bench.list(&bench.high().suspects).await {
            assert_eq!(field(&raw, "interruptions"), 0);
        }
        bench.assert_conserved(&["a", "s"]).await;
    }

    #[tokio::test]
    async fn an_attempt_that_ends_by_itself_clears_the_suspicion() {
        let mut bench = Bench::new().await;
        bench.push(&bench.high().suspects, &[Bytes::from_static(br#"{"id":"s","deaths":4}"#)]).await;
        let mut lane = bench.lane().await;
        let got = lane.reserve(1).await;
        lane.settle(0, &got[0], &failure()).await;
        let member: Vec<Vec<u8>> = bench.redis.zrange(bench.high().delayed, 0, -1).await.unwrap();
        assert!(!String::from_utf8_lossy(&member[0]).contains("deaths"));
    }

    #[tokio::test]
    async fn entries_that_are_not_jobs_go_to_the_dead_letters_raw() {
        let mut bench = Bench::new().await;
        let lane = lane_with(&mut bench, 60_000, &[Bytes::from_static(b"{nonsense"), job("a")]).await;
        fence(&bench, &lane, "heartbeat").await;
        let reaped = bench.reaper(SHORT).pass().await.unwrap();
        assert!(reaped.moved.contains(&("high".to_owned(), Verdict::Dead(Reason::Malformed))));
        assert_eq!(bench.ids(&bench.high().dead_letters).await, ["{nonsense"]);
        assert_eq!(bench.ids(&bench.high().suspects).await, ["a"]);
    }

    #[tokio::test]
    async fn a_list_of_one_dead_lane_that_cannot_be_read_keeps_no_other_job() {
        let mut bench = Bench::new().await;
        let broken = lane_with(&mut bench, 60_000, &[job("a")]).await;
        let other = lane_with(&mut bench, 60_000, &[job("b")]).await;
        let parked = broken.handle.lists[0].parked_suspects.clone();
        bench.redis.set::<_, _, ()>(&parked, "nonsense").await.unwrap();
        fence(&bench, &broken, "heartbeat").await;
        fence(&bench, &other, "heartbeat").await;
        bench.reaper(SHORT).pass().await.unwrap();
        assert_eq!(ids(&bench.list(&bench.high().suspects).await).len(), 2, "both jobs are back");
    }

    #[tokio::test]
    async fn two_reapers_at_once_move_each_job_once() {
        let mut bench = Bench::new().await;
        let jobs: Vec<Bytes> = (0..500).map(|n| job(&format!("{}", n % 400))).collect();
        let lane = lane_with(&mut bench, 60_000, &jobs).await;
        fence(&bench, &lane, "heartbeat").await;
        let (mut one, mut two) = (bench.reaper(SHORT), bench.reaper(SHORT));
        let (first, second) = tokio::join!(one.pass(), two.pass());
        assert_eq!(first.unwrap().moved.len() + second.unwrap().moved.len(), 500);
        let suspects: usize = bench.redis.llen(bench.high().suspects).await.unwrap();
        assert_eq!(suspects, 500);
        let all = ids(&jobs);
        bench.assert_conserved(&all.iter().map(String::as_str).collect::<Vec<_>>()).await;
    }

    #[tokio::test]
    async fn a_lane_with_its_lease_gives_nothing_away() {
        let mut bench = Bench::new().await;
        let lane = lane_with(&mut bench, 60_000, &[job("a")]).await;
        let moves = vec![(job("a"), Vec::new())];
        let answer = bench.session().reap(&lane.handle.id, &lane.handle.lists[0].held, &moves).await.unwrap();
        assert_eq!(answer, None);
        let mut reaper = bench.reaper(SHORT);
        reaper.empty(&lane.handle.id, &mut Reaped::default()).await.unwrap();
        bench.assert_conserved(&["a"]).await;
        assert_eq!(bench.ids(&lane.handle.lists[0].held).await, ["a"]);
    }

    #[tokio::test]
    async fn what_a_fenced_lanes_blocked_fetch_still_brings_is_rescued() {
        let mut bench = Bench::new().await;
        let lane = bench.lane().await;
        let (from, into) = (bench.high().queue, lane.handle.lists[0].parked.clone());
        let mut parked = bench.session().with_reply_timeout(SOON);
        let waiting = tokio::spawn(async move { parked.park(&from, &into, CONSUMING, SOON / 2).await });
        let mut redis = bench.redis.clone();
        eventually(SOON, "a blocked fetch", async || {
            let clients: String = redis::cmd("CLIENT").arg("LIST").query_async(&mut redis).await.unwrap();
            clients.contains("cmd=blmove")
        })
        .await;
        fence(&bench, &lane, "heartbeat").await;
        let settings = Settings { park_timeout: Duration::from_millis(500), ..reaper_settings(SHORT) };
        let mut reaper = Reaper::new(bench.session(), bench.engine.protocol.clone(), settings);
        assert_eq!(reaper.pass().await.unwrap().moved, []);
        assert!(bench.session().lane(&lane.handle.id).await.unwrap().is_some(), "not forgotten yet");
        bench.push(&bench.high().queue, &[job("late")]).await;
        assert_eq!(waiting.await.unwrap().unwrap(), Some(job("late")), "moved to the dead");
        assert_eq!(reaper.pass().await.unwrap().moved, [("high".to_owned(), Verdict::Suspected)]);
        assert_eq!(bench.ids(&bench.high().suspects).await, ["late"]);
        eventually(SOON, "the lane to be forgotten", async || {
            reaper.pass().await.unwrap();
            bench.session().lane(&lane.handle.id).await.unwrap().is_none()
        })
        .await;
    }

    #[tokio::test]
    async fn many_dead_lanes_are_emptied_in_short_passes_that_ask_to_be_continued() {
        let mut bench = Bench::new().await;
        let mut all = Vec::new();
        for number in 0..60 {
            let id = format!("job {number}");
            let lane = lane_with(&mut bench, 60_000, &[job(&id)]).await;
            fence(&bench, &lane, "deleted").await;
            all.push(id);
        }
        let settings = Settings {
            page_delay: Duration::from_millis(20),
            pass_budget: Duration::from_millis(10),
            ..reaper_settings(SHORT)
        };
        let mut reaper = Reaper::new(bench.session(), bench.engine.protocol.clone(), settings);
        let (mut moved, mut passes, mut more) = (0, 0, true);
        while more {
            let pass = reaper.pass().await.unwrap();
            (moved, passes, more) = (moved + pass.moved.len(), passes + 1, pass.more);
        }
        assert_eq!(moved, 60, "in {passes} passes");
        bench.assert_conserved(&all.iter().map(String::as_str).collect::<Vec<_>>()).await;
    }

    /// Fenced lanes with a job each.
    async fn dead_lanes(bench: &mut Bench, count: usize) -> Vec<Lane> {
        let mut lanes = Vec::new();
        for number in 0..count {
            let lane = lane_with(bench, 60_000, &[job(&number.to_string())]).await;
            fence(bench, &lane, "deleted").await;
            lanes.push(lane);
        }
        lanes
    }

    #[tokio::test]
    async fn lanes_that_are_empty_already_keep_nobody_from_the_others() {
        let mut bench = Bench::new().await;
        dead_lanes(&mut bench, 20).await;
        // One lane a pass, and none is forgotten while the test runs.
        let settings = Settings {
            pass_budget: Duration::ZERO,
            park_timeout: Duration::from_secs(3600),
            ..reaper_settings(SHORT)
        };
        let mut reaper = Reaper::new(bench.session(), bench.engine.protocol.clone(), settings);
        for pass in 1..=20 {
            let done = reaper.pass().await.unwrap();
            assert_eq!((done.moved.len(), done.more), (1, true), "pass {pass}");
        }
        let done = reaper.pass().await.unwrap();
        assert_eq!((done.moved.len(), done.more), (0, false), "nothing is left: no need to hurry");
        assert_eq!(bench.session().reaping(99).await.unwrap().len(), 20);
    }

    #[tokio::test]
    async fn many_lanes_that_died_together_take_a_few_round_trips_each_and_then_hardly_any() {
        let mut bench = Bench::new().await;
        let lanes = dead_lanes(&mut bench, 160).await;
        let settings = Settings { scan_pages: 0, ..jobqueue::engine::reaper_settings(&config(json!({}))) };
        let mut reaper = Reaper::new(bench.session(), bench.engine.protocol.clone(), settings);
        let (mut session, protocol) = (bench.session(), bench.engine.protocol.clone());
        let (mut moved, mut passes) = (0, 0);
        loop {
            let done = reaper.pass_on(&mut session, &protocol, settings).await.unwrap();
            (moved, passes) = (moved + done.moved.len(), passes + 1);
            if !done.more {
                break;
            }
        }
        assert_eq!(moved, lanes.len(), "in {passes} passes");
        println!("160 dead lanes: {} round trips in {passes} passes", session.round_trips);
        // Reading its list and moving what is in it, for each; and the time, two registries and two pages a pass.
        let most = 2 * lanes.len() + 12 * passes;
        assert!(session.round_trips <= most as u64, "{} > {most}", session.round_trips);
        let before = session.round_trips;
        reaper.pass_on(&mut session, &protocol, settings).await.unwrap();
        assert!(session.round_trips - before <= 12, "all are empty: {}", session.round_trips - before);
        let all: Vec<String> = (0..160).map(|number| number.to_string()).collect();
        bench.assert_conserved(&all.iter().map(String::as_str).collect::<Vec<_>>()).await;
    }

    #[tokio::test]
    async fn lanes_whose_jobs_are_refused_are_not_hurried_for_and_keep_nobody_from_the_others() {
        let mut bench = Bench::new().await;
        // Not jobs: they go to the dead letters, which are none.
        for _ in 0..3 {
            let lane = lane_with(&mut bench, 60_000, &[Bytes::from_static(b"no job")]).await;
            fence(&bench, &lane, "heartbeat").await;
        }
        bench.redis.set::<_, _, ()>(bench.high().dead_letters, "nonsense").await.unwrap();
        let good = lane_with(&mut bench, 60_000, &[job("good")]).await;
        fence(&bench, &good, "evicted").await;
        let settings = Settings { pass_budget: Duration::ZERO, ..reaper_settings(SHORT) };
        let mut reaper = Reaper::new(bench.session(), bench.engine.protocol.clone(), settings);
        // Those of one millisecond are in no order: each has its turn, but not within four passes.
        eventually(SOON, "the turn of the other", async || {
            let done = reaper.pass().await.unwrap();
            assert_eq!(done.more, !done.moved.is_empty(), "what did not help is not tried again at once");
            bench.ids(&bench.high().queue).await == ["good"]
        })
        .await;
        bench.redis.del::<_, ()>(bench.high().dead_letters).await.unwrap();
        eventually(SOON, "the letters", async || {
            reaper.pass().await.unwrap();
            bench.list(&bench.high().dead_letters).await.len() == 3
        })
        .await;
    }

    #[tokio::test]
    async fn a_lane_is_forgotten_once_by_reapers_that_overlap_and_not_while_it_holds_a_job() {
        let mut bench = Bench::new().await;
        let lane = lane_with(&mut bench, 60_000, &[job("a")]).await;
        fence(&bench, &lane, "evicted").await;
        let id = std::slice::from_ref(&lane.handle.id);
        let (mut one, mut two) = (bench.session(), bench.session());
        assert!(matches!(one.forget(id, 0).await.unwrap()[..], [Ok(Rest::Holds(..))]));
        bench.reaper(SHORT).empty(&lane.handle.id, &mut Reaped::default()).await.unwrap();
        assert!(matches!(one.forget(id, 3_600_000).await.unwrap()[..], [Ok(Rest::Empty)]));
        assert!(
            matches!(two.forget(id, 0).await.unwrap()[..], [Ok(Rest::Empty)]),
            "who was first has said when"
        );
        // A job that arrives late, and goes back: the lane has not been empty for long.
        bench.push(&lane.handle.lists[0].parked, &[job("late")]).await;
        assert!(matches!(two.forget(id, 0).await.unwrap()[..], [Ok(Rest::Holds(..))]));
        bench.reaper(SHORT).empty(&lane.handle.id, &mut Reaped::default()).await.unwrap();
        assert!(matches!(one.forget(id, 0).await.unwrap()[..], [Ok(Rest::Forgotten)]));
        // Who still believes that it is there brings nothing of it back.
        for empty_ms in [0, 3_600_000] {
            assert!(matches!(two.forget(id, empty_ms).await.unwrap()[..], [Ok(Rest::Forgotten)]));
            two.put_back(&[&lane.handle.id]).await.unwrap();
        }
        assert_eq!(bench.session().reaping(9).await.unwrap(), [""; 0]);
        assert!(bench.session().lane(&lane.handle.id).await.unwrap().is_none());
        bench.assert_conserved(&["a", "late"]).await;
    }

    #[tokio::test]
    async fn a_record_that_cannot_be_used_protects_no_other_lane() {
        let mut bench = Bench::new().await;
        let broken = lane_with(&mut bench, 1, &[job("a")]).await;
        lane_with(&mut bench, 1, &[job("b")]).await;
        let record = bench.keys.record(&broken.handle.id);
        redis::cmd("DEL").arg(&record).query_async::<()>(&mut bench.redis).await.unwrap();
        bench.redis.set::<_, _, ()>(&record, "none").await.unwrap();
        let done = until_fenced(&mut bench.reaper(SHORT)).await;
        assert_eq!(done.moved.len(), 1, "the other's");
        // Nor one that is among the fenced, of the same page.
        bench.redis.zadd::<_, _, _, ()>(bench.keys.reaping(), &broken.handle.id, 1).await.unwrap();
        let third = lane_with(&mut bench, 60_000, &[job("c")]).await;
        fence(&bench, &third, "evicted").await;
        assert_eq!(bench.reaper(SHORT).pass().await.unwrap().moved.len(), 1);
        // It had taken the suspect, which goes first.
        assert_eq!(bench.ids(&bench.high().queue).await, ["c", "b"]);
    }

    #[tokio::test]
    async fn the_jobs_of_a_removed_queue_go_back_to_their_own_key() {
        let prefix = e2e::engine::fresh_prefix();
        let queues = json!({ "high": format!("{prefix}:h"), "low": format!("{prefix}:l"), "old": format!("{prefix}:o") });
        let before = json!({ "key_prefix": prefix, "worker": { "priorities": ["high", "low", "old"], "queues": queues } });
        let queues = json!({ "high": format!("{prefix}:h"), "low": format!("{prefix}:l") });
        let after =
            json!({ "key_prefix": prefix, "worker": { "priorities": ["high", "low"], "queues": queues } });
        let mut old = Bench::on(shared_server().await, before).await;
        let new = Bench::on(shared_server().await, after).await;
        for (cause, place) in
            [("evicted", format!("{prefix}:o")), ("heartbeat", format!("{prefix}:o:suspects"))]
        {
            old.push(&format!("{prefix}:o"), &[job("a")]).await;
            let mut lane = old.lane().await;
            assert_eq!(ids(&lane.reserve(1).await), ["a"]);
            fence(&old, &lane, cause).await;
            let reaped = new.reaper(SHORT).pass().await.unwrap();
            assert_eq!(reaped.moved[0].0, "old");
            assert_eq!(old.ids(&place).await, ["a"], "{cause}");
            old.redis.del::<_, ()>(&place).await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_pass_ends_with_its_budget_and_the_next_goes_on() {
        let mut bench = Bench::new().await;
        let mut lanes = Vec::new();
        for n in 0..3 {
            let lane = lane_with(&mut bench, 60_000, &[job(&n.to_string())]).await;
            fence(&bench, &lane, "evicted").await;
            lanes.push(lane);
        }
        let settings = Settings { pass_budget: Duration::ZERO, ..reaper_settings(SHORT) };
        let mut reaper = Reaper::new(bench.session(), bench.engine.protocol.clone(), settings);
        assert_eq!(reaper.pass().await.unwrap().moved.len(), 1);
        eventually(SOON, "the others to follow", async || {
            reaper.pass().await.unwrap();
            bench.ids(&bench.high().queue).await.len() == 3
        })
        .await;
    }

    #[tokio::test]
    async fn fencing_ends_with_the_budget_too_and_what_is_fenced_is_emptied_all_the_same() {
        let mut bench = Bench::new().await;
        for n in 0..3 {
            lane_with(&mut bench, 1, &[job(&n.to_string())]).await;
        }
        let settings = Settings { pass_budget: Duration::ZERO, ..reaper_settings(SHORT) };
        let mut reaper = Reaper::new(bench.session(), bench.engine.protocol.clone(), settings);
        for _ in 0..3 {
            let done = until_fenced(&mut reaper).await;
            assert_eq!((done.fenced, done.moved.len() <= 1), (1, true), "{done:?}");
        }
        eventually(SOON, "all of them", async || {
            reaper.pass().await.unwrap();
            bench.ids(&bench.high().suspects).await.len() == 3
        })
        .await;
        bench.assert_conserved(&["0", "1", "2"]).await;
    }
}

mod orphans {
    use super::*;

    #[tokio::test]
    async fn the_lists_of_a_set_whose_prefix_begins_as_ours_do_are_not_taken_for_orphans() {
        let mut ours = Bench::new().await;
        let prefix = ours.keys.lanes().replace(":lanes", ":worker:shop");
        let mut theirs = Bench::on(shared_server().await, json!({ "key_prefix": prefix })).await;
        let mut live = lane_with(&mut theirs, 60_000, &["a", "b"].map(job)).await;
        let glob = ours.keys.processing_glob();
        let held = live.handle.lists[0].held.clone();
        let seen: Vec<String> = redis::cmd("KEYS").arg(&glob).query_async(&mut ours.redis).await.unwrap();
        assert_eq!(seen, std::slice::from_ref(&held), "or this test proves nothing");
        let before = theirs.ids(&held).await;
        let orphan = ours.keys.lists("host-1-1")[0].held.clone();
        ours.push(&orphan, &[job("orphan")]).await;
        let mut reaper = ours.reaper(SHORT);
        // One that is taken shows that the others would have been too.
        eventually(SOON, "the orphan", async || !reaper.pass().await.unwrap().moved.is_empty()).await;
        reaper.pass().await.unwrap();
        assert_eq!(ours.ids(&ours.high().suspects).await, ["orphan"]);
        assert_eq!((before.len(), theirs.ids(&held).await), (2, before));
        let settled = live.settle(0, &job("a"), &Outcome::Done).await;
        assert_eq!(settled.statuses, [jobqueue::store::Status::Settled], "it lives");
    }

    #[tokio::test]
    async fn lists_that_no_record_names_are_rescued_by_what_the_jobs_say() {
        let mut bench = Bench::new().await;
        // As a client of the seeds leaves it: one list a worker id, and no record.
        let seed = bench.keys.lists("host-1-1")[0].held.replace(":high:", ":");
        let low = bench.low().queue;
        let jobs = [
            Bytes::from(json!({ "id": "by origin", "origin_queue": low, "priority": "high" }).to_string()),
            Bytes::from(json!({ "id": "by priority", "priority": "high" }).to_string()),
            job("by nothing"),
            Bytes::from_static(b"no job"),
        ];
        bench.push(&seed, &jobs).await;
        // Ours, whose record was lost.
        let ours = bench.keys.lists("host-2-2")[0].held.clone();
        bench.push(&ours, &[job("of a lane")]).await;
        // One that lives, by the seeds' heartbeat.
        let live = bench.keys.lists("host-3-3")[0].held.replace(":high:", ":");
        bench.push(&live, &[job("of the living")]).await;
        bench.redis.set_ex::<_, _, ()>(bench.keys.heartbeat("host-3-3"), "", 60).await.unwrap();

        let mut reaper = bench.reaper(SHORT);
        let first_look = Instant::now();
        let mut moved = Vec::new();
        eventually(SOON, "the orphans to be moved", async || {
            moved.extend(reaper.pass().await.unwrap().moved);
            if moved.len() == 5 { Ok(()) } else { Err(moved.len()) }
        })
        .await;
        assert!(first_look.elapsed() >= Duration::from_secs(2));
        assert_eq!(bench.ids(&bench.low().suspects).await.len(), 2);
        assert!(bench.ids(&bench.low().suspects).await.contains(&"by origin".to_owned()));
        let mut high = bench.ids(&bench.high().suspects).await;
        high.sort();
        assert_eq!(high, ["by priority", "of a lane"]);
        assert_eq!(bench.ids(&bench.high().dead_letters).await, ["no job"]);
        assert_eq!(bench.ids(&live).await, ["of the living"]);
        bench
            .assert_conserved(&[
                "by origin",
                "by priority",
                "by nothing",
                "no job",
                "of a lane",
                "of the living",
            ])
            .await;
        eventually(SOON, "the made-up records to be forgotten", async || {
            reaper.pass().await.unwrap();
            bench.session().reaping(9).await.unwrap().is_empty()
        })
        .await;
    }
}
