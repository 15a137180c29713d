//! Protocol `sidekiq`: the same commands on Sidekiq's own keys.
use serde_json::{Value, json};

use crate::redis::Redis;
use crate::{said, worker};

fn admin(redis: &Redis, args: &[&str]) -> (Option<i32>, Value, String) {
    let output = worker(redis, args).env("PROTOCOL", "sidekiq").output().unwrap();
    let answer = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
    (output.status.code(), answer, said(&output.stderr))
}

fn bury(redis: &Redis, score: f64, job: &Value) {
    redis.command::<()>(&["ZADD", "dead", &score.to_string(), &job.to_string()]);
}

fn job(jid: &str, class: &str) -> Value {
    json!({
        "class": "Hard", "args": [1, "x"], "jid": jid, "queue": "default", "retry": true, "created_at": 1.5,
        "retry_count": 25, "error_class": class, "error_message": "boom", "failed_at": 2.5,
    })
}

#[tokio::test]
async fn the_dead_set_is_listed_requeued_and_purged_like_any_dead_letters() {
    let redis = Redis::start();
    for n in 0..250 {
        bury(
            &redis,
            f64::from(n / 7),
            &job(&format!("j{n:03}"), if n % 2 == 0 { "ArgumentError" } else { "IOError" }),
        );
    }
    redis.command::<()>(&["ZADD", "dead", "0", "junk"]);
    let (code, listed, _) = admin(&redis, &["dlq", "list", "-o", "json", "--limit", "1"]);
    assert_eq!((code, &listed["total"]), (Some(0), &json!(251)));
    let newest = &listed["letters"][0];
    assert_eq!(
        (&newest["class"], &newest["queue"], &newest["error"]),
        (&json!("Hard"), &json!("default"), &json!("boom"))
    );
    assert_eq!(newest["failed_at"], "1970-01-01T00:00:35Z", "by the set, not by the job");
    assert_eq!(admin(&redis, &["dlq", "show", "j007", "-o", "json"]).1[0]["jid"], "j007");
    assert_eq!(admin(&redis, &["peek", "--queue", "dead", "-o", "json"]).1[0]["error_class"], "IOError");

    let (code, done, _) = admin(&redis, &["dlq", "requeue", "--reason", "IOError", "-o", "json"]);
    assert_eq!((code, &done["requeued"]), (Some(0), &json!(125)), "{done}");
    assert_eq!(
        (redis.command::<usize>(&["ZCARD", "dead"]), redis.command::<usize>(&["LLEN", "queue:default"])),
        (126, 125)
    );
    let first: String = redis.command(&["LINDEX", "queue:default", "-1"]);
    let first: Value = serde_json::from_str(&first).unwrap();
    assert_eq!(
        (&first["jid"], &first["retry_count"]),
        (&json!("j001"), &json!(24)),
        "as Sidekiq's own API does"
    );
    assert!(first["enqueued_at"].to_string().contains('.'), "in the job's own style: {first}");
    assert_eq!(redis.command::<Vec<String>>(&["SMEMBERS", "queues"]), ["default"]);

    let (_, done, _) = admin(&redis, &["dlq", "requeue", "-o", "json"]);
    assert_eq!(
        (&done["requeued"], &done["unusable"]),
        (&json!(125), &json!(1)),
        "what is no job stays: {done}"
    );
    assert_eq!(redis.command::<Vec<String>>(&["ZRANGE", "dead", "0", "-1"]), ["junk"]);
    bury(&redis, 5.0, &job("last", "IOError"));
    let output = worker(&redis, &["dlq", "purge", "--yes", "--reason", "IOError"])
        .env("PROTOCOL", "sidekiq")
        .output()
        .unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&output.stdout).unwrap()["jid"], "last");
    assert_eq!(redis.command::<Vec<String>>(&["ZRANGE", "dead", "0", "-1"]), ["junk"]);
}

