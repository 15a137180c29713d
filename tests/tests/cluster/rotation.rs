//! A new password for a managed Redis.
#![allow(clippy::expect_used, reason = "a panic is the report")]
use std::time::Duration;

use e2e::kubernetes::{LOW, Namespace, patiently};
use e2e::wait::eventually;

/// A step waits three minutes for the one before to have reached every pod.
const STEP: Duration = Duration::from_secs(300);

async fn rotate(space: &Namespace, queue: &str) {
    let annotation = "jobqueue.dev/rotate-password=now";
    space.kubectl(&["annotate", "jobqueue", queue, annotation, "--overwrite"]).await.expect("annotated");
}

async fn await_new_secret(space: &Namespace, queue: &str, old: &serde_json::Value) {
    eventually(STEP, "the new password in the Secret", async || {
        let now = space.get("secret", &format!("{queue}-redis")).await["data"].clone();
        if now["password"] == old["password"] {
            Err(now.as_object().map(serde_json::Map::len))
        } else {
            Ok(())
        }
    })
    .await;
}

#[tokio::test]
#[ignore = "long: each step waits three minutes"]
async fn a_new_password_is_taken_up_while_jobs_run_and_the_old_one_still_works() {
    let space = Namespace::create("rotated").await;
    space.queue("rotated", "{scaling: {minReplicas: 1}, worker: {handler: {simulate: {base: 1s}}}}").await;
    space.await_condition("rotated", "WorkersAvailable", "True/Available").await;
    let with_old = space.managed("rotated").await;
    let old = space.get("secret", "rotated-redis").await["data"].clone();
    let pod = space.get("pod", "rotated-redis-0").await["metadata"]["uid"].clone();
    with_old.push(LOW, 0..64).await;
    rotate(&space, "rotated").await;
    await_new_secret(&space, "rotated", &old).await;
    let with_new = space.managed("rotated").await;
    with_new.await_completed(0..64).await;
    with_old.push(LOW, 64..70).await;
    with_new.await_completed(0..70).await;
    assert_eq!(space.get("pod", "rotated-redis-0").await["metadata"]["uid"], pod, "nothing restarts");
    space.await_ready("rotated").await;
    space.delete().await;
}

#[tokio::test]
#[ignore = "long: each step waits three minutes"]
async fn in_the_end_the_old_password_is_refused_also_after_a_restart() {
    let space = Namespace::create("refused").await;
    space.queue("refused", "{}").await;
    space.await_ready("refused").await;
    let with_old = space.managed("refused").await;
    let old = space.get("secret", "refused-redis").await["data"].clone();
    rotate(&space, "refused").await;
    await_new_secret(&space, "refused", &old).await;
    e2e::wait::eventually(
        std::time::Duration::from_secs(300),
        "the old password to be refused",
        async || with_old.ask(&["PING"]).await.is_err(),
    )
    .await;
    space.kubectl(&["delete", "pod", "refused-redis-0"]).await.expect("deleted");
    let with_new = space.managed("refused").await;
    patiently("Redis with the new password", async || with_new.ask(&["PING"]).await.is_ok()).await;
    assert!(with_old.ask(&["PING"]).await.is_err());
    with_new.push(LOW, 0..3).await;
    with_new.await_completed(0..3).await;
    space.delete().await;
}
