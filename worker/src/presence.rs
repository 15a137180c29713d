//! What Sidekiq's API and its web page see of this process, and what people tell it there: its entry in `processes`
//! with what it runs and has done; quiet, stop and dump; queues that are paused.
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use jobqueue::config::Config;
use jobqueue::effects::Verdict;
use jobqueue::job::Job;
use jobqueue::protocol::sidekiq::names::Names;
use jobqueue::protocol::sidekiq::{time, without_args};
use jobqueue::store::{ProcessBeat, Session, StoreError};
use rustix::process::{Signal, getpid, kill_process};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;

use crate::shared::Shared;
use crate::shutdown::Shutdown;

/// What it says of itself, as often as Sidekiq up to 6.5 does.
const BEAT: Duration = Duration::from_secs(5);
/// What it is told.
const LISTEN: Duration = Duration::from_secs(1);
/// Those that died are looked for this often; their entries lapse after a minute.
const PRUNE: Duration = Duration::from_secs(60);
/// Of a job that is larger, its arguments are not shown: a page of a thousand jobs must not be a gigabyte.
const SHOWN_MAX: usize = 4096;

/// A job within the process: its lane, and its number there.
pub type Place = (usize, u64);

/// What people see of this process.
pub struct Presence {
    names: Names,
    identity: String,
    info: String,
    concurrency: u32,
    queues: Vec<String>,
    processed: AtomicU64,
    failed: AtomicU64,
    quiet: AtomicBool,
    /// The operator, or somebody with the CLI, has told its lanes to take no more jobs.
    quieted: AtomicBool,
    paused: Vec<AtomicBool>,
    running: Mutex<HashMap<Place, Running>>,
    /// How many those are. A job whose handler needs no time is never among them, and must not wait for their lock.
    shown: AtomicUsize,
}

struct Running {
    queue: Arc<str>,
    id: String,
    raw: Bytes,
    since: Instant,
}

impl Presence {
    /// Of a process that has done nothing yet.
    pub fn new(config: &Config, host: &str, started_ms: u64) -> Self {
        let worker = &config.worker;
        // The host and the pid of a restarted container are those of its predecessor.
        let nonce: String = uuid::Uuid::new_v4().simple().to_string().chars().take(12).collect();
        let identity = format!("{host}:{}:{nonce}", std::process::id());
        let weights: serde_json::Map<_, _> = (worker.priorities.iter())
            .map(|name| (name.clone(), worker.weights.get(name).copied().unwrap_or(0).into()))
            .collect();
        let mode = match worker.weights.values().max() {
            None => "strict",
            Some(1) => "random",
            Some(_) => "weighted",
        };
        // What the versions from 6.0 to 8.1 look for, all at once: each reads its own.
        let info = json!({
            "hostname": host,
            "started_at": started(started_ms),
            "pid": std::process::id(),
            "tag": "jobqueue",
            "concurrency": worker.count,
            "queues": worker.priorities,
            "weights": [weights],
            "labels": ["jobqueue", "reliable"],
            "identity": identity,
            "version": format!("jobqueue {}", jobqueue::VERSION),
            "embedded": false,
            "capsules": { "default": { "concurrency": worker.count, "mode": mode, "weights": weights } },
        });
        Self {
            names: Names::new(&config.sidekiq.namespace),
            info: info.to_string(),
            identity,
            concurrency: worker.count,
            queues: worker.priorities.clone(),
            processed: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            quiet: AtomicBool::new(false),
            quieted: AtomicBool::new(false),
            paused: worker.priorities.iter().map(|_| AtomicBool::new(false)).collect(),
            running: Mutex::default(),
            shown: AtomicUsize::new(0),
        }
    }

    /// Somebody said TSTP: it takes no more jobs.
    pub fn is_quiet(&self) -> bool {
        self.quiet.load(Ordering::Relaxed)
    }

    /// Whether a lane was told to take no more jobs; all of a process are told the same.
    pub fn quieted(&self, quiet: bool) {
        self.quieted.store(quiet, Ordering::Relaxed);
    }

    /// Nobody may take jobs of this queue.
    pub fn is_paused(&self, queue: usize) -> bool {
        self.paused.get(queue).is_some_and(|paused| paused.load(Ordering::Relaxed))
    }

