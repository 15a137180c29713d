//! What the operator counts, under the names that dashboards of controllers know, and the gauges of all queues, under the
//! names that workers have for them where there is no operator, with the labels `namespace` and `jobqueue`.
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use prometheus::{
    Encoder, Gauge, GaugeVec, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec,
    Opts, Registry, TextEncoder,
};

use crate::api::v1alpha1::ScalingMode;
use crate::observer::{Gauges, Observer};

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
    delayed: IntGaugeVec,
    oldest: GaugeVec,
    breakers: IntGaugeVec,
    reaped: IntCounterVec,
    jobs: IntGaugeVec,
    workers: IntGaugeVec,
    draining: IntGaugeVec,
    most: IntGaugeVec,
    paused: IntGaugeVec,
    reachable: IntGaugeVec,
    memory: IntGauge,
    observer: OnceLock<Observer>,
    /// Held from the moment that the gauges of queues are emptied until they were read: another scrape would fill them
    /// again meanwhile, and counters twice.
    reading: Mutex<()>,
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
            delayed: IntGaugeVec::new(Opts::new("queue_delayed", "Jobs that wait for their time"), queue)?,
            oldest: GaugeVec::new(
                Opts::new("queue_oldest_age_seconds", "Age of the job that waited longest; 0 when empty"),
                queue,
            )?,
            breakers: IntGaugeVec::new(
                Opts::new(
                    "jobqueue_breaker_open",
                    "1 while at least half of the workers hold the queue's breaker open",
                ),
                queue,
            )?,
            reaped: IntCounterVec::new(
                Opts::new("reaper_jobs_moved_total", "Jobs of dead workers that were given back"),
                queue,
            )?,
            jobs: IntGaugeVec::new(
                Opts::new("jobqueue_jobs", "Jobs, by state"),
                &["namespace", "jobqueue", "state"],
            )?,
            workers: IntGaugeVec::new(
                Opts::new("jobqueue_workers_desired", "Workers that are asked for"),
                object,
            )?,
            draining: IntGaugeVec::new(
                Opts::new("jobqueue_workers_draining", "Workers that finish their jobs and then go"),
                object,
            )?,
            most: IntGaugeVec::new(
                Opts::new(
                    "jobqueue_workers_max",
                    "The most workers that may be asked for; none if set by hand",
                ),
                object,
            )?,
            paused: IntGaugeVec::new(
                Opts::new("jobqueue_paused", "1 while nobody takes jobs, on purpose"),
                object,
            )?,
            reachable: IntGaugeVec::new(Opts::new("jobqueue_redis_up", "1 while Redis answers"), object)?,
            memory: IntGauge::new("process_resident_memory_bytes", "Memory of this process")?,
            observer: OnceLock::new(),
            reading: Mutex::default(),
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
        for gauge in metrics.queue_gauges() {
            metrics.registry.register(Box::new(gauge.clone()))?;
        }
        metrics.registry.register(Box::new(metrics.oldest.clone()))?;
        metrics.registry.register(Box::new(metrics.reaped.clone()))?;
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
        let _alone = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        self.read_queues();
        if let Ok(stat) = procfs::process::Process::myself().and_then(|me| me.stat()) {
            self.memory.set(i64::try_from(stat.rss.saturating_mul(procfs::page_size())).unwrap_or(i64::MAX));
        }
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    fn queue_gauges(&self) -> [&IntGaugeVec; 9] {
        let Self { waiting, delayed, breakers, jobs, workers, draining, most, paused, reachable, .. } = self;
        [waiting, delayed, breakers, jobs, workers, draining, most, paused, reachable]
    }

    fn read_queues(&self) {
        let whole = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        // Queues that are gone must not be exported for ever.
        self.queue_gauges().into_iter().for_each(IntGaugeVec::reset);
        self.oldest.reset();
        self.reaped.reset();
        for Gauges { queue, seen, target, reaped } in
            self.observer.get().map(Observer::all).unwrap_or_default()
        {
            let namespace = queue.namespace.clone().unwrap_or_default();
            let name = queue.name.as_str();
            let object = [&namespace, name];
            self.reachable.with_label_values(&object).set(i64::from(seen.trouble.is_none()));
            self.workers.with_label_values(&object).set(i64::from(target.asked.replicas));
            self.draining.with_label_values(&object).set(i64::from(seen.draining));
            if target.scaling.mode == ScalingMode::Auto {
                self.most.with_label_values(&object).set(i64::from(target.scaling.max_replicas));
            }
            for (of, count) in reaped.iter().take(MOST_QUEUES) {
                self.reaped.with_label_values(&[&namespace, name, of]).inc_by(*count);
            }
            if seen.trouble.is_some() {
                continue;
            }
            let figures = &seen.figures;
            self.paused.with_label_values(&object).set(i64::from(figures.paused));
            let names = target.shards.first().map(|shard| shard.queues.as_slice()).unwrap_or_default();
            for (at, keys) in names.iter().enumerate().take(MOST_QUEUES) {
                let labels = [&namespace, name, &keys.name];
                let count = |counts: &[u64]| whole(counts.get(at).copied().unwrap_or(0));
                self.waiting.with_label_values(&labels).set(count(&figures.waiting));
                self.delayed.with_label_values(&labels).set(count(&figures.delayed_by_queue));
                let open = figures.open.get(at).copied().unwrap_or(false);
                self.breakers.with_label_values(&labels).set(i64::from(open));
                let since = figures.oldest.get(at).copied().flatten();
                let age =
                    Duration::from_millis(since.map_or(0, |since| figures.now_ms.saturating_sub(since)));
                self.oldest.with_label_values(&labels).set(age.as_secs_f64());
            }
            for (state, count) in [
                ("in_flight", figures.in_flight),
                ("delayed", figures.delayed()),
                ("dead", figures.dead_letters),
            ] {
                self.jobs.with_label_values(&[&namespace, name, state]).set(whole(count));
            }
        }
    }
}
