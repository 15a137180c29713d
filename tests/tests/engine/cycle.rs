//! A lane's life on a real Redis: register, cycle, close. One sentence a test.
#![allow(
    clippy::unwrap_used,
    clippy::wildcard_imports,
    reason = "tests: a panic is the report, and modules only group them"
)]

use std::time::Duration;

use bytes::Bytes;
use e2e::engine::{
    Bench, CONSUMING, Lane, enqueue, failure, id_of, ids, job, kill, large_job, registration, shared_server,
};
use jobqueue::outcome::Outcome;
use jobqueue::promoter;
use jobqueue::store::{Cycled, PAGE_BYTES, Parked, Session, Status};
use redis::AsyncCommands as _;
use serde_json::json;

const DONE: Outcome = Outcome::Done;

/// The jobs that a cycle brought, in order.
fn brought(cycled: &Cycled) -> Vec<String> {
    cycled.queues.iter().flat_map(|queue| ids(&queue.jobs)).collect()
}

async fn promote_all(session: &mut Session, bench: &Bench) -> usize {
    let mut moved = 0;
    loop {
        let promoted = promoter::pass(session, &bench.engine.protocol).await.unwrap();
        moved += promoted.moved;
        if !promoted.more {
            return moved;
        }
    }
}

mod registering {
    use super::*;

    const REGISTER: &str = include_str!("../../../queue/src/scripts/register.lua");

    async fn register_by_hand(bench: &mut Bench, lane: &str, token: &str) -> i64 {
        let lists = bench.keys.lists(lane);
        let mut keys = vec![bench.keys.record(lane), bench.keys.heartbeat(lane), bench.keys.lanes()];
        keys.push(bench.keys.tried(lane));
        keys.extend(lists.into_iter().flat_map(|lists| [lists.held, lists.parked, lists.parked_suspects]));
        let mut call = redis::cmd("EVAL");
        call.arg(REGISTER)
            .arg(keys.len())
            .arg(keys)
            .arg(lane)
            .arg(token)
            .arg(60_000)
            .arg(6)
            .arg("process")
            .arg("host-1");
        let reply: Vec<i64> = call.query_async(&mut bench.redis).await.unwrap();
        reply[0]
    }

    #[tokio::test]
    async fn an_id_with_any_trace_is_refused() {
        let mut bench = Bench::new().await;
        let lists = bench.keys.lists("host-1-7");
        let traces = [lists[0].held.clone(), lists[1].parked.clone(), lists[0].parked_suspects.clone()];
        for trace in traces {
            bench.push(&trace, &[job("a")]).await;
            assert_eq!(register_by_hand(&mut bench, "host-1-7", "mine").await, 0, "{trace}");
            bench.redis.del::<_, ()>(&trace).await.unwrap();
        }
        let heartbeat = bench.keys.heartbeat("host-1-7");
        bench.redis.set::<_, _, ()>(&heartbeat, "").await.unwrap();
        assert_eq!(register_by_hand(&mut bench, "host-1-7", "mine").await, 0);
        bench.redis.del::<_, ()>(&heartbeat).await.unwrap();
        let record = bench.keys.record("host-1-7");
        bench.redis.hset::<_, _, _, ()>(&record, "fenced", "heartbeat").await.unwrap();
        assert_eq!(register_by_hand(&mut bench, "host-1-7", "mine").await, 0);
        bench.redis.del::<_, ()>(&record).await.unwrap();
        bench.redis.zadd::<_, _, _, ()>(bench.keys.lanes(), "host-1-7", 1).await.unwrap();
        assert_eq!(register_by_hand(&mut bench, "host-1-7", "mine").await, 0);
        bench.redis.del::<_, ()>(bench.keys.lanes()).await.unwrap();
        assert_eq!(register_by_hand(&mut bench, "host-1-7", "mine").await, 1);
        assert_eq!(register_by_hand(&mut bench, "host-1-7", "other").await, 0, "held by a live lane");
    }

    #[tokio::test]
    async fn the_same_token_registers_again_when_the_reply_was_lost() {
        let mut bench = Bench::new().await;
        assert_eq!(register_by_hand(&mut bench, "host-1-1", "mine").await, 1);
        assert_eq!(register_by_hand(&mut bench, "host-1-1", "mine").await, 1);
        let lanes: Vec<String> = bench.redis.zrange(bench.keys.lanes(), 0, -1).await.unwrap();
        assert_eq!(lanes, ["host-1-1"]);
    }

    #[tokio::test]
    async fn a_number_in_use_is_skipped() {
        let mut bench = Bench::new().await;
        let taken = bench.keys.lists("host-1-1")[0].held.clone();
        bench.push(&taken, &[job("a")]).await;
        let lane = bench.lane().await;
        assert_eq!(lane.handle.id, "host-1-2");
        assert_eq!(bench.ids(&taken).await, ["a"]);
    }

    #[tokio::test]
    async fn a_registered_lane_has_a_heartbeat_before_it_can_fetch() {
        let mut bench = Bench::new().await;
        let lane = bench.lane_with_ttl(60_000).await;
        let left: i64 = bench.redis.pttl(bench.keys.heartbeat(&lane.handle.id)).await.unwrap();
        assert!((1..=60_000).contains(&left), "{left}");
        let expiry: u64 = bench.redis.zscore(bench.keys.lanes(), &lane.handle.id).await.unwrap();
        assert!(expiry > lane.session.now_ms());
        let record = bench.session().lane(&lane.handle.id).await.unwrap().unwrap();
        assert!(record.leased);
        assert_eq!(record.lists.iter().map(|queue| queue.name.as_str()).collect::<Vec<_>>(), ["high", "low"]);
    }
}

