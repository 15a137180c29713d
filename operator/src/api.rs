//! The API that users write: one version, the custom resource and nothing else.
pub mod conditions;
pub mod reference;
pub mod stored;
pub mod v1alpha1;

use kube::CustomResourceExt;

/// The custom resource definition as YAML, as it stands in `crds/`.
pub fn crd_yaml() -> Result<String, serde_saphyr::ser::Error> {
    let crd = serde_json::to_value(v1alpha1::JobQueue::crd()).unwrap_or_default();
    serde_saphyr::to_string(&jobqueue::config::Plain(&crd))
}
