//! Deletion. With `Retain` Kubernetes does it all: what belongs to the queue goes with it, what holds jobs stays. Only
//! `Delete` needs us, and so a finalizer: workers first, then the keys, then Redis, its volume and its password.
use std::sync::Arc;
use std::time::Duration;

use jobqueue::config::Config;
use jobqueue::connect::Connector;
use jobqueue::keys::Keys;
use jobqueue::reaper::{self, Reaped, Reaper};
use jobqueue::store::{Session, StoreError};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, Preconditions};
use kube::core::PartialObjectMeta;
use kube::runtime::controller::Action;
use kube::runtime::events::EventType;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};
use serde_json::json;

use super::build::{self, DEPLOYMENT, Kind, SECRET, STATEFUL_SET, VOLUME_CLAIM, is_managed};
use super::left_behind::{is_same_place, place, served};
use super::names::{Names, QUEUE_LABEL};
use super::resolve::Resolved;
use super::{Context, Error, FINALIZER};
use crate::api::stored::Stored;
use crate::api::v1alpha1::{DeletionPolicy, JobQueue, Protocol};
use crate::observer::{Asked, Target, claimed_keys, is_same_owner};

/// After this long a deletion goes on without Redis, or with pods that nobody stops: an object that cannot be deleted is
/// worse than keys that stay.
const PATIENCE: Duration = Duration::from_secs(60);
/// After this long it goes on although the Kubernetes API refuses to delete something else.
const LONG_PATIENCE: Duration = Duration::from_secs(600);
/// How long one step may take; the next one goes on. Few are carried out at once, and other queues wait for their turn.
const STEP: Duration = Duration::from_secs(30);
/// Of that, the deletion of keys: there may be many millions.
const KEYS_STEP: Duration = Duration::from_secs(20);
/// A pod that is still there this long after its time to stop has passed is stuck: its node is gone, or somebody else's
/// finalizer holds it. What it may still do to keys that are deleted is nothing: its lanes have no record any more.
const STUCK: Duration = Duration::from_secs(30);

/// The pods that a deletion waits for.
#[derive(Debug, PartialEq, Eq)]
enum Remaining {
    /// Some are on their way.
    Stopping,
    /// None but these, which are not waited for any longer.
    Stuck(Vec<String>),
}

impl Remaining {
    /// By the names of the pods and how long ago each was to have stopped; `None`: nobody has told it to, although what it
    /// belongs to was removed `waited` ago. It is not ours then, or nobody collects garbage.
    fn of(pods: impl IntoIterator<Item = (String, Option<i64>)>, waited: Duration) -> Self {
        let mut stuck = vec![];
        for (name, late) in pods {
            let is_stuck = match late {
                Some(seconds) => seconds >= seconds_of(STUCK),
                None => waited >= PATIENCE,
            };
            if !is_stuck {
                return Self::Stopping;
            }
            stuck.push(name);
        }
        Self::Stuck(stuck)
    }
}

impl Context {
    /// Has the finalizer there when, and only when, a deletion would need us.
    pub(super) async fn hold_deletion(&self, queue: &JobQueue) -> Result<(), Error> {
        let wanted = queue.spec.deletion_policy == DeletionPolicy::Delete;
        let has = queue.finalizers().iter().any(|name| name == FINALIZER);
        if wanted == has {
            return Ok(());
        }
        let mut finalizers: Vec<&String> =
            queue.finalizers().iter().filter(|name| *name != FINALIZER).collect();
        let ours = FINALIZER.to_owned();
        if wanted {
            finalizers.push(&ours);
        }
        self.write_finalizers(queue, &finalizers).await
    }