mod reserving {
    use super::*;

    #[tokio::test]
    async fn one_call_settles_what_finished_and_reserves_what_fits() {
        let mut bench = Bench::new().await;
        bench.push(&bench.low().queue, &[job("a"), job("b"), job("c"), job("d")]).await;
        let mut lane = bench.lane().await;
        assert_eq!(ids(&lane.reserve(2).await), ["a", "b"], "the oldest first");
        let mut cycle = lane.asking(2);
        cycle.queues[1].done.push(job("a"));
        cycle.settlements.push(lane.settlement(1, &job("b"), &failure()));
        cycle.busy_ms = 7;
        let cycled = lane.cycle(&cycle).await;
        assert_eq!(cycled.statuses, [Status::Settled; 2]);
        assert_eq!(brought(&cycled), ["c", "d"]);
        assert_eq!(bench.ids(&bench.low().completed).await, ["a"]);
        assert_eq!(bench.delayed(&bench.low().delayed).await, ["b"]);
        let snapshot = bench.session().snapshot(CONSUMING).await.unwrap();
        let counted: std::collections::BTreeMap<_, _> = snapshot.counters.into_iter().collect();
        assert_eq!(
            (counted["reserved"], counted["done"], counted["failed"], counted["busy_ms"]),
            (4, 1, 1, 7)
        );
        bench.assert_conserved(&["a", "b", "c", "d"]).await;
    }

    #[tokio::test]
    async fn priority_is_strict_and_suspects_are_served_before_their_queue() {
        let mut bench = Bench::new().await;
        bench.push(&bench.low().queue, &[job("low")]).await;
        bench.push(&bench.low().suspects, &[job("low suspect")]).await;
        bench.push(&bench.high().queue, &[job("high 1"), job("high 2")]).await;
        bench.push(&bench.high().suspects, &[job("high suspect 1"), job("high suspect 2")]).await;
        let mut lane = bench.lane().await;
        let mut cycle = lane.asking(3);
        cycle.queues[0].suspects = 1;
        assert_eq!(brought(&lane.cycle(&cycle).await), ["high suspect 1", "high 1", "high 2"]);
        assert_eq!(ids(&lane.reserve(2).await), ["high suspect 2", "low suspect"]);
        assert_eq!(ids(&lane.reserve(5).await), ["low"]);
    }

    #[tokio::test]
    async fn a_queue_with_limit_0_is_left_alone() {
        let mut bench = Bench::new().await;
        bench.push(&bench.high().queue, &[job("a")]).await;
        bench.push(&bench.high().suspects, &[job("b")]).await;
        bench.push(&bench.low().queue, &[job("c")]).await;
        let mut lane = bench.lane().await;
        let mut cycle = lane.asking(9);
        cycle.queues[0].limit = 0;
        assert_eq!(brought(&lane.cycle(&cycle).await), ["c"]);
    }

    #[tokio::test]
    async fn a_reply_stops_at_about_1_mib_and_the_surplus_stays_in_order() {
        let mut bench = Bench::new().await;
        let names: Vec<String> = (0..20).map(|n| format!("job {n}")).collect();
        let jobs: Vec<Bytes> = names.iter().map(|id| large_job(id, 200_000)).collect();
        bench.push(&bench.high().queue, &[job("small")]).await;
        bench.push(&bench.high().queue, &jobs).await;
        let mut lane = bench.lane().await;
        // The small one makes the script expect small ones: what it took too many goes back.
        let first = ids(&lane.reserve(100).await);
        assert_eq!(first[0], "small");
        assert!((5..=7).contains(&first.len()), "1 MiB and at most one job more, not {}", first.len());
        let mut all = first;
        while all.len() < 21 {
            let next = ids(&lane.reserve(100).await);
            assert!(!next.is_empty());
            all.extend(next);
        }
        assert_eq!(all[1..], names);
    }

    #[tokio::test]
    async fn at_least_one_job_is_reserved_however_large() {
        let mut bench =
            Bench::on(shared_server().await, json!({ "worker": { "max_payload_bytes": 10_000_000 } })).await;
        bench.push(&bench.high().queue, &[large_job("huge", 3 << 20), job("next")]).await;
        let mut lane = bench.lane().await;
        assert_eq!(ids(&lane.reserve(10).await), ["huge"]);
        assert_eq!(ids(&lane.reserve(10).await), ["next"]);
    }

