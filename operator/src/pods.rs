//! The worker pods of all queues: as much of each as anybody here needs to know, and not a byte more of thousands.
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::channel::mpsc::UnboundedSender;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::core::{ApiResource, GroupVersionKind, Object};
use kube::runtime::WatchStreamExt;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt};
use serde::{Deserialize, Serialize};

use crate::api::v1alpha1::JobQueue;
use crate::controller::{MANAGED_BY, QUEUE_LABEL};
use crate::drain::{COST, DRAINING, TEMPLATE};
use crate::nodes::Standing;
use crate::refusals::Refusals;
use crate::rescue::{self, Death};

/// For this long something may be learnt about pods that are gone; then the heartbeat has told it anyway.
const MISSED: Duration = Duration::from_secs(900);
/// An app that died longer ago than this needs no explanation any more.
const RECENTLY_MS: u64 = 30_000;

/// What is read of a pod's conditions.
const CONDITIONS: &[&str] = &["Ready", "DisruptionTarget"];

/// A worker pod.
pub type Pod = Object<PodSpec, PodStatus>;

/// What it was told.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpec {
    /// Where it runs; nowhere yet: `None`.
    pub node_name: Option<String>,
    /// What starts before the worker, and the app that goes on beside it.
    pub init_containers: Vec<InitContainer>,
}

/// What starts before the worker.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct InitContainer {
    /// Its name.
    pub name: String,
    /// `Always`: it goes on beside the worker, a sidecar.
    pub restart_policy: String,
}

/// How it fares.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct PodStatus {
    /// `Pending`, `Running`, `Succeeded`, `Failed` or `Unknown`.
    pub phase: String,
    /// Why, in a word: `Evicted`.
    pub reason: String,
    /// What is true of it.
    pub conditions: Vec<PodCondition>,
    /// The worker.
    pub container_statuses: Vec<ContainerStatus>,
    /// The app beside it.
    pub init_container_statuses: Vec<ContainerStatus>,
}

/// Something that is true of a pod.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct PodCondition {
    /// `Ready`, `DisruptionTarget`, ...
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// Why, in a word.
    pub reason: String,
    /// Since when.
    pub last_transition_time: Option<Time>,
}

/// How a container fares.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerStatus {
    /// Its name.
    pub name: String,
    /// How often it was started again.
    pub restart_count: i32,
    /// Now.
    pub state: ContainerState,
    /// Before it was started again.
    pub last_state: ContainerState,
}

/// Whether a container has ended, and how.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerState {
    /// It ended.
    pub terminated: Option<Terminated>,
}

/// How a container ended.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct Terminated {
    /// `OOMKilled`, `Error`, `Completed`, ...
    pub reason: String,
    /// By its node's clock, in whole seconds.
    pub finished_at: Option<Time>,
}

/// The kind, for the API.
pub fn resource() -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("", "v1", "Pod"), "pods")
}

/// Whether a condition of the pod holds.
pub fn has(pod: &Pod, condition: &str) -> bool {
    let conditions = pod.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    conditions.iter().any(|one| one.kind == condition && one.status == "True")
}

/// The `JobQueue` that a pod works for.
pub fn queue_of(pod: &Pod) -> ObjectRef<JobQueue> {
    let name = pod.labels().get(QUEUE_LABEL).map(String::as_str).unwrap_or_default();
    ObjectRef::new(name).within(&pod.namespace().unwrap_or_default())
}

/// All worker pods that are there.
#[derive(Clone, Default)]
pub struct Pods(Arc<Mutex<Known>>);

#[derive(Default)]
struct Known {
    queues: HashMap<ObjectRef<JobQueue>, Workers>,
    /// The namespaces whose pods have all been listed once; `None`: all of them.
    listed: HashSet<Option<String>>,
    /// What can be concluded about the processes on each node, and whether all nodes have been listed once.
    nodes: HashMap<String, Standing>,
    all_nodes: bool,
    /// Pods that are gone, and since when, of whose processes nobody could tell whether they live.
    missing: HashMap<String, (Pod, Instant)>,
}

#[derive(Default)]
struct Workers {
    pods: HashMap<String, Pod>,
    changed: Option<Instant>,
}

impl Pods {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those of one queue, and when the last of them came, was told to go, or went; nothing before all pods have been
    /// listed once.
    pub fn of(&self, queue: &ObjectRef<JobQueue>) -> Option<(Vec<Pod>, Option<Instant>)> {
        let known = self.known();
        if !known.listed.contains(&None) && !known.listed.contains(&queue.namespace) {
            return None;
        }
        let workers = known.queues.get(queue);
        Some(workers.map_or((Vec::new(), None), |workers| {
            (workers.pods.values().cloned().collect(), workers.changed)
        }))
    }