    async fn write_finalizers(&self, queue: &JobQueue, finalizers: &[&String]) -> Result<(), Error> {
        let api: Api<Stored> = Api::namespaced(self.client.clone(), &queue.namespace().unwrap_or_default());
        // With the version: somebody else's finalizer that came in between is not to be lost.
        let patch =
            json!({ "metadata": { "finalizers": finalizers, "resourceVersion": queue.resource_version() } });
        match api.patch(&queue.name_any(), &PatchParams::default(), &Patch::Merge(&patch)).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
            answer => Ok(answer.map(|_| ())?),
        }
    }

    /// One step of a deletion; the next one follows when this one has had its effect.
    pub(super) async fn clean_up(&self, queue: &JobQueue) -> Result<Action, Error> {
        self.forget(&ObjectRef::from_obj(queue));
        if !queue.finalizers().iter().any(|name| name == FINALIZER) {
            return Ok(Action::await_change());
        }
        let since = queue.metadata.deletion_timestamp.as_ref().map(|at| at.0.as_second());
        let waited = since.map_or(0, |since| jiff::Timestamp::now().as_second() - since);
        let waited = Duration::from_secs(u64::try_from(waited).unwrap_or(0));
        let step = tokio::time::timeout(STEP, self.take_down(queue, waited)).await;
        match step.unwrap_or(Err(Error::Late)) {
            Ok(Some(next)) => return Ok(Action::requeue(next)),
            Ok(None) => {}
            Err(error) if waited < LONG_PATIENCE => return Err(error),
            Err(error) => {
                let note = format!("Deleted without everything that belongs to it: {error}");
                self.publish(queue, EventType::Warning, "ObjectsLeft", "Delete", note).await;
            }
        }
        let others: Vec<&String> = queue.finalizers().iter().filter(|name| *name != FINALIZER).collect();
        self.write_finalizers(queue, &others).await?;
        Ok(Action::await_change())
    }

    /// Removes what belongs to a queue that is being deleted, as far as its order allows; when to go on, if it is not all.
    async fn take_down(&self, queue: &JobQueue, waited: Duration) -> Result<Option<Duration>, Error> {
        const SOON: Option<Duration> = Some(Duration::from_secs(1));
        let names = Names::of(queue);
        for part in ["producer", "api", "worker"] {
            self.remove(queue, &DEPLOYMENT, &names.part(part)).await?;
        }
        let of_jobs = "app.kubernetes.io/component in (worker,producer,api)";
        let mut stuck = match self.pods(&names, of_jobs, waited).await? {
            Remaining::Stopping => return Ok(SOON),
            Remaining::Stuck(stuck) => stuck,
        };
        if is_managed(queue) {
            self.remove(queue, &STATEFUL_SET, &names.part("redis")).await?;
            match self.pods(&names, "app.kubernetes.io/component=redis", waited).await? {
                Remaining::Stopping => return Ok(SOON),
                Remaining::Stuck(more) => stuck.extend(more),
            }
            self.remove(queue, &VOLUME_CLAIM, &names.part("redis")).await?;
            self.remove(queue, &SECRET, &names.part("redis")).await?;
        } else {
            // A Redis that does not answer is waited for; not many at a time, because other queues wait for their turn.
            let Some(_turn) = self.pace.ask() else { return Ok(SOON) };
            let deleted = tokio::time::timeout(KEYS_STEP, Box::pin(self.delete_keys(queue))).await;
            if let Err(kept) = deleted.unwrap_or(Err(Kept::Unfinished)) {
                if let Some(next) = kept.next(waited) {
                    let (namespace, jobqueue) = (names.namespace, names.queue);
                    tracing::warn!(namespace, jobqueue, error = %kept, "Could not delete the keys, trying again");
                    return Ok(Some(next));
                }
                let note = format!("Deleted without its keys in Redis: {kept}");
                self.publish(queue, EventType::Warning, "KeysLeft", "Delete", note).await;
            }
        }
        if !stuck.is_empty() {
            let note = format!("Deleted while pods that do not stop are still there: {}", stuck.join(", "));
            self.publish(queue, EventType::Warning, "PodsLeft", "Delete", note).await;
        }
        Ok(None)
    }

    /// Lets an object go whose spec cannot be read: where its keys would be is not known.
    pub(super) async fn let_go(&self, queue: &JobQueue, why: &str) -> Result<Action, Error> {
        self.forget(&ObjectRef::from_obj(queue));
        if queue.finalizers().iter().any(|name| name == FINALIZER) {
            let note = format!("Deleted without its keys in Redis, because the spec cannot be read: {why}");
            self.publish(queue, EventType::Warning, "KeysLeft", "Delete", note).await;
            let others: Vec<&String> = queue.finalizers().iter().filter(|name| *name != FINALIZER).collect();
            self.write_finalizers(queue, &others).await?;
        }
        Ok(Action::await_change())
    }

    /// Deletes an object of this queue; somebody else's that happens to have the name stays.
    async fn remove(&self, queue: &JobQueue, kind: &Kind, name: &str) -> Result<(), Error> {
        let api = self.dynamic(kind, queue);
        let Some(live) = api.get_metadata_opt(name).await? else { return Ok(()) };
        if !Names::of(queue).are_on(live.labels()) {
            return Ok(());
        }
        let exactly = Preconditions { uid: live.uid(), resource_version: None };
        match api.delete(name, &DeleteParams::background().preconditions(exactly)).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
            answer => Ok(answer.map(|_| ())?),
        }
    }

    async fn pods(&self, names: &Names, selector: &str, waited: Duration) -> Result<Remaining, Error> {
        let api: Api<PartialObjectMeta<Pod>> = Api::namespaced(self.client.clone(), &names.namespace);
        let params = ListParams::default().labels(&format!("{QUEUE_LABEL}={},{selector}", names.queue));
        let found = api.list_metadata(&params).await?.items;
        let now = jiff::Timestamp::now().as_second();
        let found = found.into_iter().map(|pod| {
            let late = pod.metadata.deletion_timestamp.as_ref().map(|time| now - time.0.as_second());
            (pod.name_any(), late)
        });
        Ok(Remaining::of(found, waited))
    }

    /// Deletes our keys in an external Redis, page by page. Sidekiq's own stay: they are the application's. And so does what
    /// this queue has never claimed: workers that no operator knows of may use it.
    async fn delete_keys(&self, queue: &JobQueue) -> Result<(), Kept> {
        let resolved = Resolved::of(queue, self).await.map_err(Kept::for_now)?;
        let children = build::children(queue, &resolved).map_err(Kept::for_now)?;
        let configs = self.dynamic(children.config.kind, queue);
        let live = configs.get_opt(&children.config.name).await.map_err(Kept::for_now)?;
        let config = in_use(live.as_ref().and_then(served), children.rendered.config)?;
        let mut target = self.target(queue, &config, resolved.redis_secret.as_ref(), Asked::default());
        let leftovers = target.leftovers().await.map_err(Kept::for_now)?;
        target.shards.extend(leftovers);
        let connector = Connector::new(target.settings.clone());
        let session = |shard: &Keys| Session::new(&connector, shard, Duration::from_secs(1));
        if queue.spec.protocol == Protocol::Sidekiq {
            for shard in &target.shards {
                give_back(&target, &connector, shard).await.map_err(Kept::for_now)?;
                session(shard).delete_all().await.map_err(Kept::for_now)?;
            }
            return Ok(());
        }
        // All of them before the first is deleted, and without claiming what is nobody's.
        let mut shards = Vec::new();
        for shard in &target.shards {
            let owners = session(shard).owners(&claimed_keys(shard)).await.map_err(Kept::for_now)?;
            shards.push(Divided::of(shard, &owners, &target.owner)?);
        }
        let mut unclaimed = 0;
        for Divided { ours, nobodys } in shards {
            if let Some(keys) = ours {
                session(&keys).delete_all().await.map_err(Kept::for_now)?;
            }
            if let Some(keys) = nobodys {
                // What an earlier step has deleted is nobody's too, and empty.
                unclaimed += session(&keys).jobs_left(true).await.map_err(Kept::for_now)?;
            }
        }
        if unclaimed > 0 { Err(Kept::Unclaimed(unclaimed)) } else { Ok(()) }
    }
}

