//! The worker's binary with async jobs: killed wherever it can be, its handlers by type, its admin commands.
#![allow(clippy::unwrap_used, reason = "a panic is the report")]
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use e2e::{Behaviour, Options, Proxy, Recorder, RedisServer, Worker, WorkerOptions, eventually};
use redis::AsyncCommands as _;
use redis::aio::MultiplexedConnection;
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(30);

struct Scene {
    server: RedisServer,
    recorder: Recorder,
    redis: MultiplexedConnection,
}

impl Scene {
    async fn start() -> Self {
        let server = RedisServer::start(Options::default()).await;
        let redis = e2e::redis_server::connect(&format!("redis://{}", server.addr())).await;
        Self { server, recorder: Recorder::start().await, redis }
    }

    fn options(&self) -> WorkerOptions {
        WorkerOptions::new("worker")
            .redis(self.server.addr())
            .recorded_by(&self.recorder)
            .env("PROTOCOL", "async")
            .env("WORKER_COUNT", 8)
    }

    fn admin(&self, words: &[&str]) -> Value {
        let mut options = WorkerOptions::new("").redis(self.server.addr()).env("PROTOCOL", "async");
        for word in words {
            options = options.arg(*word);
        }
        let output = options.arg("-o").arg("json").output();
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// As the seed's client does.
    async fn create(&mut self, id: &str, kind: &str) {
        let job = json!({ "id": id, "type": kind, "payload": { "to": id }, "status": "pending",
            "created_at": "2026-01-01T00:00:00Z" });
        self.redis.set::<_, _, ()>(format!("jobs:data:{id}"), job.to_string()).await.unwrap();
        self.redis.rpush::<_, _, ()>("jobs:queue", id).await.unwrap();
    }

    async fn job(&mut self, id: &str) -> Value {
        let json: Option<String> = self.redis.get(format!("jobs:data:{id}")).await.unwrap();
        json.map_or(Value::Null, |json| serde_json::from_str(&json).unwrap())
    }

    async fn until(&mut self, id: &str, status: &str) -> Value {
        eventually(SOON, &format!("{id} to be {status}"), async || {
            let job = self.job(id).await;
            if job["status"] == status { Ok(job) } else { Err(job) }
        })
        .await
    }
}

#[tokio::test]
async fn a_job_whose_worker_was_killed_is_running_then_pending_then_completed() {
    let mut scene = Scene::start().await;
    scene.recorder.by_default(Behaviour::Hold);
    let mut worker = Worker::spawn(&scene.options());
    scene.create("a", "email").await;
    let running = scene.until("a", "running").await;
    assert_eq!((&running["attempts"], running["started_at"].is_string()), (&json!(1), true));
    scene.recorder.wait_started("a", 1).await;
    worker.kill9();
    // Reaps for all, but takes none of the jobs that come back.
    let reaper = Worker::spawn(
        &scene.options().config("worker: {priorities: [other], queues: {other: 'jobs:queue:other'}}"),
    );
    let pending = scene.until("a", "pending").await;
    assert_eq!(
        (&pending["attempts"], &pending["error"]),
        (&json!(1), &json!("its worker died while it ran (heartbeat)"))
    );
    drop(reaper);
    scene.recorder.release_all();
    let _second = Worker::spawn(&scene.options());
    let done = scene.until("a", "completed").await;
    assert_eq!((&done["attempts"], &done["error"]), (&json!(2), &Value::Null));
    assert_eq!(scene.recorder.starts("a"), 2);
}

#[tokio::test]
async fn a_job_that_is_nested_too_deep_to_be_run_is_seen_to_fail_and_lapses() {
    let mut scene = Scene::start().await;
    let deep = format!(
        r#"{{"id":"deep","type":"email","status":"pending","payload":{}1{}}}"#,
        "[".repeat(110),
        "]".repeat(110)
    );
    scene.redis.set::<_, _, ()>("jobs:data:deep", deep).await.unwrap();
    scene.redis.zadd::<_, _, _, ()>("jobs:index:pending", "deep", 1).await.unwrap();
    scene.redis.rpush::<_, _, ()>("jobs:queue", "deep").await.unwrap();
    let _worker = Worker::spawn(&scene.options());
    let failed = scene.until("deep", "failed").await;
    assert_eq!(failed["error"], "not a job: nested more than 100 levels deep");
    assert_eq!((&failed["attempts"], scene.recorder.starts("deep")), (&Value::Null, 0), "it never ran");
    assert!(scene.redis.ttl::<_, i64>("jobs:data:deep").await.unwrap() > 0);
    let listed: Vec<Option<f64>> = redis::pipe()
        .zscore("jobs:index:pending", "deep")
        .zscore("jobs:index:failed", "deep")
        .query_async(&mut scene.redis)
        .await
        .unwrap();
    assert!(listed[0].is_none() && listed[1].is_some(), "{listed:?}");
    let letters: Vec<String> = scene.redis.lrange("jobs:dead_letter", 0, -1).await.unwrap();
    assert!(letters.len() == 1 && letters[0].contains(r#""reason":"malformed""#), "{letters:?}");
}

#[tokio::test]
async fn a_job_that_is_too_large_to_be_run_is_seen_to_fail_and_lapses() {
    let mut scene = Scene::start().await;
    // Both were created when more was allowed, or by a client that knows no limit; the second is too large to be read.
    for (id, size) in [("large", 3 << 20), ("huge", 9 << 20)] {
        let job = json!({ "id": id, "type": "email", "status": "pending", "payload": "x".repeat(size) });
        scene.redis.set::<_, _, ()>(format!("jobs:data:{id}"), job.to_string()).await.unwrap();
        scene.redis.zadd::<_, _, _, ()>("jobs:index:pending", id, 1).await.unwrap();
        scene.redis.rpush::<_, _, ()>("jobs:queue", id).await.unwrap();
    }
    scene.create("small", "email").await;
    let _worker = Worker::spawn(&scene.options());
    let failed = scene.until("large", "failed").await;
    let error = failed["error"].as_str().unwrap();
    assert!(error.ends_with("bytes, more than worker.max_payload_bytes = 1048576"), "{error}");
    assert!(scene.redis.ttl::<_, i64>("jobs:data:large").await.unwrap() > 0);
    scene.until("small", "completed").await;
    eventually(SOON, "both to be buried, and nobody to be said to wait", async || {
        let letters: Vec<String> = scene.redis.lrange("jobs:dead_letter", 0, -1).await.unwrap();
        let pending: Vec<String> = scene.redis.zrange("jobs:index:pending", 0, -1).await.unwrap();
        let oversize = letters.iter().filter(|letter| letter.contains(r#""reason":"oversize""#)).count();
        if oversize == 2 && pending.is_empty() { Ok(()) } else { Err((letters, pending)) }
    })
    .await;
    assert_eq!((scene.recorder.starts("large"), scene.recorder.starts("huge")), (0, 0));
    assert!(
        scene.redis.strlen::<_, usize>("jobs:data:huge").await.unwrap() > 9 << 20,
        "what nobody read is kept"
    );
}

#[tokio::test]
async fn a_type_that_nobody_knows_does_not_stop_the_others() {
    let mut scene = Scene::start().await;
    let handlers = json!({ "email": "http" });
    // A single bad sample would open the breaker, for longer than this test waits.
    let options = scene.options().env("ASYNC_HANDLERS", handlers).env("CIRCUIT_BREAKER_MIN_SAMPLES", "1");
    let _worker = Worker::spawn(&options.env("CIRCUIT_BREAKER_COOLDOWN_PERIOD", "10m"));
    for id in ["odd-1", "odd-2", "odd-3"] {
        scene.create(id, "other").await;
        scene.until(id, "failed").await;
    }
    scene.create("mail", "email").await;
    scene.until("mail", "completed").await;
}

#[tokio::test]
async fn handlers_are_chosen_by_type_and_their_results_are_kept() {
    let mut scene = Scene::start().await;
    let answer = json!({ "status": "success", "result": { "message": 7 } });
    scene.recorder.behave("mail", [Behaviour::Answer(200, answer)]);
    let handlers = json!({
        "email": "http",
        "resize": { "command": { "argv": ["sh", "-c", "cat > /dev/null; echo \"{\\\"type\\\":\\\"$JOB_TYPE\\\"}\""] } },
        "shout": { "command": { "argv": ["sh", "-c", "echo loud; echo quiet >&2"] } },
        "nap": { "simulate": { "base": "1ms" } },
    });
    let _worker = Worker::spawn(&scene.options().env("ASYNC_HANDLERS", handlers));
    for (id, kind) in
        [("mail", "email"), ("pic", "resize"), ("cry", "shout"), ("zzz", "nap"), ("odd", "other")]
    {
        scene.create(id, kind).await;
    }
    assert_eq!(scene.until("mail", "completed").await["result"], json!({ "message": 7 }));
    assert_eq!(scene.until("pic", "completed").await["result"], json!({ "type": "resize" }));
    assert_eq!(scene.until("cry", "completed").await["result"], "loud");
    assert_eq!(scene.until("zzz", "completed").await["result"], Value::Null);
    let odd = scene.until("odd", "failed").await;
    assert!(odd["error"].as_str().unwrap().contains("no handler for the type"), "{odd}");
    let sent = scene.recorder.runs_of("mail").remove(0).job();
    assert_eq!((&sent["payload"], &sent["status"]), (&json!({ "to": "mail" }), &json!("running")));
}

#[tokio::test]
async fn a_job_of_any_other_type_takes_as_long_as_the_seeds_variable_says_and_a_failed_one_runs_again() {
    let mut scene = Scene::start().await;
    scene.recorder.behave("a", [Behaviour::Fail("not yet".into())]);
    let options = scene.options().env("ASYNC_HANDLERS", "{default: simulate, email: http}");
    let _worker = Worker::spawn(&options.env("JOB_SIMULATION_DURATION", "1h"));
    scene.create("b", "whatever").await;
    scene.until("b", "running").await;
    scene.create("a", "email").await;
    assert_eq!(scene.until("a", "completed").await["attempts"], 2);
    assert_eq!(scene.job("b").await["status"], "running");
}

#[tokio::test]
async fn a_job_that_runs_when_its_worker_stops_goes_back_uncounted() {
    let mut scene = Scene::start().await;
    scene.recorder.by_default(Behaviour::Hold);
    let mut worker = Worker::spawn(&scene.options().env("WORKER_DRAIN_TIMEOUT", "100ms"));
    scene.create("a", "email").await;
    scene.recorder.wait_started("a", 1).await;
    worker.sigterm();
    assert!(worker.wait_exit(SOON).await.success());
    let back = scene.job("a").await;
    assert_eq!(
        (&back["status"], &back["attempts"], &back["worker"]),
        (&json!("pending"), &json!(0), &Value::Null)
    );
    assert_eq!(scene.redis.lrange::<_, Vec<String>>("jobs:queue", 0, -1).await.unwrap(), ["a"]);
}

/// Jobs come in batches and one by one, one of them is killed with its worker: each is completed in the end.
async fn dies_at(failpoint: &str) {
    let mut scene = Scene::start().await;
    let ids: Vec<String> = (0..40).map(|n| format!("job-{n}")).collect();
    for id in &ids[..25] {
        scene.create(id, "email").await;
    }
    let mut killed = Worker::spawn(&scene.options().failpoint(failpoint));
    killed.wait_for_log("Serving metrics").await;
    // One at a time, so that some come by a parked fetch.
    for id in &ids[25..] {
        scene.create(id, "email").await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let status = killed.wait_exit(SOON).await;
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9), "{failpoint}: {status}");
    let _second = Worker::spawn(&scene.options());
    for id in &ids {
        let done = scene.until(id, "completed").await;
        let attempts = done["attempts"].as_u64().unwrap();
        assert!(scene.recorder.starts(id) as u64 <= attempts && attempts <= 2, "{failpoint}: {done}");
    }
    let left: Vec<String> =
        redis::cmd("KEYS").arg("jobs:worker:*").query_async(&mut scene.redis).await.unwrap();
    assert!(left.is_empty(), "{failpoint}: {left:?}");
}

#[tokio::test]
async fn nothing_is_lost_wherever_the_worker_is_killed() {
    let places = [
        "after-cycle:2",
        "before-start",
        "after-start",
        "after-start:2",
        "before-handle:5",
        "after-handle:7",
        "after-park",
    ];
    futures::future::join_all(places.map(dies_at)).await;
}

#[tokio::test]
async fn ids_that_are_queued_three_times_run_once_each() {
    let mut scene = Scene::start().await;
    let _workers = [Worker::spawn(&scene.options()), Worker::spawn(&scene.options())];
    for n in 0..300 {
        scene.create(&format!("job-{n}"), "email").await;
        for _ in 0..2 {
            scene.redis.rpush::<_, _, ()>("jobs:queue", format!("job-{n}")).await.unwrap();
        }
    }
    for n in 0..300 {
        assert_eq!(scene.until(&format!("job-{n}"), "completed").await["attempts"], 1);
    }
    eventually(SOON, "an empty queue", async || {
        let left: usize = scene.redis.llen("jobs:queue").await.unwrap();
        if left == 0 { Ok(()) } else { Err(left) }
    })
    .await;
    assert!(scene.recorder.duplicates().is_empty());
}

#[tokio::test]
async fn the_admin_commands_know_jobs_that_are_only_named() {
    let mut scene = Scene::start().await;
    scene.create("waits", "email").await;
    let waiting = scene.admin(&["peek"]);
    assert_eq!((&waiting[0]["id"], &waiting[0]["type"]), (&json!("waits"), &json!("email")));
    let stats = scene.admin(&["stats"]);
    assert_eq!(
        (&stats["queues"][0]["waiting"], stats["queues"][0]["oldest_age_ms"].is_u64()),
        (&json!(1), true)
    );

    scene.redis.rpush::<_, _, ()>("jobs:queue", "gone").await.unwrap();
    scene
        .recorder
        .behave("dies", [Behaviour::Answer(200, json!({ "kill": true, "error_message": "never" }))]);
    let worker = Worker::spawn(&scene.options());
    scene.create("dies", "email").await;
    scene.until("dies", "failed").await;
    scene.until("waits", "completed").await;
    let completed = scene.admin(&["peek", "--queue", "completed"]);
    assert_eq!((&completed[0]["id"], &completed[0]["status"]), (&json!("waits"), &json!("completed")));
    let stats = scene.admin(&["stats"]);
    assert_eq!((&stats["completed"], &stats["dead_letters"]), (&json!(1), &json!(2)));
    assert_eq!(worker.metric("jobs_dead_letter_total", &[]).await, Some(2.0));
    let revived = scene.admin(&["requeue-dlq", "--reason", "killed"]);
    assert_eq!(revived["requeued"], 1);
    let done = scene.until("dies", "completed").await;
    assert_eq!((&done["attempts"], &done["error"]), (&json!(1), &Value::Null));
    assert_eq!(scene.admin(&["purge-dlq", "--yes"])["deleted"], 1);
}

#[tokio::test]
async fn large_jobs_that_end_together_are_settled_in_calls_that_stay_small() {
    const JOBS: usize = 20;
    const SIZE: usize = 1_000_000;
    let mut scene = Scene::start().await;
    scene.recorder.by_default(Behaviour::Hold);
    let proxy = Proxy::start(scene.server.addr()).await;
    let largest = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&largest);
    // Loses nothing, only looks.
    proxy.drop_reply_once(move |words| {
        seen.fetch_max(words.iter().map(bytes::Bytes::len).sum(), Ordering::SeqCst);
        false
    });
    let _worker = Worker::spawn(&scene.options().redis(proxy.addr()).env("WORKER_COUNT", JOBS));
    let ids: Vec<String> = (0..JOBS).map(|n| format!("job-{n}")).collect();
    for id in &ids {
        let job = json!({ "id": id, "type": "t", "payload": "x".repeat(SIZE), "status": "pending" });
        scene.redis.set::<_, _, ()>(format!("jobs:data:{id}"), job.to_string()).await.unwrap();
        scene.redis.rpush::<_, _, ()>("jobs:queue", id).await.unwrap();
    }
    for id in &ids {
        scene.recorder.wait_started(id, 1).await;
    }
    scene.recorder.release_all();
    for id in &ids {
        scene.until(id, "completed").await;
    }
    let largest = largest.load(Ordering::SeqCst);
    println!("{JOBS} jobs of {SIZE} bytes: no call was larger than {largest} bytes");
    // One settlement says its job twice.
    assert!(largest < 3 * SIZE, "{largest}");
}

#[tokio::test]
async fn an_id_in_two_queues_of_one_lane_runs_once() {
    let mut scene = Scene::start().await;
    scene.recorder.by_default(Behaviour::Hold);
    for id in ["both", "later"] {
        scene.create(id, "email").await;
    }
    scene.redis.rpush::<_, _, ()>("jobs:queue:other", "both").await.unwrap();
    let queues =
        "worker: {priorities: [default, other], queues: {default: 'jobs:queue', other: 'jobs:queue:other'}}";
    let worker = Worker::spawn(&scene.options().config(queues).env("WORKER_LANES", 1));
    for id in ["both", "later"] {
        scene.recorder.wait_started(id, 1).await;
    }
    // While it runs, too.
    scene.redis.rpush::<_, _, ()>("jobs:queue:other", "later").await.unwrap();
    eventually(SOON, "both names to be dropped", async || {
        match worker.metric("jobs_dropped_total", &[]).await {
            Some(2.0) => Ok(()),
            other => Err(other),
        }
    })
    .await;
    scene.recorder.release_all();
    for id in ["both", "later"] {
        assert_eq!(scene.until(id, "completed").await["attempts"], 1);
        assert_eq!(scene.recorder.starts(id), 1);
    }
}

#[tokio::test]
async fn what_a_program_prints_is_readable_again_whatever_it_is() {
    let mut scene = Scene::start().await;
    let deep = format!("{}1{}", "[".repeat(500), "]".repeat(500));
    let handlers = json!({
        "deep": { "command": { "argv": ["printf", "%s", &deep] } },
        "half": { "command": { "argv": ["printf", "%s", r#""\ud800""#] } },
    });
    let _worker = Worker::spawn(&scene.options().env("ASYNC_HANDLERS", handlers));
    scene.create("a", "deep").await;
    scene.create("b", "half").await;
    assert_eq!(scene.until("a", "completed").await["result"], deep);
    assert_eq!(scene.until("b", "completed").await["result"], r#""\ud800""#);
}
