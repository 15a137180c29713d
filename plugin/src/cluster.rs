//! The cluster that was asked for, and the few things that every command asks of it.
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, DynamicObject, ListParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client, Config, ResourceExt};
use operator::api::stored::Stored;
use operator::api::v1alpha1::JobQueue;
use operator::controller::QUEUE_LABEL;

use crate::cli::{Target, Which};
use crate::error::Error;
use crate::guests::{Arrival, Guests};
use crate::table::whole;

/// Queues that were listed.
#[derive(Debug, Default)]
pub struct Listing {
    /// By namespace and name.
    pub queues: Vec<JobQueue>,
    /// Those that this version cannot read, with why: a newer operator knows more words. They hide no other.
    pub unreadable: Vec<(JobQueue, Error)>,
}

impl Listing {
    /// Those that can be read; of the others it is said that they are there.
    pub fn tell(self) -> Vec<JobQueue> {
        for (_, error) in &self.unreadable {
            eprintln!("Warning: {}", whole(&error.to_string()));
        }
        self.queues
    }

    fn of(stored: impl IntoIterator<Item = Stored>) -> Self {
        let mut listing = Self::default();
        for one in stored {
            match readable(one) {
                Ok(queue) => listing.queues.push(queue),
                Err(unreadable) => listing.unreadable.push(*unreadable),
            }
        }
        listing.queues.sort_by_key(|queue| (queue.namespace(), queue.name_any()));
        listing
    }
}

/// A queue, or what is known of it and why that is not all: pure.
fn readable(stored: Stored) -> Result<JobQueue, Box<(JobQueue, Error)>> {
    let Stored { queue, unreadable } = stored;
    let Some(why) = unreadable else { return Ok(queue) };
    let error = Error::Failed(format!(
        "this version cannot read jobqueue {} in namespace {} ({why}); kubectl jobqueue --version compares the versions",
        queue.name_any(),
        queue.namespace().unwrap_or_default()
    ));
    Err(Box::new((queue, error)))
}

/// A conversation with the cluster.
#[derive(Clone)]
pub struct Cluster {
    /// The client.
    pub client: Client,
    /// The namespace that was asked for, or that of the context.
    pub namespace: String,
    bound: Option<Duration>,
    /// Pods that were made and must be deleted before this process ends.
    guests: Guests,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

impl Cluster {
    /// The cluster of the kubeconfig, or the one that this process runs in.
    pub async fn connect(target: &Target) -> Result<Self, Error> {
        let options = KubeConfigOptions { context: target.context.clone(), ..KubeConfigOptions::default() };
        let unusable = |error: &dyn std::fmt::Display| {
            Error::Unreachable(format!(
                "cannot use the kubeconfig: {error}; check --kubeconfig and --context"
            ))
        };
        let mut config = match &target.kubeconfig {
            Some(path) => {
                let file = Kubeconfig::read_from(path).map_err(|error| unusable(&error))?;
                Config::from_custom_kubeconfig(file, &options).await.map_err(|error| unusable(&error))?
            }
            None if target.context.is_some() => {
                Config::from_kubeconfig(&options).await.map_err(|error| unusable(&error))?
            }
            None => Config::infer().await.map_err(|error| unusable(&error))?,
        };
        let bound = (!target.request_timeout.is_zero()).then_some(target.request_timeout);
        config.connect_timeout = bound;
        if target.impersonate.is_none() && !target.groups.is_empty() {
            return Err(Error::Usage("--as-group: only with --as, which says whose groups they are".into()));
        }
        if target.impersonate.is_some() {
            config.auth_info.impersonate.clone_from(&target.impersonate);
            config.auth_info.impersonate_groups = Some(target.groups.clone());
        }
        let namespace = target.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        let client = Client::try_from(config).map_err(|error| unusable(&error))?;
        Ok(Self { client, namespace, bound, guests: Guests::default() })
    }

    /// The same cluster, with pods that somebody else knows of too.
    #[must_use]
    pub fn hosting(self, guests: Guests) -> Self {
        Self { guests, ..self }
    }

    /// The same cluster, in another namespace.
    #[must_use]
    pub fn within(&self, namespace: &str) -> Self {
        Self { namespace: namespace.into(), ..self.clone() }
    }

    /// Makes a pod that is deleted however this process ends. The request is a task of its own: whoever waits for it may be
    /// called off, and what came of it is known all the same.
    pub async fn make_guest(&self, what: &str, pod: DynamicObject) -> Result<(), Error> {
        let told = self.guests.expect(&self.namespace, &pod.name_any());
        let (cluster, what) = (self.clone(), what.to_owned());
        let request = tokio::spawn(async move {
            let pods = cluster.objects("v1", "Pod", "pods");
            let params = PostParams::default();
            // Should it take too long, nobody says anything: then nothing is known.
            let answered = async {
                let answer = pods.create(&params, &pod).await;
                told.send_replace(Arrival::of(&answer));
                answer
            };
            cluster.ask(&what, answered).await.map(drop)
        });
        request.await.unwrap_or_else(|error| Err(Error::Failed(format!("cannot make a pod: {error}"))))
    }

    /// Deletes a pod that was made, or all that are left.
    pub async fn dismiss(&self, pod: Option<&str>) {
        let which = pod.map(|pod| (self.namespace.as_str(), pod));
        let delete = async |namespace: &str, pod: &str| self.within(namespace).delete_pod(pod).await;
        self.guests.dismiss(which, delete).await;
    }

    /// Deletes a pod.
    pub async fn delete_pod(&self, pod: &str) -> Result<(), Error> {
        let pods = self.objects("v1", "Pod", "pods");
        self.ask(&format!("delete pod {pod}"), pods.delete(pod, &DeleteParams::default())).await.map(drop)
    }

