//! Makes the cluster have what each `JobQueue` asks for: resolve, build, apply, status.
mod apply;
mod build;
mod cleanup;
mod config;
mod fields;
mod left_behind;
mod names;
mod obstacle;
mod quantity;
mod redis_pod;
mod resolve;
mod rolling;
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
use jiff::Timestamp;
use jobqueue::config::Config;
use jobqueue::connect::Reach;
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{ConfigMap, Service, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{ListParams, Patch, PatchParams};
use kube::runtime::controller::{self, Action, Controller};
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher;
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::json;
use tokio::task::JoinSet;

use crate::api::conditions::READY;
use crate::api::v1alpha1::JobQueue;
use crate::metrics::Metrics;
use crate::observer::{Observer, Target};
use crate::pods::{self, Pods};
use build::{Children, is_managed};
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
/// How often a queue whose Redis cannot be used is looked at.
const IN_TROUBLE: Duration = Duration::from_secs(20);

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
    /// The namespaces that it looks after; empty: all.
    pub watched: Vec<String>,
    /// Where the API server is: no queue's Redis may be there.
    pub api_servers: Vec<IpAddr>,
}

/// What every reconcile needs.
pub struct Context {
    client: Client,
    settings: Settings,
    observer: Observer,
    metrics: Arc<Metrics>,
    recorder: Recorder,
    settled: apply::Settled,
    rolling: rolling::Rolling,
    pod_monitors: bool,
    cluster: String,
    failures: Mutex<HashMap<ObjectRef<JobQueue>, u32>>,
}

/// Why a reconcile did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Trying again will not help: somebody must change something, and the message says what.
    #[error("{message}")]
    Stalled {
        /// One word in camel case.
        reason: &'static str,
        /// What to do.
        message: String,
    },
    /// Redis refused or could not be reached.
    #[error("{0}")]
    Redis(String),
    /// The Kubernetes API refused or could not be reached.
    #[error("the Kubernetes API answered: {}", told(.0))]
    Kube(#[from] kube::Error),
}

/// What the API server said, without the noise around it.
fn told(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    }
}

impl Error {
    fn stalled(reason: &'static str, message: impl Into<String>) -> Self {
        Self::Stalled { reason, message: message.into() }
    }

    fn reason(&self) -> &'static str {
        match self {
            Self::Stalled { reason, .. } => reason,
            Self::Redis(_) => "RedisError",
            Self::Kube(_) => "ApiError",
        }
    }

    /// Invalid objects are refused however often they are sent.
    fn is_stalled(&self) -> bool {
        match self {
            Self::Stalled { .. } => true,
            // An apply with a field that Kubernetes does not know is answered with 500.
            Self::Kube(kube::Error::Api(status)) => {
                matches!(status.code, 400 | 422) || status.message.contains("field not declared in schema")
            }
            Self::Redis(_) | Self::Kube(_) => false,
        }
    }

    /// Nothing can be created in a namespace that is going away, and nothing has to be.
    fn is_terminating(&self) -> bool {
        matches!(self, Self::Kube(kube::Error::Api(status)) if status.code == 403 && status.message.contains("being terminated"))
    }
}

