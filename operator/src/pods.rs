//! The worker pods of all queues: as much of each as anybody here needs to know, and not a byte more of thousands.
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use futures::StreamExt;
use futures::channel::mpsc::UnboundedSender;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::core::{ApiResource, GroupVersionKind, Object};
use kube::runtime::WatchStreamExt;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt};
use serde::{Deserialize, Serialize};

use crate::api::v1alpha1::JobQueue;
use crate::controller::{MANAGED_BY, QUEUE_LABEL};
use crate::rescue::{self, Death};

/// A worker pod.
pub type Pod = Object<PodSpec, PodStatus>;

/// What it was told.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpec {
    /// Where it runs; nowhere yet: `None`.
    pub node_name: Option<String>,
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

/// What a container does, or how it ended.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerState {
    /// It runs.
    pub running: Option<Running>,
    /// It ended.
    pub terminated: Option<Terminated>,
}

/// Since when a container runs.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct Running {
    /// By its node's clock, in whole seconds.
    pub started_at: Option<Time>,
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
pub struct Pods(Arc<Mutex<HashMap<ObjectRef<JobQueue>, Workers>>>);

#[derive(Default)]
struct Workers {
    pods: HashMap<String, Pod>,
    changed: Option<Instant>,
}

impl Pods {
    /// Those of one queue, and when the last of them came or went.
    pub fn of(&self, queue: &ObjectRef<JobQueue>) -> (Vec<Pod>, Option<Instant>) {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(queue)
            .map_or((Vec::new(), None), |workers| (workers.pods.values().cloned().collect(), workers.changed))
    }

    /// A pod by its uid.
    pub fn find(&self, queue: &ObjectRef<JobQueue>, uid: &str) -> Option<Pod> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(queue)?.pods.get(uid).cloned()
    }

    /// Notes how a pod is; answers how it was.
    fn apply(&self, pod: Pod) -> Option<Pod> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let workers = all.entry(queue_of(&pod)).or_default();
        let earlier = workers.pods.insert(pod.uid().unwrap_or_default(), pod);
        if earlier.is_none() {
            workers.changed = Some(Instant::now());
        }
        earlier
    }

    /// Notes that a pod is gone.
    fn remove(&self, pod: &Pod) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let queue = queue_of(pod);
        let Some(workers) = all.get_mut(&queue) else { return };
        workers.pods.remove(&pod.uid().unwrap_or_default());
        workers.changed = Some(Instant::now());
        if workers.pods.is_empty() {
            all.remove(&queue);
        }
    }

    /// Those of a namespace, or all, but for these.
    fn others(&self, space: Option<&String>, seen: &HashSet<String>) -> Vec<Pod> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let here = all.iter().filter(|(queue, _)| space.is_none() || queue.namespace.as_ref() == space);
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
    let mut listed = HashSet::new();
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(pod)) => {
                listed.insert(pod.uid().unwrap_or_default());
                applied(&pods, pod, &deaths);
            }
            // Who was there before the list and is not in it went while nobody looked.
            Ok(Event::InitDone) => {
                for pod in pods.others(space.as_ref(), &listed) {
                    removed(&client, &pods, &pod, &deaths);
                }
            }
            Ok(Event::Apply(pod)) => applied(&pods, pod, &deaths),
            Ok(Event::Delete(pod)) => removed(&client, &pods, &pod, &deaths),
            Err(error) => tracing::debug!(error = %error, "Could not watch the worker pods"),
        }
    }
}

fn applied(pods: &Pods, mut pod: Pod, deaths: &UnboundedSender<Death>) {
    pod.metadata.managed_fields = None;
    let now = rescue::deaths(&pod);
    let earlier = pods.apply(pod).map(|earlier| rescue::deaths(&earlier)).unwrap_or_default();
    for death in now.into_iter().filter(|death| !earlier.contains(death)) {
        // Whoever listened is gone only when the process ends.
        let _ = deaths.unbounded_send(death);
    }
}

fn removed(client: &Client, pods: &Pods, pod: &Pod, deaths: &UnboundedSender<Death>) {
    pods.remove(pod);
    tokio::spawn(rescue::removed(client.clone(), pod.clone(), deaths.clone()));
}
