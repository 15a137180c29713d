//! Metrics in the Prometheus text format. Everything that happens to jobs is counted per queue on
//! handles resolved once, because the loop counts hundreds of thousands of jobs a second; label values
//! come from the configured queues only, so no producer can make new series.
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use jobqueue::breaker::State;
use jobqueue::outcome::Reason;
use prometheus::{
    Counter, Encoder, Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec,
    IntGauge, IntGaugeVec, Opts, Registry, TextEncoder,
    core::{Collector, Desc},
    proto::MetricFamily,
};

/// Values a `queue` label may have, [`OTHER`] among them.
pub const MAX_QUEUES: usize = 50;

/// The `queue` label of every name that is not configured.
pub const OTHER: &str = "other";

/// From a no-op handler to a job of ten minutes; beyond, the average tells enough.
const PROCESSING_BUCKETS: [f64; 14] =
    [0.000_5, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0, 600.0];

/// A reserved job should start at once: fine below a second, coarse above.
const WAIT_BUCKETS: [f64; 10] = [0.000_1, 0.000_5, 0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 30.0];

/// What the queues looked like a moment ago; exported by one process only.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct QueueSample {
    /// One reading per queue.
    pub queues: Vec<QueueReading>,
    /// Entries in the dead letter list.
    pub dead_letters: u64,
}

/// What one queue looked like.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct QueueReading {
    /// The configured name of the queue.
    pub queue: String,
    /// Jobs that could be reserved now.
    pub length: u64,
    /// Jobs that wait for their time.
    pub delayed: u64,
    /// Age of the job that waited longest; none on an empty queue.
    pub oldest_age: Option<Duration>,
}

/// Counts a job that runs, until it is dropped.
#[derive(Debug)]
pub struct Running(IntGauge);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Everything this process counts.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    families: QueueFamilies,
    by_name: HashMap<String, Arc<QueueMetrics>>,
    /// Made when first needed, so that a process whose queues are all known exports no `other`.
    other: OnceLock<Arc<QueueMetrics>>,
    queue_gauges: QueueGauges,
    dead_letters_trimmed: IntCounter,
    jobs_in_flight: IntGauge,
    worker_active: IntGauge,
    worker_slots: IntGauge,
    redis_up: IntGauge,
    redis_round_trips: IntCounter,
}

/// What is counted for one queue: counters already looked up, one atomic addition each.
#[derive(Debug)]
pub struct QueueMetrics {
    name: Arc<str>,
    is_other: bool,
    produced: IntCounter,
    consumed: IntCounter,
    completed: IntCounter,
    failed: [IntCounter; Reason::ALL.len()],
    retried: IntCounter,
    dead_lettered: IntCounter,
    reaped: IntCounter,
    moved_by_reaper: IntCounter,
    interrupted: IntCounter,
    released: IntCounter,
    dropped: IntCounter,
    processing_duration: Histogram,
    wait: Histogram,
    breaker: IntGauge,
}

impl Metrics {
    /// Metrics for a process that serves `queues`. Names beyond the bound of 50 values count as
    /// `other`, the last ones first: queues are configured in order of priority.
    pub fn new(queues: &[String]) -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let families = QueueFamilies::register(&registry)?;
        let named = queues.iter().filter(|name| *name != OTHER).enumerate();
        let by_name: HashMap<_, _> = named
            .map(|(at, name)| {
                let label = if at < MAX_QUEUES - 1 { name } else { OTHER };
                (name.clone(), QueueMetrics::resolve(&families, name, label))
            })
            .collect();
        let queue_gauges = QueueGauges::new()?;
        registry.register(Box::new(queue_gauges.clone()))?;
        registry.register(Box::new(ProcessGauges::new()?))?;

