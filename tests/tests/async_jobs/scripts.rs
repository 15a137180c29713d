//! Every transition of an async job, on a real Redis.
#![allow(clippy::unwrap_used, reason = "a panic is the report")]
use std::time::Duration;

use bytes::Bytes;
use e2e::engine::{failure, kill};
use jobqueue::effects::Verdict;
use jobqueue::outcome::Outcome;
use jobqueue::store::{Answer, Fenced, Order, Ordered, Status};
use redis::AsyncCommands as _;
use serde_json::{Value, json};

use crate::stage::{Runner, bench, cancel, create, job, listed, lives_for, promote, queue, revive};

const HEARTBEAT: Duration = Duration::from_millis(50);

#[tokio::test]
async fn a_job_of_a_client_that_only_sets_and_pushes_runs_and_keeps_what_it_brought() {
    let mut bench = bench().await;
    create(&mut bench, "a").await;
    let mut runner = Runner::new(&bench).await;
    let entry = runner.lane.reserve(1).await.remove(0);
    assert_eq!(entry, "a");
    let opened = runner.open(&entry).await.unwrap();
    let running = job(&mut bench, "a").await;
    assert_eq!((&running["status"], &running["attempts"]), (&json!("running"), &json!(1)));
    assert_eq!(running["worker"], runner.lane.handle.id.as_str());
    assert_eq!(opened.fields.kind, "email");
    assert_eq!(listed(&mut bench, "running").await, ["a"]);
    let result = Outcome::DoneWith(Bytes::from_static(br#"{"sent":12345678901234567890}"#));
    assert_eq!(runner.finish(&entry, opened, &result).await, Verdict::Done);

    let raw: String = bench.redis.get(queue(&bench).jobs.data("a")).await.unwrap();
    assert!(raw.contains(r#""n":12345678901234567890"#) && raw.contains(r#""mine":1.5"#), "{raw}");
    assert!(raw.contains(r#""result":{"sent":12345678901234567890}"#), "{raw}");
    let done = job(&mut bench, "a").await;
    assert_eq!(
        (&done["status"], &done["error"], &done["worker"]),
        (&json!("completed"), &Value::Null, &Value::Null)
    );
    assert!(done["completed_at"].as_str().unwrap() >= done["started_at"].as_str().unwrap());
    assert!(lives_for(&mut bench, "a").await.unwrap() > 23 * 3_600_000);
    assert_eq!(listed(&mut bench, "completed").await, ["a"]);
    assert!(listed(&mut bench, "running").await.is_empty());
    let snapshot = bench.session().snapshot(jobqueue::effects::Side::Left).await.unwrap();
    assert_eq!((snapshot.completed, snapshot.in_flight, snapshot.counter("done")), (1, 0, 1));
}

#[tokio::test]
async fn jobs_are_taken_from_the_left_and_their_age_is_known() {
    let mut bench = bench().await;
    for id in ["a", "b", "c"] {
        create(&mut bench, id).await;
    }
    let snapshot = bench.session().snapshot(jobqueue::effects::Side::Left).await.unwrap();
    assert_eq!(snapshot.queues[0].waiting, 3);
    assert!(snapshot.queues[0].oldest_age(snapshot.now_ms).is_some(), "read from the job it names");
    let mut runner = Runner::new(&bench).await;
    assert_eq!(runner.lane.reserve(2).await, ["a", "b"]);
    let opened = runner.open(&Bytes::from_static(b"b")).await.unwrap();
    runner.finish(&Bytes::from_static(b"b"), opened, &Outcome::Released).await;
    assert_eq!(bench.list(&queue(&bench).queue).await, ["b", "c"], "released: next out");
    let released = job(&mut bench, "b").await;
    assert_eq!(
        (&released["status"], &released["attempts"], &released["started_at"]),
        (&json!("pending"), &json!(0), &Value::Null)
    );
}

#[tokio::test]
async fn every_change_of_a_status_is_published() {
    let mut bench = bench().await;
    let client =
        redis::Client::open(format!("redis://{}", e2e::engine::shared_server().await.addr())).unwrap();
    let mut listener = client.get_async_pubsub().await.unwrap();
    listener.subscribe(queue(&bench).jobs.events()).await.unwrap();
    create(&mut bench, "a").await;
    let mut runner = Runner::new(&bench).await;
    let entry = runner.lane.reserve(1).await.remove(0);
    let opened = runner.open(&entry).await.unwrap();
    runner.finish(&entry, opened, &failure()).await;
    promote(&bench).await;
    runner.run_all().await;
    let mut heard = Vec::new();
    let mut messages = listener.on_message();
    for _ in 0..4 {
        let message = futures::StreamExt::next(&mut messages).await.unwrap();
        heard.push(message.get_payload::<String>().unwrap());
    }
    assert_eq!(heard, ["a running", "a pending", "a running", "a completed"]);
}

#[tokio::test]
async fn a_failed_job_waits_as_pending_and_fails_for_good_when_its_retries_are_used_up() {
    let mut bench = bench().await;
    create(&mut bench, "a").await;
    let mut runner = Runner::new(&bench).await;
    for attempt in 1..=4 {
        let entry = runner.lane.reserve(1).await.remove(0);
        let opened = runner.open(&entry).await.unwrap();
        let verdict = runner.finish(&entry, opened, &failure()).await;
        let seen = job(&mut bench, "a").await;
        assert_eq!((&seen["attempts"], &seen["error"]), (&json!(attempt), &json!("no")));
        if attempt < 4 {
            assert_eq!((verdict, &seen["status"]), (Verdict::Retried, &json!("pending")));
            assert_eq!(listed(&mut bench, "pending").await, ["a"]);
            promote(&bench).await;
        } else {
            assert!(matches!(verdict, Verdict::Dead(_)));
            assert_eq!(seen["status"], "failed");
        }
    }
    assert!(lives_for(&mut bench, "a").await.is_some());
    let letters = bench.list(&queue(&bench).dead_letters).await;
    let letter: Value = serde_json::from_slice(&letters[0]).unwrap();
    assert_eq!(
        (&letter["id"], &letter["reason"], &letter["attempts"]),
        (&json!("a"), &json!("handler"), &json!(4))
    );
}

#[tokio::test]
async fn a_revived_job_starts_anew_and_lives_for_ever_until_it_is_over() {
    let mut bench = bench().await;
    create(&mut bench, "a").await;
    let mut runner = Runner::new(&bench).await;
    let entry = runner.lane.reserve(1).await.remove(0);
    let opened = runner.open(&entry).await.unwrap();
    runner.finish(&entry, opened, &kill()).await;
    let mut session = bench.session();
    assert_eq!(revive(&mut session, &bench).await.unwrap(), 1);
    let revived = job(&mut bench, "a").await;
    assert_eq!(
        (&revived["status"], &revived["attempts"], &revived["error"]),
        (&json!("pending"), &json!(0), &Value::Null)
    );
    assert_eq!(lives_for(&mut bench, "a").await, None);
    assert!(listed(&mut bench, "failed").await.is_empty());
    assert_eq!(runner.run_all().await, 1);
    assert_eq!(job(&mut bench, "a").await["status"], "completed");
}

#[tokio::test]
async fn the_same_id_queued_twice_runs_once_wherever_its_first_run_is() {
    let mut bench = bench().await;
    create(&mut bench, "a").await;
    bench.redis.rpush::<_, _, ()>(queue(&bench).queue, &["a", "a"]).await.unwrap();
    let (mut first, mut second) = (Runner::new(&bench).await, Runner::new(&bench).await);
    let entry = first.lane.reserve(1).await.remove(0);
    let opened = first.open(&entry).await.unwrap();
    let other = second.lane.reserve(1).await.remove(0);
    assert!(second.open(&other).await.is_none(), "it runs elsewhere");
    first.finish(&entry, opened, &Outcome::Done).await;
    assert_eq!(second.run_all().await, 0, "it is over");
    assert_eq!(job(&mut bench, "a").await["attempts"], 1);
    bench.assert_conserved(&["a"]).await;
}

#[tokio::test]
async fn what_names_no_job_becomes_a_dead_letter_that_says_why() {
    let mut bench = bench().await;
    let queue = queue(&bench);
    bench.redis.set::<_, _, ()>(queue.jobs.data("text"), "not json").await.unwrap();
    bench.redis.set::<_, _, ()>(queue.jobs.data("odd"), r#"{"status":"lost"}"#).await.unwrap();
    bench.redis.lpush::<_, _, ()>(queue.jobs.data("list"), "x").await.unwrap();
    bench.redis.set::<_, _, ()>(queue.jobs.data("large"), vec![b' '; 2 << 20]).await.unwrap();
    bench.redis.rpush::<_, _, ()>(&queue.queue, &["gone", "text", "odd", "list", "large"]).await.unwrap();
    for status in ["pending", "running"] {
        bench.redis.zadd::<_, _, _, ()>(queue.jobs.index(status), "gone", 1).await.unwrap();
    }
    let mut runner = Runner::new(&bench).await;
    assert_eq!(runner.run_all().await, 0);
    let letters = bench.list(&queue.dead_letters).await;
    let reasons: Vec<_> = (letters.iter().rev())
        .map(|letter| serde_json::from_slice::<Value>(letter).unwrap())
        .map(|letter| {
            (letter["id"].as_str().unwrap().to_owned(), letter["reason"].as_str().unwrap().to_owned())
        })
        .collect();
    let expected = [
        ("gone", "no-data"),
        ("text", "malformed"),
        ("odd", "malformed"),
        ("list", "malformed"),
        ("large", "oversize"),
    ];
    assert_eq!(reasons, expected.map(|(id, reason)| (id.to_owned(), reason.to_owned())));
    for status in ["pending", "running"] {
        assert!(listed(&mut bench, status).await.is_empty(), "what is gone is not listed as {status}");
    }
}

#[tokio::test]
async fn a_cancelled_job_is_dropped_when_its_id_is_met_and_lives_from_then_on_as_long_as_any_other() {
    let mut bench = bench().await;
    create(&mut bench, "a").await;
    create(&mut bench, "b").await;
    let mut session = bench.session();
    assert!(cancel(&mut session, "a").await);
    assert_eq!(lives_for(&mut bench, "a").await, None, "its id is still queued");
    let index = queue(&bench).jobs.index("cancelled");
    // As if it had been cancelled longer ago than jobs are kept.
    bench.redis.zadd::<_, _, _, ()>(&index, "a", 1).await.unwrap();
    let mut runner = Runner::new(&bench).await;
    assert_eq!(runner.lane.reserve(2).await, ["a", "b"]);
    assert!(runner.open(&Bytes::from_static(b"a")).await.is_none());
    assert!(lives_for(&mut bench, "a").await.is_some());

    let entry = Bytes::from_static(b"b");
    let opened = runner.open(&entry).await.unwrap();
    assert!(cancel(&mut session, "b").await, "while it runs");
    assert_eq!(runner.finish(&entry, opened, &Outcome::Done).await, Verdict::Dropped);
    assert_eq!(job(&mut bench, "b").await["status"], "cancelled", "its outcome is not written over that");
    assert!(lives_for(&mut bench, "b").await.is_some());
    create(&mut bench, "c").await;
    assert_eq!(runner.run_all().await, 1);
    assert_eq!(listed(&mut bench, "cancelled").await, ["a", "b"], "as long as they live");
    assert!(bench.redis.pttl::<_, i64>(&index).await.unwrap() > 23 * 3_600_000, "and the list no longer");
    create(&mut bench, "d").await;
    assert!(cancel(&mut session, "d").await);
    assert_eq!(bench.redis.pttl::<_, i64>(&index).await.unwrap(), -1, "it is listed until its id is met");
}

#[tokio::test]
async fn a_foreign_write_while_it_runs_does_not_lose_the_outcome() {
    let mut bench = bench().await;
    create(&mut bench, "a").await;
    let mut runner = Runner::new(&bench).await;
    let entry = runner.lane.reserve(1).await.remove(0);
    let opened = runner.open(&entry).await.unwrap();
    let mut changed = job(&mut bench, "a").await;
    changed["progress"] = json!(50);
    bench.redis.set::<_, _, ()>(queue(&bench).jobs.data("a"), changed.to_string()).await.unwrap();
    assert_eq!(runner.finish(&entry, opened, &Outcome::Done).await, Verdict::Done);
    let done = job(&mut bench, "a").await;
    assert_eq!((&done["status"], &done["progress"]), (&json!("completed"), &json!(50)));
}

#[tokio::test]
async fn the_jobs_of_a_dead_lane_come_back_as_pending_and_tell_the_story() {
    let mut bench = bench().await;
    for id in ["a", "b", "c", "d", "e"] {
        create(&mut bench, id).await;
    }
    let keys = queue(&bench).jobs;
    let mut runner = Runner::new(&bench).await;
    runner.lane.reserve(5).await;
    for id in ["a", "b", "d"] {
        runner.open(&Bytes::from_static(id.as_bytes())).await.unwrap();
    }
    assert!(cancel(&mut bench.session(), "b").await);
    bench.redis.del::<_, ()>(keys.data("e")).await.unwrap();
    // Another lane runs `c`, which was queued twice.
    let mut other = Runner::new(&bench).await;
    bench.redis.rpush::<_, _, ()>(queue(&bench).queue, "c").await.unwrap();
    let entry = other.lane.reserve(1).await.remove(0);
    let elsewhere = other.open(&entry).await.unwrap();

    let lane = runner.lane.handle.id.clone();
    assert_eq!(bench.session().fence(&lane, true, "heartbeat").await.unwrap(), Fenced::Fenced);
    assert!(
        runner.lane.session.start(&runner.lane.handle, &[]).await.unwrap().is_none(),
        "its lease is gone"
    );
    bench.reaper(HEARTBEAT).pass().await.unwrap();
    assert_eq!(bench.list(&queue(&bench).queue).await, ["a", "d"], "next out, in their order");
    let back = job(&mut bench, "a").await;
    assert_eq!(
        (&back["status"], &back["attempts"], &back["deaths"]),
        (&json!("pending"), &json!(1), &json!(1))
    );
    assert_eq!(back["error"], "its worker died while it ran (heartbeat)");
    assert_eq!(job(&mut bench, "b").await["status"], "cancelled");
    assert!(lives_for(&mut bench, "b").await.is_some());
    assert_eq!(job(&mut bench, "c").await["status"], "running", "by the other lane");
    assert_eq!(bench.ids(&queue(&bench).dead_letters).await, ["e"]);
    other.finish(&entry, elsewhere, &Outcome::Done).await;
    assert_eq!(other.run_all().await, 2);
    assert_eq!(job(&mut bench, "a").await["attempts"], 2);
    assert_eq!(job(&mut bench, "c").await["attempts"], 1);
}

#[tokio::test]
async fn a_lane_starts_only_what_it_holds() {
    let mut bench = bench().await;
    create(&mut bench, "a").await;
    let mut runner = Runner::new(&bench).await;
    let entry = Bytes::from_static(b"a");
    let (_, effects) = runner.decide_start(&entry).await.unwrap();
    assert_eq!(runner.start(&entry, effects.clone()).await, Status::NotHeld);
    assert_eq!(job(&mut bench, "a").await["status"], "pending");
    // What a parked fetch brought counts: it is started before a cycle moves it.
    bench
        .redis
        .lmove::<_, _, ()>(
            queue(&bench).queue,
            &runner.lane.handle.lists[0].parked,
            redis::Direction::Left,
            redis::Direction::Right,
        )
        .await
        .unwrap();
    assert_eq!(runner.start(&entry, effects).await, Status::Settled);
}

#[tokio::test]
async fn settling_drops_what_is_too_old_from_the_indices_a_page_at_a_time() {
    let mut bench = bench().await;
    let keys = queue(&bench).jobs;
    for n in 0..250 {
        bench.redis.zadd::<_, _, _, ()>(keys.index("failed"), format!("old-{n}"), 1).await.unwrap();
    }
    let mut runner = Runner::new(&bench).await;
    for left in [150, 50, 0] {
        create(&mut bench, "a").await;
        assert_eq!(runner.run_all().await, 1);
        assert_eq!(listed(&mut bench, "failed").await.len(), left);
    }
}

#[tokio::test]
async fn a_shard_has_its_jobs_under_its_tag() {
    let mut tree = crate::stage::config();
    tree["worker"]["shards"] = json!(2);
    let mut bench = e2e::engine::Bench::on(e2e::engine::shared_server().await, tree).await;
    create(&mut bench, "a").await;
    assert_eq!(Runner::new(&bench).await.run_all().await, 1);
    assert!(queue(&bench).jobs.data("a").starts_with('{'));
    assert_eq!(job(&mut bench, "a").await["status"], "completed");
    assert_eq!(listed(&mut bench, "completed").await, ["a"]);
}

#[tokio::test]
async fn the_end_of_a_queue_leaves_no_job_of_it() {
    let mut bench = bench().await;
    create(&mut bench, "a").await;
    create(&mut bench, "b").await;
    let mut runner = Runner::new(&bench).await;
    let entry = runner.lane.reserve(1).await.remove(0);
    runner.open(&entry).await.unwrap();
    bench.session().delete_all().await.unwrap();
    let base = queue(&bench).jobs.data("");
    let left: Vec<String> = bench.redis.keys(base.replace("data:", "*")).await.unwrap();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test]
async fn an_index_that_is_none_keeps_no_job_from_being_run() {
    let mut bench = bench().await;
    let keys = queue(&bench).jobs;
    for status in ["pending", "running", "completed"] {
        bench.redis.set::<_, _, ()>(keys.index(status), "oops").await.unwrap();
    }
    create(&mut bench, "a").await;
    assert_eq!(Runner::new(&bench).await.run_all().await, 1);
    assert_eq!(job(&mut bench, "a").await["status"], "completed");
}

#[tokio::test]
async fn an_idempotency_key_lives_as_long_as_its_job() {
    let mut bench = bench().await;
    let (keys, hash) = (queue(&bench).jobs, "0f".repeat(32));
    create(&mut bench, "a").await;
    let mut written = job(&mut bench, "a").await;
    written["idempotency_key"] = hash.clone().into();
    bench.redis.set::<_, _, ()>(keys.data("a"), written.to_string()).await.unwrap();
    bench.redis.set::<_, _, ()>(keys.idem(&hash), "a body").await.unwrap();
    assert_eq!(Runner::new(&bench).await.run_all().await, 1);
    let (job, key): (i64, i64) =
        (bench.redis.pttl(keys.data("a")).await.unwrap(), bench.redis.pttl(keys.idem(&hash)).await.unwrap());
    assert!(job > 0 && job.abs_diff(key) < 10_000, "{job} and {key}");
}

#[tokio::test]
async fn the_key_of_a_batch_lapses_with_the_last_of_its_jobs_and_comes_back_with_a_revived_one() {
    let mut bench = bench().await;
    let (keys, hash) = (queue(&bench).jobs, "0f".repeat(32));
    let unfinished = jobqueue::protocol::async_jobs::unfinished(&keys, &hash);
    let jobs = ["a", "b", "c"].map(|id| {
        let json = json!({ "id": id, "type": "t", "status": "pending", "idempotency_key": hash });
        Ordered { id: id.into(), bytes: json.to_string().into() }
    });
    let order = Order {
        jobs: jobs.to_vec(),
        idempotency: Some((hash.clone(), "body".into())),
        created_ms: 1,
        gone: Vec::new(),
    };
    let mut session = bench.session();
    for _ in 0..2 {
        assert_eq!(session.create(&[&order]).await.unwrap(), [Answer::Created], "said again: the same");
    }
    let mut runner = Runner::new(&bench).await;
    let entries = runner.lane.reserve(3).await;
    assert!(cancel(&mut session, "a").await);
    let ends = [None, Some(kill()), Some(Outcome::Done)];
    for (n, (entry, end)) in entries.iter().zip(ends).enumerate() {
        let lapses: i64 = bench.redis.pttl(keys.idem(&hash)).await.unwrap();
        let month = 29 * 24 * 3_600_000;
        assert!(lapses == -1 && n == 0 || lapses > month, "{n} of three are over: {lapses}");
        match (runner.open(entry).await, end) {
            (Some(opened), Some(end)) => drop(runner.finish(entry, opened, &end).await),
            (None, None) => {}
            other => panic!("{other:?}"),
        }
    }
    let lapses: i64 = bench.redis.pttl(keys.idem(&hash)).await.unwrap();
    assert!(lapses > 23 * 3_600_000, "{lapses}");
    assert!(!bench.redis.exists::<_, bool>(&unfinished).await.unwrap());
    revive(&mut session, &bench).await.unwrap();
    assert_eq!(bench.redis.pttl::<_, i64>(keys.idem(&hash)).await.unwrap(), -1);
    assert_eq!(runner.run_all().await, 1);
    assert!(bench.redis.pttl::<_, i64>(keys.idem(&hash)).await.unwrap() > 0);
    assert!(!bench.redis.exists::<_, bool>(&unfinished).await.unwrap());
}
