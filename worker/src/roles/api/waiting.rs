//! Requests that wait for a job to change. One subscription a shard tells of every change, whoever makes it; a request
//! notes that it waits *before* it reads the job, so no change falls between the two.
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use jobqueue::engine::Engine;
use jobqueue::keys::Keys;
use tokio::sync::watch;

/// The longest wait between two tries to subscribe.
const AGAIN: Duration = Duration::from_millis(500);

/// Who waits for which job.
#[derive(Debug, Clone, Default)]
pub(super) struct Waiting(Arc<Mutex<HashMap<String, watch::Sender<()>>>>);

/// Waits for changes of one job, from when it was made on.
#[derive(Debug)]
pub(super) struct Change {
    id: String,
    changed: watch::Receiver<()>,
    of: Waiting,
}

impl Waiting {
    /// From now on every change of this job is noticed.
    pub(super) fn on(&self, id: &str) -> Change {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = waiting.entry(id.to_owned()).or_insert_with(|| watch::channel(()).0).subscribe();
        Change { id: id.to_owned(), changed, of: self.clone() }
    }

    fn tell(&self, id: &str) {
        if let Some(waiting) = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(id) {
            let _ = waiting.send(());
        }
    }

    /// Changes may have been missed: all look again.
    fn tell_all(&self) {
        for waiting in self.0.lock().unwrap_or_else(PoisonError::into_inner).values() {
            let _ = waiting.send(());
        }
    }

    /// Listens to a shard's events until the process ends.
    pub(super) async fn listen(self, engine: Engine, keys: Keys) {
        loop {
            match engine.connector.subscribe(&keys.slot_key(), &keys.jobs().events()).await {
                Ok(mut events) => {
                    self.tell_all();
                    while let Some(event) = events.next().await {
                        // `<id> <status>`, and an id may have spaces.
                        let event = String::from_utf8_lossy(&event);
                        if let Some((id, _)) = event.rsplit_once(' ') {
                            self.tell(id);
                        }
                    }
                }
                Err(error) => tracing::debug!(%error, "Could not listen for changes, trying again"),
            }
            tokio::time::sleep(AGAIN.mul_f64(fastrand::f64().mul_add(0.5, 0.5))).await;
        }
    }
}

impl Change {
    /// Waits for the next change that was not waited for yet.
    pub(super) async fn happened(&mut self) {
        // The sender lives as long as somebody waits.
        let _ = self.changed.changed().await;
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        let mut waiting = self.of.0.lock().unwrap_or_else(PoisonError::into_inner);
        // This one still counts.
        if waiting.get(&self.id).is_some_and(|sender| sender.receiver_count() <= 1) {
            waiting.remove(&self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_change_between_noting_and_waiting_is_not_missed() {
        let waiting = Waiting::default();
        let mut change = waiting.on("a");
        waiting.tell("a");
        tokio::time::timeout(Duration::from_secs(5), change.happened()).await.unwrap();
    }

    #[test]
    fn who_waits_no_more_leaves_nothing_behind() {
        let waiting = Waiting::default();
        let (first, second) = (waiting.on("a"), waiting.on("a"));
        drop(first);
        assert_eq!(waiting.0.lock().unwrap().len(), 1);
        drop(second);
        assert!(waiting.0.lock().unwrap().is_empty());
    }
}