        let build_info =
            IntGaugeVec::new(Opts::new("build_info", "Always 1; the label names the version"), &["version"])?;
        registry.register(Box::new(build_info.clone()))?;
        build_info.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);

        Ok(Self {
            families,
            by_name,
            other: OnceLock::new(),
            queue_gauges,
            dead_letters_trimmed: counter(
                &registry,
                "dead_letters_trimmed_total",
                "Dead letters dropped because of worker.dead_letter_max",
            )?,
            jobs_in_flight: gauge(&registry, "jobs_in_flight", "Jobs this process holds")?,
            worker_active: gauge(&registry, "worker_active", "Jobs that this process runs")?,
            worker_slots: gauge(&registry, "worker_slots", "Configured slots of this process")?,
            redis_up: gauge(&registry, "redis_up", "1 while Redis answers this process, else 0")?,
            redis_round_trips: counter(
                &registry,
                "redis_round_trips_total",
                "Times this process waited for an answer of Redis",
            )?,
            registry,
        })
    }

    /// The counters of one queue; keep a clone where jobs are counted one by one.
    pub fn queue(&self, name: &str) -> &Arc<QueueMetrics> {
        self.by_name
            .get(name)
            .unwrap_or_else(|| self.other.get_or_init(|| QueueMetrics::resolve(&self.families, OTHER, OTHER)))
    }

    /// Exports what the queues look like; `None` when another process does it from now on.
    pub fn export_queue_gauges(&self, sample: Option<QueueSample>) {
        let known = sample.map(|sample| sample.merged(|name| self.label(name)));
        *self.queue_gauges.sample.lock().unwrap_or_else(PoisonError::into_inner) = known;
    }

    /// `n` dead letters were dropped because there were too many.
    pub fn dead_letters_trimmed(&self, n: u64) {
        self.dead_letters_trimmed.inc_by(n);
    }

    /// This process took (positive) or gave away (negative) so many jobs.
    pub fn jobs_in_flight_changed(&self, by: i64) {
        self.jobs_in_flight.add(by);
    }

    /// A job runs, until what is answered is dropped.
    pub fn job_runs(&self) -> Running {
        self.worker_active.inc();
        Running(self.worker_active.clone())
    }

    /// So many slots are configured.
    pub fn worker_slots(&self, slots: usize) {
        self.worker_slots.set(saturating(slots));
    }

    /// Redis answered, or did not.
    pub fn redis_answers(&self, up: bool) {
        self.redis_up.set(i64::from(up));
    }

    /// An answer of Redis was waited for, `n` times.
    pub fn redis_round_trips(&self, n: u64) {
        self.redis_round_trips.inc_by(n);
    }

    /// Where a role adds what only it counts.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Everything, in the text format that `/metrics` answers with.
    pub fn render(&self) -> String {
        let mut text = Vec::with_capacity(16 * 1024);
        // Encoding fails only for a family without metrics, and the registry leaves those out.
        if let Err(error) = TextEncoder::new().encode(&self.registry.gather(), &mut text) {
            tracing::error!(%error, "Left metrics out of a scrape");
        }
        String::from_utf8_lossy(&text).into_owned()
    }

    fn label<'a>(&self, name: &'a str) -> &'a str {
        self.by_name.get(name).map_or(OTHER, |queue| if queue.is_other { OTHER } else { name })
    }
}

impl QueueMetrics {
    fn resolve(families: &QueueFamilies, name: &str, queue: &str) -> Arc<Self> {
        let of = |family: &IntCounterVec| family.with_label_values(&[queue]);
        Arc::new(Self {
            name: Arc::from(name),
            is_other: queue == OTHER,
            produced: of(&families.produced),
            consumed: of(&families.consumed),
            completed: of(&families.completed),
            failed: Reason::ALL.map(|reason| families.failed.with_label_values(&[queue, reason.as_str()])),
            retried: of(&families.retried),
            dead_lettered: of(&families.dead_lettered),
            reaped: of(&families.reaped),
            moved_by_reaper: of(&families.moved_by_reaper),
            interrupted: of(&families.interrupted),
            released: of(&families.released),
            dropped: of(&families.dropped),
            processing_duration: families.processing_duration.with_label_values(&[queue]),
            wait: families.wait.with_label_values(&[queue]),
            breaker: families.breaker.with_label_values(&[queue]),
        })
    }

