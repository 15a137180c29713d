//! What people and operators tell a worker: stop, be quiet, pause; and in which order it serves.

use std::time::{Duration, Instant};

use e2e::ledger::{HIGH, LOW, id_of, ids, job};
use e2e::{Behaviour, Proxy, RedisServer, Worker, eventually};

use crate::scene::Scene;

const SOON: Duration = Duration::from_secs(30);

/// The key of the record of a worker's only lane.
async fn record_of(worker: &Worker) -> String {
    let opened = worker.wait_for_log("Opened a lane").await;
    format!("jobqueue:lane:{}", opened["worker_id"].as_str().unwrap_or_default())
}

#[tokio::test]
async fn a_worker_told_to_stop_finishes_what_runs_and_gives_the_rest_back_unchanged() {
    let mut scene = Scene::start().await;
    scene.recorder.by_default(Behaviour::Hold);
    let all = ids("job", 10);
    scene.ledger.enqueue(LOW, &all).await;
    let options = scene.options().env("WORKER_COUNT", 4).env("WORKER_DRAIN_TIMEOUT", "3s");
    let mut worker = Worker::spawn(&options);
    scene.running(4).await;

    worker.sigterm();
    worker.wait_for_log("Stopping: no new jobs, what runs may finish; signal again to stop at once").await;
    scene.recorder.release("job-1");
    scene.recorder.release("job-2");
    let places = scene.ledger.until_completed(SOON, 2).await;
    places.assert_exactly(&all);
    let status = worker.wait_exit(SOON).await;
    assert_eq!(status.code(), Some(0), "{status}");

    let places = scene.ledger.places().await;
    assert_eq!(places.counts(), [8, 0, 0, 0, 2, 0]);
    assert_eq!(scene.recorder.runs().len(), 4, "nothing new was started");
    // The consuming end is the right: the two that were stopped are next, byte for byte what they were.
    let next: Vec<String> = scene.ledger.command(&["LRANGE", LOW, "-2", "-1"]).await;
    let mut expected = ["job-3", "job-4"].map(|id| job(id).to_string());
    let mut next: [String; 2] = next.try_into().unwrap();
    next.sort();
    expected.sort();
    assert_eq!(next, expected);
    assert_eq!(scene.ledger.command::<Vec<String>>(&["KEYS", "jobqueue:lane:*"]).await, [""; 0]);
    assert_eq!(scene.ledger.command::<u64>(&["ZCARD", "jobqueue:lanes"]).await, 0);
}

#[tokio::test]
async fn a_second_signal_ends_the_worker_at_once() {
    let mut scene = Scene::start().await;
    scene.recorder.by_default(Behaviour::Hold);
    let all = ids("job", 4);
    scene.ledger.enqueue(LOW, &all).await;
    let options = scene.options().env("WORKER_COUNT", 2);
    let mut workers = [Worker::spawn(&options), Worker::spawn(&options)];
    scene.running(4).await;
    for (worker, code) in workers.iter_mut().zip([143, 130]) {
        let signal = |worker: &Worker| if code == 130 { worker.sigint() } else { worker.sigterm() };
        signal(worker);
        worker
            .wait_for_log("Stopping: no new jobs, what runs may finish; signal again to stop at once")
            .await;
        assert!(worker.exit_status().is_none(), "it waits for its jobs");
        signal(worker);
        let status = worker.wait_exit(Duration::from_secs(5)).await;
        assert_eq!(status.code(), Some(code), "{status}");
    }
    let places = scene.ledger.places().await;
    places.assert_exactly(&all);
    assert_eq!(places.held.len(), 4, "left to a reaper");
}

#[tokio::test]
async fn a_signal_that_arrives_twice_at_once_is_one() {
    let mut scene = Scene::start().await;
    scene.recorder.by_default(Behaviour::Hold);
    let all = ids("job", 2);
    scene.ledger.enqueue(LOW, &all).await;
    let mut worker = Worker::spawn(&scene.options().env("WORKER_COUNT", 2));
    scene.running(2).await;
    for _ in 0..3 {
        worker.sigint();
        worker.sigterm();
    }
    worker.wait_for_log("Stopping: no new jobs, what runs may finish; signal again to stop at once").await;
    scene.recorder.release_all();
    let status = worker.wait_exit(Duration::from_secs(20)).await;
    assert!(status.success(), "it has waited for its jobs: {status}");
    scene.ledger.places().await.assert_exactly(&all);
}

