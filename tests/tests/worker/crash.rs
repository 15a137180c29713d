//! The worker dies, or looks dead: its jobs come back, none is lost, and none is settled twice.
#![allow(clippy::expect_used, reason = "a panic is the report")]

use std::time::{Duration, Instant};

use e2e::ledger::{HIGH, LOW, id_of, ids};
use e2e::{Behaviour, Recorder, Worker, WorkerOptions};

use serde_json::Value;

use crate::scene::Scene;

const TTL: Duration = Duration::from_secs(5);
const SOON: Duration = Duration::from_secs(30);

#[tokio::test]
async fn jobs_of_a_killed_worker_can_be_reserved_again() {
    let mut scene = Scene::start().await;
    scene.recorder.by_default(Behaviour::Hold);
    let all = ids("job", 24);
    scene.ledger.enqueue(LOW, &all).await;
    let mut busy = Worker::spawn(&scene.options());
    let reaper = Worker::spawn(&scene.bystander());
    reaper.wait_for_log("Opened a lane").await;
    scene.ledger.until(SOON, "16 running jobs", |places| places.held.len() == 16).await;
    let killed = Instant::now();
    busy.kill9();
    let places = scene.ledger.until(TTL + SOON, "its jobs to be free", |places| places.held.is_empty()).await;
    println!("killed with 16 jobs: all reservable again after {:?} (TTL {TTL:?})", killed.elapsed());
    places.assert_exactly(&all);
    assert_eq!(
        places.suspects.len(),
        16,
        "those that ran are suspects: any of them may have been the killer"
    );
    assert!(places.suspects.iter().all(|job| job["deaths"] == 1 && job["retries"] == 0));

    scene.recorder.release_all();
    let _second = Worker::spawn(&scene.options());
    let places = scene.ledger.until_completed(SOON, all.len()).await;
    places.assert_exactly(&all);
}

/// What a kill at this place may have doubled: the jobs of the one worker that was killed, and nothing else.
async fn dies_at(failpoint: &str) -> Duration {
    let mut scene = Scene::start().await;
    let all = ids("job", 60);
    scene.ledger.enqueue(LOW, &all[..40]).await;
    let mut options = scene.options().env("WORKER_COUNT", 8).failpoint(failpoint);
    let drains = failpoint.starts_with("before-release") || failpoint.starts_with("before-close");
    if drains {
        options = options.env("WORKER_DRAIN_TIMEOUT", "100ms");
    }
    if failpoint.starts_with("before-release") {
        scene.recorder.by_default(Behaviour::Hold);
    }
    let mut killed = Worker::spawn(&options);
    killed.wait_for_log("Serving metrics").await;
    if failpoint.starts_with("before-release") {
        scene.ledger.until(SOON, "running jobs", |places| places.held.len() == 8).await;
    } else if drains {
        scene.ledger.until_completed(SOON, 40).await;
    }
    if drains {
        killed.sigterm();
    }
    // One at a time, so that some come by a parked fetch; to both queues.
    for (n, id) in all[40..].iter().enumerate() {
        scene.ledger.enqueue(if n % 2 == 0 { HIGH } else { LOW }, std::slice::from_ref(id)).await;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let status = killed.wait_exit(SOON).await;
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9), "{failpoint}: {status}");
    let left = scene.ledger.places().await;
    left.assert_exactly(&all);

    scene.recorder.release_all();
    let started = Instant::now();
    let second = Worker::spawn(&scene.options().env("WORKER_COUNT", 8));
    let places = scene.ledger.until_completed(SOON, all.len()).await;
    places.assert_exactly(&all);
    assert_eq!(places.counts(), [0, 0, 0, 0, all.len(), 0], "{failpoint}");
    // A second run is explained by the kill: the job was reserved by the killed worker and came back.
    let twice = scene.recorder.duplicates();
    let interrupted = |job: &&Value| !job["interrupted_by"].is_null();
    let came_back: Vec<_> = if drains {
        // It was told to stop: that counts against none of them.
        assert_eq!(places.completed.iter().find(interrupted), None, "{failpoint}");
        assert!(places.completed.iter().all(|job| job["deaths"].is_null()), "{failpoint}");
        left.held.iter().map(id_of).collect()
    } else {
        places.completed.iter().filter(interrupted).map(id_of).collect()
    };
    for (id, runs) in twice {
        assert!(runs == 2 && came_back.contains(&id), "{failpoint}: {id} ran {runs} times without a reason");
    }
    drop(second);
    started.elapsed()
}

