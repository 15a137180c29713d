//! Lets go of every `JobQueue`, so that they and their namespaces can be deleted when no operator is left.
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use crate::api::v1alpha1::JobQueue;
use crate::controller::FINALIZER;
use crate::crd::{Lack, queues, spaces};

/// Takes our finalizer off every `JobQueue` of these namespaces; empty means all.
pub async fn release_all(client: &Client, namespaces: &[String]) -> Result<(), kube::Error> {
    for space in spaces(namespaces) {
        let Err(error) = release(client, space).await else { continue };
        let Some(why) = nothing_to_release(&error, space) else { return Err(error) };
        tracing::warn!(namespace = space, error = %error, "Released nothing: {why}");
    }
    Ok(())
}

async fn release(client: &Client, space: Option<&str>) -> Result<(), kube::Error> {
    for queue in queues(client, space).list_metadata(&ListParams::default()).await?.items {
        let kept: Vec<&String> = queue.finalizers().iter().filter(|name| *name != FINALIZER).collect();
        if kept.len() == queue.finalizers().len() {
            continue;
        }
        let (namespace, name) = (queue.namespace().unwrap_or_default(), queue.name_any());
        let api: Api<JobQueue> = Api::namespaced(client.clone(), &namespace);
        let patch = json!({ "metadata": { "finalizers": kept } });
        match api.patch_metadata(&name, &PatchParams::default(), &Patch::Merge(&patch)).await {
            // Deleted since it was listed.
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            answer => {
                answer?;
                println!("jobqueue {namespace}/{name}: released");
            }
        }
    }
    Ok(())
}

/// Why an uninstallation goes on though a namespace answers so. Without any right at all it does not: then there may be
/// `JobQueue`s in every namespace, which nobody could delete afterwards.
fn nothing_to_release(error: &kube::Error, space: Option<&str>) -> Option<&'static str> {
    match (Lack::of(error), space) {
        (Lack::Crd, _) => Some("the CRD is gone, and with it every JobQueue"),
        (Lack::Right, Some(_)) => Some("the namespace is gone, or our Role in it"),
        (Lack::Right, None) | (Lack::Answer, _) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_uninstallation_goes_on_without_the_crd_or_a_namespace_and_not_without_any_right() {
        let answer = |code: u16| {
            let status = json!({ "status": "Failure", "code": code, "message": "no", "reason": "" });
            kube::Error::Api(serde_json::from_value(status).unwrap())
        };
        for (code, space, goes_on) in [
            (404, None, true),
            (404, Some("shop"), true),
            (403, Some("shop"), true),
            (403, None, false),
            (500, None, false),
            (500, Some("shop"), false),
        ] {
            let why = nothing_to_release(&answer(code), space);
            assert_eq!(why.is_some(), goes_on, "{code} in {space:?}: {why:?}");
        }
    }
}
