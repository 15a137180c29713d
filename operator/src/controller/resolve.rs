//! What a `JobQueue` refers to and the cluster decides: looked up before anything is built.
use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Secret;
use kube::Api;

use super::names::Names;
use super::{Context, Error};
use crate::api::v1alpha1::JobQueue;

/// What was looked up.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Resolved {
    /// The image of workers that name none.
    pub worker_image: String,
    /// The image of a managed Redis that names none.
    pub redis_image: String,
    /// What the names of services end with.
    pub cluster_domain: String,
    /// The namespace that the operator runs in.
    pub operator_namespace: String,
    /// The Secret with the credentials of Redis.
    pub redis_secret: Option<SecretData>,
    /// The Secret of `handler.http.secretRef`.
    pub handler_secret: Option<SecretData>,
    /// The Secret of `api.tokenSecretRef`.
    pub api_secret: Option<SecretData>,
    /// Whether the cluster has the kind `PodMonitor`.
    pub pod_monitors: bool,
}

/// A Secret: its name and what is in it.
#[derive(Clone, Default, PartialEq)]
pub struct SecretData {
    /// Its name.
    pub name: String,
    /// Its annotations.
    pub annotations: BTreeMap<String, String>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    data: BTreeMap<String, Vec<u8>>,
}

impl std::fmt::Debug for SecretData {
    /// The names of the keys, never what they hold.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SecretData")
            .field("name", &self.name)
            .field("keys", &self.data.keys())
            .finish_non_exhaustive()
    }
}

impl SecretData {
    /// One from its parts.
    pub fn new(name: &str, data: BTreeMap<String, Vec<u8>>) -> Self {
        Self { name: name.to_owned(), data, ..Self::default() }
    }

    /// Whether it has this key.
    pub fn has(&self, key: &str) -> bool {
        self.data.contains_key(key)
    }

    /// The bytes of a key.
    pub fn bytes(&self, key: &str) -> Option<&[u8]> {
        self.data.get(key).map(Vec::as_slice)
    }

    /// The text of a key, without the line end that editors leave.
    pub fn text(&self, key: &str) -> Option<String> {
        let text = String::from_utf8(self.data.get(key)?.clone()).ok()?;
        Some(text.trim_end_matches(['\r', '\n']).to_owned())
    }
}

impl Resolved {
    /// Looks up everything that this queue refers to.
    pub async fn of(queue: &JobQueue, context: &Context) -> Result<Self, Error> {
        let spec = &queue.spec;
        let external = spec.redis.as_ref().and_then(|redis| redis.external.as_ref());
        let names = Names::of(queue);
        let redis_secret = match external {
            None => context.find_secret(&names.namespace, &names.part("redis")).await?,
            Some(external) => match &external.secret_ref {
                None => None,
                Some(reference) => {
                    // Certificates, or a password for the Sentinels alone, are good for something too.
                    let others = external.tls.is_some() || external.sentinel.is_some();
                    let needed = if others { &[][..] } else { &["password"][..] };
                    let field = "spec.redis.external.secretRef";
                    Some(context.secret(&names.namespace, &reference.name, field, needed).await?)
                }
            },
        };
        let http = spec.worker.handler.as_ref().and_then(|handler| handler.http.as_ref());
        let handler_secret = match http.and_then(|http| http.secret_ref.as_ref()) {
            None => None,
            Some(reference) => {
                let field = "spec.worker.handler.http.secretRef";
                let secret = context.secret(&names.namespace, &reference.name, field, &[]).await?;
                let either = ["token", "hmac"].iter().filter(|key| secret.has(key)).count();
                if either > 1 || (either == 0 && !secret.has("ca.crt") && !secret.has("tls.crt")) {
                    return Err(Error::stalled(
                        "InvalidSecret",
                        format!(
                            "{field}: Secret {} must have one of the keys token and hmac, and not both (ca.crt, tls.crt and \
                             tls.key may stand beside it, or alone)",
                            reference.name
                        ),
                    ));
                }
                Some(secret)
            }
        };
        let api_secret = match spec.api.as_ref().and_then(|api| api.token_secret_ref.as_ref()) {
            None => None,
            Some(reference) => {
                let field = "spec.api.tokenSecretRef";
                Some(context.secret(&names.namespace, &reference.name, field, &["tokens"]).await?)
            }
        };
        Ok(Self {
            worker_image: context.settings.worker_image.clone(),
            redis_image: context.settings.redis_image.clone(),
            cluster_domain: context.settings.cluster_domain.clone(),
            operator_namespace: context.settings.namespace.clone(),
            redis_secret,
            handler_secret,
            api_secret,
            pod_monitors: context.pod_monitors.are_known(&context.client).await,
        })
    }
}

impl Context {
    /// A Secret that may not exist.
    pub async fn find_secret(&self, namespace: &str, name: &str) -> Result<Option<SecretData>, Error> {
        let api: Api<Secret> = Api::namespaced(self.client.clone(), namespace);
        let found = api.get_opt(name).await?;
        let data =
            |secret: Secret| secret.data.unwrap_or_default().into_iter().map(|(key, value)| (key, value.0));
        Ok(found.map(|secret| {
            let annotations = secret.metadata.annotations.clone().unwrap_or_default();
            let labels = secret.metadata.labels.clone().unwrap_or_default();
            SecretData { annotations, labels, ..SecretData::new(name, data(secret).collect()) }
        }))
    }

    /// A Secret that a user named in `field`: it must exist and have these keys.
    async fn secret(
        &self,
        namespace: &str,
        name: &str,
        field: &str,
        needed: &[&str],
    ) -> Result<SecretData, Error> {
        let Some(secret) = self.find_secret(namespace, name).await? else {
            let message = format!("{field}: there is no Secret {name} in namespace {namespace}: create it");
            return Err(Error::stalled("SecretNotFound", message));
        };
        for key in needed {
            if !secret.has(key) {
                let message = format!("{field}: Secret {name} has no key {key}: add it");
                return Err(Error::stalled("InvalidSecret", message));
            }
        }
        Ok(secret)
    }
}
