//! Carries out what the observer wishes for: more workers at once, fewer only as it was planned.
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::channel::mpsc::UnboundedReceiver;
use kube::Api;
use kube::api::{Patch, PatchParams};
use kube::runtime::events::EventType;
use kube::runtime::reflector::ObjectRef;
use serde_json::{Value, json};

use super::build::{DEPLOYMENT, POD};
use super::names::Names;
use super::{Context, Error};
use crate::api::v1alpha1::JobQueue;
use crate::autoscaler::Decision;
use crate::drain::{COST, DRAINING, DRAINING_COST};
use crate::observer::Wish;

/// How long a wish may take. What is known of the workers is only good for so long.
const BOUND: Duration = Duration::from_secs(10);
/// Wishes of different queues that are carried out at once.
const AT_ONCE: usize = 8;

/// Carries out wishes until nobody has any more.
pub(super) async fn carry_out(context: Arc<Context>, wishes: UnboundedReceiver<Wish>) {
    wishes
        .for_each_concurrent(AT_ONCE, |wish| {
            let context = Arc::clone(&context);
            async move {
                let queue = wish.queue.clone();
                let replicas = match tokio::time::timeout(BOUND, context.carry(wish)).await {
                    Ok(Ok(replicas)) => replicas,
                    Ok(Err(error)) => {
                        tracing::warn!(namespace = queue.namespace, jobqueue = queue.name, error = %error, "Could not scale");
                        context.asked_for(&queue).await
                    }
                    Err(_) => {
                        tracing::warn!(namespace = queue.namespace, jobqueue = queue.name, "Could not scale in time");
                        context.asked_for(&queue).await
                    }
                };
                context.observer.carried_out(&queue, replicas);
            }
        })
        .await;
}

impl Context {
    /// Carries out one wish; how many workers are asked for afterwards, if that has changed.
    async fn carry(&self, wish: Wish) -> Result<Option<i32>, Error> {
        let namespace = wish.queue.namespace.clone().unwrap_or_default();
        let api: Api<JobQueue> = Api::namespaced(self.client.clone(), &namespace);
        let Some(queue) = api.get_opt(&wish.queue.name).await? else { return Ok(None) };
        let draining = wish.marks.iter().filter(|(_, word)| word.is_some()).count();
        for (pod, word) in &wish.marks {
            self.mark(&queue, pod, word.as_deref()).await?;
        }
        if draining > 0 {
            let note = format!("{draining} workers take no more jobs and go when theirs are done");
            self.publish(&queue, EventType::Normal, "Draining", "Scale", note).await;
        }
        let Some((from, decision)) = wish.scale else { return Ok(None) };
        self.change(&queue, from, &decision).await
    }

    /// Says of a pod that it drains, or that it does not any more.
    async fn mark(&self, queue: &JobQueue, pod: &str, word: Option<&str>) -> Result<(), Error> {
        let cost = word.map(|_| DRAINING_COST);
        let patch = json!({ "metadata": { "annotations": { DRAINING: word, COST: cost } } });
        match self.dynamic(&POD, queue).patch(pod, &PatchParams::default(), &Patch::Merge(&patch)).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
            answer => Ok(answer.map(drop)?),
        }
    }

    /// Changes the number of workers, unless what the decision was made on has changed.
    async fn change(&self, queue: &JobQueue, from: i32, decision: &Decision) -> Result<Option<i32>, Error> {
        let name = Names::of(queue).part("worker");
        let Some(live) = self.dynamic(&DEPLOYMENT, queue).get_opt(&name).await? else { return Ok(None) };
        let version = live.metadata.resource_version.clone();
        let live = serde_json::to_value(live).unwrap_or_default();
        let asked = asked_for(&live);
        let to = decision.replicas;
        if asked == to {
            return Ok(Some(asked));
        }
        if to < from && (asked != from || !is_calm(&live)) {
            // Somebody else has changed the number, or a rollout has begun: looked at anew.
            return Ok(Some(asked));
        }
        self.scale(queue, &name, to, version.as_deref()).await?;
        let reason = &decision.reason;
        let (namespace, jobqueue) = (&queue.metadata.namespace, &queue.metadata.name);
        tracing::info!(namespace, jobqueue, from, to, reason, "Scaled");
        let note = format!("Scaled workers from {from} to {to}: {reason}");
        self.publish(queue, EventType::Normal, "Scaled", "Scale", note).await;
        Ok(Some(to))
    }

    /// How many workers are asked for, if that can be learnt.
    async fn asked_for(&self, queue: &ObjectRef<JobQueue>) -> Option<i32> {
        let namespace = queue.namespace.clone().unwrap_or_default();
        let api: Api<JobQueue> = Api::namespaced(self.client.clone(), &namespace);
        let ask = async {
            let queue = api.get_opt(&queue.name).await.ok()??;
            let name = Names::of(&queue).part("worker");
            let live = self.dynamic(&DEPLOYMENT, &queue).get_opt(&name).await.ok()??;
            Some(asked_for(&serde_json::to_value(live).ok()?))
        };
        tokio::time::timeout(BOUND, ask).await.ok().flatten()
    }
}

fn asked_for(deployment: &Value) -> i32 {
    i32::try_from(deployment["spec"]["replicas"].as_i64().unwrap_or(0)).unwrap_or(i32::MAX)
}

/// Whether a Deployment has carried out what it was asked for last: none of its pods is of an old template.
fn is_calm(deployment: &Value) -> bool {
    let count = |path: &str| deployment.pointer(path).and_then(Value::as_i64).unwrap_or(0);
    count("/status/observedGeneration") >= count("/metadata/generation")
        && count("/status/updatedReplicas") == count("/status/replicas")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rollout_is_no_time_for_fewer_workers() {
        let deployment = |observed: i64, updated: i64| {
            json!({ "metadata": { "generation": 3 }, "status": {
                "observedGeneration": observed, "replicas": 4, "updatedReplicas": updated } })
        };
        assert!(is_calm(&deployment(3, 4)));
        assert!(!is_calm(&deployment(3, 1)), "pods of the old template are left");
        assert!(!is_calm(&deployment(2, 4)), "the new template was not looked at yet");
    }
}