    /// A pod by its uid.
    pub fn find(&self, queue: &ObjectRef<JobQueue>, uid: &str) -> Option<Pod> {
        self.known().queues.get(queue)?.pods.get(uid).cloned()
    }

    /// Those that run on a node, or ran there when they went missing.
    pub fn on_node(&self, node: &str) -> Vec<Pod> {
        let known = self.known();
        let there = known.queues.values().flat_map(|workers| workers.pods.values());
        let all = there.chain(known.missing.values().map(|(pod, _)| pod));
        all.filter(|pod| pod.spec.node_name.as_deref() == Some(node)).cloned().collect()
    }

    /// Notes what can be concluded about the processes on a node, or that it is gone: its pods may be heard of later.
    pub fn note_node(&self, node: &str, standing: Option<Standing>) {
        let mut known = self.known();
        match standing {
            Some(standing) => known.nodes.insert(node.to_owned(), standing),
            None => known.nodes.remove(node),
        };
    }

    /// Notes that all nodes have been listed.
    pub fn note_all_nodes(&self) {
        self.known().all_nodes = true;
    }

    /// Which of these are the uids of no pod, if whatever was removed before this moment is certainly dead: every node does
    /// what it is told since then. One that was cut off when a pod went, and has come back, gives the pod its time to stop.
    pub fn unheard_of<'a>(
        &self,
        queue: &ObjectRef<JobQueue>,
        uids: impl Iterator<Item = &'a String>,
        moment: Timestamp,
    ) -> HashSet<String> {
        let known = self.known();
        let listed = known.listed.contains(&None) || known.listed.contains(&queue.namespace);
        let is_well = |standing: &Standing| match standing {
            Standing::OutOfService => true,
            Standing::Well(since) => *since <= moment,
            Standing::Unknown => false,
        };
        if !listed || !known.all_nodes || !known.nodes.values().all(is_well) {
            return HashSet::new();
        }
        let pods = known.queues.get(queue).map(|workers| &workers.pods);
        uids.filter(|uid| pods.is_none_or(|pods| !pods.contains_key(*uid))).cloned().collect()
    }

    /// Tells of those on nodes that are out of service, when all pods have been listed.
    fn tell_lost(&self, deaths: &UnboundedSender<Death>) {
        let nodes = self.known().nodes.clone();
        for (node, _) in nodes.iter().filter(|(_, standing)| **standing == Standing::OutOfService) {
            rescue::lost(self, node, deaths);
        }
    }

    /// Notes that nobody can tell whether the processes of a pod that is gone live: their node may.
    pub fn miss(&self, pod: Pod) {
        let mut known = self.known();
        known.missing.retain(|_, (_, since)| since.elapsed() < MISSED);
        known.missing.insert(pod.uid().unwrap_or_default(), (pod, Instant::now()));
    }

    /// Notes how a pod is; answers how it was.
    fn apply(&self, pod: Pod) -> Option<Pod> {
        let mut known = self.known();
        let workers = known.queues.entry(queue_of(&pod)).or_default();
        let goes = |pod: &Pod| pod.metadata.deletion_timestamp.is_some();
        let now = goes(&pod);
        let earlier = workers.pods.insert(pod.uid().unwrap_or_default(), pod);
        if earlier.as_ref().map(goes) != Some(now) {
            workers.changed = Some(Instant::now());
        }
        earlier
    }

    /// Notes that a pod is gone.
    fn remove(&self, pod: &Pod) {
        let mut known = self.known();
        let queue = queue_of(pod);
        let Some(workers) = known.queues.get_mut(&queue) else { return };
        workers.pods.remove(&pod.uid().unwrap_or_default());
        workers.changed = Some(Instant::now());
        if workers.pods.is_empty() {
            known.queues.remove(&queue);
        }
    }

    /// Those of a namespace, or all, but for these.
    fn others(&self, space: Option<&String>, seen: &HashSet<String>) -> Vec<Pod> {
        let known = self.known();
        let here =
            known.queues.iter().filter(|(queue, _)| space.is_none() || queue.namespace.as_ref() == space);
        let pods = here.flat_map(|(_, workers)| workers.pods.iter());
        pods.filter(|(uid, _)| !seen.contains(*uid)).map(|(_, pod)| pod.clone()).collect()
    }
}

