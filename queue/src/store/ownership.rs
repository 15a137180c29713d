//! Whose a queue is: two that served the same lists by different rules would ruin each other's jobs.
use super::{Call, OWN, Session, StoreError, text};
use crate::keys::escape_glob;

impl Session {
    /// Claims the queue under `key` for `owner`, or says who has it. `gone` is an earlier answer whose owner was found
    /// not to exist any more: it is replaced only if it still stands there.
    pub async fn own(&mut self, key: &str, owner: &str, gone: Option<&str>) -> Result<String, StoreError> {
        let mut call = Call::new(vec![claim(key)]);
        call.arg(owner).arg(gone.unwrap_or_default());
        self.eval(&OWN, &call).await.map(text)
    }
}

impl Session {
    /// Adds (`>password`) or removes (`<password`) a password of Redis' default user. Connections that stand, stand.
    pub async fn change_password(&mut self, change: &str) -> Result<(), StoreError> {
        let mut command = redis::Cmd::new();
        command.arg("ACL").arg("SETUSER").arg("default").arg(change);
        match self.query(&command).await {
            // Removed already, by an attempt whose end nobody heard of.
            Err(StoreError::Unexpected(reason)) if reason.contains("does not exist") => Ok(()),
            answer => answer.map(|_| ()),
        }
    }

    /// Deletes every key of this shard, its jobs included: for a queue that is deleted with all it holds. Nobody may work
    /// on it any more. Keys are named one by one: another queue's prefix may begin with this one's.
    pub async fn delete_all(&mut self) -> Result<(), StoreError> {
        let mut lanes = self.lanes(0, usize::MAX >> 1).await?;
        lanes.extend(self.reaping(usize::MAX >> 1).await?);
        for lane in lanes {
            let keys = self.keys.clone();
            let lists = keys.lists(&lane).into_iter();
            let lists = lists.flat_map(|lists| [lists.held, lists.parked, lists.parked_suspects]);
            for key in lists.chain([keys.record(&lane), keys.heartbeat(&lane)]) {
                self.unlink(&key).await?;
            }
        }
        for family in [self.keys.seen(""), self.keys.enqueued(""), self.keys.quiet("")] {
            let mut cursor = "0".to_owned();
            loop {
                let (next, keys) =
                    self.scan_any(&cursor, &format!("{}*", escape_glob(&family)), 1000).await?;
                for key in keys {
                    // A member of the family is one word longer; anything else belongs to somebody else.
                    if key.strip_prefix(&family).is_some_and(|rest| !rest.contains(':')) {
                        self.unlink(&key).await?;
                    }
                }
                cursor = next;
                if cursor == "0" {
                    break;
                }
            }
        }
        let keys = self.keys.clone();
        let of_queues = keys.queues.iter().flat_map(|queue| {
            [queue.queue.clone(), queue.suspects.clone(), queue.delayed.clone(), claim(&queue.queue)]
        });
        let own = [
            keys.lanes(),
            keys.lane_seq(),
            keys.reaping(),
            keys.paused(),
            keys.central(),
            keys.gauges(),
            keys.counters(),
            keys.layout(),
            keys.completed(),
            keys.dead_letters(),
            claim(&keys.lanes()),
        ];
        for key in of_queues.chain(own) {
            self.unlink(&key).await?;
        }
        Ok(())
    }
}

/// The key of the claim of a queue: beside it, whatever else the two owners call their keys.
pub fn claim(key: &str) -> String {
    format!("{key}:owner")
}