#[tokio::test]
async fn the_process_group_of_a_command_is_dead_before_its_job_is_released() {
    let mut scene = Scene::start().await;
    let pids = scene.server.dir().join("pids");
    // The program and a child of it that would outlive it.
    let script = format!("sleep 1000 & echo $$ $! > {}; wait", pids.display());
    let options = scene
        .options()
        .env("WORKER_HANDLER_KIND", "command")
        .config(&format!("worker: {{handler: {{command: {{argv: [sh, -c, '{script}']}}}}}}"))
        .env("WORKER_DRAIN_TIMEOUT", "500ms");
    scene.ledger.enqueue(LOW, &ids("job", 1)).await;
    let mut worker = Worker::spawn(&options);
    let group = eventually(SOON, "the program's pids", async || {
        let text = std::fs::read_to_string(&pids).unwrap_or_default();
        let pids: Vec<u32> = text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect();
        if pids.len() == 2 && text.ends_with('\n') { Ok(pids) } else { Err(text) }
    })
    .await;
    assert!(group.iter().all(|pid| lives(*pid)));
    worker.sigterm();
    scene.ledger.until(SOON, "the release", |places| places.waiting.len() == 1).await;
    let alive: Vec<_> = group.iter().filter(|pid| lives(**pid)).collect();
    assert!(alive.is_empty(), "{alive:?} of {group:?} still ran when the job could be reserved again");
    assert!(worker.wait_exit(SOON).await.success());
}

/// Whether a process runs; a zombie does not, nor does one that only waits for its turn to die of SIGKILL.
fn lives(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let field =
        |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim();
    let killed = ["SigPnd:", "ShdPnd:"]
        .iter()
        .any(|name| u64::from_str_radix(field(name), 16).is_ok_and(|signals| signals & (1 << 8) != 0));
    !status.is_empty() && !killed && !field("State:").starts_with(['Z', 'X'])
}

#[tokio::test]
async fn a_quiet_worker_finishes_says_so_and_resumes_when_the_word_expires() {
    let mut scene = Scene::start().await;
    scene.recorder.by_default(Behaviour::Hold);
    let all = ids("job", 5);
    scene.ledger.enqueue(LOW, &all[..2]).await;
    let worker = Worker::spawn(&scene.options().env("WORKER_POD_UID", "pod-1"));
    let neighbour = Worker::spawn(
        &scene.options().env("WORKER_POD_UID", "pod-2").env("WORKER_QUEUES_LOW", "jobqueue:none_priority"),
    );
    neighbour.wait_for_log("Opened a lane").await;
    scene.running(2).await;
    let record = record_of(&worker).await;
    scene.ledger.command::<()>(&["SET", "jobqueue:quiet:pod-1", "G1", "PX", "60000"]).await;
    eventually(SOON, "the acknowledged word", async || {
        let quiet: Option<String> = scene.ledger.command(&["HGET", &record, "quiet"]).await;
        if quiet.as_deref() == Some("G1") { Ok(()) } else { Err(quiet) }
    })
    .await;
    scene.ledger.enqueue(LOW, &all[2..]).await;
    scene.cycles(&record, 2).await;
    assert_eq!(scene.recorder.runs().len(), 2, "it reserves nothing");
    assert_eq!(worker.get("/readyz").await.0, 200, "it still runs two jobs");

    scene.recorder.release_all();
    let (_, body) = eventually(SOON, "drained", async || {
        let (status, body) = worker.get("/readyz").await;
        if status == 503 { Ok((status, body)) } else { Err(body) }
    })
    .await;
    assert!(body.contains("drained"), "{body}");
    assert_eq!(neighbour.get("/readyz").await.0, 200, "the word was for one process");
    assert_eq!(scene.ledger.command::<String>(&["HGET", &record, "held"]).await, "0");
    scene.ledger.command::<()>(&["PEXPIRE", "jobqueue:quiet:pod-1", "1"]).await;
    let places = scene.ledger.until_completed(SOON, 5).await;
    places.assert_exactly(&all);
    eventually(SOON, "ready again", async || worker.get("/readyz").await.0 == 200).await;
}

