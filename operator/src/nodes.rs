//! The nodes that workers run on: as much of each as it takes to know that it is lost.
use std::collections::HashSet;
use std::time::Duration;

use futures::StreamExt;
use futures::channel::mpsc::UnboundedSender;
use jiff::Timestamp;
use kube::core::{ApiResource, GroupVersionKind, Object};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt};
use serde::{Deserialize, Serialize};

use crate::pods::{PodCondition, Pods};
use crate::refusals::Refusals;
use crate::rescue::{self, Death};

/// What an administrator says of a node that is certainly down.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
/// How often it is asked whether a node is really gone, and how long to wait in between.
const QUESTIONS: u32 = 30;
const BETWEEN: Duration = Duration::from_secs(1);

/// A node.
pub type Node = Object<NodeSpec, NodeStatus>;

/// What is said of it.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(default)]
pub struct NodeSpec {
    /// What keeps pods away from it.
    pub taints: Vec<Taint>,
}

/// What keeps pods away from a node.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(default)]
pub struct Taint {
    /// Its name.
    pub key: String,
}

/// How it fares.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(default)]
pub struct NodeStatus {
    /// What is true of it.
    pub conditions: Vec<PodCondition>,
}

/// What can be concluded about the processes on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Somebody has said that none of them runs any more.
    OutOfService,
    /// Its kubelet does what it is told, since then.
    Well(Timestamp),
    /// Nothing.
    Unknown,
}

/// What can be concluded about the processes on a node. Pure.
pub fn standing(node: &Node) -> Standing {
    if is_out_of_service(node) {
        return Standing::OutOfService;
    }
    let ready =
        node.status.as_ref().and_then(|status| status.conditions.iter().find(|one| one.kind == "Ready"));
    match ready {
        Some(PodCondition { status, last_transition_time: Some(since), .. }) if status == "True" => {
            Standing::Well(since.0)
        }
        _ => Standing::Unknown,
    }
}

/// The kind, for the API.
pub fn resource() -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("", "v1", "Node"), "nodes")
}

/// Whether somebody has said that nothing runs there any more.
pub fn is_out_of_service(node: &Node) -> bool {
    node.spec.taints.iter().any(|taint| taint.key == OUT_OF_SERVICE)
}

/// Whether its kubelet is well.
pub fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    conditions.iter().any(|one| one.kind == "Ready" && one.status == "True")
}

/// Follows the nodes and tells of those that are lost: what ran there is dead, long before their pods are removed. Without
/// the right to look at nodes (namespaced mode) nothing is told.
pub async fn watch(client: Client, pods: Pods, deaths: UnboundedSender<Death>) {
    let api: Api<Node> = Api::all_with(client, &resource());
    let mut events =
        watcher(api.clone(), watcher::Config::default().page_size(500)).default_backoff().boxed();
    let (mut known, mut listed, mut refusals) = (HashSet::new(), HashSet::new(), Refusals::default());
    while let Some(event) = events.next().await {
        let mut gone = Vec::new();
        match event {
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(node)) => {
                tell(&pods, &node, &deaths);
                listed.insert(node.name_any());
            }
            Ok(Event::InitDone) => {
                gone.extend(known.difference(&listed).cloned());
                for node in &gone {
                    pods.note_node(node, None);
                }
                known.clone_from(&listed);
                pods.note_all_nodes();
            }
            Ok(Event::Apply(node)) => {
                tell(&pods, &node, &deaths);
                known.insert(node.name_any());
            }
            Ok(Event::Delete(node)) => {
                pods.note_node(&node.name_any(), None);
                known.remove(&node.name_any());
                gone.push(node.name_any());
            }
            Err(error) => {
                refusals.note("nodes", "jobs of a node that is lost wait for the heartbeat", &error);
            }
        }
        for node in gone {
            tokio::spawn(confirm(api.clone(), node, pods.clone(), deaths.clone()));
        }
    }
}

fn tell(pods: &Pods, node: &Node, deaths: &UnboundedSender<Death>) {
    pods.note_node(&node.name_any(), Some(standing(node)));
    if is_out_of_service(node) {
        rescue::lost(pods, &node.name_any(), deaths);
    }
}

/// A watch may have missed that it is there again.
async fn confirm(api: Api<Node>, node: String, pods: Pods, deaths: UnboundedSender<Death>) {
    for _ in 0..QUESTIONS {
        match api.get_metadata_opt(&node).await {
            Ok(None) => return rescue::lost(&pods, &node, &deaths),
            Ok(Some(_)) => return,
            Err(error) => tracing::debug!(error = %error, "Could not ask for a node that is gone"),
        }
        tokio::time::sleep(BETWEEN).await;
    }
}
