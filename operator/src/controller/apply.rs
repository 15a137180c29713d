//! Carries out what was built: server-side apply, only where something differs, never on somebody else's objects.
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, Preconditions};
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::build::{Child, Children, DEPLOYMENT, Kind, POD, STATEFUL_SET};
use super::names::{HASH, Names};
use super::obstacle::obstacle;
use super::quantity;
use super::redis_pod;
use super::resolve::Resolved;
use super::rolling::{self, is_upgrade};
use super::rollout::Rollout;
use super::{Context, Error};
use crate::api::v1alpha1::JobQueue;

/// Owns everything that we make but the number of workers.
pub const MANAGER: &str = "jobqueue-operator";
/// Owns the number of workers: an apply without that field would otherwise reset it to 1.
pub const SCALER: &str = "jobqueue-scaler";

/// Pods of the HTTP API where nobody says how many.
const NEW_REPLICAS: i64 = 2;
/// How often pods that do not start are looked at: nobody tells when their reason changes.
const STARTING: Duration = Duration::from_secs(10);

/// What was there when an object was last found as it should be: its hash and its version.
#[derive(Default)]
pub struct Settled(Mutex<HashMap<String, (String, String)>>);

impl Settled {
    fn is(&self, id: &str, hash: &str, version: &str) -> bool {
        let settled = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        settled.get(id).is_some_and(|(of, at)| of == hash && at == version)
    }

    fn note(&self, id: String, hash: &str, version: String) {
        let mut settled = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        settled.insert(id, (hash.to_owned(), version));
    }

    /// Forgets the objects of a queue that is gone.
    pub fn forget(&self, namespace: &str, queue: &str) {
        let mut settled = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (of, name) = (format!("/{namespace}/{queue}-"), format!("/{namespace}/{queue}"));
        settled.retain(|id, _| !id.contains(&of) && !id.ends_with(&name));
    }
}

/// The live objects that the status speaks of.
#[derive(Debug, Default)]
pub struct Applied {
    /// The workers' Deployment.
    pub worker: Option<Value>,
    /// The managed Redis' `StatefulSet`.
    pub redis: Option<Value>,
    /// What keeps workers from starting.
    pub obstacle: Option<String>,
    /// The workers stay as they are until it is their turn to be rolled.
    pub waits_to_roll: bool,
    /// When something is due that no change in the cluster will tell of.
    pub next_look: Option<Duration>,
}

impl Context {
    /// Makes the cluster have these children, in an order in which each finds what it needs.
    pub async fn apply(
        &self,
        queue: &JobQueue,
        children: &Children,
        resolved: &Resolved,
    ) -> Result<Applied, Error> {
        // Destructured whole, so that a new child cannot be forgotten here.
        let Children {
            service_account,
            config,
            redis_config,
            redis_service,
            redis,
            worker,
            producer,
            api,
            api_service,
            api_disruption_budget,
            api_network_policy,
            disruption_budget,
            network_policy,
            pod_monitor,
            rendered,
        } = children;
        let configs = self.dynamic(config.kind, queue);
        let live = configs.get_opt(&config.name).await?;
        self.leave_no_jobs(queue, children, resolved, live.as_ref()).await?;
        self.take_no_lists(queue, children, resolved, live.as_ref()).await?;
        self.apply_child(queue, service_account).await?;
        self.reconcile_child(queue, &configs, config, live.clone()).await?;
        self.note_taken_out(queue, &rendered.config, live.as_ref());
        for child in [redis_config, redis_service, network_policy] {
            self.apply_child(queue, child).await?;
        }
        let redis = self.apply_redis(queue, redis).await?;
        let (worker, waits_to_roll) = self.apply_worker(queue, worker).await?;
        // Nothing works on keys that may be another's: the claim comes first (see the observer).
        for child in [producer, api] {
            self.apply_when_owned(queue, child).await?;
        }
        for child in [api_service, api_disruption_budget, api_network_policy, disruption_budget] {
            self.apply_child(queue, child).await?;
        }
        if self.pod_monitors {
            match self.apply_child(queue, pod_monitor).await {
                // The kind was there when this process started, and has been removed since. (Such an answer has no reason,
                // only a code.)
                Err(Error::Kube(kube::Error::Api(status))) if status.code == 404 => {}
                answer => drop(answer?),
            }
        }
        let starting = worker.as_ref().is_some_and(|live| Rollout::of(live).is_starting());
        let obstacle = if starting { self.obstacle(queue).await? } else { None };
        let next_look = if waits_to_roll { Some(rolling::TURN) } else { starting.then_some(STARTING) };
        Ok(Applied { worker, redis, obstacle, waits_to_roll, next_look })
    }

