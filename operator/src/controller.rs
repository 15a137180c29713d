//! Makes the cluster have what each `JobQueue` asks for: resolve, build, apply, status.
mod apply;
mod build;
mod claims;
mod cleanup;
mod config;
mod difference;
mod error;
mod events;
mod fields;
mod identity;
mod left_behind;
mod managed_redis;
mod names;
mod obstacle;
mod pace;
mod pod_monitors;
mod quantity;
mod redis_pod;
mod remembered;
mod resolve;
mod retry;
mod rolling;
mod rollout;
mod rotation;
mod scale;
mod status;

use std::collections::HashMap;
use std::future::Future;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use futures::channel::mpsc::{UnboundedReceiver, unbounded};
use ipnet::IpNet;
use jiff::Timestamp;
use jobqueue::config::Config;
use jobqueue::connect::{Allowance, Bounds, Reach};
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{ConfigMap, Service, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::runtime::controller::{self, Action, Controller};
use kube::runtime::events::{EventType, Recorder, Reporter};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher;
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::json;
use tokio::task::JoinSet;

use crate::api::stored::Stored;
use crate::api::v1alpha1::JobQueue;
use crate::health::Health;
use crate::metrics::Metrics;
use crate::nodes;
use crate::observer::{Asked, Observer, Remedy, Target};
use crate::pods::{self, Pods};
use crate::refusals::Refusals;
use crate::rescue;
use build::{Children, is_managed};
pub use error::Error;
use names::Names;
pub use names::{MANAGED_BY, QUEUE_LABEL};
use resolve::{Resolved, SecretData};
use status::Outcome;

/// Takes part in a deletion only where there is something to delete: see [`cleanup`].
pub const FINALIZER: &str = "jobqueue.dev/cleanup";

/// Secrets have no watch (it would need the right to read all of them), so every queue is looked at again this often.
const LOOK_AGAIN: Duration = Duration::from_secs(600);

/// A single failure of the API is worth no change of a condition.
const TOLERATED_FAILURES: u32 = 2;
/// How long any Redis may take to answer us, and Kubernetes where nothing depends on it.
const ASKING: Duration = Duration::from_secs(5);
/// What a reply of any Redis may take, and those of all Redises that the queues of a namespace name together: more than a
/// page of jobs that are each as large as a worker takes by default (16 MiB), and a fraction of our memory. A namespace is
/// as far as those may reach who name them.
const LARGEST_REPLY: u64 = 64 << 20;
/// How long one look at a queue may take; the rest is left to the next one.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often a queue whose change waits is looked at: "within half a minute" it takes place.
const WAITING: Duration = Duration::from_secs(10);
/// How often a queue is looked at whose Redis cannot be used: what is wrong may be its Secret, and nobody tells when that
/// changes; users are promised that it is noticed within half a minute.
const IN_TROUBLE: Duration = Duration::from_secs(20);
/// How rarely at most, where a Redis of the user's is just away: many queues may share it, a look asks the API server a dozen
/// times, and all that nobody would tell of is another authority in its Secret.
const AWAY: Duration = Duration::from_secs(300);
/// Queues whose unknown pods are asked for at once.
const ASKED_AT_ONCE: usize = 8;

/// What the operator was told at its start.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The image of workers that name none.
    pub worker_image: String,
    /// The image of a managed Redis that names none.
    pub redis_image: String,
    /// What the names of services end with.
    pub cluster_domain: String,
    /// The namespace that the operator runs in.
    pub namespace: String,
    /// The name of its lease there.
    pub lease: String,
    /// The namespaces that it looks after; empty: all.
    pub watched: Vec<String>,
    /// Where the API server is: no queue's Redis may be there.
    pub api_servers: Vec<IpAddr>,
    /// Where a queue's Redis may be; empty: anywhere else.
    pub redis_networks: Vec<IpNet>,
}

/// What every reconcile needs.
pub struct Context {
    client: Client,
    settings: Settings,
    observer: Observer,
    metrics: Arc<Metrics>,
    health: Arc<Health>,
    recorder: Recorder,
    settled: remembered::Settled,
    refused: remembered::Refused,
    allowances: Mutex<HashMap<String, Allowance>>,
    rolling: rolling::Rolling,
    taken_out: claims::TakenOut,
    pace: pace::Pace,
    pod_monitors: pod_monitors::PodMonitors,
    cluster: String,
    failures: Mutex<HashMap<ObjectRef<JobQueue>, u32>>,
}

