//! How long a job waits on an idle system: from just before the push to the start of the handler.
//!
//! An open loop: a job each 5 ms whether or not the last one is done. The worker runs in this process, on a runtime
//! of its own, with a handler that notes the time: the peers' programs hold their producer and their worker in
//! one process too, and no clock has to be carried over. A second figure is of the real worker process with the
//! `http` handler, from the push to the arrival of the request at a server in this process: that contains one
//! HTTP request on the loopback interface, so it is an upper bound.
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, ensure};
use e2e::{Options, Recorder, RedisServer, Worker, WorkerOptions, eventually};
use hdrhistogram::Histogram;
use jobqueue::config::Config;
use jobqueue::outcome::Outcome;
use worker::handler::{Function, Handler};
use worker::health::Readiness;
use worker::metrics::Metrics;
use worker::roles::worker::{Surroundings, run_with};
use worker::shutdown::shutdown;
use worker::traces::Tracer;

use crate::contest::SIZE;
use crate::jobs;
use crate::peers::Peer;
use crate::progress;
use crate::report::Pickup;

/// Jobs a second.
pub const RATE: u32 = 200;
/// Before the first job: lanes open and park.
const IDLE: Duration = Duration::from_secs(2);
const QUEUES: [(&str, &str); 2] = [("high", "jobqueue:high_priority"), ("low", "jobqueue:low_priority")];
const WAIT: Duration = Duration::from_secs(30);
/// Jobs that are pushed but not counted: connections and caches are cold.
const COLD: u32 = 20;

/// Ours for the first and the last priority, and the peers'.
pub async fn measure(peers: &[Peer], time: Duration) -> anyhow::Result<Vec<Pickup>> {
    let count = RATE * u32::try_from(time.as_secs())?;
    let mut rows = Vec::new();
    for (name, key) in QUEUES {
        let waits = in_process(key, count).await?;
        rows.push(row("jobqueue", format!("{name} priority"), &waits)?);
    }
    for (name, key) in QUEUES {
        let waits = over_http(key, count).await?;
        rows.push(row("jobqueue", format!("{name} priority, http handler"), &waits)?);
    }
    for peer in peers {
        let server = RedisServer::start(Options::default()).await;
        let waits = peer.pickup(&server, RATE, count).with_context(|| peer.name.to_owned())?;
        ensure!(waits.len() == count as usize, "{}: {} of {count} jobs ran", peer.name, waits.len());
        rows.push(row(peer.name, "its defaults".to_owned(), &waits)?);
    }
    Ok(rows)
}

fn row(system: &str, setting: String, waits: &[u64]) -> anyhow::Result<Pickup> {
    let mut histogram = Histogram::<u64>::new(3)?;
    for wait in &waits[(COLD as usize).min(waits.len() / 2)..] {
        histogram.record((*wait).max(1))?;
    }
    #[expect(clippy::cast_precision_loss, reason = "microseconds below 2^53")]
    let ms = |micros: u64| micros as f64 / 1000.0;
    let at = |quantile: f64| ms(histogram.value_at_quantile(quantile));
    let row = Pickup {
        system: system.to_owned(),
        setting,
        jobs: histogram.len(),
        p50_ms: at(0.5),
        p90_ms: at(0.9),
        p99_ms: at(0.99),
        max_ms: ms(histogram.max()),
    };
    progress(&format!(
        "pickup: {system} ({}): p50 {:.2} ms, p99 {:.2} ms",
        row.setting, row.p50_ms, row.p99_ms
    ));
    Ok(row)
}

/// When each job was pushed and when it started, in microseconds after one moment.
#[derive(Debug)]
struct Times {
    zero: Instant,
    pushed: Vec<AtomicU64>,
    started: Vec<AtomicU64>,
}

impl Times {
    fn new(count: u32) -> Self {
        let none = || (0..count).map(|_| AtomicU64::new(0)).collect();
        Self { zero: Instant::now(), pushed: none(), started: none() }
    }

