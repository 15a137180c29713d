//! What becomes of a job whose run did not go well: backoff, dead letters, breakers, handlers that are away.
#![allow(clippy::float_cmp, reason = "counts: exact in a double")]

use std::time::{Duration, Instant};

use e2e::child::free_port;
use e2e::ledger::{COMPLETED, DEAD, HIGH, LOW, ids, job};
use e2e::{Behaviour, Ledger, Worker, eventually};

use crate::scene::Scene;
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(30);

async fn breaker_is(worker: &Worker, state: f64) {
    eventually(SOON, &format!("circuit_breaker_state {state}"), async || {
        let found = worker.metric("circuit_breaker_state", &[("queue", "low")]).await;
        if found == Some(state) { Ok(()) } else { Err(found) }
    })
    .await;
}

#[tokio::test]
async fn a_job_that_keeps_failing_waits_longer_each_time_and_ends_among_the_dead_letters() {
    let mut scene = Scene::start().await;
    scene.recorder.by_default(Behaviour::Fail("the file is torn".into()));
    let options = scene
        .options()
        .env("WORKER_MAX_RETRIES", 3)
        .env("WORKER_BACKOFF_BASE", "300ms")
        .env("WORKER_BACKOFF_MAX", "600ms");
    let worker = Worker::spawn(&options);
    scene.ledger.enqueue(LOW, &ids("job", 1)).await;
    let places = scene.ledger.until(SOON, "the dead letter", |places| places.dead.len() == 1).await;
    assert_eq!(places.counts(), [0, 0, 0, 0, 0, 1]);
    let letter = &places.dead[0];
    let mut expected = job("job-1");
    expected["retries"] = json!(4);
    expected["error"] = json!("the file is torn");
    expected["reason"] = json!("handler");
    expected["failed_at"] = letter["failed_at"].clone();
    expected["origin_queue"] = json!(LOW);
    assert_eq!(letter, &expected, "the job itself with its final counters, and why");
    assert!(letter["failed_at"].as_str().unwrap().starts_with("20"), "{letter}");

    let runs = scene.recorder.runs();
    assert_eq!(runs.iter().map(|run| run.job()["retries"].clone()).collect::<Vec<_>>(), [0, 1, 2, 3]);
    let gaps: Vec<_> = runs.windows(2).map(|pair| pair[1].started - pair[0].started).collect();
    println!("backoff of 300 ms, doubled up to 600 ms: waited {gaps:?}");
    for (gap, least) in gaps.iter().zip([300, 600, 600]) {
        assert!(*gap >= Duration::from_millis(least - 20), "{gaps:?}");
    }
    let count = async |name: &str| worker.metric(name, &[("queue", "low")]).await;
    eventually(SOON, "the figures", async || count("jobs_dead_letter_total").await == Some(1.0)).await;
    assert_eq!((count("jobs_failed_total").await, count("jobs_retried_total").await), (Some(4.0), Some(3.0)));
}

#[tokio::test]
async fn a_settlement_that_is_refused_and_said_again_counts_its_time_once() {
    let mut scene = Scene::start().await;
    scene.recorder.by_default(Behaviour::Slow(Duration::from_millis(200)));
    scene.ledger.command::<()>(&["SET", COMPLETED, "oops"]).await;
    let worker = Worker::spawn(&scene.options());
    scene.ledger.enqueue(LOW, &ids("job", 1)).await;
    eventually(SOON, "three refusals", async || {
        let said = worker
            .log()
            .into_iter()
            .filter(|entry| entry["msg"] == "Redis refused a job, it stays where it is");
        let count = said.count();
        if count >= 3 { Ok(()) } else { Err(count) }
    })
    .await;
    scene.ledger.command::<()>(&["DEL", COMPLETED]).await;
    scene.ledger.until_completed(SOON, 1).await;
    let ran = worker.metric("job_processing_duration_seconds_sum", &[]).await.unwrap();
    let counted: f64 = scene.ledger.command(&["HGET", "jobqueue:counters", "busy_ms"]).await;
    assert!((counted - 1000.0 * ran).abs() <= 1.0, "counted {counted} ms, ran {ran} s");
    let done: u64 = scene.ledger.command(&["HGET", "jobqueue:counters", "done"]).await;
    assert_eq!(done, 1);
}

