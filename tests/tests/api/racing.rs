//! Cancels against real workers: whatever a job is doing when it is cancelled, whoever was told so finds it cancelled for
//! ever, and what nobody cancelled comes to its end.
#![allow(clippy::unwrap_used, reason = "a panic is the report")]
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use e2e::engine::load_script;
use e2e::{Behaviour, Fault, Proxy, Recorder, Worker, WorkerOptions, eventually};
use futures::StreamExt as _;
use redis::aio::MultiplexedConnection;
use serde_json::{Value, json};

use crate::scene::{SOON, Scene, command};

/// How long a race may take beyond its jobs: the dead are missed after 5 s, some of them more than once.
const ENDS: Duration = Duration::from_secs(180);

fn worker(redis: std::net::SocketAddr, recorder: &Recorder) -> WorkerOptions {
    WorkerOptions::new("worker")
        .redis(redis)
        .recorded_by(recorder)
        .env("PROTOCOL", "async")
        .env("WORKER_COUNT", 8)
        .env("WORKER_MAX_RETRIES", 1)
        .env("WORKER_BACKOFF_BASE", "10ms")
        // What fails here says nothing about the handler.
        .env("CIRCUIT_BREAKER_MIN_SAMPLES", 1_000_000)
}

/// Status of a job, and whether it lapses.
async fn state(redis: &mut MultiplexedConnection, id: &str) -> (String, bool) {
    let key = format!("jobs:data:{id}");
    let (job, left): (String, i64) =
        redis::pipe().cmd("GET").arg(&key).cmd("PTTL").arg(&key).query_async(redis).await.unwrap();
    let job: Value = serde_json::from_str(&job).unwrap();
    (job["status"].as_str().unwrap().to_owned(), left > 0)
}

/// Under which statuses a job is listed.
async fn listed(redis: &mut MultiplexedConnection, id: &str) -> Vec<&'static str> {
    let mut listed = Vec::new();
    for status in ["pending", "running", "completed", "failed", "cancelled"] {
        let score: Option<f64> = command(redis, &["ZSCORE", &format!("jobs:index:{status}"), id]).await;
        listed.extend(score.map(|_| status));
    }
    listed
}

async fn stays_cancelled(scene: &Scene, id: &str) {
    let mut redis = scene.redis().await;
    eventually(SOON, "the cancelled job to lapse", async || {
        let (status, lapses) = state(&mut redis, id).await;
        assert_eq!(status, "cancelled");
        if lapses { Ok(()) } else { Err("it lives for ever") }
    })
    .await;
    assert!(scene.queued().await.is_empty());
    let held: Vec<String> = command(&mut redis, &["KEYS", "jobs:worker:*"]).await;
    assert!(held.is_empty(), "{held:?}");
    assert_eq!(scene.get(&format!("/jobs/{id}")).await.body["status"], "cancelled");
}

#[tokio::test]
async fn what_was_cancelled_while_it_ran_stays_so_when_its_handler_answers() {
    let scene = Scene::start().await;
    let recorder = Recorder::start().await;
    recorder.by_default(Behaviour::Hold);
    let _worker = Worker::spawn(&worker(scene.server.addr(), &recorder));
    let id = scene.create("t").await;
    recorder.wait_started(&id, 1).await;
    assert_eq!(scene.delete(&format!("/jobs/{id}")).await.status, 200);
    recorder.release(&id);
    stays_cancelled(&scene, &id).await;
    assert_eq!(recorder.starts(&id), 1, "it is not run again");
}

#[tokio::test]
async fn what_was_cancelled_between_its_reading_and_its_start_is_not_started() {
    let scene = Scene::start().await;
    let recorder = Recorder::start().await;
    let proxy = Proxy::start(scene.server.addr()).await;
    let start = load_script(&mut scene.redis().await, "start").await;
    let held = proxy.on(Fault::HoldCommand, 0, 1, move |words| words.get(1).is_some_and(|sha| *sha == start));
    let _worker = Worker::spawn(&worker(proxy.addr(), &recorder));
    let id = scene.create("t").await;
    held.hit().await;
    assert_eq!(scene.delete(&format!("/jobs/{id}")).await.status, 200);
    held.release();
    stays_cancelled(&scene, &id).await;
    assert_eq!(recorder.starts(&id), 0);
}