#[tokio::test]
async fn nothing_is_lost_or_doubled_wherever_the_worker_is_killed() {
    let places = [
        "after-register",
        "before-cycle",
        "before-cycle:5",
        "after-cycle",
        "after-cycle:4",
        "before-handle",
        "before-handle:12",
        "after-handle",
        "after-handle:20",
        "after-park:3",
        "before-release",
        "before-close",
    ];
    // Every place that a process without a producer comes by, and whose jobs are not opened first.
    let elsewhere = ["after-enqueue", "before-start", "after-start"];
    for name in worker::failpoint::ALL.iter().filter(|name| !elsewhere.contains(name)) {
        assert!(places.iter().any(|place| place.split(':').next() == Some(name)), "{name} is not tested");
    }
    let took = futures::future::join_all(places.map(dies_at)).await;
    for (place, took) in places.iter().zip(took) {
        println!("killed at {place}: a second worker had finished everything after {took:?}");
    }
}

#[tokio::test]
async fn a_stopped_worker_that_wakes_after_its_jobs_ran_elsewhere_changes_nothing() {
    let mut scene = Scene::start().await;
    scene.recorder.by_default(Behaviour::Hold);
    let all = ids("job", 10);
    scene.ledger.enqueue(HIGH, &all).await;
    let stopped = Worker::spawn(&scene.options());
    scene.ledger.until(SOON, "10 running jobs", |places| places.held.len() == 10).await;
    eventually_running(&scene.recorder, 10).await;
    let second = Worker::spawn(&scene.options());
    second.wait_for_log("Opened a lane").await;

    stopped.sigstop();
    // Their answers are waiting for the stopped worker when it wakes, and it believes them.
    scene.recorder.release_all();
    let places = scene.ledger.until_completed(TTL + SOON, 10).await;
    places.assert_exactly(&all);
    stopped.sigcont();
    stopped.wait_for_log("Lost the lease, what it held runs elsewhere").await;
    let reopened = async || {
        let lanes = stopped.log().iter().filter(|entry| entry["msg"] == "Opened a lane").count();
        if lanes == 2 { Ok(()) } else { Err(lanes) }
    };
    e2e::eventually(SOON, "a new lane", reopened).await;
    let places = scene.ledger.places().await;
    places.assert_exactly(&all);
    assert_eq!(places.counts(), [0, 0, 0, 0, 10, 0], "each was settled once, by the worker that was awake");

    // It works on, in its new lane.
    drop(second);
    let more = ids("more", 10);
    scene.ledger.enqueue(LOW, &more).await;
    let places = scene.ledger.until_completed(TTL + SOON, 20).await;
    places.assert_exactly(&[all, more].concat());
}

async fn eventually_running(recorder: &Recorder, count: usize) {
    e2e::eventually(SOON, "running jobs", async || {
        let running = recorder.running().len();
        if running == count { Ok(()) } else { Err(running) }
    })
    .await;
}

#[tokio::test]
async fn a_process_restarted_in_its_pod_takes_its_predecessors_jobs_back_at_once() {
    let mut scene = Scene::start().await;
    scene.recorder.by_default(Behaviour::Hold);
    let all = ids("job", 12);
    scene.ledger.enqueue(LOW, &all).await;
    // With ten minutes to live a heartbeat can have nothing to do with it.
    let pod = scene.options().env("WORKER_HEARTBEAT_TTL", "10m").env("WORKER_POD_UID", "pod-1");
    let mut first = Worker::spawn(&pod);
    eventually_running(&scene.recorder, 12).await;
    let mut neighbour = Worker::spawn(&pod.clone().env("WORKER_POD_UID", "pod-2"));
    neighbour.wait_for_log("Opened a lane").await;
    let killed = Instant::now();
    first.kill9();

    scene.recorder.release_all();
    let second = Worker::spawn(&pod);
    let places = scene.ledger.until_completed(SOON, 12).await;
    println!("restarted in its pod: 12 jobs settled {:?} after the kill, TTL 10 min", killed.elapsed());
    places.assert_exactly(&all);
    let fenced = second.wait_for_log("Fenced the lanes of this pod's earlier process").await;
    assert_eq!(fenced["count"], 1, "the neighbour in another pod keeps its lane");
    assert!(neighbour.exit_status().is_none());
    assert!(neighbour.log().iter().all(|entry| !entry["msg"].as_str().unwrap_or_default().contains("lease")));
}