/// The configuration whose keys are deleted: `now` is that of the workers, `then` that of the spec. While a change waits for
/// the last job they differ, and the jobs are where the workers are.
fn in_use(now: Option<Config>, then: Config) -> Result<Config, Kept> {
    match now {
        None => Ok(then),
        Some(now) if is_same_place(&now, &then, false) => Ok(Config { redis: then.redis, ..now }),
        // Who vouched for that Redis, and had its Secret mounted, was the workers' Deployment. It is gone.
        Some(now) => Err(Kept::Elsewhere(place(&now))),
    }
}

/// A shard, by what this queue has claimed of it.
#[derive(Debug)]
struct Divided {
    ours: Option<Keys>,
    nobodys: Option<Keys>,
}

impl Divided {
    /// `owners` are those of its [`claimed_keys`]. The registry stands for everything under the prefix and is claimed after
    /// the lists: without it a claim was never completed, and no worker of ours has been there.
    fn of(shard: &Keys, owners: &[Option<String>], me: &str) -> Result<Self, Kept> {
        let claims: Vec<_> = claimed_keys(shard).into_iter().zip(owners).collect();
        let is_ours = |owner: &Option<String>| owner.as_ref().is_some_and(|one| is_same_owner(one, me));
        for (key, owner) in &claims {
            if let Some(owner) = owner.as_ref().filter(|one| !is_same_owner(one, me)) {
                return Err(Kept::Foreign { key: key.clone(), owner: owner.clone() });
            }
        }
        if !claims.iter().any(|(key, owner)| *key == shard.lanes() && is_ours(owner)) {
            return Ok(Self { ours: None, nobodys: Some(shard.clone()) });
        }
        let claimed = |key: &String| claims.iter().any(|(one, owner)| one == key && is_ours(owner));
        let (mut ours, mut nobodys) = (shard.clone(), shard.clone());
        ours.queues.retain(|queue| claimed(&queue.queue));
        nobodys.queues.retain(|queue| !claimed(&queue.queue));
        let nobodys = (!nobodys.queues.is_empty()).then_some(nobodys);
        Ok(Self { ours: Some(ours), nobodys })
    }
}

