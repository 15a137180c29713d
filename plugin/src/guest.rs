//! The pod that stands in when a queue has none: made of the workers' own template, it waits to be asked, and is deleted
//! on every exit. Should nobody get to that, it ends by itself when nothing has run in it for ten minutes, or at its deadline;
//! then the next command, or the end of its queue, deletes it.
use std::time::Duration;

use kube::ResourceExt;
use kube::api::DynamicObject;
use operator::api::v1alpha1::JobQueue;
use operator::controller::QUEUE_LABEL;
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::error::Error;

/// The name of its container, and the part of the queue that it is.
pub const CONTAINER: &str = "admin";
/// It ends by itself after this long: longer than anything but a requeue with a small `--rate`.
const DEADLINE: u64 = 6 * 3600;
/// How long it may take to start.
const START: Duration = Duration::from_secs(90);
/// What it takes over from the workers' template: where it may run and where its image comes from.
const TAKEN: [&str; 7] = [
    "serviceAccountName",
    "imagePullSecrets",
    "nodeSelector",
    "tolerations",
    "affinity",
    "priorityClassName",
    "runtimeClassName",
];

/// The pod for a queue, made of the Deployment of its workers: pure.
pub fn pod(queue: &JobQueue, deployment: &Value, suffix: &str) -> Result<Value, Error> {
    let name = queue.name_any();
    let template = &deployment["spec"]["template"]["spec"];
    let of = |list: &str, named: &str| {
        template[list].as_array().into_iter().flatten().find(|one| one["name"] == named)
    };
    let worker = of("containers", "worker").ok_or_else(|| {
        Error::Failed(format!(
            "the Deployment {name}-worker has no container worker: the operator makes it anew"
        ))
    })?;
    // With the handler `command` the worker's container has the user's image, and ours is that of the init container.
    let image =
        of("initContainers", "jobqueue-install").map_or(&worker["image"], |install| &install["image"]);
    let is_ours = |one: &&Value| {
        one["name"].as_str().is_some_and(|name| name == "jobqueue-config" || name == "jobqueue-redis")
    };
    let ours = |list: &Value| -> Vec<Value> {
        list.as_array().into_iter().flatten().filter(is_ours).cloned().collect()
    };
    let config = config_argument(worker);
    let mut spec = json!({
        "automountServiceAccountToken": false,
        "enableServiceLinks": false,
        "restartPolicy": "Never",
        "activeDeadlineSeconds": DEADLINE,
        "terminationGracePeriodSeconds": 1,
        "securityContext": {
            "runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532,
            "seccompProfile": { "type": "RuntimeDefault" },
        },
        "containers": [{
            "name": CONTAINER,
            "image": image,
            "args": ["wait", config],
            "env": [{ "name": "WORKER_NAMESPACE", "valueFrom": { "fieldRef": { "fieldPath": "metadata.namespace" } } }],
            "resources": { "requests": { "cpu": "10m", "memory": "32Mi" }, "limits": { "memory": "256Mi" } },
            "securityContext": {
                "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": { "drop": ["ALL"] },
            },
            "volumeMounts": ours(&worker["volumeMounts"]),
        }],
        "volumes": ours(&template["volumes"]),
    });
    for field in TAKEN {
        if !template[field].is_null() {
            spec[field] = template[field].clone();
        }
    }
    Ok(json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": format!("{name}-admin-{suffix}"),
            "labels": {
                "app.kubernetes.io/name": "jobqueue",
                "app.kubernetes.io/instance": name,
                "app.kubernetes.io/component": CONTAINER,
                "app.kubernetes.io/managed-by": "kubectl-jobqueue",
                QUEUE_LABEL: name,
            },
            "ownerReferences": [{
                "apiVersion": "jobqueue.dev/v1alpha1", "kind": "JobQueue", "name": name,
                "uid": queue.uid().unwrap_or_default(),
            }],
        },
        "spec": spec,
    }))
}