/// Runs the controller until `shutdown`.
pub async fn run(
    client: Client,
    settings: Settings,
    metrics: Arc<Metrics>,
    health: Arc<Health>,
    shutdown: impl Future<Output = ()> + Send + Sync + 'static,
) -> anyhow::Result<()> {
    let cluster = identity::cluster_id(&client, &settings).await?;
    let (to_controller, changes) = unbounded();
    let (to_scaler, wishes) = unbounded();
    let (to_asker, unheard) = unbounded();
    let gone = {
        let (client, cluster) = (client.clone(), cluster.clone());
        move |owner: String| -> futures::future::BoxFuture<'static, bool> {
            Box::pin(identity::is_gone(client.clone(), cluster.clone(), owner))
        }
    };
    let pods = Pods::default();
    let observer = Observer::new(to_controller, to_scaler, to_asker, pods.clone(), gone);
    metrics.observe(observer.clone());
    let instance = hostname::get().ok().and_then(|name| name.into_string().ok());
    let reporter = Reporter { controller: "jobqueue-operator".into(), instance };
    let context = Arc::new(Context {
        recorder: Recorder::new(client.clone(), reporter),
        pod_monitors: pod_monitors::PodMonitors::default(),
        cluster,
        client: client.clone(),
        settings,
        observer,
        metrics,
        health,
        settled: remembered::Settled::default(),
        refused: remembered::Refused::default(),
        allowances: Mutex::default(),
        rolling: rolling::Rolling::default(),
        taken_out: claims::TakenOut::default(),
        pace: pace::Pace::default(),
        failures: Mutex::default(),
    });
    let mut beside = JoinSet::new();
    beside.spawn(scale::carry_out(Arc::clone(&context), wishes));
    let (to_rescue, mut deaths) = unbounded();
    for space in context.spaces() {
        beside.spawn(pods::watch(client.clone(), space, pods.clone(), to_rescue.clone()));
    }
    beside.spawn(nodes::watch(client.clone(), pods.clone(), to_rescue.clone()));
    let asker = client.clone();
    beside.spawn(unheard.for_each_concurrent(ASKED_AT_ONCE, move |pods| {
        rescue::ask_for(asker.clone(), pods, to_rescue.clone())
    }));
    let observer = context.observer.clone();
    beside.spawn(async move {
        while let Some(death) = deaths.next().await {
            observer.died(death);
        }
    });
    tokio::select! {
        () = controllers(&context, changes, shutdown) => Ok(()),
        // Without any of them this would be a leader that never scales or never rescues, and keeps others from it.
        Some(ended) = beside.join_next() => match ended {
            Ok(()) => anyhow::bail!("a part of the operator has come to its end"),
            Err(error) => anyhow::bail!("a part of the operator has failed: {error}"),
        },
    }
}

/// One controller for all namespaces, or one for each that is watched: least rights need a watch in each.
async fn controllers(
    context: &Arc<Context>,
    changes: UnboundedReceiver<ObjectRef<JobQueue>>,
    shutdown: impl Future<Output = ()> + Send + Sync + 'static,
) {
    use futures::future::{FutureExt, join_all};
    let shutdown = shutdown.boxed().shared();
    let mut routes = Vec::new();
    let mut running = Vec::new();
    for space in context.spaces() {
        let (to, changes) = unbounded();
        routes.push((space.clone(), to));
        running.push(controller(context, space, changes, shutdown.clone()));
    }
    let route = changes.for_each(|queue| {
        for (space, to) in &routes {
            if space.is_none() || *space == queue.namespace {
                let namespace = queue.namespace.as_deref().unwrap_or_default();
                let _ = to.unbounded_send(ObjectRef::new(&queue.name).within(namespace));
            }
        }
        futures::future::ready(())
    });
    tokio::select! {
        _ = join_all(running) => {}
        () = route => {}
    }
}

