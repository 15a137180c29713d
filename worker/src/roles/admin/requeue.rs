//! `requeue-dlq`: turns the dead letters once, a page a step. Every step is one script that moves an entry only
//! if it is still the one that was read: a lost reply, Ctrl-C or a second requeue loses and doubles nothing.
use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use bytes::Bytes;
use jobqueue::keys::{Keys, QueueKeys};
use jobqueue::protocol::Protocol;
use jobqueue::store::{PAGE_COUNT, PageKind, Session, Turn};
use serde::{Deserialize, Serialize};

use super::{Admin, AdminError, End, advice, answer};
use crate::cli::Requeue;
use crate::shutdown::Shutdown;

/// Steps in a row that found another tail than they had read before we give up: somebody else is faster.
const STALLED_MAX: u32 = 100;
/// How often a person sees how far it got.
const PROGRESS_EVERY: Duration = Duration::from_millis(100);

/// How far it got: the answer; its field names are what scripts rely on.
#[derive(Debug, Default, Serialize)]
struct Tally {
    dry_run: bool,
    /// Dead letters when it began.
    total: u64,
    looked_at: u64,
    matched: u64,
    requeued: u64,
    by_queue: BTreeMap<String, u64>,
    not_found: Vec<String>,
    interrupted: bool,
    /// Somebody else moved dead letters at the same time: some may have been passed over.
    contended: bool,
}

/// Which dead letters are meant.
#[derive(Debug, Default)]
struct Filter {
    ids: HashSet<String>,
    reason: Option<String>,
    found: HashSet<String>,
}

impl Filter {
    /// Whether this letter is meant.
    fn matches(&mut self, letter: &[u8]) -> bool {
        #[derive(Default, Deserialize)]
        struct Label {
            #[serde(default)]
            id: String,
            #[serde(default)]
            reason: String,
        }
        if self.ids.is_empty() && self.reason.is_none() {
            return true;
        }
        let label: Label = serde_json::from_slice(letter).unwrap_or_default();
        if !self.ids.is_empty() && !self.ids.contains(&label.id) {
            return false;
        }
        self.found.insert(label.id);
        self.reason.as_ref().is_none_or(|reason| *reason == label.reason)
    }
}

/// How fast: jobs a second since the beginning.
#[derive(Debug, Clone, Copy)]
struct Pace {
    rate: Option<u32>,
    began: Instant,
}

impl Pace {
    /// At most this many jobs in one step: a tenth of a second's worth.
    fn step(self) -> usize {
        self.rate.map_or(PAGE_COUNT, |rate| (rate as usize / 10).clamp(1, PAGE_COUNT))
    }

    /// How long until the next step after so many jobs.
    fn wait(self, requeued: u64, now: Instant) -> Duration {
        let due = self.rate.map_or(Duration::ZERO, |rate| {
            Duration::from_millis(requeued.saturating_mul(1000) / u64::from(rate.max(1)))
        });
        (self.began + due).saturating_duration_since(now)
    }
}

/// One step: what becomes of each entry, and into which queue (by index) those go that are requeued.
#[derive(Debug, Default)]
struct Step {
    turns: Vec<(Bytes, Turn)>,
    queues: Vec<Option<usize>>,
}

pub async fn run(admin: &mut Admin, requeue: &Requeue, stop: Shutdown) -> Result<End, AdminError> {
    let mut filter = Filter {
        ids: requeue.id.iter().cloned().collect(),
        reason: requeue.reason.clone(),
        found: HashSet::new(),
    };
    let mut done = Tally { dry_run: requeue.dry_run, ..Tally::default() };
    let mut turner = Turner {
        protocol: &*admin.engine.protocol,
        filter: &mut filter,
        pace: Pace { rate: requeue.rate, began: Instant::now() },
        progress: Progress { terminal: std::io::stderr().is_terminal(), shown: None },
        stop,
    };
    let mut failure = None;
    for session in &mut admin.shards {
        if let Err(error) = turner.shard(session, &mut done).await {
            failure = Some(error);
            break;
        }
        if done.interrupted {
            break;
        }
    }
    turner.progress.clear();
    if let Some(error) = failure {
        let said = match &error {
            AdminError::Store(error) => advice(error),
            error => error.to_string(),
        };
        return Err(AdminError::Failed(match done.looked_at {
            0 => said,
            _ => format!("{said} ({}; no job was lost or doubled, run it again to go on)", done.so_far()),
        }));
    }
    if !done.interrupted {
        done.not_found = requeue.id.iter().filter(|id| !filter.found.contains(*id)).cloned().collect();
    }
    answer(requeue.output, || done.sentence(), || serde_json::to_value(&done).unwrap_or_default())?;
    Ok(done.end())
}

