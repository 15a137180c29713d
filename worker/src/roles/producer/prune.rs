//! Forgets files that are gone, so that what a producer remembers does not grow for ever. Which ones may be
//! forgotten is decided by [`crate::scan::prune`]; here is when to look, and the removal.
use std::path::Path;
use std::time::{Duration, Instant};

use super::Producer;
use crate::scan::ScanReport;
use crate::scan::prune::forgotten;

/// Remembered files read at a time.
const PAGE: usize = 1000;
/// At most this share of the time goes into looking: a pass reads everything that is remembered.
const SHARE: u32 = 10;

/// When to look again.
#[derive(Debug, Default)]
pub struct Rhythm {
    last: Option<(Instant, Duration)>,
}

impl Rhythm {
    /// Whether the last pass was long enough ago, by what it took.
    fn is_due(&self, now: Instant) -> bool {
        self.last.is_none_or(|(ended, took)| now.saturating_duration_since(ended) >= took * SHARE)
    }
}

impl Producer {
    /// Forgets what two scans prove to be gone. Stops early when asked to stop: the next scan goes on.
    pub(super) async fn prune(&mut self, this: &ScanReport, previous: &ScanReport) {
        let began = Instant::now();
        let Some(name) = self.seen.clone().filter(|_| self.pruned.is_due(began)) else { return };
        let Some(remembered) = self.remembered(&name).await else { return };
        // Everything that was found is remembered by now: no more than that, and nothing is gone.
        if remembered <= this.found {
            return;
        }
        let mut count = 0;
        for shard in 0..u16::try_from(self.sessions.len()).unwrap_or(u16::MAX) {
            let key = self.engine.shards[usize::from(shard)].seen(&name);
            let mut cursor = String::from("0");
            loop {
                let page =
                    self.insist(shard, async |session| session.hash_scan(&key, &cursor, PAGE).await).await;
                let Some((next, paths)) = page else { return };
                let gone: Vec<String> = forgotten(paths.iter().map(String::as_str), this, previous)
                    .into_iter()
                    .map(Into::into)
                    .collect();
                // Another producer of the same directory may have seen it come back since our scan.
                let still = tokio::task::spawn_blocking(move || absent(gone)).await;
                let gone = still.unwrap_or_default();
                if !gone.is_empty() {
                    let removed =
                        self.insist(shard, async |session| session.hash_remove(&key, &gone).await).await;
                    if removed.is_none() {
                        return;
                    }
                    count += gone.len();
                }
                if next == "0" {
                    break;
                }
                cursor = next;
            }
        }
        if count > 0 {
            tracing::info!(count, "Forgot files that are gone");
        }
        self.pruned.last = Some((Instant::now(), began.elapsed()));
    }

    async fn remembered(&mut self, name: &str) -> Option<u64> {
        let mut sum = 0;
        for shard in 0..u16::try_from(self.sessions.len()).unwrap_or(u16::MAX) {
            sum +=
                self.insist(shard, async |session| session.hash_len(&session.keys.seen(name)).await).await?;
        }
        Some(sum)
    }
}

fn absent(paths: Vec<String>) -> Vec<String> {
    let missing = |path: &String| {
        matches!(Path::new(path).symlink_metadata(), Err(error) if matches!(
            error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory
        ))
    };
    paths.into_iter().filter(missing).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_pass_is_followed_by_a_longer_pause() {
        let now = Instant::now();
        assert!(Rhythm::default().is_due(now));
        let rhythm = Rhythm { last: Some((now, Duration::from_secs(2))) };
        assert!(!rhythm.is_due(now + Duration::from_secs(19)));
        assert!(rhythm.is_due(now + Duration::from_secs(20)));
    }
}
