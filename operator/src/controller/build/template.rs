//! The user's partial pod template, merged under what we render. Pure.
use serde_json::{Map, Value, json};

use super::Error;

/// Fields of the pod that are ours, with the reason and where to say it instead.
const REFUSED_OF_POD: &[(&str, &str)] = &[
    ("restartPolicy", "workers always restart"),
    (
        "terminationGracePeriodSeconds",
        "it is computed: set spec.worker.drainTimeout and spec.worker.app.stopTimeout",
    ),
    ("enableServiceLinks", "it would put the addresses of services into the worker's configuration"),
];

/// Fields of our own container that are ours.
const REFUSED_OF_CONTAINER: &[(&str, &str)] = &[
    ("command", "the operator sets it"),
    ("args", "the operator sets it"),
    ("ports", "the operator sets it"),
    ("livenessProbe", "the operator sets it"),
    ("readinessProbe", "the operator sets it"),
    ("startupProbe", "the operator sets it"),
    ("lifecycle", "a hook would run before the worker stops taking jobs"),
];

/// Fields of our container that are the user's when the user's image runs in it.
const REFUSED_WITHOUT_COMMAND: &[(&str, &str)] = &[
    ("image", "set spec.worker.image"),
    ("resources", "set spec.worker.resources or spec.api.resources"),
    ("securityContext", "the worker needs no rights"),
];

/// Variables that say who the process is.
const REFUSED_VARIABLES: &[&str] = &["WORKER_POD_UID", "WORKER_NAMESPACE", "WORKER_JOBQUEUE_UID"];

/// Whose image runs in our container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Image {
    Ours,
    TheUsers,
}

/// What the template at `field` says of our container `name`; an error names what it may not say.
pub(super) fn check(
    template: &Map<String, Value>,
    field: &str,
    name: &str,
    image: Image,
) -> Result<(), Error> {
    let refuse = |path: String, why: &str| {
        Err(Error::stalled("InvalidSpec", format!("{field}.{path} cannot be set: {why}")))
    };
    for part in template.keys() {
        if part != "metadata" && part != "spec" {
            return refuse(part.clone(), "a pod template has metadata and spec");
        }
    }
    let template = Value::Object(template.clone());
    for part in ["labels", "annotations"] {
        let mut names = template["metadata"][part].as_object().into_iter().flat_map(Map::keys);
        let ours = |label: &&String| {
            label.starts_with("jobqueue.dev/")
                || (part == "labels" && label.starts_with("app.kubernetes.io/"))
        };
        if let Some(label) = names.find(ours) {
            return refuse(format!("metadata.{part}.{label}"), "the operator sets it");
        }
    }
    let pod = &template["spec"];
    for (key, why) in REFUSED_OF_POD {
        if pod.get(key).is_some() {
            return refuse(format!("spec.{key}"), why);
        }
    }
    if let Some(volume) = names_in(&pod["volumes"]).find(|name| name.starts_with("jobqueue-")) {
        return refuse(
            format!("spec.volumes[{volume}]"),
            "names that begin with jobqueue- are the operator's",
        );
    }
    for list in ["containers", "initContainers"] {
        for container in pod[list].as_array().into_iter().flatten() {
            let of = container["name"].as_str().unwrap_or_default();
            let path = format!("spec.{list}[{of}]");
            if of == "app" && container["lifecycle"].get("preStop").is_some() {
                let why = "it would run when the pod begins to stop, before the worker has finished its jobs";
                return refuse(format!("{path}.lifecycle.preStop"), why);
            }
            if of == "app" && container.get("restartPolicy").is_some() {
                return refuse(format!("{path}.restartPolicy"), "the operator sets it");
            }
            if of != name {
                continue;
            }
            let of_ours = if image == Image::Ours { REFUSED_WITHOUT_COMMAND } else { &[] };
            for (key, why) in REFUSED_OF_CONTAINER.iter().chain(of_ours) {
                if container.get(key).is_some() {
                    return refuse(format!("{path}.{key}"), why);
                }
            }
            if let Some(variable) = names_in(&container["env"]).find(|name| REFUSED_VARIABLES.contains(name))
            {
                return refuse(format!("{path}.env[{variable}]"), "the operator sets it");
            }
        }
    }
    Ok(())
}

fn names_in(list: &Value) -> impl Iterator<Item = &str> {
    list.as_array().into_iter().flatten().filter_map(|entry| entry["name"].as_str())
}

/// `over` laid over `base`: objects field by field, lists of named things by their names, mounts by their paths.
pub(super) fn merge(base: Value, over: Value) -> Value {
    match (base, over) {
        (Value::Object(mut base), Value::Object(over)) => {
            for (name, value) in over {
                let merged = match base.remove(&name) {
                    Some(below) => merge(below, value),
                    None => value,
                };
                base.insert(name, merged);
            }
            Value::Object(base)
        }
        (Value::Array(base), Value::Array(over)) => Value::Array(merge_lists(base, over)),
        (_, over) => over,
    }
}

/// Ours first, in our order: the order of containers and of init containers means something.
fn merge_lists(base: Vec<Value>, over: Vec<Value>) -> Vec<Value> {
    let key = |entry: &Value| entry.get("mountPath").or_else(|| entry.get("name")).cloned();
    let mut below = base;
    let mut merged: Vec<Value> = over
        .into_iter()
        .map(|entry| {
            let same =
                key(&entry).and_then(|name| below.iter().position(|other| key(other) == Some(name.clone())));
            match same {
                Some(at) => merge(below.remove(at), entry),
                None => entry,
            }
        })
        .collect();
    merged.append(&mut below);
    merged
}

/// The user's template under ours; but who the pod is and what it may do, the user decides where the user says so.
pub(super) fn merged(user: Value, mut pod: Value) -> Value {
    for field in ["serviceAccountName", "automountServiceAccountToken", "securityContext"] {
        if let Some(wish) = user["spec"].get(field) {
            pod["spec"][field] = merge(pod["spec"][field].take(), wish.clone());
        }
    }
    merge(user, pod)
}

/// Takes the container of this name out of the template's list.
pub(super) fn take_container(template: &mut Value, name: &str) -> Option<Value> {
    ["containers", "initContainers"].into_iter().find_map(|list| {
        let containers = template["spec"].get_mut(list)?.as_array_mut()?;
        let at = containers.iter().position(|container| container["name"] == json!(name))?;
        Some(containers.remove(at))
    })
}
