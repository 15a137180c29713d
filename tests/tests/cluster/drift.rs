//! What is changed by hand is put right, what is not wanted any more goes, what is somebody else's is left alone.
use e2e::kubernetes::{Namespace, patiently};
use serde_json::Value;

#[tokio::test]
async fn what_is_changed_by_hand_is_put_right() {
    let space = Namespace::create("drift").await;
    space.queue("drift", "{}").await;
    space.await_ready("drift").await;
    let image = |deployment: &Value| deployment["spec"]["template"]["spec"]["containers"][0]["image"].clone();
    let config = space.get("configmap", "drift-config").await["data"].clone();
    let deployment = space.get("deployment", "drift-worker").await;
    let service = space.get("service", "drift-redis").await["metadata"]["uid"].clone();

    let edited = r#"{"data": {"config.yaml": "edited"}}"#;
    space
        .kubectl(&["patch", "configmap", "drift-config", "--type=merge", "-p", edited])
        .await
        .expect("edited");
    space
        .kubectl(&["set", "image", "deployment/drift-worker", "worker=example.invalid/none:1"])
        .await
        .expect("edited");
    space.kubectl(&["delete", "service", "drift-redis"]).await.expect("deleted");
    // By this one we hear of it at all.
    let label = "app.kubernetes.io/managed-by";
    space
        .kubectl(&["label", "statefulset", "drift-redis", &format!("{label}-")])
        .await
        .expect("a label is taken away");

    patiently("the configuration", async || space.get("configmap", "drift-config").await["data"] == config)
        .await;
    patiently("the image", async || {
        image(&space.get("deployment", "drift-worker").await) == image(&deployment)
    })
    .await;
    patiently("the label", async || {
        space.get("statefulset", "drift-redis").await["metadata"]["labels"][label].is_string()
    })
    .await;
    patiently("the service", async || {
        space.find("service", "drift-redis").await.is_some_and(|found| found["metadata"]["uid"] != service)
    })
    .await;
    space.await_ready("drift").await;
    space.delete().await;
}

#[tokio::test]
async fn a_variable_of_ours_that_is_changed_by_hand_is_put_right() {
    let space = Namespace::create("variable").await;
    space.queue("variable", "{}").await;
    space.await_ready("variable").await;
    let env = async || {
        let deployment = space.get("deployment", "variable-worker").await;
        deployment["spec"]["template"]["spec"]["containers"][0]["env"].clone()
    };
    let before = env().await;
    space
        .kubectl(&["set", "env", "deployment/variable-worker", "WORKER_NAMESPACE=elsewhere"])
        .await
        .expect("edited");
    patiently("the variable", async || {
        let now = env().await;
        if now == before { Ok(()) } else { Err(now) }
    })
    .await;
    space.await_ready("variable").await;
    space.delete().await;
}

#[tokio::test]
async fn policies_and_the_identity_come_back_when_they_are_deleted() {
    let space = Namespace::create("policies").await;
    space.queue("policies", "{}").await;
    space.await_ready("policies").await;
    for (kind, name) in [
        ("serviceaccount", "policies"),
        ("poddisruptionbudget", "policies-worker"),
        ("networkpolicy", "policies-redis"),
    ] {
        space.kubectl(&["delete", kind, name]).await.expect("deleted");
        patiently(kind, async || space.find(kind, name).await).await;
    }
    space.delete().await;
}

#[tokio::test]
async fn a_part_that_is_taken_out_of_the_spec_is_removed() {
    let space = Namespace::create("pruned").await;
    space.queue("pruned", "{producer: {volume: {emptyDir: {}}}}").await;
    space.await_ready("pruned").await;
    assert!(space.find("deployment", "pruned-producer").await.is_some());
    space.queue("pruned", "{}").await;
    patiently("no producer", async || space.find("deployment", "pruned-producer").await.is_none()).await;
    space.await_ready("pruned").await;
    space.delete().await;
}

#[tokio::test]
async fn an_object_of_somebody_else_is_not_adopted_and_the_queue_recovers_when_it_goes() {
    let space = Namespace::create("foreign").await;
    space.kubectl(&["create", "configmap", "mine-config", "--from-literal=of=mine"]).await.expect("created");
    space.queue("mine", "{}").await;
    let stalled = space.await_condition("mine", "Stalled", "True/NameConflict").await;
    assert!(stalled.contains("ConfigMap mine-config exists and does not belong"), "{stalled}");
    assert_eq!(space.get("configmap", "mine-config").await["data"]["of"], "mine");
    space.kubectl(&["delete", "configmap", "mine-config"]).await.expect("deleted");
    space.await_ready("mine").await;
    assert!(!space.condition("mine", "Stalled").await.starts_with("True"), "it goes on");
    space.delete().await;
}
