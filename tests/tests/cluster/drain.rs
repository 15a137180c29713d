//! Fewer workers, and no job interrupted.
#![allow(clippy::expect_used, reason = "a panic is the report")]
use std::process::Stdio;

use e2e::kubernetes::{LOW, Namespace, Redis, given, job, patiently};
use serde_json::{Value, json};
use tokio::process::{Child, Command};

/// Too short for the long jobs here: whoever is stopped while it runs one gives it back, and the test sees it.
const AT_ONCE: &str = "1s";

/// A queue whose app takes as long for a job as it says: 4 workers with 10 jobs each, which have so long for them when they
/// are stopped.
async fn start(space: &Namespace, drain: &str, more: &str) {
    let image = given("APP_IMAGE");
    let template = format!("{{spec: {{{more} containers: [{{name: app, image: '{image}'}}]}}}}");
    let worker = format!(
        "{{concurrency: 10, drainTimeout: {drain}, handler: {{http: {{timeout: 300s}}}}, app: {{healthPath: /health}}, template: {template}}}"
    );
    let scaling = "{backlogPerWorker: 10, scaleDownDelay: 3s}";
    space.queue("busy", &format!("{{worker: {worker}, scaling: {scaling}}}")).await;
    space.await_ready("busy").await;
}

/// Jobs that take so many seconds each, from this number on.
fn lasting(first: u32, count: u32, seconds: u32) -> Vec<Value> {
    (first..first + count)
        .map(|number| {
            let mut job = job(number);
            job["duration_ms"] = json!(seconds * 1000);
            job
        })
        .collect()
}

/// Every job has run once, without interruption: reserved once, and never given back.
async fn assert_uninterrupted(redis: &Redis<'_>, count: u32) {
    redis.await_completed(0..count).await;
    for (id, job) in redis.completed_jobs().await {
        assert_eq!((&job["retries"], &job["interrupted_by"]), (&json!(0), &Value::Null), "{id}");
    }
    assert_eq!(redis.count(&["HGET", "jobqueue:counters", "reserved"]).await, u64::from(count));
}

async fn await_draining(space: &Namespace) {
    patiently("draining workers in the status", async || {
        let workers = space.get("jobqueue", "busy").await["status"]["workers"].clone();
        if workers["draining"].as_i64() > Some(0) { Ok(()) } else { Err(workers) }
    })
    .await;
}

/// A state of the workers' Deployment.
#[derive(Debug, Clone, Copy)]
struct State {
    /// How many pods it is asked for.
    asked: i64,
    /// Some of its pods are of an older template.
    rolls: bool,
    /// None is, and its controller has seen the last change.
    calm: bool,
}

/// The states that the workers' Deployment goes through: also those between two looks, which a watch shows.
struct Watch {
    said: tempfile::NamedTempFile,
    _kubectl: Child,
}

impl Watch {
    async fn begin(space: &Namespace) -> Self {
        let said = tempfile::NamedTempFile::new().expect("a file");
        let path = "jsonpath={.metadata.generation},{.status.observedGeneration},{.spec.replicas},{.status.replicas},\
                    {.status.updatedReplicas}{\"\\n\"}";
        let kubectl = Command::new("kubectl")
            .args(["-n", &space.name, "get", "deployment", "busy-worker", "--watch", "-o", path])
            .stdin(Stdio::null())
            .stdout(said.reopen().expect("a file"))
            .kill_on_drop(true)
            .spawn()
            .expect("kubectl");
        let watch = Self { said, _kubectl: kubectl };
        patiently("the Deployment in the watch", async || !watch.states().is_empty()).await;
        watch
    }

    fn states(&self) -> Vec<State> {
        let said = std::fs::read_to_string(self.said.path()).expect("what kubectl said");
        // The last line may be half of one. What is 0 is left out of the status.
        let whole = said.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let states = whole.lines().map(|line| {
            let figures: Vec<i64> = line.split(',').map(|figure| figure.parse().unwrap_or(0)).collect();
            let [generation, observed, asked, all, updated] = figures[..] else { panic!("{line}") };
            let rolls = updated < all;
            State { asked, rolls, calm: observed >= generation && !rolls }
        });
        states.collect()
    }
}

#[tokio::test]
async fn workers_with_long_jobs_finish_them_before_they_go() {
    let space = Namespace::create("drain").await;
    start(&space, AT_ONCE, "").await;
    let redis = space.managed("busy").await;
    // Short ones and long ones, mixed over four workers: when the short ones are done, three workers are too many, and
    // each of them has a long one.
    let mut jobs = lasting(0, 28, 1);
    for (at, job) in lasting(28, 12, 25).into_iter().enumerate() {
        jobs.insert(at * 3, job);
    }
    redis.push_all(LOW, &jobs).await;
    space.await_asked_for("busy", 4).await;
    await_draining(&space).await;
    assert_uninterrupted(&redis, 40).await;
    space.await_asked_for("busy", 0).await;
    space.delete().await;
}

