//! A change of the spec never leaves jobs where nobody serves them.
use e2e::kubernetes::{Namespace, Redis, patiently};

/// Without workers jobs stay where they are.
const NOBODY: &str = "replicas: 0, scaling: {mode: Manual}";
const SOMEBODY: &str = r#"{"spec": {"replicas": 1}}"#;

async fn await_change(space: &Namespace, queue: &str, gone: &str) {
    patiently("the change to take place", async || {
        let config = space.get("configmap", &format!("{queue}-config")).await["data"]["config.yaml"].clone();
        let config = config.as_str().unwrap_or_default().to_owned();
        if config.contains(gone) { Err(config) } else { Ok(()) }
    })
    .await;
    space.await_ready(queue).await;
    assert_eq!(space.condition(queue, "Stalled").await, "-/-: -");
}

/// A queue with so many jobs is taken out of the spec; what is said of it.
async fn take_out(space: &Namespace, redis: &Redis<'_>, jobs: u32) -> String {
    let queues = format!("queues: [{{name: kept}}, {{name: removed}}], {NOBODY}");
    space.queue("orders", &space.on("store", &queues)).await;
    space.await_ready("orders").await;
    redis.push("jobqueue:removed", 0..jobs).await;
    space.patch("orders", r#"{"spec": {"queues": [{"name": "kept"}]}}"#).await;
    space.await_condition("orders", "Reconciling", "True/JobsLeftBehind").await
}

#[tokio::test]
async fn a_queue_that_is_taken_out_of_the_spec_is_served_until_it_is_empty() {
    let space = Namespace::create("taken-out").await;
    let redis = space.external("store").await;
    let waits = take_out(&space, &redis, 20).await;
    assert!(
        waits.contains("20 jobs are in queues that spec.queues does not name any more (removed)"),
        "{waits}"
    );
    space.await_condition("orders", "Ready", "True").await;
    patiently("figures that go on", async || {
        space.get("jobqueue", "orders").await["status"]["waiting"] == 20
    })
    .await;
    space.patch("orders", SOMEBODY).await;
    await_change(&space, "orders", "removed").await;
    redis.await_completed(0..20).await;
    // With the last worker that served it, it is nobody's.
    patiently("the end of the claim", async || {
        let owner = redis.ask(&["GET", "jobqueue:removed:owner"]).await?;
        if owner.is_empty() { Ok(()) } else { Err(owner) }
    })
    .await;
    assert_ne!(redis.ask(&["GET", "jobqueue:kept:owner"]).await.unwrap_or_default(), "");
    space.delete().await;
}

#[tokio::test]
async fn a_queue_moves_to_another_redis_when_the_first_has_no_jobs_left() {
    let space = Namespace::create("moved").await;
    let (first, second) = (space.external("first").await, space.external("second").await);
    space.queue("orders", &space.on("first", NOBODY)).await;
    space.await_ready("orders").await;
    first.push("jobqueue:low_priority", 0..20).await;
    let address = |redis: &str| {
        format!(r#"{{"spec": {{"redis": {{"external": {{"address": "{redis}.{}:6379"}}}}}}}}"#, space.name)
    };
    space.patch("orders", &address("second")).await;
    let waits = space.await_condition("orders", "Reconciling", "True/JobsLeftBehind").await;
    let place = format!("20 jobs and dead letters are in Redis first.{}:6379", space.name);
    assert!(waits.contains(&place), "{waits}");
    space.patch("orders", SOMEBODY).await;
    await_change(&space, "orders", &format!("first.{}", space.name)).await;
    first.await_completed(0..20).await;
    second.push("jobqueue:low_priority", 20..23).await;
    second.await_completed(20..23).await;
    space.delete().await;
}

#[tokio::test]
async fn who_says_so_leaves_the_jobs_behind() {
    let space = Namespace::create("left").await;
    let redis = space.external("store").await;
    let waits = take_out(&space, &redis, 3).await;
    let (_, command) = waits.split_once("to leave them behind: kubectl ").expect("a command");
    let command: Vec<String> = command.split(' ').map(|word| word.replace('\'', "")).collect();
    space.kubectl(&command.iter().map(String::as_str).collect::<Vec<_>>()).await.expect("annotated");
    await_change(&space, "orders", "removed").await;
    assert_eq!(redis.count(&["LLEN", "jobqueue:removed"]).await, 3);
    space.delete().await;
}

#[tokio::test]
async fn the_same_redis_under_another_name_is_no_other_redis() {
    let space = Namespace::create("renamed").await;
    let redis = space.external("store").await;
    let alias = "{apiVersion: v1, kind: Service, metadata: {name: alias}, spec: {selector: {app: store}, ports: [{port: 6379}]}}";
    space.apply(alias).await;
    space.queue("orders", &space.on("store", NOBODY)).await;
    space.await_ready("orders").await;
    redis.push("jobqueue:low_priority", 0..3).await;
    let address =
        format!(r#"{{"spec": {{"redis": {{"external": {{"address": "alias.{}:6379"}}}}}}}}"#, space.name);
    space.patch("orders", &address).await;
    await_change(&space, "orders", &format!("store.{}", space.name)).await;
    assert_eq!(redis.count(&["LLEN", "jobqueue:low_priority"]).await, 3);
    space.patch("orders", SOMEBODY).await;
    redis.await_completed(0..3).await;
    space.delete().await;
}

#[tokio::test]
async fn an_address_that_never_answered_can_be_corrected() {
    let space = Namespace::create("corrected").await;
    space.external("store").await;
    space.queue("orders", &space.on("stroe", "")).await;
    space.await_condition("orders", "Ready", "False/Unreachable").await;
    let address =
        format!(r#"{{"spec": {{"redis": {{"external": {{"address": "store.{}:6379"}}}}}}}}"#, space.name);
    space.patch("orders", &address).await;
    space.await_ready("orders").await;
    space.delete().await;
}