/// Why keys are not deleted.
#[derive(Debug, thiserror::Error)]
enum Kept {
    /// It may be tried again.
    #[error("{0}")]
    ForNow(String),
    /// There are so many of them, or Redis is so slow, that they are not all gone yet.
    #[error("there are more of them than could be deleted in time")]
    Unfinished,
    /// They are another's.
    #[error("{key} belongs to {owner}, so nothing was deleted")]
    Foreign {
        /// One of them.
        key: String,
        /// Whose it is.
        owner: String,
    },
    /// This queue never had them.
    #[error("{0} jobs are in lists that it has never claimed, so they may be another's")]
    Unclaimed(u64),
    /// A change to another Redis has waited.
    #[error("its workers used Redis {0}, which spec.redis.external does not name any more")]
    Elsewhere(String),
}

impl Kept {
    /// When to go on, if that is still worth it: a Redis that does not answer is waited for less long than one that does.
    fn next(&self, waited: Duration) -> Option<Duration> {
        match self {
            Self::ForNow(_) => (waited < PATIENCE).then_some(Duration::from_secs(5)),
            Self::Unfinished => (waited < LONG_PATIENCE).then_some(Duration::from_secs(1)),
            Self::Foreign { .. } | Self::Unclaimed(_) | Self::Elsewhere(_) => None,
        }
    }

    #[allow(clippy::needless_pass_by_value, reason = "as map_err has it")]
    fn for_now(error: impl std::fmt::Display) -> Self {
        Self::ForNow(error.to_string())
    }
}

fn seconds_of(duration: Duration) -> i64 {
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX)
}

/// Gives back what lanes of dead workers still hold: the jobs are the application's. Nobody works on the queue any more.
async fn give_back(target: &Target, connector: &Connector, shard: &Keys) -> Result<(), StoreError> {
    let session = || Session::new(connector, shard, Duration::from_secs(1));
    // Whoever might say why a lane's process died is gone: a lane that was spared now would be deleted with its jobs.
    let settings = reaper::Settings { cause_wait: Duration::ZERO, ..target.reaper };
    let mut reaper = Reaper::new(session(), Arc::clone(&target.rules), settings);
    let mut session = session();
    for lane in session.lanes(0, usize::MAX >> 1).await? {
        session.fence(&lane, true, "deleted").await?;
    }
    for lane in session.reaping(usize::MAX >> 1).await? {
        // Whatever it died of: nobody of ours will look at suspects any more.
        session.fence(&lane, true, "deleted").await?;
        reaper.empty(&lane, &mut Reaped::default()).await?;
    }
    session.clear_suspects(target.rules.consuming_side()).await
}

#[cfg(test)]
mod tests {
    use jobqueue::engine::Engine;

    use super::*;

    fn config(redis: &str, queues: &[&str]) -> Config {
        let lists: serde_json::Map<String, serde_json::Value> =
            queues.iter().map(|name| ((*name).to_owned(), json!(format!("jobqueue:{name}")))).collect();
        let worker = json!({ "priorities": queues, "queues": lists });
        let producer = json!({ "default_priority": queues[0] });
        let tree = json!({ "redis": { "addr": redis }, "worker": worker, "producer": producer });
        Config::from_value(tree).unwrap().config
    }

