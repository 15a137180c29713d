//! The example clients, as they are shown.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a panic is the report")]

use std::path::Path;
use std::process::{Command, Output};

use crate::scene::{SOON, Scene};
use e2e::eventually;

/// Runs an example client against the API and does its job, as a worker would.
async fn run(program: &str, file: &str) -> Output {
    let scene = Scene::start().await;
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/async").join(file);
    let mut command = Command::new(program);
    command.arg(path).env("JOBS_URL", scene.url(""));
    let client = tokio::task::spawn_blocking(move || command.output().unwrap());
    let id = eventually(SOON, "a job of the client", async || {
        scene.queued().await.first().cloned().ok_or("no job yet")
    })
    .await;
    scene.move_to(&id, "running").await;
    scene.move_to(&id, "completed").await;
    client.await.unwrap()
}

fn says_completed(output: &Output) {
    let (said, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}{error}");
    assert!(said.contains("completed"), "{said}{error}");
}

#[tokio::test]
async fn the_python_client_sees_its_job_completed() {
    says_completed(&run("python3", "client.py").await);
}

#[tokio::test]
async fn the_node_client_sees_its_job_completed() {
    says_completed(&run("node", "client.mjs").await);
}