#[tokio::test]
async fn a_queue_that_refuses_a_letter_is_named_and_the_letter_stays_dead() {
    let redis = Redis::start();
    bury(&redis, 1.0, &job("a", "IOError"));
    redis.command::<()>(&["SET", "queue:default", "not a list"]);
    let (code, _, error) = admin(&redis, &["dlq", "requeue"]);
    assert_eq!(code, Some(1));
    assert!(error.contains("queue:default: WRONGTYPE holds a string, must be a list"), "{error}");
    assert_eq!(redis.command::<usize>(&["ZCARD", "dead"]), 1);
}

#[tokio::test]
async fn a_job_is_enqueued_as_a_client_of_sidekiqs_would() {
    let redis = Redis::start();
    let args = ["enqueue", "--arg", "class=Hard", "--arg", "args=[1,\"x\"]", "-o", "json"];
    let (code, made, error) = admin(&redis, &args);
    assert_eq!(code, Some(0), "{error}");
    let jid = made["jobs"][0]["id"].as_str().unwrap();
    assert_eq!((jid.len(), &made["jobs"][0]["key"]), (24, &json!("queue:default")));
    let raw: String = redis.command(&["LINDEX", "queue:default", "0"]);
    let stored: Value = serde_json::from_str(&raw).unwrap();
    assert_eq!(
        (&stored["args"], &stored["retry"], &stored["queue"]),
        (&json!([1, "x"]), &json!(true), &json!("default"))
    );
    assert!(stored["enqueued_at"].to_string().contains('.'));
    assert_eq!(redis.command::<Vec<String>>(&["SMEMBERS", "queues"]), ["default"]);
    let (_, found, _) = admin(&redis, &["job", jid, "-o", "json"]);
    assert_eq!(found["found"][0]["place"], "waiting");

    // A queue whose jobs are of Sidekiq 8 gets another of that kind.
    redis.command::<()>(&["DEL", "queue:default"]);
    redis.command::<()>(&[
        "LPUSH",
        "queue:default",
        r#"{"class":"A","args":[],"jid":"b","created_at":1767225600000}"#,
    ]);
    assert_eq!(admin(&redis, &args).0, Some(0));
    let raw: String = redis.command(&["LINDEX", "queue:default", "0"]);
    assert!(!serde_json::from_str::<Value>(&raw).unwrap()["enqueued_at"].to_string().contains('.'), "{raw}");
    for (args, message) in [
        (&["enqueue", "--arg", "class=Hard"][..], "args: must be there, an array"),
        (&["enqueue", "--arg", "args=[]"], "class: must be there"),
        (&["peek", "--queue", "completed"], "Sidekiq keeps no jobs that are done"),
    ] {
        let (code, _, error) = admin(&redis, args);
        assert_eq!(code, Some(2));
        assert!(error.contains(message), "{error}");
    }
}

#[tokio::test]
async fn jobs_that_wait_for_their_time_are_counted_and_found() {
    let redis = Redis::start();
    redis.command::<()>(&["ZADD", "retry", "4102444800.5", &job("again", "IOError").to_string()]);
    redis.command::<()>(&["ZADD", "schedule", "4102444800", &job("later", "IOError").to_string()]);
    let (_, stats, _) = admin(&redis, &["stats", "-o", "json"]);
    assert_eq!((&stats["retry"], &stats["scheduled"]), (&json!(1), &json!(1)));
    let (_, found, _) = admin(&redis, &["job", "again", "-o", "json"]);
    assert_eq!(
        (&found["found"][0]["place"], &found["found"][0]["due_at"]),
        (&json!("retry"), &json!("2100-01-01T00:00:00.5Z"))
    );
    assert_eq!(admin(&redis, &["job", "later", "-o", "json"]).1["found"][0]["place"], "scheduled");
    assert_eq!(admin(&redis, &["peek", "--queue", "delayed", "-o", "json"]).1.as_array().unwrap().len(), 2);
}
