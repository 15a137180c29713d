//! The producer with its volume, and the HTTP API with its Service.
use serde_json::{Map, Value, json};

use super::template::{self, Image};
use super::worker::{mount, pod, resources};
use super::{Child, DEPLOYMENT, Error, Plan, SERVICE};
use crate::controller::config::{API_PORT, API_SECRET_DIR};

pub(super) fn deployment(plan: &Plan) -> Result<Child, Error> {
    let Some(producer) = &plan.queue.spec.producer else {
        return Ok(Child::new(&DEPLOYMENT, plan.names.part("producer"), None));
    };
    let mut pod = pod(plan, "producer", "--role=producer");
    let path = producer.scan_dir.clone().unwrap_or_else(|| "/data".into());
    mount(&mut pod, "jobqueue-data", &path, &Value::Object(producer.volume.clone()));
    // One, and the old one gone before the new one starts: the volume may be attached to one node only.
    part(plan, "producer", 1, &json!({ "type": "Recreate" }), pod, producer.template.as_ref())
}

pub(super) fn api(plan: &Plan) -> Result<Child, Error> {
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

fn part(
    plan: &Plan,
    name: &str,
    replicas: i32,
    strategy: &Value,
    mut pod: Value,
    user: Option<&Map<String, Value>>,
) -> Result<Child, Error> {
    pod["spec"]["containers"][0]["resources"] = resources(None, Image::Ours);
    if let Some(user) = user {
        template::check(user, &format!("spec.{name}.template"), name, Image::Ours)?;
    }
    let pod = template::merged(Value::Object(user.cloned().unwrap_or_default()), pod);
    let object = json!({
        "metadata": plan.names.owned(plan.queue, &plan.names.part(name), name),
        "spec": {
            "replicas": replicas,
            "selector": { "matchLabels": plan.names.selector(name) },
            "strategy": strategy,
            "revisionHistoryLimit": 2,
            "template": pod,
        },
    });
    Ok(Child::new(&DEPLOYMENT, plan.names.part(name), Some(object)))
}

pub(super) fn api_service(plan: &Plan) -> Child {
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
