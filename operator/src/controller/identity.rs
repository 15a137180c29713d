//! Who is who, where several clusters share a Redis.
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client, ResourceExt};

use super::Settings;
use crate::api::v1alpha1::JobQueue;

/// Whether the `JobQueue` that a claim names does not exist any more. Another cluster's cannot be asked for.
pub async fn is_gone(client: Client, ours: String, owner: String) -> bool {
    let parts: Vec<&str> = owner.split('/').collect();
    let [cluster, namespace, name, uid] = parts.as_slice() else { return false };
    if *cluster != ours {
        return false;
    }
    let api: Api<JobQueue> = Api::namespaced(client, namespace);
    match api.get_metadata_opt(name).await {
        Ok(found) => found.is_none_or(|found| found.uid().as_deref() != Some(*uid)),
        Err(_) => false,
    }
}

/// What tells one cluster from another: the uid of a namespace that every cluster has. Without the right to read it
/// (namespaced mode) it is that of our lease, which outlives every operator that holds it. Were it the same for all, we
/// would not find the `JobQueue` of another cluster in ours, and take its keys.
pub async fn cluster_id(client: &Client, settings: &Settings) -> anyhow::Result<String> {
    let api: Api<Namespace> = Api::all(client.clone());
    let id = match api.get_metadata("kube-system").await {
        Ok(namespace) => namespace.uid(),
        Err(kube::Error::Api(status)) if status.is_forbidden() => {
            let leases: Api<Lease> = Api::namespaced(client.clone(), &settings.namespace);
            leases.get_metadata(&settings.lease).await?.uid()
        }
        Err(error) => return Err(error.into()),
    };
    id.ok_or_else(|| anyhow::anyhow!("neither kube-system nor the lease {} has a uid", settings.lease))
}