async fn controller(
    context: &Arc<Context>,
    space: Option<String>,
    changes: UnboundedReceiver<ObjectRef<Stored>>,
    shutdown: impl Future<Output = ()> + Send + Sync + 'static,
) {
    fn api<K>(client: &Client, space: Option<&String>) -> Api<K>
    where
        K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
    {
        match space {
            Some(space) => Api::namespaced(client.clone(), space),
            None => Api::all(client.clone()),
        }
    }
    let (client, space) = (&context.client, space.as_ref());
    let ours = watcher::Config::default().labels(&format!("app.kubernetes.io/managed-by={MANAGED_BY}"));
    let settings =
        controller::Config::default().concurrency(pace::AT_ONCE).debounce(Duration::from_millis(100));
    let mut refusals = Refusals::default();
    Controller::new(api::<Stored>(client, space), watcher::Config::default().any_semantic())
        .with_config(settings)
        .owns(api::<Deployment>(client, space), ours.clone())
        .owns(api::<StatefulSet>(client, space), ours.clone())
        .owns(api::<ConfigMap>(client, space), ours.clone())
        .owns(api::<Service>(client, space), ours.clone())
        .owns(api::<NetworkPolicy>(client, space), ours.clone())
        .owns(api::<PodDisruptionBudget>(client, space), ours.clone())
        .owns(api::<ServiceAccount>(client, space), ours)
        .reconcile_on(changes)
        .graceful_shutdown_on(shutdown)
        .run(reconcile, on_error, Arc::clone(context))
        .for_each(|result| {
            match result {
                // Deleted, and no finalizer held it: nobody else says that it is gone.
                Err(controller::Error::ObjectNotFound(gone)) => {
                    let namespace = gone.namespace.as_deref().unwrap_or_default();
                    context.forget(&ObjectRef::new(&gone.name).within(namespace));
                }
                Err(controller::Error::QueueError(error)) => {
                    refusals.note("queues", "changes are noticed late, or never", &error);
                }
                Err(error) => tracing::debug!(error = %error, "Reconcile ended early"),
                Ok(_) => {}
            }
            futures::future::ready(())
        })
        .await;
}

/// One look at one `JobQueue`: the pipeline.
#[tracing::instrument(skip_all, fields(namespace = stored.namespace().unwrap_or_default(), jobqueue = stored.name_any()))]
async fn reconcile(stored: Arc<Stored>, context: Arc<Context>) -> Result<Action, Error> {
    // There is a controller for each namespace that is watched; together they are no faster.
    let _slot = context.pace.slot().await;
    let _under_way = context.health.reconcile();
    let _timer = context.metrics.reconcile_started();
    let queue = &stored.queue;
    if let Some(why) = &stored.unreadable {
        return context.refuse(queue, why).await;
    }
    if queue.metadata.deletion_timestamp.is_some() {
        return Box::pin(context.clean_up(queue)).await;
    }
    context.hold_deletion(queue).await?;
    let outcome = match tokio::time::timeout(PATIENCE, Box::pin(context.bring_about(queue))).await {
        Ok(outcome) => outcome,
        Err(_) => Err(Error::Late),
    };
    if outcome.is_err() {
        // Whoever pauses or scales it must not have to put right first what is wrong with it.
        context.observer.heed(queue);
    }
    let reference = ObjectRef::from_obj(queue);
    let seen = context.observer.seen(&reference);
    let live;
    let result = match &outcome {
        Ok((applied, queues)) => Outcome::Applied { applied, queues: queues.clone() },
        Err(error) if error.is_terminating() => return Ok(Action::await_change()),
        // Nothing has happened, and nobody is told.
        Err(Error::Busy) => return Ok(Action::requeue(context.pace.turn())),
        Err(error) if error.is_passing() && context.failures(&reference) < TOLERATED_FAILURES => {
            return outcome.map(|_| Action::await_change());
        }
        Err(error) => {
            live = context.workers(queue).await;
            Outcome::Failed { error, queues: context.looked_at(&reference), live: live.as_ref() }
        }
    };
    context.tell(queue, status::status(queue, &result, seen.as_ref(), Timestamp::now())).await?;
    if let Err(error @ Error::Waits { .. }) = &outcome {
        // Nobody has to do anything: neither an error to count nor one to warn of.
        tracing::debug!(reason = error.reason(), "Waiting");
        context.succeeded(&reference);
        return Ok(Action::requeue(WAITING));
    }
    let (applied, _) = outcome?;
    context.succeeded(&reference);
    let look_again =
        look_again(seen.and_then(|seen| seen.trouble).map(|trouble| trouble.kind), is_managed(queue));
    Ok(Action::requeue(applied.next_look.unwrap_or(look_again).min(look_again)))
}

