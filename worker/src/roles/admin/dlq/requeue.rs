//! `dlq requeue`: puts dead letters back into the queues they came from.
use std::collections::BTreeMap;
use std::fmt::Write as _;

use jobqueue::effects::Effect;
use jobqueue::keys::{Keys, QueueKeys};
use jobqueue::protocol::Protocol;
use jobqueue::store::PAGE_COUNT;
use serde::{Deserialize, Serialize};

use super::super::progress::Progress;
use super::super::table::shown;
use super::super::{Admin, AdminError, End, answer};
use super::letter::Letter;
use super::pile::Fate;
use super::selection::Selection;
use super::sweep::{Broom, Sweeper, Swept};
use crate::cli::Requeue;

/// The answer; its field names are what scripts rely on.
#[derive(Debug, Default, Serialize)]
struct Done {
    dry_run: bool,
    total: u64,
    looked_at: u64,
    matched: u64,
    requeued: u64,
    by_queue: BTreeMap<String, u64>,
    unusable: u64,
    not_found: Vec<String>,
    interrupted: bool,
    contended: bool,
    elapsed_ms: u64,
}

/// Decides where letters go.
struct Reviver<'a> {
    protocol: &'a dyn Protocol,
    sidekiq: bool,
    by_queue: BTreeMap<String, u64>,
    unusable: u64,
}

impl Broom for Reviver<'_> {
    const VERB: &'static str = "requeue";
    const STEP: usize = 10 * PAGE_COUNT;

    fn fate(&mut self, letter: &Letter, keys: &Keys, now_ms: u64) -> Fate {
        if !self.sidekiq {
            let (origin, bytes) = self.protocol.revive(&letter.raw);
            let queue = destination(&keys.queues, origin.as_deref(), &bytes);
            let side = self.protocol.consuming_side().opposite();
            let mut effects = Vec::new();
            if let Some(records) = self.protocol.records() {
                // A name without its job would only die again, as `no-data`: this letter says more, and stays.
                let job = letter.named.clone().and_then(|data| records.read(&bytes, data).ok());
                let Some(job) = job else { return Fate::Keep };
                // The job itself first: it has to be alive again when somebody finds its name.
                effects = records.revived(&job, queue, now_ms);
            }
            effects.push(Effect::Push { key: queue.queue.clone(), side, bytes });
            return Fate::Revive { queue: queue.name.clone(), effects };
        }
        // What is no job would be buried again at once, by a worker: it stays.
        let Ok(job) = self.protocol.decode(letter.raw.clone()) else { return Fate::Keep };
        let (_, bytes) = self.protocol.revive(&letter.raw);
        let effects = self.protocol.promote(&bytes, &keys.queues[0], now_ms);
        let queue = if job.fields.priority.is_empty() { "default".into() } else { job.fields.priority };
        Fate::Revive { queue, effects }
    }

    async fn prepare(&mut self, _: &[(Letter, Fate)]) -> Result<bool, AdminError> {
        Ok(true)
    }

    fn count(&mut self, fate: &Fate) {
        match fate {
            Fate::Revive { queue, .. } => match self.by_queue.get_mut(queue) {
                Some(count) => *count += 1,
                None => drop(self.by_queue.insert(queue.clone(), 1)),
            },
            Fate::Keep | Fate::Drop => self.unusable += 1,
        }
    }
}

pub async fn run(admin: &mut Admin<'_>, requeue: &Requeue) -> Result<End, AdminError> {
    let selectors = &requeue.selectors;
    let mut selection = Selection::new(selectors, admin.is_sidekiq())?;
    let mut reviver = Reviver {
        protocol: &*admin.engine.protocol,
        sidekiq: admin.is_sidekiq(),
        by_queue: BTreeMap::new(),
        unusable: 0,
    };
    let mut sweeper = Sweeper {
        protocol: &*admin.engine.protocol,
        broom: &mut reviver,
        selection: &mut selection,
        rate: requeue.rate,
        limit: selectors.limit,
        dry_run: requeue.dry_run,
        progress: Progress::new(requeue.progress),
        stop: admin.stop.clone(),
    };
    let swept = sweeper.run(&mut admin.shards).await?;
    let mut done = Done::of(&swept, requeue.dry_run);
    if !requeue.dry_run {
        done.requeued = reviver.by_queue.values().sum();
    }
    (done.by_queue, done.unusable) = (reviver.by_queue, reviver.unusable);
    if !done.interrupted {
        done.not_found = selection.not_found(&selectors.id);
    }
    answer(requeue.common, || done.sentence(), || serde_json::to_value(&done).unwrap_or_default())?;
    Ok(done.end())
}