    /// One request, in bounded time. `what` reads like `get jobqueue hello`.
    pub async fn ask<T>(
        &self,
        what: &str,
        request: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, Error> {
        let answer = match self.bound {
            Some(bound) => tokio::time::timeout(bound, request).await.map_err(|_| {
                Error::Unreachable(format!(
                    "cannot {what}: the cluster did not answer within {}s; --request-timeout gives it longer",
                    bound.as_secs()
                ))
            })?,
            None => request.await,
        };
        answer.map_err(|error| Error::of(what, error))
    }

    /// The queues of the namespace.
    pub fn queues(&self) -> Api<JobQueue> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// One queue, which must be there.
    pub async fn queue(&self, name: &str) -> Result<JobQueue, Error> {
        let queues: Api<Stored> = Api::namespaced(self.client.clone(), &self.namespace);
        let found = self.ask(&format!("get jobqueue {name}"), queues.get(name)).await;
        found.and_then(|found| readable(found).map_err(|unreadable| unreadable.1)).map_err(|error| match error {
            Error::NotFound(said) if said.contains("not found") => Error::NotFound(format!(
                "there is no JobQueue {name} in namespace {}; kubectl jobqueue list -A shows those there are",
                self.namespace
            )),
            other => other,
        })
    }

    /// The queues that were asked for.
    pub async fn select(&self, which: &Which) -> Result<Listing, Error> {
        let Some(name) = &which.name else {
            return self.list(which.all_namespaces, which.selector.as_deref()).await;
        };
        if !which.all_namespaces {
            return Ok(Listing { queues: vec![self.queue(name).await?], unreadable: vec![] });
        }
        let mut found = self.list(true, None).await?;
        found.queues.retain(|queue| queue.name_any() == *name);
        found.unreadable.retain(|(queue, _)| queue.name_any() == *name);
        if found.queues.is_empty() && found.unreadable.is_empty() {
            return Err(Error::NotFound(format!("there is no JobQueue {name} in any namespace")));
        }
        Ok(found)
    }

    /// The queues of the namespace, or of all.
    pub async fn list(&self, everywhere: bool, selector: Option<&str>) -> Result<Listing, Error> {
        let api: Api<Stored> = if everywhere {
            Api::all(self.client.clone())
        } else {
            Api::namespaced(self.client.clone(), &self.namespace)
        };
        let what = if everywhere { "list jobqueues of all namespaces" } else { "list jobqueues" };
        let params = selector.map_or_else(ListParams::default, |labels| ListParams::default().labels(labels));
        Ok(Listing::of(self.ask(what, api.list(&params)).await?.items))
    }

    /// Pods, for what needs none of their fields: exec, logs, eviction.
    pub fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Objects of any kind, as JSON: Kubernetes' own types cannot read numbers of any precision, which ours can.
    pub fn objects(&self, version: &str, kind: &str, plural: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.namespace, &resource(version, kind, plural))
    }

    /// The pods of a queue; `part` is `worker`, `producer`, `redis`, ...
    pub async fn pods_of(&self, queue: &str, part: Option<&str>) -> Result<Vec<DynamicObject>, Error> {
        let labels = match part {
            Some(part) => format!("{QUEUE_LABEL}={queue},app.kubernetes.io/component={part}"),
            None => format!("{QUEUE_LABEL}={queue}"),
        };
        let api = self.objects("v1", "Pod", "pods");
        let params = ListParams::default().labels(&labels);
        let what = format!("list the pods of jobqueue {queue}");
        let mut pods = self.ask(&what, api.list(&params)).await?.items;
        pods.sort_by_key(ResourceExt::name_any);
        Ok(pods)
    }

    /// The events about a queue, the oldest first.
    pub async fn events_of(&self, queue: &JobQueue) -> Result<Vec<DynamicObject>, Error> {
        let params =
            ListParams::default().fields(&format!("involvedObject.uid={}", queue.uid().unwrap_or_default()));
        self.events(&format!("list the events of jobqueue {}", queue.name_any()), &params).await
    }

    /// Events of the namespace, the oldest first.
    pub async fn events(&self, what: &str, params: &ListParams) -> Result<Vec<DynamicObject>, Error> {
        let api = self.objects("v1", "Event", "events");
        let mut events = self.ask(what, api.list(params)).await?.items;
        events.sort_by_key(|event| last_seen(&event.data).map(str::to_owned));
        Ok(events)
    }
}

/// A kind of object by its names.
pub fn resource(version: &str, kind: &str, plural: &str) -> ApiResource {
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
}

/// When an event was seen last, as it is written.
pub fn last_seen(event: &serde_json::Value) -> Option<&str> {
    let places = ["/series/lastObservedTime", "/lastTimestamp", "/eventTime", "/metadata/creationTimestamp"];
    places.iter().find_map(|place| event.pointer(place)?.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn one_queue_that_cannot_be_read_is_named_and_hides_no_other() {
        let stored = |name: &str, mode: &str| -> Stored {
            serde_json::from_value(json!({
                "apiVersion": "jobqueue.dev/v1alpha1", "kind": "JobQueue",
                "metadata": { "name": name, "namespace": "a" }, "spec": { "scaling": { "mode": mode } },
            }))
            .unwrap()
        };
        let listing = Listing::of([stored("z", "Auto"), stored("newer", "Psychic"), stored("b", "Manual")]);
        let names: Vec<String> = listing.queues.iter().map(ResourceExt::name_any).collect();
        assert_eq!(names, ["b", "z"]);
        let said = listing.unreadable[0].1.to_string();
        assert!(said.contains("jobqueue newer in namespace a") && said.contains("Psychic"), "{said}");
        assert_eq!(listing.unreadable[0].1.code(), 1);
    }
}
