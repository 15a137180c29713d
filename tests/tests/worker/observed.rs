//! What a live worker tells the world: its metrics, its log, its spans. One run of everything that happens to
//! jobs is observed once; each metric and each log key is then a test of its own, named after it.
#![allow(clippy::float_cmp, reason = "counts: exact in a double")]
#![allow(
    clippy::unwrap_used,
    reason = "what all tests share is set up outside of them: a panic is the report"
)]

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use e2e::ledger::{HIGH, LOW, ids, job};
use e2e::process::sum_of;
use e2e::{Behaviour, Ledger, Options, Recorder, RedisServer, Worker, WorkerOptions, eventually};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(30);
/// Stands in every payload, path, error and secret: it must never be logged.
const CANARY: &str = "canary-7c1f";
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const SPAN: &str = "00f067aa0ba902b7";

/// What was seen of one worker.
struct Observed {
    scrape: String,
    lines: Vec<String>,
    spans: Vec<Span>,
    runs: Vec<e2e::recorder::Run>,
}

impl Observed {
    fn log(&self) -> Vec<Value> {
        self.lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// The one observation; in a thread of its own, because every test has its own event loop.
fn observed() -> &'static Observed {
    static OBSERVED: OnceLock<Observed> = OnceLock::new();
    OBSERVED.get_or_init(|| {
        let run = || tokio::runtime::Runtime::new().unwrap().block_on(observe());
        std::thread::spawn(run).join().unwrap()
    })
}

/// Jobs that are done, fail, are retried, buried, rejected, interrupted, reaped and released, at log level debug.
async fn observe() -> Observed {
    let password = format!("secret-{CANARY}");
    let server = RedisServer::start(Options { password: Some(password.clone()), ..Options::default() }).await;
    let mut ledger = Ledger::of(&server).await;
    let (recorder, collector) = (Recorder::start().await, Recorder::start().await);
    let options = WorkerOptions::new("worker")
        .redis(server.addr())
        .recorded_by(&recorder)
        .env("REDIS_PASSWORD", &password)
        .env("WORKER_POD_UID", "pod")
        .env("WORKER_NAMESPACE", "team-a")
        .env("WORKER_BACKOFF_BASE", "20ms")
        .env("WORKER_MAX_RETRIES", 1)
        .env("WORKER_DRAIN_TIMEOUT", "200ms")
        .env("OBSERVABILITY_LOG_LEVEL", "debug")
        .env("OBSERVABILITY_QUEUE_SAMPLE_INTERVAL", "200ms")
        .env("OBSERVABILITY_TRACING_ENABLED", "true")
        .env("OBSERVABILITY_TRACING_ENDPOINT", collector.url());
    let secret = |id: &str| {
        let mut job = job(id);
        job["filepath"] = json!(format!("/data/{CANARY}/{id}"));
        job["args"] = json!([CANARY]);
        job["trace_id"] = json!(TRACE);
        job["span_id"] = json!(SPAN);
        job.to_string()
    };

    // A predecessor dies with a job: the second reaps it.
    recorder.behave("reaped", [Behaviour::Hold]);
    ledger.push(LOW, &[secret("reaped")]).await;
    let mut first = Worker::spawn(&options);
    recorder.wait_started("reaped", 1).await;
    first.kill9();

    let fail = || Behaviour::Fail(format!("cannot read {CANARY}"));
    recorder.behave("retried", [fail()]);
    recorder.behave("dead", [fail(), fail()]);
    recorder.behave("died", [Behaviour::HangUp]);
    recorder.behave("away", [Behaviour::Unavailable]);
    recorder.behave("held", [Behaviour::Hold, Behaviour::Hold]);
    let mut worker = Worker::spawn(&options);
    for id in ["done", "retried", "dead", "died", "away", "held"] {
        ledger.push(LOW, &[secret(id)]).await;
    }
    ledger.push(HIGH, &[format!("not a job, {CANARY}")]).await;
    ledger.push(HIGH, &[json!({"id": 7, "x": CANARY}).to_string()]).await;
    ledger.until_completed(SOON, 5).await;
    ledger.until(SOON, "three dead letters", |places| places.dead.len() == 3).await;
    recorder.wait_started("held", 1).await;
    let scrape = eventually(SOON, "a sample of the queues", async || {
        let scrape = worker.metrics().await;
        let settled = sum_of(&scrape, "jobs_dead_letter_total", &[]) == Some(3.0);
        if settled && scrape.contains("queue_oldest_age_seconds{") { Ok(scrape) } else { Err(scrape) }
    })
    .await;
    worker.sigterm();
    assert!(worker.wait_exit(SOON).await.success());

    let mut lines = first.log_lines();
    lines.extend(worker.log_lines());
    Observed { scrape, lines, spans: spans_of(&collector), runs: recorder.runs() }
}

/// What an OTLP receiver got.
fn spans_of(collector: &Recorder) -> Vec<Span> {
    let requests = collector.runs();
    let requests = requests.iter().map(|run| ExportTraceServiceRequest::decode(run.body.clone()).unwrap());
    let scopes = requests.flat_map(|request| request.resource_spans).flat_map(|spans| spans.scope_spans);
    scopes.flat_map(|scope| scope.spans).collect()
}

#[test]
fn promtool_accepts_a_live_scrape() {
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("start promtool");
    promtool.stdin.take().unwrap().write_all(observed().scrape.as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success() && said.is_empty(), "{}", String::from_utf8_lossy(&said));
}

/// A test a metric: it is in the scrape, with these labels, and its value is what happened.
macro_rules! metrics {
    ($($test:ident: $name:literal $labels:expr => $value:expr;)*) => {$(
        #[test]
        fn $test() {
            let labels: &[(&str, &str)] = &$labels;
            let found = sum_of(&observed().scrape, $name, labels);
            let holds: fn(f64) -> bool = $value;
            assert!(found.is_some_and(holds), "{} {labels:?} is {found:?}", $name);
        }
    )*};
}

metrics! {
    jobs_consumed_total: "jobs_consumed_total" [("queue", "low")] => |n| n >= 9.0;
    jobs_completed_total: "jobs_completed_total" [("queue", "low")] => |n| n == 5.0;
    jobs_failed_total: "jobs_failed_total" [("queue", "low"), ("reason", "handler")] => |n| n == 3.0;
    jobs_failed_total_malformed: "jobs_failed_total" [("queue", "high"), ("reason", "malformed")] => |n| n == 2.0;
    jobs_retried_total: "jobs_retried_total" [("queue", "low")] => |n| n == 2.0;
    jobs_dead_letter_total: "jobs_dead_letter_total" [("queue", "low")] => |n| n == 1.0;
    jobs_reaped_total: "jobs_reaped_total" [("queue", "low")] => |n| n == 1.0;
    reaper_jobs_moved_total: "reaper_jobs_moved_total" [("queue", "low")] => |n| n == 1.0;
    jobs_interrupted_total: "jobs_interrupted_total" [("queue", "low")] => |n| n == 2.0;
    jobs_released_total: "jobs_released_total" [("queue", "low")] => |n| n >= 1.0;
    job_processing_duration_seconds: "job_processing_duration_seconds_count" [("queue", "low")] => |n| n >= 8.0;
    job_wait_seconds: "job_wait_seconds_count" [("queue", "low")] => |n| n >= 8.0;
    queue_length: "queue_length" [("queue", "low")] => |n| n == 0.0;
    worker_active: "worker_active" [] => |n| n == 1.0;
    worker_slots: "worker_slots" [] => |n| n == 16.0;
    jobs_in_flight: "jobs_in_flight" [] => |n| n == 1.0;
    redis_up: "redis_up" [] => |n| n == 1.0;
    redis_round_trips_total: "redis_round_trips_total" [] => |n| n > 0.0;
    build_info: "build_info" [("version", env!("CARGO_PKG_VERSION"))] => |n| n == 1.0;
    process_resident_memory_bytes: "process_resident_memory_bytes" [] => |n| n > 1e6;
    process_cpu_seconds_total: "process_cpu_seconds_total" [] => |n| n >= 0.0;
    tokio_tasks_alive: "tokio_tasks_alive" [] => |n| n > 0.0;
}

#[test]
fn every_line_of_the_log_is_json_with_keys_of_the_allowlist() {
    let log = observed().log();
    assert!(log.len() > 10);
    for entry in log {
        let keys = entry.as_object().unwrap().keys();
        for key in keys {
            let known = worker::logs::OWN_KEYS.contains(&key.as_str())
                || worker::logs::EVENT_KEYS.contains(&key.as_str());
            assert!(known, "{key} in {entry}");
        }
    }
}

/// A test a log key: some line of the run carries it.
macro_rules! log_keys {
    ($($test:ident: $key:literal => $value:expr;)*) => {$(
        #[test]
        fn $test() {
            let log = observed().log();
            let wanted: fn(&Value) -> bool = $value;
            assert!(log.iter().any(|entry| wanted(&entry[$key])), "no line has this {}: {log:#?}", $key);
        }
    )*};
}

log_keys! {
    log_key_level: "level" => |value| value == "debug";
    log_key_ts: "ts" => |value| value.as_str().is_some_and(|ts| ts.ends_with('Z'));
    log_key_msg: "msg" => |value| value == "Opened a lane";
    log_key_trace_id: "trace_id" => |value| value == TRACE;
    log_key_span_id: "span_id" => |value| value == SPAN;
    log_key_job_id: "job_id" => |value| value == "dead";
    log_key_queue: "queue" => |value| value == "low";
    log_key_worker_id: "worker_id" => |value| value.as_str().is_some_and(|id| id.contains('-'));
    log_key_request_id: "request_id" => |value| value == "dead";
    log_key_namespace: "namespace" => |value| value == "team-a";
    log_key_duration_ms: "duration_ms" => Value::is_number;
    log_key_wait_ms: "wait_ms" => Value::is_number;
    log_key_reason: "reason" => |value| value == "handler";
    log_key_count: "count" => |value| value == 1;
    log_key_attempt: "attempt" => |value| value == 2;
    log_key_value: "value" => Value::is_string;
}

#[test]
fn no_payload_path_error_or_secret_is_ever_logged() {
    let leaks: Vec<_> = observed().lines.iter().filter(|line| line.contains(CANARY)).collect();
    assert!(leaks.is_empty(), "{leaks:#?}");
    assert!(!observed().scrape.contains(CANARY));
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"))
}

#[test]
fn spans_of_consume_and_process_continue_the_trace_of_their_job() {
    let spans = &observed().spans;
    for name in ["consume", "process"] {
        let of_done: Vec<_> = spans
            .iter()
            .filter(|span| span.name == name)
            .filter(|span| format!("{:?}", span.attributes).contains("\"done\""))
            .collect();
        assert!(!of_done.is_empty(), "no span {name}");
        for span in of_done {
            assert_eq!((hex(&span.trace_id).as_str(), hex(&span.parent_span_id).as_str()), (TRACE, SPAN));
        }
    }
    let ended = spans.iter().all(|span| span.end_time_unix_nano >= span.start_time_unix_nano);
    assert!(ended && !format!("{spans:?}").contains(CANARY));
}

#[test]
fn the_handler_is_told_the_trace_and_the_job() {
    let run = observed().runs.iter().find(|run| run.id == "done").unwrap();
    assert!(run.headers["traceparent"].starts_with(&format!("00-{TRACE}-")), "{:?}", run.headers);
    assert_eq!((&*run.headers["x-job-id"], &*run.headers["x-job-attempt"]), ("done", "1"));
    assert_eq!(run.headers["x-request-id"], "done");
}

#[tokio::test]
async fn only_one_process_exports_the_gauges_of_the_queues() {
    let server = RedisServer::start(Options::default()).await;
    let mut ledger = Ledger::of(&server).await;
    let options =
        WorkerOptions::new("worker").redis(server.addr()).env("OBSERVABILITY_QUEUE_SAMPLE_INTERVAL", "100ms");
    ledger.command::<()>(&["SET", "jobqueue:paused", "1"]).await;
    ledger.enqueue(LOW, &ids("job", 7)).await;
    let workers = [Worker::spawn(&options), Worker::spawn(&options)];
    for worker in &workers {
        worker.wait_for_log("Opened a lane").await;
    }
    eventually(SOON, "one of two to export the length", async || {
        let lengths = [
            workers[0].metric("queue_length", &[("queue", "low")]).await,
            workers[1].metric("queue_length", &[("queue", "low")]).await,
        ];
        let one = lengths.iter().flatten().copied().collect::<Vec<_>>() == [7.0];
        if one { Ok(()) } else { Err(lengths) }
    })
    .await;
}

#[tokio::test]
async fn circuit_breaker_state() {
    let server = RedisServer::start(Options::default()).await;
    let mut ledger = Ledger::of(&server).await;
    let recorder = Recorder::start().await;
    recorder.by_default(Behaviour::Fail("no".into()));
    let options = WorkerOptions::new("worker")
        .redis(server.addr())
        .recorded_by(&recorder)
        .env("WORKER_MAX_RETRIES", 0)
        .env("CIRCUIT_BREAKER_MIN_SAMPLES", 2)
        .env("CIRCUIT_BREAKER_COOLDOWN_PERIOD", "1h");
    ledger.enqueue(LOW, &ids("job", 4)).await;
    let worker = Worker::spawn(&options);
    eventually(SOON, "the breaker of one queue to open", async || {
        let states = [
            worker.metric("circuit_breaker_state", &[("queue", "low")]).await,
            worker.metric("circuit_breaker_state", &[("queue", "high")]).await,
        ];
        if states == [Some(2.0), Some(0.0)] { Ok(()) } else { Err(states) }
    })
    .await;
}

#[tokio::test]
async fn worker_active_is_how_many_jobs_run_when_it_is_asked_for() {
    let server = RedisServer::start(Options::default()).await;
    let mut ledger = Ledger::of(&server).await;
    let recorder = Recorder::start().await;
    recorder.by_default(Behaviour::Hold);
    let options = WorkerOptions::new("worker")
        .redis(server.addr())
        .recorded_by(&recorder)
        .env("WORKER_COUNT", 4)
        .env("OBSERVABILITY_QUEUE_SAMPLE_INTERVAL", "1h");
    let worker = Worker::spawn(&options);
    worker.wait_for_log("Opened a lane").await;
    ledger.enqueue(LOW, &ids("job", 1)).await;
    recorder.wait_started("job-1", 1).await;
    let mut suspect = job("suspect");
    suspect["deaths"] = json!(9);
    ledger.push(&format!("{LOW}:suspects"), &[suspect.to_string()]).await;
    ledger.until(SOON, "the suspect to wait for all slots", |places| places.held.len() == 2).await;
    assert_eq!(worker.metric("worker_active", &[]).await, Some(1.0));
    recorder.by_default(Behaviour::Succeed);
    recorder.release_all();
    ledger.until_completed(SOON, 2).await;
    assert_eq!(worker.metric("worker_active", &[]).await, Some(0.0));
}

#[tokio::test]
async fn queue_oldest_age_seconds() {
    let server = RedisServer::start(Options::default()).await;
    let mut ledger = Ledger::of(&server).await;
    let options =
        WorkerOptions::new("worker").redis(server.addr()).env("OBSERVABILITY_QUEUE_SAMPLE_INTERVAL", "100ms");
    ledger.command::<()>(&["SET", "jobqueue:paused", "1"]).await;
    let made = jiff::Timestamp::now() - jiff::SignedDuration::from_secs(1_000);
    let mut old = job("old");
    old["creation_time"] = json!(made.to_string());
    ledger.push(LOW, &[old.to_string()]).await;
    let worker = Worker::spawn(&options);
    eventually(SOON, "the age of the job", async || {
        let age = worker.metric("queue_oldest_age_seconds", &[("queue", "low")]).await;
        if age.is_some_and(|age| (1_000.0..2_000.0).contains(&age)) { Ok(()) } else { Err(age) }
    })
    .await;
    assert_eq!(worker.metric("queue_oldest_age_seconds", &[("queue", "high")]).await, Some(0.0));
}

#[tokio::test]
async fn jobs_produced_total() {
    let server = RedisServer::start(Options::default()).await;
    let inbox = server.dir().join("inbox");
    std::fs::create_dir(&inbox).unwrap();
    for name in ["a.txt", "b.txt", "urgent.pdf"] {
        std::fs::write(inbox.join(name), "content").unwrap();
    }
    let options = WorkerOptions::new("producer")
        .redis(server.addr())
        .env("PRODUCER_SCAN_DIR", inbox.display())
        .env("PRODUCER_RESCAN_INTERVAL", "50ms");
    let worker = Worker::spawn(&options);
    let produced = async |queue: &str| worker.metric("jobs_produced_total", &[("queue", queue)]).await;
    eventually(SOON, "the figures", async || {
        let figures = (produced("high").await, produced("low").await);
        if figures == (Some(1.0), Some(2.0)) { Ok(()) } else { Err(figures) }
    })
    .await;
}

#[tokio::test]
async fn a_produced_job_carries_the_ids_of_its_produce_span() {
    let server = RedisServer::start(Options::default()).await;
    let mut ledger = Ledger::of(&server).await;
    let collector = Recorder::start().await;
    let inbox = server.dir().join("inbox");
    std::fs::create_dir(&inbox).unwrap();
    std::fs::write(inbox.join("a.txt"), "content").unwrap();
    let options = WorkerOptions::new("producer")
        .redis(server.addr())
        .env("PRODUCER_SCAN_DIR", inbox.display())
        .env("PRODUCER_ONCE", "true")
        .env("OBSERVABILITY_TRACING_ENABLED", "true")
        .env("OBSERVABILITY_TRACING_ENDPOINT", collector.url());
    assert!(Worker::spawn(&options).wait_exit(SOON).await.success());
    let job = ledger.places().await.waiting.remove(0);
    let spans = spans_of(&collector);
    let names: Vec<_> = spans.iter().map(|span| span.name.as_str()).collect();
    assert_eq!(names, ["produce"]);
    assert_eq!(
        (&job["trace_id"], &job["span_id"]),
        (&json!(hex(&spans[0].trace_id)), &json!(hex(&spans[0].span_id)))
    );
}