/// Where the worker of a container finds its configuration.
pub fn config_argument(container: &Value) -> String {
    let arguments = container["args"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let found = arguments.clone().find(|argument| argument.starts_with("--config="));
    found.unwrap_or("--config=/etc/jobqueue/config.yaml").to_owned()
}

/// Makes the pod; its name and where it has its configuration. It may not have started yet.
pub async fn create(cluster: &Cluster, queue: &JobQueue) -> Result<(String, String), Error> {
    let name = queue.name_any();
    let deployments = cluster.objects("apps/v1", "Deployment", "deployments");
    let worker = format!("{name}-worker");
    let what = format!("get deployment {worker}, which a pod is made of because jobqueue {name} has none");
    let deployment = cluster.ask(&what, deployments.get_opt(&worker)).await?.ok_or_else(|| {
        Error::Failed(format!(
            "jobqueue {name} has neither pods nor a Deployment yet, so nobody can reach its Redis; \
             kubectl jobqueue describe {name} says what it waits for"
        ))
    })?;
    clear_away(cluster, &name).await;
    let deployment = serde_json::to_value(deployment).unwrap_or_default();
    let suffix = &queue.uid().unwrap_or_default().chars().take(4).collect::<String>();
    let now = jiff::Timestamp::now().as_nanosecond();
    let object = pod(queue, &deployment, &format!("{suffix}-{:06x}", now.unsigned_abs() % (1 << 24)))?;
    let config = config_argument(&object["spec"]["containers"][0]);
    let object: DynamicObject = serde_json::from_value(object)
        .map_err(|error| Error::Failed(format!("cannot make a pod for jobqueue {name}: {error}")))?;
    let made = object.name_any();
    let what = format!("create a pod in namespace {}, because jobqueue {name} has none", cluster.namespace);
    cluster.make_guest(&what, object).await?;
    Ok((made, config))
}

/// Deletes what is left of earlier ones that nobody got to delete. Not getting to it now is no reason not to go on.
async fn clear_away(cluster: &Cluster, queue: &str) {
    let Ok(pods) = cluster.pods_of(queue, Some(CONTAINER)).await else { return };
    for pod in pods.iter().filter(|pod| has_ended(pod)) {
        let _ = cluster.delete_pod(&pod.name_any()).await;
    }
}

/// Whether a pod has ended, by its deadline or otherwise, and is not being deleted: pure.
fn has_ended(pod: &DynamicObject) -> bool {
    let phase = pod.data["status"]["phase"].as_str();
    pod.metadata.deletion_timestamp.is_none() && matches!(phase, Some("Failed" | "Succeeded"))
}

/// Waits until the pod runs.
pub async fn started(cluster: &Cluster, pod: &str) -> Result<(), Error> {
    let pods = cluster.objects("v1", "Pod", "pods");
    let mut seen = "nothing yet".to_owned();
    let waiting = async {
        loop {
            let found = cluster.ask(&format!("get pod {pod}"), pods.get(pod)).await?;
            match standing(&found.data["status"]) {
                Standing::Runs => return Ok(()),
                Standing::Never(why) => {
                    return Err(Error::Failed(format!("pod {pod} does not start: {why}")));
                }
                Standing::Starts(what) => seen = what,
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    let outcome = tokio::time::timeout(START, waiting).await;
    outcome.unwrap_or_else(|_| {
        Err(Error::Failed(format!("pod {pod} did not start within {}s: {seen}", START.as_secs())))
    })
}

/// How far a pod has come.
#[derive(Debug, PartialEq, Eq)]
enum Standing {
    Runs,
    /// Not yet, because.
    Starts(String),
    /// And will not, because.
    Never(String),
}

/// How far a pod has come: pure.
fn standing(status: &Value) -> Standing {
    let phase = status["phase"].as_str().unwrap_or("Pending");
    if phase == "Running" {
        return Standing::Runs;
    }
    let said = |one: &Value| {
        let part = |name: &str| one[name].as_str().unwrap_or_default().to_owned();
        format!("{}: {}", part("reason"), part("message"))
    };
    if phase == "Failed" || phase == "Succeeded" {
        return Standing::Never(said(status));
    }
    let containers = status["containerStatuses"].as_array().into_iter().flatten();
    let mut waiting = containers.map(|one| &one["state"]["waiting"]).filter(|waiting| !waiting.is_null());
    if let Some(waiting) = waiting.next() {
        let final_words = [
            "ErrImagePull",
            "ImagePullBackOff",
            "ErrImageNeverPull",
            "InvalidImageName",
            "CreateContainerConfigError",
        ];
        let why = said(waiting);
        return if final_words.iter().any(|word| waiting["reason"] == *word) {
            Standing::Never(why)
        } else {
            Standing::Starts(why)
        };
    }
    let conditions = status["conditions"].as_array().into_iter().flatten();
    let mut unscheduled = conditions.filter(|one| one["type"] == "PodScheduled" && one["status"] == "False");
    Standing::Starts(unscheduled.next().map_or_else(|| phase.to_owned(), said))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue() -> JobQueue {
        serde_json::from_value(json!({
            "apiVersion": "jobqueue.dev/v1alpha1", "kind": "JobQueue",
            "metadata": { "name": "hello", "namespace": "a", "uid": "1234-5678" }, "spec": {},
        }))
        .unwrap()
    }

    fn deployment() -> Value {
        json!({ "spec": { "template": { "spec": {
            "serviceAccountName": "hello",
            "nodeSelector": { "disk": "ssd" },
            "initContainers": [{ "name": "jobqueue-install", "image": "ours:1" }],
            "containers": [
                { "name": "worker", "image": "theirs:1", "args": ["--role=worker", "--config=/c.yaml"],
                  "env": [{ "name": "TOKEN", "value": "secret" }],
                  "volumeMounts": [{ "name": "jobqueue-config", "mountPath": "/etc/jobqueue" }, { "name": "data", "mountPath": "/data" }] },
                { "name": "proxy", "image": "proxy:1" },
            ],
            "volumes": [{ "name": "jobqueue-config", "configMap": { "name": "hello-config" } }, { "name": "data", "emptyDir": {} }],
        } } } })
    }

    #[test]
    fn the_pod_has_the_workers_configuration_and_nothing_of_the_users() {
        let pod = pod(&queue(), &deployment(), "x").unwrap();
        let container = &pod["spec"]["containers"][0];
        assert_eq!(pod["spec"]["containers"].as_array().unwrap().len(), 1);
        assert_eq!(container["image"], "ours:1", "not the image that the user's program runs in");
        assert_eq!(container["args"], json!(["wait", "--config=/c.yaml"]));
        assert_eq!(container["volumeMounts"].as_array().unwrap().len(), 1);
        assert_eq!(pod["spec"]["volumes"].as_array().unwrap().len(), 1);
        assert!(!pod.to_string().contains("TOKEN"));
        assert_eq!(pod["spec"]["nodeSelector"]["disk"], "ssd");
    }

    #[test]
    fn the_pod_is_no_worker_belongs_to_its_queue_and_ends_by_itself() {
        let pod = pod(&queue(), &deployment(), "x").unwrap();
        assert_eq!(pod["metadata"]["labels"]["app.kubernetes.io/component"], "admin");
        assert_eq!(pod["metadata"]["ownerReferences"][0]["uid"], "1234-5678");
        assert_eq!(pod["spec"]["activeDeadlineSeconds"], DEADLINE);
        assert_eq!(pod["spec"]["restartPolicy"], "Never");
        assert_eq!(pod["spec"]["securityContext"]["runAsNonRoot"], true);
        assert_eq!(pod["spec"]["containers"][0]["securityContext"]["readOnlyRootFilesystem"], true);
    }

    #[test]
    fn only_a_pod_that_has_ended_is_cleared_away() {
        let pod = |phase: &str, deleted: Option<&str>| -> DynamicObject {
            serde_json::from_value(json!({
                "metadata": { "name": "p", "deletionTimestamp": deleted }, "status": { "phase": phase },
            }))
            .unwrap()
        };
        assert!(has_ended(&pod("Failed", None)) && has_ended(&pod("Succeeded", None)));
        // Somebody else's command may run in it.
        assert!(!has_ended(&pod("Running", None)) && !has_ended(&pod("Pending", None)));
        assert!(!has_ended(&pod("Failed", Some("2026-01-01T00:00:00Z"))));
    }

    #[test]
    fn a_pod_that_will_never_start_is_not_waited_for() {
        let pulling = json!({ "phase": "Pending", "containerStatuses": [{ "state": { "waiting": { "reason": "ErrImagePull", "message": "no such image" } } }] });
        assert_eq!(standing(&pulling), Standing::Never("ErrImagePull: no such image".into()));
        let creating = json!({ "phase": "Pending", "containerStatuses": [{ "state": { "waiting": { "reason": "ContainerCreating" } } }] });
        assert_eq!(standing(&creating), Standing::Starts("ContainerCreating: ".into()));
        let unscheduled = json!({ "phase": "Pending", "conditions": [{ "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no nodes" }] });
        assert_eq!(standing(&unscheduled), Standing::Starts("Unschedulable: no nodes".into()));
        assert_eq!(standing(&json!({ "phase": "Running" })), Standing::Runs);
    }
}