/// Runs the controller until `shutdown`.
pub async fn run(
    client: Client,
    settings: Settings,
    metrics: Arc<Metrics>,
    shutdown: impl Future<Output = ()> + Send + Sync + 'static,
) -> anyhow::Result<()> {
    let cluster = cluster_id(&client).await?;
    let (to_controller, changes) = unbounded();
    let (to_scaler, wishes) = unbounded();
    let gone = {
        let (client, cluster) = (client.clone(), cluster.clone());
        move |owner: String| -> futures::future::BoxFuture<'static, bool> {
            Box::pin(is_gone(client.clone(), cluster.clone(), owner))
        }
    };
    let pods = Pods::default();
    let observer = Observer::new(to_controller, to_scaler, pods.clone(), gone);
    metrics.observe(observer.clone());
    let instance = hostname::get().ok().and_then(|name| name.into_string().ok());
    let reporter = Reporter { controller: "jobqueue-operator".into(), instance };
    let context = Arc::new(Context {
        recorder: Recorder::new(client.clone(), reporter),
        pod_monitors: has_pod_monitors(&client).await,
        cluster,
        client: client.clone(),
        settings,
        observer,
        metrics,
        settled: apply::Settled::default(),
        rolling: rolling::Rolling::default(),
        failures: Mutex::default(),
    });
    let mut beside = JoinSet::new();
    beside.spawn(scale::carry_out(Arc::clone(&context), wishes));
    let (to_rescue, mut deaths) = unbounded();
    for space in context.spaces() {
        beside.spawn(pods::watch(client.clone(), space, pods.clone(), to_rescue.clone()));
    }
    let observer = context.observer.clone();
    beside.spawn(async move {
        while let Some(death) = deaths.next().await {
            observer.died(death);
        }
    });
    controllers(&context, changes, shutdown).await;
    Ok(())
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
                let _ = to.unbounded_send(queue.clone());
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
    changes: UnboundedReceiver<ObjectRef<JobQueue>>,
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
    let settings = controller::Config::default().concurrency(8).debounce(Duration::from_millis(100));
    Controller::new(api::<JobQueue>(client, space), watcher::Config::default().any_semantic())
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
                Err(error) => tracing::debug!(error = %error, "Reconcile ended early"),
                Ok(_) => {}
            }
            futures::future::ready(())
        })
        .await;
}

