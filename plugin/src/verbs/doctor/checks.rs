//! What the cluster's objects say is wrong: pure, one function a kind of object.
use kube::ResourceExt;
use kube::api::DynamicObject;
use operator::api::v1alpha1::JobQueue;
use serde_json::Value;

use crate::error::Error;
use crate::live::Finding;
use crate::version;

/// Something that is not as it should be.
pub fn finding(severity: &str, id: &str, what: &str, why: &str, fix: &str) -> Finding {
    Finding { id: id.into(), severity: severity.into(), what: what.into(), why: why.into(), fix: fix.into() }
}

/// Something that could not be looked at. What a person may not see is no fault; what does not answer is one.
pub fn unseen(id: &str, error: &Error) -> Finding {
    let (severity, fix) = match error {
        Error::Forbidden(_) => ("info", "ask for the right, or run it as somebody who has it"),
        _ => ("warning", "do what the message says, and run it again"),
    };
    let what = format!("could not be looked at: {error}");
    finding(severity, id, &what, "what is wrong there stays unknown", fix)
}

/// What is known when the queue's Redis could not be examined.
pub fn unexamined(error: &Error) -> Finding {
    match error {
        // The command ran, and could not do it.
        Error::Remote { code: 1, said } => finding(
            "error",
            "redis",
            said,
            "no job is enqueued, run or settled",
            "bring Redis back, or correct spec.redis and its Secret",
        ),
        other => unseen("redis", other),
    }
}

/// What the operator says: pure.
pub fn conditions(queue: &JobQueue) -> Vec<Finding> {
    let name = queue.name_any();
    let Some(status) = &queue.status else {
        return vec![finding(
            "error",
            "operator",
            "the operator has not looked at this queue",
            "nothing is made for it",
            "check that the operator runs and looks after this namespace: kubectl jobqueue --version",
        )];
    };
    let mut findings = vec![];
    if queue.metadata.generation > status.observed_generation {
        findings.push(finding(
            "warning",
            "operator",
            "the operator has not seen the last change yet",
            "the queue is as it was before",
            "wait some seconds, then look at the operator's log",
        ));
    }
    for one in &status.conditions {
        let (severity, why, fix) = match (one.type_.as_str(), one.status.as_str()) {
            ("Stalled", "True") => (
                "error",
                "it goes on only when somebody changes something",
                "do what the message says; docs/kubernetes.md has a table of reasons",
            ),
            ("RedisReachable", "False") => (
                "error",
                "no job is enqueued, run or settled",
                "bring Redis back, or correct spec.redis and its Secret",
            ),
            ("WorkersAvailable", "False") => {
                ("warning", "jobs wait", "look at the pods that the message names")
            }
            ("HandlerHealthy", "False") => (
                "warning",
                "at least half of the recent jobs failed, so few are tried",
                "look at the handler: kubectl jobqueue logs, kubectl jobqueue dlq list",
            ),
            ("Durable", "False") => (
                "warning",
                "jobs are gone when Redis' pod is",
                "storage: a volume; only a new JobQueue can have another storage",
            ),
            // In mode Manual it is never active, and nothing is wrong.
            ("ScalingActive", "False") if one.reason != "Manual" => {
                ("info", "the number of workers stays as it is", "see the message")
            }
            ("Reconciling", "True") => (
                "warning",
                "a change waits, and the queue is served as before it",
                "none is needed: it takes place by itself; to have it sooner, do what the message says",
            ),
            _ => continue,
        };
        let what = format!("{} ({}): {}", one.type_, one.reason, one.message);
        findings.push(finding(severity, &one.type_.to_lowercase(), &what, why, fix));
    }
    if queue.spec.paused {
        let fix = format!("kubectl jobqueue resume {name}");
        findings.push(finding("info", "queues", "paused", "no worker takes a job", &fix));
    }
    findings
}

/// Grace, drain and job timeouts: pure.
pub fn times(queue: &JobQueue) -> Vec<Finding> {
    let Some((timeout, field)) = queue.spec.longest_job() else { return vec![] };
    // Where nobody says how long a worker waits, it is as long as a job may take, within bounds.
    let (timeout, drain) = (timeout.as_secs(), queue.spec.drain_timeout().as_secs());
    let mut findings = vec![];
    if timeout > drain {
        findings.push(finding(
            "warning", "drain",
            &format!("a job may take {timeout}s ({field}), and a pod that is stopped from outside waits {drain}s for it"),
            "an eviction or a rollout may interrupt jobs; they are run again, uncounted",
            &format!("worker.drainTimeout: {timeout}s (the grace period follows), or a shorter {field}"),
        ));
    }
    let scaling = queue.spec.scaling.drain_timeout.map(|bound| bound.get().as_secs());
    if let Some(bound) = scaling.filter(|bound| *bound < timeout) {
        findings.push(finding(
            "warning",
            "scale-in",
            &format!(
                "a job may take {timeout}s ({field}), and a worker that is too many goes after {bound}s"
            ),
            "scaling in may interrupt jobs; they are run again, uncounted",
            &format!(
                "scaling.drainTimeout: {timeout}s, or leave it out: then a worker goes when it has finished"
            ),
        ));
    }
    findings
}

