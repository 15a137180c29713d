//! What pods tell about the processes in them: which are certainly dead, since when, and why. Whatever is not certain is
//! left to the heartbeat: a process on a node that is merely cut off lives, and goes on with its jobs.
use std::collections::HashSet;
use std::time::Duration;

use futures::channel::mpsc::UnboundedSender;
use jobqueue::outcome::OUT_OF_MEMORY;
use kube::api::ListParams;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, Client, ResourceExt};

use crate::api::v1alpha1::JobQueue;
use crate::nodes::{self, Node};
use crate::pods::{ContainerState, ContainerStatus, Pod, Pods, Terminated, queue_of, resource};

/// A kubelet that is well has stopped a pod's containers this long after the pod was removed by force.
const KUBELET: Duration = Duration::from_secs(2);
/// How long to wait between questions that are not answered.
const WAITS: &[Duration] =
    &[Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(5), Duration::from_secs(20)];

/// Processes that are certainly dead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Death {
    /// The `JobQueue` that they worked for.
    pub queue: ObjectRef<JobQueue>,
    /// Their pod.
    pub pod_uid: String,
    /// Those that started before this moment, by their node's clock.
    pub before_ms: u64,
    /// In a word, recorded in their jobs.
    pub cause: &'static str,
    /// Whether it is the app beside the worker that died: the worker itself goes on, and is told.
    pub app: bool,
}

/// What the statuses of a pod's containers prove. Pure.
pub fn deaths(pod: &Pod) -> Vec<Death> {
    let Some(status) = &pod.status else { return Vec::new() };
    let over = matches!(status.phase.as_str(), "Failed" | "Succeeded");
    let worker = status.container_statuses.iter().find(|one| one.name == "worker");
    let app = status.init_container_statuses.iter().find(|one| one.name == "app");
    let mut deaths = Vec::new();
    if over {
        // An evicted pod may have lost the statuses of its containers; its end is certain all the same.
        let ended = worker.and_then(ended).cloned().unwrap_or_default();
        deaths.push(death(pod, u64::MAX, cause(pod, &ended), false));
    } else if let Some(ended) = worker.and_then(ended) {
        // Whole seconds: what began in the second in which its predecessor ended is not touched. When its successor was
        // started would say more, but is noted after the fact, by when that one may be at work.
        let finished = ended.finished_at.as_ref().map_or(0, |at| at.0.as_second());
        deaths.push(death(pod, millis(finished), cause(pod, ended), false));
    }
    if let (false, Some((app, ended))) = (over, app.and_then(|app| Some((app, ended(app)?)))) {
        // The number keeps one end apart from the next, which may come in the same second.
        let before = millis(ended.finished_at.as_ref().map_or(0, |at| at.0.as_second()));
        let number = u64::try_from(app.restart_count).unwrap_or(0) % 1000;
        deaths.push(death(pod, before + number, cause(pod, ended), true));
    }
    deaths
}

/// How the last process of a container ended that ended.
fn ended(container: &ContainerStatus) -> Option<&Terminated> {
    let of = |state: &'_ ContainerState| state.terminated.is_some();
    let state = if of(&container.state) { &container.state } else { &container.last_state };
    state.terminated.as_ref()
}

fn death(pod: &Pod, before_ms: u64, cause: &'static str, app: bool) -> Death {
    Death { queue: queue_of(pod), pod_uid: pod.uid().unwrap_or_default(), before_ms, cause, app }
}

fn millis(seconds: i64) -> u64 {
    u64::try_from(seconds).unwrap_or(0).saturating_mul(1000)
}

/// Why a container of a pod ended, in a word. Pure.
fn cause(pod: &Pod, ended: &Terminated) -> &'static str {
    let status = pod.status.clone().unwrap_or_default();
    let disrupted =
        status.conditions.iter().find(|one| one.kind == "DisruptionTarget" && one.status == "True");
    if ended.reason == "OOMKilled" {
        return OUT_OF_MEMORY;
    }
    match disrupted.map(|one| one.reason.as_str()) {
        Some("PreemptionByScheduler") => "preempted",
        Some("DeletionByPodGC" | "DeletionByTaintManager") => "node-lost",
        Some(_) => "evicted",
        None if status.reason == "Evicted" => "evicted",
        None if pod.metadata.deletion_timestamp.is_some() => "deleted",
        None => "crashed",
    }
}

