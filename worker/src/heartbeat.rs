//! Renews the heartbeats of a process' lanes on one shard: on a connection of its own, so that neither a slow
//! cycle nor a long job can delay it; but only of lanes whose loop still goes round.
use std::sync::Arc;
use std::time::{Duration, Instant};

use jobqueue::store::Session;

use crate::shared::{Beat, Shared};
use crate::shutdown::Shutdown;

/// Runs until shutdown is complete.
pub async fn run(shared: Arc<Shared>, beats: Vec<Arc<Beat>>, mut session: Session, stopped: Shutdown) {
    let ttl = shared.settings.ttl;
    let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
    let names: Vec<String> = session.keys.queues.iter().map(|queue| queue.name.clone()).collect();
    let mut wait = ttl / 3;
    let mut news = shared.news.subscribe();
    loop {
        tokio::select! {
            stop = stopped.within(wait) => if stop { return },
            Ok(()) = news.changed() => {}
        }
        let asked = Instant::now();
        let live: Vec<_> = (beats.iter())
            .filter(|beat| beat.silent_for() < ttl)
            .filter_map(|beat| beat.lane().map(|lane| (beat, lane)))
            .collect();
        let lanes: Vec<_> = live.iter().map(|(_, (lane, oldest))| (lane, &oldest[..])).collect();
        if lanes.is_empty() {
            wait = ttl / 3;
            continue;
        }
        match session.extend(&lanes, ttl_ms, &shared.breaker_verdicts(&names)).await {
            Ok(held) => {
                for ((beat, _), held) in live.iter().zip(held) {
                    if held {
                        beat.renewed(asked);
                    }
                }
                wait = ttl / 3;
            }
            Err(error) => {
                tracing::warn!(error = %error, "Could not renew heartbeats");
                if error.is_transient() {
                    session.disconnect();
                    wait = session.backoff().min(ttl / 4);
                } else {
                    wait = Duration::from_secs(1);
                }
            }
        }
    }
}
