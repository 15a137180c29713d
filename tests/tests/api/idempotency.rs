//! Asking twice creates once.
use std::collections::HashSet;

use crate::scene::{SOON, Scene, addr_of, api_options, command};
use e2e::{Worker, WorkerOptions, eventually};
use serde_json::{Value, json};

#[tokio::test]
async fn a_hundred_equal_requests_to_two_processes_at_once_create_one_job() {
    let scene = Scene::start().await;
    // As many processes as are deployed unless somebody says otherwise: each has clerks of its own.
    let second = Worker::spawn(&api_options(scene.server.addr()));
    let addrs = [scene.addr, addr_of(&second).await];
    let body = json!({ "type": "charge", "payload": { "cents": 100 } });
    let answers = (0..100).map(|n| {
        let request = scene.client.post(format!("http://{}/jobs", addrs[n % addrs.len()]));
        scene.send(request.header("idempotency-key", "order-1").json(&body))
    });
    let answers = futures::future::join_all(answers).await;
    let ids: HashSet<&str> = answers.iter().map(|answer| answer.body["id"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), 1);
    let created = answers.iter().filter(|answer| answer.status == 201).count();
    assert!(answers.iter().all(|answer| matches!(answer.status, 200 | 201)), "{answers:?}");
    assert_eq!(created, 1, "the others are told of it");
    assert_eq!(scene.queued().await.len(), 1);
}

