//! Jobs outside of lanes: enqueue, promote, look, turn the dead letters.
#![allow(
    clippy::unwrap_used,
    clippy::wildcard_imports,
    reason = "tests: a panic is the report, and modules only group them"
)]

use std::time::Duration;

use bytes::Bytes;
use e2e::engine::{Bench, CONSUMING, enqueue, ids, job, large_job, load_script};
use e2e::{Options, RedisServer};
use jobqueue::promoter;
use jobqueue::store::{Enqueue, PAGE_COUNT, PageKind, RecordedLists, Refusal, StoreError, Turn};
use redis::AsyncCommands as _;
use serde_json::json;

mod enqueueing {
    use super::*;

    #[tokio::test]
    async fn a_repeated_call_adds_nothing_and_says_the_same() {
        let mut bench = Bench::new().await;
        let jobs = enqueue(&bench.low().queue, &["a", "a", "b"].map(job));
        let mut session = bench.session();
        for _ in 0..3 {
            let new =
                session.enqueue("call-1", &bench.keys.seen("p"), CONSUMING.opposite(), &jobs).await.unwrap();
            assert_eq!(new, [true; 3]);
        }
        assert_eq!(bench.ids(&bench.low().queue).await, ["b", "a", "a"]);
        let ttl: i64 = bench.redis.pttl(bench.keys.enqueued("call-1")).await.unwrap();
        assert!(ttl > 0, "its mark goes by itself: {ttl}");
        session.enqueue("call-2", &bench.keys.seen("p"), CONSUMING.opposite(), &jobs).await.unwrap();
        assert_eq!(bench.ids(&bench.low().queue).await.len(), 6, "another call is another three jobs");
        let ttl: i64 = bench.redis.pttl(bench.keys.enqueued("call-1")).await.unwrap();
        assert!((1..=60_000).contains(&ttl), "and shows that the first was answered: {ttl}");
    }

    #[tokio::test]
    async fn what_was_seen_in_the_same_state_is_not_enqueued_again() {
        let mut bench = Bench::new().await;
        let (queue, seen) = (bench.low().queue, bench.keys.seen("p"));
        let file = |id: &str, state: &str| Enqueue {
            queue: queue.clone(),
            raw: job(id),
            seen: Some(("/data/f".into(), state.into())),
        };
        let mut session = bench.session();
        let side = CONSUMING.opposite();
        assert_eq!(
            session.enqueue("1", &seen, side, &[file("a", "1:1"), file("b", "1:1")]).await.unwrap(),
            [true, false]
        );
        assert_eq!(session.enqueue("2", &seen, side, &[file("c", "1:1")]).await.unwrap(), [false]);
        assert_eq!(session.enqueue("3", &seen, side, &[file("d", "2:2")]).await.unwrap(), [true]);
        assert_eq!(bench.ids(&queue).await, ["d", "a"]);
        let fields = ["/data/f".to_owned(), "/data/g".to_owned()];
        assert_eq!(session.hash_get(&seen, &fields).await.unwrap(), [Some("2:2".to_owned()), None]);
        assert_eq!(
            session.hash_scan(&seen, "0", 10).await.unwrap(),
            ("0".to_owned(), vec!["/data/f".to_owned()])
        );
        session.hash_remove(&seen, &fields).await.unwrap();
        assert_eq!(session.hash_get(&seen, &fields).await.unwrap(), [None, None]);
    }

    #[tokio::test]
    async fn one_unfit_queue_keeps_the_whole_call_out() {
        let mut bench = Bench::new().await;
        bench.redis.set::<_, _, ()>(&bench.low().queue, "oops").await.unwrap();
        let mut jobs = enqueue(&bench.high().queue, &[job("a")]);
        jobs.extend(enqueue(&bench.low().queue, &[job("b")]));
        let mut session = bench.session();
        let error =
            session.enqueue("1", &bench.keys.seen("p"), CONSUMING.opposite(), &jobs).await.unwrap_err();
        assert!(matches!(&error, StoreError::Unfit { key, .. } if *key == bench.low().queue), "{error}");
        bench.assert_conserved(&[]).await;
        bench.redis.del::<_, ()>(&bench.low().queue).await.unwrap();
        session.enqueue("1", &bench.keys.seen("p"), CONSUMING.opposite(), &jobs).await.unwrap();
        bench.assert_conserved(&["a", "b"]).await;
    }

