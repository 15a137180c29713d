//! The HTTP API: its pods, its address, how many of them may go at once, and who may reach them.
use serde_json::json;

use super::part::part;
use super::worker::{mount, pod, probe};
use super::{Child, DEPLOYMENT, DISRUPTION_BUDGET, Error, NETWORK_POLICY, Plan, SERVICE};
use crate::controller::config::{API_PORT, API_SECRET_DIR, METRICS_PORT};

pub(super) fn deployment(plan: &Plan) -> Result<Child, Error> {
    let Some(api) = &plan.queue.spec.api else {
        return Ok(Child::new(&DEPLOYMENT, plan.names.part("api"), None));
    };
    let mut pod = pod(plan, "api", "--role=api");
    if let Some(ports) = pod["spec"]["containers"][0]["ports"].as_array_mut() {
        ports.push(json!({ "name": "http", "containerPort": API_PORT }));
    }
    pod["spec"]["containers"][0]["readinessProbe"] = probe("/readyz", 2);
    // Requests end within the drain timeout; some seconds for the kubelet to notice.
    let drain = plan.queue.spec.worker.drain_timeout.get().as_secs();
    pod["spec"]["terminationGracePeriodSeconds"] = json!(drain + 5);
    if let Some(secret) = &plan.resolved.api_secret {
        mount(&mut pod, "jobqueue-api", API_SECRET_DIR, &json!({ "secret": { "secretName": secret.name } }));
    }
    let strategy =
        json!({ "type": "RollingUpdate", "rollingUpdate": { "maxUnavailable": 0, "maxSurge": "25%" } });
    part(plan, "api", api.replicas, &strategy, pod, api.template.as_ref())
}

pub(super) fn service(plan: &Plan) -> Child {
    let name = plan.names.part("api");
    let object = plan.queue.spec.api.as_ref().map(|_| {
        json!({
            "metadata": plan.names.owned(plan.queue, &name, "api"),
            "spec": {
                "selector": plan.names.selector("api"),
                "ports": [{ "name": "http", "port": 80, "targetPort": "http" }],
            },
        })
    });
    Child::new(&SERVICE, name, object)
}

pub(super) fn disruption_budget(plan: &Plan) -> Child {
    let name = plan.names.part("api");
    let object = plan.queue.spec.api.as_ref().map(|_| {
        json!({
            "metadata": plan.names.owned(plan.queue, &name, "api"),
            "spec": {
                "maxUnavailable": 1,
                "selector": { "matchLabels": plan.names.selector("api") },
                // A pod that is not ready serves nobody: it may always go.
                "unhealthyPodEvictionPolicy": "AlwaysAllow",
            },
        })
    });
    Child::new(&DISRUPTION_BUDGET, name, object)
}

/// Pods of the namespace may ask; whoever else may, such as an ingress controller, is named by a policy of the user's
/// own: policies add up. Metrics and probes are for everybody, as in the other pods.
pub(super) fn network_policy(plan: &Plan) -> Child {
    let name = plan.names.part("api");
    let object = plan.queue.spec.api.as_ref().map(|_| {
        json!({
            "metadata": plan.names.owned(plan.queue, &name, "api"),
            "spec": {
                "podSelector": { "matchLabels": plan.names.selector("api") },
                "policyTypes": ["Ingress"],
                "ingress": [
                    { "from": [{ "podSelector": {} }], "ports": [{ "port": API_PORT, "protocol": "TCP" }] },
                    { "ports": [{ "port": METRICS_PORT, "protocol": "TCP" }] },
                ],
            },
        })
    });
    Child::new(&NETWORK_POLICY, name, object)
}