#[tokio::test]
async fn a_key_stands_for_one_body() {
    let scene = Scene::start().await;
    let first = scene.post_once("/jobs", "k", &json!({ "type": "a", "payload": { "x": 1, "y": 2 } })).await;
    assert_eq!(first.status, 201);
    let request = scene.client.post(scene.url("/jobs")).header("idempotency-key", "k");
    let request = request.header("content-type", "application/json");
    let same = scene.send(request.body(r#"{ "payload": {"y":2, "x":1}, "type": "a" }"#)).await;
    assert_eq!((same.status, &same.body), (200, &first.body), "spaces and order say nothing");
    assert_eq!(same.header("location"), first.header("location"));
    for other in [json!({ "type": "b", "payload": { "x": 1, "y": 2 } }), json!({ "type": "a" })] {
        scene.post_once("/jobs", "k", &other).await.is_problem(409, "idempotency_conflict");
    }
    assert_eq!(scene.queued().await.len(), 1);
    let another = scene.post_once("/jobs", "l", &json!({ "type": "a" })).await;
    assert_eq!(another.status, 201);
}

#[tokio::test]
async fn a_repeated_request_is_told_how_its_job_fares_now() {
    let scene = Scene::start().await;
    let body = json!({ "type": "a" });
    let first = scene.post_once("/jobs", "k", &body).await;
    scene.move_to(first.body["id"].as_str().unwrap(), "running").await;
    let again = scene.post_once("/jobs", "k", &body).await;
    assert_eq!((again.status, again.body["status"].as_str()), (200, Some("running")));
}

#[tokio::test]
async fn the_key_of_a_batch_lapses_although_one_of_its_jobs_was_deleted() {
    let scene = Scene::start().await;
    let batch = json!({ "jobs": [{ "type": "a" }, { "type": "b" }] });
    let made = scene.post_once("/jobs:batch", "k", &batch).await;
    let ids: Vec<&str> =
        made.body["jobs"].as_array().unwrap().iter().map(|job| job["id"].as_str().unwrap()).collect();
    let mut redis = scene.redis().await;
    let _: () = command(&mut redis, &["DEL", &format!("jobs:data:{}", ids[0])]).await;
    let worker = WorkerOptions::new("worker").redis(scene.server.addr()).env("PROTOCOL", "async");
    let _worker = Worker::spawn(&worker);
    eventually(SOON, "the other to be completed", async || {
        let other = scene.get(&format!("/jobs/{}", ids[1])).await;
        if other.body["status"] == "completed" { Ok(()) } else { Err(other) }
    })
    .await;
    for pattern in ["jobs:idem:*", "jobs:index:batch-*"] {
        let keys: Vec<String> = command(&mut redis, &["KEYS", pattern]).await;
        assert_eq!(keys.len(), 1, "{pattern}");
        let left: i64 = command(&mut redis, &["PTTL", &keys[0]]).await;
        assert!(left > 0, "{pattern} lapses: {left}");
    }
}

#[tokio::test]
async fn a_key_stands_for_a_whole_batch() {
    let scene = Scene::start().await;
    let batch = json!({ "jobs": [{ "type": "a" }, { "type": "b" }] });
    let first = scene.post_once("/jobs:batch", "k", &batch).await;
    let again = scene.post_once("/jobs:batch", "k", &batch).await;
    assert_eq!((first.status, again.status), (201, 200), "{again:?}");
    assert_eq!(first.body, again.body);
    let longer = json!({ "jobs": [{ "type": "a" }, { "type": "b" }, { "type": "c" }] });
    scene.post_once("/jobs:batch", "k", &longer).await.is_problem(409, "idempotency_conflict");
    assert_eq!(scene.queued().await.len(), 2);
}

#[tokio::test]
async fn a_key_is_kept_by_its_hash_as_long_as_its_job_is_not_over() {
    let scene = Scene::start().await;
    let created = scene.post_once("/jobs", "k", &json!({ "type": "a" })).await;
    let id = created.body["id"].as_str().unwrap();
    // printf k | sha256sum
    let hash = "8254c329a92850f6d539dd376f4816ee2764517da5e0235514af433164480d7a";
    let mut redis = scene.redis().await;
    let kept: String = command(&mut redis, &["GET", &format!("jobs:idem:{hash}")]).await;
    assert!(kept.starts_with(&format!("{id} ")), "{kept}");
    let ttl: i64 = command(&mut redis, &["TTL", &format!("jobs:idem:{hash}")]).await;
    assert_eq!(ttl, -1);
    let data: String = command(&mut redis, &["GET", &format!("jobs:data:{id}")]).await;
    let data: Value = serde_json::from_str(&data).unwrap();
    assert_eq!(data["idempotency_key"], hash, "whoever settles it knows the key");
    assert!(created.body.get("idempotency_key").is_none());
}

#[tokio::test]
async fn a_key_must_be_one() {
    let scene = Scene::start().await;
    let long = "x".repeat(256);
    for key in ["", "a b", long.as_str()] {
        let answer = scene.post_once("/jobs", key, &json!({ "type": "a" })).await;
        answer.is_problem(400, "invalid_idempotency_key");
    }
    let twice =
        scene.client.post(scene.url("/jobs")).header("idempotency-key", "a").header("idempotency-key", "b");
    scene.send(twice.json(&json!({ "type": "a" }))).await.is_problem(400, "invalid_idempotency_key");
    assert!(scene.queued().await.is_empty());
}

#[tokio::test]
async fn a_key_whose_jobs_are_gone_counts_for_nothing() {
    let scene = Scene::start().await;
    let mut redis = scene.redis().await;
    let bodies = [json!({ "type": "a" }), json!({ "type": "a" }), json!({ "type": "b" })];
    for body in &bodies {
        let created = scene.post_once("/jobs", "k", body).await;
        assert_eq!(created.status, 201, "the same body or another one: {created:?}");
        let id = created.body["id"].as_str().unwrap();
        assert_eq!(scene.post_once("/jobs", "k", body).await.body["id"], id);
        let _: i64 = command(&mut redis, &["DEL", &format!("jobs:data:{id}")]).await;
    }
    let batch = json!({ "jobs": [{ "type": "a" }, { "type": "b" }] });
    let first = scene.post_once("/jobs:batch", "k", &batch).await;
    assert_eq!(first.status, 201, "{first:?}");
    let id = first.body["jobs"][0]["id"].as_str().unwrap();
    let _: i64 = command(&mut redis, &["DEL", &format!("jobs:data:{id}")]).await;
    let again = scene.post_once("/jobs:batch", "k", &batch).await;
    assert_eq!((again.status, again.body["jobs"].as_array().unwrap().len()), (200, 1), "one is still there");
}

#[tokio::test]
async fn a_large_batch_is_found_again_in_its_order_and_with_few_calls() {
    let scene = Scene::start().await;
    let jobs: Vec<Value> = (0..1000).map(|n| json!({ "type": "t", "payload": n })).collect();
    let batch = json!({ "jobs": jobs });
    let first = scene.post_once("/jobs:batch", "k", &batch).await;
    assert_eq!(first.status, 201);
    let trips = async || scene.api.metric("redis_round_trips_total", &[]).await.unwrap();
    let before = trips().await;
    let again = scene.post_once("/jobs:batch", "k", &batch).await;
    assert_eq!((again.status, &again.body), (200, &first.body));
    let calls = trips().await - before;
    assert!(calls < 100.0, "{calls} calls");
}