/// When to look again at a queue that is as its spec says.
fn look_again(trouble: Option<Remedy>, managed: bool) -> Duration {
    match trouble {
        None => LOOK_AGAIN,
        // The observer tells when it answers. Not all queues of a Redis at the same moment.
        Some(Remedy::Wait) if !managed => AWAY.mul_f64(fastrand::f64().mul_add(0.5, 0.5)),
        Some(_) => IN_TROUBLE,
    }
}

/// Name and key of each queue, in the order of priority.
type Queues = Vec<(String, String)>;

impl Context {
    /// The namespaces to look after; `None`: all of them in one.
    fn spaces(&self) -> Vec<Option<String>> {
        match self.settings.watched.as_slice() {
            [] => vec![None],
            some => some.iter().cloned().map(Some).collect(),
        }
    }

    /// Resolve, build, apply; and let the observer look at it.
    async fn bring_about(&self, queue: &JobQueue) -> Result<(apply::Applied, Queues), Error> {
        if is_managed(queue) {
            self.prepare_redis(queue).await?;
        }
        let resolved = Resolved::of(queue, self).await?;
        let children: Children = build::children(queue, &resolved)?;
        let mut applied = self.apply(queue, &children, &resolved).await?;
        let asked = applied.worker.as_ref().map(|live| rollout::Rollout::of(live).asked).unwrap_or_default();
        let (config, secret) = (&children.rendered.config, resolved.redis_secret.as_ref());
        let target = self.target(queue, config, secret, asked);
        let queues = queues_of(&target);
        let reference = ObjectRef::from_obj(queue);
        let before = self.observer.target(&reference);
        self.observer.watch(&reference, target.clone());
        self.give_up(&reference, &applied, &target).await;
        let scaled = before.is_some_and(|before| before.manual != queue.spec.replicas);
        if let Some(note) = events::ignored(queue).filter(|_| scaled) {
            self.publish(queue, EventType::Warning, "ScaleIgnored", "Scale", note).await;
        }
        if let (true, Some(secret)) = (is_managed(queue), &resolved.redis_secret) {
            let due = self.rotate(queue, secret, &target).await?;
            applied.next_look = [applied.next_look, due].into_iter().flatten().min();
        }
        Ok((applied, queues))
    }

    /// The workers of a queue that could not be reconciled; nothing when they cannot be looked at either.
    async fn workers(&self, queue: &JobQueue) -> Option<apply::Applied> {
        tokio::time::timeout(ASKING, self.live_workers(queue)).await.ok()?.ok()
    }

    /// The queues that the observer looks at, which are not those of a spec that could not be applied.
    fn looked_at(&self, queue: &ObjectRef<JobQueue>) -> Queues {
        self.observer.target(queue).map(|target| queues_of(&target)).unwrap_or_default()
    }

    /// Where the observer finds the queue. It reads no files: credentials come from the Secrets themselves.
    fn target(&self, queue: &JobQueue, config: &Config, secret: Option<&SecretData>, asked: Asked) -> Target {
        let names = Names::of(queue);
        let uid = queue.uid().unwrap_or_default();
        let owner = format!("{}/{}/{}/{uid}", self.cluster, names.namespace, names.queue);
        let mut target = Target::new(config, queue, owner, asked);
        target.settings.reach = Reach::Elsewhere(Bounds {
            never: self.settings.api_servers.clone(),
            only: self.settings.redis_networks.clone(),
            largest_reply: LARGEST_REPLY,
            allowance: Some(self.allowance(&names.namespace)),
        });
        // However patient the user's workers are: a Redis that hangs must not hold up the queues of others.
        for patience in [&mut target.settings.dial_timeout, &mut target.settings.read_timeout] {
            *patience = (*patience).min(ASKING);
        }
        target.settings.password_file = None;
        target.settings.password = secret.and_then(|secret| secret.text("password"));
        target.settings.sentinel_password = secret.and_then(|secret| secret.text(config::SENTINEL_PASSWORD));
        if let Some(tls) = target.settings.tls.as_mut() {
            let pem = |key: &str| {
                secret
                    .and_then(|secret| secret.bytes(key))
                    .map(|bytes| jobqueue::connect::Pem::Text(bytes.to_vec()))
            };
            tls.ca = pem("ca.crt");
            tls.cert = pem("tls.crt");
            tls.key = pem("tls.key");
        }
        // Everything that decides where a connection leads and as whom: two that differ in any of it must not share one.
        let hidden = |key: &str| {
            let bytes = secret.and_then(|secret| secret.bytes(key)).unwrap_or_default();
            build::hash(&json!(String::from_utf8_lossy(bytes)))
        };
        let secrets = ["password", config::SENTINEL_PASSWORD, "ca.crt", "tls.crt", "tls.key"].map(hidden);
        let mut place = serde_json::to_value(&config.redis).unwrap_or_default();
        place["password"] = json!(null);
        target.connection = build::hash(&json!([place, secrets]));
        target
    }

