//! What the operator counts, under the names that dashboards of controllers know, and the gauges of all queues,
//! with the labels `namespace` and `jobqueue`. (One worker of a queue exports `queue_length` too, without them.)
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use prometheus::{
    Encoder, Gauge, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry, TextEncoder,
};

use crate::observer::Observer;

/// Queue names are the user's: no `JobQueue` gets more labels than this.
const MOST_QUEUES: usize = 50;

/// Everything behind `/metrics`.
pub struct Metrics {
    registry: Registry,
    reconciles: IntCounter,
    failures: IntCounterVec,
    seconds: Histogram,
    leader: Gauge,
    waiting: IntGaugeVec,
    jobs: IntGaugeVec,
    workers: IntGaugeVec,
    reachable: IntGaugeVec,
    memory: IntGauge,
    observer: OnceLock<Observer>,
}

/// Measures one reconcile, whatever way it ends.
pub struct Timer<'a>(&'a Metrics, Instant);

impl Drop for Timer<'_> {
    fn drop(&mut self) {
        self.0.seconds.observe(self.1.elapsed().as_secs_f64());
    }
}

impl Metrics {
    /// All of them at zero.
    pub fn new() -> Result<Arc<Self>, prometheus::Error> {
        let registry = Registry::new();
        let queue = &["namespace", "jobqueue", "queue"][..];
        let object = &["namespace", "jobqueue"][..];
        let buckets = vec![0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];
        let seconds =
            HistogramOpts::new("controller_runtime_reconcile_time_seconds", "How long reconciles took");
        let metrics = Self {
            reconciles: IntCounter::new("controller_runtime_reconcile_total", "Reconciles")?,
            failures: IntCounterVec::new(
                Opts::new("controller_runtime_reconcile_errors_total", "Reconciles that failed, by reason"),
                &["reason"],
            )?,
            seconds: Histogram::with_opts(seconds.buckets(buckets))?,
            leader: Gauge::new("leader_election_master_status", "1 while this process leads")?,
            waiting: IntGaugeVec::new(Opts::new("queue_length", "Jobs that wait to be run"), queue)?,
            jobs: IntGaugeVec::new(
                Opts::new("jobqueue_jobs", "Jobs, by state"),
                &["namespace", "jobqueue", "state"],
            )?,
            workers: IntGaugeVec::new(
                Opts::new("jobqueue_workers_desired", "Workers that are asked for"),
                object,
            )?,
            reachable: IntGaugeVec::new(Opts::new("jobqueue_redis_up", "1 while Redis answers"), object)?,
            memory: IntGauge::new("process_resident_memory_bytes", "Memory of this process")?,
            observer: OnceLock::new(),
            registry,
        };
        let build =
            IntGaugeVec::new(Opts::new("jobqueue_build_info", "The version of the operator"), &["version"])?;
        build.with_label_values(&[jobqueue::VERSION]).set(1);
        metrics.registry.register(Box::new(build))?;
        metrics.registry.register(Box::new(metrics.reconciles.clone()))?;
        metrics.registry.register(Box::new(metrics.failures.clone()))?;
        metrics.registry.register(Box::new(metrics.seconds.clone()))?;
        metrics.registry.register(Box::new(metrics.leader.clone()))?;
        metrics.registry.register(Box::new(metrics.memory.clone()))?;
        for gauge in [&metrics.waiting, &metrics.jobs, &metrics.workers, &metrics.reachable] {
            metrics.registry.register(Box::new(gauge.clone()))?;
        }
        Ok(Arc::new(metrics))
    }

    /// The gauges of queues are read from here.
    pub fn observe(&self, observer: Observer) {
        // A process leads once in its life.
        let _ = self.observer.set(observer);
    }

    /// This process leads now.
    pub fn lead(&self) {
        self.leader.set(1.0);
    }

    /// A reconcile begins; the timer is dropped when it ends.
    pub fn reconcile_started(&self) -> Timer<'_> {
        self.reconciles.inc();
        Timer(self, Instant::now())
    }

    /// A reconcile failed.
    pub fn reconcile_failed(&self, reason: &str) {
        self.failures.with_label_values(&[reason]).inc();
    }

    /// The text format of Prometheus.
    pub fn text(&self) -> Result<String, prometheus::Error> {
        self.read_queues();
        if let Ok(stat) = procfs::process::Process::myself().and_then(|me| me.stat()) {
            self.memory.set(i64::try_from(stat.rss.saturating_mul(procfs::page_size())).unwrap_or(i64::MAX));
        }
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    fn read_queues(&self) {
        let whole = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        for gauge in [&self.waiting, &self.jobs, &self.workers, &self.reachable] {
            // Queues that are gone must not be exported for ever.
            gauge.reset();
        }
        for (queue, seen, target) in self.observer.get().map(Observer::all).unwrap_or_default() {
            let namespace = queue.namespace.clone().unwrap_or_default();
            let name = queue.name.as_str();
            self.reachable.with_label_values(&[&namespace, name]).set(i64::from(seen.trouble.is_none()));
            self.workers.with_label_values(&[&namespace, name]).set(i64::from(target.current));
            if seen.trouble.is_some() {
                continue;
            }
            let names = target.shards.first().map(|shard| shard.queues.as_slice()).unwrap_or_default();
            for (keys, waiting) in names.iter().zip(&seen.figures.waiting).take(MOST_QUEUES) {
                self.waiting.with_label_values(&[&namespace, name, &keys.name]).set(whole(*waiting));
            }
            for (state, count) in [
                ("in_flight", seen.figures.in_flight),
                ("delayed", seen.figures.delayed),
                ("dead", seen.figures.dead_letters),
            ] {
                self.jobs.with_label_values(&[&namespace, name, state]).set(whole(count));
            }
        }
    }
}