#[tokio::test]
async fn a_process_restarted_with_the_same_hostname_and_pid_strands_nothing() {
    // A process namespace of its own gives every worker the number 1, as a container does.
    // Where users may not make one, root may.
    let ways: [&[&str]; 2] = [
        &["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"],
        &["sudo", "--non-interactive", "--preserve-env", "unshare", "--pid", "--fork", "--kill-child"],
    ];
    let works = |way: &&&[&str]| {
        let tried = std::process::Command::new(way[0]).args(&way[1..]).arg("true").output();
        tried.is_ok_and(|output| output.status.success())
    };
    let unshare = ways.iter().find(works).expect("a process namespace, with unshare or sudo");
    let mut scene = Scene::start().await;
    scene.recorder.by_default(Behaviour::Hold);
    let all = ids("job", 12);
    scene.ledger.enqueue(LOW, &all).await;
    let options = scene.options().started_by(unshare);
    let mut first = Worker::spawn(&options);
    eventually_running(&scene.recorder, 12).await;
    first.kill9();
    scene.recorder.release_all();
    let second = Worker::spawn(&options);
    let places = scene.ledger.until_completed(TTL + SOON, 12).await;
    places.assert_exactly(&all);
    let opened = async |worker: &Worker| {
        let id = worker.wait_for_log("Opened a lane").await["worker_id"].as_str().unwrap().to_owned();
        let (process, lane) = id.rsplit_once('-').unwrap();
        (process.to_owned(), lane.to_owned())
    };
    let ((before, old), (after, new)) = (opened(&first).await, opened(&second).await);
    assert!(before == after && before.ends_with("-1"), "the same process by name: {before}, {after}");
    assert_ne!(old, new, "and another lane");
}

#[tokio::test]
async fn a_job_longer_than_three_ttls_is_never_reaped_while_its_worker_lives() {
    never_reaped(3 * TTL + Duration::from_secs(2)).await;
}

#[tokio::test]
#[ignore = "long: a job of five minutes"]
async fn a_job_of_five_minutes_is_never_reaped_while_its_worker_lives() {
    never_reaped(Duration::from_secs(300)).await;
}

async fn never_reaped(length: Duration) {
    let mut scene = Scene::start().await;
    scene.recorder.by_default(Behaviour::Slow(length));
    let all = ids("long", 3);
    scene.ledger.enqueue(LOW, &all).await;
    let slow = scene.options().env("WORKER_HANDLER_HTTP_TIMEOUT", "10m");
    let workers = [Worker::spawn(&slow), Worker::spawn(&slow)];
    let places = scene.ledger.until_completed(length + SOON, 3).await;
    places.assert_exactly(&all);
    assert!(scene.recorder.duplicates().is_empty(), "each ran once");
    for worker in &workers {
        assert_eq!(worker.metric("jobs_reaped_total", &[]).await, Some(0.0));
    }
    println!("3 jobs of {length:?} with a TTL of {TTL:?}: each ran once");
}

#[tokio::test]
async fn a_producer_killed_after_an_enqueue_pushes_every_file_once_when_it_is_back() {
    let mut scene = Scene::start().await;
    let dir = scene.server.dir().join("inbox");
    std::fs::create_dir(&dir).unwrap();
    for n in 0..250 {
        std::fs::write(dir.join(format!("{n}.txt")), "content").unwrap();
    }
    let options = WorkerOptions::new("producer")
        .redis(scene.server.addr())
        .env("PRODUCER_SCAN_DIR", dir.display())
        .env("PRODUCER_RATE_LIMIT_PER_SEC", 0)
        .env("PRODUCER_ONCE", "true");
    let mut killed = Worker::spawn(&options.clone().failpoint("after-enqueue"));
    let status = killed.wait_exit(SOON).await;
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9), "{status}");
    let before = scene.ledger.places().await.waiting.len();
    assert!((1..250).contains(&before), "it was killed half-way: {before} of 250");
    assert!(Worker::spawn(&options).wait_exit(SOON).await.success());
    let places = scene.ledger.places().await;
    let mut paths: Vec<&str> = places.waiting.iter().filter_map(|job| job["filepath"].as_str()).collect();
    paths.sort_unstable();
    paths.dedup();
    assert_eq!((paths.len(), places.waiting.len()), (250, 250), "every file once");
}

#[tokio::test]
async fn of_equal_jobs_that_end_out_of_order_the_one_that_still_runs_is_the_one_that_is_held() {
    let mut scene = Scene::start().await;
    // Of each pair of equal bytes the second behaves differently from the first.
    let long = Behaviour::Slow(Duration::from_secs(600));
    scene.recorder.behave("x", [Behaviour::Hold]);
    scene.recorder.behave("a", [Behaviour::Hold, Behaviour::Succeed]);
    scene.recorder.behave("q", [Behaviour::Hold, long]);
    let pushed = ["x", "a", "q", "q", "a"].map(str::to_owned);
    scene.ledger.enqueue(LOW, &pushed).await;
    let _worker = Worker::spawn(&scene.options());
    scene.ledger.until_completed(SOON, 1).await;
    scene.running(4).await;
    // The first three of the list end together.
    for id in ["x", "a", "q"] {
        scene.recorder.release(id);
    }
    let places = scene.ledger.until_completed(SOON, 4).await;
    let ids = |entries: &[Value]| {
        let mut ids: Vec<_> = entries.iter().map(id_of).collect();
        ids.sort();
        ids
    };
    assert_eq!(
        (ids(&places.completed), ids(&places.held)),
        (vec!["a".into(), "a".into(), "q".into(), "x".into()], vec!["q".into()])
    );
    assert_eq!(scene.recorder.runs().len(), pushed.len(), "each ran once");
}
