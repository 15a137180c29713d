//! Lists: newest first, page by page, nothing twice and nothing left out.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a panic is the report")]

use std::collections::HashSet;

use crate::scene::{Scene, command};
use serde_json::json;

fn ids(body: &serde_json::Value) -> Vec<String> {
    body["jobs"].as_array().unwrap().iter().map(|job| job["id"].as_str().unwrap().to_owned()).collect()
}

/// All pages of a list.
async fn all(scene: &Scene, query: &str) -> Vec<String> {
    all_from(scene, query, format!("/jobs?{query}")).await
}

/// All pages from this one on.
async fn all_from(scene: &Scene, query: &str, mut path: String) -> Vec<String> {
    let mut found = Vec::new();
    loop {
        let page = scene.get(&path).await;
        assert_eq!(page.status, 200, "{page:?}");
        found.extend(ids(&page.body));
        match page.body["next_cursor"].as_str() {
            Some(cursor) => path = format!("/jobs?{query}&cursor={cursor}"),
            None => return found,
        }
    }
}

#[tokio::test]
async fn pages_hold_every_job_once_also_those_of_one_millisecond() {
    let scene = Scene::start().await;
    let batch: Vec<_> = (0..57).map(|_| json!({ "type": "t" })).collect();
    let created = ids(&scene.post("/jobs:batch", &json!({ "jobs": batch })).await.body);
    for limit in [1, 10, 56, 57, 100] {
        let found = all(&scene, &format!("limit={limit}&status=pending")).await;
        assert_eq!(found.len(), 57, "limit {limit}");
        assert_eq!(found.iter().collect::<HashSet<_>>(), created.iter().collect(), "limit {limit}");
    }
    assert_eq!(ids(&scene.get("/jobs").await.body).len(), 20, "unless told otherwise");
}

#[tokio::test]
async fn a_list_goes_on_behind_ids_of_any_length() {
    let scene = Scene::start().await;
    let mut redis = scene.redis().await;
    // As a client that speaks to Redis itself may call them.
    let names: Vec<String> = (0..5).map(|n| format!("{n}{}", "é".repeat(1000))).collect();
    for name in &names {
        let job = json!({ "id": name, "type": "t", "status": "running" }).to_string();
        let _: () = command(&mut redis, &["SET", &format!("jobs:data:{name}"), &job]).await;
        let _: i64 = command(&mut redis, &["ZADD", "jobs:index:running", "7", name]).await;
    }
    let found = all(&scene, "limit=1").await;
    assert_eq!(found, names.into_iter().rev().collect::<Vec<_>>());
}

#[tokio::test]
async fn a_list_holds_the_jobs_of_a_status_or_of_all() {
    let scene = Scene::start().await;
    let (a, b, c) = (scene.create("t").await, scene.create("t").await, scene.create("t").await);
    scene.move_to(&b, "running").await;
    scene.delete(&format!("/jobs/{c}")).await;
    assert_eq!(all(&scene, "status=pending").await, std::slice::from_ref(&a));
    assert_eq!(all(&scene, "status=running").await, std::slice::from_ref(&b));
    assert_eq!(all(&scene, "status=cancelled").await, std::slice::from_ref(&c));
    assert!(all(&scene, "status=failed").await.is_empty());
    let everything: HashSet<String> = all(&scene, "limit=2").await.into_iter().collect();
    assert_eq!(everything, HashSet::from([a, b, c]));
}

#[tokio::test]
async fn a_page_goes_on_where_it_ended_although_its_last_job_has_changed() {
    let scene = Scene::start().await;
    let batch: Vec<_> = (0..30).map(|_| json!({ "type": "t" })).collect();
    let created = ids(&scene.post("/jobs:batch", &json!({ "jobs": batch })).await.body);
    let first = scene.get("/jobs?status=pending&limit=10").await;
    let seen = ids(&first.body);
    scene.move_to(seen.last().unwrap(), "running").await;
    let cursor = first.body["next_cursor"].as_str().unwrap();
    let query = "status=pending&limit=10";
    let rest = all_from(&scene, query, format!("/jobs?{query}&cursor={cursor}")).await;
    let both: HashSet<&String> = seen.iter().chain(&rest).collect();
    assert_eq!((both.len(), seen.len() + rest.len()), (created.len(), created.len()));
}

#[tokio::test]
async fn what_has_lapsed_is_left_out() {
    let scene = Scene::start().await;
    let (a, b) = (scene.create("t").await, scene.create("t").await);
    let mut redis = scene.redis().await;
    let _: i64 = command(&mut redis, &["DEL", &format!("jobs:data:{a}")]).await;
    assert_eq!(all(&scene, "status=pending&limit=1").await, [b]);
}

#[tokio::test]
async fn large_jobs_make_short_pages() {
    let scene = Scene::start().await;
    let payload = "x".repeat(900_000);
    for _ in 0..8 {
        assert_eq!(scene.post("/jobs", &json!({ "type": "t", "payload": payload })).await.status, 201);
    }
    let page = scene.get("/jobs?limit=100").await;
    assert!((1..8).contains(&ids(&page.body).len()), "4 MiB at most");
    assert_eq!(all(&scene, "limit=100").await.len(), 8);
}

#[tokio::test]
async fn jobs_of_all_shards_are_created_found_listed_and_cancelled() {
    let scene = Scene::with(|options| options.env("WORKER_SHARDS", "3")).await;
    let mut created = Vec::new();
    for n in 0..12 {
        let answer = scene.post_once("/jobs", &format!("k{n}"), &json!({ "type": "t" })).await;
        let again = scene.post_once("/jobs", &format!("k{n}"), &json!({ "type": "t" })).await;
        assert_eq!((answer.status, again.status, &again.body), (201, 200, &answer.body));
        created.push(answer.body["id"].as_str().unwrap().to_owned());
    }
    let batch: Vec<_> = (0..9).map(|_| json!({ "type": "t" })).collect();
    created.extend(ids(&scene.post("/jobs:batch", &json!({ "jobs": batch })).await.body));
    let found: HashSet<String> = all(&scene, "limit=4").await.into_iter().collect();
    assert_eq!(found, created.iter().cloned().collect());
    for id in &created {
        assert_eq!(scene.get(&format!("/jobs/{id}")).await.status, 200);
    }
    assert_eq!(scene.delete(&format!("/jobs/{}", created[0])).await.body["status"], "cancelled");
    let mut redis = scene.redis().await;
    let queues: Vec<String> = command(&mut redis, &["KEYS", "{jobs:*}:queue"]).await;
    assert!(queues.len() > 1, "{queues:?}");
}

#[tokio::test]
async fn what_has_changed_since_it_was_indexed_is_not_listed_under_its_old_status() {
    let scene = Scene::start().await;
    let (a, b) = (scene.create("t").await, scene.create("t").await);
    let mut redis = scene.redis().await;
    let key = format!("jobs:data:{a}");
    let raw: String = command(&mut redis, &["GET", &key]).await;
    let _: () = command(&mut redis, &["SET", &key, &raw.replace("pending", "running")]).await;
    assert_eq!(all(&scene, "status=pending").await, [b]);
}