/// What a pod's state says: pure.
pub fn pod(pod: &DynamicObject) -> Vec<Finding> {
    let (name, status) = (pod.name_any(), &pod.data["status"]);
    let lists = [&status["containerStatuses"], &status["initContainerStatuses"]];
    let mut findings = vec![];
    for one in lists.into_iter().filter_map(Value::as_array).flatten() {
        let container = one["name"].as_str().unwrap_or_default();
        let reason = |place: &str| one.pointer(place).and_then(Value::as_str).unwrap_or_default().to_owned();
        let waiting = reason("/state/waiting/reason");
        if waiting.ends_with("BackOff") || waiting.starts_with("Err") || waiting.contains("Error") {
            // Only what has run before has logs.
            let logs = match waiting.as_str() {
                "CrashLoopBackOff" => format!("; kubectl logs {name} -c {container} --previous"),
                _ => String::new(),
            };
            findings.push(finding(
                "error",
                "pods",
                &format!(
                    "pod {name}, container {container}: {waiting}: {}",
                    reason("/state/waiting/message")
                ),
                "it does not run",
                &format!("kubectl describe pod {name}{logs}"),
            ));
        } else if reason("/lastState/terminated/reason") == "OOMKilled" {
            findings.push(finding(
                "warning",
                // Not `memory`, which is that of Redis.
                "oom",
                &format!("pod {name}, container {container} ran out of memory {} times", one["restartCount"]),
                "the jobs that it ran are run again, those that ran alone are counted",
                "raise its memory limit (worker.resources), or lower worker.concurrency",
            ));
        }
    }
    findings
}

