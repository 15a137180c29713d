//! Versions and how far they may differ: client, operator and workers of one minor version more or less understand each
//! other. Pure, but for the asking.
use kube::api::{DynamicObject, ListParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::cli::Target;
use crate::cluster::{Cluster, resource};
use crate::error::Error;
use crate::print;

/// Of this program.
pub const CLIENT: &str = jobqueue::VERSION;
/// The label that the chart puts on what it installs.
const LABEL: &str = "app.kubernetes.io/version";
/// Where the operator is installed by default, for those who may not look everywhere.
const USUAL_NAMESPACE: &str = "jobqueue-system";

/// The Deployment of an operator, as far as the asker may see it.
pub async fn operators(cluster: &Cluster) -> Result<Vec<DynamicObject>, Error> {
    let kind = resource("apps/v1", "Deployment", "deployments");
    let params = ListParams::default().labels("app.kubernetes.io/name=jobqueue-operator");
    let everywhere: Api<DynamicObject> = Api::all_with(cluster.client.clone(), &kind);
    let found = cluster.ask("list the operator's Deployments", everywhere.list(&params)).await;
    let found = match found {
        Err(Error::Forbidden(_)) => {
            let usual: Api<DynamicObject> =
                Api::namespaced_with(cluster.client.clone(), USUAL_NAMESPACE, &kind);
            cluster.ask("list the operator's Deployments", usual.list(&params)).await?
        }
        found => found?,
    };
    Ok(found.items)
}

/// The version that an object says it is of.
pub fn of(object: &DynamicObject) -> Option<String> {
    object.labels().get(LABEL).cloned()
}

/// The versions of the images that the workers of the namespace run, by their own words: `worker --version`.
async fn workers(cluster: &Cluster) -> Result<Vec<String>, Error> {
    let kind = cluster.objects("v1", "Pod", "pods");
    let params =
        ListParams::default().labels("app.kubernetes.io/component=worker,app.kubernetes.io/name=jobqueue");
    let pods = cluster.ask("list the workers' pods", kind.list(&params)).await?.items;
    let mut versions: Vec<String> = vec![];
    let mut images: Vec<Value> = vec![];
    for pod in pods.iter().filter(|pod| pod.data["status"]["phase"] == "Running") {
        let image = pod.data["spec"]["containers"][0]["image"].clone();
        if images.contains(&image) {
            continue;
        }
        images.push(image);
        versions.push(crate::remote::version_in(cluster, pod).await?);
    }
    Ok(versions)
}

/// `--version`.
pub async fn run(target: &Target) -> Result<(), Error> {
    print::text(&format!("client    {CLIENT}\n"))?;
    let cluster = match Cluster::connect(target).await {
        Ok(cluster) => cluster,
        // Without a cluster there is a client all the same.
        Err(error) => return print::text(&format!("operator  not known: {error}\n")),
    };
    let mut all = vec![];
    match operators(&cluster).await {
        Ok(found) if found.is_empty() => print::text("operator  none is installed (docs/install.md)\n")?,
        Ok(found) => {
            for operator in found {
                let version = of(&operator).unwrap_or_else(|| "not known".into());
                print::text(&format!(
                    "operator  {version} (namespace {})\n",
                    operator.namespace().unwrap_or_default()
                ))?;
                all.push(("operator", version));
            }
        }
        Err(error) => print::text(&format!("operator  not known: {error}\n"))?,
    }
    match workers(&cluster).await {
        Ok(found) if found.is_empty() => {
            print::text(&format!("workers   none run in namespace {}\n", cluster.namespace))?;
        }
        Ok(found) => {
            for version in found {
                print::text(&format!("workers   {version} (namespace {})\n", cluster.namespace))?;
                all.push(("workers", version));
            }
        }
        Err(error) => print::text(&format!("workers   not known: {error}\n"))?,
    }
    for (who, version) in &all {
        if let Some(skew) = skew(CLIENT, who, version) {
            eprintln!("Warning: {skew}");
        }
    }
    Ok(())
}

/// What there is to say about two versions: nothing when they are equal but for the patch.
pub fn skew(client: &str, who: &str, other: &str) -> Option<String> {
    let (ours, theirs) = (parts(client)?, parts(other)?);
    if ours == theirs {
        return None;
    }
    let near = ours.0 == theirs.0 && ours.1.abs_diff(theirs.1) <= 1;
    Some(if near {
        format!(
            "{who} {other} and client {client} differ by one minor version: that works, what is newer is missing"
        )
    } else {
        format!(
            "{who} {other} and client {client} differ by more than one minor version: install the same version of both"
        )
    })
}

fn parts(version: &str) -> Option<(u64, u64)> {
    let mut parts = version.trim_start_matches('v').split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// The fields that we know and a CRD does not have, by their paths.
pub fn missing_fields(ours: &Value, theirs: &Value) -> Vec<String> {
    let schema =
        |crd: &Value| crd.pointer("/spec/versions/0/schema/openAPIV3Schema").cloned().unwrap_or(json!({}));
    let mut missing = vec![];
    compare(&schema(ours), &schema(theirs), "", &mut missing);
    missing
}

fn compare(ours: &Value, theirs: &Value, path: &str, missing: &mut Vec<String>) {
    for (name, field) in ours["properties"].as_object().into_iter().flatten() {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        match theirs["properties"].get(name) {
            None => missing.push(path),
            Some(other) => compare(field, other, &path, missing),
        }
    }
    if !ours["items"].is_null() {
        compare(&ours["items"], &theirs["items"], &format!("{path}[]"), missing);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::CustomResourceExt as _;
    use operator::api::v1alpha1::JobQueue;

    #[test]
    fn one_minor_version_is_tolerated_and_named() {
        assert_eq!(skew("0.3.1", "operator", "0.3.9"), None);
        assert!(skew("0.3.1", "operator", "0.2.0").unwrap().contains("that works"));
        assert!(skew("0.3.1", "workers", "0.5.0").unwrap().contains("install the same version"));
        assert!(skew("1.0.0", "workers", "0.9.0").unwrap().contains("install the same version"));
        assert_eq!(skew("0.3.1", "operator", "dev"), None, "nothing is known of it");
    }

    #[test]
    fn a_field_that_the_cluster_does_not_know_is_named_by_its_path() {
        let ours = serde_json::to_value(JobQueue::crd()).unwrap();
        assert!(missing_fields(&ours, &ours).is_empty());
        let mut theirs = ours.clone();
        let scaling = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/scaling/properties";
        theirs.pointer_mut(scaling).unwrap().as_object_mut().unwrap().remove("targetLatency");
        assert_eq!(missing_fields(&ours, &theirs), ["spec.scaling.targetLatency"]);
    }
}