#[tokio::test]
async fn what_redis_refuses_to_bury_stops_its_own_queue_only() {
    let mut scene = Scene::start().await;
    scene.ledger.command::<()>(&["SET", DEAD, "oops"]).await;
    let kill = Behaviour::Answer(200, json!({ "kill": true }));
    let dying = ids("dying", 9);
    for id in &dying {
        scene.recorder.behave(id, [kill.clone()]);
    }
    let worker = Worker::spawn(&scene.options().env("WORKER_COUNT", 2));
    scene.ledger.enqueue(LOW, &dying).await;
    let said = worker.wait_for_log("Takes no more jobs of a queue: Redis refuses what becomes of them").await;
    assert_eq!((&said["queue"], &said["count"]), (&json!("low"), &json!(2)));
    scene.ledger.enqueue(HIGH, &ids("healthy", 5)).await;
    // A suspect that needs every slot there is.
    let mut suspect = job("suspect");
    suspect["deaths"] = json!(9);
    scene.ledger.push(HIGH, &[suspect.to_string()]).await;
    eventually(SOON, "the healthy ones and the suspect", async || {
        let completed: usize = scene.ledger.command(&["LLEN", COMPLETED]).await;
        if completed == 6 { Ok(()) } else { Err(completed) }
    })
    .await;
    let started = dying.iter().filter(|id| scene.recorder.starts(id) > 0).count();
    assert!(
        started <= 5,
        "{started}: all but one of its slots refused, all running, and all reserved meanwhile"
    );
    scene.ledger.command::<()>(&["DEL", DEAD]).await;
    let places = scene.ledger.until(SOON, "the dead letters", |places| places.dead.len() == 9).await;
    assert_eq!(places.counts(), [0, 0, 0, 0, 6, 9]);
    assert!(dying.iter().all(|id| scene.recorder.starts(id) == 1), "each ran once");
}

#[tokio::test]
async fn a_job_that_waits_for_its_next_attempt_takes_no_slot() {
    let mut scene = Scene::start().await;
    scene.recorder.behave("fails", [Behaviour::Fail("once".into())]);
    let options = scene
        .options()
        .env("WORKER_COUNT", 1)
        .env("WORKER_BACKOFF_BASE", "2s")
        .env("WORKER_BACKOFF_MAX", "2s");
    let _worker = Worker::spawn(&options);
    scene.ledger.enqueue(LOW, &["fails".to_owned()]).await;
    scene.ledger.until(SOON, "the backoff", |places| places.delayed.len() == 1).await;
    scene.ledger.enqueue(LOW, &ids("other", 5)).await;
    let places = scene.ledger.until_completed(SOON, 5).await;
    assert_eq!(places.delayed.len(), 1, "five others ran in the only slot meanwhile");
    let places = scene.ledger.until_completed(SOON, 6).await;
    assert_eq!((&places.completed[0]["id"], &places.completed[0]["retries"]), (&json!("fails"), &json!(1)));
}

#[tokio::test]
async fn unknown_fields_and_large_numbers_survive_a_retry() {
    let mut scene = Scene::start().await;
    let raw = r#"{"id":"odd","zeta":12345678901234567890123,"list":[],"map":{},"price":1.10,"alpha":{"b":1,"a":[1.0,null]},"text":"ünï\u0000code","retries":0}"#;
    scene.recorder.behave("odd", [Behaviour::Fail("once".into())]);
    let _worker = Worker::spawn(&scene.options().env("WORKER_BACKOFF_BASE", "10ms"));
    scene.ledger.push(LOW, &[raw]).await;
    scene.ledger.until_completed(SOON, 1).await;
    let kept: String = scene.ledger.command(&["LINDEX", "jobqueue:completed", "0"]).await;
    assert!(
        kept.contains("\"zeta\":12345678901234567890123,\"list\":[],\"map\":{},\"price\":1.10"),
        "{kept}"
    );
    let meaning: Value = serde_json::from_str(raw).unwrap();
    let mut kept: Value = serde_json::from_str(&kept).unwrap();
    assert_eq!(kept["retries"], 1);
    kept["retries"] = json!(0);
    assert_eq!(kept, meaning, "in value and order");
}

