//! The HTTP API with its Service.
use serde_json::json;

use super::part::part;
use super::worker::{mount, pod};
use super::{Child, DEPLOYMENT, Error, Plan, SERVICE};
use crate::controller::config::{API_PORT, API_SECRET_DIR};

pub(super) fn deployment(plan: &Plan) -> Result<Child, Error> {
    let Some(api) = &plan.queue.spec.api else {
        return Ok(Child::new(&DEPLOYMENT, plan.names.part("api"), None));
    };
    let mut pod = pod(plan, "api", "--role=api");
    if let Some(ports) = pod["spec"]["containers"][0]["ports"].as_array_mut() {
        ports.push(json!({ "name": "http", "containerPort": API_PORT }));
    }
    if let Some(secret) = &plan.resolved.api_secret {
        mount(&mut pod, "jobqueue-api", API_SECRET_DIR, &json!({ "secret": { "secretName": secret.name } }));
    }
    let strategy =
        json!({ "type": "RollingUpdate", "rollingUpdate": { "maxUnavailable": 0, "maxSurge": "25%" } });
    part(plan, "api", api.replicas.unwrap_or(2), &strategy, pod, api.template.as_ref())
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
