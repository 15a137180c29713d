//! New configuration, new pods.
use e2e::kubernetes::{LOW, Namespace, patiently};

async fn worker_pods(space: &Namespace) -> Vec<String> {
    let pods = space.list("pods", "app.kubernetes.io/component=worker").await;
    pods.iter().filter_map(|pod| pod["metadata"]["name"].as_str().map(str::to_owned)).collect()
}

#[tokio::test]
async fn a_changed_configuration_rolls_the_workers_and_loses_no_job() {
    let space = Namespace::create("rolled").await;
    space.queue("rolled", "{scaling: {minReplicas: 1}, worker: {handler: {simulate: {base: 2s}}}}").await;
    space.await_condition("rolled", "WorkersAvailable", "True/Available").await;
    let redis = space.managed("rolled").await;
    let before = worker_pods(&space).await;
    redis.push(LOW, 0..64).await;
    patiently("jobs in flight", async || redis.count(&["LLEN", LOW]).await < 64).await;
    space.patch("rolled", r#"{"spec": {"worker": {"concurrency": 8}}}"#).await;
    patiently("other pods", async || {
        let now = worker_pods(&space).await;
        if !now.is_empty() && now.iter().all(|pod| !before.contains(pod)) { Ok(()) } else { Err(now) }
    })
    .await;
    redis.await_completed(0..64).await;
    assert_eq!(redis.count(&["LLEN", "jobqueue:dead_letter"]).await, 0);
    let config = space.get("configmap", "rolled-config").await["data"]["config.yaml"].clone();
    assert!(config.as_str().is_some_and(|text| text.contains("count: 8")), "{config}");
    space.delete().await;
}

#[tokio::test]
async fn settings_that_are_no_business_of_the_workers_leave_their_pods_alone() {
    let space = Namespace::create("unrolled").await;
    space.queue("unrolled", "{scaling: {minReplicas: 1}}").await;
    space.await_condition("unrolled", "WorkersAvailable", "True/Available").await;
    let before = worker_pods(&space).await;
    space
        .patch("unrolled", r#"{"spec": {"scaling": {"maxReplicas": 20}, "deletionPolicy": "Delete"}}"#)
        .await;
    patiently("the change to be seen", async || {
        let object = space.get("jobqueue", "unrolled").await;
        object["status"]["observedGeneration"] == object["metadata"]["generation"]
    })
    .await;
    assert_eq!(worker_pods(&space).await, before);
    space.delete().await;
}