    /// The queue's own name, also where its label is `other`.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// `n` jobs were pushed to the queue by this process.
    pub fn jobs_produced(&self, n: u64) {
        self.produced.inc_by(n);
    }

    /// `n` jobs were reserved.
    pub fn jobs_consumed(&self, n: u64) {
        self.consumed.inc_by(n);
    }

    /// A reserved job waited this long for a slot.
    pub fn job_waited(&self, time: Duration) {
        self.wait.observe(time.as_secs_f64());
    }

    /// A job ran this long, however it ended.
    pub fn job_ran(&self, time: Duration) {
        self.processing_duration.observe(time.as_secs_f64());
    }

    /// `n` jobs were settled as done.
    pub fn jobs_completed(&self, n: u64) {
        self.completed.inc_by(n);
    }

    /// `n` runs failed for this reason.
    pub fn jobs_failed(&self, reason: Reason, n: u64) {
        // The discriminant is the place in Reason::ALL; a test holds them together.
        self.failed[reason as usize].inc_by(n);
    }

    /// `n` failed jobs will be run again.
    pub fn jobs_retried(&self, n: u64) {
        self.retried.inc_by(n);
    }

    /// `n` jobs became dead letters.
    pub fn jobs_dead_lettered(&self, n: u64) {
        self.dead_lettered.inc_by(n);
    }

    /// `n` jobs were taken back from dead lanes. Two names, because the requirements have both.
    pub fn jobs_reaped(&self, n: u64) {
        self.reaped.inc_by(n);
        self.moved_by_reaper.inc_by(n);
    }

    /// `n` jobs lost the process or handler that ran them.
    pub fn jobs_interrupted(&self, n: u64) {
        self.interrupted.inc_by(n);
    }

    /// `n` jobs were given back unharmed: at shutdown, or because their handler was not there.
    pub fn jobs_released(&self, n: u64) {
        self.released.inc_by(n);
    }

    /// `n` entries of the queue named a job that is not to be run: cancelled, or named twice.
    pub fn jobs_dropped(&self, n: u64) {
        self.dropped.inc_by(n);
    }

    /// The queue's breaker changed its state.
    pub fn breaker_is(&self, state: State) {
        self.breaker.set(state.as_gauge());
    }
}

/// The families with a `queue` label.
#[derive(Debug)]
struct QueueFamilies {
    produced: IntCounterVec,
    consumed: IntCounterVec,
    completed: IntCounterVec,
    failed: IntCounterVec,
    retried: IntCounterVec,
    dead_lettered: IntCounterVec,
    reaped: IntCounterVec,
    moved_by_reaper: IntCounterVec,
    interrupted: IntCounterVec,
    released: IntCounterVec,
    dropped: IntCounterVec,
    processing_duration: HistogramVec,
    wait: HistogramVec,
    breaker: IntGaugeVec,
}