#[tokio::test]
async fn a_busy_pod_that_is_not_ready_is_not_taken_in_place_of_an_idle_one() {
    let space = Namespace::create("unready").await;
    // Whether a pod is ready is what the test says.
    start(&space, AT_ONCE, "readinessGates: [{conditionType: test/well}],").await;
    let redis = space.managed("busy").await;
    redis.push_all(LOW, &lasting(0, 20, 45)).await;
    space.await_asked_for("busy", 2).await;
    redis.await_running(20).await;
    // Neither is ready, both are busy; then two more workers come for short jobs, and those are well.
    let ill = space.workers("busy").await;
    redis.push_all(LOW, &lasting(20, 20, 1)).await;
    space.await_asked_for("busy", 4).await;
    patiently("four pods, of which two are well", async || {
        let pods = space.workers("busy").await;
        if pods.len() < 4 {
            return Err(pods);
        }
        for pod in pods.iter().filter(|pod| !ill.contains(pod)) {
            let patch = json!({ "status": { "conditions": [{ "type": "test/well", "status": "True" }] } });
            let arguments =
                ["patch", "pod", pod, "--subresource=status", "--type=strategic", "-p", &patch.to_string()];
            space.kubectl(&arguments).await.expect("patched");
        }
        Ok(())
    })
    .await;
    await_draining(&space).await;
    let held = redis.held().await;
    let long = held.iter().filter(|job| job["duration_ms"] == 45_000).count();
    assert_eq!(long, 20, "two are to go while those that are not well are busy");
    assert_uninterrupted(&redis, 40).await;
    space.await_asked_for("busy", 0).await;
    space.delete().await;
}

#[tokio::test]
async fn a_rollout_that_begins_while_workers_drain_interrupts_no_job() {
    let space = Namespace::create("rollout").await;
    // A rollout stops the pods of before whatever they do: they have longer for their jobs than those take. So a job of
    // somebody whom the operator sends away would not be interrupted either: that it sends nobody is looked for itself.
    start(&space, "25s", "").await;
    let redis = space.managed("busy").await;
    let mut jobs = lasting(0, 32, 1);
    for (at, job) in lasting(32, 8, 20).into_iter().enumerate() {
        jobs.insert(at * 4, job);
    }
    redis.push_all(LOW, &jobs).await;
    space.await_asked_for("busy", 4).await;
    await_draining(&space).await;
    let watch = Watch::begin(&space).await;
    space
        .patch("busy", r#"{"spec": {"worker": {"template": {"metadata": {"annotations": {"new": "yes"}}}}}}"#)
        .await;
    assert_uninterrupted(&redis, 40).await;
    space.await_asked_for("busy", 0).await;
    let states = patiently("no workers in the watch", async || {
        let states = watch.states();
        if states.last().is_some_and(|last| last.asked == 0) { Ok(states) } else { Err(states) }
    })
    .await;
    assert!(states.iter().any(|state| state.rolls), "it has seen the rollout: {states:?}");
    for pair in states.windows(2) {
        let fewer = pair[1].asked < pair[0].asked;
        assert!(
            !fewer || pair[0].calm,
            "nobody is sent away in the middle of a rollout: {pair:?} of {states:?}"
        );
    }
    space.delete().await;
}

#[tokio::test]
async fn workers_that_drain_resume_when_work_returns() {
    let space = Namespace::create("resume").await;
    start(&space, AT_ONCE, "").await;
    let redis = space.managed("busy").await;
    redis.push_all(LOW, &lasting(0, 20, 30)).await;
    space.await_asked_for("busy", 2).await;
    redis.await_running(20).await;
    let before = space.workers("busy").await;
    // Somebody decides that one is enough, then that it is not.
    space.patch("busy", r#"{"spec": {"scaling": {"mode": "Manual"}, "replicas": 1}}"#).await;
    await_draining(&space).await;
    space.patch("busy", r#"{"spec": {"replicas": 2}}"#).await;
    patiently("no draining worker", async || {
        let workers = space.get("jobqueue", "busy").await["status"]["workers"].clone();
        if workers["draining"] == 0 { Ok(()) } else { Err(workers) }
    })
    .await;
    assert_eq!(
        redis.ask(&["KEYS", "jobqueue:quiet:*"]).await.as_deref(),
        Ok(""),
        "nobody is told to be quiet"
    );
    assert_eq!(space.workers("busy").await, before, "and nobody has gone");
    assert_uninterrupted(&redis, 20).await;
    space.delete().await;
}

#[tokio::test]
async fn nobody_is_waited_for_longer_than_the_drain_timeout() {
    let space = Namespace::create("bounded").await;
    let worker = "{concurrency: 2, drainTimeout: 1s, handler: {simulate: {base: 30s}}}";
    let scaling = "{mode: Manual, drainTimeout: 4s}";
    space.queue("busy", &format!("{{replicas: 2, scaling: {scaling}, worker: {worker}}}")).await;
    space.await_ready("busy").await;
    let redis = space.managed("busy").await;
    redis.push(LOW, 0..4).await;
    redis.await_running(4).await;
    space.patch("busy", r#"{"spec": {"replicas": 1}}"#).await;
    let patched = std::time::Instant::now();
    space.await_asked_for("busy", 1).await;
    let took = patched.elapsed();
    println!("a busy worker went {took:.1?} after it was too many (drainTimeout 4 s)");
    assert!(redis.completed().await.expect("completed jobs").is_empty(), "no job has ended since");
    // It gave its two jobs back, and nobody blames them.
    patiently("two jobs that were given back", async || {
        let reserved = redis.count(&["HGET", "jobqueue:counters", "reserved"]).await;
        let completed = redis.completed().await?.len();
        if reserved == 6 { Ok(()) } else { Err(format!("{reserved} reserved, {completed} completed")) }
    })
    .await;
    let jobs = redis.held().await.into_iter().chain(redis.completed_jobs().await.into_values());
    for job in jobs {
        assert_eq!((&job["retries"], &job["deaths"]), (&json!(0), &Value::Null), "{job}");
    }
    space.delete().await;
}