/// What becomes of a job if it is left alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Story {
    Finishes,
    Retries,
    Dies,
    IsReleased,
    TakesLong,
}

const STORIES: [Story; 5] =
    [Story::Finishes, Story::Retries, Story::Dies, Story::IsReleased, Story::TakesLong];

impl Story {
    fn runs(self, random: &mut fastrand::Rng) -> Vec<Behaviour> {
        let slow = Behaviour::Slow(Duration::from_millis(random.u64(..20)));
        let fail = Behaviour::Fail("no".into());
        match self {
            Self::Finishes => vec![slow],
            Self::Retries => vec![fail, slow],
            Self::Dies => vec![fail.clone(), fail],
            Self::IsReleased => vec![Behaviour::Unavailable, slow],
            // Long enough to be met by whoever kills a worker.
            Self::TakesLong => vec![Behaviour::Slow(Duration::from_millis(random.u64(100..400)))],
        }
    }
}

/// What the canceller was told, by id.
type Told = Arc<Mutex<HashMap<String, u16>>>;

/// Cancels every other job at a moment of its own: when it is about to be started, when something has just become of it,
/// or a little later. Notes all that it hears of.
async fn cancel_some(scene: &Scene, ids: &[String], seed: u64, told: Told) -> tokio::task::JoinHandle<Heard> {
    let client = redis::Client::open(format!("redis://{}", scene.server.addr())).unwrap();
    let mut events = client.get_async_pubsub().await.unwrap();
    events.subscribe("jobs:events").await.unwrap();
    let mut random = fastrand::Rng::with_seed(seed);
    // After which of its changes; 0: after one of a job shortly before it in the queue.
    let mut chosen: HashMap<String, u32> = HashMap::new();
    for id in ids {
        if random.bool() {
            chosen.insert(id.clone(), random.u32(0..=3));
        }
    }
    let places: HashMap<String, usize> = ids.iter().cloned().enumerate().map(|(at, id)| (id, at)).collect();
    let ids = ids.to_vec();
    let (http, url) = (scene.client.clone(), scene.url("/jobs"));
    tokio::spawn(async move {
        let mut events = events.into_on_message();
        let mut heard: Heard = HashMap::new();
        let mut deletes = tokio::task::JoinSet::new();
        while let Some(event) = events.next().await {
            let event: String = event.get_payload().unwrap();
            if event == "end" {
                break;
            }
            let (id, status) = event.rsplit_once(' ').unwrap();
            heard.entry(id.to_owned()).or_default().push(status.to_owned());
            let mut due = Vec::new();
            if let Some(left) = chosen.get_mut(id).filter(|left| **left > 0) {
                *left -= 1;
                if *left == 0 {
                    due.push((id, if random.bool() { 0 } else { random.u64(..30) }));
                }
            }
            let soon = places[id] + random.usize(1..24);
            due.extend(ids.get(soon).filter(|id| chosen.get(*id) == Some(&0)).map(|id| (id.as_str(), 0)));
            for (id, wait) in due {
                chosen.remove(id);
                let (request, id, told) =
                    (http.delete(format!("{url}/{id}")), id.to_owned(), Arc::clone(&told));
                deletes.spawn(async move {
                    tokio::time::sleep(Duration::from_millis(wait)).await;
                    let answer = request.send().await.unwrap();
                    told.lock().unwrap().insert(id, answer.status().as_u16());
                });
            }
        }
        deletes.join_all().await;
        heard
    })
}

/// The statuses of each job, in the order in which it had them.
type Heard = HashMap<String, Vec<String>>;