    #[tokio::test]
    async fn what_was_seen_under_a_key_of_the_wrong_type_is_named_and_nothing_is_enqueued() {
        let mut bench = Bench::new().await;
        let seen = bench.keys.seen("p");
        bench.redis.set::<_, _, ()>(&seen, "oops").await.unwrap();
        let mut jobs = enqueue(&bench.high().queue, &["a", "b"].map(job));
        jobs[1].seen = Some(("/data/f".into(), "1:1".into()));
        let error = bench.session().enqueue("1", &seen, CONSUMING.opposite(), &jobs).await.unwrap_err();
        assert!(matches!(&error, StoreError::Unfit { key, .. } if *key == seen), "{error}");
        bench.assert_conserved(&[]).await;
    }

    #[tokio::test]
    async fn the_rate_limit_is_shared_and_its_window_always_ends() {
        let mut bench = Bench::new().await;
        let key = bench.keys.seen("rate");
        let mut session = bench.session();
        let first = session.limit(&key, 10, 7).await.unwrap();
        assert_eq!(first.granted, 7);
        assert_eq!(bench.session().limit(&key, 10, 7).await.unwrap().granted, 3);
        let empty = session.limit(&key, 10, 7).await.unwrap();
        assert_eq!(empty.granted, 0);
        assert!(empty.resets_in <= Duration::from_secs(1));
        // A counter that a crash left without expiry is repaired.
        bench.redis.persist::<_, ()>(&key).await.unwrap();
        assert_eq!(session.limit(&key, 10, 1).await.unwrap().granted, 0);
        let ttl: i64 = bench.redis.pttl(&key).await.unwrap();
        assert!((0..=1000).contains(&ttl));
    }
}

mod promoting {
    use super::*;

