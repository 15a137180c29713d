//! The names and labels of everything that belongs to a `JobQueue`.
use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Resource;
use serde_json::{Map, Value, json};

use crate::api::v1alpha1::JobQueue;

/// Our value of the label `app.kubernetes.io/managed-by`; watches select it.
pub const MANAGED_BY: &str = "jobqueue-operator";
/// The label with the name of the `JobQueue`.
pub const QUEUE_LABEL: &str = "jobqueue.dev/queue";
/// The annotation with the hash of what was applied.
pub const HASH: &str = "jobqueue.dev/hash";

/// The names of a queue's objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    /// Of the queue itself.
    pub queue: String,
    /// Where all of them live.
    pub namespace: String,
}

impl Names {
    /// The names of this queue's objects.
    pub fn of(queue: &JobQueue) -> Self {
        Self {
            queue: queue.metadata.name.clone().unwrap_or_default(),
            namespace: queue.metadata.namespace.clone().unwrap_or_default(),
        }
    }

    /// Of the part `worker`, `producer`, `api`, `redis` or `config`.
    pub fn part(&self, part: &str) -> String {
        format!("{}-{part}", self.queue)
    }

    /// Host and port of the managed Redis.
    pub fn redis_address(&self, domain: &str) -> String {
        format!("{}.{}.svc.{domain}:6379", self.part("redis"), self.namespace)
    }

    /// What selects the pods of a part; it never changes, because a Deployment's selector cannot.
    pub fn selector(&self, part: &str) -> BTreeMap<&'static str, String> {
        BTreeMap::from([(QUEUE_LABEL, self.queue.clone()), ("app.kubernetes.io/component", part.to_owned())])
    }

    /// The labels of a part's objects and pods.
    pub fn labels(&self, part: &str) -> Map<String, Value> {
        let mut labels = Map::new();
        labels.insert("app.kubernetes.io/name".into(), json!("jobqueue"));
        labels.insert("app.kubernetes.io/instance".into(), json!(self.queue));
        labels.insert("app.kubernetes.io/managed-by".into(), json!(MANAGED_BY));
        for (name, value) in self.selector(part) {
            labels.insert(name.to_owned(), json!(value));
        }
        labels
    }

    /// Whether these are the labels of an object that we made for this queue.
    pub fn are_on(&self, labels: &BTreeMap<String, String>) -> bool {
        labels.get("app.kubernetes.io/managed-by").is_some_and(|by| by == MANAGED_BY)
            && labels.get(QUEUE_LABEL) == Some(&self.queue)
    }

    /// The metadata of one of its objects that goes when the queue goes.
    pub fn owned(&self, queue: &JobQueue, name: &str, part: &str) -> Value {
        let mut metadata = self.kept(name, part);
        metadata["ownerReferences"] = json!([owner(queue)]);
        metadata
    }

    /// The metadata of one that stays: with the jobs in it.
    pub fn kept(&self, name: &str, part: &str) -> Value {
        json!({ "name": name, "namespace": self.namespace, "labels": self.labels(part) })
    }
}

fn owner(queue: &JobQueue) -> OwnerReference {
    OwnerReference {
        api_version: JobQueue::api_version(&()).into_owned(),
        kind: JobQueue::kind(&()).into_owned(),
        name: queue.metadata.name.clone().unwrap_or_default(),
        uid: queue.metadata.uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_of_the_right_name_need_not_be_ours() {
        let names = Names { queue: "shop".into(), namespace: "n".into() };
        let labels = |names: &Names| -> BTreeMap<String, String> {
            let labels = names.labels("redis").into_iter();
            labels.map(|(name, value)| (name, value.as_str().unwrap_or_default().to_owned())).collect()
        };
        assert!(names.are_on(&labels(&names)));
        assert!(!names.are_on(&BTreeMap::new()), "somebody else's");
        let other = Names { queue: "shop-2".into(), namespace: "n".into() };
        assert!(!names.are_on(&labels(&other)), "another queue's");
    }
}