    #[tokio::test]
    async fn a_lane_with_room_for_all_of_100_000_jobs_gets_them_in_bounded_pages() {
        let mut bench = Bench::new().await;
        let total = 100_000;
        let mut fill = redis::cmd("EVAL");
        fill.arg("for i = 1, ARGV[1], 1000 do local page = {} for j = 0, 999 do page[#page + 1] = '{\"id\":\"' .. (i + j) .. '\"}' end redis.call('LPUSH', KEYS[1], unpack(page)) end");
        fill.arg(1).arg(&bench.high().queue).arg(total).query_async::<()>(&mut bench.redis).await.unwrap();
        let mut lane = bench.lane().await;
        let (mut reserved, mut largest) = (0, 0);
        while reserved < total {
            let jobs = lane.reserve(total).await;
            assert!(!jobs.is_empty(), "stopped at {reserved}");
            let bytes = jobs.iter().map(Bytes::len).sum::<usize>();
            assert!(bytes < PAGE_BYTES + jobs[jobs.len() - 1].len(), "{bytes} in one call");
            largest = largest.max(jobs.len());
            assert_eq!(id_of(&jobs[0]), (reserved + 1).to_string());
            reserved += jobs.len();
        }
        println!("{largest} jobs in the largest of the calls that reserved {total}");
        let held: usize = bench.redis.llen(&lane.handle.lists[0].held).await.unwrap();
        assert_eq!(held, total);
        let mut cycle = lane.next();
        cycle.queues[0].done = lane.held[0][..20_000].to_vec();
        // Two of them not in order: each is looked for.
        cycle.queues[0].done.swap(0, 1);
        let cycled = lane.cycle(&cycle).await;
        assert_eq!(cycled.statuses.len(), 20_000);
        assert!(cycled.statuses.iter().all(|status| *status == Status::Settled));
        let kept: usize = bench.redis.llen(&bench.high().completed).await.unwrap();
        assert_eq!(kept, 10_000, "completed_max");
    }

    #[tokio::test]
    async fn paused_and_quiet_stop_reserving_but_not_settling_and_are_reported() {
        let mut bench = Bench::new().await;
        bench.push(&bench.high().queue, &[job("a"), job("b")]).await;
        let mut lane = bench.lane().await;
        lane.reserve(1).await;
        bench.session().set(&bench.keys.paused(), "1").await.unwrap();
        let mut cycle = lane.asking(5);
        cycle.queues[0].done.push(job("a"));
        let cycled = lane.cycle(&cycle).await;
        assert!(cycled.paused);
        assert_eq!((cycled.statuses.as_slice(), brought(&cycled).len()), (&[Status::Settled][..], 0));
        bench.session().unlink(&bench.keys.paused()).await.unwrap();
        bench.session().set(&bench.keys.quiet("host-1"), "G7").await.unwrap();
        let cycle = lane.asking(5);
        let cycled = lane.cycle(&cycle).await;
        assert_eq!((cycled.paused, cycled.quiet.as_str(), brought(&cycled).len()), (false, "G7", 0));
        let mut obeyed = lane.asking(5);
        obeyed.quiet = cycled.quiet;
        lane.cycle(&obeyed).await;
        let record = bench.session().lane(&lane.handle.id).await.unwrap().unwrap();
        assert_eq!((record.quiet.as_str(), record.held), ("G7", 0));
        bench.session().unlink(&bench.keys.quiet("host-1")).await.unwrap();
        assert_eq!(ids(&lane.reserve(5).await), ["b"]);
    }
}

mod repeating {
    use super::*;

    #[tokio::test]
    async fn an_equal_seq_changes_nothing_and_says_the_same_again() {
        let mut bench = Bench::new().await;
        bench.push(&bench.high().queue, &["a", "b", "c", "d"].map(job)).await;
        let mut lane = bench.lane().await;
        lane.reserve(2).await;
        let mut cycle = lane.asking(1);
        cycle.queues[0].done.push(job("b"));
        cycle.settlements.push(lane.settlement(0, &job("a"), &kill()));
        let first = lane.session.cycle(&lane.handle, &cycle, CONSUMING, Some(10)).await.unwrap().unwrap();
        let before = bench.places().await;
        for _ in 0..2 {
            let again = lane.session.cycle(&lane.handle, &cycle, CONSUMING, Some(10)).await.unwrap().unwrap();
            assert!(again.replayed && !first.replayed);
            assert_eq!((&again.statuses, &again.queues), (&first.statuses, &first.queues));
        }
        assert_eq!(bench.places().await, before);
        assert_eq!(brought(&first), ["c"]);
    }

    #[tokio::test]
    async fn a_repeated_answer_of_the_whole_list_still_says_that_it_is_the_whole() {
        let mut bench = Bench::new().await;
        bench.push(&bench.high().queue, &["a", "b"].map(job)).await;
        let mut lane = bench.lane().await;
        lane.reserve(2).await;
        let mut cycle = lane.asking(5);
        cycle.queues[0].expected = 1;
        let first = lane.session.cycle(&lane.handle, &cycle, CONSUMING, Some(10)).await.unwrap().unwrap();
        let again = lane.session.cycle(&lane.handle, &cycle, CONSUMING, Some(10)).await.unwrap().unwrap();
        assert!(again.replayed);
        assert!(first.queues[0].whole);
        assert_eq!(again.queues, first.queues, "or the lane would take what it runs for new jobs");
    }

    #[tokio::test]
    async fn a_smaller_seq_is_refused() {
        let mut bench = Bench::new().await;
        bench.push(&bench.high().queue, &["a", "b"].map(job)).await;
        let mut lane = bench.lane().await;
        let old = lane.asking(1);
        lane.reserve(1).await;
        let empty = lane.next();
        lane.cycle(&empty).await;
        let before = bench.places().await;
        assert_eq!(lane.session.cycle(&lane.handle, &old, CONSUMING, None).await.unwrap(), None);
        assert_eq!(bench.places().await, before);
    }

