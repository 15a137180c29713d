//! What bad input gets: a message that names it, and nothing lost. One test a case, named after it.

use std::time::Duration;

use bytes::Bytes;
use e2e::ledger::{COMPLETED, DEAD, HIGH, LOW, ids, job};
use e2e::{
    Behaviour, Fault, Ledger, Options, Proxy, Recorder, RedisServer, Worker, WorkerOptions, eventually,
};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(30);

struct Scene {
    server: RedisServer,
    ledger: Ledger,
}

impl Scene {
    async fn start() -> Self {
        Self::with(Options::default()).await
    }

    async fn with(options: Options) -> Self {
        let server = RedisServer::start(options).await;
        let ledger = Ledger::of(&server).await;
        Self { server, ledger }
    }

    fn options(&self) -> WorkerOptions {
        WorkerOptions::new("worker").redis(self.server.addr()).env("WORKER_BACKOFF_BASE", "10ms")
    }

    /// Pushes bytes that are no job between two that are; answers the dead letter they become.
    async fn letter(&mut self, options: &WorkerOptions, bytes: &[u8], reason: &str) -> Value {
        self.ledger.enqueue(LOW, &ids("before", 1)).await;
        self.ledger.push(LOW, &[bytes]).await;
        self.ledger.enqueue(LOW, &ids("after", 1)).await;
        let mut worker = Worker::spawn(options);
        let there = |places: &e2e::ledger::Places| places.counts() == [0, 0, 0, 0, 2, 1];
        let places = self.ledger.until(SOON, "two done and a dead letter", there).await;
        let letter = places.dead[0].clone();
        assert_eq!(letter["reason"], reason, "{letter}");
        assert_eq!(letter["origin_queue"], LOW);
        assert!(text(&letter["failed_at"]).starts_with("20"), "{letter}");
        let labels = [("queue", "low"), ("reason", reason)];
        eventually(SOON, "the figure", async || {
            worker.metric("jobs_failed_total", &labels).await == Some(1.0)
        })
        .await;
        assert!(worker.exit_status().is_none(), "no crash");
        letter
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[tokio::test]
async fn not_json() {
    let mut scene = Scene::start().await;
    let letter = scene.letter(&scene.options(), b"hello, {world", "malformed").await;
    assert_eq!(letter["raw"], "hello, {world");
    assert!(text(&letter["error"]).contains("invalid JSON"), "{letter}");
}

#[tokio::test]
async fn empty() {
    let mut scene = Scene::start().await;
    let letter = scene.letter(&scene.options(), b"", "malformed").await;
    assert_eq!(
        (&letter["raw"], text(&letter["error"]).contains("incomplete")),
        (&json!(""), true),
        "{letter}"
    );
}

#[tokio::test]
async fn wrong_field_type() {
    let mut scene = Scene::start().await;
    let letter = scene.letter(&scene.options(), br#"{"id":"x","retries":"three"}"#, "malformed").await;
    assert_eq!(letter["raw"], r#"{"id":"x","retries":"three"}"#);
    assert!(text(&letter["error"]).contains("wrong type"), "{letter}");
    assert!(!text(&letter["error"]).contains("three"), "an error quotes no data");
}

#[tokio::test]
async fn missing_id() {
    let mut scene = Scene::start().await;
    let letter = scene.letter(&scene.options(), br#"{"filepath":"/data/a"}"#, "malformed").await;
    assert!(text(&letter["error"]).contains("missing"), "{letter}");
}

#[tokio::test]
async fn too_deep() {
    let mut scene = Scene::start().await;
    let deep = format!(r#"{{"id":"deep","x":{}1{}}}"#, "[".repeat(200), "]".repeat(200));
    let letter = scene.letter(&scene.options(), deep.as_bytes(), "malformed").await;
    assert_eq!(letter["raw"], deep);
}

#[tokio::test]
async fn non_utf8() {
    let mut scene = Scene::start().await;
    let letter = scene.letter(&scene.options(), b"{\"id\":\"\xff\xfe\"}", "malformed").await;
    assert_eq!((&letter["raw"], &letter["raw_encoding"]), (&json!("eyJpZCI6Iv/+In0="), &json!("base64")));
}

#[tokio::test]
async fn non_utf8_in_a_field_that_nobody_reads() {
    let mut scene = Scene::start().await;
    let letter = scene.letter(&scene.options(), b"{\"id\":\"a\",\"x\":\"\xff\"}", "malformed").await;
    assert!(text(&letter["error"]).contains("not UTF-8"), "{letter}");
}

#[tokio::test]
async fn half_a_surrogate_pair() {
    let mut scene = Scene::start().await;
    let letter = scene.letter(&scene.options(), br#"{"id":"a","x":"\ud83d"}"#, "malformed").await;
    assert_eq!(letter["raw"], r#"{"id":"a","x":"\ud83d"}"#);
}

#[tokio::test]
async fn oversize() {
    let mut scene = Scene::start().await;
    let large = json!({"id": "large", "x": "a".repeat(3000)}).to_string();
    let options = scene.options().env("WORKER_MAX_PAYLOAD_BYTES", 2000);
    let letter = scene.letter(&options, large.as_bytes(), "oversize").await;
    assert_eq!(letter["raw"], large, "kept whole");
    assert!(text(&letter["error"]).contains("worker.max_payload_bytes = 2000"), "{letter}");
}

#[tokio::test]
async fn large_but_allowed_jobs_are_settled_and_kept_by_their_metadata() {
    let mut scene = Scene::start().await;
    let large = |n: usize| json!({"id": format!("large-{n}"), "x": "a".repeat(300_000)}).to_string();
    scene.ledger.push(LOW, &(0..20).map(large).collect::<Vec<_>>()).await;
    let _worker = Worker::spawn(&scene.options());
    let places = scene.ledger.until_completed(SOON, 20).await;
    assert_eq!(places.counts(), [0, 0, 0, 0, 20, 0]);
    assert!(
        places.completed.iter().all(|entry| entry["size"].as_u64() > Some(300_000) && entry["x"].is_null())
    );
}

#[tokio::test]
async fn duplicate_ids() {
    let mut scene = Scene::start().await;
    let twin = job("twin").to_string();
    scene.ledger.push(LOW, &[&twin, &twin, &twin]).await;
    scene.ledger.push(HIGH, &[&twin]).await;
    let _worker = Worker::spawn(&scene.options());
    let places = scene.ledger.until_completed(SOON, 4).await;
    assert_eq!(places.counts(), [0, 0, 0, 0, 4, 0], "four pushes are four jobs");
}

#[tokio::test]
async fn unknown_queue() {
    let mut scene = Scene::start().await;
    let mut stray = job("stray");
    stray["priority"] = json!("no-such-queue");
    stray["origin_queue"] = json!("jobqueue:elsewhere");
    scene.ledger.push(LOW, &[stray.to_string()]).await;
    let worker = Worker::spawn(&scene.options());
    scene.ledger.until_completed(SOON, 1).await;
    assert_eq!(worker.metric("jobs_completed_total", &[("queue", "low")]).await, Some(1.0), "where it lay");

    let output = scene.options().env("WORKER_PRIORITIES", "high,no-such-queue").output();
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("worker.priorities") && said.contains("no-such-queue"), "{said}");
}

#[tokio::test]
async fn queue_key_of_the_wrong_type() {
    let mut scene = Scene::start().await;
    scene.ledger.command::<()>(&["SET", HIGH, "not a list"]).await;
    scene.ledger.enqueue(LOW, &ids("job", 5)).await;
    let worker = Worker::spawn(&scene.options());
    eventually(SOON, "the other queue to be served", async || {
        scene.ledger.command::<u64>(&["LLEN", COMPLETED]).await == 5
    })
    .await;
    let said = worker.wait_for_log("Redis refused a job, it stays where it is").await;
    assert_eq!(said["key"], HIGH);
    assert!(text(&said["reason"]).contains("WRONGTYPE"), "{said}");
    assert!(text(&said["error"]).contains("rename or delete it"), "what to do: {said}");
    scene.ledger.command::<()>(&["DEL", HIGH]).await;
    scene.ledger.enqueue(HIGH, &ids("high", 1)).await;
    scene.ledger.until_completed(SOON, 6).await;
}

#[tokio::test]
async fn completed_dead_letter_and_delayed_keys_of_the_wrong_type() {
    for (key, fails, retries) in [(COMPLETED, false, 0), (DEAD, true, 0), ("jobqueue:delayed:low", true, 1)] {
        let mut scene = Scene::start().await;
        scene.ledger.command::<()>(&["SET", key, "neither a list nor a sorted set"]).await;
        let options = scene
            .options()
            .env("WORKER_MAX_RETRIES", retries)
            .env("WORKER_HANDLER_SIMULATE_FAIL_GLOB", if fails { "/data/**" } else { "" });
        let worker = Worker::spawn(&options);
        worker.wait_for_log("Opened a lane").await;
        scene.ledger.enqueue(LOW, &ids("job", 1)).await;
        let said = worker.wait_for_log("Redis refused a job, it stays where it is").await;
        assert_eq!(said["key"], key);
        assert!(text(&said["reason"]).contains("WRONGTYPE"), "{said}");
        scene.ledger.command::<()>(&["DEL", key]).await;
        let there = |places: &e2e::ledger::Places| places.completed.len() + places.dead.len() == 1;
        let places = scene.ledger.until(SOON, "the job to be settled after all", there).await;
        places.assert_exactly(&ids("job", 1));
    }
}

#[tokio::test]
async fn read_only_replica() {
    let master = RedisServer::start(Options::default()).await;
    let replicaof = format!("replicaof 127.0.0.1 {}", master.port());
    let replica = RedisServer::start(Options { config: vec![replicaof], ..Options::default() }).await;
    eventually(SOON, "the replica to follow", async || {
        replica.cli(&["INFO", "replication"]).contains("master_link_status:up")
    })
    .await;
    let mut worker = Worker::spawn(&WorkerOptions::new("worker").redis(replica.addr()));
    logs_error(&worker, "read-only replica: point redis.addr at the master").await;
    assert!(worker.exit_status().is_none(), "it waits");
    // It becomes a master: the worker needs no restart.
    replica.cli(&["REPLICAOF", "NO", "ONE"]);
    let mut ledger = Ledger::of(&replica).await;
    ledger.enqueue(LOW, &ids("job", 3)).await;
    ledger.until_completed(SOON, 3).await;
}

#[tokio::test]
async fn wrong_password() {
    let options = Options { password: Some("right-password".into()), ..Options::default() };
    let scene = Scene::with(options).await;
    for password in ["wrong-password", ""] {
        let output = scene.options().env("REDIS_PASSWORD", password).output();
        assert_eq!(output.status.code(), Some(1));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("refused the credentials: check redis.username and redis.password"), "{said}");
        assert!(!said.contains("wrong-password") && !said.contains("right-password"), "{said}");
    }
}

#[tokio::test]
async fn password_changed_while_running() {
    let options = Options { password: Some("first".into()), ..Options::default() };
    let mut scene = Scene::with(options).await;
    let file = scene.server.dir().join("password");
    std::fs::write(&file, "first\n").unwrap();
    let mut worker = Worker::spawn(&scene.options().env("REDIS_PASSWORD_FILE", file.display()));
    worker.wait_for_log("Opened a lane").await;
    scene.ledger.command::<()>(&["CONFIG", "SET", "requirepass", "second"]).await;
    scene.ledger.command::<()>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).await;
    let refused = |entry: &Value| text(&entry["error"]).contains("refused the credentials");
    worker.wait_for_log_where("Could not settle, trying again", refused).await;
    std::fs::write(&file, "second\n").unwrap();
    scene.ledger.enqueue(LOW, &ids("job", 3)).await;
    scene.ledger.until_completed(SOON, 3).await;
    assert!(worker.exit_status().is_none());
}

#[tokio::test]
async fn denied_key() {
    let users =
        vec!["app on >secret ~jobqueue:* +@all".to_owned(), "default on nopass ~* &* +@all".to_owned()];
    let mut scene = Scene::with(Options { users, ..Options::default() }).await;
    let options = scene.options().env("REDIS_USERNAME", "app").env("REDIS_PASSWORD", "secret");
    let options = options.env("WORKER_QUEUES_HIGH", "elsewhere:high");
    scene.ledger.enqueue(LOW, &ids("job", 2)).await;
    let mut worker = Worker::spawn(&options);
    logs_error(&worker, "denies access to key elsewhere:high").await;
    assert!(worker.exit_status().is_none(), "it waits");
    scene.ledger.command::<()>(&["ACL", "SETUSER", "app", "~elsewhere:*"]).await;
    scene.ledger.until_completed(SOON, 2).await;
}

/// Waits for a line of the log, whatever it is about, whose error says this.
async fn logs_error(worker: &Worker, error: &str) {
    eventually(SOON, error, async || {
        let log = worker.log();
        if log.iter().any(|entry| text(&entry["error"]).contains(error)) { Ok(()) } else { Err(log) }
    })
    .await;
}

#[tokio::test]
async fn out_of_memory() {
    let mut scene = Scene::start().await;
    let recorder = Recorder::start().await;
    recorder.by_default(Behaviour::Hold);
    let all = ids("job", 16);
    scene.ledger.enqueue(LOW, &all).await;
    let mut worker = Worker::spawn(&scene.options().recorded_by(&recorder));
    eventually(SOON, "running jobs", async || recorder.running().len() == 16).await;
    scene.ledger.command::<()>(&["CONFIG", "SET", "maxmemory", "1"]).await;
    // Full as it is, what was reserved is settled, and its lane keeps its lease.
    recorder.release_all();
    scene.ledger.until_completed(SOON, 16).await.assert_exactly(&all);
    assert!(worker.exit_status().is_none());
    scene.ledger.command::<()>(&["CONFIG", "SET", "maxmemory", "0"]).await;
    scene.ledger.enqueue(LOW, &ids("later", 3)).await;
    scene.ledger.until_completed(SOON, 19).await;
    assert_eq!(worker.metric("jobs_reaped_total", &[]).await, Some(0.0));
}

#[tokio::test]
async fn out_of_memory_at_the_start() {
    let mut scene = Scene::start().await;
    scene.ledger.enqueue(LOW, &ids("job", 3)).await;
    scene.ledger.command::<()>(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let mut worker = Worker::spawn(&scene.options());
    // A full Redis needs workers most of all: it is they who make room.
    scene.ledger.until_completed(SOON, 3).await;
    assert!(worker.exit_status().is_none());
}

#[tokio::test]
async fn redis_too_old() {
    let scene = Scene::start().await;
    let proxy = Proxy::start(scene.server.addr()).await;
    let words = ["server", "redis", "version", "6.0.16", "id", "7", "role", "master"];
    let bulk = |reply: String, word: &&str| reply + &format!("${}\r\n{word}\r\n", word.len());
    let hello = Fault::Answer(Bytes::from(words.iter().fold("*8\r\n".to_owned(), bulk)));
    proxy.on(hello, 0, usize::MAX, |command| command[0] == "HELLO");
    let options = scene.options().redis(proxy.addr());
    let output = tokio::task::spawn_blocking(move || options.output()).await.unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("Redis 6.0.16") && said.contains("too old: at least 6.2 is needed"), "{said}");
}

#[tokio::test]
async fn something_that_is_not_redis() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let options = WorkerOptions::new("worker").redis(listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ =
                tokio::io::AsyncWriteExt::write_all(&mut stream, b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        }
    });
    let output = tokio::task::spawn_blocking(move || options.output()).await.unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("does not speak the Redis protocol: check redis.addr"), "{said}");
}
