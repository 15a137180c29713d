//! The API and real workers: what clients see of the whole life of a job.
#![allow(clippy::unwrap_used, reason = "a panic is the report")]
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::scene::{SOON, Scene, command};
use crate::waiting::{listens, only_events, somebody_waits};
use e2e::{Behaviour, Recorder, Worker, WorkerOptions, eventually};
use serde_json::{Value, json};

fn worker(scene: &Scene, recorder: &Recorder) -> WorkerOptions {
    let options = WorkerOptions::new("worker").redis(scene.server.addr()).recorded_by(recorder);
    options.env("PROTOCOL", "async").env("WORKER_COUNT", 1)
}

/// The job when it has another status than this one: by long polls, each shorter than the client's patience.
async fn after(scene: &Scene, id: &str, seen: &str) -> Value {
    eventually(SOON, &format!("{id} to be no longer {seen}"), async || {
        let answer = scene.get(&format!("/jobs/{id}?wait=5s&seen={seen}")).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        if answer.body["status"] == seen { Err(answer.body) } else { Ok(answer.body) }
    })
    .await
}

#[tokio::test]
async fn the_job_of_a_killed_worker_is_seen_running_then_pending_then_completed() {
    let scene = Scene::start().await;
    let recorder = Recorder::start().await;
    recorder.by_default(Behaviour::Hold);
    let options = worker(&scene, &recorder);
    let mut first = Worker::spawn(&options);
    let id = scene.create("email").await;
    let running = after(&scene, &id, "pending").await;
    assert_eq!((&running["status"], &running["attempts"]), (&json!("running"), &json!(1)));
    recorder.wait_started(&id, 1).await;
    // The one slot of the second worker is taken: what comes back has to wait, and is seen meanwhile.
    let other = scene.create("email").await;
    let _second = Worker::spawn(&options);
    recorder.wait_started(&other, 1).await;
    first.kill9();
    let pending = after(&scene, &id, "running").await;
    assert_eq!((&pending["status"], &pending["attempts"]), (&json!("pending"), &json!(1)));
    assert_eq!(pending["error"], "its worker died while it ran (heartbeat)");
    recorder.release(&other);
    let again = after(&scene, &id, "pending").await;
    assert_eq!((&again["status"], &again["attempts"]), (&json!("running"), &json!(2)));
    recorder.release(&id);
    let done = after(&scene, &id, "running").await;
    assert_eq!(
        (&done["status"], &done["attempts"], &done["error"]),
        (&json!("completed"), &json!(2), &Value::Null)
    );
    assert_eq!(recorder.starts(&id), 2);
}

#[tokio::test]
async fn what_a_worker_changes_is_told_to_who_waits() {
    let scene = Scene::with(only_events).await;
    listens(&scene).await;
    let recorder = Recorder::start().await;
    recorder.by_default(Behaviour::Hold);
    let _worker = Worker::spawn(&worker(&scene, &recorder));
    let mut took = Vec::new();
    for _ in 0..10 {
        let id = scene.create("email").await;
        recorder.wait_started(&id, 1).await;
        // Longer than the client's patience: only the worker's event can end it.
        let path = format!("/jobs/{id}?wait=60s&seen=running");
        let (seen, ()) = tokio::join!(scene.get(&path), async {
            somebody_waits(&scene).await;
            recorder.release(&id);
        });
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        assert_eq!(seen.body["status"], "completed", "{seen:?}");
        let completed: jiff::Timestamp = seen.body["completed_at"].as_str().unwrap().parse().unwrap();
        let completed = Duration::from_millis(completed.as_millisecond().unsigned_abs());
        took.push(now.saturating_sub(completed));
    }
    took.sort();
    println!("a worker's change was told after {:?} (median), {:?} at most", took[5], took[9]);
}

#[tokio::test]
async fn a_job_that_is_over_can_be_read_as_long_as_configured() {
    let scene = Scene::start().await;
    let recorder = Recorder::start().await;
    let _worker = Worker::spawn(&worker(&scene, &recorder).env("API_RESULT_TTL", "3s"));
    let created = scene.post_once("/jobs", "k", &json!({ "type": "email" })).await;
    let id = created.body["id"].as_str().unwrap();
    let path = format!("/jobs/{id}");
    eventually(SOON, "the job to be completed", async || {
        let job = scene.get(&path).await.body;
        if job["status"] == "completed" { Ok(()) } else { Err(job) }
    })
    .await;
    let mut redis = scene.redis().await;
    let ttl: i64 = command(&mut redis, &["PTTL", &format!("jobs:data:{id}")]).await;
    assert!((0..=3_000).contains(&ttl), "{ttl}");
    eventually(SOON, "the job to be forgotten", async || {
        let answer = scene.get(&path).await;
        if answer.status == 404 { Ok(()) } else { Err(answer) }
    })
    .await;
    let again = scene.post_once("/jobs", "k", &json!({ "type": "email" })).await;
    assert_eq!(again.status, 201, "the key went with its job: {again:?}");
}