    #[tokio::test]
    async fn an_unexpected_length_returns_the_whole_list() {
        let mut bench = Bench::new().await;
        bench.push(&bench.high().queue, &["a", "b", "c"].map(job)).await;
        bench.push(&bench.low().queue, &[job("d")]).await;
        let mut lane = bench.lane().await;
        lane.reserve(2).await;
        // As if the reply had been lost for good.
        lane.held[0].clear();
        let cycle = lane.asking(5);
        let cycled = lane.cycle(&cycle).await;
        assert!(cycled.queues[0].whole);
        assert_eq!(ids(&cycled.queues[0].jobs), ["a", "b"], "and nothing new from this queue");
        assert!(!cycled.queues[1].whole);
        assert_eq!(ids(&cycled.queues[1].jobs), ["d"], "the others are served");
        assert_eq!(ids(&lane.reserve(5).await), ["c"]);
    }

    #[tokio::test]
    async fn a_whole_list_comes_in_pages_of_about_1_mib() {
        let mut bench = Bench::new().await;
        let large = |id: &str| Bytes::from(json!({ "id": id, "filling": "x".repeat(1 << 20) }).to_string());
        bench.push(&bench.high().queue, &["a", "b", "c", "d"].map(large)).await;
        let mut lane = bench.lane().await;
        for _ in 0..4 {
            lane.reserve(1).await;
        }
        lane.held[0].clear();
        let (cycle, trips) = (lane.next(), lane.session.round_trips);
        let cycled = lane.cycle(&cycle).await;
        assert!(cycled.queues[0].whole);
        assert_eq!(ids(&cycled.queues[0].jobs), ["a", "b", "c", "d"]);
        assert!(lane.session.round_trips - trips > 4, "a job a page");
    }

    #[tokio::test]
    async fn after_a_fence_everything_is_lost_and_nothing_is_written() {
        let mut bench = Bench::new().await;
        bench.push(&bench.high().queue, &["a", "b"].map(job)).await;
        let mut lane = bench.lane().await;
        lane.reserve(1).await;
        bench.session().fence(&lane.handle.id, true, "restarted").await.unwrap();
        let before = bench.places().await;
        let mut cycle = lane.asking(5);
        cycle.queues[0].done.push(job("a"));
        assert_eq!(lane.say(&cycle).await.unwrap(), None);
        assert_eq!(lane.session.extend(&[(&lane.handle, b"")], 1000, "").await.unwrap(), [false]);
        assert!(!lane.session.close(&lane.handle, false).await.unwrap());
        assert_eq!(bench.places().await, before);
        assert!(!bench.session().heartbeat(&lane.handle.id).await.unwrap());
        let seq: String = bench.redis.hget(bench.keys.record(&lane.handle.id), "seq").await.unwrap();
        assert_eq!(seq, "1");
    }
}

mod parking {
    use super::*;

    async fn park(bench: &Bench, lane: &Lane, queue: usize) -> Option<Bytes> {
        let from = bench.keys.queues[queue].queue.clone();
        let into = lane.handle.lists[queue].parked.clone();
        bench.session().park(&from, &into, CONSUMING, Duration::from_millis(20)).await.unwrap()
    }

    #[tokio::test]
    async fn a_parked_fetch_brings_the_oldest_job_or_nothing_in_time() {
        let mut bench = Bench::new().await;
        let lane = bench.lane().await;
        assert_eq!(park(&bench, &lane, 0).await, None);
        bench.push(&bench.high().queue, &["a", "b"].map(job)).await;
        assert_eq!(park(&bench, &lane, 0).await, Some(job("a")));
        assert_eq!(bench.ids(&lane.handle.lists[0].parked).await, ["a"]);
    }

    #[tokio::test]
    async fn an_unblocked_fetch_answers_at_once_with_nothing() {
        let bench = Bench::new().await;
        let lane = bench.lane().await;
        let mut parked = bench.session().with_reply_timeout(Duration::from_secs(60));
        parked.connect().await.unwrap();
        let client = parked.client_id().unwrap();
        let (from, into) = (bench.high().queue, lane.handle.lists[0].parked.clone());
        let waiting =
            tokio::spawn(async move { parked.park(&from, &into, CONSUMING, Duration::from_secs(50)).await });
        let mut session = bench.session();
        e2e::eventually(Duration::from_secs(20), "the fetch to be unblocked", async || {
            session.unblock(client).await.unwrap();
            waiting.is_finished()
        })
        .await;
        assert_eq!(waiting.await.unwrap().unwrap(), None);
    }

    #[tokio::test]
    async fn what_we_know_of_is_adopted_without_being_told_again() {
        let mut bench = Bench::new().await;
        bench.push(&bench.high().queue, &["a", "b"].map(job)).await;
        let mut lane = bench.lane().await;
        park(&bench, &lane, 0).await;
        lane.held[0].push(job("a"));
        let mut cycle = lane.asking(1);
        cycle.queues[0].parked = Parked::Adopt;
        let cycled = lane.cycle(&cycle).await;
        assert_eq!((cycled.queues[0].whole, brought(&cycled)), (false, vec!["b".to_owned()]));
        assert_eq!(bench.ids(&lane.handle.lists[0].held).await, ["a", "b"]);
        assert_eq!(bench.ids(&lane.handle.lists[0].parked).await, [""; 0]);
        bench.assert_conserved(&["a", "b"]).await;
    }

    #[tokio::test]
    async fn a_second_entry_that_nobody_heard_of_makes_the_whole_list_come_back() {
        let mut bench = Bench::new().await;
        bench.push(&bench.high().queue, &["a", "b"].map(job)).await;
        let mut lane = bench.lane().await;
        park(&bench, &lane, 0).await;
        park(&bench, &lane, 0).await;
        lane.held[0].push(job("a"));
        let mut cycle = lane.asking(5);
        cycle.queues[0].parked = Parked::Adopt;
        let cycled = lane.cycle(&cycle).await;
        assert!(cycled.queues[0].whole);
        assert_eq!(brought(&cycled), ["a", "b"]);
        bench.assert_conserved(&["a", "b"]).await;
    }