/// What the Deployment of an operator says.
pub fn operator(operator: &DynamicObject) -> Vec<Finding> {
    let mut findings = vec![];
    let name = operator.name_any();
    let namespace = operator.namespace().unwrap_or_default();
    if operator.data["status"]["availableReplicas"].as_i64().unwrap_or(0) == 0 {
        findings.push(finding(
            "error",
            "operator",
            &format!("no pod of the operator {name} in {namespace} is ready"),
            "queues neither scale nor react to changes; workers go on",
            &format!("kubectl -n {namespace} get pods; kubectl -n {namespace} logs deployment/{name}"),
        ));
    }
    let skew = version::of(operator).and_then(|other| version::skew(version::CLIENT, "operator", &other));
    if let Some(skew) = skew {
        findings.push(finding(
            "warning",
            "skew",
            &skew,
            "commands or fields may be missing",
            "install the same version of the chart and of this program",
        ));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[allow(clippy::needless_pass_by_value, reason = "reads better where it is called")]
    fn queue(spec: Value, status: Value) -> JobQueue {
        serde_json::from_value(json!({
            "apiVersion": "jobqueue.dev/v1alpha1", "kind": "JobQueue", "metadata": { "name": "hello", "generation": 1 }, "spec": spec, "status": status,
        }))
        .unwrap()
    }

    fn ids(findings: &[Finding]) -> Vec<(String, String)> {
        findings.iter().map(|one| (one.severity.clone(), one.id.clone())).collect()
    }

    #[test]
    fn a_stalled_condition_is_an_error_with_its_message() {
        let condition = json!({ "type": "Stalled", "status": "True", "reason": "KeyConflict", "message": "another serves it", "lastTransitionTime": "2026-01-01T00:00:00Z" });
        let found =
            conditions(&queue(json!({}), json!({ "observedGeneration": 1, "conditions": [condition] })));
        assert_eq!(ids(&found), [("error".into(), "stalled".into())]);
        assert!(found[0].what.contains("KeyConflict") && found[0].what.contains("another serves it"));
    }

    #[test]
    fn a_change_that_waits_is_a_warning_and_a_number_that_somebody_sets_is_nothing() {
        let of = |kind: &str, status: &str, reason: &str| {
            let condition = json!({ "type": kind, "status": status, "reason": reason, "message": "why", "lastTransitionTime": "2026-01-01T00:00:00Z" });
            ids(&conditions(&queue(json!({}), json!({ "observedGeneration": 1, "conditions": [condition] }))))
        };
        assert_eq!(of("Reconciling", "True", "JobsLeftBehind"), [("warning".into(), "reconciling".into())]);
        assert!(of("Reconciling", "False", "Settled").is_empty());
        assert!(of("ScalingActive", "False", "Manual").is_empty());
        assert_eq!(of("ScalingActive", "False", "Holding"), [("info".into(), "scalingactive".into())]);
    }

    #[test]
    fn jobs_that_take_longer_than_a_pod_waits_are_told_with_the_field_to_change() {
        let spec = json!({
            "worker": { "drainTimeout": "25s", "handler": { "command": { "argv": ["x"], "timeout": "5m" } } },
            "scaling": { "drainTimeout": "1m" },
        });
        let found = times(&queue(spec, json!({})));
        assert_eq!(ids(&found), [("warning".into(), "drain".into()), ("warning".into(), "scale-in".into())]);
        assert!(found[0].fix.contains("worker.drainTimeout: 300s"), "{}", found[0].fix);
        let command = |timeout: &str| json!({ "worker": { "handler": { "command": { "argv": ["x"], "timeout": timeout } } } });
        for timeout in ["10s", "60s", "10m"] {
            assert!(
                times(&queue(command(timeout), json!({}))).is_empty(),
                "{timeout}: the worker waits for it"
            );
        }
        let found = times(&queue(command("11m"), json!({})));
        assert_eq!(ids(&found), [("warning".into(), "drain".into())], "nobody waits that long unasked");
        assert!(times(&queue(json!({}), json!({}))).is_empty(), "simulated jobs have no timeout");
    }

    #[test]
    fn of_the_handlers_of_async_jobs_the_slowest_is_told() {
        let spec = json!({
            "protocol": "async",
            "worker": { "drainTimeout": "25s", "handler": { "http": { "url": "http://a", "timeout": "9m" } } },
            "async": { "handlers": {
                "email": { "http": { "url": "http://mailer", "timeout": "30s" } },
                "resize": { "command": { "argv": ["x"], "timeout": "5m" } },
                "default": { "simulate": {} },
            } },
        });
        let found = times(&queue(spec.clone(), json!({})));
        assert_eq!(ids(&found), [("warning".into(), "drain".into())]);
        assert!(found[0].what.contains("300s (async.handlers.resize.command.timeout)"), "{}", found[0].what);
        // One that posts where the worker does has the worker's timeout.
        let mut shared = spec.clone();
        shared["async"]["handlers"]["email"] = json!({ "http": {} });
        let found = times(&queue(shared, json!({})));
        assert!(found[0].what.contains("540s (async.handlers.email.http.timeout)"), "{}", found[0].what);
        let mut simulated = spec;
        simulated["async"]["handlers"] = json!({ "default": { "simulate": {} } });
        assert!(times(&queue(simulated, json!({}))).is_empty());
    }

    #[test]
    fn only_a_missing_right_is_to_be_asked_for() {
        let forbidden = unexamined(&Error::Forbidden("you may not exec".into()));
        assert!(forbidden.severity == "info" && forbidden.fix.contains("ask for the right"), "{forbidden:?}");
        for error in [
            Error::Failed("pod p does not start: ErrImagePull".into()),
            Error::Unreachable("the cluster does not answer".into()),
            Error::PodGone { pod: "p".into(), why: "gone".into() },
            Error::Remote { code: 2, said: "the configuration is wrong".into() },
        ] {
            let found = unexamined(&error);
            assert_eq!((found.severity.as_str(), found.id.as_str()), ("warning", "redis"));
            assert!(found.what.contains(&error.to_string()) && !found.fix.contains("right"), "{found:?}");
        }
        let away = unexamined(&Error::Remote { code: 1, said: "cannot reach Redis at x".into() });
        assert!(away.severity == "error" && away.fix.contains("bring Redis back"), "{away:?}");
    }

    #[test]
    fn pods_that_crash_or_run_out_of_memory_are_named() {
        let object = |state: Value| -> DynamicObject {
            serde_json::from_value(
                json!({ "metadata": { "name": "p" }, "status": { "containerStatuses": [state] } }),
            )
            .unwrap()
        };
        let crashing = pod(&object(
            json!({ "name": "worker", "state": { "waiting": { "reason": "CrashLoopBackOff" } } }),
        ));
        assert_eq!(ids(&crashing), [("error".into(), "pods".into())]);
        let eaten = pod(&object(
            json!({ "name": "worker", "restartCount": 3, "state": { "running": {} }, "lastState": { "terminated": { "reason": "OOMKilled" } } }),
        ));
        assert!(eaten[0].what.contains("3 times") && eaten[0].id == "oom", "{:?}", eaten[0]);
    }
}