#[tokio::test]
async fn a_paused_queue_is_served_by_nobody_and_at_once_when_resumed() {
    let mut scene = Scene::start().await;
    let early = Worker::spawn(&scene.options());
    let record = record_of(&early).await;
    scene.ledger.command::<()>(&["SET", "jobqueue:paused", "1"]).await;
    early.wait_for_log_where("Queue was paused or resumed", |entry| entry["value"] == "paused").await;
    let late = Worker::spawn(&scene.options());
    let late_record = record_of(&late).await;
    let all = ids("job", 20);
    scene.ledger.enqueue(LOW, &all).await;
    scene.cycles(&record, 3).await;
    scene.cycles(&late_record, 2).await;
    let places = scene.ledger.places().await;
    assert_eq!(
        places.counts(),
        [20, 0, 0, 0, 0, 0],
        "neither the one that was parked nor the one that came later"
    );

    let resumed = Instant::now();
    scene.ledger.command::<()>(&["DEL", "jobqueue:paused"]).await;
    scene.ledger.until_completed(SOON, 20).await.assert_exactly(&all);
    println!("resumed: 20 jobs done after {:?}", resumed.elapsed());
}

#[tokio::test]
async fn the_first_queue_is_served_first() {
    let mut scene = Scene::start().await;
    scene.ledger.command::<()>(&["SET", "jobqueue:paused", "1"]).await;
    let worker = Worker::spawn(&scene.options().env("WORKER_COUNT", 1));
    worker.wait_for_log_where("Queue was paused or resumed", |entry| entry["value"] == "paused").await;
    let (low, high) = (ids("low", 30), ids("high", 30));
    scene.ledger.enqueue(LOW, &low).await;
    scene.ledger.enqueue(HIGH, &high).await;
    scene.ledger.command::<()>(&["DEL", "jobqueue:paused"]).await;
    let places = scene.ledger.until_completed(SOON, 60).await;
    let order: Vec<String> = scene.recorder.runs().into_iter().map(|run| run.id).collect();
    assert_eq!(order, [high, low].concat(), "strictly by priority, within a queue first in first out");
    assert_eq!(places.completed.iter().rev().map(id_of).collect::<Vec<_>>(), order);
}

#[tokio::test]
async fn an_idle_worker_starts_a_job_of_the_last_queue_without_asking_for_it() {
    let mut scene = Scene::start().await;
    let proxy = Proxy::start(scene.server.addr()).await;
    let worker = Worker::spawn(&scene.options().redis(proxy.addr()).env("WORKER_BRPOPLPUSH_TIMEOUT", "2s"));
    worker.wait_for_log("Opened a lane").await;
    eventually(SOON, "a parked fetch on each list", async || {
        scene.server.cli(&["INFO", "clients"]).contains("blocked_clients:4")
    })
    .await;
    // No script gets through: only a fetch that was parked before can bring the job.
    let held = proxy.on(e2e::Fault::HoldCommand, 0, usize::MAX, |command| command[0] == "EVALSHA");
    let pushed = Instant::now();
    scene.ledger.enqueue(LOW, &ids("job", 1)).await;
    scene.recorder.wait_started("job-1", 1).await;
    println!("idle pickup of the lowest priority: {:?}", scene.recorder.runs()[0].started - pushed);
    assert_eq!(scene.ledger.places().await.held.len(), 1, "it was moved to a list of the lane's");
    held.remove();
    held.release();
    scene.ledger.until_completed(SOON, 1).await;
}

#[tokio::test]
async fn as_long_as_a_slot_is_free_every_queue_is_parked_on() {
    let mut scene = Scene::start().await;
    scene.recorder.by_default(Behaviour::Hold);
    // The seeds' form: a lane a slot, so that the one which parks has its share with its first job.
    let options = scene.options().env("WORKER_COUNT", 4).env("WORKER_LANES", 4);
    let worker = Worker::spawn(&options.env("WORKER_BRPOPLPUSH_TIMEOUT", "2s"));
    worker.wait_for_log("Opened a lane").await;
    let parked = async |server: &RedisServer, fetches: u32| {
        let what = format!("{fetches} parked fetches");
        let expected = format!("blocked_clients:{fetches}");
        eventually(SOON, &what, async || {
            server.cli(&["INFO", "clients"]).lines().any(|line| line.trim() == expected)
        })
        .await;
    };
    for (id, queue) in [("a", LOW), ("b", HIGH), ("c", LOW), ("d", HIGH)] {
        parked(&scene.server, 4).await;
        scene.ledger.enqueue(queue, &[id.to_owned()]).await;
        scene.recorder.wait_started(id, 1).await;
    }
    parked(&scene.server, 0).await;
    scene.recorder.release("d");
    parked(&scene.server, 4).await;
    scene.recorder.release_all();
    scene.ledger.until_completed(SOON, 4).await;
}
