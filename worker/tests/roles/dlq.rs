//! `dlq`: the dead letters, listed, shown, requeued and purged.
use bytes::Bytes;
use jobqueue::effects::Side;
use jobqueue::store::Turn;
use serde_json::{Value, json};

use crate::redis::Redis;
use crate::{DEAD, HIGH, LOW, answered, ids, letter, run, said, worker};

#[tokio::test]
async fn nothing_is_purged_without_yes() {
    let redis = Redis::start();
    redis.push(DEAD, &[letter("a", "oom", HIGH), letter("b", "oom", HIGH)]).await;
    let refused = run(&redis, &["purge-dlq"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(said(&refused.stderr).contains("there are 2"), "{}", said(&refused.stderr));
    assert_eq!(redis.all(DEAD).await.len(), 2);
    let done = answered(&run(&redis, &["purge-dlq", "--yes", "-o", "json"]));
    assert_eq!((&done["deleted"], &done["archive"]), (&json!(2), &Value::Null));
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
    let push = Turn::push(HIGH, Side::Left, Bytes::from_static(b"{}"));
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
        // Whoever met the other says that some may have been passed over.
        let met = said(&output.stdout).contains("Somebody else moved dead letters");
        assert_eq!(output.status.code(), Some(i32::from(met)), "{}", said(&output.stderr));
    }
    assert!(run(&redis, &["requeue-dlq"]).status.success());
    let high = redis.all(HIGH).await;
    let mut all = ids(&high);
    all.sort_unstable();
    all.dedup();
    assert_eq!((all.len(), high.len(), redis.all(DEAD).await.len()), (3000, 3000, 0));
}

#[tokio::test]
async fn letters_are_listed_newest_first_by_every_selector() {
    let redis = Redis::start();
    let recent =
        json!({"id": "new", "reason": "timeout", "error": "slow [1]", "failed_at": "2999-01-01T00:00:00Z"});
    let letters = [letter("old", "oom", HIGH), recent.to_string().into_bytes(), b"\xff\x1b[2J".to_vec()];
    redis.push(DEAD, &letters).await;
    let list = |selectors: &[&str]| {
        let args = [&["dlq", "list", "-o", "json"], selectors].concat();
        let listed = answered(&run(&redis, &args));
        let ids = listed["letters"].as_array().unwrap().iter().map(|letter| letter["id"].clone());
        (ids.collect::<Value>(), listed)
    };
    let (all, listed) = list(&[]);
    assert_eq!(all, json!([null, "new", "old"]), "{listed}");
    assert_eq!((&listed["total"], &listed["complete"]), (&json!(3), &json!(true)));
    let old = &listed["letters"][2];
    assert_eq!((&old["queue"], &old["reason"], &old["retries"]), (&json!("high"), &json!("oom"), &json!(4)));
    assert!(old.get("letter").is_none());
    assert_eq!(list(&["--reason", "oom"]).0, json!(["old"]));
    assert_eq!(list(&["--older-than", "1h"]).0, json!(["old"]));
    assert_eq!(list(&["--match", "slow [1]"]).0, json!(["new"]));
    assert_eq!(list(&["--match", "*\"id\":\"o?d\"*"]).0, json!(["old"]));
    assert_eq!(list(&["--limit", "2"]).0, json!([null, "new"]));
    assert_eq!(
        list(&["--reason", "malformed", "--full"]).1["letters"][0]["letter"]["raw_encoding"],
        "base64"
    );
    let cut = list(&["--look-at", "1"]).1;
    assert_eq!((&cut["looked_at"], &cut["complete"]), (&json!(1), &json!(false)));
    let table = said(&run(&redis, &["dlq", "list"]).stdout);
    assert!(table.contains("3 of 3 dead letters") && !table.contains('\x1b'), "{table}");

    assert_eq!(answered(&run(&redis, &["dlq", "show", "old", "-o", "json"]))[0]["error"], "boom");
    for (args, code, message) in [
        (&["dlq", "show", "nobody"][..], 1, "no dead letter has the id nobody: looked at 3 of 3"),
        (&["dlq", "list", "--id", "nobody"], 1, "no dead letter has the id nobody"),
        (
            &["dlq", "list", "--reason", "weather"],
            2,
            "--reason weather: there is no such reason, only handler",
        ),
        (&["dlq", "list", "--match", ""], 2, "--match: must have 1 to 1024 bytes"),
        (&["dlq", "list", "--older-than", "soon"], 2, "must be a duration"),
        (&["dlq", "list", "--limit", "0"], 2, "0 is not in"),
    ] {
        let output = run(&redis, args);
        assert_eq!(output.status.code(), Some(code), "{args:?}");
        assert!(said(&output.stderr).contains(message), "{args:?}: {}", said(&output.stderr));
    }
}

#[tokio::test]
async fn only_what_is_selected_is_requeued_and_no_more_than_asked_for() {
    let redis = Redis::start();
    let letters: Vec<_> = (0..250)
        .map(|i| letter(&format!("{i:03}"), if i % 2 == 0 { "oom" } else { "panic" }, HIGH))
        .collect();
    redis.push(DEAD, &letters).await;
    let done = answered(&run(&redis, &["dlq", "requeue", "--reason", "oom", "--limit", "60", "-o", "json"]));
    assert_eq!((&done["requeued"], &done["looked_at"]), (&json!(60), &json!(120)), "{done}");
    let high = ids(&redis.all(HIGH).await);
    assert_eq!((high.len(), high[0].as_str(), high[59].as_str()), (60, "000", "118"), "the oldest first");
    let left = redis.all(DEAD).await;
    assert_eq!(left.len(), 190);
    let done = answered(&run(&redis, &["dlq", "requeue", "--match", "*\"id\":\"24?\"*", "-o", "json"]));
    assert_eq!(done["requeued"], 10);
}

#[tokio::test]
async fn a_purge_keeps_each_letter_in_the_archive() {
    let redis = Redis::start();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("dead.ndjson");
    let path = file.to_str().unwrap();
    redis.push(DEAD, &[letter("a", "oom", HIGH), letter("b", "panic", HIGH), b"two\nlines".to_vec()]).await;
    let dry = answered(&run(&redis, &["dlq", "purge", "--dry-run", "-o", "json"]));
    assert_eq!((&dry["matched"], &dry["deleted"], &dry["archive"]), (&json!(3), &json!(0), &Value::Null));
    let purge = ["dlq", "purge", "--yes", "--reason", "oom", "--archive", path, "-o", "json"];
    let done = answered(&run(&redis, &purge));
    assert_eq!((&done["deleted"], &done["archived"], &done["archive"]), (&json!(1), &json!(1), &json!(path)));
    assert_eq!(std::fs::read(&file).unwrap(), [letter("a", "oom", HIGH), b"\n".to_vec()].concat());
    let again = run(&redis, &["dlq", "purge", "--yes", "--archive", path]);
    assert_eq!(again.status.code(), Some(2), "nobody's archive is overwritten");
    assert!(said(&again.stderr).contains("name another file"), "{}", said(&again.stderr));
    assert_eq!(redis.all(DEAD).await.len(), 2);

    // The rest to stdout, which is the archive's alone.
    let output = run(&redis, &["dlq", "purge", "--yes", "-o", "json"]);
    assert!(output.status.success());
    let lines: Vec<Value> =
        said(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&lines[0]["id"], &lines[1]), (&json!("b"), &json!({"raw": "two\nlines"})));
    let told: Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!(told["result"]["deleted"], 2, "{told}");
    assert!(redis.all(DEAD).await.is_empty());
    let nothing = run(&redis, &["dlq", "purge", "--yes", "--archive", "/nonexistent/file"]);
    assert_eq!(nothing.status.code(), Some(2));
    assert_eq!(
        run(&redis, &["dlq", "purge", "--yes", "--acknowledged", "--archive", "x"]).status.code(),
        Some(2)
    );
}

