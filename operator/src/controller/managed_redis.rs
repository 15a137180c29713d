//! The Redis that is run for a queue: what it needs first, and with what care it is changed.
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{DeleteParams, ListParams, Preconditions};
use kube::{Api, ResourceExt};
use serde_json::Value;

use super::build::{self, Child, POD, STATEFUL_SET};
use super::names::Names;
use super::{Context, Error, apply, redis_pod};
use crate::api::v1alpha1::JobQueue;

impl Context {
    /// What a managed Redis needs before it can start: its volume and its password.
    pub(super) async fn prepare_redis(&self, queue: &JobQueue) -> Result<(), Error> {
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
        if !Names::of(queue).are_on(&secret.labels) {
            return Err(apply::foreign(queue, &build::SECRET, &name));
        }
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

    /// The managed Redis: its image stays what it was created with, whatever the operator was upgraded to.
    pub(super) async fn apply_redis(&self, queue: &JobQueue, child: &Child) -> Result<Option<Value>, Error> {
        let api = self.dynamic(&STATEFUL_SET, queue);
        let live = api.get_opt(&child.name).await?;
        let mut child = child.clone();
        if child.object.is_none() {
            return self.reconcile_child(queue, &api, &child, live).await;
        }
        let pods = self.dynamic(&POD, queue);
        let pod = pods.get_opt(&format!("{}-0", child.name)).await?;
        let pod = pod.and_then(|pod| serde_json::to_value(pod).ok());
        let chosen = queue.spec.redis.as_ref().and_then(|redis| redis.managed.as_ref()?.image.as_ref());
        // A Redis that never answered has no jobs to be careful with: its image may have been a bad one.
        let answered = queue.status.as_ref().is_some_and(|status| !status.queues.is_empty());
        let kept = answered || pod.as_ref().is_none_or(|pod| !redis_pod::is_stuck(pod));
        if let (Some(live), Some(object), None, true) = (&live, child.object.as_mut(), chosen, kept) {
            let image = &live.data["spec"]["template"]["spec"]["containers"][0]["image"];
            if image.is_string() {
                object["spec"]["template"]["spec"]["containers"][0]["image"] = image.clone();
            }
        }
        let applied = self.reconcile_child(queue, &api, &child, live).await?;
        let why = applied.as_ref().zip(pod.as_ref()).and_then(|(set, pod)| redis_pod::outdated(set, pod));
        if let (Some(why), Some(pod)) = (why, pod) {
            let name = pod["metadata"]["name"].as_str().unwrap_or_default();
            let uid = pod["metadata"]["uid"].as_str().map(str::to_owned);
            tracing::info!(name, reason = why, "Replacing the pod of Redis");
            let exactly = Preconditions { uid, resource_version: None };
            match pods.delete(name, &DeleteParams::default().preconditions(exactly)).await {
                Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => {}
                answer => drop(answer?),
            }
        }
        Ok(applied)
    }
}

/// 244 random bits.
pub fn generated_password() -> String {
    let half = || uuid::Uuid::new_v4().simple().to_string();
    half() + &half()
}