    /// What the pods say when fewer of them are ready than wanted.
    async fn obstacle(&self, queue: &JobQueue) -> Result<Option<String>, Error> {
        let labels = Names::of(queue).selector("worker");
        let labels: Vec<_> = labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let params = ListParams::default().labels(&labels.join(",")).limit(50);
        let pods = self.dynamic(&POD, queue).list(&params).await?.items;
        let pods: Vec<Value> = pods.iter().filter_map(|pod| serde_json::to_value(pod).ok()).collect();
        Ok(obstacle(&pods))
    }

    /// Applies what enqueues: with no pods as long as the keys are not known to be this queue's. What runs goes on when a
    /// new leader has not looked yet.
    async fn apply_when_owned(&self, queue: &JobQueue, child: &Child) -> Result<(), Error> {
        let reference = ObjectRef::from_obj(queue);
        let api = self.dynamic(child.kind, queue);
        let live = api.get_opt(&child.name).await?;
        let conflict = self.observer.seen(&reference).is_some_and(|seen| seen.conflict.is_some());
        let mut child = child.clone();
        if let Some(object) = child.object.as_mut() {
            if !may_run(self.observer.owns(&reference), conflict, live.as_ref()) {
                object["spec"]["replicas"] = json!(0);
                object["metadata"]["annotations"][HASH] = json!("waits-for-its-keys");
            } else if object["spec"].get("replicas").is_none()
                && let Some(replicas) = unclaimed_replicas(live.as_ref())
            {
                object["spec"]["replicas"] = json!(replicas);
            }
        }
        self.reconcile_child(queue, &api, &child, live).await?;
        Ok(())
    }

    /// Applies one child if it differs, removes it if it is not wanted; the live object, if there is one.
    async fn apply_child(&self, queue: &JobQueue, child: &Child) -> Result<Option<Value>, Error> {
        let api = self.dynamic(child.kind, queue);
        let live = api.get_opt(&child.name).await?;
        self.reconcile_child(queue, &api, child, live).await
    }

    async fn reconcile_child(
        &self,
        queue: &JobQueue,
        api: &Api<DynamicObject>,
        child: &Child,
        live: Option<DynamicObject>,
    ) -> Result<Option<Value>, Error> {
        let ours = |live: &DynamicObject| {
            live.owner_references().iter().any(|owner| Some(&owner.uid) == queue.metadata.uid.as_ref())
        };
        let Some(desired) = &child.object else {
            if live.as_ref().is_some_and(ours) {
                api.delete(&child.name, &DeleteParams::background()).await?;
                tracing::info!(
                    kind = child.kind.name,
                    name = child.name,
                    "Removed what is not wanted any more"
                );
            }
            return Ok(None);
        };
        if let Some(live) = &live {
            if !ours(live) {
                return Err(foreign(queue, child.kind, &child.name));
            }
            let id = id(queue, child.kind, &child.name);
            let hash = desired["metadata"]["annotations"][HASH].as_str().unwrap_or_default();
            let now = version(live);
            let found = serde_json::to_value(live).unwrap_or_default();
            if self.settled.is(&id, hash, &now) || is_satisfied(desired, &found) {
                self.settled.note(id, hash, now);
                return Ok(Some(found));
            }
        }
        let applied = match self.patch(api, MANAGER, &child.name, desired).await {
            Err(Error::Kube(kube::Error::Api(status))) if status.code == 422 && live.is_some() => {
                // What somebody else wrote beside our fields contradicts them (`value` beside our `valueFrom`), and an
                // apply leaves it there. A merge patch replaces whole lists, and theirs with them.
                let params = PatchParams { field_manager: Some(MANAGER.into()), ..PatchParams::default() };
                api.patch(&child.name, &params, &Patch::Merge(desired)).await?
            }
            answer => answer?,
        };
        tracing::info!(kind = child.kind.name, name = child.name, "Applied");
        let hash = desired["metadata"]["annotations"][HASH].as_str().unwrap_or_default();
        self.settled.note(id(queue, child.kind, &child.name), hash, version(&applied));
        Ok(Some(serde_json::to_value(applied).unwrap_or_default()))
    }

