//! Sidekiq's keys under the engine: its sorted sets, its figures, queues drawn by weight, what must not be deleted.
#![allow(clippy::unwrap_used, reason = "a panic is the report")]
use std::time::Duration;

use bytes::Bytes;
use e2e::engine::{Bench, CONSUMING, failure, fresh_prefix, kill, shared_server};
use e2e::wait::eventually;
use jobqueue::promoter;
use jobqueue::protocol::sidekiq::names::Names;
use jobqueue::store::{ProcessBeat, Told};
use redis::AsyncCommands as _;
use serde_json::{Value, json};

/// A queue set on Sidekiq's keys, in a namespace of its own.
async fn bench(extra: Value) -> (Bench, Names) {
    let namespace = format!("app-{}", fresh_prefix());
    let mut tree = json!({
        "protocol": "sidekiq", "sidekiq": { "namespace": namespace }, "worker": {
            "priorities": ["often", "seldom"], "handler": { "kind": "simulate" },
        },
    });
    for (name, value) in extra.as_object().unwrap() {
        for (key, value) in value.as_object().unwrap() {
            tree[name][key] = value.clone();
        }
    }
    (Bench::on(shared_server().await, tree).await, Names::new(&namespace))
}

fn job(jid: &str, queue: &str) -> Bytes {
    Bytes::from(format!(
        r#"{{"class":"A","args":[1.50],"jid":"{jid}","queue":"{queue}","retry":1,"created_at":1.5}}"#
    ))
}

async fn jids(bench: &mut Bench, list: &str) -> Vec<String> {
    let entries: Vec<String> = bench.redis.lrange(list, 0, -1).await.unwrap();
    let jid =
        |entry: &String| serde_json::from_str::<Value>(entry).unwrap()["jid"].as_str().unwrap().to_owned();
    entries.iter().map(jid).collect()
}