impl QueueFamilies {
    fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let counters = |name: &str, help: &str, labels: &[&str]| {
            let family = IntCounterVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(family.clone()))?;
            Ok::<_, prometheus::Error>(family)
        };
        let histograms = |name: &str, help: &str, buckets: &[f64]| {
            let opts = HistogramOpts::new(name, help).buckets(buckets.to_vec());
            let family = HistogramVec::new(opts, &["queue"])?;
            registry.register(Box::new(family.clone()))?;
            Ok::<_, prometheus::Error>(family)
        };
        let breaker = IntGaugeVec::new(
            Opts::new("circuit_breaker_state", "The queue's breaker: 0 closed, 1 half-open, 2 open"),
            &["queue"],
        )?;
        registry.register(Box::new(breaker.clone()))?;
        Ok(Self {
            produced: counters("jobs_produced_total", "Jobs pushed by this process", &["queue"])?,
            consumed: counters("jobs_consumed_total", "Jobs reserved by this process", &["queue"])?,
            completed: counters("jobs_completed_total", "Jobs settled as done", &["queue"])?,
            failed: counters("jobs_failed_total", "Runs that failed, by reason", &["queue", "reason"])?,
            retried: counters("jobs_retried_total", "Failed jobs that will run again", &["queue"])?,
            dead_lettered: counters("jobs_dead_letter_total", "Jobs that became dead letters", &["queue"])?,
            reaped: counters("jobs_reaped_total", "Jobs taken back from dead workers", &["queue"])?,
            moved_by_reaper: counters(
                "reaper_jobs_moved_total",
                "Jobs the reaper moved; the same count as jobs_reaped_total",
                &["queue"],
            )?,
            interrupted: counters(
                "jobs_interrupted_total",
                "Runs that lost their process or handler",
                &["queue"],
            )?,
            released: counters(
                "jobs_released_total",
                "Jobs given back uncounted: at shutdown, or because their handler was not there",
                &["queue"],
            )?,
            dropped: counters(
                "jobs_dropped_total",
                "Entries of the queue that were not run: their job was cancelled, or named twice (protocol async)",
                &["queue"],
            )?,
            processing_duration: histograms(
                "job_processing_duration_seconds",
                "Time a job ran, however it ended",
                &PROCESSING_BUCKETS,
            )?,
            wait: histograms("job_wait_seconds", "Time a reserved job waited for a slot", &WAIT_BUCKETS)?,
            breaker,
        })
    }
}

impl QueueSample {
    /// One reading per label: names that share a label add up, of their ages the highest counts.
    fn merged(self, label: impl Fn(&str) -> &str) -> Self {
        let mut queues: Vec<QueueReading> = Vec::with_capacity(self.queues.len());
        for reading in self.queues {
            let name = label(&reading.queue);
            if let Some(same) = queues.iter_mut().find(|other| other.queue == name) {
                same.length += reading.length;
                same.delayed += reading.delayed;
                same.oldest_age = same.oldest_age.max(reading.oldest_age);
            } else {
                queues.push(QueueReading { queue: name.to_owned(), ..reading });
            }
        }
        Self { queues, ..self }
    }
}

/// The gauges about whole queues. Every process could export them, and `sum()` would then lie: they are
/// in the scrape only while this process holds a sample.
#[derive(Debug, Clone)]
struct QueueGauges {
    sample: Arc<Mutex<Option<QueueSample>>>,
    length: IntGaugeVec,
    delayed: IntGaugeVec,
    oldest_age: GaugeVec,
    dead_letters: IntGauge,
}

impl QueueGauges {
    fn new() -> Result<Self, prometheus::Error> {
        let labels = &["queue"];
        Ok(Self {
            sample: Arc::default(),
            length: IntGaugeVec::new(Opts::new("queue_length", "Jobs that can be reserved"), labels)?,
            delayed: IntGaugeVec::new(Opts::new("queue_delayed", "Jobs that wait for their time"), labels)?,
            oldest_age: GaugeVec::new(
                Opts::new("queue_oldest_age_seconds", "Age of the job that waited longest; 0 when empty"),
                labels,
            )?,
            dead_letters: IntGauge::new("dead_letters", "Entries in the dead letter list")?,
        })
    }
}

impl Collector for QueueGauges {
    fn desc(&self) -> Vec<&Desc> {
        let mut all = self.length.desc();
        all.extend(self.delayed.desc());
        all.extend(self.oldest_age.desc());
        all.extend(self.dead_letters.desc());
        all
    }

