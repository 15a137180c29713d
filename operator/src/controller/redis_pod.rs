//! When the pod of a managed Redis is replaced: its set updates on delete, so that no upgrade of the operator restarts it.
use serde_json::Value;

use super::build::SETTINGS;
use super::obstacle::obstacle;

/// Whether the pod cannot start: a bad image, no room, a crash at every start.
pub fn is_stuck(pod: &Value) -> bool {
    obstacle(std::slice::from_ref(pod)).is_some()
}

/// Why the pod has to make way for one of the set's newest template, if it has to.
pub fn outdated(set: &Value, pod: &Value) -> Option<&'static str> {
    if !pod["metadata"]["deletionTimestamp"].is_null() {
        return None;
    }
    let settings = &set["spec"]["template"]["metadata"]["annotations"][SETTINGS];
    if pod["metadata"]["annotations"][SETTINGS] != *settings {
        return Some("its settings have changed");
    }
    // The set's controller waits for a pod that never becomes ready; and it may not have seen the newest template yet.
    let seen = set["status"]["observedGeneration"] == set["metadata"]["generation"];
    let newest = &set["status"]["updateRevision"];
    let has = &pod["metadata"]["labels"]["controller-revision-hash"];
    (seen && has != newest && is_stuck(pod))
        .then_some("it cannot start, and there is a newer description of it")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn set() -> Value {
        json!({
            "metadata": { "generation": 2 },
            "spec": { "template": { "metadata": { "annotations": { SETTINGS: "s" } } } },
            "status": { "observedGeneration": 2, "updateRevision": "new" },
        })
    }

    fn pod(settings: &str, revision: &str, waiting: Option<&str>) -> Value {
        let state =
            waiting.map_or(json!({ "running": {} }), |reason| json!({ "waiting": { "reason": reason } }));
        json!({
            "metadata": { "annotations": { SETTINGS: settings }, "labels": { "controller-revision-hash": revision } },
            "status": { "containerStatuses": [{ "name": "redis", "state": state }] },
        })
    }

    #[test]
    fn what_the_user_changes_replaces_the_pod() {
        assert!(outdated(&set(), &pod("other", "old", None)).is_some());
        let mut going = pod("other", "old", None);
        going["metadata"]["deletionTimestamp"] = json!("now");
        assert_eq!(outdated(&set(), &going), None);
    }

    #[test]
    fn a_new_description_alone_does_not() {
        assert_eq!(outdated(&set(), &pod("s", "old", None)), None);
        assert_eq!(outdated(&set(), &pod("s", "old", Some("ContainerCreating"))), None);
    }

    #[test]
    fn a_pod_that_cannot_start_makes_way_for_a_new_description() {
        assert!(outdated(&set(), &pod("s", "old", Some("ImagePullBackOff"))).is_some());
        assert_eq!(outdated(&set(), &pod("s", "new", Some("ImagePullBackOff"))), None, "it is of the newest");
        let mut unseen = set();
        unseen["metadata"]["generation"] = json!(3);
        assert_eq!(outdated(&unseen, &pod("s", "old", Some("ImagePullBackOff"))), None);
    }
}
