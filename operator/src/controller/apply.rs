//! Carries out what was built: server-side apply, only where something differs, never on somebody else's objects.
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::build::{self, Child, Children, DEPLOYMENT, Kind, POD, VOLUME_CLAIM};
use super::difference::is_satisfied;
use super::names::{HASH, Names};
use super::obstacle::obstacle;
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
        if resolved.pod_monitors {
            match self.apply_child(queue, pod_monitor).await {
                // The kind was there when it was last asked for, and has been removed since. (Such an answer has no reason,
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

    /// The workers as they are, when nothing was applied to them.
    pub async fn live_workers(&self, queue: &JobQueue) -> Result<Applied, Error> {
        let name = Names::of(queue).part("worker");
        let live = self.dynamic(&DEPLOYMENT, queue).get_opt(&name).await?;
        let worker = live.and_then(|live| serde_json::to_value(live).ok());
        let starting = worker.as_ref().is_some_and(|live| Rollout::of(live).is_starting());
        let obstacle = if starting { self.obstacle(queue).await? } else { None };
        Ok(Applied { worker, obstacle, ..Applied::default() })
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

    pub(super) async fn reconcile_child(
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
        let id = id(queue, child.kind, &child.name);
        let hash = desired["metadata"]["annotations"][HASH].as_str().unwrap_or_default();
        if let Some(live) = &live {
            if !ours(live) {
                return Err(foreign(queue, child.kind, &child.name));
            }
            let now = version(live, desired);
            let found = serde_json::to_value(live).unwrap_or_default();
            if self.settled.is(&id, hash, &now) || is_satisfied(desired, &found) {
                self.settled.note(id, hash, now);
                return Ok(Some(found));
            }
        }
        let write = async {
            match self.patch(api, MANAGER, &child.name, desired).await {
                Err(Error::Kube(kube::Error::Api(status))) if status.code == 422 && live.is_some() => {
                    // What somebody else wrote beside our fields contradicts them (`value` beside our `valueFrom`), and
                    // an apply leaves it there. A merge patch replaces whole lists, and theirs with them.
                    let params =
                        PatchParams { field_manager: Some(MANAGER.into()), ..PatchParams::default() };
                    api.patch(&child.name, &params, &Patch::Merge(desired)).await.map_err(Error::from)
                }
                answer => answer,
            }
        };
        let applied = self.unless_refused(&id, desired, live.as_ref(), write).await?;
        tracing::info!(kind = child.kind.name, name = child.name, "Applied");
        let now = version(&applied, desired);
        self.settled.note(id, hash, now);
        Ok(Some(serde_json::to_value(applied).unwrap_or_default()))
    }

    /// Writes an object, unless the same was refused in place of the same not long ago.
    async fn unless_refused(
        &self,
        id: &str,
        desired: &Value,
        live: Option<&DynamicObject>,
        write: impl Future<Output = Result<DynamicObject, Error>>,
    ) -> Result<DynamicObject, Error> {
        let asked = (asked_for(desired), live.map(|live| version(live, desired)).unwrap_or_default());
        if let Some(error) = self.refused.still(id, &asked, Instant::now()) {
            return Err(error);
        }
        let answer = write.await;
        self.refused.note(id, asked, answer.as_ref().err(), Instant::now());
        answer
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
            if is_upgrade(desired, &live, image) && !self.rolling.may_begin(&turn, Instant::now()) {
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

    /// Makes an object that stays when its queue goes: an earlier one of the same queue is used again.
    pub async fn create_kept(
        &self,
        queue: &JobQueue,
        kind: &'static Kind,
        name: &str,
        object: &Value,
    ) -> Result<(), Error> {
        let api = self.dynamic(kind, queue);
        let live = api.get_opt(name).await?;
        if let Some(live) = &live {
            if !Names::of(queue).are_on(live.labels()) {
                return Err(foreign(queue, kind, name));
            }
            if is_satisfied(object, &serde_json::to_value(live).unwrap_or_default()) {
                return Ok(());
            }
        }
        let id = id(queue, kind, name);
        let write = async {
            let answer = self.patch(&api, MANAGER, name, object).await;
            answer.map_err(|error| fixed(kind, live.as_ref(), error))
        };
        self.unless_refused(&id, object, live.as_ref(), write).await.map(drop)
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

/// What to do about a volume that stays as it is: where its class does not let it grow, Kubernetes answers as if we had no
/// right to ask, and so it does to one that would shrink.
fn fixed(kind: &Kind, live: Option<&DynamicObject>, error: Error) -> Error {
    let (Some(live), Error::Kube(kube::Error::Api(status))) = (live, &error) else { return error };
    let refused =
        status.code == 422 || (status.code == 403 && !status.message.contains("cannot patch resource"));
    if kind.name != VOLUME_CLAIM.name || !refused || error.is_terminating() {
        return error;
    }
    let size = live.data["spec"]["resources"]["requests"]["storage"].as_str().unwrap_or_default();
    let message = format!(
        "the volume of the managed Redis cannot be changed: {}; set spec.redis.managed.storage.size back to {size}, or have the \
         volume's StorageClass allow it to grow",
        status.message
    );
    Error::stalled("VolumeUnchangeable", message)
}

fn id(queue: &JobQueue, kind: &Kind, name: &str) -> String {
    format!("{}/{}/{name}", kind.name, queue.metadata.namespace.as_deref().unwrap_or_default())
}

/// Changes when somebody changes what the object says of what is desired, not when its status changes; kinds without a
/// generation change as a whole. A generation does not count labels and annotations. Of those only ours matter: some change
/// with the status, as the revision of a Deployment does.
fn version(live: &DynamicObject, desired: &Value) -> String {
    let Some(generation) = live.metadata.generation else {
        return live.resource_version().unwrap_or_default();
    };
    let of = |ours: &Value, live: &BTreeMap<String, String>| -> Vec<Option<String>> {
        let names = ours.as_object().into_iter().flat_map(serde_json::Map::keys);
        names.map(|name| live.get(name).cloned()).collect()
    };
    let metadata = &desired["metadata"];
    let said =
        json!([of(&metadata["labels"], live.labels()), of(&metadata["annotations"], live.annotations())]);
    format!("{}@{generation}@{}", live.uid().unwrap_or_default(), build::hash(&said))
}

/// Tells one thing that is asked for from another, whatever version of the live object it was asked of.
fn asked_for(desired: &Value) -> String {
    let mut desired = desired.clone();
    if let Some(metadata) = desired["metadata"].as_object_mut() {
        metadata.remove("resourceVersion");
    }
    build::hash(&desired)
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
    fn a_label_of_ours_that_somebody_takes_away_is_noticed_and_what_others_write_is_not() {
        let desired = json!({ "metadata": { "labels": { "ours": "1" }, "annotations": { HASH: "a" } } });
        let live = |labels: &Value, annotations: &Value| -> DynamicObject {
            let metadata = json!({ "name": "a", "uid": "u", "generation": 3, "labels": labels, "annotations": annotations });
            serde_json::from_value(json!({ "metadata": metadata })).unwrap()
        };
        let before = version(&live(&json!({ "ours": "1" }), &json!({ HASH: "a" })), &desired);
        let revision = json!({ HASH: "a", "deployment.kubernetes.io/revision": "7" });
        assert_eq!(version(&live(&json!({ "ours": "1", "theirs": "2" }), &revision), &desired), before);
        assert_ne!(version(&live(&json!({}), &json!({ HASH: "a" })), &desired), before);
        assert_ne!(version(&live(&json!({ "ours": "2" }), &json!({ HASH: "a" })), &desired), before);
        assert_ne!(version(&live(&json!({ "ours": "1" }), &json!({})), &desired), before);
    }

    #[test]
    fn a_volume_that_cannot_grow_is_told_by_the_field_that_asks_for_it() {
        let claim = json!({ "metadata": {}, "spec": { "resources": { "requests": { "storage": "1Gi" } } } });
        let claim: DynamicObject = serde_json::from_value(claim).unwrap();
        let refused = "only dynamically provisioned pvc can be resized";
        for code in [403, 422] {
            let error = fixed(&VOLUME_CLAIM, Some(&claim), Error::refusal(code, refused));
            assert!(error.is_stalled());
            let told = "the volume of the managed Redis cannot be changed: only dynamically provisioned pvc can be resized; set \
                        spec.redis.managed.storage.size back to 1Gi, or have the volume's StorageClass allow it to grow";
            assert_eq!(error.to_string(), told);
        }
        let no_right = Error::refusal(403, "User \"x\" cannot patch resource \"persistentvolumeclaims\"");
        assert!(!fixed(&VOLUME_CLAIM, Some(&claim), no_right).is_stalled(), "a right may still be given");
        assert!(
            !fixed(&VOLUME_CLAIM, None, Error::refusal(403, "exceeded quota")).is_stalled(),
            "there is none yet"
        );
    }
}
