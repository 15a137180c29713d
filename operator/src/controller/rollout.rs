//! What a Deployment says about its pods.
use serde_json::Value;

use crate::observer::Asked;

/// How far a Deployment is with what it was asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rollout {
    /// How many pods it was asked for, and in which generation.
    pub asked: Asked,
    /// The generation that its controller has looked at.
    observed: i64,
    /// Pods that are there, those that end not counted.
    replicas: i64,
    /// Of those, how many are of the newest template.
    updated: i64,
    /// Of those, how many are ready.
    ready: i64,
}

impl Rollout {
    /// Reads it from the live object.
    pub fn of(deployment: &Value) -> Self {
        let count = |path: &str| deployment.pointer(path).and_then(Value::as_i64).unwrap_or(0);
        let asked = Asked {
            replicas: i32::try_from(count("/spec/replicas")).unwrap_or(i32::MAX),
            deployment: deployment["metadata"]["uid"].as_str().unwrap_or_default().to_owned(),
            generation: count("/metadata/generation"),
        };
        Self {
            asked,
            observed: count("/status/observedGeneration"),
            replicas: count("/status/replicas"),
            updated: count("/status/updatedReplicas"),
            ready: count("/status/readyReplicas"),
        }
    }

    /// Whether none of its pods is of an old template: in the middle of a rollout it takes from old and new as it likes.
    pub fn is_calm(&self) -> bool {
        self.observed >= self.asked.generation && self.updated == self.replicas
    }

    /// Whether all pods that were asked for are there, and of the newest template.
    pub fn is_over(&self) -> bool {
        self.is_calm() && self.updated >= i64::from(self.asked.replicas)
    }

    /// Whether fewer pods are ready than were asked for.
    pub fn is_starting(&self) -> bool {
        self.ready < i64::from(self.asked.replicas)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A Deployment of three replicas in its second generation.
    fn with(observed: i64, updated: i64, all: i64) -> Rollout {
        Rollout::of(
            &json!({ "metadata": { "generation": 2, "uid": "d" }, "spec": { "replicas": 3 }, "status": {
            "observedGeneration": observed, "updatedReplicas": updated, "replicas": all, "readyReplicas": updated } }),
        )
    }

    #[test]
    fn a_rollout_is_no_time_for_fewer_workers() {
        assert!(with(2, 3, 3).is_calm());
        assert!(with(2, 2, 2).is_calm(), "a pod that cannot be made is no rollout");
        assert!(!with(2, 1, 4).is_calm(), "pods of the old template are left");
        assert!(!with(1, 3, 3).is_calm(), "the new template was not looked at yet");
    }

    #[test]
    fn a_rollout_is_over_when_only_new_pods_are_left() {
        assert!(with(2, 3, 3).is_over());
        for going in [with(1, 3, 3), with(2, 2, 3), with(2, 3, 4), with(2, 2, 2)] {
            assert!(!going.is_over(), "{going:?}");
        }
    }

    #[test]
    fn what_was_asked_for_is_known_with_its_generation() {
        let asked = Asked { replicas: 3, deployment: "d".into(), generation: 2 };
        assert_eq!(with(2, 3, 3).asked, asked);
        assert!(with(2, 2, 3).is_starting() && !with(2, 3, 3).is_starting());
    }
}
