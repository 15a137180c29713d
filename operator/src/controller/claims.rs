//! Lists that a change of the spec adds or takes out, and whose they are.
//!
//! A list that another `JobQueue` serves is not for us: workers that took it up would have to go at once, and their running
//! jobs with them. So it is asked before anything is applied, and the workers go on with what they have. What was taken out
//! is nobody's once the last worker that served it has been replaced: others may have it then.
use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

use jobqueue::config::Config;
use jobqueue::engine::Engine;
use jobqueue::keys::Keys;
use jobqueue::store::StoreError;
use kube::api::DynamicObject;
use kube::runtime::reflector::ObjectRef;

use super::apply::Applied;
use super::build::{Children, is_managed};
use super::identity::is_gone;
use super::left_behind::{is_same_place, served, session, taken_out};
use super::resolve::Resolved;
use super::rollout::Rollout;
use super::status::{owner_name, reason};
use super::{Context, Error};
use crate::api::v1alpha1::{JobQueue, Protocol};
use crate::observer::{Asked, Remedy, Target, Trouble, claimed_keys, is_same_owner};

/// Lists that were taken out of the spec of a queue, by shard, until their claims are given up. A new leader does not know
/// of them: such a claim stays, and who wants the list is told how to remove it.
#[derive(Default)]
pub struct TakenOut(Mutex<HashMap<ObjectRef<JobQueue>, Vec<Keys>>>);

impl TakenOut {
    fn note(&self, queue: &ObjectRef<JobQueue>, shards: Vec<Keys>) {
        if !shards.is_empty() {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            all.entry(queue.clone()).or_default().extend(shards);
        }
    }

    fn take(&self, queue: &ObjectRef<JobQueue>) -> Vec<Keys> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(queue).unwrap_or_default()
    }

    /// Forgets those of a queue that is gone.
    pub fn forget(&self, queue: &ObjectRef<JobQueue>) {
        self.take(queue);
    }
}

/// What a change begins to claim in one shard: `served` is what is claimed already.
fn added(shard: &Keys, served: &HashSet<String>) -> Vec<String> {
    claimed_keys(shard).into_iter().filter(|key| !served.contains(key)).collect()
}

/// The shards of `now` with nothing but the lists that `then` does not name any more.
fn removed(now: &Config, then: &Config) -> Vec<Keys> {
    let gone: HashSet<String> = taken_out(now, then).into_iter().collect();
    let mut shards = Engine::new(now).shards;
    for shard in &mut shards {
        shard.queues.retain(|queue| gone.contains(&queue.name));
    }
    shards.retain(|shard| !shard.queues.is_empty());
    shards
}

impl Context {
    /// Refuses a change that would serve lists of another `JobQueue`; `live` is the configuration that the workers have. In
    /// a Redis of its own there is nobody else, and before there are workers the first look at Redis is early enough.
    pub(super) async fn take_no_lists(
        &self,
        queue: &JobQueue,
        children: &Children,
        resolved: &Resolved,
        live: Option<&DynamicObject>,
    ) -> Result<(), Error> {
        let then = &children.rendered.config;
        let shared = !is_managed(queue) && queue.spec.protocol != Protocol::Sidekiq;
        let Some(now) = live.and_then(served).filter(|_| shared) else { return Ok(()) };
        let mut known = HashSet::new();
        if is_same_place(&now, then, false) {
            known.extend(Engine::new(&now).shards.iter().flat_map(claimed_keys));
        }
        let after = self.target(queue, then, resolved.redis_secret.as_ref(), Asked::default());
        for shard in &after.shards {
            let added = added(shard, &known);
            if added.is_empty() {
                continue;
            }
            let _turn = self.pace.ask().ok_or(Error::Busy)?;
            let owners = session(&after, shard).owners(&added).await.map_err(|error| in_vain(&error))?;
            for (key, owner) in added.into_iter().zip(owners) {
                let Some(owner) = owner.filter(|owner| !is_same_owner(owner, &after.owner)) else { continue };
                if is_gone(self.client.clone(), self.cluster.clone(), owner.clone()).await {
                    continue;
                }
                if let Some(before) = self.before(queue, &now, then, resolved, live).await? {
                    self.observer.watch(&ObjectRef::from_obj(queue), before);
                }
                return Err(Error::stalled("KeyConflict", conflict(&key, &owner)));
            }
        }
        Ok(())
    }