/// One look at one `JobQueue`: the pipeline.
#[tracing::instrument(skip_all, fields(namespace = queue.namespace().unwrap_or_default(), jobqueue = queue.name_any()))]
async fn reconcile(queue: Arc<JobQueue>, context: Arc<Context>) -> Result<Action, Error> {
    let _timer = context.metrics.reconcile_started();
    if queue.metadata.deletion_timestamp.is_some() {
        return context.clean_up(&queue).await;
    }
    context.hold_deletion(&queue).await?;
    let outcome = context.bring_about(&queue).await;
    let reference = ObjectRef::from_obj(queue.as_ref());
    let seen = context.observer.seen(&reference);
    let result = match &outcome {
        Ok((applied, queues)) => Outcome::Applied { applied, queues: queues.clone() },
        Err(error) if error.is_terminating() => return Ok(Action::await_change()),
        Err(error) if !error.is_stalled() && context.failures(&reference) < TOLERATED_FAILURES => {
            return outcome.map(|_| Action::await_change());
        }
        Err(error) => Outcome::Failed(error),
    };
    context.tell(&queue, status::status(&queue, &result, seen.as_ref(), Timestamp::now())).await?;
    let (applied, _) = outcome?;
    context.failures.lock().unwrap_or_else(PoisonError::into_inner).remove(&reference);
    // What is wrong with Redis may be its Secret, and nobody tells when that changes.
    let trouble = seen.is_some_and(|seen| seen.trouble.is_some());
    let look_again = if trouble { IN_TROUBLE } else { LOOK_AGAIN };
    Ok(Action::requeue(applied.next_look.unwrap_or(look_again).min(look_again)))
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
        let worker = &children.rendered.config.worker;
        let queues = (worker.priorities.iter())
            .map(|name| (name.clone(), worker.queues.get(name).cloned().unwrap_or_default()))
            .collect();
        let current = applied.worker.as_ref().and_then(|live| live["spec"]["replicas"].as_i64()).unwrap_or(0);
        let (config, secret) = (&children.rendered.config, resolved.redis_secret.as_ref());
        let target = self.target(queue, config, secret, i32::try_from(current).unwrap_or(0));
        self.observer.watch(&ObjectRef::from_obj(queue), target.clone());
        if let (true, Some(secret)) = (is_managed(queue), &resolved.redis_secret) {
            let due = self.rotate(queue, secret, &target).await?;
            applied.next_look = [applied.next_look, due].into_iter().flatten().min();
        }
        Ok((applied, queues))
    }

    /// Where the observer finds the queue. It reads no files: credentials come from the Secrets themselves.
    fn target(&self, queue: &JobQueue, config: &Config, secret: Option<&SecretData>, current: i32) -> Target {
        let names = Names::of(queue);
        let uid = queue.uid().unwrap_or_default();
        let owner = format!("{}/{}/{}/{uid}", self.cluster, names.namespace, names.queue);
        let mut target = Target::new(config, queue, owner, current);
        target.settings.reach = Reach::Elsewhere(self.settings.api_servers.clone());
        target.settings.password_file = None;
        target.settings.password = secret.and_then(|secret| secret.text("password"));
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
        let secrets = ["password", "ca.crt", "tls.crt", "tls.key"].map(hidden);
        let mut place = serde_json::to_value(&config.redis).unwrap_or_default();
        place["password"] = json!(null);
        target.connection = build::hash(&json!([place, secrets]));
        target
    }

    /// What a managed Redis needs before it can start: its volume and its password.
    async fn prepare_redis(&self, queue: &JobQueue) -> Result<(), Error> {
        let name = Names::of(queue).part("redis");
        if let Some(claim) = build::volume_claim(queue) {
            let object = claim.object.as_ref().unwrap_or(&serde_json::Value::Null);
            if object["spec"]["storageClassName"].is_null()
                && self.dynamic(claim.kind, queue).get_opt(&name).await?.is_none()
            {
                self.require_default_class().await?;
            }
            self.create_kept(queue, claim.kind, &claim.name, object).await?;
        }
        let namespace = queue.namespace().unwrap_or_default();
        let Some(secret) = self.find_secret(&namespace, &name).await? else {
            let object = build::generated_secret(queue, &generated_password());
            return self.create_kept(queue, &build::SECRET, &name, &object).await;
        };
        for key in ["password", "users.acl"] {
            if !secret.has(key) {
                let message = format!(
                    "Secret {name} has no key {key}: restore it, or delete the Secret and the pod {name}-0 to have a new password made"
                );
                return Err(Error::stalled("InvalidSecret", message));
            }
        }
        Ok(())
    }

    /// How often in a row a queue could not be reconciled.
    fn failures(&self, queue: &ObjectRef<JobQueue>) -> u32 {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).get(queue).copied().unwrap_or(0)
    }

    /// Lets go of everything that is remembered of a queue.
    fn forget(&self, queue: &ObjectRef<JobQueue>) {
        self.observer.forget(queue);
        self.settled.forget(queue.namespace.as_deref().unwrap_or_default(), &queue.name);
        self.rolling.end(&queue.to_string());
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).remove(queue);
    }

    /// Without a default storage class a volume would stay pending for ever, and nobody would know why.
    async fn require_default_class(&self) -> Result<(), Error> {
        const DEFAULT: &str = "storageclass.kubernetes.io/is-default-class";
        let api: Api<StorageClass> = Api::all(self.client.clone());
        let classes = match api.list_metadata(&ListParams::default()).await {
            Ok(classes) => classes,
            // In namespaced mode nobody may be allowed to look.
            Err(kube::Error::Api(status)) if status.is_forbidden() => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        if classes.iter().any(|class| class.annotations().get(DEFAULT).is_some_and(|value| value == "true")) {
            return Ok(());
        }
        let message = "the cluster has no default StorageClass for the volume of the managed Redis: set \
                       spec.redis.managed.storage.storageClassName, or spec.redis.managed.storage: {ephemeral: {}} if jobs may be lost";
        Err(Error::stalled("NoStorageClass", message))
    }

    /// Writes the status if it says something new, and an event when the queue becomes ready or stops being so.
    async fn tell(
        &self,
        queue: &JobQueue,
        status: crate::api::v1alpha1::JobQueueStatus,
    ) -> Result<(), Error> {
        if queue.status.as_ref() == Some(&status) {
            return Ok(());
        }
        let ready = |conditions: &[k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition]| {
            let ready = conditions.iter().find(|one| one.type_ == READY)?;
            Some((ready.status.clone(), ready.reason.clone(), ready.message.clone()))
        };
        let before = queue.status.as_ref().and_then(|status| ready(&status.conditions));
        let now = ready(&status.conditions);
        let api: Api<JobQueue> = Api::namespaced(self.client.clone(), &queue.namespace().unwrap_or_default());
        let patch = json!({ "status": status });
        api.patch_status(&queue.name_any(), &PatchParams::default(), &Patch::Merge(&patch)).await?;
        let turned = before.as_ref().map(|(status, reason, _)| (status, reason))
            != now.as_ref().map(|(status, reason, _)| (status, reason));
        if let (true, Some((status, reason, message))) = (turned, now) {
            let type_ = if status == "True"
                || matches!(reason.as_str(), "RedisStarting" | "Connecting" | "WorkersStarting")
            {
                EventType::Normal
            } else {
                EventType::Warning
            };
            self.publish(queue, type_, &reason, "Reconcile", message).await;
        }
        Ok(())
    }

    /// An event is worth no failure.
    async fn publish(&self, queue: &JobQueue, type_: EventType, reason: &str, action: &str, note: String) {
        let note = Some(note.chars().take(1000).collect());
        let event = Event { type_, reason: reason.into(), action: action.into(), note, secondary: None };
        match self.recorder.publish(&event, &queue.object_ref(&())).await {
            Ok(()) => {}
            Err(kube::Error::Api(status)) if status.code == 403 || status.code == 404 => {
                tracing::debug!(error = status.message, "No event: the namespace goes away");
            }
            Err(error) => tracing::warn!(error = %error, "Could not publish an event"),
        }
    }
}