/// Everything about a requeue that is the same for each shard.
struct Turner<'a> {
    protocol: &'a dyn Protocol,
    filter: &'a mut Filter,
    pace: Pace,
    progress: Progress,
    stop: Shutdown,
}

impl Turner<'_> {
    async fn shard(&mut self, session: &mut Session, done: &mut Tally) -> Result<(), AdminError> {
        let letters = session.keys.dead_letters();
        let keys = session.keys.clone();
        // What dies from now on comes in at the head, behind what is kept: the length bounds the turn.
        let mut left = session.page(&letters, PageKind::Tail, 0).await?.length;
        done.total += left;
        let (mut skip, mut stalled) = (0, 0);
        while left > 0 {
            if self.stop.is_requested()
                || self.stop.within(self.pace.wait(done.requeued, Instant::now())).await
            {
                done.interrupted = true;
                return Ok(());
            }
            let count = PAGE_COUNT.min(usize::try_from(left).unwrap_or(PAGE_COUNT));
            let page = session.page_after(&letters, PageKind::Tail, skip, count).await?;
            if page.entries.is_empty() {
                break;
            }
            left = left.min(page.length);
            let step = self.step(page.entries, &keys);
            let asked = step.turns.len();
            let turned = if done.dry_run { asked } else { session.turn(&letters, &step.turns).await? };
            if done.dry_run {
                skip += asked as u64;
            }
            if turned < asked {
                done.contended = true;
                stalled = if turned == 0 { stalled + 1 } else { 0 };
                if stalled > STALLED_MAX {
                    return Err(AdminError::Failed(
                        "somebody else moves the dead letters at the same time".into(),
                    ));
                }
                tokio::time::sleep(Duration::from_millis(fastrand::u64(1..20))).await;
            } else {
                stalled = 0;
            }
            left -= (turned as u64).min(left);
            done.count(&step.queues[..turned.min(asked)], &keys);
            self.progress.show(done);
        }
        Ok(())
    }

    /// Decides about a page, as far as the pace allows.
    fn step(&mut self, entries: Vec<Bytes>, keys: &Keys) -> Step {
        let mut step = Step::default();
        let mut room = self.pace.step();
        let side = self.protocol.consuming_side().opposite();
        for letter in entries {
            if !self.filter.matches(&letter) {
                step.turns.push((letter, Turn::Keep));
                step.queues.push(None);
                continue;
            }
            if room == 0 {
                break;
            }
            room -= 1;
            let (origin, bytes) = self.protocol.revive(&letter);
            let queue = destination(&keys.queues, origin.as_deref(), &bytes);
            let key = keys.queues[queue].queue.clone();
            step.turns.push((letter, Turn::Push { key, side, bytes }));
            step.queues.push(Some(queue));
        }
        step
    }
}

/// Where a job goes: where it came from, else where its priority belongs, else last in line.
fn destination(queues: &[QueueKeys], origin: Option<&str>, job: &[u8]) -> usize {
    #[derive(Deserialize)]
    struct Priority {
        priority: String,
    }
    let by_origin = queues.iter().position(|queue| Some(queue.queue.as_str()) == origin);
    by_origin
        .or_else(|| {
            let Priority { priority } = serde_json::from_slice(job).ok()?;
            queues.iter().position(|queue| queue.name == priority)
        })
        .unwrap_or(queues.len().saturating_sub(1))
}

impl Tally {
    fn count(&mut self, queues: &[Option<usize>], keys: &Keys) {
        self.looked_at += queues.len() as u64;
        for queue in queues.iter().flatten() {
            self.matched += 1;
            self.requeued += u64::from(!self.dry_run);
            match self.by_queue.get_mut(&keys.queues[*queue].name) {
                Some(count) => *count += 1,
                None => drop(self.by_queue.insert(keys.queues[*queue].name.clone(), 1)),
            }
        }
    }

    fn end(&self) -> End {
        match (self.interrupted, self.not_found.is_empty()) {
            (true, _) => End::Interrupted,
            (false, true) => End::Done,
            (false, false) => End::Incomplete,
        }
    }

    fn so_far(&self) -> String {
        let verb = if self.dry_run { "would requeue" } else { "requeued" };
        format!("{verb} {} of {} dead letters, looked at {}", self.matched, self.total, self.looked_at)
    }

