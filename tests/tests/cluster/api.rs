//! The HTTP API of an async queue, as its example has it.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a panic is the report")]

use std::path::Path;
use std::process::{Output, Stdio};

use e2e::kubernetes::{Namespace, patiently};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;

/// Runs an example client against the Service.
async fn client(space: &Namespace, examples: &Path) -> Output {
    let mut forward = Command::new("kubectl")
        .args(["-n", &space.name, "port-forward", "service/jobs-api", ":80"])
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("kubectl port-forward");
    // Forwarding from 127.0.0.1:40123 -> 8080
    let mut lines = BufReader::new(forward.stdout.take().expect("its output")).lines();
    let line = lines.next_line().await.expect("a line").expect("where it listens");
    let address = line.split_whitespace().find(|word| word.starts_with("127.0.0.1:")).expect("an address");
    let mut client = Command::new("python3");
    client.arg(examples.join("async/client.py")).env("JOBS_URL", format!("http://{address}"));
    client.env("JOBS_TOKEN", "change-me").output().await.expect("python3")
}

#[tokio::test]
async fn a_job_that_is_posted_through_the_service_is_completed() {
    let space = Namespace::create("api").await;
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
    space.apply(&std::fs::read_to_string(examples.join("async.yaml")).unwrap()).await;
    space.await_ready("jobs").await;
    patiently("two pods of the API", async || {
        let api = space.get("deployment", "jobs-api").await;
        if api["status"]["readyReplicas"] == 2 { Ok(()) } else { Err(api["status"].to_string()) }
    })
    .await;
    let client = client(&space, &examples).await;
    let (said, error) = (String::from_utf8_lossy(&client.stdout), String::from_utf8_lossy(&client.stderr));
    assert!(client.status.success() && said.contains(" completed "), "{said}{error}");

    // Whoever scales the API is not fought over.
    space.kubectl(&["scale", "deployment", "jobs-api", "--replicas=1"]).await.expect("scaled");
    space.patch("jobs", r#"{"spec":{"api":{"maxWait":"30s"}}}"#).await;
    patiently("the changed configuration to be rolled out to one pod", async || {
        let api = space.get("deployment", "jobs-api").await;
        let (status, generation) = (&api["status"], &api["metadata"]["generation"]);
        let config = space.get("configmap", "jobs-config").await;
        let changed =
            config["data"]["config.yaml"].as_str().is_some_and(|yaml| yaml.contains("max_wait: 30s"));
        let rolled = status["observedGeneration"] == *generation && status["updatedReplicas"] == 1;
        if changed && rolled && api["spec"]["replicas"] == 1 {
            Ok(())
        } else {
            Err(api["spec"]["replicas"].to_string())
        }
    })
    .await;
    let parts = ["service", "poddisruptionbudget", "networkpolicy"];
    for kind in parts {
        space.get(kind, "jobs-api").await;
    }

    // All of it goes when nobody asks for it any more.
    space.patch("jobs", r#"{"spec":{"api":null}}"#).await;
    for kind in ["deployment"].into_iter().chain(parts) {
        patiently(&format!("no {kind} of the API"), async || {
            space
                .find(kind, "jobs-api")
                .await
                .is_none_or(|left| !left["metadata"]["deletionTimestamp"].is_null())
        })
        .await;
    }
    space.await_ready("jobs").await;
    assert_eq!(space.condition("jobs", "Stalled").await, "-/-: -");
    space.delete().await;
}
