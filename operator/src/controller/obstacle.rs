//! What keeps workers from starting, in the words of their pods: the Deployment does not tell.
use serde_json::Value;

/// Waiting for these is how every container starts.
const USUAL: &[&str] = &["ContainerCreating", "PodInitializing"];

/// The first thing that is wrong with one of these pods.
pub fn obstacle(pods: &[Value]) -> Option<String> {
    pods.iter().find_map(|pod| unscheduled(pod).or_else(|| waiting(pod)))
}

fn unscheduled(pod: &Value) -> Option<String> {
    let conditions = pod["status"]["conditions"].as_array()?;
    let refused = conditions.iter().find(|one| one["type"] == "PodScheduled" && one["status"] == "False")?;
    Some(format!("a pod cannot be scheduled: {}", refused["message"].as_str().unwrap_or_default()))
}

fn waiting(pod: &Value) -> Option<String> {
    let lists = ["initContainerStatuses", "containerStatuses"];
    let containers = lists.into_iter().filter_map(|list| pod["status"][list].as_array()).flatten();
    containers.into_iter().find_map(|container| {
        let state = &container["state"]["waiting"];
        let reason = state["reason"].as_str().filter(|reason| !USUAL.contains(reason))?;
        let message = state["message"].as_str().unwrap_or_default();
        Some(format!("container {}: {reason} {message}", container["name"].as_str().unwrap_or_default()))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_that_starts_as_usual_has_no_obstacle() {
        let pod = json!({ "status": { "conditions": [{ "type": "PodScheduled", "status": "True" }],
            "containerStatuses": [{ "name": "worker", "state": { "waiting": { "reason": "ContainerCreating" } } }] } });
        assert_eq!(obstacle(&[pod]), None);
    }

    #[test]
    fn a_bad_image_and_a_full_cluster_are_told_in_their_own_words() {
        let image = json!({ "status": { "containerStatuses": [{ "name": "worker", "state": { "waiting": {
            "reason": "ErrImagePull", "message": "no such image" } } }] } });
        assert_eq!(obstacle(&[image]).as_deref(), Some("container worker: ErrImagePull no such image"));
        let full = json!({ "status": { "conditions": [{ "type": "PodScheduled", "status": "False", "message": "0/2 nodes are available" }] } });
        assert_eq!(obstacle(&[full]).as_deref(), Some("a pod cannot be scheduled: 0/2 nodes are available"));
    }
}
