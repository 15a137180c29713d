//! The served `OpenAPI` is what the server does: schemathesis tries everything that it allows, and everything it forbids.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a panic is the report")]

use std::path::Path;
use std::process::{Command, Output};

use crate::scene::{SOON, Scene, command};
use e2e::{Worker, WorkerOptions, eventually};
use serde_json::json;

/// Bounds its share of `make test`; without it a run takes as long as it finds new cases.
const EXAMPLES: &str = "40";

fn schemathesis(url: String, more: Vec<String>) -> tokio::task::JoinHandle<Output> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/schemathesis");
    tokio::task::spawn_blocking(move || {
        Command::new(script).arg(url).args(["--max-examples", EXAMPLES]).args(more).output().unwrap()
    })
}

fn passed(output: &Output) {
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    // A phase that was skipped is named too, and so is one that found nothing to do.
    for phase in ["Coverage", "Fuzzing", "Stateful"] {
        assert!(said.contains(&format!("✅  {phase} (in ")), "{phase} did not run: {said}");
    }
    for figure in ["Scenarios:", "API Links:"] {
        let count = said.lines().find_map(|line| line.trim().strip_prefix(figure));
        let count = count.and_then(|rest| rest.split_whitespace().next()?.parse::<u32>().ok());
        assert!(count.is_some_and(|count| count > 0), "{figure} {count:?}: {said}");
    }
    println!("{said}");
}

#[tokio::test]
async fn schemathesis_finds_no_difference_between_the_description_and_the_server() {
    let scene = Scene::with(|options| options.env("API_MAX_WAIT", "20ms")).await;
    passed(&schemathesis(scene.url("/openapi.json"), Vec::new()).await.unwrap());
    let created = scene.queued().await.len();
    println!("{created} jobs were created");
    assert!(created > 0);
}

#[tokio::test]
async fn schemathesis_finds_no_difference_while_declared_handlers_run_the_jobs() {
    let handlers = json!({ "email": { "simulate": { "base": "5ms" } }, "resize": "simulate" });
    let scene =
        Scene::with(|options| options.env("API_MAX_WAIT", "20ms").env("ASYNC_HANDLERS", &handlers)).await;
    let worker = WorkerOptions::new("worker").redis(scene.server.addr()).env("PROTOCOL", "async");
    let _worker = Worker::spawn(&worker.env("ASYNC_HANDLERS", &handlers));
    passed(&schemathesis(scene.url("/openapi.json"), Vec::new()).await.unwrap());
    eventually(SOON, "all to be run", async || scene.queued().await.is_empty()).await;
    let completed: usize = command(&mut scene.redis().await, &["ZCARD", "jobs:index:completed"]).await;
    assert!(completed > 0, "none was run");
}

#[tokio::test]
async fn schemathesis_finds_no_way_around_the_tokens() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tokens");
    std::fs::write(&file, "secret-1\n").unwrap();
    let scene =
        Scene::with(|options| options.env("API_MAX_WAIT", "20ms").env("API_TOKEN_FILE", file.display()))
            .await;
    let token = ["-H", "Authorization: Bearer secret-1"].map(String::from).to_vec();
    passed(&schemathesis(scene.url("/openapi.json"), token).await.unwrap());
    assert!(!scene.queued().await.is_empty());
}

#[tokio::test]
async fn the_description_is_of_version_3_1_and_links_what_belongs_together() {
    let scene = Scene::start().await;
    let document = scene.get("/openapi.json").await.body;
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1"), "{}", document["openapi"]);
    let post = &document["paths"]["/jobs"]["post"];
    assert_eq!(post["responses"]["201"]["links"]["look"]["operationId"], "getJob");
    for code in ["400", "408", "409", "413", "415", "503"] {
        assert!(post["responses"][code]["content"]["application/problem+json"].is_object(), "{code}: {post}");
    }
    assert!(post["responses"].get("401").is_none(), "without tokens nobody is refused");
    assert_eq!(document["components"]["schemas"]["NewJob"]["additionalProperties"], json!(false));
    assert_eq!(document["components"]["schemas"]["NewJob"]["required"], json!(["type"]));
}
