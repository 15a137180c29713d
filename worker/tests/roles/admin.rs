//! `--role=admin`: looking at queues, and what is said when that cannot be.
use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::time::{Duration, Instant};

use bytes::Bytes;
use jobqueue::store::{PageKind, Registration};
use serde_json::{Value, json};

use crate::redis::Redis;
use crate::{DEAD, HIGH, LOW, answered, ids, letter, run, said, worker};

#[tokio::test]
async fn a_page_from_the_tail_has_every_entry_once() {
    let redis = Redis::start();
    let mut session = redis.session();
    for length in [1, 9, 10, 11, 20, 95, 100, 110] {
        let entries: Vec<_> = (0..length).map(|i| format!("{i:03}").into_bytes()).collect();
        session.unlink("jobqueue:list").await.unwrap();
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
    let process = &stats["processes"][0];
    assert_eq!((&process["host"], &process["pid"]), (&json!("h"), &json!(1)));
    assert_eq!(
        (&process["lanes"], &process["in_flight"], &process["state"]),
        (&json!(1), &json!(1), &json!("active"))
    );
    assert_eq!(stats["counters"]["done"], 0);
    assert!(run(&redis, &["resume"]).status.success());
    let table = said(&run(&redis, &["--role=admin", "stats"]).stdout);
    assert!(table.starts_with("QUEUE   WAITING   SUSPECTS"), "{table}");
    assert!(table.contains("PAUSED\n") && table.contains("h-1       active"), "{table}");
    let yaml = said(&run(&redis, &["stats", "-o", "yaml"]).stdout);
    assert!(yaml.contains("\ndead_letters: 2\n"), "{yaml}");
}

#[tokio::test]
async fn stats_tell_a_quiet_process_from_one_that_is_gone() {
    let redis = Redis::start();
    let who = |process: &str| Registration {
        process: process.into(),
        pod_uid: format!("uid-{process}"),
        ttl_ms: 60_000,
        ..Registration::default()
    };
    let mut session = redis.session();
    let told = session.register(&who("told-1")).await.unwrap();
    let gone = session.register(&who("gone-1")).await.unwrap();
    session.extend(&[(&told, &br#"{"id":"long"}"#[..])], 60_000, "high=open low=closed").await.unwrap();
    session.quiet("uid-told-1", "7", Duration::from_secs(60)).await.unwrap();
    session.unlink(&session.keys.heartbeat(&gone.id)).await.unwrap();
    let stats = answered(&run(&redis, &["stats", "-o", "json"]));
    let seen: Vec<_> =
        stats["processes"].as_array().unwrap().iter().map(|process| &process["state"]).collect();
    assert_eq!(seen, ["expired", "quiet"], "{stats}");
    assert_eq!(stats["processes"][1]["oldest_job"], "long");
    assert_eq!(
        (&stats["queues"][0]["breaker"], &stats["queues"][1]["breaker"]),
        (&json!("open"), &json!("closed"))
    );
    session.fence(&gone.id, false, "test").await.unwrap();
    let stats = answered(&run(&redis, &["stats", "-o", "json"]));
    assert_eq!((&stats["fenced"], &stats["processes"][0]["state"]), (&json!(1), &json!("fenced")));
}

#[tokio::test]
async fn watched_stats_are_a_line_a_look_until_stdin_closes() {
    let redis = Redis::start();
    let mut command = worker(&redis, &["stats", "-w", "0.1", "-o", "json", "--until-stdin-closes"]);
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let stdin = child.stdin.take();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let look = |line: String| serde_json::from_str::<Value>(&line).unwrap();
    let (first, second) = (look(lines.next().unwrap().unwrap()), look(lines.next().unwrap().unwrap()));
    assert!(first["per_second"].is_null(), "{first}");
    assert_eq!(second["per_second"], json!({"reserved": 0.0, "done": 0.0, "failed": 0.0}));
    drop(stdin);
    assert_eq!(child.wait().unwrap().code(), Some(130), "whoever asked is gone");
    assert_eq!(run(&redis, &["stats", "-w", "0"]).status.code(), Some(2));
}

#[tokio::test]
async fn what_is_delayed_can_be_peeked_at_over_all_shards() {
    let redis = Redis::start();
    let soon: &[&str] =
        &["ZADD", "{jobqueue:1}:delayed:low", "99999999999999", r#"x-1|{"id":"later","retries":1}"#];
    redis.command::<()>(soon);
    redis.command::<()>(&["ZADD", "{jobqueue:0}:delayed:high", "5", r#"x-2|{"id":"due"}"#]);
    let admin = |args: &[&str]| worker(&redis, args).env("WORKER_SHARDS", "2").output().unwrap();
    let entries = answered(&admin(&["peek", "--queue", "delayed", "-o", "json"]));
    assert_eq!(entries, json!([{"id": "due"}, {"id": "later", "retries": 1}]));
    let table = said(&admin(&["peek", "--queue", "delayed"]).stdout);
    assert!(table.contains("due in "), "{table}");
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
    assert!(said(&unknown.stderr).contains("only high, low, delayed, dead and completed"));
}

#[tokio::test]
async fn what_hinders_a_command_is_one_line_that_says_what_to_do() {
    let redis = Redis::start();
    redis.session().set(DEAD, "not a list").await.unwrap();
    for args in [
        &["stats"][..],
        &["requeue-dlq"],
        &["purge-dlq", "--yes"],
        &["peek", "--queue", "dead"],
        &["dlq", "list"],
        &["dlq", "requeue"],
        &["dlq", "show", "a"],
        &["job", "a"],
    ] {
        let output = run(&redis, args);
        let error = said(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
        assert!(error.contains("jobqueue:dead_letter: WRONGTYPE holds a string, must be a list"), "{error}");
    }
    let wrong = worker(&redis, &["stats"]).env("REDIS_PASSWORD", "wrong").output().unwrap();
    assert!(said(&wrong.stderr).contains("check redis.username and redis.password"));
    for verb in [&["stats"][..], &["doctor"], &["dlq", "requeue"], &["enqueue", "--arg", "a=b"], &["pause"]] {
        let began = Instant::now();
        let away = worker(&redis, verb).env("REDIS_ADDR", "127.0.0.1:1").output().unwrap();
        assert_eq!(away.status.code(), Some(1));
        assert!(said(&away.stderr).contains("cannot reach Redis at 127.0.0.1:1"), "{}", said(&away.stderr));
        println!("{verb:?} gave up after {:?}", began.elapsed());
    }
}
