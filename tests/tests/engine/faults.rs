//! What can go wrong in and around Redis: no fault loses a job, doubles one or leaves one stuck, and each is named.
#![allow(
    clippy::unwrap_used,
    clippy::wildcard_imports,
    reason = "tests: a panic is the report, and modules only group them"
)]

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use e2e::engine::{
    Bench, CONSUMING, Lane, SCRIPTS, enqueue, failure, ids, job, kill, load_script, reaper_settings,
    registration, shared_server,
};
use e2e::proxy::Rule;
use e2e::{Fault, Options, Proxy, RedisServer, eventually};
use jobqueue::effects::{Effect, Side, Verdict};
use jobqueue::outcome::Outcome;
use jobqueue::promoter;
use jobqueue::protocol::async_jobs::Status as JobStatus;
use jobqueue::protocol::sidekiq::names::Names;
use jobqueue::reaper::{Reaped, Reaper};
use jobqueue::store::{
    Cycled, Fenced, PageKind, Parked, Registration, Session, Settlement, Span, Status, StoreError, Turn,
};
use redis::AsyncCommands as _;
use serde_json::json;

const SOON: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(50);

fn refused_keys(cycled: &Cycled) -> Vec<&str> {
    cycled.refusals.iter().map(|refusal| refusal.key.as_str()).collect()
}

mod wrong_types {
    use super::*;

    /// A lane that holds `a` and `b` of the high queue and `c` of the low one.
    async fn holding(bench: &mut Bench) -> Lane {
        bench.push(&bench.high().queue, &["a", "b"].map(job)).await;
        bench.push(&bench.low().queue, &[job("c")]).await;
        let mut lane = bench.lane().await;
        assert_eq!(lane.reserve(3).await.len(), 3);
        lane
    }

    #[tokio::test]
    async fn a_destination_that_cannot_take_the_job_is_named_and_everything_else_is_settled() {
        type Key = fn(&Bench) -> String;
        let destinations: [(&str, Key, Outcome); 4] = [
            ("dead letters", |bench| bench.high().dead_letters, kill()),
            ("delayed", |bench| bench.high().delayed, failure()),
            ("queue", |bench| bench.high().queue, Outcome::Released),
            ("suspects", |bench| bench.high().suspects, Outcome::HandlerDied("gone".into())),
        ];
        for (what, key, outcome) in destinations {
            let mut bench = Bench::new().await;
            let mut lane = holding(&mut bench).await;
            let key = key(&bench);
            bench.redis.set::<_, _, ()>(&key, "oops").await.unwrap();
            let mut cycle = lane.next();
            cycle.settlements.push(lane.settlement(0, &job("a"), &outcome));
            let fine = if outcome == failure() { kill() } else { failure() };
            cycle.settlements.push(lane.settlement(0, &job("b"), &fine));
            cycle.queues[1].done.push(job("c"));
            let cycled = lane.cycle(&cycle).await;
            assert_eq!(cycled.statuses, [Status::Refused, Status::Settled, Status::Settled], "{what}");
            assert_eq!(refused_keys(&cycled), [&key], "{what}");
            assert!(
                cycled.refusals[0].reason.starts_with("WRONGTYPE"),
                "{what}: {}",
                cycled.refusals[0].reason
            );
            bench.assert_conserved(&["a", "b", "c"]).await;
            assert_eq!(lane.held[0], [job("a")], "{what}: still held");
            bench.redis.del::<_, ()>(&key).await.unwrap();
            assert_eq!(lane.settle(0, &job("a"), &outcome).await.statuses, [Status::Settled], "{what}");
            bench.assert_conserved(&["a", "b", "c"]).await;
        }
    }

    #[tokio::test]
    async fn a_completed_list_that_is_none_keeps_the_done_jobs_held() {
        let mut bench = Bench::new().await;
        let mut lane = holding(&mut bench).await;
        bench.redis.set::<_, _, ()>(bench.high().completed, "oops").await.unwrap();
        let mut cycle = lane.next();
        cycle.queues[0].done = vec![job("a"), job("b")];
        cycle.settlements.push(lane.settlement(1, &job("c"), &kill()));
        let cycled = lane.cycle(&cycle).await;
        assert_eq!(cycled.statuses, [Status::Settled, Status::Refused, Status::Refused]);
        assert_eq!(refused_keys(&cycled), [&bench.high().completed]);
        bench.assert_conserved(&["a", "b", "c"]).await;
    }

    #[tokio::test]
    async fn a_queue_that_is_no_list_is_named_and_the_others_are_served() {
        let mut bench = Bench::new().await;
        bench.push(&bench.low().queue, &[job("a")]).await;
        for key in [bench.high().queue, bench.high().suspects] {
            bench.redis.set::<_, _, ()>(&key, "oops").await.unwrap();
        }
        let mut lane = bench.lane().await;
        let cycle = lane.asking(5);
        let cycled = lane.cycle(&cycle).await;
        assert_eq!(refused_keys(&cycled), [&bench.high().suspects, &bench.high().queue]);
        assert_eq!(ids(&cycled.queues[1].jobs), ["a"]);
    }

    #[tokio::test]
    async fn a_held_list_that_is_none_is_named_and_the_other_queue_is_settled_and_served() {
        let mut bench = Bench::new().await;
        let mut lane = holding(&mut bench).await;
        bench.push(&bench.high().queue, &[job("d")]).await;
        bench.push(&bench.low().queue, &[job("e")]).await;
        let held = lane.handle.lists[0].held.clone();
        bench.redis.rename::<_, _, ()>(&held, bench.keys.seen("aside")).await.unwrap();
        bench.redis.set::<_, _, ()>(&held, "oops").await.unwrap();
        let mut cycle = lane.asking(5);
        cycle.queues[0].done.push(job("a"));
        cycle.queues[0].parked = Parked::Look;
        cycle.settlements.push(lane.settlement(0, &job("b"), &kill()));
        cycle.queues[1].done.push(job("c"));
        let cycled = lane.cycle(&cycle).await;
        assert_eq!(cycled.statuses, [Status::Refused, Status::Refused, Status::Settled]);
        assert_eq!(refused_keys(&cycled), [&held]);
        assert_eq!(ids(&cycled.queues[1].jobs), ["e"]);
        let again = lane.session.cycle(&lane.handle, &cycle, CONSUMING, None).await.unwrap().unwrap();
        assert_eq!((again.statuses, again.queues), (cycled.statuses, cycled.queues));
        bench.assert_conserved(&["a", "b", "c", "d", "e"]).await;
        bench.redis.del::<_, ()>(&held).await.unwrap();
        bench.redis.rename::<_, _, ()>(bench.keys.seen("aside"), &held).await.unwrap();
        for raw in ["a", "b"].map(job) {
            assert_eq!(lane.settle(0, &raw, &Outcome::Done).await.statuses, [Status::Settled]);
        }
        assert_eq!(ids(&lane.reserve(1).await), ["d"]);
    }

