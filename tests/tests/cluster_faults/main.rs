//! The operator on a real cluster in trouble. These tests disturb everybody, so they run one at a time.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a panic is the report")]
mod apiserver;
mod installation;
mod leader;
mod node;
mod rights;
mod thousand;
mod two_leaders;

use std::time::Duration;

use e2e::kubernetes::{OPERATOR_NAMESPACE, kubectl, patiently};
use tokio::sync::{Mutex, MutexGuard};

static ALONE: Mutex<()> = Mutex::const_new(());

/// Waits for its turn, and for an operator that is well after whatever the test before did to it.
async fn alone() -> MutexGuard<'static, ()> {
    let turn = ALONE.lock().await;
    await_operators(2).await;
    turn
}

/// Waits until so many operators run and one of them leads.
async fn await_operators(count: u32) {
    let deployment = "deployment/jobqueue-operator";
    patiently("the operators", async || {
        let path = "jsonpath={.status.readyReplicas}/{.status.updatedReplicas}/{.status.replicas}";
        let seen = kubectl(&["-n", OPERATOR_NAMESPACE, "get", deployment, "-o", path]).await?;
        if seen == format!("{count}/{count}/{count}") { Ok(()) } else { Err(seen) }
    })
    .await;
    patiently("a living leader", async || {
        let leader = leader().await?;
        let pods = kubectl(&["-n", OPERATOR_NAMESPACE, "get", "pods", "-o", "name"]).await?;
        if pods.lines().any(|pod| pod == format!("pod/{leader}")) { Ok(()) } else { Err(leader) }
    })
    .await;
}

/// The pod that leads.
async fn leader() -> Result<String, String> {
    let path = "jsonpath={.spec.holderIdentity}";
    kubectl(&["-n", OPERATOR_NAMESPACE, "get", "lease", "jobqueue-operator", "-o", path]).await
}

/// Lets time pass while something is away or nothing is to happen.
async fn pass(time: Duration) {
    tokio::time::sleep(time).await;
}
