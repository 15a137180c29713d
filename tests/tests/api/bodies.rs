//! What bad requests get: a code for each, and nothing created.
use crate::scene::Scene;
use serde_json::json;

#[tokio::test]
async fn every_bad_body_gets_its_own_reason_and_creates_nothing() {
    let scene =
        Scene::with(|options| options.env("API_BODY_LIMIT", "1000").env("API_DEPTH_LIMIT", "5")).await;
    let deep = format!(r#"{{"type":"t","payload":{}1{}}}"#, "[".repeat(5), "]".repeat(5));
    let large = format!(r#"{{"type":"t","payload":"{}"}}"#, "x".repeat(1000));
    for (body, status, code) in [
        ("", 400, "not_json"),
        ("{\"type\":", 400, "not_json"),
        ("nonsense", 400, "not_json"),
        ("[]", 400, "invalid_field"),
        ("{}", 400, "missing_field"),
        (r#"{"type":7}"#, 400, "invalid_field"),
        (r#"{"type":"white space"}"#, 400, "invalid_field"),
        (r#"{"type":"t","delay":5}"#, 400, "unknown_field"),
        (r#"{"type":"t","payload":"\ud800"}"#, 400, "not_json"),
        (&deep, 400, "too_deep"),
        (&large, 413, "too_large"),
    ] {
        scene.post_raw("/jobs", body.to_owned()).await.is_problem(status, code);
        let batch = format!(r#"{{"jobs":[{body}]}}"#);
        if code != "not_json" && code != "too_deep" {
            scene.post_raw("/jobs:batch", batch).await.is_problem(status, code);
        }
    }
    scene
        .post_raw("/jobs", b"{\"type\":\"t\",\"payload\":\"\xff\"}".to_vec())
        .await
        .is_problem(400, "not_json");
    assert!(scene.queued().await.is_empty());
    let fits = format!(r#"{{"type":"t","payload":{}1{}}}"#, "[".repeat(4), "]".repeat(4));
    assert_eq!(scene.post_raw("/jobs", fits).await.status, 201);
}

#[tokio::test]
async fn a_problem_names_the_field_and_the_rule() {
    let scene = Scene::start().await;
    let problem =
        scene.post("/jobs:batch", &json!({ "jobs": [{ "type": "t" }, { "type": "t", "x": 1 }] })).await;
    problem.is_problem(400, "unknown_field");
    assert_eq!(problem.body["field"], "jobs[1].x");
    assert_eq!(problem.body["title"], "A field is not known");
}

#[tokio::test]
async fn a_body_without_a_length_is_limited_too() {
    let scene = Scene::with(|options| options.env("API_BODY_LIMIT", "1000")).await;
    let head = "POST /jobs HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
    let chunks = format!("64\r\n{}\r\n", " ".repeat(100)).repeat(50);
    let answer = crate::sockets::say(&scene, format!("{head}{chunks}0\r\n\r\n").as_bytes(), false).await;
    assert!(answer.starts_with("HTTP/1.1 413") && answer.contains("too_large"), "{answer}");
}

#[tokio::test]
async fn a_body_must_be_said_to_be_json() {
    let scene = Scene::start().await;
    for kind in ["text/plain", "application/x-www-form-urlencoded"] {
        let request =
            scene.client.post(scene.url("/jobs")).header("content-type", kind).body(r#"{"type":"t"}"#);
        scene.send(request).await.is_problem(415, "unsupported_media_type");
    }
    let request = scene.client.post(scene.url("/jobs")).body(r#"{"type":"t"}"#);
    scene.send(request).await.is_problem(415, "unsupported_media_type");
}

#[tokio::test]
async fn other_routes_and_methods_are_refused_as_problems() {
    let scene = Scene::start().await;
    for path in ["/", "/job", "/jobs/", "/jobs/a/b", "/jobs:other"] {
        scene.get(path).await.is_problem(404, "route_not_found");
    }
    let answer = scene.send(scene.client.put(scene.url("/jobs"))).await;
    answer.is_problem(405, "method_not_allowed");
    let allow = answer.header("allow").to_owned();
    assert!(allow.contains("GET") && allow.contains("POST"), "{allow}");
    scene.delete("/jobs").await.is_problem(405, "method_not_allowed");
    scene.get("/jobs:batch").await.is_problem(405, "method_not_allowed");
}

#[tokio::test]
async fn every_bad_query_is_refused() {
    let scene = Scene::start().await;
    for query in [
        "status=lost",
        "limit=0",
        "limit=101",
        "limit=x",
        "cursor=x",
        "cursor=1.",
        "cursor=1.6",
        "page=2",
        "limit=1&limit=2",
    ] {
        scene.get(&format!("/jobs?{query}")).await.is_problem(400, "invalid_query");
    }
    let id = scene.create("t").await;
    for query in
        ["wait=x", "wait=10", "wait=-1s", "wait=1h", "wait=12345s", "wait=1s&wait=1s", "status=pending"]
    {
        scene.get(&format!("/jobs/{id}?{query}")).await.is_problem(400, "invalid_query");
    }
}

#[tokio::test]
async fn a_type_that_nobody_runs_is_refused_where_handlers_are_declared() {
    let handlers = json!({ "email": { "simulate": { "base": "1ms" } }, "resize": "simulate" });
    let scene = Scene::with(|options| options.env("ASYNC_HANDLERS", &handlers)).await;
    let refused = scene.post("/jobs", &json!({ "type": "emial" })).await;
    refused.is_problem(400, "unknown_type");
    assert_eq!(refused.body["field"], "type");
    assert_eq!(refused.body["detail"], "async.handlers has: email, resize");
    let batch = json!({ "jobs": [{ "type": "email" }, { "type": "other" }] });
    let refused = scene.post("/jobs:batch", &batch).await;
    refused.is_problem(400, "unknown_type");
    assert_eq!(refused.body["field"], "jobs[1].type");
    assert!(scene.queued().await.is_empty());
    scene.create("email").await;
    let any =
        Scene::with(|options| options.env("ASYNC_HANDLERS", "{email: simulate, default: simulate}")).await;
    any.create("emial").await;
}