    fn note(&self, which: &[AtomicU64], job: u64, when: Instant) {
        let micros = u64::try_from((when - self.zero).as_micros()).unwrap_or(u64::MAX);
        if let Some(slot) = usize::try_from(job).ok().and_then(|job| which.get(job)) {
            slot.store(micros, Ordering::SeqCst);
        }
    }

    fn all_started(&self) -> bool {
        self.started.iter().all(|started| started.load(Ordering::SeqCst) > 0)
    }

    fn waits(&self) -> Vec<u64> {
        let micros = |slot: &AtomicU64| slot.load(Ordering::SeqCst);
        self.pushed
            .iter()
            .zip(&self.started)
            .map(|(pushed, started)| micros(started) - micros(pushed))
            .collect()
    }
}

/// Pushes from a thread of its own: a timer of the runtime would round to milliseconds.
async fn push_all(url: String, key: &'static str, times: &Arc<Times>) -> anyhow::Result<()> {
    let times = Arc::clone(times);
    let pushing = tokio::task::spawn_blocking(move || -> anyhow::Result<()> {
        let mut redis = redis::Client::open(url)?.get_connection()?;
        let start = Instant::now();
        for number in 0..times.pushed.len() as u64 {
            let job = jobs::job(number, SIZE);
            let due = start + Duration::from_secs(number) / RATE;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            // A push that had to wait for the one before it has waited since it was due.
            let now = Instant::now();
            let late = now - due > Duration::from_millis(2);
            times.note(&times.pushed, number, if late { due } else { now });
            redis::cmd("LPUSH").arg(key).arg(job).query::<()>(&mut redis)?;
        }
        Ok(())
    });
    pushing.await?
}

async fn in_process(key: &'static str, count: u32) -> anyhow::Result<Vec<u64>> {
    let server = RedisServer::start(Options::default()).await;
    let times = Arc::new(Times::new(count));
    let noted = Arc::clone(&times);
    let handler = Handler::Function(Function::new(move |job, _| {
        if let Some(number) = jobs::number(&job.fields.id) {
            noted.note(&noted.started, number, Instant::now());
        }
        Outcome::Done
    }));
    let tree = serde_json::json!({"redis": {"addr": server.addr().to_string()}});
    let config = Config::from_value(tree).map_err(|problems| anyhow::anyhow!("{problems}"))?.config;
    let (stop, stopping) = shutdown();
    let around = Surroundings {
        metrics: Arc::new(Metrics::new(&config.worker.priorities)?),
        readiness: Readiness::waiting_for(&[]),
        tracer: Tracer::off(),
        started_ms: u64::try_from(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_millis())?,
    };
    let process = std::thread::spawn(move || -> anyhow::Result<bool> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(run_with(handler, &config, around, stopping))
    });
    tokio::time::sleep(IDLE).await;
    push_all(server.url(), key, &times).await?;
    eventually(WAIT, "every job to start", async || times.all_started().then_some(())).await;
    stop.stop();
    let ended = tokio::task::spawn_blocking(move || process.join()).await?;
    ensure!(ended.is_ok_and(|ended| ended.is_ok_and(|clean| clean)), "the worker did not end well");
    Ok(times.waits())
}

async fn over_http(key: &'static str, count: u32) -> anyhow::Result<Vec<u64>> {
    let server = RedisServer::start(Options::default()).await;
    let recorder = Recorder::start().await;
    let config = format!("worker:\n  handler: {{kind: http, http: {{url: \"{}\"}}}}\n", recorder.url());
    let worker = Worker::spawn(&WorkerOptions::new("worker").config(&config).redis(server.addr()));
    worker.wait_for_log("Opened a lane").await;
    tokio::time::sleep(IDLE).await;
    let times = Arc::new(Times::new(count));
    push_all(server.url(), key, &times).await?;
    recorder.wait_answered(count as usize).await;
    let runs = recorder.runs();
    ensure!(runs.len() == count as usize, "{} runs of {count} jobs", runs.len());
    for run in runs {
        let number = jobs::number(&run.id).context("a job of ours")?;
        times.note(&times.started, number, run.started);
    }
    Ok(times.waits())
}