/// Follows the worker pods of a namespace, or of all, and tells of deaths.
pub async fn watch(client: Client, space: Option<String>, pods: Pods, deaths: UnboundedSender<Death>) {
    let api: Api<Pod> = match &space {
        Some(space) => Api::namespaced_with(client.clone(), space, &resource()),
        None => Api::all_with(client.clone(), &resource()),
    };
    let ours = format!("app.kubernetes.io/managed-by={MANAGED_BY},app.kubernetes.io/component=worker");
    let config = watcher::Config::default().labels(&ours).page_size(500);
    let mut events = watcher(api, config).default_backoff().boxed();
    let (mut listed, mut refusals) = (HashSet::new(), Refusals::default());
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(pod)) => {
                listed.insert(pod.uid().unwrap_or_default());
                // Ends of apps that nobody was there to hear of would explain the next one.
                let now_ms = u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or(0);
                applied(&pods, pod, &deaths, now_ms.saturating_sub(RECENTLY_MS));
            }
            // Who was there before the list and is not in it went while nobody looked.
            Ok(Event::InitDone) => {
                for pod in pods.others(space.as_ref(), &listed) {
                    removed(&client, &pods, &pod, &deaths);
                }
                pods.known().listed.insert(space.clone());
                pods.tell_lost(&deaths);
            }
            Ok(Event::Apply(pod)) => applied(&pods, pod, &deaths, 0),
            Ok(Event::Delete(pod)) => removed(&client, &pods, &trimmed(pod), &deaths),
            Err(error) => refusals.note(
                "worker pods",
                "workers never scale in, and jobs of dead ones wait for the heartbeat",
                &error,
            ),
        }
    }
}

/// A pod without what nobody here reads: most of what the API server says of it.
fn trimmed(pod: Pod) -> Pod {
    fn only(all: Option<BTreeMap<String, String>>, wanted: &[&str]) -> Option<BTreeMap<String, String>> {
        all.map(|all| all.into_iter().filter(|(name, _)| wanted.contains(&name.as_str())).collect())
    }
    let Pod { types: _, metadata, spec, mut status } = pod;
    let ObjectMeta {
        name, namespace, uid, creation_timestamp, deletion_timestamp, labels, annotations, ..
    } = metadata;
    if let Some(status) = &mut status {
        status.conditions.retain(|one| CONDITIONS.contains(&one.kind.as_str()));
    }
    let metadata = ObjectMeta {
        name,
        namespace,
        uid,
        creation_timestamp,
        deletion_timestamp,
        labels: only(labels, &[QUEUE_LABEL, TEMPLATE]),
        annotations: only(annotations, &[DRAINING, COST]),
        ..ObjectMeta::default()
    };
    Pod { types: None, metadata, spec, status }
}

/// Notes how a pod is, and tells what it says of deaths: of apps only since this moment.
fn applied(pods: &Pods, pod: Pod, deaths: &UnboundedSender<Death>, apps_since_ms: u64) {
    let pod = trimmed(pod);
    let now = rescue::deaths(&pod);
    let earlier = pods.apply(pod).map(|earlier| rescue::deaths(&earlier)).unwrap_or_default();
    let is_new = |death: &Death| !earlier.contains(death) && (!death.app || death.before_ms >= apps_since_ms);
    for death in now.into_iter().filter(is_new) {
        // Whoever listened is gone only when the process ends.
        let _ = deaths.unbounded_send(death);
    }
}

fn removed(client: &Client, pods: &Pods, pod: &Pod, deaths: &UnboundedSender<Death>) {
    pods.remove(pod);
    tokio::spawn(rescue::removed(client.clone(), pods.clone(), pod.clone(), deaths.clone()));
}

#[cfg(test)]
mod tests {
    use futures::channel::mpsc::unbounded;
    use serde_json::{Value, json};

    use super::*;