    fn sentence(&self) -> String {
        let mut said = self.so_far();
        if let Some(first) = said.get_mut(..1) {
            first.make_ascii_uppercase();
        }
        if !self.by_queue.is_empty() {
            let queues: Vec<_> =
                self.by_queue.iter().map(|(queue, jobs)| format!("{queue}: {jobs}")).collect();
            said = format!("{said} ({})", queues.join(", "));
        }
        said.push('\n');
        if self.interrupted {
            said.push_str(
                "Stopped before the end: the others are still dead letters, run it again to go on\n",
            );
        }
        if self.contended {
            said.push_str(
                "Somebody else moved dead letters at the same time: run it again to be sure of all\n",
            );
        }
        for id in &self.not_found {
            let _ = writeln!(said, "No dead letter has the id {}", super::table::shown(id));
        }
        said
    }
}

/// How far it got, for a person who waits: on a terminal only.
struct Progress {
    terminal: bool,
    shown: Option<Instant>,
}

impl Progress {
    fn show(&mut self, done: &Tally) {
        if self.terminal && self.shown.is_none_or(|shown| shown.elapsed() >= PROGRESS_EVERY) {
            self.shown = Some(Instant::now());
            let _ = write!(std::io::stderr(), "\r\x1b[K{}", done.so_far());
        }
    }

    fn clear(&mut self) {
        if self.shown.take().is_some() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jobqueue::config::Config;
    use jobqueue::engine::Engine;

    fn queues() -> Vec<QueueKeys> {
        Engine::new(&Config::default()).shards[0].queues.clone()
    }

    #[test]
    fn a_job_goes_where_it_came_from_else_by_priority_else_last() {
        let to = |origin, job: &str| destination(&queues(), origin, job.as_bytes());
        assert_eq!(to(Some("jobqueue:high_priority"), r#"{"priority":"low"}"#), 0);
        assert_eq!(to(Some("jobqueue:gone"), r#"{"priority":"high"}"#), 0);
        assert_eq!(to(None, r#"{"priority":"urgent"}"#), 1);
        assert_eq!(to(None, "\u{1b}"), 1);
    }

    #[test]
    fn a_filter_wants_the_id_and_the_reason() {
        let mut filter =
            Filter { ids: HashSet::from(["a".to_owned()]), reason: Some("oom".into()), ..Filter::default() };
        assert!(filter.matches(br#"{"id":"a","reason":"oom"}"#));
        assert!(!filter.matches(br#"{"id":"a","reason":"panic"}"#));
        assert!(!filter.matches(br#"{"id":"b","reason":"oom"}"#));
        assert!(!filter.matches(b"\xff"));
        assert_eq!(filter.found, HashSet::from(["a".to_owned()]));
        assert!(Filter::default().matches(b"\xff"), "no filter means all, whatever they are");
    }

    #[test]
    fn the_pace_is_kept_from_the_beginning() {
        let began = Instant::now();
        let pace = |rate| Pace { rate, began };
        assert_eq!(pace(None).step(), 100);
        assert_eq!(pace(None).wait(1_000_000, began), Duration::ZERO);
        assert_eq!((pace(Some(1)).step(), pace(Some(50)).step(), pace(Some(9999)).step()), (1, 5, 100));
        assert_eq!(pace(Some(10)).wait(25, began), Duration::from_millis(2500));
        assert_eq!(pace(Some(10)).wait(25, began + Duration::from_secs(3)), Duration::ZERO);
    }

    #[test]
    fn a_step_ends_where_the_pace_does() {
        let engine = Engine::new(&Config::default());
        let mut filter = Filter { reason: Some("oom".into()), ..Filter::default() };
        let (_stopper, stopping) = crate::shutdown::shutdown();
        let mut turner = Turner {
            protocol: &*engine.protocol,
            filter: &mut filter,
            pace: Pace { rate: Some(20), began: Instant::now() },
            progress: Progress { terminal: false, shown: None },
            stop: stopping,
        };
        let letter = |reason: &str| Bytes::from(format!(r#"{{"id":"a","reason":"{reason}"}}"#));
        let page = ["oom", "panic", "oom", "panic", "oom", "oom"].map(letter).to_vec();
        let step = turner.step(page, &engine.shards[0]);
        assert_eq!(step.queues, [Some(1), None, Some(1), None], "two a step, and what is kept between them");
    }
}
