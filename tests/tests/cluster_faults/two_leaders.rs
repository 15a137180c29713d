//! Two operators that both believe to lead: what they do to Redis is guarded there.
use e2e::kubernetes::{LOW, Namespace, OPERATOR_NAMESPACE, kubectl, patiently, run};
use serde_json::{Value, json};

use crate::alone;

/// A second operator with a lease of its own. It goes with this, however the test ends: no other test expects it.
struct Another {
    name: &'static str,
}

impl Drop for Another {
    fn drop(&mut self) {
        let what = "deployment,role,rolebinding,lease";
        let delete = ["-n", OPERATOR_NAMESPACE, "delete", what, self.name, "--ignore-not-found"];
        // Waits for its end: a test that fails drops it in the middle of its unwinding.
        let deleted = std::process::Command::new("kubectl").args(delete).output();
        println!("stopped the other operator: {deleted:?}");
    }
}

impl Another {
    /// What it exports, while it leads.
    async fn metrics(&self) -> Result<String, String> {
        let holder = "jsonpath={.spec.holderIdentity}";
        let leader = kubectl(&["-n", OPERATOR_NAMESPACE, "get", "lease", self.name, "-o", holder]).await?;
        if !leader.starts_with(&format!("{}-", self.name)) {
            return Err(format!("{leader:?} leads"));
        }
        let path = format!("/api/v1/namespaces/{OPERATOR_NAMESPACE}/pods/{leader}:8080/proxy/metrics");
        kubectl(&["get", "--raw", &path]).await
    }
}

async fn start_another() -> Another {
    let deployment =
        kubectl(&["-n", OPERATOR_NAMESPACE, "get", "deployment", "jobqueue-operator", "-o", "json"]).await;
    let mut deployment: Value = serde_json::from_str(&deployment.expect("the operator")).expect("JSON");
    let labels = json!({ "app": "another" });
    let account = deployment["spec"]["template"]["spec"]["serviceAccountName"].clone();
    let mut template = deployment["spec"]["template"].take();
    template["metadata"] = json!({ "labels": labels });
    let environment = template["spec"]["containers"][0]["env"].as_array_mut().expect("an environment");
    environment.retain(|one| one["name"] != "LEASE_NAME");
    environment.push(json!({ "name": "LEASE_NAME", "value": "another" }));
    let arguments = template["spec"]["containers"][0]["args"].as_array().cloned().unwrap_or_default();
    assert!(!arguments.iter().any(|one| one.as_str().is_some_and(|one| one.starts_with("--lease-name"))));
    let metadata = json!({ "name": "another", "namespace": OPERATOR_NAMESPACE });
    let objects = json!({ "apiVersion": "v1", "kind": "List", "items": [
        { "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": metadata, "rules": [
            { "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": ["another"],
              "verbs": ["get", "update", "patch", "watch"] },
            { "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"] } ] },
        { "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": metadata,
          "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "another" },
          "subjects": [{ "kind": "ServiceAccount", "name": account, "namespace": OPERATOR_NAMESPACE }] },
        { "apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata,
          "spec": { "replicas": 1, "selector": { "matchLabels": labels }, "template": template } },
    ]});
    let another = Another { name: "another" };
    run("kubectl", &["apply", "-f", "-"], Some(&objects.to_string())).await.expect("another operator");
    let rollout = ["-n", OPERATOR_NAMESPACE, "rollout", "status", "deployment/another", "--timeout=120s"];
    kubectl(&rollout).await.expect("another operator that runs");
    another
}

#[tokio::test]
async fn two_operators_that_both_lead_lose_no_job_and_double_none() {
    let _turn = alone().await;
    let space = Namespace::create("twoleaders").await;
    let another = start_another().await;
    let worker = "{concurrency: 10, heartbeatTtl: 10m, handler: {simulate: {base: 20s}}}";
    let scaling = "{minReplicas: 4, backlogPerWorker: 20, scaleDownDelay: 2s}";
    space.queue("two", &format!("{{worker: {worker}, scaling: {scaling}}}")).await;
    space.await_condition("two", "WorkersAvailable", "True/Available: 4 of 4").await;
    let redis = space.managed("two").await;
    patiently("another operator that leads and looks at the queue", async || {
        let metrics = another.metrics().await?;
        let of = format!("namespace=\"{}\"", space.name);
        let sees = metrics.lines().any(|line| line.starts_with("queue_length") && line.contains(&of));
        if sees { Ok(()) } else { Err("it does not see the queue".to_owned()) }
    })
    .await;
    redis.push(LOW, 0..40).await;
    redis.await_running(40).await;
    // Both see the same deaths, and both give the same jobs back.
    for pod in space.workers("two").await.iter().take(2) {
        space.kubectl(&["delete", "pod", pod, "--force", "--grace-period=0"]).await.expect("deleted");
    }
    redis.await_completed(0..40).await;
    assert_eq!(redis.count(&["HGET", "jobqueue:counters", "done"]).await, 40, "each was settled once");
    let again = redis.completed_jobs().await;
    let again = again.values().filter(|job| job["interrupted_by"] == "deleted").count();
    assert_eq!(again, 20, "the jobs of two pods were given back, and those of no other");
    space.patch("two", r#"{"spec": {"scaling": {"minReplicas": 0}}}"#).await;
    space.await_asked_for("two", 0).await;
    another.metrics().await.expect("the other operator has led until now");
    drop(another);
    space.delete().await;
}