#[tokio::test]
async fn every_shards_letters_are_served() {
    let redis = Redis::start();
    let (dead, queue) =
        (|n: u8| format!("{{jobqueue:{n}}}:dead_letter"), |n: u8| format!("{{jobqueue:{n}}}:high_priority"));
    for shard in 0..3 {
        let letters: Vec<_> =
            (0..150).map(|i| letter(&format!("{shard}-{i}"), "oom", &queue(shard))).collect();
        redis.push(&dead(shard), &letters).await;
    }
    let admin = |args: &[&str]| worker(&redis, args).env("WORKER_SHARDS", "3").output().unwrap();
    let listed = answered(&admin(&["dlq", "list", "-o", "json"]));
    assert_eq!((listed["letters"].as_array().unwrap().len(), &listed["total"]), (100, &json!(450)));
    assert_eq!(answered(&admin(&["dlq", "show", "2-7", "-o", "json"]))[0]["id"], "2-7");
    let done = answered(&admin(&["dlq", "requeue", "--limit", "200", "-o", "json"]));
    assert_eq!((&done["requeued"], &done["total"]), (&json!(200), &json!(300)), "two shards were enough");
    assert_eq!((redis.all(&queue(0)).await.len(), redis.all(&queue(1)).await.len()), (150, 50));
    let done = answered(&admin(&["dlq", "purge", "--yes", "--no-archive", "--id", "2-7", "-o", "json"]));
    assert_eq!(done["deleted"], 1);
    assert_eq!(redis.all(&dead(2)).await.len(), 149);
}

#[tokio::test]
async fn progress_is_told_in_lines_of_json() {
    let redis = Redis::start();
    redis.push(DEAD, &(0..300).map(|i| letter(&i.to_string(), "oom", HIGH)).collect::<Vec<_>>()).await;
    let output = run(&redis, &["dlq", "requeue", "--progress", "json", "-o", "json"]);
    assert_eq!(answered(&output)["requeued"], 300);
    let lines: Vec<Value> =
        said(&output.stderr).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let last = &lines[lines.len() - 1]["progress"];
    assert_eq!(
        (&last["verb"], &last["looked_at"], &last["total"]),
        (&json!("requeue"), &json!(300), &json!(300))
    );
    assert!(lines.len() >= 2, "one on the way, one at the end");
}