    fn divided(owners: [Option<&str>; 3]) -> Result<(Vec<String>, Vec<String>), Kept> {
        let shard = Engine::new(&config("one:6379", &["a", "b"])).shards.remove(0);
        let names = |keys: Option<Keys>| -> Vec<String> {
            keys.into_iter().flat_map(|keys| keys.queues).map(|queue| queue.name).collect()
        };
        let Divided { ours, nobodys } =
            Divided::of(&shard, &owners.map(|owner| owner.map(str::to_owned)), "c/n/q/me")?;
        Ok((names(ours), names(nobodys)))
    }

    #[test]
    fn only_what_was_claimed_is_deleted() {
        let (me, other) = (Some("c/n/q/me"), Some("c/n/q/other"));
        let names = |ours: &[&str], nobodys: &[&str]| {
            let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
            (owned(ours), owned(nobodys))
        };
        assert_eq!(divided([me, me, me]).unwrap(), names(&["a", "b"], &[]));
        assert_eq!(
            divided([None, None, None]).unwrap(),
            names(&[], &["a", "b"]),
            "standalone workers' perhaps"
        );
        assert_eq!(divided([me, None, None]).unwrap(), names(&[], &["a", "b"]), "a claim that was cut short");
        assert_eq!(divided([me, None, me]).unwrap(), names(&["a"], &["b"]), "a list was added");
        assert_eq!(
            divided([Some("d/n/q/me"), me, me]).unwrap(),
            names(&["a", "b"], &[]),
            "a renamed cluster"
        );
        assert!(matches!(divided([me, other, me]), Err(Kept::Foreign { .. })));
    }

    #[test]
    fn the_keys_of_the_redis_that_workers_used_are_deleted_also_while_a_change_waits() {
        let then = || config("one:6379", &["a"]);
        let lists = |config: &Config| config.worker.priorities.clone();
        assert_eq!(lists(&in_use(None, then()).unwrap()), ["a"], "no workers were ever configured");
        let waits = in_use(Some(config("one:6379", &["a", "b"])), then()).unwrap();
        assert_eq!(lists(&waits), ["a", "b"], "a queue was taken out, and its jobs wait");
        let elsewhere = in_use(Some(config("two:6379", &["a"])), then()).unwrap_err();
        assert!(elsewhere.to_string().contains("two:6379/0"), "{elsewhere}");
        assert_eq!(elsewhere.next(Duration::ZERO), None);
    }

    #[test]
    fn a_pod_that_does_not_stop_is_waited_for_only_so_long() {
        let (stopping, stuck) = (("b".to_owned(), Some(10)), ("c".to_owned(), Some(30)));
        let soon = Duration::from_secs(1);
        assert_eq!(Remaining::of([], soon), Remaining::Stuck(vec![]));
        assert_eq!(Remaining::of([stuck.clone()], soon), Remaining::Stuck(vec!["c".into()]));
        assert_eq!(Remaining::of([stuck, stopping], soon), Remaining::Stopping);
    }

    #[test]
    fn keys_are_deleted_step_by_step_and_not_for_ever() {
        let seconds = Duration::from_secs;
        let away = Kept::ForNow("connection refused".into());
        assert_eq!((away.next(seconds(59)), away.next(seconds(60))), (Some(seconds(5)), None));
        assert_eq!(Kept::Unfinished.next(seconds(599)), Some(seconds(1)), "it makes progress");
        assert_eq!(Kept::Unfinished.next(seconds(600)), None);
        let foreign = Kept::Foreign { key: "k".into(), owner: "o".into() };
        assert_eq!(foreign.next(Duration::ZERO), None);
        assert!(KEYS_STEP < STEP, "or nobody would be told that keys are left");
    }

    #[test]
    fn a_pod_that_nobody_tells_to_stop_is_waited_for_only_so_long() {
        let running = ("a".to_owned(), None);
        assert_eq!(Remaining::of([running.clone()], Duration::from_secs(59)), Remaining::Stopping);
        assert_eq!(Remaining::of([running], PATIENCE), Remaining::Stuck(vec!["a".into()]));
    }
}