    fn collect(&self) -> Vec<MetricFamily> {
        // Held to the end, so that two scrapes at once do not reset each other's gauges.
        let sample = self.sample.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(sample) = sample.as_ref() else { return Vec::new() };
        self.length.reset();
        self.delayed.reset();
        self.oldest_age.reset();
        for reading in &sample.queues {
            let label = &[reading.queue.as_str()];
            self.length.with_label_values(label).set(saturating(reading.length));
            self.delayed.with_label_values(label).set(saturating(reading.delayed));
            let age = reading.oldest_age.unwrap_or_default();
            self.oldest_age.with_label_values(label).set(age.as_secs_f64());
        }
        self.dead_letters.set(saturating(sample.dead_letters));
        let mut all = self.length.collect();
        all.extend(self.delayed.collect());
        all.extend(self.oldest_age.collect());
        all.extend(self.dead_letters.collect());
        all
    }
}

/// What the kernel and the runtime know about this process, read at each scrape. A value that cannot be
/// read is left out: a zero would be taken for a measurement.
#[derive(Debug)]
struct ProcessGauges {
    descs: Vec<Desc>,
}

impl ProcessGauges {
    const RESIDENT: [&str; 2] = ["process_resident_memory_bytes", "Resident memory of this process"];
    const CPU: [&str; 2] = ["process_cpu_seconds_total", "User and system time this process used"];
    const FDS: [&str; 2] = ["process_open_fds", "Open file descriptors of this process"];
    const START: [&str; 2] = ["process_start_time_seconds", "Start of this process since the Unix epoch"];
    const TASKS: [&str; 2] = ["tokio_tasks_alive", "Tasks of this process's event loop"];

    fn new() -> Result<Self, prometheus::Error> {
        let all = [Self::RESIDENT, Self::CPU, Self::FDS, Self::START, Self::TASKS];
        let desc = |[name, help]: [&str; 2]| Desc::new(name.into(), help.into(), vec![], HashMap::new());
        Ok(Self { descs: all.into_iter().map(desc).collect::<Result<_, _>>()? })
    }
}

impl Collector for ProcessGauges {
    fn desc(&self) -> Vec<&Desc> {
        self.descs.iter().collect()
    }

    #[expect(clippy::cast_precision_loss, reason = "exact up to 2^53: 8 PiB, 285 million years in ticks")]
    fn collect(&self) -> Vec<MetricFamily> {
        let mut families = Vec::with_capacity(self.descs.len());
        let mut put = |[name, help]: [&str; 2], value: f64| {
            if let Ok(gauge) = Gauge::new(name, help) {
                gauge.set(value);
                families.extend(gauge.collect());
            }
        };
        let process = procfs::process::Process::myself();
        let stat = process.as_ref().ok().and_then(|process| process.stat().ok());
        let ticks_per_second = procfs::ticks_per_second() as f64;
        if let Some(stat) = &stat {
            put(Self::RESIDENT, (stat.rss * procfs::page_size()) as f64);
            if let Ok(boot) = procfs::boot_time_secs() {
                put(Self::START, boot as f64 + stat.starttime as f64 / ticks_per_second);
            }
        }
        if let Some(count) = process.ok().and_then(|process| process.fd_count().ok()) {
            put(Self::FDS, count as f64);
        }
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            put(Self::TASKS, runtime.metrics().num_alive_tasks() as f64);
        }
        let [name, help] = Self::CPU;
        if let (Some(stat), Ok(cpu)) = (stat, Counter::new(name, help)) {
            cpu.inc_by((stat.utime + stat.stime) as f64 / ticks_per_second);
            families.extend(cpu.collect());
        }
        families
    }
}

fn counter(registry: &Registry, name: &str, help: &str) -> Result<IntCounter, prometheus::Error> {
    let counter = IntCounter::new(name, help)?;
    registry.register(Box::new(counter.clone()))?;
    Ok(counter)
}

fn gauge(registry: &Registry, name: &str, help: &str) -> Result<IntGauge, prometheus::Error> {
    let gauge = IntGauge::new(name, help)?;
    registry.register(Box::new(gauge.clone()))?;
    Ok(gauge)
}

fn saturating(value: impl TryInto<i64>) -> i64 {
    value.try_into().unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
