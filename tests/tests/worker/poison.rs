//! One job kills every process that runs it: it ends among the dead letters, and nobody else does.

use std::time::{Duration, Instant};

use e2e::ledger::{LOW, id_of, ids, job};
use e2e::{Behaviour, Ledger, Options, Recorder, RedisServer, Worker, WorkerOptions};
use serde_json::json;

const SOON: Duration = Duration::from_secs(120);

#[tokio::test]
async fn one_job_that_kills_its_process_is_buried_and_the_five_hundred_beside_it_are_done() {
    let server = RedisServer::start(Options::default()).await;
    let mut ledger = Ledger::of(&server).await;
    let recorder = Recorder::start().await;
    recorder.by_default(Behaviour::Slow(Duration::from_millis(30)));
    let mut innocent = ids("innocent", 500);
    let mut all = innocent.clone();
    all.insert(250, "killer".to_owned());
    ledger.enqueue(LOW, &all).await;
    // As a container that its kubelet restarts: a later start of the same pod proves the earlier process dead.
    let options = WorkerOptions::new("worker")
        .redis(server.addr())
        .recorded_by(&recorder)
        .env("WORKER_COUNT", 100)
        .env("WORKER_POD_UID", "pod")
        .env("WORKER_HEARTBEAT_TTL", "10m");

    let started = Instant::now();
    let mut starts = 0;
    let places = loop {
        let mut worker = Worker::spawn(&options);
        starts += 1;
        recorder.behave("killer", [Behaviour::Kill(worker.pid())]);
        let settled = e2e::eventually(SOON, "an end of this process or of the jobs", async || {
            if worker.exit_status().is_some() {
                return Ok(None);
            }
            let places = ledger.places().await;
            let [.., completed, dead] = places.counts();
            if completed + dead >= all.len() { Ok(Some(places)) } else { Err(places.counts()) }
        });
        if let Some(places) = settled.await {
            break places;
        }
        assert!(starts < 30, "the killer is never found: {:?}", ledger.places().await.counts());
    };
    let runs = recorder.starts("killer");
    println!(
        "one killer among 500, 100 slots: buried after {runs} kills, {starts} starts, {:?}",
        started.elapsed()
    );
    places.assert_exactly(&all);
    assert_eq!(places.counts(), [0, 0, 0, 0, 500, 1]);
    let letter = &places.dead[0];
    assert_eq!((&letter["id"], &letter["reason"]), (&json!("killer"), &json!("poison")));
    assert_eq!(letter["interruptions"], 3);
    assert_eq!(letter["origin_queue"], LOW);
    assert_eq!(letter["retries"], 0, "a death is no failure");
    let mut done: Vec<_> = places.completed.iter().map(id_of).collect();
    done.sort();
    innocent.sort();
    assert_eq!(done, innocent);
    // log2(100) halvings rounded up, then three deaths alone; a few more for those that only shared a list.
    assert!((8..=14).contains(&runs), "{runs} kills");
}

#[tokio::test]
async fn a_suspect_with_many_deaths_runs_alone_and_is_cleared_by_a_failure_of_its_own() {
    let server = RedisServer::start(Options::default()).await;
    let mut ledger = Ledger::of(&server).await;
    let recorder = Recorder::start().await;
    recorder.by_default(Behaviour::Hold);
    recorder.behave("suspect", [Behaviour::Hold, Behaviour::Fail("by itself".into())]);
    let mut suspect = job("suspect");
    suspect["deaths"] = json!(9);
    ledger.push(&format!("{LOW}:suspects"), &[suspect.to_string()]).await;
    let options = WorkerOptions::new("worker")
        .redis(server.addr())
        .recorded_by(&recorder)
        .env("WORKER_COUNT", 4)
        .env("WORKER_BACKOFF_BASE", "1m")
        .env("WORKER_BACKOFF_MAX", "1m");
    let worker = Worker::spawn(&options);
    recorder.wait_started("suspect", 1).await;
    let record = recorded_lane(&worker).await;
    let alone: String = ledger.command(&["HGET", &record, "alone"]).await;
    assert_ne!(alone, "", "written down before it runs");
    ledger.enqueue(LOW, &ids("job", 10)).await;
    let seq = async |ledger: &mut Ledger| ledger.command::<u64>(&["HGET", &record, "seq"]).await;
    let before = seq(&mut ledger).await;
    e2e::eventually(SOON, "two cycles", async || seq(&mut ledger).await >= before + 2).await;
    assert_eq!(recorder.running(), ["suspect"], "all four slots are its own");
    assert_eq!(ledger.places().await.held.len(), 1);

    drop(worker);
    // It waits for all slots again, and gets them when the jobs of the second worker are done.
    recorder.release_all();
    let second = Worker::spawn(&options);
    let places = ledger.until(SOON, "a failure", |places| places.delayed.len() == 1).await;
    assert_eq!(
        places.delayed[0]["deaths"],
        json!(null),
        "an attempt that ended by itself clears the suspicion"
    );
    assert_eq!((&places.delayed[0]["interruptions"], &places.delayed[0]["retries"]), (&json!(1), &json!(1)));
    ledger.until_completed(SOON, 10).await;
    drop(second);
}

/// The key of the record of a worker's only lane.
async fn recorded_lane(worker: &Worker) -> String {
    let opened = worker.wait_for_log("Opened a lane").await;
    format!("jobqueue:lane:{}", opened["worker_id"].as_str().unwrap_or_default())
}
