//! The HTTP API: its pods, its address, how many of them may go at once, and who may reach them.
use serde_json::{Value, json};

use super::part::part;
use super::worker::{mount, pod, probe};
use super::{Child, DEPLOYMENT, DISRUPTION_BUDGET, Error, NETWORK_POLICY, Plan, SERVICE};
use crate::api::v1alpha1::Api;
use crate::controller::config::{API_PORT, API_SECRET_DIR, METRICS_PORT};
use crate::controller::quantity;

pub(super) fn deployment(plan: &Plan) -> Result<Child, Error> {
    let Some(api) = &plan.queue.spec.api else {
        return Ok(Child::new(&DEPLOYMENT, plan.names.part("api"), None));
    };
    let mut pod = pod(plan, "api", "--role=api");
    if let Some(ports) = pod["spec"]["containers"][0]["ports"].as_array_mut() {
        ports.push(json!({ "name": "http", "containerPort": API_PORT }));
    }
    pod["spec"]["containers"][0]["readinessProbe"] = probe("/readyz", 2);
    pod["spec"]["containers"][0]["resources"] = resources(api)?;
    // Requests end within the drain timeout, which is the same for all roles: they read one configuration. Some seconds for
    // the kubelet to notice.
    let drain = plan.queue.spec.drain_timeout().as_secs();
    pod["spec"]["terminationGracePeriodSeconds"] = json!(drain + 5);
    if let Some(secret) = &plan.resolved.api_secret {
        mount(&mut pod, "jobqueue-api", API_SECRET_DIR, &json!({ "secret": { "secretName": secret.name } }));
    }
    let strategy =
        json!({ "type": "RollingUpdate", "rollingUpdate": { "maxUnavailable": 0, "maxSurge": "25%" } });
    part(plan, "api", api.replicas, &strategy, pod, api.template.as_ref())
}

const MIB: u64 = 1 << 20;

/// What bodies and answers of this limit may need: 64 MiB and one of the largest of bodies, twice, as they came and as
/// the jobs that are written; as much of answers; and the largest twice more while it is sent. And what a process needs.
fn memory(body_limit: u64) -> u64 {
    (240 * MIB + 5 * body_limit).next_multiple_of(16 * MIB)
}

fn resources(api: &Api) -> Result<Value, Error> {
    let body_limit = api.body_limit.and_then(|limit| u64::try_from(limit).ok()).unwrap_or(MIB);
    let needed = format!("{}Mi", memory(body_limit) / MIB);
    let Some(wanted) = &api.resources else {
        let ours = json!({ "requests": { "cpu": "50m", "memory": "32Mi" }, "limits": { "memory": needed } });
        return Ok(ours);
    };
    let wanted = json!(wanted);
    let limit = &wanted["limits"]["memory"];
    if quantity::bytes(limit).is_some_and(|bytes| bytes < memory(body_limit)) {
        let message = format!(
            "spec.api.resources.limits.memory = {limit}: requests may need {needed} with spec.api.bodyLimit = {body_limit}; raise the one or lower the other"
        );
        return Err(Error::stalled("InvalidSpec", message));
    }
    Ok(wanted)
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
