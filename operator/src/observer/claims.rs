//! Whose a queue's lists are, and whether its workers may take jobs from them: marks in Redis that only the operator sets.
use std::time::{Duration, Instant};

use jobqueue::keys::Keys;
use jobqueue::store::{Session, StoreError};
use kube::runtime::reflector::ObjectRef;

use super::{Observer, Target, Watched};
use crate::api::v1alpha1::{JobQueue, Protocol};

/// A claim that another has is asked for again after this long.
const CLAIM_INTERVAL: Duration = Duration::from_secs(10);
/// A claim that is ours is looked at again after this long: somebody may have deleted it.
pub(super) const CLAIM_AGAIN: Duration = Duration::from_secs(300);
/// How long the Kubernetes API may take to say whether an owner exists; other queues of the same Redis wait meanwhile.
const ASKING: Duration = Duration::from_secs(5);

impl Observer {
    /// Whether the owner of a claim does not exist any more; who cannot be asked about is taken to exist.
    async fn is_gone(&self, owner: String) -> bool {
        tokio::time::timeout(ASKING, (self.0.gone)(owner)).await.unwrap_or(false)
    }

    /// Sets or removes our mark that stops the workers. One that a person set stays; one of a queue that is gone does not.
    pub(super) async fn pause(
        &self,
        session: &mut Session,
        target: &Target,
        paused: bool,
    ) -> Result<(), StoreError> {
        let key = session.keys.paused();
        if target.paused && !paused {
            session.set(&key, &target.owner).await?;
        } else if !target.paused && paused {
            let by = session.get(&key).await?.unwrap_or_default();
            if is_same_owner(&by, &target.owner) || (by.contains('/') && self.is_gone(by).await) {
                session.unlink(&key).await?;
            }
        }
        Ok(())
    }

    /// Whether a list that another had is nobody's only since the last time it was asked for: its owner may not have seen
    /// yet that Redis has lost its data, and has workers there.
    async fn may_come_back(
        &self,
        queue: &ObjectRef<JobQueue>,
        key: &str,
        session: &mut Session,
    ) -> Result<bool, StoreError> {
        if !claimed_keys(&session.keys).iter().any(|one| one == key) {
            return Ok(false);
        }
        let vacant = session.owners(&[key.to_owned()]).await?.iter().all(Option::is_none);
        let mut state = self.state();
        let Some(watched) = state.queues.get_mut(queue) else { return Ok(false) };
        let before = std::mem::replace(&mut watched.vacant, vacant);
        Ok(vacant && !before)
    }

    /// Whether the keys that were this queue's are not any more, by what a look says of their owner. They are to be claimed
    /// again then.
    pub(super) fn lost_claim(&self, queue: &ObjectRef<JobQueue>, target: &Target, owner: &str) -> bool {
        let shared = target.protocol != Protocol::Sidekiq;
        let lost = shared && !is_same_owner(owner, &target.owner);
        if let Some(watched) = self.state().queues.get_mut(queue).filter(|_| lost) {
            watched.claimed_at = None;
        }
        lost
    }

    /// Makes the queue's lists its own, once; another owner that does not exist any more is replaced.
    pub(super) async fn claim(
        &self,
        queue: &ObjectRef<JobQueue>,
        target: &Target,
        session: &mut Session,
    ) -> Result<Option<(String, String)>, StoreError> {
        let (claimed, recently, earlier) = {
            let state = self.state();
            let watched = state.queues.get(queue);
            let recently =
                |watched: &Watched| watched.asked_at.is_some_and(|at: Instant| at.elapsed() < CLAIM_INTERVAL);
            let earlier = watched.and_then(|watched| watched.seen.as_ref()?.conflict.clone());
            let fresh = |watched: &Watched| watched.claimed_at.is_some_and(|at| at.elapsed() < CLAIM_AGAIN);
            (watched.is_none_or(fresh), watched.is_some_and(recently), earlier)
        };
        if claimed || target.protocol == Protocol::Sidekiq {
            return Ok(None);
        }
        if recently && earlier.is_some() {
            return Ok(earlier);
        }
        if let Some(watched) = self.state().queues.get_mut(queue) {
            watched.asked_at = Some(Instant::now());
        }
        if let Some((key, owner)) = earlier
            && self.may_come_back(queue, &key, session).await?
        {
            return Ok(Some((key, owner)));
        }
        for key in claimed_keys(&session.keys) {
            let mut owner = session.own(&key, &target.owner, None).await?;
            if owner != target.owner
                && (is_same_owner(&owner, &target.owner) || self.is_gone(owner.clone()).await)
            {
                owner = session.own(&key, &target.owner, Some(&owner)).await?;
            }
            if owner != target.owner {
                if let Some(watched) = self.state().queues.get_mut(queue) {
                    watched.claimed_at = None;
                }
                return Ok(Some((key, owner)));
            }
        }
        Ok(None)
    }
}

/// Whether two owners are the same object, whatever its cluster was called: a uid is never used twice.
pub fn is_same_owner(one: &str, other: &str) -> bool {
    let uid =
        |owner: &str| owner.rsplit_once('/').map(|(_, uid)| uid.to_owned()).filter(|uid| !uid.is_empty());
    uid(one).is_some() && uid(one) == uid(other)
}

/// What is claimed for an owner: each list of jobs, and the registry, which stands for everything else under the prefix.
pub fn claimed_keys(shard: &Keys) -> Vec<String> {
    let lists = shard.queues.iter().map(|queue| queue.queue.clone());
    lists.chain([shard.lanes()]).collect()
}

#[cfg(test)]
mod tests {
    use futures::channel::mpsc::unbounded;
    use futures::future::FutureExt;
    use jobqueue::config::Config;
    use serde_json::json;

    use super::*;
    use crate::observer::Asked;
    use crate::pods::Pods;

    #[test]
    fn an_owner_whose_claim_is_gone_claims_again_at_once() {
        for (protocol, owner, lost) in [
            ("files", "c/n/orders/u", false),
            ("files", "another-name-of-c/n/orders/u", false),
            ("files", "", true),
            ("files", "c/n/others/v", true),
            ("sidekiq", "", false),
        ] {
            let observer =
                Observer::new(unbounded().0, unbounded().0, unbounded().0, Pods::default(), |_| {
                    async { false }.boxed()
                });
            let queue =
                JobQueue::new("orders", serde_json::from_value(json!({ "protocol": protocol })).unwrap());
            let handler = json!({ "kind": "simulate" });
            let tree = json!({ "protocol": protocol, "worker": { "handler": handler } });
            let config = Config::from_value(tree).unwrap().config;
            let target = Target::new(&config, &queue, "c/n/orders/u".into(), Asked::default());
            let reference = ObjectRef::from_obj(&queue);
            let mut watched = Watched::new(target.clone());
            watched.claimed_at = Some(Instant::now());
            observer.state().queues.insert(reference.clone(), watched);
            assert_eq!(observer.lost_claim(&reference, &target, owner), lost, "{protocol} {owner}");
            assert_eq!(observer.state().queues[&reference].claimed_at.is_none(), lost, "{protocol} {owner}");
        }
    }
}
