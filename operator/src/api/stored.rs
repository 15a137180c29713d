//! A `JobQueue` as the API server has it. Its schema is not the whole truth: an older one may have let something in that
//! this version cannot read, and one such object must not hide all others from us.
use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::v1alpha1::{JobQueue, JobQueueStatus};

/// A `JobQueue`, or why it is none.
#[derive(Debug, Clone)]
pub struct Stored {
    /// All of it; of one that cannot be read its metadata and its status.
    pub queue: JobQueue,
    /// What cannot be read, in words.
    pub unreadable: Option<String>,
}

impl<'de> Deserialize<'de> for Stored {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // Read by way of our JSON, which knows numbers of any precision; kube's own guard does not.
        let tree = Value::deserialize(deserializer)?;
        match JobQueue::deserialize(&tree) {
            Ok(queue) => Ok(Self { queue, unreadable: None }),
            Err(error) => {
                let metadata =
                    ObjectMeta::deserialize(&tree["metadata"]).map_err(serde::de::Error::custom)?;
                let status = JobQueueStatus::deserialize(&tree["status"]).ok();
                let queue = JobQueue { metadata, status, ..JobQueue::default() };
                Ok(Self { queue, unreadable: Some(error.to_string()) })
            }
        }
    }
}

impl Resource for Stored {
    type DynamicType = ();
    type Scope = <JobQueue as Resource>::Scope;

    fn kind((): &()) -> Cow<'_, str> {
        JobQueue::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        JobQueue::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        JobQueue::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        JobQueue::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.queue.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.queue.metadata
    }
}

#[cfg(test)]
mod tests {
    use kube::ResourceExt;
    use kube::core::ObjectList;

    use super::*;

    #[test]
    fn one_object_that_cannot_be_read_hides_no_other() {
        let text = r#"{ "apiVersion": "jobqueue.dev/v1alpha1", "kind": "JobQueueList", "metadata": {}, "items": [
            { "apiVersion": "jobqueue.dev/v1alpha1", "kind": "JobQueue",
              "metadata": { "name": "bad", "generation": 2 }, "status": { "observedGeneration": 1, "waiting": 3 },
              "spec": { "scaling": { "maxReplicas": 7 }, "worker": { "drainTimeout": "9999999h" } } },
            { "apiVersion": "jobqueue.dev/v1alpha1", "kind": "JobQueue",
              "metadata": { "name": "good", "generation": 2 }, "spec": { "scaling": { "maxReplicas": 7 } } }] }"#;
        let list: ObjectList<Stored> = serde_json::from_str(text).unwrap();
        let [bad, good] = list.items.as_slice() else { panic!("{list:?}") };
        assert_eq!(good.queue.spec.scaling.max_replicas, 7);
        assert!(good.unreadable.is_none());
        assert!(bad.unreadable.as_deref().is_some_and(|why| why.contains("must be a duration")), "{bad:?}");
        assert_eq!((bad.name_any(), bad.queue.metadata.generation), ("bad".into(), Some(2)));
        assert_eq!(bad.queue.status.as_ref().map(|status| status.waiting), Some(3));
    }
}