    /// The workers: the scaler owns their number; where it does not (yet), the live number is kept. Also says whether they
    /// have to wait for their turn.
    async fn apply_worker(&self, queue: &JobQueue, child: &Child) -> Result<(Option<Value>, bool), Error> {
        let api = self.dynamic(child.kind, queue);
        let live = api.get_opt(&child.name).await?;
        let turn = ObjectRef::from_obj(queue).to_string();
        if let (Some(desired), Some(live)) = (&child.object, &live) {
            let live = serde_json::to_value(live).unwrap_or_default();
            let image = &self.settings.worker_image;
            if is_upgrade(desired, &live, image) && !self.rolling.may_begin(&turn, std::time::Instant::now())
            {
                return Ok((Some(live), true));
            }
        }
        let mut child = child.clone();
        let owned = live.as_ref().is_some_and(scaler_owns_replicas);
        let number = live.as_ref().and_then(|live| live.data["spec"]["replicas"].as_i64());
        // A new queue starts with none: the first look at Redis claims its keys and decides.
        let number = number.unwrap_or(0);
        if let (false, Some(object)) = (owned, child.object.as_mut()) {
            object["spec"]["replicas"] = json!(number);
            if let Some(live) = &live {
                // Somebody who changes the number meanwhile is not overruled without a drain.
                object["metadata"]["resourceVersion"] = json!(live.resource_version());
            }
        }
        let is_new = live.is_none();
        let applied = self.reconcile_child(queue, &api, &child, live).await?;
        if applied.as_ref().is_some_and(|live| Rollout::of(live).is_over()) {
            self.rolling.end(&turn);
        }
        if owned {
            return Ok((applied, false));
        }
        let Some(applied) = applied else { return Ok((None, false)) };
        let replicas = i32::try_from(number).unwrap_or(0);
        // Of one that was just made the status is being written: its version is none to go by, and nobody has scaled it.
        let version = (!is_new).then(|| &applied["metadata"]["resourceVersion"]);
        Ok((Some(self.scale(queue, &child.name, replicas, version).await?), false))
    }

    /// Asks for this many workers: the only way their number changes. With a version only if nothing has changed since.
    pub async fn scale(
        &self,
        queue: &JobQueue,
        name: &str,
        replicas: i32,
        version: Option<&Value>,
    ) -> Result<Value, Error> {
        let mut object = json!({
            "apiVersion": DEPLOYMENT.api_version,
            "kind": DEPLOYMENT.name,
            "metadata": { "name": name },
            "spec": { "replicas": replicas },
        });
        if let Some(version) = version {
            object["metadata"]["resourceVersion"] = version.clone();
        }
        let scaled = self.patch(&self.dynamic(&DEPLOYMENT, queue), SCALER, name, &object).await?;
        Ok(serde_json::to_value(scaled).unwrap_or_default())
    }

    /// The managed Redis: its image stays what it was created with, whatever the operator was upgraded to.
    async fn apply_redis(&self, queue: &JobQueue, child: &Child) -> Result<Option<Value>, Error> {
        let api = self.dynamic(&STATEFUL_SET, queue);
        let live = api.get_opt(&child.name).await?;
        let mut child = child.clone();
        if child.object.is_none() {
            return self.reconcile_child(queue, &api, &child, live).await;
        }
        let pods = self.dynamic(&POD, queue);
        let pod = pods.get_opt(&format!("{}-0", child.name)).await?;
        let pod = pod.and_then(|pod| serde_json::to_value(pod).ok());
        let chosen = queue.spec.redis.as_ref().and_then(|redis| redis.managed.as_ref()?.image.as_ref());
        // A Redis that never answered has no jobs to be careful with: its image may have been a bad one.
        let answered = queue.status.as_ref().is_some_and(|status| !status.queues.is_empty());
        let kept = answered || pod.as_ref().is_none_or(|pod| !redis_pod::is_stuck(pod));
        if let (Some(live), Some(object), None, true) = (&live, child.object.as_mut(), chosen, kept) {
            let image = &live.data["spec"]["template"]["spec"]["containers"][0]["image"];
            if image.is_string() {
                object["spec"]["template"]["spec"]["containers"][0]["image"] = image.clone();
            }
        }
        let applied = self.reconcile_child(queue, &api, &child, live).await?;
        let why = applied.as_ref().zip(pod.as_ref()).and_then(|(set, pod)| redis_pod::outdated(set, pod));
        if let (Some(why), Some(pod)) = (why, pod) {
            let name = pod["metadata"]["name"].as_str().unwrap_or_default();
            let uid = pod["metadata"]["uid"].as_str().map(str::to_owned);
            tracing::info!(name, reason = why, "Replacing the pod of Redis");
            let exactly = Preconditions { uid, resource_version: None };
            match pods.delete(name, &DeleteParams::default().preconditions(exactly)).await {
                Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => {}
                answer => drop(answer?),
            }
        }
        Ok(applied)
    }