/// Whether the processes of a pod that is gone are certainly dead: as its last status said, or as its node lets us
/// conclude. If neither, the pod is missed: its node may be declared lost later.
pub async fn removed(client: Client, pods: Pods, pod: Pod, deaths: UnboundedSender<Death>) {
    let status = pod.status.clone().unwrap_or_default();
    let over = matches!(status.phase.as_str(), "Failed" | "Succeeded");
    let worker = status.container_statuses.iter().find(|one| one.name == "worker");
    let terminated = worker.and_then(|worker| worker.state.terminated.as_ref());
    let never_ran = pod.spec.node_name.is_none();
    if never_ran {
        return;
    }
    let cause = if over || terminated.is_some() {
        cause(&pod, &terminated.cloned().unwrap_or_default())
    } else {
        tokio::time::sleep(KUBELET).await;
        match confirm(&client, &pod).await {
            Fate::Dead(cause) => cause,
            Fate::There => return,
            Fate::Unknown => return pods.miss(pod),
        }
    };
    let cause = if cause == "crashed" { "deleted" } else { cause };
    let _ = deaths.unbounded_send(death(&pod, u64::MAX, cause, false));
}

/// All processes on a node that is lost are dead.
pub fn lost(pods: &Pods, node: &str, deaths: &UnboundedSender<Death>) {
    for pod in pods.on_node(node) {
        let _ = deaths.unbounded_send(death(&pod, u64::MAX, "node-lost", false));
    }
}

/// Pods that hold lanes of a queue, and that no watch knows: they went while nobody looked, if they are not new.
#[derive(Debug)]
pub struct Unheard {
    /// The `JobQueue` that they worked for.
    pub queue: ObjectRef<JobQueue>,
    /// Their uids.
    pub uids: HashSet<String>,
}

/// Asks for pods that nobody has heard of. Those that are not there are dead: who asks has made sure that every node has
/// done long enough what it is told.
pub async fn ask_for(client: Client, unheard: Unheard, deaths: UnboundedSender<Death>) {
    let Unheard { queue, mut uids } = unheard;
    let namespace = queue.namespace.clone().unwrap_or_default();
    let api: Api<Pod> = Api::namespaced_with(client, &namespace, &resource());
    // By any label: somebody may have taken a pod out of its ReplicaSet to look at it.
    let mut page = ListParams::default().limit(500);
    tokio::time::sleep(KUBELET).await;
    loop {
        let list = match api.list_metadata(&page).await {
            Ok(list) => list,
            // It is asked again as long as its lanes are there.
            Err(error) => {
                return tracing::debug!(error = %error, "Could not ask for pods that nobody has heard of");
            }
        };
        for pod in &list.items {
            uids.remove(&pod.uid().unwrap_or_default());
        }
        match list.metadata.continue_.filter(|more| !more.is_empty()) {
            Some(more) => page = page.continue_token(&more),
            None => break,
        }
    }
    for pod_uid in uids {
        let death =
            Death { queue: queue.clone(), pod_uid, before_ms: u64::MAX, cause: "deleted", app: false };
        let _ = deaths.unbounded_send(death);
    }
}