#[tokio::test]
async fn equal_jobs_that_fail_together_are_retried_as_two() {
    let mut scene = Scene::start().await;
    let fail = || Behaviour::Fail("once".into());
    scene.recorder.behave("twin", [fail(), fail()]);
    let _worker = Worker::spawn(&scene.options().env("WORKER_BACKOFF_BASE", "50ms"));
    scene.ledger.push(LOW, &[job("twin").to_string(), job("twin").to_string()]).await;
    let places = scene.ledger.until_completed(SOON, 2).await;
    assert_eq!(places.counts(), [0, 0, 0, 0, 2, 0]);
    assert_eq!(scene.recorder.starts("twin"), 4);
}

#[tokio::test]
async fn a_breaker_opens_probes_with_one_job_and_closes() {
    let mut scene = Scene::start().await;
    scene.recorder.by_default(Behaviour::Fail("broken".into()));
    let options = scene
        .options()
        .env("WORKER_COUNT", 100)
        .env("WORKER_MAX_RETRIES", 0)
        .env("CIRCUIT_BREAKER_MIN_SAMPLES", 20)
        .env("CIRCUIT_BREAKER_COOLDOWN_PERIOD", "3s");
    let worker = Worker::spawn(&options);
    scene.ledger.enqueue(LOW, &ids("bad", 20)).await;
    scene.ledger.until(SOON, "20 failures", |places| places.dead.len() == 20).await;
    let opened = Instant::now();
    breaker_is(&worker, 2.0).await;
    scene.recorder.by_default(Behaviour::Hold);
    let good = ids("good", 30);
    scene.ledger.enqueue(LOW, &good).await;
    scene.ledger.enqueue(HIGH, &ids("high", 1)).await;
    scene.recorder.wait_started("high-1", 1).await;

    // The first of them is the probe; all 100 slots and both lanes are free for more.
    scene.recorder.wait_started("good-1", 1).await;
    assert!(
        opened.elapsed() >= Duration::from_millis(2_500),
        "not before its cooldown: {:?}",
        opened.elapsed()
    );
    breaker_is(&worker, 1.0).await;
    let lanes: Vec<String> = scene.ledger.command(&["KEYS", "jobqueue:lane:*"]).await;
    assert_eq!(lanes.len(), 2);
    for lane in lanes {
        let seq = async |ledger: &mut Ledger| ledger.command::<u64>(&["HGET", &lane, "seq"]).await;
        let before = seq(&mut scene.ledger).await;
        eventually(SOON, "two cycles", async || seq(&mut scene.ledger).await >= before + 2).await;
    }
    let running = scene.recorder.running();
    assert_eq!(running.iter().filter(|id| id.starts_with("good")).count(), 1, "{running:?}");
    assert_eq!(scene.ledger.places().await.waiting.len(), 29);

    scene.recorder.release_all();
    let places = scene.ledger.until_completed(SOON, 31).await;
    assert_eq!(places.counts(), [0, 0, 0, 0, 31, 20]);
    breaker_is(&worker, 0.0).await;
    assert_eq!(
        worker.metric("circuit_breaker_state", &[("queue", "high")]).await,
        Some(0.0),
        "never concerned"
    );
}

#[tokio::test]
async fn a_handler_that_is_not_there_costs_no_attempt_and_opens_the_breaker() {
    let mut scene = Scene::start().await;
    let all = ids("job", 30);
    scene.ledger.enqueue(LOW, &all).await;
    let before: Vec<String> = scene.ledger.command(&["LRANGE", LOW, "0", "-1"]).await;
    let nobody = format!("http://127.0.0.1:{}", free_port());
    let worker = Worker::spawn(&scene.options().env("WORKER_HANDLER_HTTP_URL", nobody));
    breaker_is(&worker, 2.0).await;
    scene.ledger.until(SOON, "all released", |places| places.held.is_empty()).await.assert_exactly(&all);
    let mut after: Vec<String> = scene.ledger.command(&["LRANGE", LOW, "0", "-1"]).await;
    let mut before = before;
    before.sort();
    after.sort();
    assert_eq!(after, before, "byte for byte, none retried, none dead");
    assert!(worker.metric("jobs_released_total", &[]).await.unwrap() >= 20.0);
    assert_eq!(worker.metric("jobs_failed_total", &[]).await, Some(0.0));
}

