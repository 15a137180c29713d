//! `--role=admin`.
use std::process::Output;
use std::time::{Duration, Instant};

use bytes::Bytes;
use jobqueue::effects::Side;
use jobqueue::store::{PageKind, Registration, Turn};
use serde_json::{Value, json};

use crate::redis::{Redis, eventually};
use crate::{DEAD, HIGH, LOW, run, said, signal, worker};

fn answered(output: &Output) -> Value {
    assert!(output.status.success(), "{}", said(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn letter(id: &str, reason: &str, queue: &str) -> Vec<u8> {
    let letter = json!({
        "id": id, "priority": "low", "retries": 4, "error": "boom", "reason": reason,
        "failed_at": "2026-01-01T00:00:00Z", "origin_queue": queue,
    });
    letter.to_string().into_bytes()
}

fn ids(entries: &[Bytes]) -> Vec<String> {
    let id = |raw: &Bytes| serde_json::from_slice::<Value>(raw).unwrap()["id"].as_str().unwrap().to_owned();
    entries.iter().map(id).collect()
}

#[tokio::test]
async fn a_page_from_the_tail_has_every_entry_once() {
    let redis = Redis::start();
    let mut session = redis.session();
    for length in [1, 9, 10, 11, 20, 95, 100, 110] {
        let entries: Vec<_> = (0..length).map(|i| format!("{i:03}").into_bytes()).collect();
        session.purge("jobqueue:list").await.unwrap();
        redis.push("jobqueue:list", &entries).await;
        let page = session.page("jobqueue:list", PageKind::Tail, 100).await.unwrap();
        let expected: Vec<_> = entries.iter().take(100).map(|entry| Bytes::from(entry.clone())).collect();
        assert_eq!(page.entries, expected, "of {length}");
        let rest = session.page_after("jobqueue:list", PageKind::Tail, 8, 5).await.unwrap();
        assert_eq!(rest.entries, expected.iter().skip(8).take(5).cloned().collect::<Vec<_>>(), "of {length}");
    }
}

#[tokio::test]
async fn stats_count_what_waits_runs_and_is_dead() {
    let redis = Redis::start();
    redis.push(HIGH, &[br#"{"id":"a"}"#.to_vec()]).await;
    redis.push("jobqueue:low_priority:suspects", &[br#"{"id":"b"}"#.to_vec()]).await;
    redis.push(DEAD, &[letter("c", "oom", HIGH), letter("d", "oom", HIGH)]).await;
    let who = Registration { process: "h-1".into(), ttl_ms: 60_000, ..Registration::default() };
    let lane = redis.session().register(&who).await.unwrap();
    redis.push(&lane.lists[1].held, &[br#"{"id":"e"}"#.to_vec()]).await;
    assert!(run(&redis, &["pause"]).status.success());

    let stats = answered(&run(&redis, &["stats", "-o", "json"]));
    assert_eq!(stats["queues"][0]["waiting"], 1);
    assert_eq!((&stats["queues"][1]["suspects"], &stats["queues"][1]["in_flight"]), (&json!(1), &json!(1)));
    assert_eq!(
        (&stats["lanes"], &stats["heartbeats"], &stats["dead_letters"]),
        (&json!(1), &json!(1), &json!(2))
    );
    assert_eq!(stats["paused"], true);
    assert!(run(&redis, &["resume"]).status.success());
    let table = said(&run(&redis, &["--role=admin", "stats"]).stdout);
    assert!(table.starts_with("QUEUE   WAITING   SUSPECTS"), "{table}");
    assert!(table.trim_end().ends_with("no"), "{table}");
}

#[tokio::test]
async fn stats_name_a_key_that_cannot_be_read_and_show_all_the_rest() {
    let redis = Redis::start();
    redis.session().set(HIGH, "not a list").await.unwrap();
    redis.push(LOW, &[br#"{"id":"a"}"#.to_vec()]).await;
    let output = run(&redis, &["stats", "-o", "json"]);
    assert_eq!(output.status.code(), Some(1));
    let stats: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&stats["queues"][0]["waiting"], &stats["queues"][1]["waiting"]), (&json!(0), &json!(1)));
    let error = "jobqueue:high_priority: WRONGTYPE holds a string, must be a list";
    assert!(stats["errors"][0].as_str().unwrap().starts_with(error), "{stats}");
    assert!(said(&output.stderr).contains(error));

    // A list of one lane: what the others hold is still counted.
    let who = Registration { process: "h-1".into(), ttl_ms: 60_000, ..Registration::default() };
    let (one, two) =
        (redis.session().register(&who).await.unwrap(), redis.session().register(&who).await.unwrap());
    redis.session().set(&one.lists[0].held, "not a list").await.unwrap();
    redis.push(&two.lists[0].parked, &[br#"{"id":"b"}"#.to_vec()]).await;
    let stats: Value = serde_json::from_slice(&run(&redis, &["stats", "-o", "json"]).stdout).unwrap();
    assert_eq!(stats["totals"]["in_flight"], 1, "{stats}");
    assert!(stats["errors"].to_string().contains(&one.lists[0].held), "{stats}");
}

#[tokio::test]
async fn the_dead_letters_of_a_shard_that_is_only_left_over_are_seen_and_requeued() {
    let redis = Redis::start();
    redis.session().set("{jobqueue:0}:layout", "v1 3 tagged").await.unwrap();
    let (dead, queue) = ("{jobqueue:2}:dead_letter", "{jobqueue:2}:high_priority");
    redis.push(dead, &[letter("a", "oom", queue)]).await;
    for shards in ["1", "2"] {
        let admin = |args: &[&str]| worker(&redis, args).env("WORKER_SHARDS", shards).output().unwrap();
        assert_eq!(answered(&admin(&["stats", "-o", "json"]))["dead_letters"], 1, "{shards} shards");
        assert_eq!(answered(&admin(&["peek", "--queue", "dead", "-o", "json"]))[0]["id"], "a");
    }
    let done = answered(&run(&redis, &["requeue-dlq", "-o", "json"]));
    assert_eq!(done["requeued"], 1);
    assert_eq!(ids(&redis.all(queue).await), ["a"], "to a queue that is served until it is empty");
}

#[tokio::test]
async fn peek_shows_suspects_first_and_never_garbles_the_terminal() {
    let redis = Redis::start();
    let jobs = [br#"{"id":"first"}"#.to_vec(), b"\xff\x1b[2J".to_vec(), br#"{"id":"third"}"#.to_vec()];
    redis.push(HIGH, &jobs).await;
    redis.push("jobqueue:high_priority:suspects", &[br#"{"id":"suspect"}"#.to_vec()]).await;
    let table = said(&run(&redis, &["peek", "--queue", "high"]).stdout);
    let column: Vec<_> = table.lines().skip(1).map(|line| line.split_whitespace().next().unwrap()).collect();
    assert_eq!(column, ["suspect", "first", "-", "third"], "{table}");
    assert!(!table.contains('\x1b'), "{table}");
    let entries = answered(&run(&redis, &["peek", "--queue", "high", "-n", "3", "-o", "json"]));
    assert_eq!(
        entries,
        json!([{"id": "suspect"}, {"id": "first"}, {"raw_encoding": "base64", "raw": "/xtbMko="}])
    );
    let unknown = run(&redis, &["peek", "--queue", "hgih"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(said(&unknown.stderr).contains("only high, low, dead and completed"));
}

#[tokio::test]
async fn nothing_is_purged_without_yes() {
    let redis = Redis::start();
    redis.push(DEAD, &[letter("a", "oom", HIGH), letter("b", "oom", HIGH)]).await;
    let refused = run(&redis, &["purge-dlq"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(said(&refused.stderr).contains("would delete 2 dead letters"));
    assert_eq!(redis.all(DEAD).await.len(), 2);
    assert_eq!(answered(&run(&redis, &["purge-dlq", "--yes", "-o", "json"])), json!({"deleted": 2}));
    assert!(redis.all(DEAD).await.is_empty());
}

#[tokio::test]
async fn requeued_jobs_go_home_as_new_and_the_others_keep_their_order() {
    let redis = Redis::start();
    let wrapped = json!({"raw": "/wA=", "raw_encoding": "base64", "reason": "oom", "origin_queue": HIGH});
    let letters = [
        letter("a", "oom", HIGH),
        letter("b", "handler", LOW),
        letter("c", "oom", "jobqueue:gone"),
        wrapped.to_string().into(),
        letter("d", "handler", HIGH),
    ];
    redis.push(DEAD, &letters).await;
    let would = answered(&run(&redis, &["requeue-dlq", "--reason", "oom", "--dry-run", "-o", "json"]));
    assert_eq!((&would["matched"], &would["requeued"]), (&json!(3), &json!(0)));
    assert_eq!(redis.all(DEAD).await.len(), 5, "a dry run moves nothing");

    let done = answered(&run(&redis, &["requeue-dlq", "--reason", "oom", "-o", "json"]));
    assert_eq!((&done["requeued"], &done["by_queue"]), (&json!(3), &json!({"high": 2, "low": 1})));
    assert_eq!(ids(&redis.all(DEAD).await), ["b", "d"]);
    let high = redis.all(HIGH).await;
    assert_eq!(high[1], Bytes::from_static(b"\xff\x00"));
    let revived: Value = serde_json::from_slice(&high[0]).unwrap();
    assert_eq!(revived, json!({"id": "a", "priority": "low", "retries": 0, "origin_queue": HIGH}));
    assert_eq!(ids(&redis.all(LOW).await), ["c"], "its queue is gone: by priority");

    let missing = run(&redis, &["requeue-dlq", "--id", "d", "--id", "nobody"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(said(&missing.stdout).contains("No dead letter has the id nobody"));
    assert_eq!(ids(&redis.all(DEAD).await), ["b"]);
    assert_eq!(run(&redis, &["requeue-dlq", "--reason", "weather"]).status.code(), Some(2));
}

#[tokio::test]
async fn a_repeated_turn_loses_and_doubles_nothing_even_among_equal_letters() {
    let redis = Redis::start();
    let equal = letter("same", "oom", HIGH);
    redis.push(DEAD, &vec![equal.clone(); 7]).await;
    let mut session = redis.session();
    let push = Turn::Push { key: HIGH.into(), side: Side::Left, bytes: Bytes::from_static(b"{}") };
    let step: Vec<_> = (0..3).map(|_| (Bytes::from(equal.clone()), push.clone())).collect();
    // The reply to the first is lost, so it is sent again; and a third time.
    for _ in 0..3 {
        session.turn(DEAD, &step).await.unwrap();
        assert_eq!(redis.all(DEAD).await.len() + redis.all(HIGH).await.len(), 7);
    }
    assert_eq!(redis.all(HIGH).await.len(), 7);
}

#[tokio::test]
async fn two_requeues_at_once_lose_and_double_nothing() {
    let redis = Redis::start();
    let reason = |i: u32| if i.is_multiple_of(2) { "oom" } else { "panic" };
    let letters: Vec<_> = (0..3000).map(|i| letter(&i.to_string(), reason(i), HIGH)).collect();
    redis.push(DEAD, &letters).await;
    let both =
        ["oom", "panic"].map(|reason| worker(&redis, &["requeue-dlq", "--reason", reason]).spawn().unwrap());
    for requeue in both {
        let output = requeue.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", said(&output.stderr));
    }
    assert!(run(&redis, &["requeue-dlq"]).status.success());
    let high = redis.all(HIGH).await;
    let mut all = ids(&high);
    all.sort_unstable();
    all.dedup();
    assert_eq!((all.len(), high.len(), redis.all(DEAD).await.len()), (3000, 3000, 0));
}

#[tokio::test]
async fn an_interrupted_requeue_says_how_far_it_got() {
    let redis = Redis::start();
    redis.push(DEAD, &(0..500).map(|i| letter(&i.to_string(), "oom", HIGH)).collect::<Vec<_>>()).await;
    let child = worker(&redis, &["requeue-dlq", "--rate", "20", "-o", "json"]).spawn().unwrap();
    eventually("some are requeued", async || !redis.all(HIGH).await.is_empty()).await;
    signal(&child, "-INT");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    let requeued = redis.all(HIGH).await.len();
    assert_eq!((&told["requeued"], &told["interrupted"]), (&json!(requeued), &json!(true)));
    assert_eq!(requeued + redis.all(DEAD).await.len(), 500);
}

#[tokio::test]
async fn what_hinders_a_command_is_one_line_that_says_what_to_do() {
    let redis = Redis::start();
    redis.session().set(DEAD, "not a list").await.unwrap();
    for args in [&["stats"][..], &["requeue-dlq"], &["purge-dlq", "--yes"], &["peek", "--queue", "dead"]] {
        let output = run(&redis, args);
        let error = said(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
        assert!(error.contains("jobqueue:dead_letter: WRONGTYPE holds a string, must be a list"), "{error}");
    }
    let wrong = worker(&redis, &["stats"]).env("REDIS_PASSWORD", "wrong").output().unwrap();
    assert!(said(&wrong.stderr).contains("check redis.username and redis.password"));
    let began = Instant::now();
    let away = worker(&redis, &["stats"]).env("REDIS_ADDR", "127.0.0.1:1").output().unwrap();
    assert_eq!(away.status.code(), Some(1));
    assert!(said(&away.stderr).contains("cannot reach Redis at 127.0.0.1:1"), "{}", said(&away.stderr));
    assert!(began.elapsed() < Duration::from_secs(6), "bounded by the dial timeout");
}
