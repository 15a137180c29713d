//! What a worker does beside running jobs: promote, reap, tell how the queues stand.
use std::sync::Arc;
use std::time::Duration;

use jobqueue::config::Config;
use jobqueue::effects::Verdict;
use jobqueue::engine::{Engine, reaper_settings};
use jobqueue::keys::Keys;
use jobqueue::promoter;
use jobqueue::reaper::Reaper;
use jobqueue::store::{Refusal, Session, StoreError};
use tokio::sync::mpsc;

use crate::metrics::{QueueReading, QueueSample};
use crate::shared::Shared;
use crate::shutdown::Shutdown;

/// How often delayed jobs are looked at when none was due.
const PROMOTE_EVERY: Duration = Duration::from_millis(200);
/// Who exports the queue-wide gauges keeps that right this long.
const GAUGES_TTL: Duration = Duration::from_secs(15);

/// Brings delayed jobs back when they are due.
pub(super) async fn promote(engine: Engine, keys: Keys, shutdown: Shutdown) {
    let mut session = engine.session(&keys);
    while !shutdown.is_requested() {
        let wait = match promoter::pass(&mut session, &engine.protocol).await {
            Ok(promoted) if promoted.more => Duration::ZERO,
            // Somebody has to repair their queue; until then each pass reads them all again.
            Ok(promoted) if promoted.refused > 0 => Duration::from_secs(1),
            // Many workers promote; a little disorder keeps them from asking all at once.
            Ok(_) => PROMOTE_EVERY.mul_f64(fastrand::f64() + 0.5),
            Err(error) => {
                tracing::warn!(error = %error, "Could not promote delayed jobs");
                if error.is_transient() { session.backoff() } else { Duration::from_secs(1) }
            }
        };
        if shutdown.within(wait).await {
            return;
        }
    }
}

/// Gives the jobs of dead lanes back, while nobody central does.
pub(super) async fn reap(engine: Engine, keys: Keys, config: Config, shared: Arc<Shared>, stopped: Shutdown) {
    let mut reaper =
        Reaper::new(engine.session(&keys), Arc::clone(&engine.protocol), reaper_settings(&config));
    // ± 25 %, so that fleets do not synchronise.
    let interval = || config.worker.reaper.interval.get().mul_f64(fastrand::f64().mul_add(0.5, 0.75));
    let mut wait = interval();
    while !stopped.within(wait).await {
        wait = interval();
        let outcome = async {
            if reaper.is_relieved().await? {
                return Ok(None);
            }
            reaper.pass().await.map(Some)
        };
        match outcome.await {
            Ok(None) => {}
            Ok(Some(pass)) => {
                if pass.more {
                    wait = Duration::ZERO;
                }
                if !pass.moved.is_empty() {
                    tracing::warn!(count = pass.moved.len(), "Reaped jobs");
                }
                for (queue, verdict) in pass.moved {
                    let metrics = shared.metrics.queue(&queue);
                    metrics.jobs_reaped(1);
                    match verdict {
                        Verdict::Suspected => metrics.jobs_interrupted(1),
                        Verdict::Dead(reason) => {
                            tracing::warn!(queue, reason = reason.as_str(), "Gave a job up");
                            metrics.jobs_failed(reason, 1);
                            metrics.jobs_dead_lettered(1);
                        }
                        _ => {}
                    }
                }
            }
            Err(error) => tracing::warn!(error = %error, "Could not reap"),
        }
    }
}

/// Queue-wide gauges come from one process only, so that a sum over all of them does not lie. `found` brings shards that
/// are served since.
pub(super) async fn export_gauges(
    engine: Engine,
    config: Config,
    shared: Arc<Shared>,
    mut found: mpsc::UnboundedReceiver<Keys>,
    stopped: Shutdown,
) {
    let mut sessions: Vec<Session> = engine.shards.iter().map(|keys| engine.session(keys)).collect();
    let side = engine.protocol.consuming_side();
    let me = shared.registration.process.clone();
    let mut trimmed_before = None;
    loop {
        while let Ok(keys) = found.try_recv() {
            sessions.push(engine.session(&keys));
        }
        let mut trimmed = 0;
        let interval = config.observability.queue_sample_interval.get();
        let sampled = async {
            let gauges = sessions[0].keys.gauges();
            if !sessions[0].keep(&gauges, &me, GAUGES_TTL.max(3 * interval)).await?
                || sessions[0].exists(&engine.shards[0].central()).await?
            {
                return Ok(None);
            }
            let mut sample = QueueSample::default();
            for session in &mut sessions {
                let snapshot = session.snapshot(side).await?;
                sample.dead_letters += snapshot.dead_letters;
                trimmed += snapshot
                    .counters
                    .iter()
                    .find(|(name, _)| name == "trimmed")
                    .map_or(0, |(_, count)| *count);
                for (at, queue) in snapshot.queues.iter().enumerate() {
                    if sample.queues.len() <= at {
                        let queue = engine.queues[at].clone();
                        sample.queues.push(QueueReading { queue, ..QueueReading::default() });
                    }
                    let reading = &mut sample.queues[at];
                    reading.length += queue.waiting + queue.suspects;
                    reading.delayed += queue.delayed;
                    reading.oldest_age = reading.oldest_age.max(queue.oldest_age(snapshot.now_ms));
                }
                let unfit = snapshot.queues.iter().flat_map(|queue| &queue.unfit).chain(&snapshot.unfit);
                for Refusal { key, reason } in unfit {
                    tracing::debug!(key, reason, "Could not read a key, it counts as empty");
                }
            }
            Ok::<_, StoreError>(Some(sample))
        };
        match sampled.await {
            Ok(None) => {
                shared.metrics.export_queue_gauges(None);
                // Whoever exports them now counts what is trimmed meanwhile.
                trimmed_before = None;
            }
            Ok(sample) => {
                shared.metrics.export_queue_gauges(sample);
                let before = trimmed_before.replace(trimmed).unwrap_or(trimmed);
                shared.metrics.dead_letters_trimmed(trimmed.saturating_sub(before));
            }
            Err(error) => {
                shared.metrics.export_queue_gauges(None);
                tracing::debug!(error = %error, "Could not sample the queues");
            }
        }
        if stopped.within(interval).await {
            return;
        }
    }
}