#[tokio::test]
async fn a_job_that_its_handler_never_takes_does_not_keep_the_others_of_its_queue() {
    let mut scene = Scene::start().await;
    scene.recorder.behave("refused", std::iter::repeat_n(Behaviour::Unavailable, 1_000));
    let options = scene
        .options()
        .env("WORKER_COUNT", 1)
        .env("CIRCUIT_BREAKER_MIN_SAMPLES", 2)
        .env("CIRCUIT_BREAKER_COOLDOWN_PERIOD", "200ms");
    let _worker = Worker::spawn(&options);
    scene.ledger.enqueue(LOW, &["refused".to_owned(), "next".to_owned(), "last".to_owned()]).await;
    let places = scene.ledger.until_completed(SOON, 2).await;
    assert_eq!(places.dead.len(), 0, "and it costs no attempt");
    assert_eq!(scene.recorder.starts("next") + scene.recorder.starts("last"), 2);
}

#[tokio::test]
async fn a_job_that_its_handler_gives_back_is_not_run_again_at_once() {
    let mut scene = Scene::start().await;
    let given_back = Behaviour::Answer(200, json!({ "interrupted": true }));
    scene.recorder.behave("job-1", [given_back.clone(), given_back]);
    let _worker = Worker::spawn(&scene.options());
    scene.ledger.enqueue(LOW, &ids("job", 1)).await;
    scene.ledger.until_completed(SOON, 1).await;
    let runs = scene.recorder.runs();
    let gaps: Vec<_> = runs.windows(2).map(|pair| pair[1].started - pair[0].started).collect();
    assert!(gaps.iter().all(|gap| *gap >= Duration::from_millis(980)), "{gaps:?}");
    assert_eq!(runs.len(), 3);
    assert_eq!(runs[2].job(), job("job-1"), "nothing is held against it");
}

#[tokio::test]
async fn a_handler_that_dies_over_a_job_makes_it_a_suspect_not_a_failure() {
    let mut scene = Scene::start().await;
    scene.recorder.behave("job-1", [Behaviour::HangUp, Behaviour::Hold]);
    let worker = Worker::spawn(&scene.options());
    scene.ledger.enqueue(LOW, &ids("job", 1)).await;
    scene.recorder.wait_started("job-1", 2).await;
    let again = scene.recorder.runs()[1].job();
    assert_eq!((&again["deaths"], &again["retries"]), (&json!(1), &json!(0)), "{again}");
    assert_eq!(again["interruptions"], 0, "it did not run alone");
    assert_eq!(worker.metric("jobs_interrupted_total", &[("queue", "low")]).await, Some(1.0));
    scene.recorder.release_all();
    let places = scene.ledger.until_completed(SOON, 1).await;
    assert_eq!(places.counts(), [0, 0, 0, 0, 1, 0]);
}

#[tokio::test]
async fn a_job_that_kills_its_handler_every_time_is_buried_as_poison() {
    let mut scene = Scene::start().await;
    scene.recorder.behave("killer", std::iter::repeat_n(Behaviour::HangUp, 20));
    let _worker = Worker::spawn(&scene.options().env("WORKER_COUNT", 4));
    scene.ledger.enqueue(LOW, &["killer".to_owned(), "other".to_owned()]).await;
    let places = scene.ledger.until(SOON, "the dead letter", |places| places.dead.len() == 1).await;
    assert_eq!((&places.dead[0]["id"], &places.dead[0]["reason"]), (&json!("killer"), &json!("poison")));
    scene.ledger.until_completed(SOON, 1).await;
    assert_eq!(scene.recorder.starts("other"), 1);
    println!("a job that kills its handler, 4 slots: buried after {} runs", scene.recorder.starts("killer"));
}

#[tokio::test]
async fn a_run_that_passes_its_deadline_has_failed() {
    let mut scene = Scene::start().await;
    scene.recorder.by_default(Behaviour::Hold);
    let options = scene.options().env("WORKER_HANDLER_HTTP_TIMEOUT", "300ms").env("WORKER_MAX_RETRIES", 0);
    let _worker = Worker::spawn(&options);
    scene.ledger.enqueue(LOW, &ids("job", 1)).await;
    let places = scene.ledger.until(SOON, "the dead letter", |places| places.dead.len() == 1).await;
    assert_eq!((&places.dead[0]["reason"], &places.dead[0]["retries"]), (&json!("timeout"), &json!(1)));
    assert_eq!(scene.ledger.command::<u64>(&["LLEN", DEAD]).await, 1);
}