    /// A worker pod of the queue q on a node.
    fn pod(uid: &str, node: &str, status: &Value) -> Pod {
        let pod = json!({
            "metadata": { "name": uid, "namespace": "n", "uid": uid, "labels": { "jobqueue.dev/queue": "q" } },
            "spec": { "nodeName": node }, "status": status,
        });
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn of_a_pod_no_more_is_kept_than_is_read() {
        let whole = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": "a", "namespace": "n", "uid": "u", "resourceVersion": "7", "generateName": "a-",
                "creationTimestamp": "2026-11-16T10:00:00Z", "deletionTimestamp": "2026-11-16T10:00:10Z",
                "labels": { QUEUE_LABEL: "q", TEMPLATE: "t", "team": "x" },
                "annotations": { DRAINING: "1", COST: "-1", "a-sidecar.example/config": "{}" },
                "ownerReferences": [{ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "o" }],
                "finalizers": ["f"], "managedFields": [{ "manager": "m" }],
            },
            "spec": { "nodeName": "one" },
            "status": { "conditions": [
                { "type": "Ready", "status": "True" }, { "type": "PodScheduled", "status": "True" }] },
        });
        let kept = trimmed(serde_json::from_value(whole).unwrap());
        let kept = serde_json::to_value(&kept).unwrap();
        assert_eq!(
            kept["metadata"],
            json!({
                "name": "a", "namespace": "n", "uid": "u",
                "creationTimestamp": "2026-11-16T10:00:00Z", "deletionTimestamp": "2026-11-16T10:00:10Z",
                "labels": { QUEUE_LABEL: "q", TEMPLATE: "t" }, "annotations": { DRAINING: "1", COST: "-1" },
            })
        );
        assert_eq!(kept["status"]["conditions"].as_array().unwrap().len(), 1);
        assert_eq!(kept["spec"]["nodeName"], "one");
    }

    #[test]
    fn nobody_is_known_before_all_were_listed() {
        let (pods, queue) = (Pods::default(), ObjectRef::new("q").within("n"));
        pods.apply(pod("a", "one", &json!({})));
        assert!(pods.of(&queue).is_none(), "there may be others");
        pods.known().listed.insert(Some("elsewhere".into()));
        assert!(pods.of(&queue).is_none());
        pods.known().listed.insert(Some("n".into()));
        assert_eq!(pods.of(&queue).unwrap().0.len(), 1);
    }

    #[test]
    fn pods_are_in_motion_while_they_come_are_told_to_go_and_go() {
        let (pods, queue) = (Pods::default(), ObjectRef::new("q").within("n"));
        pods.known().listed.insert(None);
        let changed = || pods.of(&queue).unwrap().1;
        let one = pod("a", "one", &json!({}));
        pods.apply(one.clone());
        let came = changed();
        pods.apply(one.clone());
        assert_eq!(changed(), came, "it is as it was");
        let mut going = one;
        going.metadata.deletion_timestamp = Some(Time(jiff::Timestamp::UNIX_EPOCH));
        pods.apply(going.clone());
        assert!(changed() > came);
    }

    #[test]
    fn a_node_has_lost_also_those_that_were_missing() {
        let pods = Pods::default();
        pods.apply(pod("a", "one", &json!({})));
        pods.apply(pod("b", "two", &json!({})));
        pods.miss(pod("c", "one", &json!({})));
        let mut lost: Vec<String> = pods.on_node("one").iter().map(ResourceExt::name_any).collect();
        lost.sort();
        assert_eq!(lost, ["a", "c"]);
    }

    #[test]
    fn a_node_that_was_heard_of_before_its_pods_has_lost_them_too() {
        let (pods, (to, mut deaths)) = (Pods::default(), unbounded());
        pods.note_node("one", Some(Standing::OutOfService));
        pods.note_node("two", Some(Standing::OutOfService));
        pods.note_node("two", None);
        pods.apply(pod("a", "one", &json!({})));
        pods.apply(pod("b", "two", &json!({})));
        pods.tell_lost(&to);
        let told: Vec<_> = std::iter::from_fn(|| deaths.try_recv().ok()).collect();
        assert_eq!(
            told.iter().map(|death| (death.pod_uid.as_str(), death.cause)).collect::<Vec<_>>(),
            [("a", "node-lost")]
        );
    }

    #[test]
    fn nothing_is_concluded_about_a_pod_nobody_knows_while_a_node_may_keep_its_processes() {
        let (pods, queue) = (Pods::default(), ObjectRef::new("q").within("n"));
        let at = |second| Timestamp::from_second(second).unwrap();
        let uids = ["a".to_owned(), "gone".to_owned()];
        let unheard_of = || pods.unheard_of(&queue, uids.iter(), at(100)).into_iter().collect::<Vec<_>>();
        pods.apply(pod("a", "one", &json!({})));
        pods.note_node("one", Some(Standing::Well(at(100))));
        assert!(unheard_of().is_empty(), "there may be pods");
        pods.known().listed.insert(None);
        assert!(unheard_of().is_empty(), "and nodes");
        pods.note_all_nodes();
        assert_eq!(unheard_of(), ["gone"]);
        for (standing, concluded) in [
            (Some(Standing::Well(at(101))), false),
            (Some(Standing::Unknown), false),
            (Some(Standing::OutOfService), true),
            (None, true),
        ] {
            pods.note_node("two", standing);
            assert_eq!(!unheard_of().is_empty(), concluded, "{standing:?}");
        }
    }

    #[test]
    fn of_ends_of_apps_before_anybody_listened_only_recent_ones_are_told() {
        let ended = json!({ "phase": "Running", "initContainerStatuses": [{ "name": "app", "restartCount": 1,
            "lastState": { "terminated": { "reason": "OOMKilled", "finishedAt": "2026-11-16T10:00:10Z" } } }] });
        for (since, told) in [(0, 1), (1_900_000_000_000, 0)] {
            let (to, mut deaths) = unbounded();
            applied(&Pods::default(), pod("a", "one", &ended), &to, since);
            assert_eq!(std::iter::from_fn(|| deaths.try_recv().ok()).count(), told);
        }
    }
}
