//! Creating jobs and looking at them.
use crate::scene::{Scene, command};
use serde_json::{Value, json};

#[tokio::test]
async fn a_created_job_is_pending_in_the_queue_and_can_be_read() {
    let scene = Scene::start().await;
    let body = json!({ "type": "email", "payload": { "to": "a@b.example", "n": 1 } });
    let created = scene.post("/jobs", &body).await;
    assert_eq!(created.status, 201, "{created:?}");
    let id = created.body["id"].as_str().unwrap();
    assert_eq!(created.header("location"), format!("/jobs/{id}"));
    assert_eq!((&created.body["status"], &created.body["attempts"]), (&json!("pending"), &json!(0)));
    assert_eq!(created.body["payload"], body["payload"]);
    for field in ["started_at", "completed_at", "error", "result"] {
        assert_eq!(created.body[field], Value::Null, "{field}");
    }
    assert!(created.body["created_at"].as_str().unwrap().ends_with('Z'), "{created:?}");
    let read = scene.get(created.header("location")).await;
    assert_eq!((read.status, &read.body), (200, &created.body));

    assert_eq!(scene.queued().await, [id]);
    let mut redis = scene.redis().await;
    let data: String = command(&mut redis, &["GET", &format!("jobs:data:{id}")]).await;
    assert_eq!(serde_json::from_str::<Value>(&data).unwrap(), created.body);
    let ttl: i64 = command(&mut redis, &["TTL", &format!("jobs:data:{id}")]).await;
    assert_eq!(ttl, -1, "it lives until it is over");
    let indexed: Vec<String> = command(&mut redis, &["ZRANGE", "jobs:index:pending", "0", "-1"]).await;
    assert_eq!(indexed, [id]);
}

