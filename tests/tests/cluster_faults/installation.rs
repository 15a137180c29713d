//! The chart is upgraded, uninstalled, installed again.
use e2e::kubernetes::{LOW, Namespace, kubectl, patiently};

use crate::{CHART, alone, await_operators, change, helm, values};

#[tokio::test]
async fn an_upgrade_with_jobs_in_flight_loses_none_and_leaves_redis_alone() {
    let _turn = alone().await;
    let space = Namespace::create("upgrade").await;
    space.queue("upgraded", "{scaling: {minReplicas: 1}, worker: {handler: {simulate: {base: 2s}}}}").await;
    space.await_condition("upgraded", "WorkersAvailable", "True/Available").await;
    let redis = space.managed("upgraded").await;
    let uid = async || space.get("pod", "upgraded-redis-0").await["metadata"]["uid"].clone();
    let before = uid().await;
    redis.push(LOW, 0..96).await;
    let annotation = format!("podAnnotations.upgraded=v{}", fastrand::u32(..));
    change(&["--set-string", &annotation]).await;
    redis.await_completed(0..96).await;
    assert_eq!(uid().await, before);
    space.await_ready("upgraded").await;
    space.delete().await;
}

#[tokio::test]
async fn the_chart_passes_its_own_test() {
    let _turn = alone().await;
    let said = helm(&["test", "jobqueue", "--timeout=2m"]).await;
    assert!(said.contains("Phase:          Succeeded"), "{said}");
}

#[tokio::test]
async fn an_uninstall_keeps_the_queues_and_hangs_nothing() {
    let _turn = alone().await;
    let space = Namespace::create("uninstall").await;
    let doomed = Namespace::create("doomed").await;
    space.queue("kept", "{scaling: {minReplicas: 1}}").await;
    space.queue("deleting", "{deletionPolicy: Delete}").await;
    doomed.queue("doomed", "{deletionPolicy: Delete}").await;
    for (space, queue) in [(&space, "kept"), (&space, "deleting"), (&doomed, "doomed")] {
        space.await_ready(queue).await;
    }
    let values = values().await;
    let install = [
        "install",
        "jobqueue",
        CHART,
        "--values",
        values.path().to_str().expect("text"),
        "--wait",
        "--timeout=3m",
        // On a cluster of yours: what scripts/ours goes by.
        "--labels",
        "jobqueue.dev/for=tests",
    ];

    helm(&["uninstall", "jobqueue", "--wait", "--timeout=3m"]).await;
    kubectl(&["get", "crd", "jobqueues.jobqueue.dev"]).await.expect("the CRD stays");
    // Whatever else was found: the tests after this one need an operator.
    let found = after_an_uninstall(&space, &doomed).await;
    helm(&install).await;
    await_operators(2).await;
    found.expect("nothing hangs");
    space.await_ready("kept").await;
    space.await_ready("deleting").await;
    patiently("the finalizer again", async || {
        !space.get("jobqueue", "deleting").await["metadata"]["finalizers"].is_null()
    })
    .await;
    let redis = space.managed("kept").await;
    redis.push(LOW, 10..13).await;
    patiently("all jobs", async || redis.count(&["LLEN", "jobqueue:completed"]).await == 6).await;
    space.delete().await;
}

async fn after_an_uninstall(space: &Namespace, doomed: &Namespace) -> Result<(), String> {
    for queue in ["kept", "deleting"] {
        let path = "jsonpath={.metadata.finalizers}{.metadata.deletionTimestamp}";
        let left = space.kubectl(&["get", "jobqueue", queue, "-o", path]).await?;
        if !left.is_empty() {
            return Err(format!("{queue}: {left}"));
        }
    }
    kubectl(&["delete", "namespace", &doomed.name, "--timeout=60s"]).await?;
    // Workers and Redis are there as before.
    let redis = space.managed("kept").await;
    redis.push(LOW, 0..3).await;
    redis.await_completed(0..3).await;
    Ok(())
}
