//! Forgets files that are gone, so that what a producer remembers does not grow for ever. Which ones may be
//! forgotten is decided by [`crate::scan::prune`]; here is when to look, and the removal.
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Producer;
use crate::scan::prune::forgotten;
use crate::scan::{ScanReport, Scanner};

/// Remembered files read at a time.
const PAGE: usize = 1000;
/// At most this share of the time goes into looking: a pass reads everything that is remembered.
const SHARE: u32 = 10;
/// So long does a directory count as one that files come from after it was scanned last: a producer that runs once a day
/// must find the other that does, and a directory that was replaced must not be in the way for ever.
const PLACE_TTL: Duration = Duration::from_secs(48 * 3600);

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
    /// After the only scan of this process: one proves nothing. So if more is remembered than it has found, the directory is
    /// looked through again, for this alone.
    pub(super) async fn prune_after(&mut self, scanner: &Arc<Scanner>, first: &ScanReport) {
        let Some(name) = self.seen.clone() else { return };
        let Some(remembered) = self.remembered(&name).await else { return };
        if remembered <= first.found {
            return;
        }
        let (scanner, stop) = (Arc::clone(scanner), self.stop.clone());
        let again = tokio::task::spawn_blocking(move || {
            let next =
                || if stop.is_requested() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
            scanner.scan(|_| next())
        });
        self.prune(&again.await.unwrap_or_default(), first).await;
    }

    /// Writes down where its files come from; answers whether all that it remembers does, `None` when it was stopped.
    pub(super) async fn announce(&mut self, place: &str) -> Option<bool> {
        let Some(name) = self.seen.clone() else { return Some(true) };
        let mut alone = true;
        for shard in 0..u16::try_from(self.sessions.len()).unwrap_or(u16::MAX) {
            let key = self.engine.shards[usize::from(shard)].seen_in(&name);
            let places =
                self.insist(shard, async |session| session.seen_in(&key, place, PLACE_TTL).await).await?;
            alone &= places <= 1;
        }
        Some(alone)
    }

    fn warn_of_others(&mut self) {
        if !std::mem::replace(&mut self.warned, true) {
            tracing::warn!(
                key = "producer.name",
                rule = "one producer.name for one directory",
                "Forgot no files: another directory with this path is scanned under the same name; give each its own"
            );
        }
    }

    /// Forgets what two scans prove to be gone. Stops early when asked to stop: the next scan goes on.
    pub(super) async fn prune(&mut self, this: &ScanReport, previous: &ScanReport) {
        let began = Instant::now();
        let Some(name) = self.seen.clone().filter(|_| self.pruned.is_due(began)) else { return };
        let Some(remembered) = self.remembered(&name).await else { return };
        // Everything that was found is remembered by now: no more than that, and nothing is gone.
        // Where no file is, there may be nothing mounted: that is no place that files come from.
        if remembered <= this.found || this.files == 0 {
            return;
        }
        let Some(place) = this.place.clone() else { return };
        match self.announce(&place).await {
            None => return,
            Some(false) => return self.warn_of_others(),
            Some(true) => self.warned = false,
        }
        let mut count = 0;
        for shard in 0..u16::try_from(self.sessions.len()).unwrap_or(u16::MAX) {
            let keys = &self.engine.shards[usize::from(shard)];
            let (key, places) = (keys.seen(&name), keys.seen_in(&name));
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
                // A small hash is read whole, whatever was asked for.
                for gone in gone.chunks(PAGE) {
                    let forgot = self
                        .insist(shard, async |session| session.unsee(&key, &places, &place, gone).await)
                        .await;
                    match forgot {
                        None => return,
                        Some(false) => return self.warn_of_others(),
                        Some(true) => count += gone.len(),
                    }
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
