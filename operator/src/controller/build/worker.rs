//! The workers: their configuration and their Deployment.
use jobqueue::config::Protocol;
use serde_json::{Value, json};

use super::template::{self, Image};
use super::{CONFIG_HASH, CONFIG_MAP, Child, DEPLOYMENT, Error, Plan, container_security, pod_security};
use crate::api::v1alpha1::{App, Resources};
use crate::controller::config::{CONFIG_DIR, HANDLER_SECRET_DIR, METRICS_PORT, REDIS_SECRET_DIR};

/// Where the injected worker binary lies in the user's container.
const INJECTED: &str = "/jobqueue";

pub(super) fn config_map(plan: &Plan) -> Child {
    let name = plan.names.part("config");
    let object = json!({
        "metadata": plan.names.owned(plan.queue, &name, "config"),
        "data": { "config.yaml": plan.rendered.yaml },
    });
    Child::new(&CONFIG_MAP, name, Some(object))
}

pub(super) fn deployment(plan: &Plan) -> Result<Child, Error> {
    let name = plan.names.part("worker");
    let spec = &plan.queue.spec.worker;
    let by_type = plan.queue.spec.async_jobs.iter().flat_map(|jobs| jobs.handlers.values());
    let runs_programs = spec.handler.as_ref().is_some_and(|handler| handler.command.is_some())
        || by_type.into_iter().any(|handler| handler.command.is_some());
    let image = if runs_programs { Image::TheUsers } else { Image::Ours };
    let mut user = Value::Object(spec.template.clone().unwrap_or_default());
    if let Some(template) = &spec.template {
        template::check(template, "spec.worker.template", "worker", image)?;
    }
    let mut pod = pod(plan, "worker", "--role=worker");
    pod["spec"]["containers"][0]["resources"] = resources(spec.resources.as_ref(), image);
    pod["spec"]["containers"][0]["readinessProbe"] = probe("/readyz", 2);
    if let Some(secret) = &plan.resolved.handler_secret {
        mount(
            &mut pod,
            "jobqueue-handler",
            HANDLER_SECRET_DIR,
            &json!({ "secret": { "secretName": secret.name } }),
        );
    }
    let starting = spec.app.as_ref().map_or(0, |app| app.start_timeout.get().as_secs());
    pod["spec"]["terminationGracePeriodSeconds"] = json!(plan.queue.spec.grace().as_secs());
    if let Some(app) = &spec.app {
        let container = template::take_container(&mut user, "app").unwrap_or_default();
        if container.get("image").is_none() {
            let message = "spec.worker.app needs a container named app with an image in spec.worker.template.spec.containers";
            return Err(Error::stalled("InvalidSpec", message));
        }
        let mut defaults = json!({ "securityContext": app_security(), "startupProbe": app_probe(app) });
        if plan.rendered.config.protocol == Protocol::Sidekiq {
            rails_defaults(plan, app, &container, &mut defaults);
        }
        let sidecar = template::merge(defaults, container);
        pod["spec"]["initContainers"] =
            json!([template::merge(sidecar, json!({ "name": "app", "restartPolicy": "Always" }))]);
    }
    if image == Image::TheUsers {
        inject(plan, &mut pod, &mut user)?;
    }
    let pod = template::merged(user, pod);
    let object = json!({
        "metadata": plan.names.owned(plan.queue, &name, "worker"),
        "spec": {
            "selector": { "matchLabels": plan.names.selector("worker") },
            "strategy": { "type": "RollingUpdate", "rollingUpdate": { "maxUnavailable": 0, "maxSurge": "25%" } },
            "revisionHistoryLimit": 2,
            // After this long without progress, once an app has had its time, `WorkersAvailable` says that they fail, and why.
            "progressDeadlineSeconds": 120 + starting,
            "template": pod,
        },
    });
    Ok(Child::new(&DEPLOYMENT, name, Some(object)))
}