    /// Makes an object that stays when its queue goes: an earlier one of the same queue is used again.
    pub async fn create_kept(
        &self,
        queue: &JobQueue,
        kind: &'static Kind,
        name: &str,
        object: &Value,
    ) -> Result<(), Error> {
        let api = self.dynamic(kind, queue);
        if let Some(live) = api.get_opt(name).await? {
            if !Names::of(queue).are_on(live.labels()) {
                return Err(foreign(queue, kind, name));
            }
            if is_satisfied(object, &serde_json::to_value(&live).unwrap_or_default()) {
                return Ok(());
            }
        }
        self.patch(&api, MANAGER, name, object).await?;
        Ok(())
    }

    async fn patch(
        &self,
        api: &Api<DynamicObject>,
        manager: &str,
        name: &str,
        object: &Value,
    ) -> Result<DynamicObject, Error> {
        let params = PatchParams::apply(manager).force().validation_strict();
        self.pace.write().await;
        Ok(api.patch(name, &params, &Patch::Apply(object)).await?)
    }

    /// The API of a kind in the queue's namespace.
    pub fn dynamic(&self, kind: &Kind, queue: &JobQueue) -> Api<DynamicObject> {
        let (group, version) = kind.api_version.split_once('/').unwrap_or(("", kind.api_version));
        let kinds = GroupVersionKind::gvk(group, version, kind.name);
        let resource = ApiResource::from_gvk_with_plural(&kinds, kind.plural);
        let namespace = queue.metadata.namespace.clone().unwrap_or_default();
        Api::namespaced_with(self.client.clone(), &namespace, &resource)
    }
}

pub(super) fn foreign(queue: &JobQueue, kind: &Kind, name: &str) -> Error {
    Error::stalled(
        "NameConflict",
        format!(
            "{} {name} exists and does not belong to this JobQueue: delete or rename it, or give the JobQueue another name than {}",
            kind.name,
            queue.name_any()
        ),
    )
}

fn id(queue: &JobQueue, kind: &Kind, name: &str) -> String {
    format!("{}/{}/{name}", kind.name, queue.metadata.namespace.as_deref().unwrap_or_default())
}

/// Changes when somebody changes the object, not when its status does; kinds without a generation change as a whole.
fn version(live: &DynamicObject) -> String {
    match live.metadata.generation {
        Some(generation) => format!("{}@{generation}", live.uid().unwrap_or_default()),
        None => live.resource_version().unwrap_or_default(),
    }
}

/// Whether the scaler's field manager owns `spec.replicas`.
fn scaler_owns_replicas(live: &DynamicObject) -> bool {
    owners_of_replicas(live).any(|manager| manager == SCALER)
}

fn owners_of_replicas(live: &DynamicObject) -> impl Iterator<Item = &str> {
    live.managed_fields().iter().filter_map(|entry| {
        let owns = entry.fields_v1.as_ref().is_some_and(|fields| !fields.0["f:spec"]["f:replicas"].is_null());
        entry.manager.as_deref().filter(|_| owns)
    })
}

/// Whether what enqueues may have pods: the keys are this queue's, or it has some already and nobody says that the keys
/// are another's. That its Deployment is there says nothing: it is made before the keys are claimed, with no pods.
fn may_run(owns: bool, conflict: bool, live: Option<&DynamicObject>) -> bool {
    let runs = live.and_then(|live| live.data["spec"]["replicas"].as_i64()).is_some_and(|pods| pods > 0);
    owns || (runs && !conflict)
}

/// How many pods to ask for where the queue does not say: none if somebody else (an HPA, `kubectl scale`) has said it,
/// since an apply would take the field from them; else as many as there are, or those of a new one.
fn unclaimed_replicas(live: Option<&DynamicObject>) -> Option<i64> {
    if live.is_some_and(|live| owners_of_replicas(live).any(|manager| manager != MANAGER)) {
        return None;
    }
    let asked_for = live.and_then(|live| live.data["spec"]["replicas"].as_i64());
    Some(asked_for.filter(|replicas| *replicas > 0).unwrap_or(NEW_REPLICAS))
}

