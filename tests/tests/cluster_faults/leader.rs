//! Operators come and go.
use std::process::Stdio;
use std::time::{Duration, Instant};

use e2e::kubernetes::{
    LOW, Namespace, OPERATOR_NAMESPACE, PATIENCE, kubectl, on_the_test_cluster, patiently, process_of,
};
use e2e::wait::eventually;
use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};

use crate::{alone, await_operators, leader, scale_operators};

/// What the project promises, in seconds.
const FAILOVER: u64 = 15;
/// How often the others look at the lease, and how long one look may take.
const LOOKS: u64 = 2 + 3;

/// Waits until somebody else leads; how long it took. That it takes no longer than was promised is for the lease to say.
async fn await_another_leader(before: &str) -> Duration {
    let began = Instant::now();
    let path = "jsonpath={.spec.leaseDurationSeconds}";
    let lease = ["-n", OPERATOR_NAMESPACE, "get", "lease", "jobqueue-operator", "-o", path];
    let lasts: u64 = kubectl(&lease).await.expect("a lease").parse().expect("seconds");
    assert!(lasts + LOOKS <= FAILOVER, "the lease lasts {lasts} s");
    patiently("another leader", async || {
        let now = leader().await?;
        if now.is_empty() || now == before { Err(now) } else { Ok(()) }
    })
    .await;
    began.elapsed()
}

/// Kills the leader, and says how long it took until another one led.
async fn kill_leader() -> Duration {
    let before = leader().await.expect("a leader");
    let process = process_of(OPERATOR_NAMESPACE, &before, "operator").await;
    // The pod is to go as well, or its next container would find its own name on the lease and go on with it.
    let delete =
        ["-n", OPERATOR_NAMESPACE, "delete", "pod", &before, "--grace-period=0", "--force", "--wait=false"];
    kill_process(process, Signal::KILL).expect("killed");
    kubectl(&delete).await.expect("deleted");
    await_another_leader(&before).await
}

#[tokio::test]
async fn when_the_leader_is_killed_the_other_operator_goes_on() {
    let _turn = alone().await;
    if !on_the_test_cluster() {
        return;
    }
    let space = Namespace::create("killed").await;
    space.queue("before", "{}").await;
    space.await_ready("before").await;
    let took = kill_leader().await;
    println!("another operator led {took:.1?} after the first was killed");
    space.queue("after", "{}").await;
    space.await_ready("after").await;
    let redis = space.managed("before").await;
    redis.push(LOW, 0..3).await;
    redis.await_completed(0..3).await;
    space.delete().await;
}