    #[tokio::test]
    async fn only_what_is_due_is_promoted_to_the_producing_end() {
        let mut bench = Bench::new().await;
        let delayed = bench.high().delayed;
        bench.push(&bench.high().queue, &[job("waiting")]).await;
        bench.redis.zadd::<_, _, _, ()>(&delayed, r#"u1|{"id":"due"}"#, 1).await.unwrap();
        bench
            .redis
            .zadd::<_, _, _, ()>(&delayed, r#"u2|{"id":"later"}"#, 9_999_999_999_999_u64)
            .await
            .unwrap();
        let promoted = promoter::pass(&mut bench.session(), &bench.engine.protocol).await.unwrap();
        assert_eq!((promoted.moved, promoted.more), (1, false));
        assert_eq!(bench.ids(&bench.high().queue).await, ["due", "waiting"]);
        assert_eq!(bench.list(&bench.high().queue).await[0], job("due"), "without its mark");
        assert_eq!(bench.delayed(&delayed).await, ["later"]);
    }

    #[tokio::test]
    async fn a_delayed_set_that_cannot_be_read_does_not_keep_the_other_queues_waiting() {
        let mut bench = Bench::new().await;
        bench.redis.set::<_, _, ()>(bench.high().delayed, "nonsense").await.unwrap();
        bench.redis.zadd::<_, _, _, ()>(bench.low().delayed, r#"u1|{"id":"due"}"#, 1).await.unwrap();
        let error = promoter::pass(&mut bench.session(), &bench.engine.protocol).await.unwrap_err();
        assert!(error.to_string().contains(&bench.high().delayed), "{error}");
        assert_eq!(bench.ids(&bench.low().queue).await, ["due"]);
    }

    #[tokio::test]
    async fn of_100_000_due_jobs_two_promoters_at_once_move_each_once_in_bounded_pages() {
        // A server of its own, whose log has every call.
        let server = RedisServer::start(Options::default()).await;
        server.cli(&["CONFIG", "SET", "slowlog-max-len", "1000000"]);
        let mut bench = Bench::on(&server, json!({})).await;
        let total = 100_000;
        let mut fill = redis::cmd("EVAL");
        fill.arg("for i = 1, ARGV[1] do redis.call('ZADD', KEYS[1], i % 1000, 'u' .. i .. '|{\"id\":\"' .. i .. '\"}') end");
        fill.arg(1).arg(bench.low().delayed).arg(total).query_async::<()>(&mut bench.redis).await.unwrap();
        let sha = load_script(&mut bench.redis, "move").await;
        server.cli(&["CONFIG", "SET", "slowlog-log-slower-than", "0"]);
        let promote = async |mut session: jobqueue::store::Session| {
            let mut moved = 0;
            loop {
                let promoted = promoter::pass(&mut session, &bench.engine.protocol).await.unwrap();
                moved += promoted.moved;
                if !promoted.more {
                    return moved;
                }
            }
        };
        let (one, two) = tokio::join!(promote(bench.session()), promote(bench.session()));
        assert_eq!(one + two, total);
        let mut log = redis::cmd("SLOWLOG");
        // Number, time, microseconds, words, client, its name.
        let log: Vec<(u64, u64, u64, Vec<String>, String, String)> =
            log.arg("GET").arg(1_000_000).query_async(&mut bench.redis).await.unwrap();
        let moves = |words: &[String]| words[0] == "EVALSHA" && words[1] == sha;
        let calls: Vec<_> = log.iter().filter(|entry| moves(&entry.3)).collect();
        // EVALSHA, SHA, number of keys, keys, "", number of jobs.
        let jobs = |words: &[String]| words[4 + words[2].parse::<usize>().unwrap()].parse::<usize>().unwrap();
        let largest = calls.iter().map(|entry| jobs(&entry.3)).max().unwrap();
        assert!(largest <= PAGE_COUNT, "{largest} in one call");
        let longest = calls.iter().map(|entry| entry.2).max().unwrap();
        println!("{} calls, {largest} jobs in the largest, {longest} us in the longest", calls.len());
        let waiting: usize = bench.redis.llen(bench.low().queue).await.unwrap();
        assert_eq!(waiting, total);
        let left: usize = bench.redis.zcard(bench.low().delayed).await.unwrap();
        assert_eq!(left, 0);
    }
}

mod looking {
    use super::*;

    #[tokio::test]
    async fn a_page_is_read_from_either_end_without_gap_or_double() {
        for length in [0, 1, 9, 10, 11, 20, 25, 30, 99, 100, 101, 120] {
            let mut bench = Bench::new().await;
            let list = bench.high().dead_letters;
            let names: Vec<String> = (0..length).map(|n| n.to_string()).collect();
            for name in &names {
                bench.redis.rpush::<_, _, ()>(&list, &job(name)[..]).await.unwrap();
            }
            let mut session = bench.session();
            for most in [1, 7, 10, 100] {
                let head = session.page(&list, PageKind::Head, most).await.unwrap();
                assert_eq!(head.length, length as u64);
                assert_eq!(ids(&head.entries), names[..most.min(length)], "head of {length}, {most} at most");
                let tail = session.page(&list, PageKind::Tail, most).await.unwrap();
                let expected: Vec<String> = names.iter().rev().take(most).cloned().collect();
                assert_eq!(ids(&tail.entries), expected, "tail of {length}, {most} at most");
            }
        }
    }

    #[tokio::test]
    async fn a_page_is_bounded_by_bytes_but_never_empty() {
        let mut bench = Bench::new().await;
        let list = bench.high().dead_letters;
        bench.push(&list, &[large_job("a", 600_000), large_job("b", 600_000), large_job("c", 2 << 20)]).await;
        let mut session = bench.session();
        assert_eq!(ids(&session.page(&list, PageKind::Head, 100).await.unwrap().entries), ["c"]);
        assert_eq!(ids(&session.page(&list, PageKind::Tail, 100).await.unwrap().entries), ["a"]);
    }

    #[tokio::test]
    async fn a_page_of_the_wrong_type_names_its_key() {
        let mut bench = Bench::new().await;
        bench.redis.set::<_, _, ()>(bench.high().delayed, "oops").await.unwrap();
        let error = promoter::pass(&mut bench.session(), &bench.engine.protocol).await.unwrap_err();
        assert!(matches!(&error, StoreError::Unfit { key, .. } if *key == bench.high().delayed), "{error}");
        assert!(!error.is_transient());
    }

    #[tokio::test]
    async fn a_snapshot_shows_every_place_and_the_oldest_job() {
        let mut bench = Bench::new().await;
        let mut session = bench.session();
        let high = bench.high();
        let old = large_job("oldest", 90_000);
        bench.push(&high.queue, &[old.clone(), job("b")]).await;
        bench.push(&high.suspects, &[job("c")]).await;
        bench.push(&high.dead_letters, &[job("d")]).await;
        bench.push(&high.completed, &[job("e"), job("f")]).await;
        bench.redis.zadd::<_, _, _, ()>(&high.delayed, "u|{}", 1).await.unwrap();
        bench.redis.zadd::<_, _, _, ()>(&high.delayed, "v|{}", 9_999_999_999_999_u64).await.unwrap();
        bench.redis.set::<_, _, ()>(bench.keys.paused(), "1").await.unwrap();
        let _lane = bench.lane().await;
        let snapshot = session.snapshot(CONSUMING).await.unwrap();
        assert_eq!(
            (snapshot.dead_letters, snapshot.completed, snapshot.lanes, snapshot.paused),
            (1, 2, 1, true)
        );
        let queue = &snapshot.queues[0];
        assert_eq!((queue.waiting, queue.suspects, queue.delayed, queue.due), (2, 1, 2, 1));
        assert_eq!(queue.oldest, old.slice(..65_536));
        assert!(snapshot.now_ms.abs_diff(session.now_ms()) < 5000);
        assert_eq!(snapshot.queues[1], jobqueue::store::QueueSnapshot::default());
        assert_eq!(snapshot.unfit, []);
    }

    #[tokio::test]
    async fn the_age_of_a_job_of_any_size_is_known() {
        let made = "2026-01-01T00:00:00Z";
        let job = |size: usize| {
            let job = json!({ "id": "a", "creation_time": made, "filling": "x".repeat(size) });
            Bytes::from(job.to_string())
        };
        for size in [0, 4096, 65_536, 900_000] {
            let mut bench = Bench::new().await;
            bench.push(&bench.high().queue, &[job(size)]).await;
            let snapshot = bench.session().snapshot(CONSUMING).await.unwrap();
            let now_ms = 1_767_225_660_000; // a minute later
            assert_eq!(snapshot.queues[0].oldest_age(now_ms), Some(Duration::from_secs(60)), "{size}");
            assert_eq!(snapshot.queues[1].oldest_age(now_ms), None);
        }
    }

    #[tokio::test]
    async fn what_lanes_hold_is_in_flight_wherever_it_stands() {
        let mut bench = Bench::new().await;
        bench.push(&bench.high().queue, &["a", "b", "c", "d", "e"].map(job)).await;
        bench.push(&bench.low().queue, &["f", "g"].map(job)).await;
        let in_flight = async |bench: &Bench| {
            let snapshot = bench.session().snapshot(CONSUMING).await.unwrap();
            (snapshot.in_flight, snapshot.queues.iter().map(|queue| queue.waiting).sum::<u64>())
        };
        let (mut one, two) = (bench.lane().await, bench.lane().await);
        assert_eq!(in_flight(&bench).await, (0, 7));
        one.reserve(3).await;
        let parked = &two.handle.lists[1].parked;
        let park = bench.session().park(&bench.low().queue, parked, CONSUMING, Duration::from_secs(5)).await;
        assert!(park.unwrap().is_some());
        assert_eq!(in_flight(&bench).await, (4, 3), "three held by one lane, one parked by the other");
        bench.session().fence(&one.handle.id, true, "evicted").await.unwrap();
        assert_eq!(in_flight(&bench).await, (4, 3), "on their way back");
        // A list that no record names, once somebody has taken charge of it.
        let orphan = bench.keys.lists("host-9-9")[0].held.clone();
        bench.push(&orphan, &[job("h")]).await;
        let named = RecordedLists { name: "high".into(), queue: String::new(), lists: vec![orphan] };
        assert!(bench.session().orphan("host-9-9", &[named]).await.unwrap());
        assert_eq!(in_flight(&bench).await, (5, 3));
        bench.reaper(Duration::ZERO).pass().await.unwrap();
        assert_eq!(in_flight(&bench).await.0, 1, "the parked one");
    }

    #[tokio::test]
    async fn a_key_that_cannot_be_read_is_named_and_hides_no_other_figure() {
        let mut bench = Bench::new().await;
        let (high, low) = (bench.high(), bench.low());
        bench.push(&low.queue, &["a", "b"].map(job)).await;
        let mut lane = bench.lane().await;
        lane.reserve(1).await;
        let mut broken = vec![high.queue.clone(), high.suspects.clone(), high.delayed.clone()];
        let shared = [bench.keys.dead_letters(), bench.keys.completed(), bench.keys.counters()];
        broken.extend(shared.clone());
        for key in &broken {
            bench.redis.del::<_, ()>(key).await.unwrap();
            bench.redis.set::<_, _, ()>(key, "oops").await.unwrap();
        }
        let snapshot = bench.session().snapshot(CONSUMING).await.unwrap();
        let named = |unfit: &[Refusal]| unfit.iter().map(|unfit| unfit.key.clone()).collect::<Vec<_>>();
        assert_eq!(named(&snapshot.queues[0].unfit), broken[..3]);
        assert_eq!(
            snapshot.queues[0].unfit[2].reason, "WRONGTYPE holds a string, must be a zset",
            "and says what to repair"
        );
        let mut rest = named(&snapshot.unfit);
        rest.sort();
        let mut expected = shared.to_vec();
        expected.sort();
        assert_eq!(rest, expected);
        let low = &snapshot.queues[1];
        assert_eq!((low.waiting, snapshot.in_flight, snapshot.lanes), (1, 1, 1));
        assert_eq!(low.unfit, []);
    }
}

mod turning {
    use super::*;

    async fn letters(bench: &mut Bench, names: &[&str]) -> Vec<Bytes> {
        let list = bench.high().dead_letters;
        for name in names {
            bench.push(&list, &[job(name)]).await;
        }
        bench.session().page(&list, PageKind::Tail, 100).await.unwrap().entries
    }

    #[tokio::test]
    async fn each_letter_goes_where_it_was_decided_and_the_rest_keeps_its_order() {
        let mut bench = Bench::new().await;
        let page = letters(&mut bench, &["a", "b", "c", "d"]).await;
        assert_eq!(ids(&page), ["a", "b", "c", "d"], "the oldest first");
        let to = bench.low().queue;
        let push = |raw: &Bytes| Turn::push(to.clone(), CONSUMING.opposite(), raw.clone());
        let turns = [Turn::Keep, push(&page[1]), Turn::Drop, Turn::Keep];
        let entries: Vec<_> = page.iter().cloned().zip(turns).collect();
        assert_eq!(bench.session().turn(&bench.high().dead_letters, &entries).await.unwrap(), 4);
        assert_eq!(bench.ids(&bench.high().dead_letters).await, ["d", "a"], "turned once, as it was");
        assert_eq!(bench.ids(&to).await, ["b"]);
    }

    #[tokio::test]
    async fn a_page_that_somebody_else_turned_is_left_alone() {
        let mut bench = Bench::new().await;
        let page = letters(&mut bench, &["a", "b"]).await;
        let entries: Vec<_> = page.iter().map(|raw| (raw.clone(), Turn::Drop)).collect();
        bench.session().turn(&bench.high().dead_letters, &entries[..1]).await.unwrap();
        assert_eq!(bench.session().turn(&bench.high().dead_letters, &entries).await.unwrap(), 0);
        bench.assert_conserved(&["b"]).await;
    }

    #[tokio::test]
    async fn an_unfit_destination_is_named_and_the_letter_stays() {
        let mut bench = Bench::new().await;
        let page = letters(&mut bench, &["a"]).await;
        let key = bench.low().queue;
        bench.redis.set::<_, _, ()>(&key, "oops").await.unwrap();
        let turn = Turn::push(key.clone(), CONSUMING.opposite(), page[0].clone());
        let error =
            bench.session().turn(&bench.high().dead_letters, &[(page[0].clone(), turn)]).await.unwrap_err();
        assert!(matches!(&error, StoreError::Unfit { key: named, .. } if *named == key), "{error}");
        bench.assert_conserved(&["a"]).await;
    }

    #[tokio::test]
    async fn counters_of_the_wrong_type_stop_neither_promotion_nor_requeueing() {
        let mut bench = Bench::new().await;
        let page = letters(&mut bench, &["a"]).await;
        bench.redis.set::<_, _, ()>(bench.keys.counters(), "oops").await.unwrap();
        bench.redis.zadd::<_, _, _, ()>(bench.high().delayed, r#"u|{"id":"b"}"#, 1).await.unwrap();
        bench.push(&bench.high().queue, &[job("c")]).await;
        let turn = Turn::push(bench.high().queue, CONSUMING.opposite(), page[0].clone());
        assert_eq!(
            bench.session().turn(&bench.high().dead_letters, &[(page[0].clone(), turn)]).await.unwrap(),
            1
        );
        assert_eq!(promoter::pass(&mut bench.session(), &bench.engine.protocol).await.unwrap().moved, 1);
        let mut lane = bench.lane().await;
        assert_eq!(ids(&lane.reserve(9).await), ["c", "a", "b"]);
    }
}
