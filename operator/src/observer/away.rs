//! What cannot be reached: asked once a round, not once a queue. A dead node answers nobody, and finding that out takes
//! seconds, for which every other queue of its Redis waits.
use std::collections::HashMap;
use std::sync::Arc;

use jobqueue::connect::ConnectError;
use jobqueue::store::StoreError;
use kube::runtime::reflector::ObjectRef;

use super::{Sessions, Target, Trouble};
use crate::api::v1alpha1::JobQueue;

/// The nodes of one Redis that did not answer. A plain one has a single node, without a name here; a Cluster's are told
/// apart, because a dead one says nothing of the others.
#[derive(Default)]
pub(super) struct Away {
    /// In this round.
    nodes: HashMap<String, Trouble>,
    /// On which node a queue was when it could last not be reached: its session may never have stood.
    failed_at: HashMap<ObjectRef<JobQueue>, String>,
    rounds: usize,
}

impl Away {
    /// Begins a round in which everything may be there again, with another queue than the last one: that the first of a node
    /// cannot be reached must not speak for one whose slots have moved since.
    pub(super) fn begin(&mut self, queues: &mut [(ObjectRef<JobQueue>, Arc<Target>)]) {
        self.nodes.clear();
        self.failed_at.retain(|queue, _| queues.iter().any(|(known, _)| known == queue));
        self.rounds = self.rounds.wrapping_add(1);
        if !queues.is_empty() {
            queues.sort_by(|(one, _), (other, _)| {
                (&one.namespace, &one.name).cmp(&(&other.namespace, &other.name))
            });
            queues.rotate_left(self.rounds % queues.len());
        }
    }

    /// Whether anything could not be reached in this round.
    pub(super) fn is_some(&self) -> bool {
        !self.nodes.is_empty()
    }

    /// Why a queue cannot be reached, if that is known.
    pub(super) fn of(
        &self,
        queue: &ObjectRef<JobQueue>,
        target: &Target,
        sessions: &Sessions,
    ) -> Option<Trouble> {
        if !target.is_on_cluster() {
            return self.nodes.get("").cloned();
        }
        let sessions = target.shards.iter().filter_map(|shard| sessions.get(&target.place(shard)));
        let connected = sessions.filter_map(|session| session.node());
        let failed = self.failed_at.get(queue).map(String::as_str);
        connected.chain(failed).find_map(|node| self.nodes.get(node)).cloned()
    }

    /// Notes how it went with a queue.
    pub(super) async fn note(
        &mut self,
        queue: &ObjectRef<JobQueue>,
        target: &Target,
        sessions: &mut Sessions,
        error: Option<&StoreError>,
    ) {
        self.failed_at.remove(queue);
        let again = match error {
            // Its node may be gone, or the queue's own answer was one that we do not take.
            Some(StoreError::Lost(_)) => reconnect(target, sessions).await,
            _ => Ok(()),
        };
        let Some(error @ StoreError::Connect(why)) = again.as_ref().err().or(error) else { return };
        let trouble = Trouble::from(error);
        if !target.is_on_cluster() {
            self.nodes.insert(String::new(), trouble);
        } else if let ConnectError::Unreachable { address, .. } = why {
            self.nodes.insert(address.clone(), trouble);
            self.failed_at.insert(queue.clone(), address.clone());
        }
    }
}

/// Connects those sessions of a queue again that do not stand any more.
async fn reconnect(target: &Target, sessions: &mut Sessions) -> Result<(), StoreError> {
    for shard in &target.shards {
        if let Some(session) = sessions.get_mut(&target.place(shard)) {
            session.connect().await?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use jobqueue::config::Config;
    use serde_json::json;

    use super::*;
    use crate::observer::Asked;

    fn queues(redis: &serde_json::Value) -> Vec<(ObjectRef<JobQueue>, Arc<Target>)> {
        let one = |name: &str| {
            let queue = JobQueue::new(name, serde_json::from_value(json!({})).unwrap());
            let config = Config::from_value(json!({ "redis": redis })).unwrap().config;
            let target = Target::new(&config, &queue, format!("c/n/{name}/u"), Asked::default());
            (ObjectRef::from_obj(&queue), Arc::new(target))
        };
        ["a", "b", "c"].map(one).into()
    }

    fn unreachable(address: &str) -> StoreError {
        StoreError::Connect(ConnectError::Unreachable { address: address.into(), reason: "timed out".into() })
    }

    /// Which queues a round looks at when each of these is on this node, and which of the nodes are dead.
    async fn asked(
        away: &mut Away,
        redis: &serde_json::Value,
        on: &[(&str, &str)],
        dead: &[&str],
    ) -> Vec<String> {
        let mut round = queues(redis);
        away.begin(&mut round);
        let mut asked = Vec::new();
        for (queue, target) in round {
            if away.of(&queue, &target, &Sessions::new()).is_some() {
                continue;
            }
            let node = on.iter().find(|(name, _)| *name == queue.name).map_or("", |(_, node)| *node);
            let error = dead.contains(&node).then(|| unreachable(node));
            away.note(&queue, &target, &mut Sessions::new(), error.as_ref()).await;
            asked.push(queue.name);
        }
        asked
    }

    #[tokio::test]
    async fn a_redis_that_does_not_answer_is_asked_once_a_round() {
        let mut away = Away::default();
        let plain = json!({ "addr": "one:6379" });
        let on = [("a", "one"), ("b", "one"), ("c", "one")];
        for _ in 0..3 {
            assert_eq!(asked(&mut away, &plain, &on, &["one"]).await.len(), 1);
        }
        assert_eq!(asked(&mut away, &plain, &on, &[]).await.len(), 3);
    }

    #[tokio::test]
    async fn a_dead_node_of_a_cluster_is_asked_once_a_round_and_the_others_are_not_held_up() {
        let mut away = Away::default();
        let cluster = json!({ "cluster": true, "addr": "one:6379" });
        let on = [("a", "one"), ("b", "two"), ("c", "one")];
        assert_eq!(asked(&mut away, &cluster, &on, &["one"]).await.len(), 3, "who is where is not known yet");
        let mut first = Vec::new();
        for _ in 0..4 {
            let round = asked(&mut away, &cluster, &on, &["one"]).await;
            assert_eq!(round.len(), 2, "{round:?}");
            assert!(round.contains(&"b".to_owned()));
            first.extend(round.into_iter().find(|name| name != "b"));
        }
        assert!(first.contains(&"a".to_owned()) && first.contains(&"c".to_owned()), "in turn: {first:?}");
        // Its slots have gone to another node.
        let on = [("a", "two"), ("b", "two"), ("c", "two")];
        assert_eq!(asked(&mut away, &cluster, &on, &["one"]).await.len(), 3);
    }
}