    /// What the replies to all queues of a namespace may take together.
    fn allowance(&self, namespace: &str) -> Allowance {
        let mut all = self.allowances.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|name, one| name == namespace || one.is_shared());
        all.entry(namespace.to_owned()).or_insert_with(|| Allowance::new(LARGEST_REPLY)).clone()
    }

    /// Says of an object that it cannot be read. What runs for it goes on; its deletion is not held up.
    async fn refuse(&self, queue: &JobQueue, why: &str) -> Result<Action, Error> {
        if queue.metadata.deletion_timestamp.is_some() {
            return self.let_go(queue, why).await;
        }
        let error = Error::stalled("InvalidSpec", format!("the spec cannot be read: {why}; change it"));
        let live = self.workers(queue).await;
        let outcome = Outcome::Failed { error: &error, queues: vec![], live: live.as_ref() };
        let status = status::status(queue, &outcome, None, Timestamp::now());
        self.tell(queue, status).await?;
        Ok(Action::await_change())
    }

    /// How often in a row a queue could not be reconciled.
    fn failures(&self, queue: &ObjectRef<JobQueue>) -> u32 {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).get(queue).copied().unwrap_or(0)
    }

    /// A queue could be reconciled, so the next failure is the first.
    fn succeeded(&self, queue: &ObjectRef<JobQueue>) {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).remove(queue);
    }

    /// Lets go of everything that is remembered of a queue.
    fn forget(&self, queue: &ObjectRef<JobQueue>) {
        self.observer.forget(queue);
        let namespace = queue.namespace.as_deref().unwrap_or_default();
        self.settled.forget(namespace, &queue.name);
        self.refused.forget(namespace, &queue.name);
        self.rolling.end(&queue.to_string());
        self.taken_out.forget(queue);
        self.succeeded(queue);
    }
}

/// Of several shards the first: there too jobs are served, and under the configured name they are not.
fn queues_of(target: &Target) -> Queues {
    let keys = target.shards.first().map(|shard| shard.queues.as_slice()).unwrap_or_default();
    keys.iter().map(|queue| (queue.name.clone(), queue.queue.clone())).collect()
}

/// Waits longer after each failure of the same queue.
#[allow(clippy::needless_pass_by_value, reason = "the controller calls it so")]
fn on_error(stored: Arc<Stored>, error: &Error, context: Arc<Context>) -> Action {
    let queue = &stored.queue;
    let mut failures = context.failures.lock().unwrap_or_else(PoisonError::into_inner);
    let count = failures.entry(ObjectRef::from_obj(queue)).or_default();
    *count = count.saturating_add(1);
    context.metrics.reconcile_failed(error.reason());
    tracing::warn!(namespace = queue.namespace().unwrap_or_default(), jobqueue = queue.name_any(), error = %error, "Could not reconcile");
    Action::requeue(retry::retry_after(error, *count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redis_that_is_away_has_its_queues_looked_at_rarely_and_not_at_once() {
        let looks: std::collections::HashSet<_> =
            (0..20).map(|_| look_again(Some(Remedy::Wait), false)).collect();
        assert!(looks.iter().all(|look| *look >= AWAY / 2 && *look <= AWAY) && looks.len() > 10, "{looks:?}");
        assert_eq!(look_again(None, false), LOOK_AGAIN);
        for (trouble, managed) in
            [(Remedy::Credentials, false), (Remedy::Change, false), (Remedy::Wait, true)]
        {
            assert_eq!(look_again(Some(trouble), managed), IN_TROUBLE, "{trouble:?}");
        }
    }
}
