//! Long polls.
#![allow(clippy::unwrap_used, reason = "a panic is the report")]
use std::time::{Duration, Instant};

use crate::scene::{SOON, Scene, command};
use e2e::{WorkerOptions, eventually};
use serde_json::json;

/// Waits until a request waits for a job to change.
pub async fn somebody_waits(scene: &Scene) {
    waiting(scene, 1.0).await;
}

/// An API whose requests would wait for ever, were it not for events: they do not look by themselves.
pub fn only_events(options: WorkerOptions) -> WorkerOptions {
    options.env("API_LOOK_INTERVAL", "1h")
}

/// Waits until the API hears events: what it hears first makes everybody look once.
pub async fn listens(scene: &Scene) {
    let mut redis = scene.redis().await;
    eventually(SOON, "the API to listen", async || {
        let (_, listening): (String, usize) = command(&mut redis, &["PUBSUB", "NUMSUB", "jobs:events"]).await;
        if listening > 0 { Ok(()) } else { Err(listening) }
    })
    .await;
}

/// Waits until so many do.
async fn waiting(scene: &Scene, count: f64) {
    eventually(SOON, "requests that wait", async || {
        match scene.api.metric("http_requests_waiting", &[]).await {
            Some(waiting) if waiting >= count => Ok(()),
            other => Err(other),
        }
    })
    .await;
}

#[tokio::test]
async fn a_change_is_told_at_once_to_who_waits_for_it() {
    let scene = Scene::with(only_events).await;
    listens(&scene).await;
    let mut took = Vec::new();
    for _ in 0..10 {
        let id = scene.create("t").await;
        // Longer than the client's patience: only the event can end it.
        let path = format!("/jobs/{id}?wait=60s");
        let ((seen, answered), changed) = tokio::join!(
            async {
                let seen = scene.get(&path).await;
                (seen, Instant::now())
            },
            async {
                somebody_waits(&scene).await;
                scene.move_to(&id, "running").await;
                Instant::now()
            }
        );
        assert_eq!(seen.body["status"], "running");
        took.push(answered.saturating_duration_since(changed));
    }
    took.sort();
    println!(
        "a change was told after {:?} (median), {:?} at most",
        took[took.len() / 2],
        took[took.len() - 1]
    );
}

#[tokio::test]
async fn a_job_that_is_over_is_told_at_once() {
    let scene = Scene::start().await;
    let id = scene.create("t").await;
    scene.move_to(&id, "completed").await;
    // Were it to wait, the client would give up first.
    assert_eq!(scene.get(&format!("/jobs/{id}?wait=60s")).await.body["status"], "completed");
}

#[tokio::test]
async fn a_change_before_the_request_is_told_at_once_to_who_says_what_it_knows() {
    let scene = Scene::start().await;
    let id = scene.create("t").await;
    scene.move_to(&id, "running").await;
    assert_eq!(scene.get(&format!("/jobs/{id}?wait=60s&seen=pending")).await.body["status"], "running");
    scene.get(&format!("/jobs/{id}?wait=1s&seen=lost")).await.is_problem(400, "invalid_query");
}

#[tokio::test]
async fn a_wait_ends_with_the_job_as_it_is() {
    let scene = Scene::with(|options| options.env("API_MAX_WAIT", "200ms")).await;
    let id = scene.create("t").await;
    for wait in ["50ms", "9999s"] {
        assert_eq!(scene.get(&format!("/jobs/{id}?wait={wait}")).await.body["status"], "pending", "{wait}");
    }
    scene.get("/jobs/unknown?wait=1s").await.is_problem(404, "job_not_found");
}

#[tokio::test]
async fn a_change_is_seen_although_its_event_was_lost() {
    let scene = Scene::start().await;
    let id = scene.create("t").await;
    let path = format!("/jobs/{id}?wait=30s");
    let (seen, ()) = tokio::join!(scene.get(&path), async {
        somebody_waits(&scene).await;
        let mut redis = scene.redis().await;
        let key = format!("jobs:data:{id}");
        let raw: String = crate::scene::command(&mut redis, &["GET", &key]).await;
        let changed = raw.replace("pending", "completed");
        let _: () = crate::scene::command(&mut redis, &["SET", &key, &changed]).await;
    });
    assert_eq!(seen.body["status"], "completed");
}

#[tokio::test]
async fn who_waits_is_answered_when_the_process_stops() {
    let mut scene = Scene::start().await;
    let id = scene.create("t").await;
    let path = format!("/jobs/{id}?wait=30s");
    let (seen, ()) = tokio::join!(scene.get(&path), async {
        somebody_waits(&scene).await;
        scene.api.sigterm();
    });
    assert_eq!((seen.status, seen.body["status"].as_str()), (200, Some("pending")));
    let status = scene.api.wait_exit(SOON).await;
    assert!(status.success(), "{status}");
}