/// Where a job goes: where it came from, else where its priority belongs, else last in line.
fn destination<'a>(queues: &'a [QueueKeys], origin: Option<&str>, job: &[u8]) -> &'a QueueKeys {
    #[derive(Deserialize)]
    struct Priority {
        priority: String,
    }
    let by_origin = queues.iter().position(|queue| Some(queue.queue.as_str()) == origin);
    let by_priority = || {
        let Priority { priority } = serde_json::from_slice(job).ok()?;
        queues.iter().position(|queue| queue.name == priority)
    };
    &queues[by_origin.or_else(by_priority).unwrap_or(queues.len().saturating_sub(1))]
}

impl Done {
    /// Whoever asked for letters that stay, or may have been passed over, is told so by the exit code too.
    fn end(&self) -> End {
        match (self.interrupted, self.not_found.is_empty() && self.unusable == 0 && !self.contended) {
            (true, _) => End::Interrupted,
            (false, true) => End::Done,
            (false, false) => End::Incomplete,
        }
    }

    fn of(swept: &Swept, dry_run: bool) -> Self {
        Self {
            dry_run,
            total: swept.total,
            looked_at: swept.looked_at,
            matched: swept.matched,
            interrupted: swept.interrupted,
            contended: swept.contended,
            elapsed_ms: u64::try_from(swept.elapsed.as_millis()).unwrap_or(u64::MAX),
            ..Self::default()
        }
    }

    fn sentence(&self) -> String {
        let verb = if self.dry_run { "Would requeue" } else { "Requeued" };
        let mut said = format!(
            "{verb} {} of {} dead letters, looked at {}",
            self.matched - self.unusable,
            self.total,
            self.looked_at
        );
        if !self.by_queue.is_empty() {
            let queues: Vec<_> =
                self.by_queue.iter().map(|(queue, jobs)| format!("{}: {jobs}", shown(queue))).collect();
            let _ = write!(said, " ({})", queues.join(", "));
        }
        said.push('\n');
        if self.unusable > 0 {
            let _ = writeln!(
                said,
                "{} cannot be run again (no jobs, or their data is gone), and stay",
                self.unusable
            );
        }
        said.push_str(&warnings(self.interrupted, self.contended, &self.not_found));
        said
    }
}

/// What a person should know of a sweep beyond its figures.
pub fn warnings(interrupted: bool, contended: bool, not_found: &[String]) -> String {
    let mut said = String::new();
    if interrupted {
        said.push_str("Stopped before the end: the others are still dead letters, run it again to go on\n");
    }
    if contended {
        said.push_str("Somebody else moved dead letters at the same time: run it again to be sure of all\n");
    }
    for id in not_found {
        let _ = writeln!(said, "No dead letter has the id {}", shown(id));
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;
    use jobqueue::config::Config;
    use jobqueue::engine::Engine;

    #[test]
    fn what_was_not_requeued_is_told_by_the_end() {
        let whole = Done::default();
        assert_eq!(whole.end(), End::Done);
        for part in [
            Done { not_found: vec!["a".into()], ..Done::default() },
            Done { unusable: 1, ..Done::default() },
            Done { contended: true, ..Done::default() },
        ] {
            assert_eq!(part.end(), End::Incomplete, "{part:?}");
        }
        assert_eq!(Done { interrupted: true, unusable: 1, ..whole }.end(), End::Interrupted);
    }

    #[test]
    fn a_job_goes_where_it_came_from_else_by_priority_else_last() {
        let queues = Engine::new(&Config::default()).shards[0].queues.clone();
        let to = |origin, job: &str| destination(&queues, origin, job.as_bytes()).name.clone();
        assert_eq!(to(Some("jobqueue:high_priority"), r#"{"priority":"low"}"#), "high");
        assert_eq!(to(Some("jobqueue:gone"), r#"{"priority":"high"}"#), "high");
        assert_eq!(to(None, r#"{"priority":"urgent"}"#), "low");
        assert_eq!(to(None, "\u{1b}"), "low");
    }
}
