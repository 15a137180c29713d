//! Resident memory of the worker, idle and with jobs in flight, in its own process and over HTTP.
use std::time::Duration;

use anyhow::Context;
use e2e::{Behaviour, Options, Recorder, RedisServer, Worker, WorkerOptions, eventually};

use crate::jobs;
use crate::ours::QUEUE;
use crate::progress;
use crate::report::Memory;

/// Jobs in flight, and their size.
const JOBS: u64 = 1000;
const SIZE: usize = 1024;
/// Long enough for what starts late to have started.
const SETTLE: Duration = Duration::from_secs(3);

/// All three figures.
pub async fn measure() -> anyhow::Result<Option<Memory>> {
    let server = RedisServer::start(Options::default()).await;
    let idle = Worker::spawn(&WorkerOptions::new("worker").redis(server.addr()));
    idle.wait_for_log("Opened a lane").await;
    tokio::time::sleep(SETTLE).await;
    let idle_mib = resident(&idle)?;
    drop(idle);

    let simulate = WorkerOptions::new("worker").env("WORKER_HANDLER_SIMULATE_BASE", "1h");
    let loaded_mib = loaded(simulate).await?;
    let recorder = Recorder::start().await;
    recorder.by_default(Behaviour::Hold);
    let posted = WorkerOptions::new("worker").recorded_by(&recorder).env("WORKER_HANDLER_HTTP_TIMEOUT", "1h");
    let posted_mib = loaded(posted).await?;
    progress(&format!(
        "memory: {idle_mib:.1} MiB idle, with {JOBS} jobs in flight {loaded_mib:.1} MiB, posted over HTTP {posted_mib:.1} MiB"
    ));
    Ok(Some(Memory { idle_mib, loaded_mib, posted_mib, loaded_jobs: JOBS, loaded_job_bytes: SIZE }))
}

/// With all jobs in flight.
async fn loaded(options: WorkerOptions) -> anyhow::Result<f64> {
    let server = RedisServer::start(Options::default()).await;
    let mut redis = server.connection().await;
    jobs::push(&mut redis, QUEUE, 0..JOBS, |number| jobs::job(number, SIZE)).await?;
    let loaded = Worker::spawn(&options.env("WORKER_COUNT", JOBS).redis(server.addr()));
    eventually(Duration::from_secs(30), "all jobs to be in flight", async || {
        let running = loaded.metric("jobs_in_flight", &[]).await;
        #[expect(clippy::cast_precision_loss, reason = "a thousand")]
        if running == Some(JOBS as f64) { Ok(()) } else { Err(running) }
    })
    .await;
    tokio::time::sleep(SETTLE).await;
    resident(&loaded)
}

fn resident(worker: &Worker) -> anyhow::Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", worker.pid()))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    let kib: f64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kib / 1024.0)
}