/// What became of a pod that a watch says is gone.
enum Fate {
    /// Its processes are certainly dead.
    Dead(&'static str),
    /// It is there: the watch has missed something.
    There,
    /// Nobody can tell.
    Unknown,
}

/// Asks for the pod, which a watch may have missed, and for its node.
async fn confirm(client: &Client, pod: &Pod) -> Fate {
    for wait in WAITS {
        match fate(client, pod).await {
            Ok(fate) => return fate,
            // Without the right to ask (namespaced mode) nothing is certain.
            Err(kube::Error::Api(status)) if status.is_forbidden() => return Fate::Unknown,
            Err(error) => tracing::debug!(error = %error, "Could not ask for a pod that is gone"),
        }
        tokio::time::sleep(*wait).await;
    }
    Fate::Unknown
}

async fn fate(client: &Client, pod: &Pod) -> Result<Fate, kube::Error> {
    let api: Api<Pod> =
        Api::namespaced_with(client.clone(), &pod.namespace().unwrap_or_default(), &resource());
    let found = api.get_metadata_opt(&pod.name_any()).await?;
    if found.is_some_and(|found| found.uid() == pod.uid()) {
        return Ok(Fate::There);
    }
    let Some(node) = &pod.spec.node_name else { return Ok(Fate::Unknown) };
    let node = Api::<Node>::all_with(client.clone(), &nodes::resource()).get_opt(node).await?;
    Ok(of_node(node.as_ref()).map_or(Fate::Unknown, Fate::Dead))
}

/// What a node says about the processes of a pod that was removed while it ran. Pure.
fn of_node(node: Option<&Node>) -> Option<&'static str> {
    match node {
        None => Some("node-lost"),
        Some(node) if nodes::is_out_of_service(node) => Some("node-lost"),
        Some(node) => nodes::is_ready(node).then_some("deleted"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A worker pod with this status.
    fn pod(status: &Value) -> Pod {
        let pod = json!({
            "metadata": { "name": "p", "namespace": "n", "uid": "u", "labels": { "jobqueue.dev/queue": "q" } },
            "spec": { "nodeName": "node" }, "status": status,
        });
        serde_json::from_value(pod).unwrap()
    }

    fn terminated(reason: &str) -> Value {
        json!({ "terminated": { "reason": reason, "exitCode": 137, "finishedAt": "2026-11-16T10:00:10Z" } })
    }

    const FINISHED: u64 = 1_794_823_210_000;

    fn said(status: &Value) -> Vec<(u64, &'static str, bool)> {
        deaths(&pod(status)).into_iter().map(|death| (death.before_ms, death.cause, death.app)).collect()
    }

    #[test]
    fn a_running_pod_has_lost_nobody() {
        let running = json!({ "phase": "Running", "containerStatuses": [{ "name": "worker", "state": { "running": { "startedAt": "2026-11-16T10:00:00Z" } } }] });
        assert_eq!(said(&running), []);
    }

    #[test]
    fn a_container_killed_for_memory_proves_its_processes_dead_and_says_why() {
        let killed = json!({ "phase": "Running", "containerStatuses": [{ "name": "worker", "state": terminated("OOMKilled") }] });
        assert_eq!(said(&killed), [(FINISHED, "oom", false)]);
    }

    #[test]
    fn a_container_started_again_proves_its_predecessor_dead_but_not_itself() {
        // What is called its start is when somebody noted it: it has been at work for a moment then.
        let again = json!({ "phase": "Running", "containerStatuses": [{ "name": "worker",
            "state": { "running": { "startedAt": "2026-11-16T10:00:12Z" } }, "lastState": terminated("Error") }] });
        assert_eq!(said(&again), [(FINISHED, "crashed", false)]);
    }

    #[test]
    fn a_terminating_pod_was_deleted_an_evicted_one_evicted() {
        let mut deleted = pod(
            &json!({ "phase": "Running", "containerStatuses": [{ "name": "worker", "state": terminated("Error") }] }),
        );
        deleted.metadata.deletion_timestamp = serde_json::from_value(json!("2026-11-16T10:00:00Z")).unwrap();
        assert_eq!(deaths(&deleted)[0].cause, "deleted");
        let evicted = json!({ "phase": "Failed", "reason": "Evicted" });
        assert_eq!(
            said(&evicted),
            [(u64::MAX, "evicted", false)],
            "also without the statuses of its containers"
        );
        for (reason, cause) in [
            ("PreemptionByScheduler", "preempted"),
            ("EvictionByEvictionAPI", "evicted"),
            ("DeletionByPodGC", "node-lost"),
        ] {
            let disrupted = json!({ "phase": "Failed", "conditions": [{ "type": "DisruptionTarget", "status": "True", "reason": reason }] });
            assert_eq!(said(&disrupted), [(u64::MAX, cause, false)]);
        }
    }

    #[test]
    fn the_death_of_the_app_is_told_apart_from_the_workers() {
        let status = json!({ "phase": "Running",
            "initContainerStatuses": [{ "name": "app", "restartCount": 1, "state": {}, "lastState": terminated("OOMKilled") }],
            "containerStatuses": [{ "name": "worker", "state": { "running": { "startedAt": "2026-11-16T10:00:00Z" } } }] });
        assert_eq!(said(&status), [(FINISHED + 1, "oom", true)]);
    }

    #[test]
    fn a_pod_removed_while_it_ran_is_dead_only_on_a_node_that_is_well_or_gone_for_good() {
        let node = |ready: &str, taint: &str| -> Node {
            let node = json!({ "metadata": { "name": "one" }, "spec": { "taints": [{ "key": taint }] },
                "status": { "conditions": [{ "type": "Ready", "status": ready }] } });
            serde_json::from_value(node).unwrap()
        };
        assert_eq!(of_node(Some(&node("True", ""))), Some("deleted"));
        assert_eq!(
            of_node(Some(&node("Unknown", "node.kubernetes.io/unreachable"))),
            None,
            "cut off: it may live"
        );
        assert_eq!(of_node(Some(&node("Unknown", "node.kubernetes.io/out-of-service"))), Some("node-lost"));
        assert_eq!(of_node(None), Some("node-lost"));
    }
}