#[tokio::test]
async fn new_requests_are_still_taken_while_load_balancers_learn_of_the_end() {
    let mut scene = Scene::with(|options| options.env("API_DRAIN_DELAY", "2s")).await;
    scene.create("t").await;
    scene.api.sigterm();
    eventually(SOON, "the API to be unready", async || {
        let ready = scene.get("/readyz").await;
        if ready.status == 503 { Ok(()) } else { Err(ready) }
    })
    .await;
    scene.create("t").await;
    let status = scene.api.wait_exit(SOON + Duration::from_secs(2)).await;
    assert!(status.success(), "{status}");
    assert_eq!(scene.queued().await.len(), 2);
}

#[tokio::test]
async fn a_long_poll_still_waits_while_load_balancers_learn_of_the_end() {
    let mut scene = Scene::with(|options| options.env("API_DRAIN_DELAY", "5s")).await;
    let id = scene.create("t").await;
    scene.api.sigterm();
    eventually(SOON, "the API to be unready", async || {
        let ready = scene.get("/readyz").await;
        if ready.status == 503 { Ok(()) } else { Err(ready) }
    })
    .await;
    let path = format!("/jobs/{id}?wait=30s");
    let (seen, ()) = tokio::join!(scene.get(&path), async {
        somebody_waits(&scene).await;
        scene.move_to(&id, "running").await;
    });
    assert_eq!(seen.body["status"], "running", "it came back with a change, not at once");
    assert_eq!(seen.header("connection"), "close", "the next request goes elsewhere");
    let status = scene.api.wait_exit(SOON).await;
    assert!(status.success(), "{status}");
}

#[tokio::test]
async fn those_who_wait_leave_places_for_others() {
    let scene = Scene::with(|options| options.env("API_MAX_CONNECTIONS", "4")).await;
    let id = scene.create("t").await;
    let path = format!("/jobs/{id}?wait=30s");
    let both = async { tokio::join!(scene.get(&path), scene.get(&path)) };
    let ((first, second), ()) = tokio::join!(both, async {
        waiting(&scene, 2.0).await;
        // As many as may wait do: further ones are told at once.
        for _ in 0..3 {
            assert_eq!(scene.get(&path).await.body["status"], "pending");
        }
        waiting(&scene, 2.0).await;
        scene.move_to(&id, "running").await;
    });
    assert_eq!((&first.body["status"], &second.body["status"]), (&"running".into(), &"running".into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_who_are_woken_at_once_are_answered() {
    const CONNECTIONS: usize = 25;
    const STREAMS: usize = 100;
    let scene = Scene::with(|options| options.env("API_MAX_CONNECTIONS", "6000")).await;
    let mut ids = Vec::new();
    for _ in 0..CONNECTIONS {
        let batch: Vec<_> = (0..STREAMS).map(|_| json!({ "type": "t" })).collect();
        let created = scene.post("/jobs:batch", &json!({ "jobs": batch })).await;
        let jobs = created.body["jobs"].as_array().unwrap();
        ids.extend(jobs.iter().map(|job| job["id"].as_str().unwrap().to_owned()));
    }
    let mut waiters = Vec::new();
    for (connection, ids) in ids.chunks(STREAMS).enumerate() {
        let client = reqwest::Client::builder().http2_prior_knowledge().build().unwrap();
        for id in ids {
            let request = client.get(scene.url(&format!("/jobs/{id}?wait=60s")));
            waiters.push(tokio::spawn(async move {
                let answer = request.send().await.unwrap();
                (answer.status().as_u16(), answer.text().await.unwrap())
            }));
        }
        // Not all at once: new requests that are too many are refused.
        #[expect(clippy::cast_precision_loss, reason = "a few thousand")]
        waiting(&scene, ((connection + 1) * STREAMS) as f64).await;
    }
    let mut redis = scene.redis().await;
    let mut change = redis::pipe();
    change.atomic();
    for id in &ids {
        let data = json!({ "id": id, "type": "t", "status": "running" }).to_string();
        change.cmd("SET").arg(format!("jobs:data:{id}")).arg(data).ignore();
        change.cmd("PUBLISH").arg("jobs:events").arg(format!("{id} running")).ignore();
    }
    let () = change.query_async(&mut redis).await.unwrap();
    for answer in futures::future::join_all(waiters).await {
        let (status, body) = answer.unwrap();
        assert!(status == 200 && body.contains(r#""status":"running""#), "{status} {body}");
    }
}
