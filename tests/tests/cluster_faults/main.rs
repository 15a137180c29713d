//! The operator on a real cluster in trouble. These tests disturb everybody, so they run one at a time.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a panic is the report")]
mod apiserver;
mod installation;
mod leader;
mod monitoring;
mod namespaced;
mod node;
mod rights;
mod storage;
mod thousand;
mod two_leaders;
mod upgrade;

use std::time::Duration;

use e2e::kubernetes::{OPERATOR_NAMESPACE, kubectl, patiently, run};
use tokio::sync::{Mutex, MutexGuard};

/// The chart of this work tree.
const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../charts/jobqueue-operator");

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

async fn helm(arguments: &[&str]) -> String {
    let all = [&["--namespace", OPERATOR_NAMESPACE], arguments].concat();
    run("helm", &all, None).await.unwrap_or_else(|error| panic!("helm {arguments:?}: {error}"))
}

/// A file with the values that the operator was installed with.
async fn values() -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), helm(&["get", "values", "jobqueue", "-o", "yaml"]).await).expect("written");
    file
}

/// Changes values of the operator's chart.
async fn change(values: &[&str]) {
    let upgrade = ["upgrade", "jobqueue", CHART, "--reuse-values", "--wait", "--timeout=3m"];
    helm(&[&upgrade[..], values].concat()).await;
    await_operators(2).await;
}

async fn scale_operators(to: u32) {
    let replicas = format!("--replicas={to}");
    let deployment = "deployment/jobqueue-operator";
    kubectl(&["-n", OPERATOR_NAMESPACE, "scale", deployment, &replicas]).await.expect("scaled");
    if to > 0 {
        return await_operators(to).await;
    }
    patiently("no operator", async || {
        let pods = kubectl(&["-n", OPERATOR_NAMESPACE, "get", "pods", "-o", "name"]).await;
        pods.is_ok_and(|pods| pods.trim().is_empty())
    })
    .await;
}