#[tokio::test]
async fn a_drain_goes_on_under_the_next_leader_and_no_job_is_interrupted() {
    let _turn = alone().await;
    if !on_the_test_cluster() {
        return;
    }
    let manual = "{replicas: 2, scaling: {mode: Manual}, worker: WORKER}";
    hand_over("handed-over", manual, r#"{"spec": {"replicas": 1}}"#).await;
}

#[tokio::test]
async fn a_drain_that_was_decided_on_by_load_goes_on_under_the_next_leader_too() {
    let _turn = alone().await;
    if !on_the_test_cluster() {
        return;
    }
    let auto = "{scaling: {minReplicas: 1, backlogPerWorker: 2, scaleDownDelay: 5s}, worker: WORKER}";
    hand_over("handed-auto", auto, r#"{"spec": {"scaling": {"backlogPerWorker": 4}}}"#).await;
}

/// Two workers with two jobs each, of which one is too many after the patch, and then another leader.
async fn hand_over(name: &str, spec: &str, patch: &str) {
    let space = Namespace::create(name).await;
    // Longer than it takes until another leads; and whoever is stopped gives its jobs back instead of ending them.
    let worker = "{concurrency: 2, drainTimeout: 1s, handler: {simulate: {base: 45s}}}";
    space.queue("busy", &spec.replace("WORKER", worker)).await;
    space.await_ready("busy").await;
    let redis = space.managed("busy").await;
    redis.push(LOW, 0..4).await;
    redis.await_running(4).await;
    space.patch("busy", patch).await;
    let before = patiently("a draining worker", async || {
        let words = words(&space).await;
        if words.len() == 1 { Ok(words) } else { Err(words) }
    })
    .await;
    kill_leader().await;
    assert_eq!(space.asked_for("busy").await, 2, "nobody goes before its jobs are done");
    patiently("a draining worker in the eyes of the next leader", async || {
        let draining = space.metric("jobqueue_workers_draining", "busy").await;
        if draining > 0.5 { Ok(()) } else { Err(draining) }
    })
    .await;
    assert_eq!(words(&space).await, before, "it is the same drain: nobody was told to work again");
    space.await_asked_for("busy", 1).await;
    redis.await_completed(0..4).await;
    for (id, job) in redis.completed_jobs().await {
        assert_eq!((&job["retries"], &job["interrupted_by"]), (&json!(0), &Value::Null), "{id}");
    }
    assert_eq!(redis.count(&["HGET", "jobqueue:counters", "reserved"]).await, 4, "each was taken once");
    await_operators(2).await;
    space.delete().await;
}

/// The words of the drains that are under way, each with its pod.
async fn words(space: &Namespace) -> Vec<(String, String)> {
    let pods = space.list("pods", "jobqueue.dev/queue=busy,app.kubernetes.io/component=worker").await;
    let word = |pod: &Value| {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        Some((
            text(&pod["metadata"]["name"])?,
            text(&pod["metadata"]["annotations"]["jobqueue.dev/draining"])?,
        ))
    };
    pods.iter().filter_map(word).collect()
}

#[tokio::test]
async fn a_leader_that_hung_finds_another_one_leading_and_ends() {
    let _turn = alone().await;
    if !on_the_test_cluster() {
        return;
    }
    let before = leader().await.expect("a leader");
    let process = process_of(OPERATOR_NAMESPACE, &before, "operator").await;
    let path = "jsonpath={.status.containerStatuses[0].restartCount}";
    // Of a pod that is gone nothing is said: it has ended too.
    let get = ["-n", OPERATOR_NAMESPACE, "get", "pod", &before, "--ignore-not-found", "-o", path];
    let restarts = kubectl(&get).await.expect("the leader's pod");
    kill_process(process, Signal::STOP).expect("stopped");
    let took = await_another_leader(&before).await;
    println!("another operator led {took:.1?} after the first hung");
    kill_process(process, Signal::CONT).expect("continued");
    patiently("the end of the first", async || {
        let now = kubectl(&get).await?;
        if now == restarts { Err(now) } else { Ok(()) }
    })
    .await;
    assert_ne!(leader().await.expect("a leader"), before);
    await_operators(2).await;
}

#[tokio::test]
async fn a_leader_that_is_stopped_in_order_gives_its_lease_back() {
    let _turn = alone().await;
    let mut watch = tokio::process::Command::new("kubectl")
        .args(["-n", OPERATOR_NAMESPACE, "get", "lease", "jobqueue-operator", "--watch"])
        .args(["-o", r#"jsonpath={.spec.holderIdentity}{"\n"}"#])
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut holders = BufReader::new(watch.stdout.take().unwrap()).lines();
    let mut holder = async || holders.next_line().await.unwrap().expect("a lease that is watched");
    // From here on none is missed.
    let before = holder().await;
    let stopped = Instant::now();
    kubectl(&["-n", OPERATOR_NAMESPACE, "delete", "pod", &before, "--wait=false"]).await.expect("deleted");
    let mut seen = before.clone();
    eventually(PATIENCE, "another leader", async || {
        let next = holder().await;
        assert!(next == before || next.is_empty() || seen.is_empty(), "{next} took it from {seen}");
        seen = next;
        if seen == before || seen.is_empty() { Err(seen.clone()) } else { Ok(()) }
    })
    .await;
    println!("another operator led {:.1?} after the first was told to stop", stopped.elapsed());
    await_operators(2).await;
}

#[tokio::test]
async fn the_jobs_of_pods_that_went_while_nobody_led_run_elsewhere() {
    let _turn = alone().await;
    let space = Namespace::create("unled").await;
    // Heartbeats live for ten minutes: only a leader that misses the pods can have brought the jobs back.
    let worker = "{concurrency: 5, heartbeatTtl: 10m, handler: {simulate: {base: 20s}}}";
    space.queue("unled", &format!("{{worker: {worker}, scaling: {{minReplicas: 2}}}}")).await;
    space.await_condition("unled", "WorkersAvailable", "True/Available: 2 of 2").await;
    let redis = space.managed("unled").await;
    redis.push(LOW, 0..5).await;
    redis.await_running(5).await;
    scale_operators(0).await;
    for pod in space.workers("unled").await {
        space.kubectl(&["delete", "pod", &pod, "--force", "--grace-period=0"]).await.expect("deleted");
    }
    let back = Instant::now();
    scale_operators(2).await;
    patiently("5 jobs that run elsewhere", async || {
        let held = redis.held().await;
        let again = held.iter().filter(|job| job["interrupted_by"] == "deleted").count();
        if again == 5 { Ok(()) } else { Err(held) }
    })
    .await;
    println!(
        "5 jobs of pods that went while nobody led ran elsewhere {:.1?} after operators started",
        back.elapsed()
    );
    redis.await_completed(0..5).await;
    for (id, job) in redis.completed_jobs().await {
        assert!(job["deaths"].is_null(), "{id} is above suspicion");
    }
    space.delete().await;
}

#[tokio::test]
async fn workers_go_on_without_an_operator() {
    let _turn = alone().await;
    let space = Namespace::create("alone").await;
    let worker = "{heartbeatTtl: 5s, handler: {simulate: {base: 500ms, failGlob: '/data/1?.txt'}}}";
    let retry = "{maxRetries: 1, backoff: {base: 1s}}";
    space.queue("alone", &format!("{{scaling: {{minReplicas: 2}}, worker: {worker}, retry: {retry}}}")).await;
    space.await_condition("alone", "WorkersAvailable", "True/Available").await;
    let redis = space.managed("alone").await;
    scale_operators(0).await;
    // Jobs 10 to 19 fail, are tried again and become dead letters; a worker that dies is reaped by its fellow.
    redis.push(LOW, 0..40).await;
    let pods = space.list("pods", "app.kubernetes.io/component=worker").await;
    let pod = pods[0]["metadata"]["name"].as_str().expect("a name");
    space.kubectl(&["delete", "pod", pod, "--grace-period=0", "--force"]).await.expect("deleted");
    patiently("all jobs to end", async || {
        let ended = (
            redis.count(&["LLEN", "jobqueue:completed"]).await,
            redis.count(&["LLEN", "jobqueue:dead_letter"]).await,
        );
        if ended == (30, 10) { Ok(()) } else { Err(ended) }
    })
    .await;
    scale_operators(2).await;
    space.queue("after", "{}").await;
    space.await_ready("after").await;
    space.delete().await;
}
