//! A queue at rest costs the API server nothing.
use std::time::Duration;

use e2e::audit::{Audit, Request};
use e2e::kubernetes::{LOW, Namespace, on_the_test_cluster, patiently};

/// Longer than the time after which changed figures are written.
const AT_REST: Duration = Duration::from_secs(32);

#[tokio::test]
async fn queues_at_rest_are_not_written() {
    if !on_the_test_cluster() {
        return;
    }
    let space = Namespace::create("rest").await;
    space.external("store").await;
    space.queue("managed", "{}").await;
    space.queue("busy", "{scaling: {minReplicas: 1}, producer: {volume: {emptyDir: {}}}}").await;
    space.queue("external", &space.on("store", "deletionPolicy: Delete")).await;
    space.queue("wrong", &space.on("nowhere", "")).await;
    for queue in ["managed", "busy", "external"] {
        space.await_ready(queue).await;
    }
    // Whoever comes first owns the keys.
    space.queue("second", &space.on("store", "")).await;
    space.await_condition("second", "Stalled", "True/KeyConflict").await;
    space.await_condition("wrong", "Ready", "False/Unreachable").await;
    let redis = space.managed("busy").await;
    redis.push(LOW, 0..3).await;
    redis.await_completed(0..3).await;
    patiently("the worker and the producer", async || {
        let pods = space.list("pods", "jobqueue.dev/queue=busy").await;
        pods.len() == 3 && pods.iter().all(|pod| pod["status"]["containerStatuses"][0]["ready"] == true)
    })
    .await;
    // What the last changes led to comes to its end: first nothing new for a while, then nothing at all.
    let audit = Audit::begin().await;
    tokio::time::sleep(AT_REST).await;
    let settling = writes(&audit, &space);
    let audit = Audit::begin().await;
    tokio::time::sleep(AT_REST).await;
    let writes = writes(&audit, &space);
    assert_eq!(writes, [], "before that: {settling:?}");
    space.delete().await;
}

fn writes(audit: &Audit, space: &Namespace) -> Vec<Request> {
    audit.writes().into_iter().filter(|request| request.namespace == space.name).collect()
}