    #[tokio::test]
    async fn a_look_adopts_and_tells_what_was_never_heard_of() {
        let mut bench = Bench::new().await;
        bench.push(&bench.high().queue, &["a", "b"].map(job)).await;
        bench.push(&bench.high().suspects, &[job("s")]).await;
        let mut lane = bench.lane().await;
        park(&bench, &lane, 0).await;
        park(&bench, &lane, 0).await;
        let (from, into) = (bench.high().suspects, lane.handle.lists[0].parked_suspects.clone());
        bench.session().park(&from, &into, CONSUMING, Duration::from_millis(20)).await.unwrap();
        let mut cycle = lane.asking(1);
        (cycle.queues[0].parked, cycle.queues[0].parked_suspects) = (Parked::Look, Parked::Look);
        let cycled = lane.cycle(&cycle).await;
        assert!(!cycled.queues[0].whole);
        assert_eq!(brought(&cycled), ["a", "b", "s"]);
        assert_eq!(bench.ids(&lane.handle.lists[0].held).await, ["a", "b", "s"]);
        let again = lane.session.cycle(&lane.handle, &cycle, CONSUMING, None).await.unwrap().unwrap();
        assert_eq!(brought(&again), ["a", "b", "s"], "the reply was lost, the jobs were not");
        bench.assert_conserved(&["a", "b", "s"]).await;
    }

    #[tokio::test]
    async fn a_release_gives_everything_back_to_the_consuming_end_in_order() {
        let mut bench = Bench::new().await;
        bench.push(&bench.high().queue, &["a", "b", "c"].map(job)).await;
        bench.push(&bench.high().suspects, &[job("s"), job("t")]).await;
        let mut lane = bench.lane().await;
        park(&bench, &lane, 0).await;
        park(&bench, &lane, 0).await;
        let (from, into) = (bench.high().suspects, lane.handle.lists[0].parked_suspects.clone());
        bench.session().park(&from, &into, CONSUMING, Duration::from_millis(20)).await.unwrap();
        let mut cycle = lane.next();
        (cycle.queues[0].parked, cycle.queues[0].parked_suspects) = (Parked::Release, Parked::Release);
        lane.cycle(&cycle).await;
        assert_eq!(bench.ids(&bench.high().queue).await, ["c", "b", "a"]);
        assert_eq!(bench.ids(&bench.high().suspects).await, ["t", "s"]);
        bench.assert_conserved(&["a", "b", "c", "s", "t"]).await;
    }
}

mod settling {
    use super::*;

    #[tokio::test]
    async fn large_jobs_are_settled_by_position_several_at_once_beside_small_ones() {
        let mut bench = Bench::new().await;
        // Equal heads and lengths: only the position tells them apart.
        let big = |id: &str| large_job(id, 10_000);
        let jobs = [big("L1"), job("s1"), big("L2"), big("L3"), job("s2"), big("L4"), job("s3")];
        bench.push(&bench.high().queue, &jobs).await;
        let mut lane = bench.lane().await;
        assert_eq!(lane.reserve(7).await.len(), 7);
        let mut cycle = lane.next();
        for (raw, outcome) in [(big("L1"), DONE), (big("L3"), failure()), (big("L4"), kill())] {
            cycle.settlements.push(lane.settlement(0, &raw, &outcome));
        }
        for raw in ["s1", "s3"].map(job) {
            cycle.settlements.push(lane.settlement(0, &raw, &failure()));
        }
        cycle.queues[0].done.push(job("s2"));
        let cycled = lane.cycle(&cycle).await;
        assert_eq!(cycled.statuses, [Status::Settled; 6]);
        assert_eq!(bench.ids(&lane.handle.lists[0].held).await, ["L2"]);
        assert_eq!(bench.ids(&bench.high().completed).await, ["s2", "L1"]);
        assert_eq!(bench.ids(&bench.high().dead_letters).await, ["L4"]);
        let mut delayed = bench.delayed(&bench.high().delayed).await;
        delayed.sort();
        assert_eq!(delayed, ["L3", "s1", "s3"]);
        assert_eq!(lane.held[0], [big("L2")]);
        assert_eq!(lane.settle(0, &big("L2"), &DONE).await.statuses, [Status::Settled]);
        bench.assert_conserved(&["L1", "L2", "L3", "L4", "s1", "s2", "s3"]).await;
    }

    async fn counted(bench: &Bench) -> std::collections::BTreeMap<String, u64> {
        bench.session().snapshot(CONSUMING).await.unwrap().counters.into_iter().collect()
    }

    #[tokio::test]
    async fn a_large_job_counts_as_done_like_any_other() {
        let mut bench = Bench::new().await;
        bench.push(&bench.high().queue, &[large_job("X", 9000), job("y")]).await;
        let mut lane = bench.lane().await;
        for raw in lane.reserve(2).await {
            lane.settle(0, &raw, &Outcome::Done).await;
        }
        assert_eq!(counted(&bench).await["done"], 2);
    }

