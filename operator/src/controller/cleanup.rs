//! Deletion. With `Retain` Kubernetes does it all: what belongs to the queue goes with it, what holds jobs stays. Only
//! `Delete` needs us, and so a finalizer: workers first, then the keys, then Redis, its volume and its password.
use std::sync::Arc;
use std::time::Duration;

use jobqueue::connect::Connector;
use jobqueue::keys::Keys;
use jobqueue::reaper::{Reaped, Reaper};
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
use super::names::{MANAGED_BY, Names, QUEUE_LABEL};
use super::resolve::Resolved;
use super::{Context, Error, FINALIZER};
use crate::api::v1alpha1::{DeletionPolicy, JobQueue, Protocol};
use crate::observer::{Target, claimed_keys};

/// After this long a deletion goes on without Redis: an object that cannot be deleted is worse than keys that stay.
const PATIENCE: Duration = Duration::from_secs(60);
/// A pod that is still there this long after its time to stop has passed is stuck: its node is gone, or somebody else's
/// finalizer holds it. What it may still do to keys that are deleted is nothing: its lanes have no record any more.
const STUCK: Duration = Duration::from_secs(30);

/// The pods that a deletion waits for.
#[derive(Debug, PartialEq, Eq)]
enum Pods {
    /// Some are on their way.
    Stopping,
    /// None but these, which are not waited for any longer.
    Stuck(Vec<String>),
}

impl Pods {
    /// By the names of the pods and the second by which each was to have stopped.
    fn of(pods: impl IntoIterator<Item = (String, Option<i64>)>, now: i64) -> Self {
        let patience = i64::try_from(STUCK.as_secs()).unwrap_or(i64::MAX);
        let mut stuck = vec![];
        for (name, stops_by) in pods {
            match stops_by {
                Some(second) if now - second >= patience => stuck.push(name),
                _ => return Self::Stopping,
            }
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
        let api: Api<JobQueue> = Api::namespaced(self.client.clone(), &queue.namespace().unwrap_or_default());
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
        let names = Names::of(queue);
        self.forget(&ObjectRef::from_obj(queue));
        if !queue.finalizers().iter().any(|name| name == FINALIZER) {
            return Ok(Action::await_change());
        }
        for part in ["producer", "api", "worker"] {
            self.remove(queue, &DEPLOYMENT, &names.part(part)).await?;
        }
        let mut stuck =
            match self.pods(&names, "app.kubernetes.io/component in (worker,producer,api)").await? {
                Pods::Stopping => return Ok(Action::requeue(Duration::from_secs(1))),
                Pods::Stuck(stuck) => stuck,
            };
        if is_managed(queue) {
            self.remove(queue, &STATEFUL_SET, &names.part("redis")).await?;
            match self.pods(&names, "app.kubernetes.io/component=redis").await? {
                Pods::Stopping => return Ok(Action::requeue(Duration::from_secs(1))),
                Pods::Stuck(more) => stuck.extend(more),
            }
            self.remove(queue, &VOLUME_CLAIM, &names.part("redis")).await?;
            self.remove(queue, &SECRET, &names.part("redis")).await?;
        } else if let Err(message) = self.delete_keys(queue).await {
            let since = queue.metadata.deletion_timestamp.as_ref().map(|at| at.0);
            let waited = since.map_or(0, |since| jiff::Timestamp::now().as_second() - since.as_second());
            if waited < i64::try_from(PATIENCE.as_secs()).unwrap_or(i64::MAX) {
                tracing::warn!(
                    namespace = names.namespace,
                    jobqueue = names.queue,
                    error = message,
                    "Could not delete the keys, trying again"
                );
                return Ok(Action::requeue(Duration::from_secs(5)));
            }
            let note = format!("Deleted without its keys in Redis, which could not be reached: {message}");
            self.publish(queue, EventType::Warning, "KeysLeft", "Delete", note).await;
        }
        if !stuck.is_empty() {
            let note = format!("Deleted while pods that do not stop are still there: {}", stuck.join(", "));
            self.publish(queue, EventType::Warning, "PodsLeft", "Delete", note).await;
        }
        let others: Vec<&String> = queue.finalizers().iter().filter(|name| *name != FINALIZER).collect();
        self.write_finalizers(queue, &others).await?;
        Ok(Action::await_change())
    }

    /// Deletes an object of this queue; somebody else's that happens to have the name stays.
    async fn remove(&self, queue: &JobQueue, kind: &Kind, name: &str) -> Result<(), Error> {
        let api = self.dynamic(kind, queue);
        let Some(live) = api.get_metadata_opt(name).await? else { return Ok(()) };
        let label = |name: &str| live.labels().get(name).map(String::as_str);
        let ours = label("app.kubernetes.io/managed-by") == Some(MANAGED_BY)
            && label(QUEUE_LABEL) == Some(queue.name_any().as_str());
        if !ours {
            return Ok(());
        }
        let exactly = Preconditions { uid: live.uid(), resource_version: None };
        match api.delete(name, &DeleteParams::background().preconditions(exactly)).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
            answer => Ok(answer.map(|_| ())?),
        }
    }

