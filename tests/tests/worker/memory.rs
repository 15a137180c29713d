//! What a worker costs: resident memory, idle and with a thousand jobs in flight.

use std::time::Duration;

use e2e::ledger::{LOW, job};
use e2e::{Behaviour, Ledger, Options, Recorder, RedisServer, Worker, WorkerOptions, eventually};
use serde_json::json;

const SOON: Duration = Duration::from_secs(60);
const JOBS: usize = 1000;
/// All that the worker may take, with its program.
const BOUND_BYTES: u64 = 40_000_000;

/// Jobs of exactly a kibibyte.
async fn enqueue(ledger: &mut Ledger) {
    let large = |n: usize| {
        let mut job = job(&format!("job-{n}"));
        let missing = 1024 - job.to_string().len() - r#","x":"""#.len();
        job["x"] = json!("a".repeat(missing));
        job.to_string()
    };
    let jobs: Vec<String> = (0..JOBS).map(large).collect();
    assert!(jobs.iter().all(|job| job.len() == 1024));
    for page in jobs.chunks(100) {
        ledger.push(LOW, page).await;
    }
}

#[tokio::test]
async fn a_thousand_jobs_of_a_kibibyte_in_flight_take_at_most_forty_megabytes() {
    let server = RedisServer::start(Options::default()).await;
    let mut ledger = Ledger::of(&server).await;
    let options = WorkerOptions::new("worker")
        .redis(server.addr())
        .env("WORKER_COUNT", JOBS)
        .env("WORKER_HANDLER_SIMULATE_BASE", "5m");
    let worker = Worker::spawn(&options);
    worker.wait_for_log("Opened a lane").await;
    let idle = worker.rss_kib();
    enqueue(&mut ledger).await;
    ledger.until(SOON, "a thousand running jobs", |places| places.held.len() == JOBS).await;
    let busy = worker.rss_kib();
    println!("resident: idle {idle} KiB, with {JOBS} jobs of 1 KiB in flight {busy} KiB (debug build)");
    assert!(busy * 1024 <= BOUND_BYTES, "{busy} KiB");
}

#[tokio::test]
async fn a_thousand_jobs_posted_over_http_at_once_take_at_most_forty_megabytes() {
    let server = RedisServer::start(Options::default()).await;
    let mut ledger = Ledger::of(&server).await;
    let recorder = Recorder::start().await;
    recorder.by_default(Behaviour::Hold);
    let options = WorkerOptions::new("worker")
        .redis(server.addr())
        .recorded_by(&recorder)
        .env("WORKER_COUNT", JOBS)
        .env("WORKER_HANDLER_HTTP_TIMEOUT", "5m");
    let worker = Worker::spawn(&options);
    worker.wait_for_log("Opened a lane").await;
    enqueue(&mut ledger).await;
    eventually(SOON, "a thousand running jobs", async || {
        let running = recorder.running().len();
        if running == JOBS { Ok(()) } else { Err(running) }
    })
    .await;
    let busy = worker.rss_kib();
    println!("resident: {busy} KiB with {JOBS} jobs of 1 KiB posted and unanswered (debug build)");
    recorder.release_all();
    ledger.until_completed(SOON, JOBS).await;
    assert!(busy * 1024 <= BOUND_BYTES, "{busy} KiB");
}
