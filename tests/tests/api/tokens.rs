//! Bearer tokens: several, replaced while it runs.
use crate::scene::{SOON, Scene};
use e2e::{WorkerOptions, eventually};
use serde_json::json;

#[tokio::test]
async fn only_who_has_a_token_is_answered_and_tokens_are_replaced_while_it_runs() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tokens");
    std::fs::write(&file, "old\nother\n").unwrap();
    let scene = Scene::with(|options| options.env("API_TOKEN_FILE", file.display())).await;
    let with = async |token: &str| {
        let request = scene.client.post(scene.url("/jobs")).bearer_auth(token).json(&json!({ "type": "t" }));
        scene.send(request).await
    };
    let without = scene.post("/jobs", &json!({ "type": "t" })).await;
    without.is_problem(401, "unauthorized");
    assert_eq!(without.header("www-authenticate"), "Bearer");
    with("wrong").await.is_problem(401, "unauthorized");
    for path in ["/jobs", "/jobs/x", "/metrics"] {
        scene.get(path).await.is_problem(401, "unauthorized");
    }
    for token in ["old", "other"] {
        assert_eq!(with(token).await.status, 201);
    }
    for path in ["/healthz", "/openapi.json"] {
        assert_eq!(scene.get(path).await.status, 200, "{path}");
    }
    std::fs::write(&file, "new\nother\n").unwrap();
    eventually(SOON, "the new token to be accepted", async || {
        let answer = with("new").await;
        if answer.status == 201 { Ok(()) } else { Err(answer) }
    })
    .await;
    with("old").await.is_problem(401, "unauthorized");
    assert_eq!(with("other").await.status, 201);
    std::fs::remove_file(&file).unwrap();
    eventually(SOON, "the tokens to be kept", async || {
        assert_eq!(with("new").await.status, 201, "a file that is being replaced locks nobody out");
        let kept =
            scene.api.log().iter().any(|entry| entry["msg"] == "Kept the tokens whose file cannot be read");
        if kept { Ok(()) } else { Err(scene.api.log_lines()) }
    })
    .await;
    let shown = scene.api.log_lines().join("\n");
    assert!(!shown.contains("other") && !shown.contains("wrong"), "no token in the log");
}

#[test]
fn a_file_without_tokens_is_refused_at_start() {
    let output =
        WorkerOptions::new("api").env("PROTOCOL", "async").env("API_TOKEN_FILE", "/nowhere").output();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("api.token_file = /nowhere"), "{said}");
}

#[test]
fn the_api_serves_protocol_async_only() {
    let output = WorkerOptions::new("api").output();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("set protocol: async"), "{said}");
}