    /// Notes what a change takes out, once it is applied.
    pub(super) fn note_taken_out(&self, queue: &JobQueue, then: &Config, live: Option<&DynamicObject>) {
        let shared = queue.spec.protocol != Protocol::Sidekiq;
        let Some(now) = live.and_then(served).filter(|_| shared) else { return };
        if is_same_place(&now, then, is_managed(queue)) {
            self.taken_out.note(&ObjectRef::from_obj(queue), removed(&now, then));
        }
    }

    /// Gives up the claims of lists that were taken out, when no worker is left that serves them.
    pub(super) async fn give_up(&self, queue: &ObjectRef<JobQueue>, applied: &Applied, target: &Target) {
        let over = applied.worker.as_ref().is_some_and(|live| Rollout::of(live).is_over());
        if !over || applied.waits_to_roll {
            return;
        }
        let served: HashSet<String> = target.shards.iter().flat_map(claimed_keys).collect();
        let mut kept = vec![];
        for shard in self.taken_out.take(queue) {
            let mut session = session(target, &shard);
            // Some may have been put back.
            for key in shard.queues.iter().map(|queue| &queue.queue).filter(|key| !served.contains(*key)) {
                if let Err(error) = session.disown(key, &target.owner).await {
                    tracing::debug!(jobqueue = queue.name, key, error = %error, "Could not give up a claim");
                    kept.push(shard.clone());
                    break;
                }
            }
        }
        self.taken_out.note(queue, kept);
    }
}

/// What to do about lists that another serves.
fn conflict(key: &str, owner: &str) -> String {
    let claim = jobqueue::store::ownership::claim(key);
    format!(
        "The queue {key} in this Redis belongs to {}: workers go on without the change; take the queue out of spec.queues again, give \
         it another key, or name another Redis; if the owner is gone for good, DEL {claim}",
        owner_name(owner)
    )
}

/// Nobody says whose the lists are.
fn in_vain(error: &StoreError) -> Error {
    let trouble = Trouble::from(error);
    let message = format!("whose the lists are that the change adds cannot be asked: {}", trouble.message);
    match trouble.kind {
        Remedy::Wait => Error::Redis(message),
        Remedy::Credentials | Remedy::Change => Error::stalled(reason(&trouble), message),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn config(names: &[&str], shards: u32) -> Config {
        let key = |name: &&str| ((*name).to_owned(), json!(format!("jobqueue:{name}")));
        let keys: serde_json::Map<String, Value> = names.iter().map(key).collect();
        let worker = json!({ "priorities": names, "queues": keys, "shards": shards });
        let tree = json!({ "worker": worker, "producer": { "default_priority": names[0] } });
        Config::from_value(tree).unwrap().config
    }

    fn claimed(config: &Config) -> HashSet<String> {
        Engine::new(config).shards.iter().flat_map(claimed_keys).collect()
    }

    #[test]
    fn only_what_a_change_adds_is_asked_for() {
        let then = Engine::new(&config(&["a", "b"], 1)).shards;
        assert_eq!(added(&then[0], &claimed(&config(&["a"], 1))), ["jobqueue:b"]);
        assert!(added(&then[0], &claimed(&config(&["b", "a", "c"], 1))).is_empty());
        assert_eq!(added(&then[0], &HashSet::new()).len(), 3, "in another Redis all of it, and the registry");
    }

    #[test]
    fn what_is_taken_out_is_given_up_in_every_shard_and_nothing_else() {
        let keys = |now: &Config, then: &Config| -> Vec<String> {
            let shards = removed(now, then);
            shards.iter().flat_map(|shard| &shard.queues).map(|queue| queue.queue.clone()).collect()
        };
        assert_eq!(keys(&config(&["a", "b"], 1), &config(&["a"], 1)), ["jobqueue:b"]);
        assert_eq!(keys(&config(&["a", "b"], 2), &config(&["a"], 2)), ["{jobqueue:0}:b", "{jobqueue:1}:b"]);
        assert!(keys(&config(&["a"], 1), &config(&["a", "b"], 1)).is_empty());
        assert!(
            keys(&config(&["a"], 1), &config(&["a"], 2)).is_empty(),
            "another layout is served till it is empty"
        );
    }

    #[test]
    fn a_redis_that_does_not_say_whose_its_lists_are_is_asked_again() {
        assert!(matches!(in_vain(&StoreError::Lost("closed".into())), Error::Redis(_)));
        let denied = in_vain(&StoreError::Denied { what: "key a".into() });
        assert_eq!((denied.reason(), denied.is_stalled()), ("RedisAuthFailed", true));
    }
}