    /// Hears what people say to this process, and which queues nobody may take jobs of; answers how long that took.
    pub async fn hear(&self, session: &mut Session, wake: &Notify) -> Result<Duration, StoreError> {
        let asked = Instant::now();
        let told = session.told(&self.names, &self.identity).await?;
        let rtt = asked.elapsed();
        for (queue, paused) in self.queues.iter().zip(&self.paused) {
            let now = told.paused.contains(queue);
            if paused.swap(now, Ordering::Relaxed) != now {
                let value = if now { "paused" } else { "running" };
                tracing::info!(queue, value, "Queue was paused or resumed");
                wake.notify_waiters();
            }
        }
        told.signals.iter().for_each(|word| self.obey(word));
        if self.is_quiet() {
            wake.notify_waiters();
        }
        Ok(rtt)
    }

    /// A job runs.
    pub fn started(&self, place: Place, queue: &Arc<str>, job: &Job) {
        let running = Running {
            queue: Arc::clone(queue),
            id: job.fields.id.clone(),
            raw: job.raw.clone(),
            since: Instant::now(),
        };
        if self.running().insert(place, running).is_none() {
            self.shown.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A job does not run any more.
    pub fn ended(&self, place: Place) {
        // Whoever ends a job has started it: what that added here, it sees.
        if self.shown.load(Ordering::Relaxed) > 0 && self.running().remove(&place).is_some() {
            self.shown.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// A job that ran was settled: counted as Sidekiq counts, every run as processed and a failed one as both.
    pub fn settled(&self, verdict: Verdict) {
        let failed = match verdict {
            Verdict::Done | Verdict::Discarded => false,
            Verdict::Retried | Verdict::GivenUp | Verdict::Dead(_) => true,
            Verdict::Released | Verdict::Suspected | Verdict::Dropped => return,
        };
        self.processed.fetch_add(1, Ordering::Relaxed);
        if failed {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn running(&self) -> MutexGuard<'_, HashMap<Place, Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn beat(&self, now_ms: u64, seq: u64, rtt: Duration, quiet: bool) -> ProcessBeat {
        let now = Instant::now();
        let mut work = Vec::new();
        for ((lane, key), running) in &*self.running() {
            let for_ms = u64::try_from(now.duration_since(running.since).as_millis()).unwrap_or(0);
            let payload = if running.raw.len() > SHOWN_MAX {
                without_args(&running.raw)
            } else {
                String::from_utf8_lossy(&running.raw).into_owned()
            };
            let run_at = now_ms.saturating_sub(for_ms) / 1000;
            let value = json!({ "queue": &*running.queue, "payload": payload, "run_at": run_at });
            work.push((format!("{lane}-{key}"), value.to_string()));
        }
        let fields = [
            ("info", self.info.clone()),
            ("busy", work.len().to_string()),
            ("beat", time::seconds(now_ms)),
            ("quiet", quiet.to_string()),
            ("rss", resident_kib().to_string()),
            ("rtt_us", rtt.as_micros().to_string()),
            ("concurrency", self.concurrency.to_string()),
        ];
        ProcessBeat {
            identity: self.identity.clone(),
            seq,
            day: day(now_ms),
            processed: self.processed.swap(0, Ordering::Relaxed),
            failed: self.failed.swap(0, Ordering::Relaxed),
            fields: fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
            work,
        }
    }

    fn obey(&self, word: &str) {
        match word {
            "TSTP" => {
                tracing::info!(value = word, "Told to be quiet: no new jobs, what runs may finish");
                self.quiet.store(true, Ordering::Relaxed);
            }
            "TERM" => {
                // Like any other that asks to stop; whoever starts us decides whether we come back.
                let _ = kill_process(getpid(), Signal::TERM);
            }
            "TTIN" => {
                let running = self.running();
                tracing::info!(value = word, count = running.len(), "Told to say what runs");
                for job in running.values() {
                    let duration_ms = u64::try_from(job.since.elapsed().as_millis()).unwrap_or(u64::MAX);
                    tracing::info!(job_id = job.id, queue = &*job.queue, duration_ms, "Job is running");
                }
            }
            other => tracing::warn!(value = other, "Ignored a signal that means nothing here"),
        }
    }
}

/// What was said last, and what has to be said again.
#[derive(Default)]
struct Telling {
    seq: u64,
    unsaid: Option<ProcessBeat>,
    rtt: Duration,
    /// When it was last said, and whether it was quiet then.
    said: Option<(Instant, bool)>,
}

impl Telling {
    /// It is time, or there is news that should not wait for it.
    fn is_due(&self, quiet: bool) -> bool {
        self.said.is_none_or(|(at, was)| at.elapsed() >= BEAT || was != quiet)
    }

    /// Says how things are; first, as it was, what was not answered: its number keeps it from counting twice. Answers
    /// whether all is said.
    async fn say(&mut self, presence: &Presence, session: &mut Session, quiet: bool) -> bool {
        loop {
            let (beat, again) = if let Some(unsaid) = self.unsaid.take() {
                (unsaid, true)
            } else {
                self.seq += 1;
                (presence.beat(session.now_ms(), self.seq, self.rtt, quiet), false)
            };
            if let Err(error) = session.beat(&presence.names, &beat).await {
                tracing::warn!(error = %error, "Could not tell Sidekiq's page of this process");
                self.unsaid = Some(beat);
                return false;
            }
            if !again {
                self.said = Some((Instant::now(), quiet));
                return true;
            }
        }
    }
}

/// Shows the process and listens to what it is told, until its last lane is closed; then takes it out of sight.
/// `stopping` is asked for before that: from then on it takes no more jobs.
pub async fn run(shared: Arc<Shared>, mut session: Session, stopping: Shutdown, stopped: Shutdown) {
    let Some(presence) = &shared.presence else { return };
    let mut pruned: Option<Instant> = None;
    let (mut telling, mut deaf) = (Telling::default(), false);
    // Ruby's processes take these two from the shell too.
    let mut signals = (signal(SignalKind::from_raw(20)).ok(), signal(SignalKind::from_raw(21)).ok());
    loop {
        let quiet =
            presence.is_quiet() || presence.quieted.load(Ordering::Relaxed) || stopping.is_requested();
        if stopped.is_requested() {
            // Once more, for the counts: nobody says them later. Whoever started us waits a second for it.
            let _ = telling.say(presence, &mut session, quiet).await
                || telling.say(presence, &mut session, quiet).await;
            break;
        }
        if telling.is_due(quiet) {
            telling.say(presence, &mut session, quiet).await;
        }
        match presence.hear(&mut session, &shared.wake).await {
            Ok(rtt) => {
                telling.rtt = rtt;
                deaf = false;
            }
            // Once, not every second: what was heard before holds until then.
            Err(error) => {
                if !std::mem::replace(&mut deaf, true) {
                    tracing::warn!(error = %error, "Could not hear what Sidekiq's page says");
                }
            }
        }
        if pruned.is_none_or(|at| at.elapsed() >= PRUNE) {
            pruned = Some(Instant::now());
            let _ = session.depart(&presence.names, None).await;
        }
        let (quiet, dump) = (&mut signals.0, &mut signals.1);
        tokio::select! {
            _ = stopped.within(LISTEN) => {}
            () = received(quiet) => presence.obey("TSTP"),
            () = received(dump) => presence.obey("TTIN"),
        }
    }
    let _ = session.depart(&presence.names, Some(&presence.identity)).await;
}

async fn received(signal: &mut Option<tokio::signal::unix::Signal>) {
    let heard = match signal {
        Some(signal) => signal.recv().await.is_some(),
        None => false,
    };
    if !heard {
        std::future::pending::<()>().await;
    }
}

/// A number that JSON shows with its fraction: times of that form are seconds.
fn started(ms: u64) -> serde_json::Value {
    serde_json::from_str(&time::seconds(ms)).unwrap_or_default()
}

fn day(ms: u64) -> String {
    let moment = i64::try_from(ms).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    moment.unwrap_or_default().strftime("%Y-%m-%d").to_string()
}

fn resident_kib() -> u64 {
    let me = procfs::process::Process::myself().and_then(|me| me.status());
    me.ok().and_then(|status| status.vmrss).unwrap_or(0)
}