    #[tokio::test]
    async fn a_parked_list_that_is_none_is_named_and_everything_else_takes_place() {
        for word in [Parked::Adopt, Parked::Look, Parked::Release] {
            let mut bench = Bench::new().await;
            let mut lane = holding(&mut bench).await;
            bench.push(&bench.high().queue, &[job("d")]).await;
            let parked = lane.handle.lists[0].parked.clone();
            bench.redis.set::<_, _, ()>(&parked, "oops").await.unwrap();
            let mut cycle = lane.asking(5);
            cycle.queues[0].parked = word;
            cycle.queues[0].done.push(job("a"));
            cycle.queues[1].done.push(job("c"));
            let cycled = lane.cycle(&cycle).await;
            assert_eq!(cycled.statuses, [Status::Settled; 2], "{word:?}");
            assert_eq!(refused_keys(&cycled), [&parked], "{word:?}");
            assert_eq!(ids(&cycled.queues[0].jobs), ["d"], "{word:?}");
            bench.assert_conserved(&["a", "b", "c", "d"]).await;
        }
    }

    #[tokio::test]
    async fn a_release_into_a_queue_that_is_none_leaves_the_job_parked() {
        let mut bench = Bench::new().await;
        bench.push(&bench.high().queue, &[job("a")]).await;
        let mut lane = bench.lane().await;
        let (from, into) = (bench.high().queue, lane.handle.lists[0].parked.clone());
        bench.session().park(&from, &into, CONSUMING, SHORT).await.unwrap();
        bench.redis.set::<_, _, ()>(&from, "oops").await.unwrap();
        let mut cycle = lane.next();
        cycle.queues[0].parked = Parked::Release;
        assert_eq!(refused_keys(&lane.cycle(&cycle).await), [&from]);
        bench.assert_conserved(&["a"]).await;
    }

