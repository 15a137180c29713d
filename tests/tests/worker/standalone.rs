//! A process that is alone with Redis: every role at once, who reaps and who does not, keys of other names.
#![allow(clippy::float_cmp, reason = "counts: exact in a double")]

use std::time::Duration;

use e2e::ledger::{LOW, ids};
use e2e::{Behaviour, Ledger, Options, RedisServer, Worker, WorkerOptions, eventually};

use crate::scene::Scene;

const SOON: Duration = Duration::from_secs(60);

#[tokio::test]
async fn one_process_of_all_roles_finds_files_and_works_them_off() {
    let server = RedisServer::start(Options::default()).await;
    let mut ledger = Ledger::of(&server).await;
    let inbox = server.dir().join("inbox");
    std::fs::create_dir(&inbox).unwrap();
    for number in 0..20 {
        std::fs::write(inbox.join(format!("{number}.txt")), "x").unwrap();
    }
    let options = WorkerOptions::new("all")
        .redis(server.addr())
        .env("PRODUCER_SCAN_DIR", inbox.display())
        .env("PRODUCER_RESCAN_INTERVAL", "100ms");
    let mut process = Worker::spawn(&options);
    ledger.until_completed(SOON, 20).await;
    std::fs::write(inbox.join("later.txt"), "x").unwrap();
    let places = ledger.until_completed(SOON, 21).await;
    assert_eq!(places.counts(), [0, 0, 0, 0, 21, 0], "each file once");
    assert_eq!(process.metric("jobs_produced_total", &[]).await, Some(21.0));
    assert_eq!(process.get("/readyz").await.0, 200);
    process.sigterm();
    assert!(process.wait_exit(SOON).await.success());
}

#[tokio::test]
async fn nobody_reaps_who_was_told_not_to_nor_while_somebody_central_does() {
    let mut scene = Scene::start().await;
    scene.recorder.by_default(Behaviour::Hold);
    scene.ledger.command::<()>(&["SET", "jobqueue:central", "operator"]).await;
    let never = Worker::spawn(&scene.bystander().env("WORKER_REAPER_ENABLED", "false"));
    let relieved = Worker::spawn(&scene.bystander());
    for worker in [&never, &relieved] {
        worker.wait_for_log("Opened a lane").await;
    }
    let watching: Vec<String> = scene.ledger.command(&["KEYS", "jobqueue:lane:*"]).await;
    assert_eq!(watching.len(), 2);
    scene.ledger.enqueue(LOW, &ids("job", 1)).await;
    let mut killed = Worker::spawn(&scene.options());
    scene.recorder.wait_started("job-1", 1).await;
    killed.kill9();
    // A reaper needs its TTL of 5 s and two looks: idle lanes ask Redis once a second, so these are 12 s.
    for record in &watching {
        scene.cycles(record, 6).await;
    }
    assert_eq!(scene.ledger.places().await.held.len(), 1, "nobody has touched it");
    scene.ledger.command::<()>(&["DEL", "jobqueue:central"]).await;
    scene.ledger.until(SOON, "the rescue", |places| places.suspects.len() == 1).await;
    let reaped = async |worker: &Worker| worker.metric("jobs_reaped_total", &[]).await;
    eventually(SOON, "the figure", async || reaped(&relieved).await == Some(1.0)).await;
    assert_eq!(reaped(&never).await, Some(0.0));
}

#[tokio::test]
async fn heartbeats_of_another_name_protect_the_living_and_not_the_dead() {
    let mut scene = Scene::start().await;
    scene.recorder.by_default(Behaviour::Hold);
    let named = |options: WorkerOptions| options.env("WORKER_HEARTBEAT_KEY_PATTERN", "jobqueue:%s:alive");
    let mut killed = Worker::spawn(&named(scene.options()));
    scene.ledger.enqueue(LOW, &ids("killed", 1)).await;
    scene.recorder.wait_started("killed-1", 1).await;
    let beats: Vec<String> = scene.ledger.command(&["KEYS", "jobqueue:*:alive"]).await;
    assert_eq!(beats.len(), 1);
    let ttl: i64 = scene.ledger.command(&["PTTL", &beats[0]]).await;
    assert!((1..=5_000).contains(&ttl), "{ttl}");
    killed.kill9();
    let living = Worker::spawn(&named(scene.options()));
    scene.ledger.enqueue(LOW, &ids("living", 1)).await;
    scene.recorder.wait_started("living-1", 1).await;
    // By the one that lives, whose own job is left alone.
    scene.recorder.wait_started("killed-1", 2).await;
    assert_eq!(living.metric("jobs_reaped_total", &[]).await, Some(1.0));
    assert_eq!(scene.recorder.starts("living-1"), 1);
    let old: Vec<String> = scene.ledger.command(&["KEYS", "jobqueue:processing:worker:*"]).await;
    assert!(old.is_empty(), "{old:?}");
    scene.recorder.release_all();
    scene.ledger.until_completed(SOON, 2).await;
}
