//! `--role=producer`: scan a directory, enqueue its files. The walk runs on a thread of its own and hands over
//! batches through a bounded channel: while Redis is away, or the rate limit is used up, the walk waits.
mod prune;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use jobqueue::config::Config;
use jobqueue::engine::Engine;
use jobqueue::keys::Keys;
use jobqueue::layout::{self, LayoutError};
use jobqueue::store::{Enqueue, PAGE_BYTES, PAGE_COUNT, Session, StoreError};
use sha2::{Digest as _, Sha256};
use tokio::sync::mpsc;
use uuid::Uuid;

use super::{check_redis, is_stopped, write_layout};
use crate::failpoint;
use crate::metrics::Metrics;
use crate::scan::{
    Entry, Found, ScanReport, ScanSettings, Scanner, SkipReason, TraceIds, job_json, priority,
};
use crate::shutdown::Shutdown;
use crate::traces::{JobSpan, Tracer};

/// Batches between the walk and the enqueueing: enough that neither waits for the other's hiccups.
const BATCHES_AHEAD: usize = 4;
/// How long a producer waits before it tries again what only a person can repair.
const REPAIR_WAIT: Duration = Duration::from_secs(1);
/// Producers that wait for one window spread over this share of a second when it resets.
const JITTER_MAX: Duration = Duration::from_millis(100);

/// Runs until shutdown, or once; `Ok(false)` when the one scan could not read its directory.
pub async fn run(
    config: &Config,
    metrics: Arc<Metrics>,
    tracer: Tracer,
    stop: Shutdown,
) -> anyhow::Result<bool> {
    let settings = &config.producer;
    let scanner = Arc::new(Scanner::new(&ScanSettings {
        scan_dir: settings.scan_dir.clone().into(),
        include_globs: settings.include_globs.clone(),
        exclude_globs: settings.exclude_globs.clone(),
    })?);
    let mut producer = Producer::new(config, metrics, tracer, stop)?;
    check_redis(&producer.engine).await?;
    if !producer.carry_seen().await? {
        return Ok(true);
    }
    let mut layout = layout::Watch::new(&producer.engine);
    let mut previous = None;
    let mut skipped_before = BTreeMap::new();
    loop {
        // Before the first push: whoever works with other shards must learn that these are in use. And again, should Redis
        // have lost it.
        match write_layout(&mut layout, &producer.engine, &producer.stop).await {
            Ok(true) => {}
            Ok(false) => return Ok(true),
            // A producer that has worked insists, as with its files: a password that is being changed is right again soon.
            Err(LayoutError::Store(error)) if previous.is_some() => {
                tracing::error!(error = %error, "Could not write the layout down, trying again");
                if producer.stop.within(REPAIR_WAIT).await {
                    return Ok(true);
                }
                continue;
            }
            Err(error) => return Err(error.into()),
        }
        let began = Instant::now();
        let Some(seen) = producer.scan(&scanner).await? else { return Ok(true) };
        seen.log(began.elapsed(), &skipped_before);
        if settings.once {
            if settings.remember {
                producer.prune_after(&scanner, &seen.report).await;
            }
            return Ok(seen.unreadable.is_none());
        }
        if let Some(previous) = &previous
            && settings.remember
        {
            producer.prune(&seen.report, previous).await;
        }
        previous = Some(seen.report);
        skipped_before = seen.skipped;
        if producer.stop.within(settings.rescan_interval.get()).await {
            return Ok(true);
        }
    }
}

/// What one scan came to.
#[derive(Debug, Default)]
struct Scanned {
    report: ScanReport,
    enqueued: u64,
    /// Entries that were not taken, by reason.
    skipped: BTreeMap<&'static str, u64>,
    /// Why the directory itself could not be read.
    unreadable: Option<io::ErrorKind>,
}

impl Scanned {
    /// Never a path: those may be private. What was skipped is said when it changes, the directory each time.
    fn log(&self, took: Duration, skipped_before: &BTreeMap<&'static str, u64>) {
        if let Some(kind) = self.unreadable {
            tracing::warn!(key = "producer.scan_dir", error = %kind, "Could not read the directory to scan");
        }
        for (reason, count) in &self.skipped {
            if skipped_before.get(reason) != Some(count) {
                tracing::warn!(reason, count, "Skipped entries of the scanned directory");
            }
        }
        let duration_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        if self.enqueued > 0 {
            tracing::info!(count = self.enqueued, duration_ms, "Enqueued files");
        } else {
            tracing::debug!(count = self.report.found, duration_ms, "Found nothing new");
        }
    }
}