/// A pod of ours with one container that runs the worker binary in a role.
pub(super) fn pod(plan: &Plan, part: &str, role: &str) -> Value {
    let image = plan.queue.spec.worker.image.as_ref().unwrap_or(&plan.resolved.worker_image);
    let field = |path: &str| json!({ "fieldRef": { "fieldPath": path } });
    let mut pod = json!({
        "metadata": {
            "labels": plan.names.labels(part),
            // New pods when the configuration changes: a process reads it once.
            "annotations": { CONFIG_HASH: super::hash(&json!(plan.rendered.yaml)) },
        },
        "spec": {
            "serviceAccountName": plan.names.queue,
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "securityContext": pod_security(),
            "containers": [{
                "name": part,
                "image": image,
                "args": [role, format!("--config={CONFIG_DIR}/config.yaml")],
                "env": [
                    { "name": "WORKER_POD_UID", "valueFrom": field("metadata.uid") },
                    { "name": "WORKER_NAMESPACE", "valueFrom": field("metadata.namespace") },
                ],
                "ports": [{ "name": "metrics", "containerPort": METRICS_PORT }],
                "livenessProbe": probe("/healthz", 10),
                "securityContext": container_security(),
            }],
        },
    });
    let config = json!({ "configMap": { "name": plan.names.part("config") } });
    mount(&mut pod, "jobqueue-config", CONFIG_DIR, &config);
    let secret = if plan.managed() {
        Some(plan.names.part("redis"))
    } else {
        plan.resolved.redis_secret.as_ref().map(|secret| secret.name.clone())
    };
    if let Some(name) = secret {
        mount(&mut pod, "jobqueue-redis", REDIS_SECRET_DIR, &json!({ "secret": { "secretName": name } }));
    }
    pod
}

/// Mounts a volume, read-only, in the first container.
pub(super) fn mount(pod: &mut Value, name: &str, path: &str, source: &Value) {
    let mount = json!({ "name": name, "mountPath": path, "readOnly": true });
    push(&mut pod["spec"]["containers"][0]["volumeMounts"], mount);
    let mut volume = json!({ "name": name });
    if let (Value::Object(volume), Value::Object(source)) = (&mut volume, source.clone()) {
        volume.extend(source);
    }
    push(&mut pod["spec"]["volumes"], volume);
}

fn push(list: &mut Value, entry: Value) {
    match list {
        Value::Array(entries) => entries.push(entry),
        other => *other = json!([entry]),
    }
}

pub(super) fn probe(path: &str, period: u32) -> Value {
    json!({ "httpGet": { "path": path, "port": METRICS_PORT }, "periodSeconds": period, "timeoutSeconds": 5, "failureThreshold": 3 })
}

fn app_probe(app: &App) -> Value {
    let tries = (app.start_timeout.get().as_secs() / 5).max(1);
    let mut probe = json!({ "periodSeconds": 5, "failureThreshold": tries, "timeoutSeconds": 5 });
    match &app.health_path {
        Some(path) => probe["httpGet"] = json!({ "path": path, "port": app.port }),
        None => probe["tcpSocket"] = json!({ "port": app.port }),
    }
    probe
}