/// 244 random bits.
fn generated_password() -> String {
    let half = || uuid::Uuid::new_v4().simple().to_string();
    half() + &half()
}

/// Waits longer after each failure of the same queue; one that only a person can mend is looked at rarely.
#[allow(clippy::needless_pass_by_value, reason = "the controller calls it so")]
fn on_error(queue: Arc<JobQueue>, error: &Error, context: Arc<Context>) -> Action {
    let mut failures = context.failures.lock().unwrap_or_else(PoisonError::into_inner);
    let count = failures.entry(ObjectRef::from_obj(queue.as_ref())).or_default();
    *count = (*count + 1).min(10);
    context.metrics.reconcile_failed(error.reason());
    let longest = if error.is_stalled() { Duration::from_secs(30) } else { Duration::from_secs(60) };
    tracing::warn!(namespace = queue.namespace().unwrap_or_default(), jobqueue = queue.name_any(), error = %error, "Could not reconcile");
    Action::requeue(Duration::from_millis(500).saturating_mul(2u32.saturating_pow(*count - 1)).min(longest))
}

/// Whether the `JobQueue` that a claim names does not exist any more. Another cluster's cannot be asked for.
async fn is_gone(client: Client, ours: String, owner: String) -> bool {
    let parts: Vec<&str> = owner.split('/').collect();
    let [cluster, namespace, name, uid] = parts.as_slice() else { return false };
    if *cluster != ours {
        return false;
    }
    let api: Api<JobQueue> = Api::namespaced(client, namespace);
    match api.get_opt(name).await {
        Ok(found) => found.is_none_or(|found| found.uid().as_deref() != Some(*uid)),
        Err(_) => false,
    }
}

/// What tells one cluster from another: the uid of a namespace that every cluster has.
async fn cluster_id(client: &Client) -> anyhow::Result<String> {
    let api: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(client.clone());
    match api.get("kube-system").await {
        Ok(namespace) => Ok(namespace.uid().unwrap_or_default()),
        // Without the right to read it (namespaced mode) all clusters look alike, and claims are still per name.
        Err(kube::Error::Api(status)) if status.is_forbidden() => Ok("cluster".into()),
        Err(error) => Err(error.into()),
    }
}

async fn has_pod_monitors(client: &Client) -> bool {
    client
        .list_api_group_resources("monitoring.coreos.com/v1")
        .await
        .is_ok_and(|list| list.resources.iter().any(|one| one.kind == "PodMonitor"))
}
