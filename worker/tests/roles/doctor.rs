//! `doctor`: what it finds in a real Redis.
use jobqueue::store::Registration;
use serde_json::{Value, json};

use crate::redis::Redis;
use crate::{DEAD, HIGH, LOW, run, said, worker};

fn doctor(redis: &Redis, settings: &[(&str, &str)]) -> (Option<i32>, Value) {
    let output = worker(redis, &["doctor", "-o", "json"]).envs(settings.iter().copied()).output().unwrap();
    (output.status.code(), serde_json::from_slice(&output.stdout).unwrap())
}

fn found<'a>(report: &'a Value, id: &str) -> Vec<&'a Value> {
    report["findings"].as_array().unwrap().iter().filter(|finding| finding["id"] == id).collect()
}

#[tokio::test]
async fn a_report_has_facts_checks_and_findings_that_say_what_to_do() {
    let redis = Redis::start();
    let (code, report) = doctor(&redis, &[]);
    assert_eq!(code, Some(0), "{report}");
    let server = &report["redis"];
    assert_eq!((&server["maxmemory_policy"], &server["aof_enabled"]), (&json!("noeviction"), &json!(false)));
    assert_eq!((&server["role"], &server["mode"]), (&json!("master"), &json!("standalone")));
    assert!(server["clock_skew_ms"].as_i64().unwrap().abs() < 1000, "one machine, one clock: {server}");
    assert!(report["checks"].as_array().unwrap().len() > 10);
    let persistence = found(&report, "persistence");
    assert_eq!((persistence.len(), &persistence[0]["severity"]), (1, &json!("warning")));
    for finding in report["findings"].as_array().unwrap() {
        for field in ["what", "why", "fix"] {
            assert!(!finding[field].as_str().unwrap().is_empty(), "{finding}");
        }
    }
    let page = said(&run(&redis, &["doctor"]).stdout);
    assert!(
        page.contains("WARNING  persistence: nothing is written to disk") && page.contains("Fix: "),
        "{page}"
    );
}

#[tokio::test]
async fn what_will_lose_jobs_is_an_error_and_the_worst_comes_first() {
    let redis = Redis::start();
    redis.command::<()>(&["CONFIG", "SET", "maxmemory", "100mb"]);
    redis.command::<()>(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let settings = [("WORKER_HANDLER_KIND", "http"), ("WORKER_HANDLER_HTTP_URL", "http://127.0.0.1:1")];
    let (code, report) = doctor(&redis, &settings);
    assert_eq!((code, &report["findings"][0]["id"]), (Some(1), &json!("eviction")), "{report}");
    assert_eq!(found(&report, "drain")[0]["severity"], "warning");
    assert_eq!(report["config"]["handler_timeout_ms"], 60_000);
}

#[tokio::test]
async fn stuck_lanes_foreign_keys_and_old_layouts_are_found() {
    let redis = Redis::start();
    let who = Registration { process: "h-1".into(), ttl_ms: 60_000, ..Registration::default() };
    let mut session = redis.session();
    let lane = session.register(&who).await.unwrap();
    redis.push(&lane.lists[0].parked, &[br#"{"id":"a"}"#.to_vec()]).await;
    redis.push(HIGH, &[br#"{"id":"b"}"#.to_vec()]).await;
    session.unlink(&session.keys.heartbeat(&lane.id)).await.unwrap();
    redis.command::<()>(&["ZADD", &session.keys.lanes(), "5", &lane.id]);
    redis.command::<()>(&["SET", "jobqueue:junk", "x"]);
    redis.command::<()>(&["SET", "jobqueue:rate_limit:producer", "1"]);
    redis.command::<()>(&["SET", "jobqueue:sidekiq:lane_seq", "1"]);
    redis.command::<()>(&["SET", "jobqueue:completed", "not a list"]);
    redis.command::<()>(&["SET", "{jobqueue:0}:layout", "v1 3 tagged"]);
    redis.command::<()>(&["LPUSH", "{jobqueue:2}:dead_letter", "{}"]);
    let (code, report) = doctor(&redis, &[]);
    assert_eq!(code, Some(1), "{report}");
    assert!(found(&report, "lanes")[0]["what"].as_str().unwrap().contains(&lane.id), "{report}");
    assert_eq!(found(&report, "reaper")[0]["severity"], "error");
    assert_eq!(found(&report, "queues")[0]["what"], "1 job waiting, and no worker is there");
    let keys: Vec<_> =
        found(&report, "keys").iter().map(|finding| finding["what"].as_str().unwrap()).collect();
    assert_eq!(
        keys,
        [
            "jobqueue:completed holds a string, must be a list",
            "1 keys under jobqueue are none that this queue uses: jobqueue:junk"
        ]
    );
    assert!(found(&report, "layout")[0]["what"].as_str().unwrap().contains("{jobqueue:2}:lanes"), "{report}");
}

#[tokio::test]
async fn what_a_healthy_queue_leaves_in_redis_is_known() {
    for shards in ["1", "3"] {
        let redis = Redis::start();
        for verb in
            [&["pause"][..], &["enqueue", "--arg", "id=x"], &["enqueue", "--arg", "id=y", "--queue", "high"]]
        {
            assert!(worker(&redis, verb).env("WORKER_SHARDS", shards).output().unwrap().status.success());
        }
        if shards == "1" {
            redis.push(LOW, &[br#"{"id":"a"}"#.to_vec()]).await;
            redis.push(DEAD, &[b"{}".to_vec()]).await;
            let who = Registration { process: "h-1".into(), ttl_ms: 60_000, ..Registration::default() };
            redis.session().register(&who).await.unwrap();
            redis.session().quiet("uid", "1", std::time::Duration::from_secs(60)).await.unwrap();
            redis.session().own(HIGH, "somebody", None).await.unwrap();
        }
        let (_, report) = doctor(&redis, &[("WORKER_SHARDS", shards)]);
        assert!(found(&report, "keys").is_empty(), "{report}");
        assert_eq!(
            found(&report, "queues").iter().filter(|finding| finding["severity"] == "info").count(),
            1,
            "paused"
        );
    }
}

#[tokio::test]
async fn nobody_writes_to_the_terminal_by_the_name_of_a_key() {
    let redis = Redis::start();
    redis.command::<()>(&["SET", "jobqueue:junk\u{1b}[2J\u{202e}", "x"]);
    let page = said(&run(&redis, &["doctor"]).stdout);
    assert!(page.contains("jobqueue:junk\\u{1b}[2J\\u{202e}") && !page.contains('\u{1b}'), "{page}");
}