/// What the gem of `sidecar/rails` has to be told in a pod, unless the user's container says it: how many jobs it takes,
/// to listen where the kubelet's probes arrive too, to end before it is killed, to log as everything else in the pod does,
/// and who the worker is. Without a secret it takes jobs over loopback
/// alone, which in a pod is the worker's.
fn rails_defaults(plan: &Plan, app: &App, container: &Value, defaults: &mut Value) {
    let mut env = vec![
        ("JOBQUEUE_BIND", format!("tcp://0.0.0.0:{}", app.port)),
        ("JOBQUEUE_CONCURRENCY", plan.queue.spec.worker.concurrency.to_string()),
        // What still runs is told so and given back, which takes a moment too.
        ("JOBQUEUE_STOP_TIMEOUT", app.stop_timeout.get().as_secs().saturating_sub(1).to_string()),
        ("JOBQUEUE_LOG_FORMAT", "json".into()),
    ];
    let http = &plan.rendered.config.worker.handler.http;
    for (variable, file) in
        [("JOBQUEUE_TOKEN_FILE", &http.token_file), ("JOBQUEUE_HMAC_KEY_FILE", &http.hmac_key_file)]
    {
        if !file.is_empty() {
            env.push((variable, file.clone()));
            let mount =
                json!({ "name": "jobqueue-handler", "mountPath": HANDLER_SECRET_DIR, "readOnly": true });
            defaults["volumeMounts"] = json!([mount]);
        }
    }
    if defaults["volumeMounts"].is_null() {
        env.push(("JOBQUEUE_WITHOUT_SECRET", "loopback".into()));
    }
    // Not merged one by one: a value of ours beside the user's `valueFrom` would be refused.
    let said: Vec<_> =
        container["env"].as_array().into_iter().flatten().map(|entry| &entry["name"]).collect();
    env.retain(|(name, _)| !said.contains(&&json!(name)));
    defaults["env"] = env.into_iter().map(|(name, value)| json!({ "name": name, "value": value })).collect();
    if let (Some(path), None) = (&app.health_path, container.get("livenessProbe")) {
        let mut liveness = probe(path, 10);
        liveness["httpGet"]["port"] = json!(app.port);
        defaults["livenessProbe"] = liveness;
    }
}

fn app_security() -> Value {
    json!({ "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } })
}

pub(super) fn resources(wanted: Option<&Resources>, image: Image) -> Value {
    match (wanted, image) {
        (Some(resources), _) => json!(resources),
        (None, Image::Ours) => {
            json!({ "requests": { "cpu": "50m", "memory": "32Mi" }, "limits": { "memory": "256Mi" } })
        }
        (None, Image::TheUsers) => json!({ "requests": { "cpu": "50m", "memory": "32Mi" } }),
    }
}

/// The handler `command` runs in the user's image: an init container puts our static binary into it.
fn inject(plan: &Plan, pod: &mut Value, user: &mut Value) -> Result<(), Error> {
    let container = template::take_container(user, "worker").unwrap_or_default();
    let Some(image) = container.get("image").cloned() else {
        let message = "the handler command needs a container named worker with your image in spec.worker.template.spec.containers";
        return Err(Error::stalled("InvalidSpec", message));
    };
    let worker_image = pod["spec"]["containers"][0]["image"].take();
    let binary = json!({ "name": "jobqueue-binary", "mountPath": INJECTED });
    let ours = json!({
        "image": image,
        "command": [format!("{INJECTED}/worker")],
        "volumeMounts": [{ "name": "jobqueue-binary", "mountPath": INJECTED, "readOnly": true }],
    });
    let base = pod["spec"]["containers"][0].take();
    // What the user says of rights and resources holds here: the user's program runs in this container.
    let mut merged = template::merge(template::merge(base.clone(), container), ours);
    let args = base["args"].clone();
    merged["args"] = args;
    pod["spec"]["containers"][0] = merged;
    push(
        &mut pod["spec"]["volumes"],
        json!({ "name": "jobqueue-binary", "emptyDir": { "sizeLimit": "256Mi" } }),
    );
    let init = json!({
        "name": "jobqueue-install",
        "image": worker_image,
        "args": ["install", format!("{INJECTED}/worker")],
        "volumeMounts": [binary],
        "securityContext": container_security(),
        "resources": { "requests": { "cpu": "10m", "memory": "16Mi" }, "limits": { "memory": "64Mi" } },
    });
    push(&mut pod["spec"]["initContainers"], init);
    if let Some(producer) = &plan.queue.spec.producer {
        let path = producer.scan_dir.clone().unwrap_or_else(|| "/data".into());
        mount(pod, "jobqueue-data", &path, &Value::Object(producer.volume.clone()));
    }
    Ok(())
}