    #[tokio::test]
    async fn what_is_refused_and_said_again_counts_once() {
        let mut bench = Bench::new().await;
        bench.push(&bench.high().queue, &[job("a"), large_job("B", 9000)]).await;
        let mut lane = bench.lane().await;
        let jobs = lane.reserve(2).await;
        bench.redis.set::<_, _, ()>(&bench.high().dead_letters, "oops").await.unwrap();
        for raw in &jobs {
            for _ in 0..3 {
                assert_eq!(lane.settle(0, raw, &kill()).await.statuses, [Status::Refused]);
            }
        }
        assert_eq!(counted(&bench).await.get("failed"), None);
        bench.redis.del::<_, ()>(&bench.high().dead_letters).await.unwrap();
        for raw in &jobs {
            assert_eq!(lane.settle(0, raw, &kill()).await.statuses, [Status::Settled]);
        }
        assert_eq!(counted(&bench).await["failed"], 2);
    }

    #[tokio::test]
    async fn a_position_that_names_another_job_settles_nothing() {
        let mut bench = Bench::new().await;
        bench.push(&bench.high().queue, &[large_job("one", 5000), large_job("three", 5000)]).await;
        let mut lane = bench.lane().await;
        lane.reserve(2).await;
        let mut cycle = lane.next();
        cycle.settlements.push(lane.settlement(0, &large_job("one", 5000), &DONE));
        cycle.settlements[0].position = Some(1);
        let cycled = lane.session.cycle(&lane.handle, &cycle, CONSUMING, None).await.unwrap().unwrap();
        assert_eq!(cycled.statuses, [Status::NotHeld]);
        bench.assert_conserved(&["one", "three"]).await;
    }

    #[tokio::test]
    async fn a_job_that_is_not_held_is_not_settled() {
        let mut bench = Bench::new().await;
        let mut lane = bench.lane().await;
        lane.held[0].push(job("ghost"));
        let mut cycle = lane.next();
        cycle.queues[0].expected = 0;
        cycle.settlements.push(lane.settlement(0, &job("ghost"), &failure()));
        cycle.queues[0].done.push(job("ghost"));
        let cycled = lane.cycle(&cycle).await;
        assert_eq!(cycled.statuses, [Status::NotHeld; 2]);
        bench.assert_conserved(&[]).await;
    }

    #[tokio::test]
    async fn equal_payloads_are_two_jobs_when_done() {
        let mut bench = Bench::new().await;
        bench.push(&bench.high().queue, &["x", "y", "x", "x"].map(job)).await;
        let mut lane = bench.lane().await;
        lane.reserve(4).await;
        lane.settle(0, &job("x"), &DONE).await;
        bench.assert_conserved(&["x", "x", "x", "y"]).await;
        assert_eq!(bench.ids(&bench.high().completed).await, ["x"]);
        let mut cycle = lane.next();
        // Not the head of the list, so not the fast path.
        cycle.queues[0].done = vec![job("x"), job("x"), job("x")];
        let cycled = lane.cycle(&cycle).await;
        assert_eq!(cycled.statuses, [Status::Settled, Status::Settled, Status::NotHeld]);
        bench.assert_conserved(&["x", "x", "x", "y"]).await;
    }

    #[tokio::test]
    async fn the_head_of_the_held_list_is_settled_by_its_first_and_last() {
        let mut bench = Bench::new().await;
        let jobs = ["a", "b", "c", "d", "e"];
        bench.push(&bench.high().queue, &jobs.map(job)).await;
        let mut lane = bench.lane().await;
        lane.reserve(5).await;
        let mut cycle = lane.next();
        cycle.queues[0].done = ["a", "b", "c"].map(job).to_vec();
        cycle.queues[0].done_at_head = true;
        let cycled = lane.cycle(&cycle).await;
        assert_eq!(cycled.statuses, [Status::Settled; 3]);
        assert!(!cycled.queues[0].whole);
        assert_eq!(bench.ids(&bench.high().completed).await, ["c", "b", "a"]);
        assert_eq!(bench.ids(&lane.handle.lists[0].held).await, ["d", "e"]);
        bench.assert_conserved(&jobs).await;
    }

    #[tokio::test]
    async fn a_head_that_is_not_as_believed_is_not_settled_and_the_whole_list_is_told() {
        let mut bench = Bench::new().await;
        let jobs = ["a", "b", "c", "d"];
        // Another order, the same length; one entry less.
        for others in [&["a", "b", "d", "c"][..], &["b", "a", "c", "d"], &["a", "b", "c"]] {
            bench.push(&bench.high().queue, &jobs.map(job)).await;
            let mut lane = bench.lane().await;
            lane.reserve(4).await;
            let held = lane.handle.lists[0].held.clone();
            let _: () = bench.redis.del(&held).await.unwrap();
            for other in others {
                let _: () = bench.redis.rpush(&held, &job(other)[..]).await.unwrap();
            }
            let mut cycle = lane.next();
            cycle.queues[0].done = ["a", "b", "c"].map(job).to_vec();
            cycle.queues[0].done_at_head = true;
            let cycled = lane.cycle(&cycle).await;
            assert_eq!(cycled.statuses, [Status::Refused; 3], "{others:?}");
            assert!(cycled.queues[0].whole);
            assert_eq!(ids(&cycled.queues[0].jobs), others);
            assert_eq!(bench.ids(&held).await, others);
            let _: () = bench.redis.del(&held).await.unwrap();
        }
        assert!(bench.ids(&bench.high().completed).await.is_empty());
    }