#[tokio::test]
async fn a_failed_job_goes_to_the_retries_and_then_to_the_dead() {
    let (mut bench, names) = bench(json!({})).await;
    bench.push(&bench.high().queue, &[job("a", "often")]).await;
    let mut lane = bench.lane().await;
    let raw = lane.reserve(1).await.remove(0);
    lane.settle(0, &raw, &failure()).await;
    let retries: Vec<(String, f64)> = bench.redis.zrange_withscores(names.retry(), 0, -1).await.unwrap();
    let (member, score) = &retries[0];
    assert!(member.contains(r#""args":[1.50]"#) && member.contains(r#""retry_count":0"#), "{member}");
    let now_ms = lane.session.now_ms();
    let wait = score - std::time::Duration::from_millis(now_ms).as_secs_f64();
    assert!((14.0..25.0).contains(&wait), "{wait}");

    bench.push(&bench.high().queue, &[Bytes::from(member.clone())]).await;
    let raw = lane.reserve(1).await.remove(0);
    lane.settle(0, &raw, &failure()).await;
    let snapshot = bench.session().snapshot(CONSUMING).await.unwrap();
    assert_eq!((snapshot.dead_letters, snapshot.completed, snapshot.in_flight), (1, 0, 0));
    assert_eq!(
        (snapshot.queues[0].delayed, snapshot.queues[0].due),
        (0, 0),
        "what is due counts once it waits"
    );
}

/// Redis' clock.
async fn time(bench: &mut Bench) -> Duration {
    let (seconds, micros): (u64, u64) = redis::cmd("TIME").query_async(&mut bench.redis).await.unwrap();
    Duration::from_secs(seconds) + Duration::from_micros(micros)
}

#[tokio::test]
async fn the_dead_are_trimmed_by_number_and_by_age() {
    let (mut bench, names) = bench(json!({ "worker": { "dead_letter_max": 2 } })).await;
    bench.redis.zadd::<_, _, _, ()>(names.dead(), "ancient", 1.0).await.unwrap();
    let mut lane = bench.lane().await;
    for jid in ["a", "b", "c"] {
        bench.push(&bench.high().queue, &[job(jid, "often")]).await;
        let raw = lane.reserve(1).await.remove(0);
        lane.settle(0, &raw, &kill()).await;
        // Those that die within a millisecond stand in any order.
        let died = time(&mut bench).await;
        eventually(Duration::from_secs(5), "the next millisecond", async || {
            let now = time(&mut bench).await;
            if now > died + Duration::from_millis(2) { Ok(()) } else { Err(now) }
        })
        .await;
    }
    let dead: Vec<String> = bench.redis.zrange(names.dead(), 0, -1).await.unwrap();
    assert_eq!(dead.len(), 2);
    assert!(dead[0].contains(r#""jid":"b""#) && dead[1].contains(r#""jid":"c""#), "{dead:?}");
}

#[tokio::test]
async fn due_jobs_of_every_queue_are_promoted_and_others_stay() {
    let (mut bench, names) = bench(json!({})).await;
    let garbage = Bytes::from_static(b"garbage");
    for (set, member, score) in [
        (names.retry(), job("a", "often"), 1.5),
        (names.schedule(), job("b", "of-nobody-here"), 1.5),
        (names.schedule(), job("later", "often"), 1e12),
        (names.retry(), garbage.clone(), 2.0),
    ] {
        bench.redis.zadd::<_, _, _, ()>(set, &member[..], score).await.unwrap();
    }
    let promoted = promoter::pass(&mut bench.session(), &bench.engine.protocol).await.unwrap();
    assert_eq!(promoted.moved, 3);
    assert_eq!(jids(&mut bench, &names.queue("often")).await, ["a"]);
    assert_eq!(jids(&mut bench, &names.queue("of-nobody-here")).await, ["b"]);
    let left: Vec<String> = bench.redis.zrange(names.schedule(), 0, -1).await.unwrap();
    assert_eq!((left.len(), left[0].contains("later")), (1, true));
    let dead: Vec<String> = bench.redis.zrange(names.dead(), 0, -1).await.unwrap();
    assert_eq!(dead, ["garbage"], "what Sidekiq would lose");
    let mut queues: Vec<String> = bench.redis.smembers(names.queues()).await.unwrap();
    queues.sort();
    assert_eq!(queues, ["of-nobody-here", "often"]);
    let (off, names) = self::bench(json!({ "sidekiq": { "promote": "off" } })).await;
    off.redis.clone().zadd::<_, _, _, ()>(names.retry(), &garbage[..], 1.0).await.unwrap();
    assert_eq!(promoter::pass(&mut off.session(), &off.engine.protocol).await.unwrap().moved, 0);
}

#[tokio::test]
async fn due_jobs_of_a_queue_that_cannot_be_used_keep_no_others_waiting() {
    let (mut bench, names) = bench(json!({})).await;
    bench.redis.set::<_, _, ()>(names.queue("broken"), "no list").await.unwrap();
    let mut add = redis::pipe();
    for n in 0..250 {
        add.zadd(names.retry(), &job(&format!("stuck-{n}"), "broken")[..], f64::from(n) / 1000.0).ignore();
    }
    for (n, jid) in (0u8..).zip(["a", "b", "c"]) {
        add.zadd(names.retry(), &job(jid, "often")[..], 0.05 + f64::from(n)).ignore();
    }
    add.query_async::<()>(&mut bench.redis).await.unwrap();
    let promoted = promoter::pass(&mut bench.session(), &bench.engine.protocol).await.unwrap();
    assert_eq!((promoted.moved, promoted.refused, promoted.more), (3, 250, false));
    assert_eq!(jids(&mut bench, &names.queue("often")).await, ["c", "b", "a"]);
    assert_eq!(bench.redis.zcard::<_, usize>(names.retry()).await.unwrap(), 250, "none is lost");
    bench.redis.del::<_, ()>(names.queue("broken")).await.unwrap();
    let promoted = promoter::pass(&mut bench.session(), &bench.engine.protocol).await.unwrap();
    assert_eq!((promoted.moved, promoted.refused), (250, 0));
}

#[tokio::test]
async fn a_look_says_which_queues_sidekiq_has_paused() {
    let (mut bench, names) = bench(json!({})).await;
    let paused = async |bench: &Bench| -> Vec<bool> {
        let snapshot = bench.session().snapshot(CONSUMING).await.unwrap();
        snapshot.queues.iter().map(|queue| queue.paused).collect()
    };
    assert_eq!(paused(&bench).await, [false, false]);
    bench.redis.sadd::<_, _, ()>(names.paused(), &["seldom", "of-others"]).await.unwrap();
    assert_eq!(paused(&bench).await, [false, true]);
    bench.redis.set::<_, _, ()>(names.paused(), "no set").await.unwrap();
    assert_eq!(paused(&bench).await, [false, false]);
}

#[tokio::test]
async fn slots_are_given_to_queues_as_drawn_and_to_others_where_one_is_empty() {
    let (mut bench, _) = bench(json!({})).await;
    let (often, seldom) = (bench.high().queue, bench.low().queue);
    let many = |queue: &str, count: usize| (0..count).map(|n| job(&n.to_string(), queue)).collect::<Vec<_>>();
    bench.push(&often, &many("often", 2)).await;
    bench.push(&seldom, &many("seldom", 10)).await;
    let mut lane = bench.lane().await;
    let mut cycle = lane.asking(6);
    // Three slots ask `often` first, which has two; three ask `seldom` first.
    cycle.orders = vec![1, 2, 2, 1, 1, 2, 2, 1, 1, 2, 2, 1];
    let cycled = lane.cycle(&cycle).await;
    let taken: Vec<usize> = cycled.queues.iter().map(|queue| queue.jobs.len()).collect();
    assert_eq!(taken, [2, 4]);
}

#[tokio::test]
async fn a_beat_shows_the_process_and_counts_once_however_often_it_is_said() {
    let (mut bench, names) = bench(json!({})).await;
    let beat = ProcessBeat {
        identity: "host:1:abc".into(),
        seq: 7,
        day: "2026-01-31".into(),
        processed: 5,
        failed: 2,
        fields: vec![("busy".into(), "1".into()), ("info".into(), "{}".into())],
        work: vec![("t1".into(), "{}".into())],
    };
    let mut session = bench.session();
    for _ in 0..2 {
        session.beat(&names, &beat).await.unwrap();
    }
    let counted: Vec<u64> = redis::cmd("MGET")
        .arg(names.stat("processed", None))
        .arg(names.stat("failed", None))
        .arg(names.stat("processed", Some("2026-01-31")))
        .query_async(&mut bench.redis)
        .await
        .unwrap();
    assert_eq!(counted, [5, 2, 5]);
    for suffix in ["", ":work", ":workers"] {
        let ttl: i64 = bench.redis.ttl(names.key(&format!("host:1:abc{suffix}"))).await.unwrap();
        assert!((1..=60).contains(&ttl), "{suffix}: {ttl}");
    }
    bench.redis.lpush::<_, _, ()>(names.key("host:1:abc-signals"), "TSTP").await.unwrap();
    bench.redis.sadd::<_, _, ()>(names.paused(), "seldom").await.unwrap();
    let told = session.told(&names, "host:1:abc").await.unwrap();
    assert_eq!(told, Told { signals: vec!["TSTP".into()], paused: vec!["seldom".into()] });
    assert_eq!(session.told(&names, "host:1:abc").await.unwrap().signals, Vec::<String>::new());

    bench.redis.sadd::<_, _, ()>(names.processes(), "gone:2:def").await.unwrap();
    assert_eq!(session.depart(&names, None).await.unwrap(), 1, "the one whose hash has lapsed");
    assert_eq!(session.depart(&names, Some("host:1:abc")).await.unwrap(), 1);
    let left: Vec<String> = bench.redis.keys(names.key("*")).await.unwrap();
    assert!(left.iter().all(|key| key.contains("stat:") || key.ends_with("paused")), "{left:?}");
}

#[tokio::test]
async fn what_is_sidekiqs_outlives_a_deletion_of_what_is_ours() {
    let (mut bench, names) = bench(json!({})).await;
    bench.push(&bench.high().queue, &[job("a", "often")]).await;
    bench.redis.zadd::<_, _, _, ()>(names.dead(), "d", 1.0).await.unwrap();
    let lane = bench.lane().await;
    drop(lane);
    bench.session().delete_all().await.unwrap();
    assert_eq!(jids(&mut bench, &names.queue("often")).await, ["a"]);
    assert_eq!(bench.redis.zcard::<_, u64>(names.dead()).await.unwrap(), 1);
    let ours: Vec<String> = bench.redis.keys(format!("{}:*", bench.engine.naming.prefix)).await.unwrap();
    assert_eq!(ours, Vec::<String>::new());
}