    async fn pods(&self, names: &Names, selector: &str) -> Result<Pods, Error> {
        let api: Api<PartialObjectMeta<Pod>> = Api::namespaced(self.client.clone(), &names.namespace);
        let params = ListParams::default().labels(&format!("{QUEUE_LABEL}={},{selector}", names.queue));
        let found = api.list_metadata(&params).await?.items;
        let found = found.into_iter().map(|pod| {
            let stops_by = pod.metadata.deletion_timestamp.as_ref().map(|time| time.0.as_second());
            (pod.name_any(), stops_by)
        });
        Ok(Pods::of(found, jiff::Timestamp::now().as_second()))
    }

    /// Deletes our keys in an external Redis, page by page. Sidekiq's own stay: they are the application's.
    async fn delete_keys(&self, queue: &JobQueue) -> Result<(), String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let resolved = Resolved::of(queue, self).await.map_err(|error| text(&error))?;
        let children = build::children(queue, &resolved).map_err(|error| text(&error))?;
        let (config, secret) = (&children.rendered.config, resolved.redis_secret.as_ref());
        let target = self.target(queue, config, secret, 0);
        let connector = Connector::new(target.settings.clone());
        for shard in &target.shards {
            let mut session = Session::new(&connector, shard, Duration::from_secs(1));
            if queue.spec.protocol != Protocol::Sidekiq {
                for key in claimed_keys(shard) {
                    let owner = session.own(&key, &target.owner, None).await.map_err(|error| text(&error))?;
                    if owner != target.owner {
                        return Err(format!("{key} belongs to {owner}"));
                    }
                }
            }
            if queue.spec.protocol == Protocol::Sidekiq {
                give_back(&target, &connector, shard).await.map_err(|error| text(&error))?;
            }
            session.delete_all().await.map_err(|error| text(&error))?;
        }
        Ok(())
    }
}

/// Gives back what lanes of dead workers still hold: the jobs are the application's. Nobody works on the queue any more.
async fn give_back(target: &Target, connector: &Connector, shard: &Keys) -> Result<(), StoreError> {
    let session = || Session::new(connector, shard, Duration::from_secs(1));
    let mut reaper = Reaper::new(session(), Arc::clone(&target.rules), target.reaper);
    let mut session = session();
    for lane in session.lanes(0, usize::MAX >> 1).await? {
        session.fence(&lane, true, "deleted").await?;
    }
    for lane in session.reaping(usize::MAX >> 1).await? {
        reaper.empty(&lane, &mut Reaped::default()).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_that_does_not_stop_is_waited_for_only_so_long() {
        let (running, stopping, stuck) =
            (("a".to_owned(), None), ("b".to_owned(), Some(90)), ("c".to_owned(), Some(70)));
        assert_eq!(Pods::of([], 100), Pods::Stuck(vec![]));
        assert_eq!(Pods::of([stuck.clone()], 100), Pods::Stuck(vec!["c".into()]));
        for waited_for in [running, stopping] {
            assert_eq!(Pods::of([stuck.clone(), waited_for], 100), Pods::Stopping);
        }
    }
}