    #[tokio::test]
    async fn two_equal_failing_jobs_are_two_delayed_jobs_and_two_promoted_ones() {
        let mut bench = Bench::on(
            shared_server().await,
            json!({ "worker": { "backoff": { "base": "1ms", "max": "1ms" } } }),
        )
        .await;
        bench.push(&bench.high().queue, &["x", "x"].map(job)).await;
        bench.push(&bench.low().queue, &[large_job("X", 9000), large_job("X", 9000)]).await;
        let mut lane = bench.lane().await;
        assert_eq!(lane.reserve(4).await.len(), 4);
        let mut cycle = lane.next();
        for position in 0..2 {
            let mut settlement = lane.settlement(1, &large_job("X", 9000), &failure());
            settlement.position = Some(position);
            cycle.settlements.push(settlement);
        }
        for _ in 0..2 {
            cycle.settlements.push(lane.settlement(0, &job("x"), &failure()));
        }
        assert_eq!(lane.cycle(&cycle).await.statuses, [Status::Settled; 4]);
        assert_eq!(bench.delayed(&bench.high().delayed).await, ["x", "x"]);
        assert_eq!(bench.delayed(&bench.low().delayed).await, ["X", "X"]);
        let mut session = bench.session();
        let mut moved = 0;
        while moved < 4 {
            moved += promote_all(&mut session, &bench).await;
        }
        assert_eq!(bench.ids(&bench.high().queue).await, ["x", "x"]);
        assert_eq!(bench.ids(&bench.low().queue).await, ["X", "X"]);
        let again = lane.reserve(9).await;
        assert!(
            again.iter().all(|raw| serde_json::from_slice::<serde_json::Value>(raw).unwrap()["retries"] == 1)
        );
    }

    #[tokio::test]
    async fn a_retried_job_goes_to_the_producing_end_and_a_released_one_to_the_consuming_end() {
        let mut bench = Bench::on(
            shared_server().await,
            json!({ "worker": { "backoff": { "base": "1ms", "max": "1ms" } } }),
        )
        .await;
        bench.push(&bench.high().queue, &["a", "b", "c"].map(job)).await;
        let mut lane = bench.lane().await;
        lane.reserve(2).await;
        lane.settle(0, &job("a"), &failure()).await;
        lane.settle(0, &job("b"), &Outcome::Released).await;
        let mut session = bench.session();
        while promote_all(&mut session, &bench).await == 0 {}
        assert_eq!(bench.ids(&bench.high().queue).await, ["a", "c", "b"]);
    }

    #[tokio::test]
    async fn a_discarded_job_is_gone_on_its_own_wish() {
        let mut bench = Bench::new().await;
        bench.push(&bench.high().queue, &["a", "b"].map(job)).await;
        let mut lane = bench.lane().await;
        lane.reserve(2).await;
        lane.settle(0, &job("a"), &Outcome::Discard(None)).await;
        bench.assert_conserved(&["b"]).await;
    }

    #[tokio::test]
    async fn bytes_that_are_not_a_job_go_to_the_dead_letters_raw() {
        let mut bench = Bench::new().await;
        let garbage = Bytes::from_static(b"\xff not a job");
        let mut expected = vec![Bytes::from_static(b""), Bytes::from_static(b"[1,2"), garbage.clone()];
        bench.push(&bench.high().queue, &expected).await;
        let mut lane = bench.lane().await;
        for raw in lane.reserve(9).await {
            assert_eq!(lane.settle(0, &raw, &DONE_UNREAD).await.statuses, [Status::Settled]);
        }
        let letters = bench.list(&bench.high().dead_letters).await;
        assert!(
            letters.iter().all(|letter| String::from_utf8_lossy(letter).contains("\"reason\":\"malformed\""))
        );
        let mut revived: Vec<Bytes> =
            letters.iter().map(|letter| bench.engine.protocol.revive(letter).1).collect();
        revived.sort();
        expected.sort();
        assert_eq!(revived, expected, "byte for byte");
    }

    /// Not `Done`: that would be the fast path, which reads nothing.
    const DONE_UNREAD: Outcome = Outcome::Released;

    #[tokio::test]
    async fn completed_and_dead_letters_keep_as_many_as_configured() {
        for (completed_max, dead_letter_max) in [(0, 0), (1, 1), (2, 2), (-1, -1)] {
            let limits =
                json!({ "worker": { "completed_max": completed_max, "dead_letter_max": dead_letter_max } });
            let mut bench = Bench::on(shared_server().await, limits).await;
            let done = [job("a"), large_job("b", 5000), job("c"), large_job("d", 5000)];
            let dead = ["e", "f", "g"].map(job);
            bench.push(&bench.high().queue, &done).await;
            bench.push(&bench.high().queue, &dead).await;
            let mut lane = bench.lane().await;
            lane.reserve(9).await;
            for raw in &done {
                lane.settle(0, raw, &DONE).await;
            }
            for raw in &dead {
                lane.settle(0, raw, &kill()).await;
            }
            let kept = |max: i64, all: usize| usize::try_from(max).unwrap_or(all).min(all);
            assert_eq!(bench.ids(&bench.high().completed).await.len(), kept(completed_max, 4));
            assert_eq!(bench.ids(&bench.high().dead_letters).await.len(), kept(dead_letter_max, 3));
            let snapshot = bench.session().snapshot(CONSUMING).await.unwrap();
            let trimmed =
                snapshot.counters.iter().find(|(name, _)| name == "trimmed").map_or(0, |(_, count)| *count);
            let dead_trimmed = 3 - kept(dead_letter_max, 3) as u64;
            assert_eq!(trimmed, dead_trimmed, "dead letters count, completed jobs do not");
        }
    }