#[tokio::test]
async fn a_payload_keeps_its_numbers_and_its_order() {
    let scene = Scene::start().await;
    let payload = r#"{"z":12345678901234567890123,"a":1.10,"e":[],"o":{}}"#;
    let created = scene.post_raw("/jobs", format!(r#"{{"type":"t","payload":{payload}}}"#)).await;
    assert_eq!(created.status, 201, "{created:?}");
    let id = created.body["id"].as_str().unwrap();
    let read =
        scene.client.get(scene.url(&format!("/jobs/{id}"))).send().await.unwrap().text().await.unwrap();
    assert!(read.contains(payload), "{read}");
}

#[tokio::test]
async fn a_batch_is_created_in_its_order_or_not_at_all() {
    let scene = Scene::start().await;
    let batch = json!({ "jobs": [{ "type": "a" }, { "type": "b", "payload": [1] }, { "type": "c" }] });
    let created = scene.post("/jobs:batch", &batch).await;
    assert_eq!(created.status, 201, "{created:?}");
    let jobs = created.body["jobs"].as_array().unwrap();
    let types: Vec<&str> = jobs.iter().map(|job| job["type"].as_str().unwrap()).collect();
    assert_eq!(types, ["a", "b", "c"]);
    let ids: Vec<&str> = jobs.iter().map(|job| job["id"].as_str().unwrap()).collect();
    assert_eq!(scene.queued().await, ids);

    let half = json!({ "jobs": [{ "type": "a" }, { "type": "" }] });
    scene.post("/jobs:batch", &half).await.is_problem(400, "invalid_field");
    assert_eq!(scene.queued().await.len(), 3, "none of the second");
    let many: Vec<Value> = (0..1001).map(|_| json!({ "type": "a" })).collect();
    scene.post("/jobs:batch", &json!({ "jobs": many })).await.is_problem(400, "invalid_field");
    let most: Vec<Value> = (0..1000).map(|_| json!({ "type": "a" })).collect();
    assert_eq!(scene.post("/jobs:batch", &json!({ "jobs": most })).await.status, 201);
    assert_eq!(scene.queued().await.len(), 1003);
}

#[tokio::test]
async fn a_job_of_a_client_that_follows_the_seed_is_shown() {
    let scene = Scene::start().await;
    let mut redis = scene.redis().await;
    let data = r#"{"id":"x 1","type":"t","payload":{},"status":"pending","created_at":"2026-02-05T21:04:47Z","mine":[1]}"#;
    let _: () = command(&mut redis, &["SET", "jobs:data:x 1", data]).await;
    let read = scene.get("/jobs/x%201").await;
    assert_eq!(read.status, 200, "{read:?}");
    assert_eq!((&read.body["mine"], &read.body["attempts"]), (&json!([1]), &json!(0)));
}

#[tokio::test]
async fn what_is_no_job_is_not_shown_as_one() {
    let scene = Scene::start().await;
    scene.get("/jobs/unknown").await.is_problem(404, "job_not_found");
    let mut redis = scene.redis().await;
    let _: () = command(&mut redis, &["SET", "jobs:data:bad", "nonsense"]).await;
    scene.get("/jobs/bad").await.is_problem(500, "malformed_job");
    scene.delete("/jobs/bad").await.is_problem(500, "malformed_job");
    let _: i64 = command(&mut redis, &["LPUSH", "jobs:data:list", "x"]).await;
    scene.get("/jobs/list").await.is_problem(500, "malformed_job");
}

#[tokio::test]
async fn what_is_too_large_to_be_a_job_is_not_read() {
    let scene = Scene::start().await;
    let mut redis = scene.redis().await;
    let created = scene.post_once("/jobs", "k", &json!({ "type": "t" })).await;
    let id = created.body["id"].as_str().unwrap();
    let (path, key) = (format!("/jobs/{id}"), format!("jobs:data:{id}"));
    let before = scene.api.allocated_kib();
    // 256 MiB, of which Redis makes zeros.
    let _: usize = command(&mut redis, &["SETRANGE", &key, "268435455", "x"]).await;
    for _ in 0..3 {
        let read = scene.get(&path).await;
        read.is_problem(500, "malformed_job");
        assert!(read.body["detail"].as_str().unwrap().contains("268435456 bytes"), "{read:?}");
        scene.delete(&path).await.is_problem(500, "malformed_job");
        // The key still stands for it: it is not gone.
        scene.post_once("/jobs", "k", &json!({ "type": "t" })).await.is_problem(500, "malformed_job");
        assert!(scene.get("/jobs").await.body["jobs"].as_array().unwrap().is_empty());
    }
    let after = scene.api.allocated_kib();
    assert!(after < before + 64 * 1024, "{before} KiB before, {after} after");
    assert_eq!(scene.queued().await, [id], "no other was created in its place");
}

#[tokio::test]
async fn a_queue_of_the_wrong_type_creates_nothing() {
    let scene = Scene::start().await;
    let mut redis = scene.redis().await;
    let _: () = command(&mut redis, &["SET", "jobs:queue", "x"]).await;
    scene.post("/jobs", &json!({ "type": "t" })).await.is_problem(503, "unavailable");
    let keys: Vec<String> = command(&mut redis, &["KEYS", "jobs:data:*"]).await;
    assert!(keys.is_empty(), "{keys:?}");
    let said = scene.api.wait_for_log("Redis refused what a request asked for").await;
    assert!(said["error"].as_str().unwrap().contains("jobs:queue: WRONGTYPE"), "{said}");
    let _: () = command(&mut redis, &["DEL", "jobs:queue"]).await;
    assert_eq!(scene.post("/jobs", &json!({ "type": "t" })).await.status, 201);
}

#[tokio::test]
async fn http_2_is_spoken_too() {
    let scene = Scene::start().await;
    let client = reqwest::Client::builder().http2_prior_knowledge().build().unwrap();
    let asks = (0..20).map(|_| client.post(scene.url("/jobs")).json(&json!({ "type": "t" })).send());
    for answer in futures::future::join_all(asks).await {
        let answer = answer.unwrap();
        assert_eq!((answer.status().as_u16(), answer.version()), (201, reqwest::Version::HTTP_2));
    }
    assert_eq!(scene.queued().await.len(), 20);
}

#[tokio::test]
async fn health_readiness_and_metrics_are_told_with_bounded_labels() {
    let scene = Scene::start().await;
    for path in ["/healthz", "/health"] {
        assert_eq!(scene.get(path).await.status, 200, "{path}");
    }
    e2e::eventually(crate::scene::SOON, "the API to be ready", async || {
        let ready = scene.get("/readyz").await;
        if ready.status == 200 { Ok(()) } else { Err(ready) }
    })
    .await;
    scene.create("t").await;
    for path in ["/nowhere", "/jobs/1", "/jobs/2"] {
        scene.get(path).await;
    }
    let metrics = scene.get("/metrics").await.body;
    let metrics = metrics.as_str().unwrap();
    let sum = |labels: &[(&str, &str)]| e2e::process::sum_of(metrics, "http_requests_total", labels);
    assert_eq!(sum(&[("route", "/jobs"), ("method", "POST"), ("code", "201")]), Some(1.0), "{metrics}");
    assert_eq!(sum(&[("route", "/jobs/{id}"), ("code", "404")]), Some(2.0), "{metrics}");
    assert_eq!(sum(&[("route", "other")]), Some(1.0), "{metrics}");
    assert_eq!(e2e::process::sum_of(metrics, "jobs_produced_total", &[("queue", "default")]), Some(1.0));
    assert_eq!(
        scene.api.metric("http_requests_total", &[("route", "other")]).await,
        Some(1.0),
        "both ports say so"
    );
}

#[tokio::test]
async fn a_request_keeps_the_id_that_its_client_gave_it() {
    let scene = Scene::start().await;
    let request = scene.client.get(scene.url("/jobs/none")).header("x-request-id", "trace-1");
    let answer = scene.send(request).await;
    answer.is_problem(404, "job_not_found");
    assert_eq!(answer.header("x-request-id"), "trace-1");
    let other = scene.get("/jobs/none").await;
    assert_eq!(other.header("x-request-id").len(), 36, "{other:?}");
}

#[tokio::test]
async fn nobody_else_s_pages_may_read_answers() {
    let scene = Scene::start().await;
    let request = scene.client.get(scene.url("/jobs")).header("origin", "https://evil.example");
    let answer = scene.send(request).await;
    assert_eq!(answer.status, 200);
    assert!(!answer.headers.contains_key("access-control-allow-origin"), "{answer:?}");
}

#[tokio::test]
async fn a_job_is_shown_listed_and_cancelled_however_deep_or_odd_its_values_are() {
    let scene = Scene::start().await;
    let mut redis = scene.redis().await;
    let deep = format!("{}1{}", "[".repeat(1000), "]".repeat(1000));
    for (id, value) in [("deep", deep.as_str()), ("half", r#""\ud800""#)] {
        for (status, code) in [("completed", 409), ("pending", 200)] {
            let data = format!(r#"{{"id":"{id}","type":"t","status":"{status}","result":{value}}}"#);
            let _: () = command(&mut redis, &["SET", &format!("jobs:data:{id}"), &data]).await;
            let _: i64 = command(&mut redis, &["ZADD", &format!("jobs:index:{status}"), "1", id]).await;
            let read = scene.get(&format!("/jobs/{id}")).await;
            // Deeper than this test can read: then it is left as text.
            let shown = |body: &Value| match body {
                Value::String(text) => text.contains(value),
                body => body.to_string().contains("ud800"),
            };
            assert!(read.status == 200 && shown(&read.body), "{id}: {read:?}");
            let listed = scene.get(&format!("/jobs?status={status}")).await;
            assert!(listed.status == 200 && shown(&listed.body), "{id}: {listed:?}");
            assert_eq!(scene.delete(&format!("/jobs/{id}")).await.status, code, "{id}");
        }
    }
}
