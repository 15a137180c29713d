//! From a `JobQueue` and what it refers to, to the objects that it needs: pure, no client in sight.
//!
//! Objects are JSON, because users' partial pod templates are merged into them and because a field that Kubernetes does
//! not know is refused by it when it is applied (strict field validation).
mod api;
mod part;
mod policies;
mod producer;
mod redis;
mod template;
mod worker;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

pub use redis::{SETTINGS, generated_secret, users_acl, volume_claim};

use super::Error;
use super::config::{Rendered, SENTINEL_PASSWORD, render};
use super::fields;
use super::names::{HASH, Names};
use super::resolve::Resolved;
use crate::api::v1alpha1::JobQueue;

/// An object that is wanted under its name, or not (any more).
#[derive(Debug, Clone, PartialEq)]
pub struct Child {
    /// The kind of object.
    pub kind: &'static Kind,
    /// Its name.
    pub name: String,
    /// `None`: it goes if it is there and ours.
    pub object: Option<Value>,
}

/// A kind of object that we make.
#[derive(Debug, PartialEq, Eq)]
pub struct Kind {
    /// Group and version.
    pub api_version: &'static str,
    /// Its name.
    pub name: &'static str,
    /// Its name in paths.
    pub plural: &'static str,
}

macro_rules! kinds {
    ($($name:ident = $version:literal $kind:literal $plural:literal;)*) => {
        $(#[doc = concat!("`", $kind, "`")] pub static $name: Kind = Kind { api_version: $version, name: $kind, plural: $plural };)*
    };
}
kinds! {
    SERVICE_ACCOUNT = "v1" "ServiceAccount" "serviceaccounts";
    CONFIG_MAP = "v1" "ConfigMap" "configmaps";
    SERVICE = "v1" "Service" "services";
    POD = "v1" "Pod" "pods";
    SECRET = "v1" "Secret" "secrets";
    VOLUME_CLAIM = "v1" "PersistentVolumeClaim" "persistentvolumeclaims";
    STATEFUL_SET = "apps/v1" "StatefulSet" "statefulsets";
    DEPLOYMENT = "apps/v1" "Deployment" "deployments";
    DISRUPTION_BUDGET = "policy/v1" "PodDisruptionBudget" "poddisruptionbudgets";
    NETWORK_POLICY = "networking.k8s.io/v1" "NetworkPolicy" "networkpolicies";
    POD_MONITOR = "monitoring.coreos.com/v1" "PodMonitor" "podmonitors";
}

/// The annotation of pods with the hash of the configuration that they were made for.
pub const CONFIG_HASH: &str = "jobqueue.dev/config-hash";

/// Everything that a `JobQueue` needs.
#[derive(Debug, Clone)]
pub struct Children {
    /// The identity of the pods; it has no rights and no token.
    pub service_account: Child,
    /// The configuration of the pods.
    pub config: Child,
    /// The configuration of the managed Redis.
    pub redis_config: Child,
    /// The address of the managed Redis.
    pub redis_service: Child,
    /// The managed Redis.
    pub redis: Child,
    /// The workers; its `spec.replicas` belongs to the scaler.
    pub worker: Child,
    /// The producer.
    pub producer: Child,
    /// The HTTP API.
    pub api: Child,
    /// The address of the HTTP API.
    pub api_service: Child,
    /// How many pods of the HTTP API may be evicted at once.
    pub api_disruption_budget: Child,
    /// Who may reach the HTTP API.
    pub api_network_policy: Child,
    /// How many workers may be evicted at once.
    pub disruption_budget: Child,
    /// Who may reach the managed Redis.
    pub network_policy: Child,
    /// Where Prometheus finds the metrics, if that kind exists.
    pub pod_monitor: Child,
    /// What the configuration means.
    pub rendered: Rendered,
}

/// What is the same for all children.
struct Plan<'a> {
    queue: &'a JobQueue,
    resolved: &'a Resolved,
    names: Names,
    rendered: &'a Rendered,
}

impl Child {
    fn new(kind: &'static Kind, name: String, object: Option<Value>) -> Self {
        let object = object.map(|mut object| {
            object["apiVersion"] = json!(kind.api_version);
            object["kind"] = json!(kind.name);
            object["metadata"]["annotations"][HASH] = json!(hash(&object));
            object
        });
        Self { kind, name, object }
    }
}

impl Plan<'_> {
    fn managed(&self) -> bool {
        is_managed(self.queue)
    }
}

/// Whether the queue's Redis is run by us.
pub fn is_managed(queue: &JobQueue) -> bool {
    queue.spec.redis.as_ref().is_none_or(|redis| redis.external.is_none())
}

/// Everything that `queue` needs, or what is wrong with it.
pub fn children(queue: &JobQueue, resolved: &Resolved) -> Result<Children, Error> {
    let rendered =
        render(queue, resolved).map_err(|problems| Error::stalled("InvalidSpec", fields::told(&problems)))?;
    let plan = Plan { queue, resolved, names: Names::of(queue), rendered: &rendered };
    Ok(Children {
        service_account: policies::service_account(&plan),
        config: worker::config_map(&plan),
        redis_config: redis::config_map(&plan),
        redis_service: redis::service(&plan),
        redis: redis::stateful_set(&plan),
        worker: with_sentinel_login(&plan, worker::deployment(&plan)?),
        producer: with_sentinel_login(&plan, producer::deployment(&plan)?),
        api: with_sentinel_login(&plan, api::deployment(&plan)?),
        api_service: api::service(&plan),
        api_disruption_budget: api::disruption_budget(&plan),
        api_network_policy: api::network_policy(&plan),
        disruption_budget: policies::disruption_budget(&plan),
        network_policy: policies::network_policy(&plan),
        pod_monitor: policies::pod_monitor(&plan),
        rendered: rendered.clone(),
    })
}

/// Lets the pods of a Deployment have the password at the Sentinels, if there is one.
fn with_sentinel_login(plan: &Plan, child: Child) -> Child {
    let external = plan.queue.spec.redis.as_ref().and_then(|redis| redis.external.as_ref());
    let asks = external.is_some_and(|external| external.sentinel.is_some());
    let secret = plan.resolved.redis_secret.as_ref().filter(|secret| asks && secret.has(SENTINEL_PASSWORD));
    let (Some(secret), Some(mut object)) = (secret, child.object.clone()) else { return child };
    let variable = json!({
        "name": "REDIS_SENTINEL_PASSWORD",
        "valueFrom": { "secretKeyRef": { "name": secret.name, "key": SENTINEL_PASSWORD } },
    });
    match &mut object["spec"]["template"]["spec"]["containers"][0]["env"] {
        Value::Array(variables) => variables.push(variable),
        other => *other = json!([variable]),
    }
    Child::new(child.kind, child.name, Some(object))
}

/// A short name for what something is: changes when it does. Twelve hex digits of SHA-256, as in image tags.
pub fn hash(value: &Value) -> String {
    let digest = Sha256::digest(value.to_string().as_bytes());
    digest.iter().take(6).fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

/// The security context of a pod of ours, at the level `restricted`.
fn pod_security() -> Value {
    json!({ "runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532, "seccompProfile": { "type": "RuntimeDefault" } })
}

/// The security context of a container of ours, at the level `restricted`.
fn container_security() -> Value {
    json!({ "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": { "drop": ["ALL"] } })
}

#[cfg(test)]
mod tests;