    #[tokio::test]
    async fn a_payload_of_1_mib_passes_through_every_path() {
        let fast = json!({ "worker": { "backoff": { "base": "1ms", "max": "1ms" }, "max_payload_bytes": 1_100_000 } });
        let mut bench = Bench::on(shared_server().await, fast).await;
        let raw = large_job("big", 1 << 20);
        let mut session = bench.session();
        let jobs = enqueue(&bench.high().queue, std::slice::from_ref(&raw));
        session.enqueue("call", &bench.keys.seen("p"), CONSUMING.opposite(), &jobs).await.unwrap();
        let mut lane = bench.lane().await;
        let got = lane.reserve(1).await;
        lane.settle(0, &got[0], &failure()).await;
        while promote_all(&mut session, &bench).await == 0 {}
        let got = lane.reserve(1).await;
        lane.settle(0, &got[0], &Outcome::Released).await;
        let got = lane.reserve(1).await;
        bench.session().fence(&lane.handle.id, true, "heartbeat").await.unwrap();
        assert_eq!(got.len(), 1);
        bench.reaper(Duration::ZERO).pass().await.unwrap();
        assert_eq!(bench.ids(&bench.high().suspects).await, ["big"]);
        let mut lane = bench.lane().await;
        let got = lane.reserve(1).await;
        lane.settle(0, &got[0], &kill()).await;
        let letters =
            session.page(&bench.high().dead_letters, jobqueue::store::PageKind::Tail, 100).await.unwrap();
        let (origin, revived) = bench.engine.protocol.revive(&letters.entries[0]);
        let turn = jobqueue::store::Turn::push(origin.unwrap(), CONSUMING.opposite(), revived);
        assert_eq!(
            session.turn(&bench.high().dead_letters, &[(letters.entries[0].clone(), turn)]).await.unwrap(),
            1
        );
        let got = lane.reserve(1).await;
        assert!(got[0].len() > 1 << 20);
        let filling =
            |raw: &Bytes| serde_json::from_slice::<serde_json::Value>(raw).unwrap()["filling"].clone();
        assert_eq!(filling(&got[0]), filling(&raw));
        lane.settle(0, &got[0], &DONE).await;
        assert_eq!(bench.ids(&bench.high().completed).await, ["big"]);
        bench.assert_conserved(&["big"]).await;
    }
}

mod ending {
    use super::*;

    #[tokio::test]
    async fn a_drained_lane_closes_without_a_trace() {
        let mut bench = Bench::new().await;
        let mut lane = bench.lane().await;
        assert!(lane.session.close(&lane.handle, false).await.unwrap());
        let left: Vec<String> = bench.redis.keys(format!("{}*", bench.keys.record(""))).await.unwrap();
        assert_eq!(left, [""; 0]);
        let snapshot = bench.session().snapshot(CONSUMING).await.unwrap();
        assert_eq!((snapshot.lanes, snapshot.reaping), (0, 0));
    }

    #[tokio::test]
    async fn a_lane_that_holds_a_job_or_was_cut_off_is_left_to_the_reaper() {
        let mut bench = Bench::new().await;
        bench.push(&bench.high().queue, &[job("a")]).await;
        let mut holding = bench.lane().await;
        holding.reserve(1).await;
        assert!(!holding.session.close(&holding.handle, false).await.unwrap());
        let mut cut_off = bench.lane().await;
        assert!(!cut_off.session.close(&cut_off.handle, true).await.unwrap());
        assert_eq!(bench.session().reaping(9).await.unwrap().len(), 2);
        let mut reaper = bench.reaper(Duration::ZERO);
        reaper.pass().await.unwrap();
        assert_eq!(bench.list(&bench.high().queue).await, [job("a")], "a shutdown is no fault of the job's");
    }

    #[tokio::test]
    async fn an_expired_lane_that_was_not_fenced_renews_and_keeps_its_jobs() {
        let mut bench = Bench::new().await;
        bench.push(&bench.high().queue, &[job("a")]).await;
        let mut lane = bench.lane_with_ttl(1).await;
        lane.reserve(1).await;
        let mut session = bench.session();
        e2e::eventually(Duration::from_secs(9), "the heartbeat to expire", async || {
            !session.heartbeat(&lane.handle.id).await.unwrap()
        })
        .await;
        assert_eq!(session.extend(&[(&lane.handle, &job("a"))], 60_000, "high=open").await.unwrap(), [true]);
        assert_eq!(
            session.fence(&lane.handle.id, false, "heartbeat").await.unwrap(),
            jobqueue::store::Fenced::Alive
        );
        let value: Bytes =
            Bytes::from(bench.redis.get::<_, Vec<u8>>(bench.keys.heartbeat(&lane.handle.id)).await.unwrap());
        assert_eq!(value, job("a"), "the oldest job in flight");
        assert_eq!(session.lane(&lane.handle.id).await.unwrap().unwrap().breakers, "high=open");
        assert_eq!(lane.settle(0, &job("a"), &DONE).await.statuses, [Status::Settled]);
    }

    #[tokio::test]
    async fn a_lane_that_never_was_is_gone() {
        let bench = Bench::new().await;
        let mut session = bench.session();
        assert_eq!(session.fence("nobody-1-1", true, "x").await.unwrap(), jobqueue::store::Fenced::Gone);
        let who = registration(1000);
        let handle = session.register(&who).await.unwrap();
        assert!(session.close(&handle, false).await.unwrap());
        assert_eq!(session.fence(&handle.id, false, "x").await.unwrap(), jobqueue::store::Fenced::Gone);
    }
}