/// Whether the live object says everything that is desired; what else it says is not ours.
pub fn is_satisfied(desired: &Value, live: &Value) -> bool {
    match (desired, live) {
        (Value::Object(desired), Value::Object(live)) => {
            desired.iter().all(|(name, value)| match (name.as_str(), live.get(name)) {
                (_, None) => is_nothing(value),
                ("requests" | "limits", Some(live)) => quantity::are_satisfied(value, live),
                (_, Some(live)) => is_satisfied(value, live),
            })
        }
        (Value::Array(desired), Value::Array(live)) => {
            let by_name = |entry: &Value| entry.get("name").cloned();
            desired.len() == live.len()
                && desired.iter().zip(live).all(|(desired, at)| match by_name(desired) {
                    Some(name) => live
                        .iter()
                        .any(|live| by_name(live) == Some(name.clone()) && is_satisfied(desired, live)),
                    None => is_satisfied(desired, at),
                })
        }
        _ => desired == live,
    }
}

/// Kubernetes drops empty objects and lists.
fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(fields) => fields.is_empty(),
        Value::Array(entries) => entries.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scaled_by(manager: Option<&str>, replicas: i64) -> DynamicObject {
        let fields = json!({ "f:spec": { "f:replicas": {} } });
        let owners: Vec<Value> = manager
            .map(|manager| json!({ "manager": manager, "operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": fields }))
            .into_iter()
            .collect();
        let object = json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": { "name": "a", "managedFields": owners }, "spec": { "replicas": replicas },
        });
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn who_scales_the_api_is_not_fought_over() {
        assert_eq!(unclaimed_replicas(None), Some(2), "a new one");
        assert_eq!(unclaimed_replicas(Some(&scaled_by(Some(MANAGER), 0))), Some(2), "it waited for its keys");
        assert_eq!(unclaimed_replicas(Some(&scaled_by(Some(MANAGER), 2))), Some(2));
        assert_eq!(unclaimed_replicas(Some(&scaled_by(Some("kube-controller-manager"), 7))), None);
        assert_eq!(unclaimed_replicas(Some(&scaled_by(Some("kubectl"), 0))), None);
        assert_eq!(unclaimed_replicas(Some(&scaled_by(None, 5))), Some(5));
    }

    #[test]
    fn nothing_enqueues_before_the_keys_are_claimed_and_what_runs_goes_on_under_a_new_leader() {
        let (waits, runs) = (scaled_by(Some(MANAGER), 0), scaled_by(Some(MANAGER), 2));
        assert!(!may_run(false, false, None), "a new one");
        assert!(!may_run(false, false, Some(&waits)), "nobody has looked at Redis yet");
        assert!(may_run(true, false, Some(&waits)));
        assert!(may_run(false, false, Some(&runs)), "a new leader has not looked yet");
        assert!(!may_run(false, true, Some(&runs)), "the keys are another's");
    }

    #[test]
    fn what_others_add_is_no_difference() {
        let desired = json!({ "spec": { "replicas": 1, "containers": [{ "name": "worker", "env": [] }] } });
        let live = json!({ "spec": { "replicas": 1, "more": true, "containers": [{ "name": "worker", "image": "x" }] } });
        assert!(is_satisfied(&desired, &live));
    }

    #[test]
    fn a_changed_or_missing_field_is_a_difference() {
        let desired = json!({ "spec": { "containers": [{ "name": "worker", "image": "x" }] } });
        for live in [
            json!({ "spec": { "containers": [{ "name": "worker", "image": "y" }] } }),
            json!({ "spec": { "containers": [{ "name": "other", "image": "x" }] } }),
            json!({ "spec": { "containers": [{ "name": "worker", "image": "x" }, { "name": "extra" }] } }),
            json!({ "spec": {} }),
        ] {
            assert!(!is_satisfied(&desired, &live), "{live}");
        }
    }

    #[test]
    fn amounts_are_compared_by_what_they_are() {
        let claim = |size: &str| json!({ "spec": { "resources": { "requests": { "storage": size } } } });
        assert!(is_satisfied(&claim("1024Mi"), &claim("1Gi")));
        assert!(!is_satisfied(&claim("1G"), &claim("1Gi")));
        // What is no amount is text.
        let value = |text: &str| json!({ "env": [{ "name": "SIZE", "value": text }] });
        assert!(!is_satisfied(&value("1024Mi"), &value("1Gi")));
    }

    #[test]
    fn lists_of_named_things_have_no_order() {
        let desired = json!([{ "name": "a", "v": 1 }, { "name": "b", "v": 2 }]);
        assert!(is_satisfied(&desired, &json!([{ "name": "b", "v": 2 }, { "name": "a", "v": 1 }])));
    }
}
