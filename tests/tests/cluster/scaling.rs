//! How many workers there are, and whether they take jobs.
use e2e::kubernetes::{LOW, Namespace, patiently};

async fn await_replicas(space: &Namespace, queue: &str, wanted: i64) {
    patiently("workers asked for", async || {
        let deployment = space.get("deployment", &format!("{queue}-worker")).await;
        let replicas = deployment["spec"]["replicas"].as_i64();
        if replicas == Some(wanted) { Ok(()) } else { Err(replicas) }
    })
    .await;
}

#[tokio::test]
async fn two_hundred_and_fifty_jobs_start_three_workers_in_one_step() {
    let space = Namespace::create("burst").await;
    space.queue("burst", "{worker: {handler: {simulate: {base: 200ms}}}}").await;
    space.await_ready("burst").await;
    let redis = space.managed("burst").await;
    redis.push(LOW, 0..250).await;
    redis.await_completed(0..250).await;
    patiently("what was decided", async || {
        let scaling = space.get("jobqueue", "burst").await["status"]["scaling"].clone();
        if scaling["replicas"] == 3 && scaling["reason"] == "250 jobs, 100 a worker" {
            Ok(())
        } else {
            Err(scaling)
        }
    })
    .await;
    assert_eq!(space.events("Scaled").await, ["Scaled workers from 0 to 3: 250 jobs, 100 a worker"]);
    space.delete().await;
}

#[tokio::test]
async fn without_jobs_the_workers_go_again() {
    let space = Namespace::create("down").await;
    space.queue("down", "{scaling: {scaleDownDelay: 3s}}").await;
    space.await_ready("down").await;
    let redis = space.managed("down").await;
    redis.push(LOW, 0..5).await;
    redis.await_completed(0..5).await;
    await_replicas(&space, "down", 0).await;
    space.await_condition("down", "Ready", "True/Ready: No jobs, no workers").await;
    space.delete().await;
}

#[tokio::test]
async fn in_mode_manual_kubectl_scale_is_obeyed() {
    let space = Namespace::create("manual").await;
    space.queue("manual", "{scaling: {mode: Manual}}").await;
    space.await_ready("manual").await;
    await_replicas(&space, "manual", 1).await;
    space.kubectl(&["scale", "jobq/manual", "--replicas=2"]).await.expect("scaled");
    await_replicas(&space, "manual", 2).await;
    space.await_condition("manual", "WorkersAvailable", "True/Available: 2 of 2").await;
    space.kubectl(&["scale", "jobq/manual", "--replicas=0"]).await.expect("scaled");
    await_replicas(&space, "manual", 0).await;
    space.delete().await;
}

#[tokio::test]
async fn somebody_who_scales_the_deployment_is_overruled() {
    let space = Namespace::create("overruled").await;
    space.queue("overruled", "{scaling: {mode: Manual}, replicas: 1}").await;
    space.await_ready("overruled").await;
    space.kubectl(&["scale", "deployment/overruled-worker", "--replicas=3"]).await.expect("scaled");
    await_replicas(&space, "overruled", 1).await;
    space.delete().await;
}

#[tokio::test]
async fn a_paused_queue_keeps_its_jobs_until_it_is_resumed() {
    let space = Namespace::create("paused").await;
    space.queue("paused", "{paused: true, scaling: {minReplicas: 1}}").await;
    space.await_condition("paused", "Ready", "True/Paused").await;
    let redis = space.managed("paused").await;
    redis.push(LOW, 0..5).await;
    // By the time that the figures are told, the worker has asked for jobs many times.
    patiently("five waiting jobs in the status", async || {
        let status = space.get("jobqueue", "paused").await["status"].clone();
        if status["waiting"] == 5 { Ok(()) } else { Err(status["waiting"].clone()) }
    })
    .await;
    assert_eq!(redis.count(&["LLEN", LOW]).await, 5);
    space.patch("paused", r#"{"spec": {"paused": false}}"#).await;
    redis.await_completed(0..5).await;
    space.await_condition("paused", "Ready", "True/Ready").await;
    space.delete().await;
}
