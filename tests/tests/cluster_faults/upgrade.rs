//! From the version before to this one, with jobs in flight.
use std::collections::HashMap;
use std::time::Duration;

use e2e::kubernetes::{LOW, Namespace, OPERATOR_NAMESPACE, given, kubectl, patiently, run};
use e2e::wait::eventually;
use serde_json::Value;

use crate::{CHART, alone, await_operators, helm, pass, values};

/// More than are rolled at once.
const QUEUES: u32 = 8;
const ROLLED_AT_ONCE: usize = 5;
const JOBS: u32 = 60;
/// Fifteen rounds of four jobs, three seconds each: the upgrade comes in the middle of them.
const WORKER: &str = "concurrency: 4, handler: {simulate: {base: 3s}}";
const ONE: &str = "scaling: {minReplicas: 1, maxReplicas: 1}";

/// The chart and the images of the version before, by the names that `scripts/previous` gives them.
async fn previous() -> HashMap<String, String> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/previous");
    let said = run(script, &[], None).await.unwrap_or_else(|error| panic!("{error}"));
    said.lines()
        .filter_map(|line| line.split_once('='))
        .map(|(name, value)| (name.into(), value.into()))
        .collect()
}

/// The workers' Deployments of the test.
async fn workers(space: &Namespace) -> Vec<Value> {
    space.list("deployments", "app.kubernetes.io/component=worker").await
}

fn image(worker: &Value) -> &Value {
    &worker["spec"]["template"]["spec"]["containers"][0]["image"]
}

/// Whether some pods are not of the newest template yet.
fn is_rolling(worker: &Value) -> bool {
    let count = |path: &str| worker.pointer(path).and_then(Value::as_i64).unwrap_or(0);
    count("/status/observedGeneration") < count("/metadata/generation")
        || count("/status/updatedReplicas") < count("/spec/replicas")
        || count("/status/replicas") > count("/status/updatedReplicas")
}

/// How often the containers of a pod were started again, and which pod it is.
async fn life(space: &Namespace, pod: &str) -> (Value, Value) {
    let pod = space.get("pod", pod).await;
    (pod["metadata"]["uid"].clone(), pod["status"]["containerStatuses"][0]["restartCount"].clone())
}

#[tokio::test]
#[ignore = "long: builds the version before this one"]
async fn an_upgrade_from_the_version_before_loses_no_job_and_restarts_no_redis() {
    let _turn = alone().await;
    let previous = previous().await;
    let (old, new) = (previous["PREVIOUS_WORKER_IMAGE"].as_str(), given("WORKER_IMAGE"));
    assert_ne!(old, new, "there is nothing to upgrade from: set PREVIOUS to an older commit");
    let values = values().await;
    let values = values.path().to_str().expect("text");
    install_previous(&previous, values).await;

    let space = Namespace::create("versions").await;
    let store = space.external("store").await;
    space.queue("managed", &format!("{{{ONE}, worker: {{{WORKER}}}}}")).await;
    space.queue("pinned", &format!("{{{ONE}, worker: {{image: '{old}', {WORKER}}}}}")).await;
    for number in 0..QUEUES {
        let spec = format!("keyPrefix: q{number}, {ONE}, worker: {{{WORKER}}}");
        space.queue(&format!("queue-{number}"), &space.on("store", &spec)).await;
    }
    patiently("all workers of the version before", async || {
        let workers = workers(&space).await;
        let ready =
            workers.iter().filter(|one| one["status"]["readyReplicas"] == 1 && image(one) == old).count();
        if ready == QUEUES as usize + 2 { Ok(()) } else { Err(ready) }
    })
    .await;
    let (managed, pinned) = (space.managed("managed").await, space.managed("pinned").await);
    let redis = ["managed-redis-0", "pinned-redis-0"];
    let before = [life(&space, redis[0]).await, life(&space, redis[1]).await];
    managed.push(LOW, 0..JOBS).await;
    pinned.push(LOW, 0..JOBS).await;
    for number in 0..QUEUES {
        store.push(&format!("q{number}:low_priority"), 0..JOBS).await;
    }

    let upgrade =
        ["upgrade", "jobqueue", CHART, "--reset-values", "--values", values, "--wait", "--timeout=5m"];
    let (_, rolling) = tokio::join!(helm(&upgrade), roll(&space, &new));
    await_operators(2).await;
    println!("at most {rolling} queues were rolled at once");
    assert!((1..=ROLLED_AT_ONCE).contains(&rolling), "{rolling} at once");
    managed.await_completed(0..JOBS).await;
    pinned.await_completed(0..JOBS).await;
    for number in 0..QUEUES {
        store.await_completed_in(&format!("q{number}:completed"), 0..JOBS).await;
        assert_eq!(store.count(&["LLEN", &format!("q{number}:dead_letter")]).await, 0);
    }
    assert_eq!([life(&space, redis[0]).await, life(&space, redis[1]).await], before);
    // Old workers, new operator: they run what comes, and are scaled.
    space.patch("pinned", r#"{"spec": {"scaling": {"minReplicas": 2, "maxReplicas": 2}}}"#).await;
    patiently("two old workers", async || {
        let worker = space.get("deployment", "pinned-worker").await;
        worker["status"]["readyReplicas"] == 2 && *image(&worker) == *old
    })
    .await;
    pinned.push(LOW, JOBS..JOBS + 4).await;
    pinned.await_completed(0..JOBS + 4).await;
    space.await_ready("pinned").await;
    space.delete().await;
}

/// Installs the version before in place of this one.
async fn install_previous(previous: &HashMap<String, String>, values: &str) {
    let mut arguments = [
        "upgrade",
        "jobqueue",
        &previous["PREVIOUS_CHART"],
        "--reset-values",
        "--values",
        values,
        "--wait",
        "--timeout=5m",
    ]
    .map(str::to_owned)
    .to_vec();
    for (name, value) in [("image", "PREVIOUS_OPERATOR_IMAGE"), ("worker.image", "PREVIOUS_WORKER_IMAGE")] {
        let (repository, tag) = previous[value].rsplit_once(':').expect("an image with a tag");
        arguments.push("--set-string".into());
        arguments.push(format!("{name}.repository={repository},{name}.tag={tag}"));
    }
    helm(&arguments.iter().map(String::as_str).collect::<Vec<_>>()).await;
    await_operators(2).await;
    let path = "jsonpath={.spec.template.spec.containers[0].image}";
    let runs = kubectl(&["-n", OPERATOR_NAMESPACE, "get", "deployment/jobqueue-operator", "-o", path]).await;
    assert_eq!(runs.as_deref(), Ok(previous["PREVIOUS_OPERATOR_IMAGE"].as_str()));
}

/// Watches until every worker that is not pinned is of the new version: how many were on the way at once, at most.
async fn roll(space: &Namespace, new: &str) -> usize {
    let mut most = 0;
    eventually(Duration::from_secs(600), "all workers to be of the new version", async || {
        pass(Duration::from_millis(300)).await;
        let workers = workers(space).await;
        let (upgraded, rest): (Vec<&Value>, Vec<&Value>) =
            workers.iter().partition(|one| *image(one) == *new);
        let rolling = upgraded.iter().filter(|one| is_rolling(one)).count();
        most = most.max(rolling);
        // The pinned one stays.
        if rest.len() == 1 && rolling == 0 {
            Ok(())
        } else {
            Err(format!("{} to come, {rolling} on the way", rest.len()))
        }
    })
    .await;
    most
}