#[tokio::test]
async fn the_key_of_a_batch_lives_as_long_as_the_last_of_its_jobs() {
    let scene = Scene::start().await;
    let recorder = Recorder::start().await;
    let batch = json!({ "jobs": [{ "type": "a" }, { "type": "b" }] });
    let first = scene.post_once("/jobs:batch", "k", &batch).await;
    assert_eq!(first.status, 201, "{first:?}");
    let ids: Vec<&str> =
        first.body["jobs"].as_array().unwrap().iter().map(|job| job["id"].as_str().unwrap()).collect();
    recorder.behave(ids[1], [Behaviour::Hold]);
    let _worker =
        Worker::spawn(&worker(&scene, &recorder).env("API_RESULT_TTL", "1s").env("WORKER_COUNT", 2));
    recorder.wait_started(ids[1], 1).await;
    eventually(SOON, "the first job to be forgotten", async || {
        let answer = scene.get(&format!("/jobs/{}", ids[0])).await;
        if answer.status == 404 { Ok(()) } else { Err(answer) }
    })
    .await;
    let again = scene.post_once("/jobs:batch", "k", &batch).await;
    assert_eq!(again.status, 200, "{again:?}");
    let left = again.body["jobs"].as_array().unwrap();
    assert_eq!((left.len(), &left[0]["id"]), (1, &json!(ids[1])), "the other one still runs");
    assert_eq!(recorder.runs().len(), 2);
    recorder.release(ids[1]);
    let mut redis = scene.redis().await;
    eventually(SOON, "the key to be forgotten with the last job", async || {
        let idem: Vec<String> = command(&mut redis, &["KEYS", "jobs:idem:*"]).await;
        let unfinished: Vec<String> = command(&mut redis, &["KEYS", "jobs:index:batch-*"]).await;
        if idem.is_empty() && unfinished.is_empty() { Ok(()) } else { Err((idem, unfinished)) }
    })
    .await;
    let anew = scene.post_once("/jobs:batch", "k", &batch).await;
    assert_eq!(anew.status, 201, "{anew:?}");
}

#[tokio::test]
async fn a_type_whose_handler_is_not_there_keeps_no_other_waiting_and_loses_nothing() {
    let recorder = Recorder::start().await;
    // Nobody listens there yet.
    let place = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let dead = place.local_addr().unwrap();
    drop(place);
    let handlers = json!({
        "email": { "http": { "url": format!("http://{dead}") } },
        "resize": { "http": { "url": recorder.url() } },
    });
    let scene = Scene::with(|options| options.env("ASYNC_HANDLERS", &handlers)).await;
    let mut emails = Vec::new();
    for _ in 0..30 {
        emails.push(scene.create("email").await);
    }
    let resized = scene.create("resize").await;
    let options = worker(&scene, &recorder).env("ASYNC_HANDLERS", &handlers).env("WORKER_COUNT", 2);
    // Whatever the breaker would do some time: it is not needed for others to run.
    let worker = Worker::spawn(&options.env("CIRCUIT_BREAKER_MIN_SAMPLES", 1_000_000));
    recorder.wait_started(&resized, 1).await;
    assert_eq!(after(&scene, &resized, "running").await["status"], "completed");
    for id in &emails {
        let email = scene.get(&format!("/jobs/{id}")).await.body;
        assert!(email["status"] == "pending" || email["status"] == "running", "{email}");
        assert_eq!((&email["error"], email.get("retries")), (&Value::Null, None), "{email}");
    }
    // Its handler comes back.
    let place = tokio::net::TcpListener::bind(dead).await.unwrap();
    let to = recorder.addr();
    let _there = tokio::spawn(async move {
        while let Ok((mut from, _)) = place.accept().await {
            let mut to = tokio::net::TcpStream::connect(to).await.unwrap();
            tokio::spawn(async move { tokio::io::copy_bidirectional(&mut from, &mut to).await });
        }
    });
    for id in &emails {
        let done = eventually(SOON, "the mail to be sent", async || {
            let email = scene.get(&format!("/jobs/{id}")).await;
            if email.body["status"] == "completed" { Ok(email.body) } else { Err(email) }
        })
        .await;
        assert_eq!((&done["attempts"], recorder.starts(id)), (&json!(1), 1), "{done}");
    }
    assert_eq!(worker.metric("jobs_failed_total", &[]).await.unwrap_or(0.0).to_bits(), 0.0_f64.to_bits());
}
