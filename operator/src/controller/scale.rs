//! Carries out what the observer wishes for: more workers at once, fewer only as it was planned.
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::channel::mpsc::UnboundedReceiver;
use jobqueue::terminal::counted;
use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams};
use kube::runtime::events::EventType;
use kube::runtime::reflector::ObjectRef;
use serde_json::json;

use super::build::{DEPLOYMENT, POD};
use super::names::Names;
use super::rollout::Rollout;
use super::{Context, Error};
use crate::api::v1alpha1::JobQueue;
use crate::drain::{self, COST, DRAINING, DRAINING_COST, Mark, RESTED_COST};
use crate::observer::{Asked, Carried, Scale, Wish};
use crate::pods::{self, Pod};

/// How long a wish may take. What is known of the workers is only good for so long.
const BOUND: Duration = Duration::from_secs(10);
/// Wishes of different queues that are carried out at once.
const AT_ONCE: usize = 8;
/// Pods that are asked for at once.
const PAGE: u32 = 500;

/// Carries out wishes until nobody has any more.
pub(super) async fn carry_out(context: Arc<Context>, wishes: UnboundedReceiver<Wish>) {
    wishes
        .for_each_concurrent(AT_ONCE, |wish| {
            let context = Arc::clone(&context);
            async move {
                let queue = wish.queue.clone();
                let failed = async || Carried { asked: context.asked_for(&queue).await, scaled: None, failed: true };
                let carried = match tokio::time::timeout(BOUND, context.carry(wish)).await {
                    Ok(Ok(carried)) => carried,
                    Ok(Err(error)) => {
                        tracing::warn!(namespace = queue.namespace, jobqueue = queue.name, error = %error, "Could not scale");
                        failed().await
                    }
                    Err(_) => {
                        tracing::warn!(namespace = queue.namespace, jobqueue = queue.name, "Could not scale in time");
                        failed().await
                    }
                };
                context.observer.carried_out(&queue, carried);
            }
        })
        .await;
}

impl Context {
    /// Carries out one wish.
    async fn carry(&self, wish: Wish) -> Result<Carried, Error> {
        let namespace = wish.queue.namespace.clone().unwrap_or_default();
        let api: Api<JobQueue> = Api::namespaced(self.client.clone(), &namespace);
        let Some(queue) = api.get_opt(&wish.queue.name).await? else { return Ok(Carried::default()) };
        // The number first: whatever it is, `change` looks at the marks that are there, and more workers must not wait for
        // a pod that somebody does not let us write to.
        let mut carried = match &wish.scale {
            // Wishes wait for each other, for minutes when Kubernetes is slow.
            Some(scale) if !scale.is_stale(Instant::now()) => self.change(&queue, scale).await?,
            _ => Carried::default(),
        };
        let mut draining = 0_u32;
        for (pod, mark) in &wish.marks {
            match self.mark(&queue, pod, mark).await {
                Ok(()) => draining += u32::from(matches!(mark, Mark::Draining(_))),
                Err(error) => {
                    tracing::warn!(namespace, jobqueue = wish.queue.name, pod, error = %error, "Could not mark a pod");
                    carried.failed = true;
                }
            }
        }
        if draining > 0 {
            let note = format!(
                "{} draining: no more jobs, and gone when those that run are done",
                counted(draining, "worker")
            );
            self.publish(&queue, EventType::Normal, "Draining", "Scale", note).await;
        }
        Ok(carried)
    }

    /// Says of a pod that it drains, that it has come to rest, or that it works again.
    async fn mark(&self, queue: &JobQueue, pod: &str, mark: &Mark) -> Result<(), Error> {
        let annotations = match mark {
            Mark::Draining(word) => json!({ DRAINING: word, COST: DRAINING_COST }),
            Mark::Rested(word) => json!({ DRAINING: word, COST: RESTED_COST }),
            Mark::Working => json!({ DRAINING: null, COST: null }),
        };
        let patch = json!({ "metadata": { "annotations": annotations } });
        self.pace.write().await;
        match self.dynamic(&POD, queue).patch(pod, &PatchParams::default(), &Patch::Merge(&patch)).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
            answer => Ok(answer.map(drop)?),
        }
    }

    /// Changes the number of workers, if what the decision was made on is still there: the same number asked for in the
    /// same generation, and for fewer workers nobody whom a `ReplicaSet` would take but those who were found to have come to
    /// rest. Otherwise it is looked at anew.
    async fn change(&self, queue: &JobQueue, scale: &Scale) -> Result<Carried, Error> {
        let name = Names::of(queue).part("worker");
        let Some(live) = self.dynamic(&DEPLOYMENT, queue).get_opt(&name).await? else {
            return Ok(Carried::default());
        };
        let deployment = serde_json::to_value(live).unwrap_or_default();
        let live = Rollout::of(&deployment);
        let (from, to) = (scale.from.replicas, scale.decision.replicas);
        let unchanged = |asked: Asked| Carried { asked: Some(asked), ..Carried::default() };
        if live.asked != scale.from || from == to {
            return Ok(unchanged(live.asked));
        }
        if let (true, Some(going)) = (to < from, &scale.going) {
            // Asked for here and now: what the watch knows may be old.
            if !live.is_calm() || !drain::takes_only(going, self.worker_pods(queue).await?, to) {
                return Ok(unchanged(live.asked));
            }
        }
        let version = Some(&deployment["metadata"]["resourceVersion"]);
        let scaled = self.scale(queue, &name, to, version).await?;
        let reason = &scale.decision.reason;
        let (namespace, jobqueue) = (&queue.metadata.namespace, &queue.metadata.name);
        tracing::info!(namespace, jobqueue, from, to, reason, "Scaled");
        let note = format!("Scaled workers from {from} to {to}: {reason}");
        self.publish(queue, EventType::Normal, "Scaled", "Scale", note).await;
        Ok(Carried {
            asked: Some(Rollout::of(&scaled).asked),
            scaled: Some(scale.decision.clone()),
            failed: false,
        })
    }

    /// The worker pods that are there now.
    async fn worker_pods(&self, queue: &JobQueue) -> Result<Vec<Pod>, Error> {
        let names = Names::of(queue);
        let labels = names.selector("worker");
        let labels: Vec<_> = labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let api: Api<Pod> = Api::namespaced_with(self.client.clone(), &names.namespace, &pods::resource());
        let mut page = ListParams::default().labels(&labels.join(",")).limit(PAGE);
        let mut found = Vec::new();
        loop {
            let list = api.list(&page).await?;
            found.extend(list.items);
            match list.metadata.continue_.filter(|more| !more.is_empty()) {
                Some(more) => page = page.continue_token(&more),
                None => return Ok(found),
            }
        }
    }

    /// How many workers are asked for, if that can be learnt.
    async fn asked_for(&self, queue: &ObjectRef<JobQueue>) -> Option<Asked> {
        let names =
            Names { queue: queue.name.clone(), namespace: queue.namespace.clone().unwrap_or_default() };
        let api: Api<Deployment> = Api::namespaced(self.client.clone(), &names.namespace);
        let ask = async {
            let live = api.get_opt(&names.part("worker")).await.ok()??;
            Some(Rollout::of(&serde_json::to_value(live).ok()?).asked)
        };
        tokio::time::timeout(BOUND, ask).await.ok().flatten()
    }
}