    #[tokio::test]
    async fn promotion_and_rescue_leave_what_has_no_place_to_go() {
        let mut bench = Bench::new().await;
        let lane = holding(&mut bench).await;
        bench.redis.zadd::<_, _, _, ()>(bench.high().delayed, r#"u|{"id":"d"}"#, 1).await.unwrap();
        bench.redis.zadd::<_, _, _, ()>(bench.low().delayed, r#"u|{"id":"e"}"#, 1).await.unwrap();
        bench.redis.set::<_, _, ()>(bench.high().queue, "oops").await.unwrap();
        bench.redis.set::<_, _, ()>(bench.high().suspects, "oops").await.unwrap();
        let promoted = promoter::pass(&mut bench.session(), &bench.engine.protocol).await.unwrap();
        assert_eq!(promoted.moved, 1, "the low one");
        bench.session().fence(&lane.handle.id, true, "heartbeat").await.unwrap();
        let mut reaper = bench.reaper(SHORT);
        for _ in 0..2 {
            reaper.pass().await.unwrap();
            bench.assert_conserved(&["a", "b", "c", "d", "e"]).await;
        }
        assert_eq!(bench.ids(&bench.low().suspects).await, ["c"]);
        for key in [bench.high().queue, bench.high().suspects] {
            bench.redis.del::<_, ()>(&key).await.unwrap();
        }
        promoter::pass(&mut bench.session(), &bench.engine.protocol).await.unwrap();
        reaper.pass().await.unwrap();
        assert_eq!(bench.ids(&bench.high().queue).await, ["d"]);
        assert_eq!(bench.ids(&bench.high().suspects).await, ["b", "a"]);
        bench.assert_conserved(&["a", "b", "c", "d", "e"]).await;
    }

    #[tokio::test]
    async fn of_several_placements_none_happens_when_one_cannot() {
        let mut bench = Bench::new().await;
        let mut lane = holding(&mut bench).await;
        let (fit, unfit) = (bench.keys.seen("fit"), bench.keys.seen("unfit"));
        bench.redis.set::<_, _, ()>(&unfit, "oops").await.unwrap();
        let effects = vec![
            Effect::Set { key: fit.clone(), bytes: Bytes::from_static(b"result"), ttl_ms: Some(60_000) },
            Effect::Push { key: unfit.clone(), side: Side::Left, bytes: job("a") },
        ];
        let mut cycle = lane.next();
        let verdict = Verdict::Done;
        cycle.settlements.push(Settlement { queue: 0, raw: job("a"), position: None, verdict, effects });
        let cycled = lane.cycle(&cycle).await;
        assert_eq!(
            (cycled.statuses.as_slice(), refused_keys(&cycled)),
            (&[Status::Refused][..], vec![unfit.as_str()])
        );
        assert!(!bench.session().exists(&fit).await.unwrap());
        bench.redis.del::<_, ()>(&unfit).await.unwrap();
        cycle.seq += 1;
        assert_eq!(lane.cycle(&cycle).await.statuses, [Status::Settled]);
        let (value, ttl): (String, i64) =
            (bench.redis.get(&fit).await.unwrap(), bench.redis.pttl(&fit).await.unwrap());
        assert_eq!(value, "result");
        assert!((1..=60_000).contains(&ttl));
    }
}

mod denied {
    use super::*;

    /// A session as a user with these ACL rules.
    async fn session_as(bench: &mut Bench, prefix: &str, rules: &[&str]) -> Session {
        let mut user = redis::cmd("ACL");
        user.arg("SETUSER").arg(format!("user-{prefix}")).arg("on").arg(">pw").arg(rules);
        user.query_async::<()>(&mut bench.redis).await.unwrap();
        let redis = json!({ "username": format!("user-{prefix}"), "password": "pw" });
        let config = json!({ "key_prefix": prefix, "redis": redis });
        Bench::on(shared_server().await, config).await.session()
    }

    /// Where jobs go.
    fn destinations(bench: &Bench) -> [String; 6] {
        let high = bench.high();
        [high.queue, high.suspects, high.delayed, high.completed, high.dead_letters, high.counters]
    }

    /// A session as a user that may do everything, but for one destination.
    async fn session_without(bench: &mut Bench, prefix: &str, denied: &str) -> Session {
        let own = destinations(bench).into_iter().filter(|key| key != denied);
        let low = bench.low();
        let others = [low.queue, low.suspects, low.delayed].into_iter();
        let families = [
            "lane*",
            "worker:*",
            "processing:*",
            "tried:*",
            "quiet:*",
            "paused",
            "reaping",
            "data:*",
            "index:*",
            "idem:*",
        ];
        let families = families.into_iter().map(|family| format!("{prefix}:{family}"));
        let mut rules = vec!["+@all".to_owned(), "&*".to_owned()];
        rules.extend(own.chain(others).chain(families).map(|key| format!("~{key}")));
        let rules: Vec<&str> = rules.iter().map(String::as_str).collect();
        session_as(bench, prefix, &rules).await
    }

    async fn holding(bench: &mut Bench) -> Lane {
        bench.push(&bench.high().queue, &["a", "b", "c"].map(job)).await;
        let mut lane = bench.lane().await;
        lane.reserve(2).await;
        lane
    }

    #[tokio::test]
    async fn a_key_outside_the_users_pattern_is_named_and_no_job_is_gone() {
        let prefix = e2e::engine::fresh_prefix();
        let mut bench = Bench::on(shared_server().await, json!({ "key_prefix": prefix })).await;
        let mut lane = holding(&mut bench).await;
        // Everything but what begins with d, and of that the delayed sets.
        let patterns = [format!("~{prefix}:[a-ce-z]*"), format!("~{prefix}:delayed:*")];
        lane.session = session_as(&mut bench, &prefix, &["+@all", &patterns[0], &patterns[1]]).await;
        let mut cycle = lane.next();
        cycle.settlements.push(lane.settlement(0, &job("a"), &kill()));
        let error = lane.say(&cycle).await.unwrap_err();
        assert!(
            matches!(&error, StoreError::Denied { what } if *what == format!("key {}", bench.high().dead_letters))
        );
        assert!(!error.is_transient());
        assert!(error.to_string().contains("give the ACL user this key"), "{error}");
        bench.assert_conserved(&["a", "b", "c"]).await;
        let mut cycle = lane.asking(1);
        cycle.settlements.push(lane.settlement(0, &job("a"), &failure()));
        cycle.queues[0].done.push(job("b"));
        let cycled = lane.cycle(&cycle).await;
        assert_eq!(
            (cycled.statuses.as_slice(), ids(&cycled.queues[0].jobs)),
            (&[Status::Settled; 2][..], vec!["c".into()])
        );
        bench.assert_conserved(&["a", "b", "c"]).await;
    }

    #[tokio::test]
    async fn a_command_the_user_may_not_is_named_and_no_job_is_gone() {
        let prefix = e2e::engine::fresh_prefix();
        let mut bench = Bench::on(shared_server().await, json!({ "key_prefix": prefix })).await;
        let mut lane = holding(&mut bench).await;
        lane.session = session_as(&mut bench, &prefix, &["~*", "+@all", "-zadd"]).await;
        let mut cycle = lane.asking(1);
        cycle.settlements.push(lane.settlement(0, &job("a"), &failure()));
        cycle.settlements.push(lane.settlement(0, &job("b"), &kill()));
        let cycled = lane.cycle(&cycle).await;
        assert_eq!(cycled.statuses, [Status::Refused, Status::Settled]);
        assert_eq!(refused_keys(&cycled), [&bench.high().delayed]);
        let reason = cycled.refusals[0].reason.to_lowercase();
        assert!(reason.contains("can't run this command") || reason.contains("noperm"), "{reason}");
        assert_eq!(ids(&cycled.queues[0].jobs), ["c"]);
        bench.assert_conserved(&["a", "b", "c"]).await;
    }

    #[tokio::test]
    async fn a_user_that_lacks_any_command_of_the_scripts_opens_no_lane_and_so_takes_no_job() {
        let prefix = e2e::engine::fresh_prefix();
        let mut bench = Bench::on(shared_server().await, json!({ "key_prefix": prefix })).await;
        bench.push(&bench.high().queue, &["a"].map(job)).await;
        let tried = "rpush lrange lrem lset ltrim rpop lpop unlink zadd zcard hincrby hmget set pttl";
        for command in tried.split(' ') {
            let mut session = session_as(&mut bench, &prefix, &["~*", "+@all", &format!("-{command}")]).await;
            let error = session.register(&registration(60_000)).await.unwrap_err();
            let denied = format!("command {}", command.to_uppercase());
            assert!(matches!(&error, StoreError::Denied { what } if *what == denied), "{command}: {error}");
            session_as(&mut bench, &prefix, &["reset"]).await;
        }
        bench.assert_conserved(&["a"]).await;
    }

    #[tokio::test]
    async fn a_user_that_may_not_park_a_fetch_or_unblock_it_opens_no_lane() {
        let prefix = e2e::engine::fresh_prefix();
        let mut bench = Bench::on(shared_server().await, json!({ "key_prefix": prefix })).await;
        for command in ["client|unblock", "blmove"] {
            let mut session = session_as(&mut bench, &prefix, &["~*", "+@all", &format!("-{command}")]).await;
            let error = session.register(&registration(60_000)).await.unwrap_err();
            assert!(matches!(&error, StoreError::Denied { what } if what.contains(command)), "{error}");
            session_as(&mut bench, &prefix, &["reset"]).await;
        }
    }

    #[tokio::test]
    async fn a_user_that_may_not_touch_one_of_the_destinations_opens_no_lane() {
        let prefix = e2e::engine::fresh_prefix();
        let mut bench = Bench::on(shared_server().await, json!({ "key_prefix": prefix })).await;
        for denied in destinations(&bench) {
            let mut session = session_without(&mut bench, &prefix, &denied).await;
            let error = session.register(&registration(60_000)).await.unwrap_err();
            let what = format!("key {denied}");
            assert!(matches!(&error, StoreError::Denied { what: said } if *said == what), "{what}: {error}");
            assert!(error.to_string().contains("give the ACL user this key"), "{error}");
            session_as(&mut bench, &prefix, &["reset"]).await;
        }
    }

    #[tokio::test]
    async fn each_destination_that_is_denied_is_named_and_no_job_is_gone() {
        let prefix = e2e::engine::fresh_prefix();
        let mut bench = Bench::on(shared_server().await, json!({ "key_prefix": prefix })).await;
        let mut lane = holding(&mut bench).await;
        let high = bench.high();
        for (outcome, denied) in
            [(Outcome::Done, &high.completed), (failure(), &high.delayed), (kill(), &high.dead_letters)]
        {
            let allowed =
                std::mem::replace(&mut lane.session, session_without(&mut bench, &prefix, denied).await);
            let mut cycle = lane.next();
            if outcome == Outcome::Done {
                cycle.queues[0].done.push(job("a"));
            } else {
                cycle.settlements.push(lane.settlement(0, &job("a"), &outcome));
            }
            let error = lane.say(&cycle).await.unwrap_err();
            let what = format!("key {denied}");
            assert!(matches!(&error, StoreError::Denied { what: said } if *said == what), "{what}: {error}");
            bench.assert_conserved(&["a", "b", "c"]).await;
            session_as(&mut bench, &prefix, &["reset"]).await;
            lane.session = allowed;
        }
        // What a reaper gives back has two destinations more.
        let id = lane.handle.id.clone();
        for (cause, denied) in [("heartbeat", &high.suspects), ("evicted", &high.queue)] {
            bench.session().fence(&id, true, cause).await.unwrap();
            let session = session_without(&mut bench, &prefix, denied).await;
            let mut reaper = Reaper::new(session, bench.engine.protocol.clone(), reaper_settings(SHORT));
            let error = reaper.empty(&id, &mut Reaped::default()).await.unwrap_err();
            assert!(error.to_string().contains(denied.as_str()), "{error}");
            bench.assert_conserved(&["a", "b", "c"]).await;
            session_as(&mut bench, &prefix, &["reset"]).await;
        }
    }

    #[tokio::test]
    async fn a_producer_that_lacks_a_command_pushes_nothing_however_often_it_tries() {
        let prefix = e2e::engine::fresh_prefix();
        let mut bench = Bench::on(shared_server().await, json!({ "key_prefix": prefix })).await;
        let (queue, seen) = (bench.high().queue, bench.session().keys.seen("p"));
        let mut jobs = enqueue(&queue, &["a"].map(job));
        jobs[0].seen = Some(("/data/a".into(), "1:1".into()));
        for command in ["set", "hset", "lpush"] {
            let mut session = session_as(&mut bench, &prefix, &["~*", "+@all", &format!("-{command}")]).await;
            for _ in 0..2 {
                let error = session.enqueue(command, &seen, Side::Left, &jobs).await.unwrap_err();
                let denied = format!("command {}", command.to_uppercase());
                assert!(
                    matches!(&error, StoreError::Denied { what } if *what == denied),
                    "{command}: {error}"
                );
            }
            bench.assert_conserved(&[]).await;
            session_as(&mut bench, &prefix, &["reset"]).await;
        }
        let mut session = session_as(&mut bench, &prefix, &["~*", "+@all"]).await;
        assert_eq!(
            session.enqueue("lpush", &seen, Side::Left, &jobs).await.unwrap(),
            [true],
            "it was never seen"
        );
        bench.assert_conserved(&["a"]).await;
    }

    #[tokio::test]
    async fn a_user_that_may_not_run_scripts_is_told_so() {
        let prefix = e2e::engine::fresh_prefix();
        let mut bench = Bench::on(shared_server().await, json!({ "key_prefix": prefix })).await;
        let mut session = session_as(&mut bench, &prefix, &["~*", "+@all", "-@scripting"]).await;
        let error = session.snapshot(CONSUMING).await.unwrap_err();
        assert!(
            matches!(&error, StoreError::Denied { what } if what.to_lowercase().contains("evalsha")),
            "{error}"
        );
    }
}

mod out_of_memory {
    use super::*;

    #[tokio::test]
    async fn a_full_redis_takes_no_new_jobs_but_all_others_go_their_way() {
        let server = RedisServer::start(Options::default()).await;
        let fast = json!({ "worker": { "backoff": { "base": "1ms", "max": "1ms" } } });
        let mut bench = Bench::on(&server, fast).await;
        bench.push(&bench.high().queue, &["a", "b", "c", "d", "e"].map(job)).await;
        let mut lane = bench.lane().await;
        let mut dead = bench.lane().await;
        lane.reserve(3).await;
        dead.reserve(1).await;
        server.cli(&["CONFIG", "SET", "maxmemory", "1"]);

        let seen = bench.keys.seen("p");
        let mut session = bench.session();
        let mut jobs = enqueue(&bench.high().queue, &["new 1", "new 2"].map(job));
        jobs[0].seen = Some(("/data/f".into(), "1:1".into()));
        let error = session.enqueue("1", &seen, CONSUMING.opposite(), &jobs).await.unwrap_err();
        assert!(matches!(error, StoreError::OutOfMemory(_)) && error.is_transient(), "{error}");
        let advice = "Redis is out of memory: raise maxmemory or make room";
        assert!(error.to_string().starts_with(advice), "{error}");
        assert!(!session.exists(&seen).await.unwrap(), "or the file would never be enqueued");

        let mut cycle = lane.asking(1);
        cycle.settlements.push(lane.settlement(0, &job("a"), &failure()));
        cycle.settlements.push(lane.settlement(0, &job("b"), &kill()));
        cycle.queues[0].done.push(job("c"));
        let cycled = lane.cycle(&cycle).await;
        assert_eq!(cycled.statuses, [Status::Settled; 3]);
        assert_eq!(ids(&cycled.queues[0].jobs), ["e"]);
        assert_eq!(session.extend(&[(&lane.handle, b"x")], 60_000, "high=closed").await.unwrap(), [true]);
        eventually(SOON, "the promotion", async || {
            promoter::pass(&mut session, &bench.engine.protocol).await.unwrap().moved == 1
        })
        .await;
        assert_eq!(session.fence(&dead.handle.id, true, "heartbeat").await.unwrap(), Fenced::Fenced);
        let mut reaper = bench.reaper(SHORT);
        assert_eq!(reaper.pass().await.unwrap().moved.len(), 1);
        assert_eq!(bench.ids(&bench.high().suspects).await, ["d"]);
        let letters = session.page(&bench.high().dead_letters, PageKind::Tail, 9).await.unwrap().entries;
        let turn = Turn::push(bench.low().queue, Side::Left, letters[0].clone());
        assert_eq!(session.turn(&bench.high().dead_letters, &[(letters[0].clone(), turn)]).await.unwrap(), 1);
        assert!(!lane.session.close(&lane.handle, false).await.unwrap());
        bench.assert_conserved(&["a", "b", "c", "d", "e"]).await;

        server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
        let new = session.enqueue("1", &seen, CONSUMING.opposite(), &jobs).await.unwrap();
        assert_eq!(new, [true, true], "the same call, once there is room");
        bench.assert_conserved(&["a", "b", "c", "d", "e", "new 1", "new 2"]).await;
    }

    #[tokio::test]
    async fn orphans_are_rescued_from_a_full_redis() {
        let server = RedisServer::start(Options::default()).await;
        let mut bench = Bench::on(&server, json!({})).await;
        let orphan = bench.keys.lists("host-1-1")[0].held.clone();
        bench.push(&orphan, &[job("a")]).await;
        let mut reaper = bench.reaper(SHORT);
        reaper.pass().await.unwrap();
        server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
        eventually(SOON, "the rescue", async || !reaper.pass().await.unwrap().moved.is_empty()).await;
        assert_eq!(bench.ids(&bench.high().suspects).await, ["a"]);
    }
}

mod lost_replies {
    use super::*;
    use std::sync::Arc;

    struct Cut {
        proxy: Proxy,
        bench: Bench,
        /// Not through the proxy.
        safe: Bench,
    }

    async fn cut() -> Cut {
        let server = shared_server().await;
        let proxy = Proxy::start(server.addr()).await;
        let prefix = e2e::engine::fresh_prefix();
        let fast = json!({ "key_prefix": prefix, "worker": { "backoff": { "base": "1ms", "max": "1ms" } } });
        let bench = Bench::through(server, proxy.addr(), fast.clone()).await;
        let safe = Bench::on(server, fast).await;
        Cut { proxy, bench, safe }
    }

    impl Cut {
        /// Loses the reply to the next call of a script, which Redis has carried out.
        async fn lose(&mut self, script: &str) -> Arc<Rule> {
            let sha = load_script(&mut self.safe.redis, script).await;
            self.proxy.drop_reply_once(move |command| command.len() > 1 && command[1] == sha.as_bytes())
        }
    }

    fn is_lost<T: std::fmt::Debug>(answer: Result<T, StoreError>) -> bool {
        let error = answer.unwrap_err();
        assert!(error.is_transient(), "{error}");
        matches!(error, StoreError::Lost(_))
    }

    #[tokio::test]
    async fn of_register_leave_a_lane_that_is_rescued_like_any_other() {
        let mut cut = cut().await;
        let rule = cut.lose("register").await;
        let mut session = cut.bench.session();
        let who = registration(60_000);
        assert!(is_lost(session.register(&who).await));
        assert_eq!(rule.hits(), 1);
        let handle = session.register(&who).await.unwrap();
        assert_eq!(handle.id, "host-1-2");
        assert_eq!(cut.safe.session().lanes(0, 9).await.unwrap(), ["host-1-1", "host-1-2"]);
        assert_eq!(cut.safe.session().fence("host-1-1", true, "heartbeat").await.unwrap(), Fenced::Fenced);
        let mut reaper = cut.safe.reaper(SHORT);
        eventually(SOON, "the unheard-of lane to be forgotten", async || {
            reaper.pass().await.unwrap();
            cut.safe.session().lane("host-1-1").await.unwrap().is_none()
        })
        .await;
    }

    #[tokio::test]
    async fn of_a_cycle_lose_and_double_nothing() {
        let mut cut = cut().await;
        cut.safe.push(&cut.safe.high().queue, &["a", "b", "c", "d", "e", "f"].map(job)).await;
        let mut lane = cut.bench.lane().await;
        lane.reserve(4).await;
        let rule = cut.lose("cycle").await;
        let mut cycle = lane.asking(2);
        for (raw, outcome) in [("a", failure()), ("b", kill()), ("c", Outcome::Released)] {
            cycle.settlements.push(lane.settlement(0, &job(raw), &outcome));
        }
        cycle.queues[0].done.push(job("d"));
        let cycled = lane.cycle(&cycle).await;
        assert_eq!(rule.hits(), 1);
        assert!(cycled.replayed);
        assert_eq!(cycled.statuses, [Status::Settled; 4]);
        assert_eq!(ids(&cycled.queues[0].jobs), ["c", "e"]);
        assert_eq!(cut.safe.ids(&lane.handle.lists[0].held).await, ["c", "e"]);
        cut.safe.assert_conserved(&["a", "b", "c", "d", "e", "f"]).await;
        assert_eq!(ids(&lane.reserve(9).await), ["f"]);
    }

    #[tokio::test]
    async fn of_a_cycle_that_was_never_carried_out_are_repeated_too() {
        let mut cut = cut().await;
        cut.safe.push(&cut.safe.high().queue, &["a", "b"].map(job)).await;
        let mut lane = cut.bench.lane().await;
        let sha = load_script(&mut cut.safe.redis, "cycle").await;
        let rule =
            cut.proxy.drop_command_once(move |command| command.len() > 1 && command[1] == sha.as_bytes());
        assert_eq!(ids(&lane.reserve(1).await), ["a"]);
        assert_eq!(rule.hits(), 1);
        cut.safe.assert_conserved(&["a", "b"]).await;
    }

    #[tokio::test]
    async fn of_extend_close_fence_and_forget_are_repeated_without_harm() {
        let mut cut = cut().await;
        let mut lane = cut.bench.lane().await;
        cut.lose("extend").await;
        let mut session = cut.bench.session();
        assert!(is_lost(session.extend(&[(&lane.handle, b"")], 60_000, "").await));
        assert_eq!(session.extend(&[(&lane.handle, b"")], 60_000, "").await.unwrap(), [true]);
        cut.lose("close").await;
        assert!(is_lost(lane.session.close(&lane.handle, false).await));
        assert!(!lane.session.close(&lane.handle, false).await.unwrap(), "it is closed already");
        assert!(cut.safe.session().lane(&lane.handle.id).await.unwrap().is_none());

        let lane = cut.bench.lane().await;
        cut.lose("fence").await;
        assert!(is_lost(session.fence(&lane.handle.id, true, "evicted").await));
        assert_eq!(session.fence(&lane.handle.id, true, "evicted").await.unwrap(), Fenced::Fenced);
        assert_eq!(cut.safe.session().reaping(9).await.unwrap(), [lane.handle.id.as_str()]);
        cut.lose("forget").await;
        let mut reaper = cut.bench.reaper(SHORT);
        assert!(is_lost(reaper.pass().await));
        eventually(SOON, "the lane to be forgotten", async || {
            reaper.pass().await.unwrap();
            cut.safe.session().lane(&lane.handle.id).await.unwrap().is_none()
        })
        .await;
        let snapshot = cut.safe.session().snapshot(CONSUMING).await.unwrap();
        assert_eq!((snapshot.lanes, snapshot.reaping), (0, 0));
    }

    #[tokio::test]
    async fn of_a_promotion_move_each_job_once() {
        let mut cut = cut().await;
        for n in 0..250 {
            let member = format!(r#"u{n}|{{"id":"{}"}}"#, n % 200);
            cut.safe.redis.zadd::<_, _, _, ()>(cut.safe.high().delayed, member, 1).await.unwrap();
        }
        let before: BTreeMap<String, usize> = cut.safe.census().await;
        cut.lose("move").await;
        let mut session = cut.bench.session();
        assert!(is_lost(promoter::pass(&mut session, &cut.bench.engine.protocol).await));
        promoter::pass(&mut session, &cut.bench.engine.protocol).await.unwrap();
        assert_eq!(cut.safe.census().await, before);
        assert_eq!(cut.safe.ids(&cut.safe.high().queue).await.len(), 250);
    }

    #[tokio::test]
    async fn of_a_rescue_move_each_job_once() {
        let mut cut = cut().await;
        let jobs: Vec<Bytes> = (0..250).map(|n| job(&(n % 200).to_string())).collect();
        cut.safe.push(&cut.safe.high().queue, &jobs).await;
        let mut lane = cut.safe.lane().await;
        lane.reserve(250).await;
        let before = cut.safe.census().await;
        cut.safe.session().fence(&lane.handle.id, true, "heartbeat").await.unwrap();
        cut.lose("move").await;
        let mut reaper = cut.bench.reaper(SHORT);
        assert!(is_lost(reaper.pass().await));
        reaper.pass().await.unwrap();
        assert_eq!(cut.safe.census().await, before);
        for raw in cut.safe.list(&cut.safe.high().suspects).await {
            assert_eq!(
                serde_json::from_slice::<serde_json::Value>(&raw).unwrap()["deaths"],
                1,
                "counted once"
            );
        }
    }

    #[tokio::test]
    async fn behind_a_rescue_do_not_make_it_untold() {
        let mut cut = cut().await;
        cut.safe.push(&cut.safe.high().queue, &["a", "b"].map(job)).await;
        let mut lane = cut.safe.lane().await;
        lane.reserve(2).await;
        cut.safe.session().fence(&lane.handle.id, true, "heartbeat").await.unwrap();
        let rule = cut.proxy.drop_reply_once(|command| command[0].eq_ignore_ascii_case(b"SCAN"));
        let mut reaper = cut.bench.reaper(SHORT);
        assert!(is_lost(reaper.pass().await));
        assert_eq!(rule.hits(), 1);
        assert_eq!(cut.safe.ids(&cut.safe.high().suspects).await.len(), 2, "they were moved");
        let told = reaper.pass().await.unwrap().moved;
        assert_eq!(told, vec![("high".to_owned(), Verdict::Suspected); 2]);
        assert_eq!(reaper.pass().await.unwrap().moved, [], "once");
    }

    #[tokio::test]
    async fn of_a_number_leave_a_gap_and_no_lane() {
        let mut cut = cut().await;
        let rule = cut.lose("number").await;
        let mut session = cut.bench.session();
        assert!(is_lost(session.register(&registration(60_000)).await));
        assert_eq!(rule.hits(), 1);
        assert_eq!(session.register(&registration(60_000)).await.unwrap().id, "host-1-2");
        assert_eq!(cut.safe.session().lanes(0, 9).await.unwrap(), ["host-1-2"]);
    }

    #[tokio::test]
    async fn of_an_orphans_rescue_leave_it_to_the_next_pass() {
        let mut cut = cut().await;
        let orphan = cut.safe.keys.lists("host-1-1")[0].held.clone();
        cut.safe.push(&orphan, &[job("a")]).await;
        let rule = cut.lose("orphan").await;
        let mut reaper = cut.bench.reaper(SHORT);
        eventually(SOON, "the rescue", async || match reaper.pass().await {
            Ok(done) => !done.moved.is_empty(),
            Err(error) => {
                assert!(error.is_transient(), "{error}");
                false
            }
        })
        .await;
        assert_eq!(rule.hits(), 1);
        cut.safe.assert_conserved(&["a"]).await;
    }

    #[tokio::test]
    async fn of_a_turn_are_made_good_by_reading_again() {
        let mut cut = cut().await;
        let list = cut.safe.high().dead_letters;
        cut.safe.push(&list, &["a", "b", "b", "c"].map(job)).await;
        let to = cut.safe.low().queue;
        let plan = |page: &[Bytes]| -> Vec<(Bytes, Turn)> {
            let push = |raw: &Bytes| Turn::push(to.clone(), Side::Left, raw.clone());
            page.iter().map(|raw| (raw.clone(), push(raw))).collect()
        };
        let mut session = cut.bench.session();
        let page = session.page(&list, PageKind::Tail, 2).await.unwrap().entries;
        cut.lose("turn").await;
        assert!(is_lost(session.turn(&list, &plan(&page)).await));
        assert_eq!(
            session.turn(&list, &plan(&page)).await.unwrap(),
            0,
            "the same words find nothing to turn"
        );
        let page = session.page(&list, PageKind::Tail, 9).await.unwrap().entries;
        assert_eq!(session.turn(&list, &plan(&page)).await.unwrap(), 2);
        assert_eq!(cut.safe.ids(&to).await, ["c", "b", "b", "a"]);
        cut.safe.assert_conserved(&["a", "b", "b", "c"]).await;
    }

    #[tokio::test]
    async fn of_an_enqueue_are_repeated_and_add_nothing() {
        let mut cut = cut().await;
        cut.lose("enqueue").await;
        let mut jobs = enqueue(&cut.safe.high().queue, &["a", "a"].map(job));
        jobs[1].seen = Some(("/data/f".into(), "1:1".into()));
        let (mut session, seen) = (cut.bench.session(), cut.safe.keys.seen("p"));
        assert!(is_lost(session.enqueue("1", &seen, Side::Left, &jobs).await));
        assert_eq!(session.enqueue("1", &seen, Side::Left, &jobs).await.unwrap(), [true, true]);
        cut.safe.assert_conserved(&["a", "a"]).await;
    }

    #[tokio::test]
    async fn of_a_limit_cost_a_part_of_one_window_at_most() {
        let mut cut = cut().await;
        cut.lose("limit").await;
        let (mut session, key) = (cut.bench.session(), cut.safe.keys.seen("rate"));
        assert!(is_lost(session.limit(&key, 10, 6).await));
        assert!(session.limit(&key, 10, 6).await.unwrap().granted >= 4);
        eventually(SOON, "the next window", async || session.limit(&key, 10, 1).await.unwrap().granted == 1)
            .await;
    }

    #[tokio::test]
    async fn of_looks_are_looked_at_again() {
        let mut cut = cut().await;
        cut.safe.push(&cut.safe.high().queue, &[job("a")]).await;
        let mut session = cut.bench.session();
        cut.lose("snapshot").await;
        assert!(is_lost(session.snapshot(CONSUMING).await));
        assert_eq!(session.snapshot(CONSUMING).await.unwrap().queues[0].waiting, 1);
        cut.lose("page").await;
        assert!(is_lost(session.page(&cut.safe.high().queue, PageKind::Head, 9).await));
        assert_eq!(
            session.page(&cut.safe.high().queue, PageKind::Head, 9).await.unwrap().entries,
            [job("a")]
        );
    }

    #[tokio::test]
    async fn of_a_mark_leave_it_with_who_asked() {
        let mut cut = cut().await;
        let (mut session, mark) = (cut.bench.session(), cut.safe.keys.central());
        let hour = Duration::from_secs(3600);
        let rule = cut.lose("keep").await;
        assert!(is_lost(session.keep(&mark, "me", hour).await));
        assert_eq!(rule.hits(), 1);
        assert!(session.keep(&mark, "me", hour).await.unwrap(), "it is theirs already");
        assert!(!session.keep(&mark, "you", hour).await.unwrap());
    }

    #[tokio::test]
    async fn of_what_was_unseen_forget_it_once_and_nothing_else() {
        let mut cut = cut().await;
        let (mut session, seen) = (cut.bench.session(), cut.safe.keys.seen("p"));
        let places = cut.safe.keys.seen_in("p");
        let remembered = ["gone", "there"].map(|file| (file.to_owned(), "1:1".to_owned()));
        session.hash_add(&seen, &remembered).await.unwrap();
        let rule = cut.lose("unsee").await;
        let gone = ["gone".to_owned()];
        assert!(is_lost(session.unsee(&seen, &places, "here", &gone).await));
        assert_eq!(rule.hits(), 1);
        assert!(session.unsee(&seen, &places, "here", &gone).await.unwrap());
        let left = session.hash_get(&seen, &remembered.map(|(file, _)| file)).await.unwrap();
        assert_eq!(left, [None, Some("1:1".to_owned())]);
    }

    #[tokio::test]
    async fn of_a_layout_find_it_written_down() {
        let mut cut = cut().await;
        let mut session = cut.bench.session();
        let rule = cut.lose("widen").await;
        assert!(is_lost(session.widen("v1", 3, "v1 3 tagged").await));
        assert_eq!(rule.hits(), 1);
        assert_eq!(session.widen("v1", 3, "v1 3 tagged").await.unwrap(), "v1 3 tagged");
        assert_eq!(session.widen("v1", 2, "v1 2 tagged").await.unwrap(), "v1 3 tagged", "never narrower");
    }

    #[tokio::test]
    async fn of_a_departure_leave_the_process_out_of_sight_and_the_others_in() {
        let mut cut = cut().await;
        let names = Names::new(&e2e::engine::fresh_prefix());
        cut.safe.redis.sadd::<_, _, ()>(names.processes(), &["mine", "other"]).await.unwrap();
        let mut session = cut.bench.session();
        let rule = cut.lose("depart").await;
        assert!(is_lost(session.depart(&names, Some("mine")).await));
        assert_eq!(rule.hits(), 1);
        assert_eq!(session.depart(&names, Some("mine")).await.unwrap(), 0, "it is out of sight already");
        let seen: Vec<String> = cut.safe.redis.smembers(names.processes()).await.unwrap();
        assert_eq!(seen, ["other"]);
    }

    // It reads only: said again, it answers with what is there then.
    #[tokio::test]
    async fn of_a_list_of_jobs_are_asked_for_again() {
        let mut cut = cut().await;
        let index = cut.safe.keys.jobs().index("pending");
        cut.safe.redis.zadd::<_, _, _, ()>(&index, "a", 7).await.unwrap();
        let mut session = cut.bench.session();
        let rule = cut.lose("list").await;
        assert!(is_lost(session.list(&[JobStatus::Pending], None, 9).await));
        assert_eq!(rule.hits(), 1);
        assert_eq!(session.list(&[JobStatus::Pending], None, 9).await.unwrap()[0].id, "a");
    }

    #[tokio::test]
    async fn of_a_sorted_look_are_looked_at_again() {
        let mut cut = cut().await;
        let set = cut.safe.high().delayed;
        cut.safe.redis.zadd::<_, _, _, ()>(&set, "u|a", 1).await.unwrap();
        let (mut session, span) = (cut.bench.session(), Span::up());
        cut.lose("scored").await;
        assert!(is_lost(session.scored(&set, &span, 9).await));
        assert_eq!(session.scored(&set, &span, 9).await.unwrap().length, 1);
    }

    #[tokio::test]
    async fn of_claims_are_asked_for_again_and_mean_the_same() {
        let mut cut = cut().await;
        let (mut session, key) = (cut.bench.session(), cut.safe.high().queue);
        cut.lose("own").await;
        assert!(is_lost(session.own(&key, "me", None).await));
        assert_eq!(session.own(&key, "me", None).await.unwrap(), "me");
        assert_eq!(session.own(&key, "you", None).await.unwrap(), "me");
        cut.lose("disown").await;
        assert!(is_lost(session.disown(&key, "me").await));
        assert!(!session.disown(&key, "me").await.unwrap(), "it is nobody's by now");
        assert_eq!(session.own(&key, "you", None).await.unwrap(), "you");
    }

    #[tokio::test]
    async fn of_a_look_at_the_drained_leave_them_drained() {
        let mut cut = cut().await;
        let who = Registration { control: "pod".into(), pod_uid: "pod".into(), ..registration(600_000) };
        let mut lane = cut.bench.lane_of(who).await;
        let hour = Duration::from_secs(3600);
        cut.safe.session().quiet("pod", "G1", hour).await.unwrap();
        let mut cycle = lane.next();
        cycle.quiet = "G1".into();
        lane.cycle(&cycle).await;
        let (mut session, told) = (cut.bench.session(), [("pod".to_owned(), "G1".to_owned())]);
        cut.lose("drained").await;
        assert!(is_lost(session.drained(&told, hour).await));
        assert_eq!(session.drained(&told, hour).await.unwrap(), [true]);
    }

    #[tokio::test]
    async fn of_a_parked_fetch_leave_a_job_that_the_next_look_finds() {
        let mut cut = cut().await;
        cut.safe.push(&cut.safe.high().queue, &["a", "b"].map(job)).await;
        let mut lane = cut.bench.lane().await;
        let rule = cut.proxy.drop_reply_once(|command| command[0].eq_ignore_ascii_case(b"BLMOVE"));
        let (from, into) = (cut.safe.high().queue, lane.handle.lists[0].parked.clone());
        assert!(is_lost(cut.bench.session().park(&from, &into, CONSUMING, SHORT).await));
        assert_eq!(rule.hits(), 1);
        assert_eq!(cut.safe.ids(&into).await, ["a"]);
        let mut cycle = lane.asking(2);
        cycle.queues[0].parked = Parked::Look;
        assert_eq!(ids(&lane.cycle(&cycle).await.queues[0].jobs), ["a", "b"]);
        cut.safe.assert_conserved(&["a", "b"]).await;
    }
}

mod replicas {
    use super::*;

    #[tokio::test]
    async fn that_are_too_few_are_waited_for_and_what_was_said_is_settled_once() {
        let server = RedisServer::start(Options::default()).await;
        let replica = RedisServer::start(Options::default()).await;
        let careful = json!({ "redis": { "wait_replicas": 1, "read_timeout": "2s" } });
        let mut bench = Bench::on(&server, careful).await;
        let few = |error: &StoreError| {
            assert!(matches!(error, StoreError::Later(_)) && error.is_transient(), "{error}");
            assert!(error.to_string().contains("0 of redis.wait_replicas = 1"), "{error}");
        };
        let (mut session, seen) = (bench.session(), bench.keys.seen("p"));
        let jobs = enqueue(&bench.high().queue, &["a", "b"].map(job));
        few(&session.enqueue("call", &seen, Side::Left, &jobs).await.unwrap_err());
        let mut lane = bench.lane().await;
        lane.reserve(2).await;
        let mut cycle = lane.next();
        cycle.queues[0].done.push(job("a"));
        cycle.settlements.push(lane.settlement(0, &job("b"), &kill()));
        for _ in 0..2 {
            few(&lane.say(&cycle).await.unwrap_err());
        }
        replica.cli(&["REPLICAOF", "127.0.0.1", &server.port().to_string()]);
        let cycled = lane.cycle(&cycle).await;
        assert!(cycled.replayed, "it took place the first time");
        assert_eq!(cycled.statuses, [Status::Settled; 2]);
        assert_eq!(session.enqueue("call", &seen, Side::Left, &jobs).await.unwrap(), [true, true]);
        bench.assert_conserved(&["a", "b"]).await;
        let counted = bench.session().snapshot(CONSUMING).await.unwrap();
        assert_eq!((counted.counter("done"), counted.counter("failed")), (1, 1));
    }
}

mod moods_of_redis {
    use super::*;

    #[tokio::test]
    async fn scripts_that_redis_forgot_are_loaded_again() {
        let server = RedisServer::start(Options::default()).await;
        let mut bench = Bench::on(&server, json!({})).await;
        bench.push(&bench.high().queue, &["a", "b"].map(job)).await;
        let mut lane = bench.lane().await;
        for _ in 0..2 {
            server.cli(&["SCRIPT", "FLUSH"]);
            assert_eq!(lane.reserve(1).await.len(), 1);
        }
        let mut reaper = bench.reaper(SHORT);
        bench.session().fence(&lane.handle.id, true, "evicted").await.unwrap();
        server.cli(&["SCRIPT", "FLUSH"]);
        reaper.empty(&lane.handle.id, &mut Reaped::default()).await.unwrap();
        assert_eq!(bench.ids(&bench.high().queue).await, ["b", "a"]);
    }

    #[tokio::test]
    async fn answers_that_pass_by_themselves_are_waited_out() {
        let server = shared_server().await;
        let proxy = Proxy::start(server.addr()).await;
        let mut bench = Bench::through(server, proxy.addr(), json!({})).await;
        bench.push(&bench.high().queue, &[job("a")]).await;
        let mut session = bench.session();
        let loading = "-LOADING Redis is loading the dataset in memory\r\n";
        let trying = "-TRYAGAIN Multiple keys request during rehashing of slot\r\n";
        let down = "-CLUSTERDOWN The cluster is down\r\n";
        let replicas = "-NOREPLICAS Not enough good replicas to write.\r\n";
        let disk = "-MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.\r\n";
        for answer in [loading, trying, down, replicas, disk] {
            let fault = Fault::Answer(Bytes::from(answer));
            proxy.on(fault, 0, 1, |command| command[0] == "EVALSHA");
            let error = session.snapshot(CONSUMING).await.unwrap_err();
            assert!(matches!(error, StoreError::Later(_)) && error.is_transient(), "{answer}: {error:?}");
            assert!(error.to_string().contains(&answer[1..5]), "{error}");
            let persisted = session.persist(async |session| session.snapshot(CONSUMING).await).await.unwrap();
            assert_eq!(persisted.queues[0].waiting, 1);
        }
    }

    #[tokio::test]
    async fn a_master_that_becomes_a_replica_is_left_until_it_is_a_master_again() {
        let server = RedisServer::start(Options::default()).await;
        let mut bench = Bench::on(&server, json!({})).await;
        bench.push(&bench.high().queue, &[job("a")]).await;
        let mut lane = bench.lane().await;
        lane.reserve(1).await;
        // A master that does not exist: the data stays, writes are refused.
        server.cli(&["REPLICAOF", "127.0.0.1", &e2e::child::free_port().to_string()]);
        let mut cycle = lane.next();
        cycle.queues[0].done.push(job("a"));
        let error = lane.say(&cycle).await.unwrap_err();
        assert!(matches!(&error, StoreError::Later(reason) if reason.contains("READONLY")), "{error:?}");
        let error = lane.say(&cycle).await.unwrap_err();
        assert!(error.to_string().contains("read-only replica: point redis.addr at the master"), "{error}");
        assert!(error.is_transient());
        server.cli(&["REPLICAOF", "NO", "ONE"]);
        assert_eq!(lane.cycle(&cycle).await.statuses, [Status::Settled]);
        bench.assert_conserved(&["a"]).await;
    }

    #[tokio::test]
    async fn a_redis_that_is_busy_with_a_script_is_waited_for() {
        let server = RedisServer::start(Options {
            config: vec!["busy-reply-threshold 10".into()],
            ..Options::default()
        })
        .await;
        let bench = Bench::on(&server, json!({})).await;
        let mut session = bench.session();
        session.snapshot(CONSUMING).await.unwrap();
        let mut other = server.connection().await;
        let endless = tokio::spawn(async move {
            redis::cmd("EVAL").arg("while true do end").arg(0).query_async::<()>(&mut other).await
        });
        eventually(SOON, "BUSY", async || match session.snapshot(CONSUMING).await {
            Err(error @ StoreError::Later(_)) => {
                assert!(error.is_transient() && error.to_string().contains("BUSY"), "{error}");
                true
            }
            _ => false,
        })
        .await;
        // A new connection stands as well, and waits.
        assert!(matches!(bench.session().snapshot(CONSUMING).await, Err(StoreError::Later(_))));
        server.cli(&["SCRIPT", "KILL"]);
        session.persist(async |session| session.snapshot(CONSUMING).await).await.unwrap();
        assert!(endless.await.unwrap().is_err());
    }

    #[tokio::test]
    async fn a_silent_redis_is_given_up_after_the_read_timeout_and_the_call_repeated() {
        let server = shared_server().await;
        let proxy = Proxy::start(server.addr()).await;
        let quick = json!({ "redis": { "read_timeout": "100ms", "dial_timeout": "100ms" } });
        let mut bench = Bench::through(server, proxy.addr(), quick).await;
        bench.push(&bench.high().queue, &["a", "b"].map(job)).await;
        let mut lane = bench.lane().await;
        let held = proxy.hold_replies(|command| command[0] == "EVALSHA");
        let cycle = lane.asking(1);
        let error = lane.say(&cycle).await.unwrap_err();
        assert!(matches!(error, StoreError::Lost(_)) && error.is_transient(), "{error:?}");
        assert_eq!(held.hits(), 1);
        proxy.clear();
        let cycled = lane.cycle(&cycle).await;
        assert_eq!((cycled.replayed, ids(&cycled.queues[0].jobs)), (true, vec!["a".to_owned()]));
        bench.assert_conserved(&["a", "b"]).await;
    }

    /// How many scripts the server has been told to run.
    async fn scripts_run(bench: &mut Bench) -> u64 {
        let mut info = redis::cmd("INFO");
        let stats: String = info.arg("commandstats").query_async(&mut bench.redis).await.unwrap();
        let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
        calls.and_then(|calls| calls.split(',').next()).map_or(0, |calls| calls.parse().unwrap())
    }

    #[tokio::test]
    async fn a_late_command_of_an_old_connection_changes_nothing() {
        // A server of its own, so that the late command can be seen to arrive.
        let server = &RedisServer::start(Options::default()).await;
        let proxy = Proxy::start(server.addr()).await;
        let quick = json!({ "redis": { "read_timeout": "100ms" } });
        let mut bench = Bench::through(server, proxy.addr(), quick).await;
        bench.push(&bench.high().queue, &["a", "b", "c"].map(job)).await;
        let mut lane = bench.lane().await;
        let sha = load_script(&mut bench.redis, "cycle").await;
        let held = proxy
            .on(Fault::HoldCommand, 0, 1, move |command| command.len() > 1 && command[1] == sha.as_bytes());
        let cycle = lane.asking(1);
        assert!(matches!(lane.say(&cycle).await, Err(StoreError::Lost(_))));
        assert_eq!(ids(&lane.cycle(&cycle).await.queues[0].jobs), ["a"]);
        assert_eq!(ids(&lane.reserve(1).await), ["b"]);
        let before = scripts_run(&mut bench).await;
        held.release();
        eventually(SOON, "the late command", async || scripts_run(&mut bench).await > before).await;
        assert_eq!(bench.ids(&lane.handle.lists[0].held).await, ["a", "b"]);
        assert_eq!(ids(&lane.reserve(9).await), ["c"]);
    }
}

mod the_scripts {
    use super::*;

    fn files() -> Vec<(String, String)> {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../queue/src/scripts");
        let read = |entry: std::io::Result<std::fs::DirEntry>| {
            let path = entry.unwrap().path();
            (
                path.file_name().unwrap().to_string_lossy().into_owned(),
                std::fs::read_to_string(&path).unwrap(),
            )
        };
        std::fs::read_dir(dir).unwrap().map(read).collect()
    }

    #[test]
    fn neither_decode_nor_encode_json() {
        for (name, text) in files() {
            assert!(!text.contains("cjson") && !text.contains("cmsgpack"), "{name}");
        }
    }

    #[test]
    fn say_what_they_take_and_what_they_return() {
        let files = files();
        assert_eq!(files.len(), SCRIPTS.len() + 1, "each file is one of SCRIPTS, or effects.lua");
        for (name, text) in files.iter().filter(|(name, _)| name != "effects.lua") {
            let header: Vec<&str> = text.lines().take_while(|line| line.starts_with("--")).collect();
            let words = ["KEYS[1]", "ARGV[1]", "Returns"];
            for word in words.into_iter().filter(|word| *word != "ARGV[1]" || text.contains("ARGV")) {
                assert!(header.iter().any(|line| line.contains(word)), "{name} has no {word} in its header");
            }
        }
    }

    #[test]
    fn name_no_key_of_their_own() {
        for (name, text) in files() {
            let code = text.lines().filter(|line| !line.trim_start().starts_with("--"));
            for line in code.filter(|line| line.contains("redis.")) {
                assert!(!line.contains("jobqueue"), "{name}: {line}");
            }
        }
    }
}
