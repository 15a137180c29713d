//! Redis goes away and comes back.
use std::time::Instant;

use crate::scene::{SOON, Scene, command};
use e2e::{AppendOnly, Options, Proxy, RedisServer, Worker, eventually};
use serde_json::json;

/// All are answered although Redis is still away: none waits for it.
async fn refused_in_time(scene: &Scene, id: &str) {
    let started = Instant::now();
    let (path, body) = (format!("/jobs/{id}"), json!({ "type": "t" }));
    let (posted, read, listed, cancelled) =
        tokio::join!(scene.post("/jobs", &body), scene.get(&path), scene.get("/jobs"), scene.delete(&path));
    let took = started.elapsed();
    for answer in [&posted, &read, &listed, &cancelled] {
        answer.is_problem(503, "unavailable");
        assert_eq!(answer.header("retry-after"), "1");
    }
    println!("without Redis, POST, GET, list and DELETE were answered with 503 in {took:?}");
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
async fn a_redis_that_is_killed_while_jobs_are_created_has_each_wholly_or_not_at_all() {
    let server = RedisServer::start(Options { appendonly: AppendOnly::Always, ..Options::default() }).await;
    let mut scene = Scene::on(server, |options| options).await;
    let (seen, mut created) = tokio::sync::mpsc::unbounded_channel();
    let streams: Vec<_> = (0..16)
        .map(|stream| {
            let (client, seen) = (scene.client.clone(), seen.clone());
            let (url, batch) = if stream % 2 == 0 { ("/jobs", false) } else { ("/jobs:batch", true) };
            let url = scene.url(url);
            let jobs = json!({ "jobs": [{ "type": "a" }, { "type": "b" }, { "type": "c" }] });
            let body = if batch { jobs } else { json!({ "type": "t" }) };
            tokio::spawn(async move {
                loop {
                    let answer = client.post(&url).json(&body).send().await.unwrap();
                    if answer.status() != 201 {
                        return;
                    }
                    let answer: serde_json::Value = answer.json().await.unwrap();
                    let jobs = answer["jobs"].as_array().cloned().unwrap_or_else(|| vec![answer]);
                    let _ =
                        seen.send(jobs.iter().map(|job| job["id"].as_str().unwrap().to_owned()).collect());
                }
            })
        })
        .collect();
    drop(seen);
    let mut acknowledged: Vec<String> = Vec::new();
    while acknowledged.len() < 500 {
        let ids: Vec<String> = created.recv().await.unwrap();
        acknowledged.extend(ids);
    }
    scene.server.kill9();
    for stream in streams {
        stream.await.unwrap();
    }
    while let Some(ids) = created.recv().await {
        acknowledged.extend(ids);
    }
    scene.server.restart().await;
    resumes(&scene).await;
    let jobs = whole(&scene).await;
    let queued: std::collections::HashSet<String> = scene.queued().await.into_iter().collect();
    let lost: Vec<_> = acknowledged.iter().filter(|id| !queued.contains(*id)).collect();
    assert!(lost.is_empty(), "{lost:?}");
    println!("{} jobs were acknowledged, {jobs} are there", acknowledged.len());
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
