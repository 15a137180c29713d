//! From nothing to the first completed job.
use std::time::Instant;

use e2e::kubernetes::{LOW, Namespace, patiently};
use serde_json::Value;

#[tokio::test]
async fn the_smallest_queue_is_ready_without_workers_and_completes_its_first_job() {
    let space = Namespace::create("smallest").await;
    let began = Instant::now();
    space.queue("hello", "{}").await;
    space.await_ready("hello").await;
    let ready = began.elapsed();
    let status = space.get("jobqueue", "hello").await["status"].clone();
    assert_eq!(status["workers"]["desired"], 0);
    let redis = space.managed("hello").await;
    redis.push(LOW, 0..1).await;
    redis.await_completed(0..1).await;
    println!(
        "spec: {{}} was Ready {ready:.1?} after apply, its first job completed after {:.1?}",
        began.elapsed()
    );
    space.delete().await;
}

#[tokio::test]
async fn every_pod_of_every_part_may_run_in_a_restricted_namespace() {
    let space = Namespace::create("restricted").await;
    space.queue("all", "{scaling: {minReplicas: 1}, producer: {volume: {emptyDir: {}}}}").await;
    patiently("a ready pod of each part", async || {
        let pods = space.list("pods", "jobqueue.dev/queue=all").await;
        let mut ready: Vec<&str> = pods.iter().filter(|pod| is_ready(pod)).filter_map(part).collect();
        ready.sort_unstable();
        if ready == ["producer", "redis", "worker"] { Ok(()) } else { Err(ready.join(", ")) }
    })
    .await;
    assert_eq!(space.events("FailedCreate").await, [""; 0]);
    space.delete().await;
}

fn part(pod: &Value) -> Option<&str> {
    pod["metadata"]["labels"]["app.kubernetes.io/component"].as_str()
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    conditions.is_some_and(|all| all.iter().any(|one| one["type"] == "Ready" && one["status"] == "True"))
}

#[tokio::test]
async fn a_managed_redis_keeps_its_jobs_when_its_pod_is_deleted() {
    let space = Namespace::create("rescheduled").await;
    space.queue("kept", "{replicas: 0, scaling: {mode: Manual}}").await;
    space.await_ready("kept").await;
    let redis = space.managed("kept").await;
    redis.push(LOW, 0..20).await;
    // Acknowledged jobs are on disk a second later, or as here when Redis ends in order.
    let before = space.get("pod", "kept-redis-0").await["metadata"]["uid"].clone();
    space.kubectl(&["delete", "pod", "kept-redis-0"]).await.expect("deleted");
    patiently("another pod of Redis", async || {
        let pod = space.find("pod", "kept-redis-0").await?;
        (pod["metadata"]["uid"] != before && is_ready(&pod)).then_some(())
    })
    .await;
    assert_eq!(redis.count(&["LLEN", LOW]).await, 20);
    space.patch("kept", r#"{"spec": {"scaling": {"mode": "Auto"}}}"#).await;
    redis.await_completed(0..20).await;
    space.delete().await;
}

#[tokio::test]
async fn new_resources_replace_the_pod_of_redis_and_keep_its_jobs() {
    let space = Namespace::create("resized").await;
    space.queue("resized", "{replicas: 0, scaling: {mode: Manual}}").await;
    space.await_ready("resized").await;
    let redis = space.managed("resized").await;
    redis.push(LOW, 0..20).await;
    let before = space.get("pod", "resized-redis-0").await["metadata"]["uid"].clone();
    let resources = r#"{"spec": {"redis": {"managed": {"resources": {"requests": {"memory": "65Mi"}}}}}}"#;
    space.patch("resized", resources).await;
    let pod = patiently("another pod of Redis", async || {
        let pod = space.find("pod", "resized-redis-0").await?;
        (pod["metadata"]["uid"] != before && is_ready(&pod)).then_some(pod)
    })
    .await;
    assert_eq!(pod["spec"]["containers"][0]["resources"]["requests"]["memory"], "65Mi");
    assert_eq!(redis.count(&["LLEN", LOW]).await, 20);
    space.delete().await;
}

#[tokio::test]
async fn workers_that_cannot_start_are_told_in_the_words_of_their_pods() {
    let space = Namespace::create("imageless").await;
    space.queue("imageless", "{worker: {image: 'localhost/nowhere:1'}}").await;
    space.await_ready("imageless").await;
    let redis = space.managed("imageless").await;
    redis.push(LOW, 0..1).await;
    let told = space.await_condition("imageless", "WorkersAvailable", "False/WorkersFailing").await;
    assert!(told.contains("container worker: ") && told.contains("Image"), "{told}");
    space.await_condition("imageless", "Ready", "False").await;
    space.delete().await;
}
