//! Redis goes away and comes back.
use std::time::Instant;

use crate::scene::{SOON, Scene, command};
use e2e::process::sum_of;
use e2e::{AppendOnly, Options, Proxy, RedisServer, Worker, eventually};
use serde_json::json;

/// How many requests were answered, and how many of them within 2 s: by the server's own clock, so that what a busy
/// machine needs to start a request and to read its answer does not count.
async fn answered(scene: &Scene) -> (f64, f64) {
    let scrape = scene.api.metrics().await;
    let of = |name: &str, labels: &[(&str, &str)]| sum_of(&scrape, name, labels).unwrap_or(0.0);
    let count = of("http_request_duration_seconds_count", &[]);
    (count, of("http_request_duration_seconds_bucket", &[("le", "2")]))
}

async fn refused_in_time(scene: &Scene, id: &str) {
    let (started, before) = (Instant::now(), answered(scene).await);
    let (path, body) = (format!("/jobs/{id}"), json!({ "type": "t" }));
    let (posted, read, listed, cancelled) =
        tokio::join!(scene.post("/jobs", &body), scene.get(&path), scene.get("/jobs"), scene.delete(&path));
    let took = started.elapsed();
    for answer in [&posted, &read, &listed, &cancelled] {
        answer.is_problem(503, "unavailable");
        assert_eq!(answer.header("retry-after"), "1");
    }
    println!("without Redis, POST, GET, list and DELETE were answered with 503 in {took:?}");
    let after = answered(scene).await;
    let (all, in_time) = (after.0 - before.0, after.1 - before.1);
    assert!(all >= 4.0 && (all - in_time).abs() < 0.5, "{in_time} of {all} within 2 s");
    assert_eq!(scene.get("/healthz").await.status, 200);
}

async fn resumes(scene: &Scene) {
    eventually(SOON, "jobs to be created again", async || {
        let answer = scene.post("/jobs", &json!({ "type": "after" })).await;
        if answer.status == 201 { Ok(()) } else { Err(answer) }
    })
    .await;
}

/// The jobs there are: each has its data, its place in the queue and in the index.
async fn whole(scene: &Scene) -> usize {
    let mut redis = scene.redis().await;
    let mut queued = scene.queued().await;
    let mut indexed: Vec<String> = command(&mut redis, &["ZRANGE", "jobs:index:pending", "0", "-1"]).await;
    let data: Vec<String> = command(&mut redis, &["KEYS", "jobs:data:*"]).await;
    let mut data: Vec<String> =
        data.iter().map(|key| key.trim_start_matches("jobs:data:").to_owned()).collect();
    queued.sort();
    indexed.sort();
    data.sort();
    assert_eq!((&queued, &indexed), (&data, &data));
    data.len()
}

#[tokio::test]
async fn a_stopped_redis_is_answered_in_time_and_resumed_with() {
    let server = RedisServer::start(Options { appendonly: AppendOnly::Always, ..Options::default() }).await;
    let mut scene = Scene::on(server, |options| options).await;
    let id = scene.create("t").await;
    scene.server.stop().await;
    refused_in_time(&scene, &id).await;
    scene.server.restart().await;
    resumes(&scene).await;
    assert_eq!(whole(&scene).await, 2, "nothing of what was refused");
}

#[tokio::test]
async fn a_hanging_redis_is_answered_in_time_and_resumed_with() {
    let scene = Scene::start().await;
    let id = scene.create("t").await;
    scene.server.pause();
    refused_in_time(&scene, &id).await;
    scene.server.resume();
    resumes(&scene).await;
    // What was under way when Redis stopped answering may have been created, but never half of it, nor twice.
    let jobs = whole(&scene).await;
    assert!((2..=3).contains(&jobs), "{jobs}");
}

#[tokio::test]
async fn an_api_without_redis_starts_and_waits_for_it() {
    let mut server = RedisServer::start(Options::default()).await;
    server.stop().await;
    let mut scene = Scene::on(server, |options| options).await;
    scene.post("/jobs", &json!({ "type": "t" })).await.is_problem(503, "unavailable");
    assert_eq!(scene.get("/readyz").await.status, 503);
    scene.server.restart().await;
    eventually(SOON, "the API to be ready", async || {
        let ready = scene.get("/readyz").await;
        if ready.status == 200 { Ok(()) } else { Err(ready) }
    })
    .await;
    scene.create("t").await;
}

#[tokio::test]
async fn a_create_whose_reply_was_lost_creates_once() {
    let server = RedisServer::start(Options::default()).await;
    let proxy = Proxy::start(server.addr()).await;
    let api = Worker::spawn(&crate::scene::api_options(proxy.addr()));
    let addr = crate::scene::addr_of(&api).await;
    let scene = Scene { server, api, addr, client: e2e::http::client() };
    scene.create("first").await;
    for n in 0..5 {
        let lost = proxy.drop_reply_once(|words| words[0].eq_ignore_ascii_case(b"EVALSHA"));
        let created = scene.post("/jobs", &json!({ "type": "t", "payload": n })).await;
        assert_eq!((created.status, lost.hits()), (201, 1), "{created:?}");
    }
    assert_eq!(whole(&scene).await, 6);
}

#[tokio::test]
async fn a_full_redis_takes_no_jobs_and_still_shows_and_cancels_them() {
    let scene = Scene::start().await;
    let id = scene.create("t").await;
    let mut redis = scene.redis().await;
    let _: () = command(&mut redis, &["CONFIG", "SET", "maxmemory", "1"]).await;
    let refused = scene.post("/jobs", &json!({ "type": "t" })).await;
    refused.is_problem(503, "unavailable");
    assert!(refused.body["detail"].as_str().unwrap().contains("out of memory"), "{refused:?}");
    assert_eq!(scene.get(&format!("/jobs/{id}")).await.status, 200);
    assert_eq!(scene.get("/jobs?status=pending").await.body["jobs"].as_array().unwrap().len(), 1);
    assert_eq!(scene.delete(&format!("/jobs/{id}")).await.body["status"], "cancelled");
    let _: () = command(&mut redis, &["CONFIG", "SET", "maxmemory", "0"]).await;
    resumes(&scene).await;
    assert_eq!(scene.queued().await.len(), 2);
}

#[tokio::test]
async fn a_cancel_whose_reply_was_lost_cancels_once() {
    let server = RedisServer::start(Options::default()).await;
    let proxy = Proxy::start(server.addr()).await;
    let api = Worker::spawn(&crate::scene::api_options(proxy.addr()));
    let addr = crate::scene::addr_of(&api).await;
    let scene = Scene { server, api, addr, client: e2e::http::client() };
    let id = scene.create("t").await;
    let lost = proxy.drop_reply_once(|words| words.iter().any(|word| word == "jobs:index:cancelled"));
    let cancelled = scene.delete(&format!("/jobs/{id}")).await;
    assert_eq!((cancelled.status, lost.hits()), (200, 1), "{cancelled:?}");
    assert_eq!(cancelled.body["status"], "cancelled");
    assert_eq!(scene.get(&format!("/jobs/{id}")).await.body, cancelled.body, "by the same words");
}
