//! SIGTERM when something else is wrong too: the worker ends all the same, and no job is lost.
use std::time::Duration;

use e2e::ledger::{LOW, ids};
use e2e::{Behaviour, Worker, eventually};

use crate::scene::Scene;

const SOON: Duration = Duration::from_secs(30);
/// Something had to be left to a reaper.
const UNCLEAN: Option<i32> = Some(3);

#[tokio::test]
async fn a_worker_told_to_stop_while_redis_is_away_ends_and_its_jobs_run_again() {
    let mut scene = Scene::start().await;
    scene.recorder.by_default(Behaviour::Hold);
    let all = ids("job", 4);
    scene.ledger.enqueue(LOW, &all).await;
    let options = scene.options().env("WORKER_DRAIN_TIMEOUT", "1s");
    let mut worker = Worker::spawn(&options);
    scene.running(4).await;
    scene.server.pause();
    // One ends, so that a settlement is under way when the signal comes.
    scene.recorder.release(&all[0]);
    worker.wait_for_log("Could not settle, trying again").await;
    worker.sigterm();
    assert_eq!(worker.wait_exit(SOON).await.code(), UNCLEAN);
    scene.server.resume();
    scene.recorder.release_all();
    scene.recorder.by_default(Behaviour::Succeed);
    let _next = Worker::spawn(&options);
    let places = scene.ledger.until_completed(SOON, 4).await;
    places.assert_exactly(&all);
    // Nobody could be told of the signal: to Redis it is a death like any other.
    assert!(places.completed.iter().filter(|job| job["deaths"] == 1).count() >= 3, "{:?}", places.completed);
}

#[tokio::test]
async fn redis_away_after_the_signal_makes_no_job_a_suspect() {
    let mut scene = Scene::start().await;
    scene.recorder.by_default(Behaviour::Hold);
    let all = ids("job", 4);
    scene.ledger.enqueue(LOW, &all).await;
    let options = scene.options().env("WORKER_DRAIN_TIMEOUT", "1s");
    let mut worker = Worker::spawn(&options);
    let opened = worker.wait_for_log("Opened a lane").await;
    let record = format!("jobqueue:lane:{}", opened["worker_id"].as_str().unwrap_or_default());
    scene.running(4).await;
    worker.sigterm();
    eventually(SOON, "the mark in the record", async || {
        scene.ledger.command::<bool>(&["HEXISTS", &record, "stopping"]).await
    })
    .await;
    scene.server.pause();
    assert_eq!(worker.wait_exit(SOON).await.code(), UNCLEAN);
    scene.server.resume();
    scene.recorder.release_all();
    scene.recorder.by_default(Behaviour::Succeed);
    let _next = Worker::spawn(&options);
    let places = scene.ledger.until_completed(SOON, 4).await;
    places.assert_exactly(&all);
    assert!(places.completed.iter().all(|job| job["deaths"].is_null()), "{:?}", places.completed);
}

#[tokio::test]
async fn a_job_that_redis_refuses_does_not_keep_a_worker_from_ending() {
    let mut scene = Scene::start().await;
    scene.recorder.by_default(Behaviour::Fail("no".into()));
    scene.ledger.command::<()>(&["SET", "jobqueue:dead_letter", "in the way"]).await;
    let all = ids("job", 2);
    scene.ledger.enqueue(LOW, &all).await;
    let options = scene.options().env("WORKER_MAX_RETRIES", 0).env("WORKER_DRAIN_TIMEOUT", "1s");
    let mut worker = Worker::spawn(&options);
    worker.wait_for_log("Redis refused a job, it stays where it is").await;
    worker.sigterm();
    assert_eq!(worker.wait_exit(SOON).await.code(), UNCLEAN);
    scene.ledger.command::<()>(&["DEL", "jobqueue:dead_letter"]).await;
    let _next = Worker::spawn(&options);
    let places = scene.ledger.until(SOON, "both dead", |places| places.dead.len() == 2).await;
    places.assert_exactly(&all);
}