/// What the walk hands over.
struct Walked {
    report: ScanReport,
    skipped: BTreeMap<&'static str, u64>,
    unreadable: Option<io::ErrorKind>,
}

/// Walks through the directory; whoever drops the receiver ends it.
fn walk(scanner: &Scanner, batches: &mpsc::Sender<Vec<Found>>) -> Walked {
    let mut batch = Vec::with_capacity(PAGE_COUNT);
    let (mut skipped, mut unreadable) = (BTreeMap::new(), None);
    let mut report = scanner.scan(|entry| {
        match entry {
            Entry::Found(found) => batch.push(found),
            Entry::Skipped(entry) => {
                *skipped.entry(entry.reason.as_str()).or_default() += 1;
                if let SkipReason::Unreadable(error) = &entry.reason
                    && entry.path == scanner.root()
                {
                    unreadable = Some(error.kind());
                }
            }
        }
        let sent = batch.len() < PAGE_COUNT || batches.blocking_send(std::mem::take(&mut batch)).is_ok();
        if sent && !batches.is_closed() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    if !batch.is_empty() {
        report.complete &= batches.blocking_send(batch).is_ok();
    }
    Walked { report, skipped, unreadable }
}

/// Enqueues what a scan finds.
struct Producer {
    engine: Engine,
    /// One a shard.
    sessions: Vec<Session>,
    metrics: Arc<Metrics>,
    tracer: Tracer,
    stop: Shutdown,
    /// Names the memory of what was enqueued; `None` = nothing is remembered.
    seen: Option<String>,
    high: String,
    high_exts: Vec<String>,
    default_priority: String,
    limit: u64,
    limit_key: String,
    pruned: prune::Rhythm,
    /// It has said that others have files in the same memory.
    warned: bool,
}

impl Producer {
    fn new(config: &Config, metrics: Arc<Metrics>, tracer: Tracer, stop: Shutdown) -> anyhow::Result<Self> {
        let settings = &config.producer;
        let engine = Engine::new(config);
        let high = engine.queues.first().context("worker.priorities names no queue")?.clone();
        Ok(Self {
            sessions: engine.shards.iter().map(|keys| engine.session(keys)).collect(),
            metrics,
            tracer,
            stop,
            seen: settings.remember.then(|| seen_name(&settings.name, &settings.scan_dir)),
            high,
            high_exts: settings.high_priority_exts.clone(),
            default_priority: settings.default_priority.clone(),
            limit: u64::from(settings.rate_limit_per_sec),
            limit_key: engine.shards[0].rate_limit(&settings.rate_limit_key),
            pruned: prune::Rhythm::default(),
            warned: false,
            engine,
        })
    }

    /// Brings along what was seen under another number of shards; false when it was stopped.
    async fn carry_seen(&self) -> anyhow::Result<bool> {
        let Some(name) = &self.seen else { return Ok(true) };
        loop {
            match layout::carry_seen(&self.engine, name).await {
                Ok(count) => {
                    if count > 0 {
                        tracing::info!(count, "Moved what was seen to the shards of this layout");
                    }
                    return Ok(true);
                }
                Err(error) => {
                    if is_stopped(error, &self.engine, &self.stop).await? {
                        return Ok(false);
                    }
                }
            }
        }
    }

    /// One scan; `None` when it was stopped.
    async fn scan(&mut self, scanner: &Arc<Scanner>) -> anyhow::Result<Option<Scanned>> {
        let (sender, mut batches) = mpsc::channel(BATCHES_AHEAD);
        let walking = {
            let scanner = Arc::clone(scanner);
            tokio::task::spawn_blocking(move || walk(&scanner, &sender))
        };
        let place = {
            let scanner = Arc::clone(scanner);
            tokio::task::spawn_blocking(move || scanner.place()).await.unwrap_or_default()
        };
        let (mut enqueued, mut announced) = (0, false);
        let mut stop = self.stop.clone();
        loop {
            let batch = tokio::select! {
                biased;
                () = stop.requested() => return Ok(None),
                batch = batches.recv() => batch,
            };
            let Some(batch) = batch else { break };
            // Before the first of them is remembered: from then on nobody else may forget what it does not find.
            if let (Some(place), false) = (&place, announced) {
                if self.announce(place).await.is_none() {
                    return Ok(None);
                }
                announced = true;
            }
            match self.batch(batch).await {
                Some(count) => enqueued += count,
                None => return Ok(None),
            }
        }
        let Walked { report, skipped, unreadable } =
            walking.await.context("the walk through the directory failed")?;
        Ok(Some(Scanned { report, enqueued, skipped, unreadable }))
    }

    /// Enqueues the new ones of a batch; answers how many, `None` when it was stopped.
    async fn batch(&mut self, found: Vec<Found>) -> Option<u64> {
        let shards = u16::try_from(self.sessions.len()).unwrap_or(u16::MAX);
        let mut by_shard: BTreeMap<u16, Vec<Found>> = BTreeMap::new();
        for found in found {
            // By path, not by id: what was seen must stand beside the queue, for one script writes both.
            by_shard.entry(Keys::shard_of(&found.path, shards)).or_default().push(found);
        }
        let mut enqueued = 0;
        for (shard, found) in by_shard {
            let mut fresh: VecDeque<Found> = self.unseen(shard, found).await?.into();
            while !fresh.is_empty() {
                let granted = self.granted(bounded(&fresh)).await?;
                let chunk: Vec<Found> = fresh.drain(..granted).collect();
                enqueued += self.enqueue(shard, &chunk).await?;
            }
        }
        Some(enqueued)
    }

    /// Those that were not enqueued before in the state they are in. Only saves work: the script looks again.
    async fn unseen(&mut self, shard: u16, found: Vec<Found>) -> Option<Vec<Found>> {
        let Some(seen) = self.seen.clone() else { return Some(found) };
        let paths: Vec<String> = found.iter().map(|found| found.path.clone()).collect();
        let states = self
            .insist(shard, async |session| session.hash_get(&session.keys.seen(&seen), &paths).await)
            .await?;
        let known = states.into_iter().chain(std::iter::repeat(None));
        let fresh =
            found.into_iter().zip(known).filter(|(found, known)| known.as_ref() != Some(&found.state()));
        Some(fresh.map(|(found, _)| found).collect())
    }

    /// How many of `wanted` jobs may go now: at least one, after waiting for the window if need be.
    async fn granted(&mut self, wanted: usize) -> Option<usize> {
        if self.limit == 0 {
            return Some(wanted);
        }
        let (key, limit) = (self.limit_key.clone(), self.limit);
        loop {
            let given =
                self.insist(0, async |session| session.limit(&key, limit, wanted as u64).await).await?;
            if given.granted > 0 {
                return Some(usize::try_from(given.granted).unwrap_or(wanted).min(wanted));
            }
            if self.stop.within(given.resets_in + JITTER_MAX.mul_f64(fastrand::f64())).await {
                return None;
            }
        }
    }

    /// Enqueues some files in one step, under one name however often it must be repeated: answers how many
    /// were new.
    async fn enqueue(&mut self, shard: u16, found: &[Found]) -> Option<u64> {
        let keys = &self.engine.shards[usize::from(shard)];
        let seen = keys.seen(self.seen.as_deref().unwrap_or_default());
        let (mut jobs, mut produced) = (Vec::with_capacity(found.len()), Vec::with_capacity(found.len()));
        for found in found {
            let (job, span, queue) = self.job(found, keys);
            jobs.push(job);
            produced.push((span, queue));
        }
        let (call, side) =
            (Uuid::new_v4().simple().to_string(), self.engine.protocol.consuming_side().opposite());
        let fresh =
            self.insist(shard, async |session| session.enqueue(&call, &seen, side, &jobs).await).await?;
        failpoint::hit("after-enqueue");
        let mut enqueued = 0;
        for ((span, queue), fresh) in produced.into_iter().zip(fresh) {
            if fresh {
                self.metrics.queue(&self.engine.queues[queue]).jobs_produced(1);
                enqueued += 1;
            }
            span.end(if fresh { "enqueued" } else { "seen" });
        }
        Some(enqueued)
    }

    /// The job of a file, its span, and the index of its queue.
    fn job(&self, found: &Found, keys: &Keys) -> (Enqueue, JobSpan, usize) {
        let name = priority(&found.path, &self.high_exts, &self.high, &self.default_priority);
        // Validation has seen to it that every priority has a queue.
        let last = keys.queues.len().saturating_sub(1);
        let at = keys.queues.iter().position(|queue| queue.name == name).unwrap_or(last);
        let queue = &keys.queues[at];
        let id = Uuid::now_v7();
        let span = self.tracer.produce(&queue.name, &id.to_string());
        let ids = span.ids();
        let trace = ids.as_ref().map_or_else(TraceIds::default, |ids| TraceIds {
            trace_id: &ids.trace_id,
            span_id: &ids.span_id,
        });
        let raw = job_json(found, name, &queue.queue, trace, jiff::Timestamp::now(), id);
        let seen = self.seen.as_ref().map(|_| (found.path.clone(), found.state()));
        (Enqueue { queue: queue.queue.clone(), raw, seen }, span, at)
    }

    /// Calls until Redis answers; `None` when it was stopped. What only a person can repair is said as an
    /// error and tried again too: nothing of a scan may be lost.
    async fn insist<T>(
        &mut self,
        shard: u16,
        mut call: impl AsyncFnMut(&mut Session) -> Result<T, StoreError>,
    ) -> Option<T> {
        let session = &mut self.sessions[usize::from(shard)];
        loop {
            let trips = session.round_trips;
            let answer = call(session).await;
            self.metrics.redis_round_trips(session.round_trips - trips);
            self.metrics.redis_answers(!matches!(answer, Err(StoreError::Connect(_) | StoreError::Lost(_))));
            let wait = match answer {
                Ok(answer) => return Some(answer),
                Err(error) if error.is_transient() => {
                    tracing::warn!(error = %error, "Could not enqueue, trying again");
                    session.backoff()
                }
                Err(StoreError::Unfit { key, reason }) => {
                    tracing::error!(key, reason, "Could not enqueue: the key must be renamed or deleted");
                    REPAIR_WAIT
                }
                Err(error) => {
                    tracing::error!(error = %error, "Could not enqueue, trying again");
                    REPAIR_WAIT
                }
            };
            if self.stop.within(wait).await {
                return None;
            }
        }
    }
}

/// How many files from the front fit into one call: 100 jobs, and 1 MiB whatever their paths need as JSON.
fn bounded(found: &VecDeque<Found>) -> usize {
    // A byte of a path is six at most ("\u001b"); the other fields take less than 512.
    let mut room = PAGE_BYTES;
    let fits = found.iter().take(PAGE_COUNT).take_while(|found| {
        let size = 6 * found.path.len() + 512;
        let fits = room >= size;
        room = room.saturating_sub(size);
        fits
    });
    fits.count().max(1)
}

/// Names the memory of one producer and directory.
fn seen_name(producer: &str, scan_dir: &str) -> String {
    let hash = Sha256::new().chain_update(producer).chain_update([0]).chain_update(scan_dir).finalize();
    hash.iter().take(8).fold(String::with_capacity(16), |mut hex, byte| {
        use std::fmt::Write as _;
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(count: usize, path_length: usize) -> VecDeque<Found> {
        (0..count).map(|_| Found { path: "x".repeat(path_length), size: 1, mtime_ns: 1 }).collect()
    }

    #[test]
    fn a_call_is_bounded_by_jobs_and_by_bytes() {
        assert_eq!(bounded(&files(250, 100)), 100);
        assert_eq!(bounded(&files(3, 100)), 3);
        assert_eq!(bounded(&files(100, 4000)), 42, "1 MiB / (6 * 4000 + 512)");
        assert_eq!(bounded(&files(2, 1 << 20)), 1, "one always goes");
    }

    #[test]
    fn the_memory_is_named_by_producer_and_directory() {
        // printf 'producer\0./data' | sha256sum | cut -c-16
        assert_eq!(seen_name("producer", "./data"), "f07ee35ecd344d37");
        assert_ne!(seen_name("a", "b/c"), seen_name("ab", "/c"));
    }
}