#[tokio::test]
async fn a_letter_whose_job_is_gone_stays_as_it_is_and_is_said_to() {
    const QUEUE: &str = "jobs:queue";
    let redis = Redis::start();
    let (there, gone) = ("01a1ec49-ed4e-7379-a580-fd37f2b2b759", "01a1ec49-ed4e-7379-a580-fd37f2b2b760");
    let job = json!({"id": there, "type": "mail", "payload": {}, "status": "failed", "created_at": "2026-01-01T00:00:00Z"});
    redis.command::<()>(&["SET", &format!("jobs:data:{there}"), &job.to_string()]);
    let admin = |args: &[&str]| worker(&redis, args).env("PROTOCOL", "async").output().unwrap();
    let dead = "jobs:dead_letter";
    let letters = [gone, there]
        .map(|id| json!({"id": id, "error": "boom", "reason": "timeout", "origin_queue": QUEUE}).to_string());
    redis.push(dead, &letters.clone().map(String::into_bytes)).await;
    let partly = |args: &[&str]| -> Value {
        let output = admin(args);
        assert_eq!(output.status.code(), Some(1), "a letter that was asked for stays");
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let would = partly(&["dlq", "requeue", "--dry-run", "-o", "json"]);
    assert_eq!((&would["matched"], &would["unusable"]), (&json!(2), &json!(1)), "{would}");
    let done = partly(&["dlq", "requeue", "-o", "json"]);
    assert_eq!((&done["requeued"], &done["unusable"]), (&json!(1), &json!(1)), "{done}");
    assert_eq!(partly(&["dlq", "requeue", "--id", gone, "-o", "json"])["requeued"], 0);
    assert_eq!(redis.all(QUEUE).await, [Bytes::from(there)]);
    assert_eq!(redis.all(dead).await, [Bytes::from(letters[0].clone())], "with its reason and its error");
    let told = said(&admin(&["dlq", "requeue"]).stdout);
    assert!(told.contains("1 cannot be run again (no jobs, or their data is gone), and stay"), "{told}");
}

#[tokio::test]
async fn a_purged_letter_is_kept_with_the_job_that_it_names_and_can_be_enqueued_again() {
    let redis = Redis::start();
    let admin = |args: &[&str]| worker(&redis, args).env("PROTOCOL", "async").output().unwrap();
    let job = r#"{"id":"a","type":"mail","payload":{"n":1.50},"status":"failed","attempts":4,"mine":7}"#;
    redis.command::<()>(&["SET", "jobs:data:a", job]);
    let letters =
        [r#"{"id":"a","type":"mail","reason":"killed","origin_queue":"jobs:queue"}"#, r#"{"id":"gone"}"#];
    redis.push("jobs:dead_letter", &letters.map(|letter| letter.as_bytes().to_vec())).await;
    let dir = tempfile::tempdir().unwrap();
    let (archive, one) = (dir.path().join("letters"), dir.path().join("one"));
    assert!(admin(&["dlq", "purge", "--yes", "--archive", archive.to_str().unwrap()]).status.success());
    let kept = std::fs::read_to_string(&archive).unwrap();
    let with_job = letters[0].replace('}', &format!(r#","job":{job}}}"#));
    let lines: std::collections::HashSet<&str> = kept.lines().collect();
    assert_eq!(lines, [with_job.as_str(), letters[1]].into(), "{kept}");
    // Its time to live is over.
    redis.command::<()>(&["DEL", "jobs:data:a"]);
    std::fs::write(&one, with_job).unwrap();
    assert_eq!(answered(&admin(&["enqueue", one.to_str().unwrap(), "-o", "json"]))["jobs"][0]["id"], "a");
    let again: String = redis.command(&["GET", "jobs:data:a"]);
    assert!(again.contains(r#""payload":{"n":1.50},"status":"pending","attempts":0,"mine":7"#), "{again}");
    assert_eq!(redis.all("jobs:queue").await, ["a"]);
}

#[tokio::test]
async fn an_id_that_was_not_met_is_named_with_how_far_it_was_looked_for() {
    let redis = Redis::start();
    redis
        .push(DEAD, &[letter("old", "oom", HIGH), letter("mid", "oom", HIGH), letter("new", "oom", HIGH)])
        .await;
    let output = run(&redis, &["dlq", "list", "--id", "old", "--look-at", "2", "-o", "json"]);
    assert_eq!(output.status.code(), Some(1));
    let told = said(&output.stderr);
    assert!(told.contains("no dead letter has the id old: looked at 2 of 3; raise --look-at"), "{told}");
    let listed: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&listed["complete"], &listed["not_found"]), (&json!(false), &json!(["old"])));
    let found = answered(&run(&redis, &["dlq", "list", "--id", "old", "-o", "json"]));
    assert_eq!((&found["not_found"], &found["letters"][0]["id"]), (&json!([]), &json!("old")));
    let limited =
        answered(&run(&redis, &["dlq", "list", "--id", "new", "--id", "old", "--limit", "1", "-o", "json"]));
    assert_eq!(limited["not_found"], json!([]), "it stopped looking: nothing is known of the other");
}