async fn race(jobs: usize, kills: usize, seed: u64) {
    let scene = Scene::start().await;
    let recorder = Recorder::start().await;
    let mut random = fastrand::Rng::with_seed(seed);
    let mut ids: Vec<String> = Vec::new();
    while ids.len() < jobs {
        let batch: Vec<Value> = (0..100).map(|n| json!({ "type": "t", "payload": n })).collect();
        let created = scene.post("/jobs:batch", &json!({ "jobs": batch })).await;
        assert_eq!(created.status, 201, "{created:?}");
        let created = created.body["jobs"].as_array().unwrap();
        ids.extend(created.iter().map(|job| job["id"].as_str().unwrap().to_owned()));
    }
    let story = |at: usize| STORIES[at % STORIES.len()];
    for (at, id) in ids.iter().enumerate() {
        recorder.behave(id, story(at).runs(&mut random));
    }
    let told = Told::default();
    let canceller = cancel_some(&scene, &ids, seed, Arc::clone(&told)).await;
    let options = worker(scene.server.addr(), &recorder);
    let mut workers: Vec<Worker> = (0..3).map(|_| Worker::spawn(&options)).collect();
    for kill in 1..=kills {
        // Evenly over all jobs, and always while it holds some.
        let started = jobs * kill / (kills + 1);
        eventually(ENDS, "jobs to be started", async || {
            let (runs, running) = (recorder.runs().len(), recorder.running().len());
            if runs >= started && running > 0 { Ok(()) } else { Err((runs, running)) }
        })
        .await;
        let (at, next) = (kill % workers.len(), Worker::spawn(&options));
        let mut last = std::mem::replace(&mut workers[at], next);
        // One is asked to go, and finishes what it runs or gives it back; the others are not.
        if kill == 1 {
            last.sigterm();
        } else {
            last.kill9();
        }
        last.wait_exit(SOON + SOON).await;
    }
    let mut redis = scene.redis().await;
    let mut ends: HashMap<String, (String, bool)> = HashMap::new();
    eventually(ENDS, "every job to be over and to lapse", async || {
        for id in &ids {
            if !ends.get(id).is_some_and(|(_, lapses)| *lapses) {
                ends.insert(id.clone(), state(&mut redis, id).await);
            }
        }
        let open: Vec<_> = ends.iter().filter(|(_, (_, lapses))| !lapses).take(3).collect();
        if open.is_empty() { Ok(()) } else { Err(format!("{open:?}")) }
    })
    .await;
    let left = async |redis: &mut MultiplexedConnection| {
        let mut left = Vec::new();
        for keys in ["jobs:queue*", "jobs:delayed:*", "jobs:worker:*"] {
            left.extend(command::<Vec<String>>(redis, &["KEYS", keys]).await);
        }
        left
    };
    eventually(SOON, "nothing to be left in any list", async || {
        let left = left(&mut redis).await;
        if left.is_empty() { Ok(()) } else { Err(left) }
    })
    .await;
    let _: i64 = command(&mut redis, &["PUBLISH", "jobs:events", "end"]).await;
    let heard = canceller.await.unwrap();
    let told = told.lock().unwrap().clone();

    let mut counts: BTreeMap<(Story, String), usize> = BTreeMap::new();
    let mut while_running = 0;
    for (at, id) in ids.iter().enumerate() {
        // Again: what was read above may have been before the last cancel.
        let (status, lapses) = state(&mut redis, id).await;
        let changes = heard.get(id).cloned().unwrap_or_default();
        assert!(lapses, "{id}: {changes:?}");
        match told.get(id) {
            Some(200) => {
                assert_eq!(status, "cancelled", "{id}: a cancel was undone: {changes:?}");
                assert_eq!(changes.iter().position(|change| change == "cancelled"), Some(changes.len() - 1));
                while_running +=
                    usize::from(changes.iter().rev().nth(1).is_some_and(|last| last == "running"));
            }
            Some(409) | None => {
                let died = status == "failed" && story(at) == Story::Dies;
                assert!(status == "completed" || died, "{id}: {:?} is {status}: {changes:?}", story(at));
            }
            other => panic!("{id}: {other:?}"),
        }
        assert_eq!(listed(&mut redis, id).await, [status.as_str()], "{id}");
        *counts.entry((story(at), status)).or_insert(0) += 1;
    }
    let refused = told.values().filter(|status| **status == 409).count();
    println!(
        "{jobs} jobs, {kills} workers ended, {} cancels of which {while_running} while it ran and {refused} too late: {counts:?}",
        told.len()
    );
    assert!(while_running > 0 && refused > 0, "each won some");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_is_never_undone_by_real_workers_that_finish_retry_release_and_die() {
    race(500, 4, 8).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: ten thousand jobs, and workers that are missed after seconds only"]
async fn a_cancel_is_never_undone_by_real_workers_in_ten_thousand_races() {
    race(10_000, 12, 9).await;
}
