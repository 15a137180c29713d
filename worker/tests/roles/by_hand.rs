//! `enqueue` and `job`: jobs made and looked for by hand.
use std::io::Write as _;
use std::process::{Output, Stdio};

use jobqueue::store::Registration;
use serde_json::{Value, json};

use crate::redis::Redis;
use crate::{DEAD, HIGH, LOW, answered, ids, letter, run, said, worker};

fn piped(redis: &Redis, args: &[&str], input: &str) -> Output {
    let mut child = worker(redis, args).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

#[tokio::test]
async fn jobs_are_enqueued_from_arguments_a_file_and_stdin() {
    let redis = Redis::start();
    let args = [
        "enqueue",
        "--queue",
        "high",
        "--arg",
        "id=7",
        "--arg",
        "filesize=5",
        "--arg",
        "note=x",
        "-o",
        "json",
    ];
    let made = answered(&run(&redis, &args));
    assert_eq!(made, json!({"enqueued": 1, "jobs": [{"id": "7", "queue": "high", "key": HIGH}]}));
    let job: Value = serde_json::from_slice(&redis.all(HIGH).await[0]).unwrap();
    assert_eq!(
        (&job["id"], &job["filesize"], &job["note"], &job["priority"]),
        (&json!("7"), &json!(5), &json!("x"), &json!("high"))
    );
    assert_eq!((&job["origin_queue"], &job["retries"]), (&json!(HIGH), &json!(0)));
    assert!(job["creation_time"].as_str().unwrap().parse::<jiff::Timestamp>().is_ok());

    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("job.json");
    std::fs::write(&file, r#"{"id":"f","big":12345678901234567890}"#).unwrap();
    assert!(run(&redis, &["enqueue", "--file", file.to_str().unwrap()]).status.success());
    assert!(
        redis.all(LOW).await[0].starts_with(br#"{"id":"f","big":12345678901234567890,"#),
        "in its own bytes"
    );
    let many = "{\"id\":\"1\"}\n{\"id\":\"2\",\"priority\":\"high\"}\n{}";
    let made = answered(&piped(&redis, &["enqueue", "-", "-o", "json", "--until-stdin-closes"], many));
    assert_eq!(made["enqueued"], 3, "the end of stdin is the end of the jobs");
    assert_eq!((redis.all(LOW).await.len(), redis.all(HIGH).await.len()), (3, 2));
}

#[tokio::test]
async fn nothing_is_enqueued_when_one_of_them_is_no_job() {
    let redis = Redis::start();
    let deep = format!(r#"{{"id":"a","x":{}{}}}"#, "[".repeat(200), "]".repeat(200));
    for (input, message) in [
        (r#"[{"id":"a"},{"id":7}]"#, "job 2: id: must be a text"),
        (r#"{"id":"a"} {"id":"b""#, "not JSON at line 1"),
        ("", "there is no job in it"),
        ("[]", "there is no job in it"),
        ("5", "must be a JSON object"),
        (r#"{"priority":"urgent"}"#, "priority = urgent: there is no such queue, only high, low"),
        (deep.as_str(), "levels deep"),
    ] {
        let output = piped(&redis, &["enqueue", "-"], input);
        assert_eq!(output.status.code(), Some(2), "{input}");
        assert!(said(&output.stderr).contains(message), "{input}: {}", said(&output.stderr));
    }
    for (args, message) in [
        (
            &["enqueue", "--queue", "hgih", "--arg", "a=b"][..],
            "--queue hgih: there is no such queue, only high, low",
        ),
        (&["enqueue", "--arg", "a"], "--arg a: must be KEY=VALUE"),
        (&["enqueue", "--file", "/nonexistent"], "/nonexistent: cannot read it"),
        (&["enqueue"], "required"),
        (&["enqueue", "-", "--arg", "a=b"], "cannot be used with"),
    ] {
        let output = run(&redis, args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(said(&output.stderr).contains(message), "{args:?}: {}", said(&output.stderr));
    }
    assert_eq!((redis.all(LOW).await.len(), redis.all(HIGH).await.len()), (0, 0));
    redis.session().set(LOW, "not a list").await.unwrap();
    let output = run(&redis, &["enqueue", "--arg", "id=a"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output.stderr).contains("jobqueue:low_priority: WRONGTYPE"), "{}", said(&output.stderr));
}

#[tokio::test]
async fn an_input_that_was_cut_off_or_is_too_large_enqueues_nothing() {
    let redis = Redis::start();
    let whole = "{\"id\":\"1\"}\n{\"id\":\"2\"}\n";
    let bytes = format!("--bytes={}", whole.len());
    for cut in [&whole[..11], &whole[..15], ""] {
        let output = piped(&redis, &["enqueue", "--file=-", &bytes], cut);
        assert_eq!(output.status.code(), Some(1), "{cut}");
        assert!(said(&output.stderr).contains("it was cut off on its way; nothing was enqueued"), "{cut}");
    }
    let large = format!("{{\"id\":\"{}\"}}", "x".repeat(16 << 20));
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("large.json");
    std::fs::write(&file, large).unwrap();
    let output = run(&redis, &["enqueue", "--file", file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output.stderr).contains("more than 16 MiB"), "{}", said(&output.stderr));
    assert!(redis.all(LOW).await.is_empty());
    let made = answered(&piped(&redis, &["enqueue", "--file=-", &bytes, "-o", "json"], whole));
    assert_eq!((&made["enqueued"], redis.all(LOW).await.len()), (&json!(2), 2));
}

#[tokio::test]
async fn a_job_is_enqueued_and_found_in_its_shard() {
    let redis = Redis::start();
    let admin = |args: &[&str]| worker(&redis, args).env("WORKER_SHARDS", "3").output().unwrap();
    let mut keys = std::collections::BTreeSet::new();
    for id in ["a", "b", "c", "d", "e", "f"] {
        let made = answered(&admin(&["enqueue", "--arg", &format!("id={id}"), "-o", "json"]));
        let key = made["jobs"][0]["key"].as_str().unwrap().to_owned();
        assert_eq!(ids(&redis.all(&key).await).last().map(String::as_str), Some(id));
        let found = answered(&admin(&["job", id, "-o", "json"]));
        assert_eq!(
            (&found["found"][0]["place"], &found["found"][0]["key"]),
            (&json!("waiting"), &json!(key))
        );
        keys.insert(key);
    }
    assert!(keys.len() > 1, "{keys:?}");
}

#[tokio::test]
async fn a_job_is_found_wherever_it_is() {
    let redis = Redis::start();
    redis.push(HIGH, &[br#"{"id":"next"}"#.to_vec(), br#"{"id":"waiting"}"#.to_vec()]).await;
    redis.push("jobqueue:low_priority:suspects", &[br#"{"id":"suspect","deaths":2}"#.to_vec()]).await;
    redis.push(DEAD, &[letter("dead", "oom", HIGH)]).await;
    redis.push("jobqueue:completed", &[br#"{"id":"completed"}"#.to_vec()]).await;
    redis.command::<()>(&[
        "ZADD",
        "jobqueue:delayed:low",
        "4102444800000",
        r#"x-1|{"id":"delayed","retries":1}"#,
    ]);
    let who = Registration {
        process: "pod-7-1".into(),
        pod_uid: "uid".into(),
        ttl_ms: 60_000,
        ..Registration::default()
    };
    let lane = redis.session().register(&who).await.unwrap();
    redis.push(&lane.lists[0].parked, &[br#"{"id":"held"}"#.to_vec()]).await;

    let find = |id: &str| {
        let found = answered(&run(&redis, &["job", id, "-o", "json"]));
        assert_eq!(
            (found["found"].as_array().unwrap().len(), &found["complete"]),
            (1, &json!(true)),
            "{found}"
        );
        assert_eq!(found["found"][0]["place"], id);
        found["found"][0].clone()
    };
    assert_eq!((&find("waiting")["ahead"], &find("waiting")["queue"]), (&json!(1), &json!("high")));
    assert_eq!(find("suspect")["history"]["deaths"], 2);
    let held = find("held");
    assert_eq!((&held["lane"], &held["process"]), (&json!(lane.id), &json!("pod-7-1")));
    assert_eq!((&held["host"], &held["pod_uid"]), (&json!("pod-7"), &json!("uid")));
    let delayed = find("delayed");
    assert_eq!(
        (&delayed["due_at"], &delayed["history"]["retries"]),
        (&json!("2100-01-01T00:00:00Z"), &json!(1))
    );
    assert!(delayed["due_in_ms"].as_u64().unwrap() > 1_000_000);
    let dead = find("dead");
    assert_eq!((&dead["history"]["reason"], &dead["history"]["error"]), (&json!("oom"), &json!("boom")));
    assert_eq!(find("completed")["job"]["id"], "completed");

    // Its process is dead, its jobs are still on their way back.
    let mut session = redis.session();
    session.unlink(&session.keys.heartbeat(&lane.id)).await.unwrap();
    session.fence(&lane.id, false, "test").await.unwrap();
    assert_eq!(find("held")["lane"], json!(lane.id));

    let nobody = run(&redis, &["job", "nobody", "-o", "json"]);
    assert_eq!(nobody.status.code(), Some(1));
    let told = said(&nobody.stderr);
    assert!(told.contains("no job has the id nobody: looked at all 7 in 9 places"), "{told}");
    let cut = run(&redis, &["job", "waiting", "--look-at", "1"]);
    assert_eq!(cut.status.code(), Some(1));
    let told = said(&cut.stderr);
    assert!(told.contains("looked at only 1 of 2 in jobqueue:high_priority (--look-at 1)"), "{told}");
}

#[tokio::test]
async fn a_redis_that_hangs_is_given_up_in_bounded_time() {
    let redis = Redis::start();
    redis.signal("-STOP");
    let mut command = worker(&redis, &["enqueue", "--arg", "id=a"]);
    let output =
        command.env("REDIS_READ_TIMEOUT", "200ms").env("REDIS_DIAL_TIMEOUT", "200ms").output().unwrap();
    redis.signal("-CONT");
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output.stderr).starts_with("Error: "), "{}", said(&output.stderr));
}

#[tokio::test]
async fn a_job_that_a_queue_only_names_is_found_with_all_it_says() {
    let redis = Redis::start();
    let id = "01a1ec49-ed4e-7379-a580-fd37f2b2b759";
    let job = json!({"id": id, "type": "mail", "payload": {}, "status": "pending", "created_at": "2026-01-01T00:00:00Z"});
    redis.command::<()>(&["SET", &format!("jobs:data:{id}"), &job.to_string()]);
    redis.command::<()>(&["RPUSH", "jobs:queue", id]);
    let admin = |args: &[&str]| worker(&redis, args).env("PROTOCOL", "async").output().unwrap();
    let found = answered(&admin(&["job", id, "-o", "json"]));
    assert_eq!(
        (&found["found"][0]["place"], &found["found"][0]["job"]),
        (&json!("waiting"), &job),
        "{found}"
    );
    assert_eq!(answered(&admin(&["peek", "-o", "json"])), json!([job]));
}

#[tokio::test]
async fn a_job_that_no_list_has_any_more_is_found_by_its_own_key() {
    let redis = Redis::start();
    let admin = |args: &[&str]| worker(&redis, args).env("PROTOCOL", "async").output().unwrap();
    for (status, place) in [("cancelled", "cancelled"), ("failed", "failed"), ("running", "unlisted")] {
        let job = json!({"id": status, "type": "mail", "status": status, "error": "boom"});
        redis.command::<()>(&["SET", &format!("jobs:data:{status}"), &job.to_string()]);
        let found = answered(&admin(&["job", status, "-o", "json"]));
        assert_eq!(found["found"].as_array().unwrap().len(), 1, "{found}");
        let found = &found["found"][0];
        assert_eq!((&found["place"], &found["job"]), (&json!(place), &job), "{found}");
        assert_eq!(
            (&found["key"], &found["history"]["error"]),
            (&json!(format!("jobs:data:{status}")), &json!("boom"))
        );
    }
    assert_eq!(admin(&["job", "gone"]).status.code(), Some(1));
}

#[tokio::test]
async fn a_job_that_a_queue_only_names_is_enqueued_with_its_data() {
    let redis = Redis::start();
    let admin = |args: &[&str]| worker(&redis, args).env("PROTOCOL", "async").output().unwrap();
    let made =
        answered(&admin(&["enqueue", "--arg", "type=mail", "--arg", "payload={\"n\":1.50}", "-o", "json"]));
    let id = made["jobs"][0]["id"].as_str().unwrap();
    assert_eq!((&made["enqueued"], &made["jobs"][0]["key"]), (&json!(1), &json!("jobs:queue")));
    assert_eq!(redis.all("jobs:queue").await, [id.to_owned()]);
    let data: String = redis.command(&["GET", &format!("jobs:data:{id}")]);
    let job: Value = serde_json::from_str(&data).unwrap();
    assert_eq!((&job["type"], &job["status"], &job["id"]), (&json!("mail"), &json!("pending"), &json!(id)));
    assert!(data.contains(r#""payload":{"n":1.50}"#), "{data}");
    assert!(redis.command::<Option<f64>>(&["ZSCORE", "jobs:index:pending", id]).is_some());
    let refused = admin(&["enqueue", "--arg", "type=mail", "--arg", &format!("id={id}")]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(said(&refused.stderr).contains("there is such a job"), "{}", said(&refused.stderr));
    assert_eq!(redis.all("jobs:queue").await.len(), 1);
}
