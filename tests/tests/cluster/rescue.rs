//! Jobs of workers that Kubernetes saw die. Heartbeats live for ten minutes here: only what happened to the pod can have
//! brought the jobs back.
use std::time::{Duration, Instant};

use e2e::kubernetes::{LOW, Namespace, Redis, given, job, on_the_test_cluster, patiently, process_of, run};
use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};

const LONG_HEARTBEAT: &str = "heartbeatTtl: 10m";

/// How many different jobs are completed. They are read where they are, one by one: together they are 54 MB.
const DIFFERENT: &str = "local ids, count = {}, 0 for at = 0, redis.call('LLEN', 'jobqueue:completed') - 1 do \
    local id = string.match(redis.call('LINDEX', 'jobqueue:completed', at), '\"id\":\"(job%-%d+)\"') \
    if id and not ids[id] then ids[id] = true count = count + 1 end end return count";

/// Waits until this many of the jobs that run, or have run, say this of their past.
async fn await_cause(redis: &Redis<'_>, cause: &str, count: usize) {
    patiently(&format!("{count} jobs interrupted by {cause}"), async || {
        let mut held = redis.held().await;
        held.extend(redis.completed_jobs().await.into_values());
        let those = held.iter().filter(|job| job["interrupted_by"] == cause).count();
        if those >= count { Ok(()) } else { Err(held) }
    })
    .await;
}

/// How long ago the last container of a queue's worker pods came to its end. Kubernetes notes that in whole seconds, rounded
/// down, so it is up to one second less.
async fn since_the_end(space: &Namespace, queue: &str, statuses: &str) -> String {
    let labels = format!("jobqueue.dev/queue={queue},app.kubernetes.io/component=worker");
    let pods = space.list("pods", &labels).await;
    let ends = pods.iter().filter_map(|pod| pod["status"][statuses].as_array()).flatten().filter_map(|one| {
        let of = |state: &str| one[state]["terminated"]["finishedAt"].as_str().map(str::to_owned);
        of("state").or_else(|| of("lastState"))?.parse::<jiff::Timestamp>().ok()
    });
    let Some(end) = ends.max() else { panic!("no container has ended: {pods:?}") };
    let ago = Duration::try_from(jiff::Timestamp::now().duration_since(end)).unwrap_or_default();
    format!("{ago:.1?}")
}

#[tokio::test]
async fn the_jobs_of_a_pod_deleted_by_force_run_elsewhere_in_seconds() {
    let space = Namespace::create("forced").await;
    let worker = format!("{{concurrency: 5, {LONG_HEARTBEAT}, handler: {{simulate: {{base: 20s}}}}}}");
    space.queue("forced", &format!("{{worker: {worker}, scaling: {{minReplicas: 2}}}}")).await;
    space.await_condition("forced", "WorkersAvailable", "True/Available: 2 of 2").await;
    let redis = space.managed("forced").await;
    redis.push(LOW, 0..5).await;
    redis.await_running(5).await;
    let deleted = Instant::now();
    for pod in space.workers("forced").await {
        space.kubectl(&["delete", "pod", &pod, "--force", "--grace-period=0"]).await.expect("deleted");
    }
    await_cause(&redis, "deleted", 5).await;
    println!("5 jobs ran elsewhere {:.1?} after their pods were deleted by force", deleted.elapsed());
    redis.await_completed(0..5).await;
    for (id, job) in redis.completed_jobs().await {
        assert_eq!((&job["interrupted_by"], &job["retries"]), (&json!("deleted"), &json!(0)), "{id}");
        assert!(job["deaths"].is_null(), "{id} is above suspicion");
    }
    let moved = space.metric("reaper_jobs_moved_total", "forced").await;
    assert!((moved - 5.0).abs() < 0.5, "{moved}");
    space.delete().await;
}

#[tokio::test]
async fn the_jobs_of_a_container_started_again_in_place_are_run_again() {
    if !on_the_test_cluster() {
        return;
    }
    let space = Namespace::create("again").await;
    let worker = format!("{{concurrency: 3, {LONG_HEARTBEAT}, handler: {{simulate: {{base: 15s}}}}}}");
    space.queue("again", &format!("{{worker: {worker}, scaling: {{minReplicas: 1}}}}")).await;
    space.await_condition("again", "WorkersAvailable", "True/Available: 1 of 1").await;
    let redis = space.managed("again").await;
    redis.push(LOW, 0..3).await;
    redis.await_running(3).await;
    let pod = space.workers("again").await.remove(0);
    let killed = Instant::now();
    kill_process(process_of(&space.name, &pod, "worker").await, Signal::KILL).expect("killed");
    // Each takes two of three slots now: any of them may have done it.
    await_cause(&redis, "crashed", 1).await;
    println!("3 jobs ran again {:.1?} after their container was killed", killed.elapsed());
    redis.await_completed(0..3).await;
    for (id, job) in redis.completed_jobs().await {
        assert_eq!((&job["interrupted_by"], &job["deaths"]), (&json!("crashed"), &json!(1)), "{id}");
    }
    assert_eq!(space.workers("again").await, [pod], "in the same pod");
    space.delete().await;
}

#[tokio::test]
async fn the_jobs_of_a_worker_out_of_memory_say_so() {
    let space = Namespace::create("oom").await;
    let resources = "resources: {limits: {memory: 40Mi}}";
    let worker = format!(
        "{{concurrency: 80, drainTimeout: 1s, {LONG_HEARTBEAT}, {resources}, handler: {{simulate: {{base: 300s}}}}}}"
    );
    space.queue("oom", &format!("{{paused: true, worker: {worker}, scaling: {{minReplicas: 1}}}}")).await;
    space.await_condition("oom", "WorkersAvailable", "True/Available: 1 of 1").await;
    let redis = space.managed("oom").await;
    // Together they are more than the worker may use.
    let filling = "x".repeat(900_000);
    for number in 0..60 {
        let mut large = job(number);
        large["filling"] = json!(filling);
        redis.push_all(LOW, &[large]).await;
    }
    space.patch("oom", r#"{"spec": {"paused": false}}"#).await;
    patiently("a job that runs again and was interrupted for want of memory", async || {
        const LOOK: &str = "for _, list in ipairs(redis.call('KEYS', 'jobqueue:worker:*')) do \
            local job = redis.call('LINDEX', list, 0) if job and string.find(job, '\"interrupted_by\":\"oom\"', 1, true) then return 1 end end return 0";
        let found = redis.ask(&["EVAL", LOOK, "0"]).await.unwrap_or_default();
        if found == "1" { Ok(()) } else { Err(found) }
    })
    .await;
    println!(
        "jobs of a worker out of memory ran again {} after its end",
        since_the_end(&space, "oom", "containerStatuses").await
    );
    // With enough memory, and in a moment instead of minutes, all of them are done: none was lost, none is blamed.
    space
        .patch(
            "oom",
            r#"{"spec": {"worker": {"resources": {"limits": {"memory": "256Mi"}}, "handler": {"simulate": {"base": "100ms"}}}}}"#,
        )
        .await;
    patiently("all jobs to be completed", async || {
        let completed = redis.count(&["LLEN", "jobqueue:completed"]).await;
        if completed >= 60 { Ok(()) } else { Err(completed) }
    })
    .await;
    assert_eq!(redis.count(&["EVAL", DIFFERENT, "0"]).await, 60, "every job has run in the end");
    assert_eq!(redis.count(&["LLEN", "jobqueue:completed"]).await, 60, "each was settled once");
    assert_eq!(redis.count(&["LLEN", "jobqueue:dead_letter"]).await, 0);
    space.delete().await;
}

#[tokio::test]
async fn a_job_that_takes_all_memory_of_the_app_ends_among_the_dead_letters_with_that_reason() {
    let space = Namespace::create("apps").await;
    let image = given("APP_IMAGE");
    let app = format!("{{name: app, image: '{image}', resources: {{limits: {{memory: 64Mi}}}}}}");
    let template = format!("{{spec: {{containers: [{app}]}}}}");
    let worker = format!(
        "{{concurrency: 4, {LONG_HEARTBEAT}, handler: {{http: {{}}}}, app: {{healthPath: /health}}, template: {template}}}"
    );
    let retry = "{maxInterruptions: 1}";
    space.queue("apps", &format!("{{worker: {worker}, retry: {retry}, scaling: {{minReplicas: 1}}}}")).await;
    space.await_condition("apps", "WorkersAvailable", "True/Available: 1 of 1").await;
    let redis = space.managed("apps").await;
    let mut jobs: Vec<Value> = (0..3).map(job).collect();
    for job in &mut jobs {
        job["duration_ms"] = json!(3000);
    }
    let mut hungry = job(3);
    hungry["memory_mib"] = json!(500);
    jobs.push(hungry);
    redis.push_all(LOW, &jobs).await;
    let letter = patiently("a dead letter", async || {
        let letter = redis.ask(&["LINDEX", "jobqueue:dead_letter", "0"]).await.unwrap_or_default();
        serde_json::from_str::<Value>(&letter).map_err(|_| letter)
    })
    .await;
    assert_eq!(
        (&letter["id"], &letter["reason"], &letter["interrupted_by"]),
        (&json!("job-3"), &json!("oom"), &json!("oom"))
    );
    println!(
        "a dead letter {} after the end of the app",
        since_the_end(&space, "apps", "initContainerStatuses").await
    );
    redis.await_completed(0..3).await;
    assert_eq!(redis.count(&["LLEN", "jobqueue:dead_letter"]).await, 1, "nobody else is blamed");
    space.delete().await;
}

#[tokio::test]
async fn an_evicted_pod_gives_its_jobs_back_and_nothing_is_counted_against_them() {
    let space = Namespace::create("evicted").await;
    let worker = format!(
        "{{concurrency: 3, drainTimeout: 1s, {LONG_HEARTBEAT}, handler: {{simulate: {{base: 15s}}}}}}"
    );
    space.queue("evicted", &format!("{{worker: {worker}, scaling: {{minReplicas: 1}}}}")).await;
    space.await_condition("evicted", "WorkersAvailable", "True/Available: 1 of 1").await;
    let redis = space.managed("evicted").await;
    redis.push(LOW, 0..3).await;
    redis.await_running(3).await;
    let pod = space.workers("evicted").await.remove(0);
    let eviction = json!({ "apiVersion": "policy/v1", "kind": "Eviction", "metadata": { "name": pod, "namespace": space.name } });
    let path = format!("/api/v1/namespaces/{}/pods/{pod}/eviction", space.name);
    patiently("the eviction", async || {
        // Refused while the disruption budget has not heard that the pod is well.
        run("kubectl", &["create", "--raw", &path, "-f", "-"], Some(&eviction.to_string())).await
    })
    .await;
    redis.await_completed(0..3).await;
    assert_eq!(redis.count(&["HGET", "jobqueue:counters", "reserved"]).await, 6, "each was begun twice");
    for (id, job) in redis.completed_jobs().await {
        assert_eq!((&job["retries"], &job["deaths"]), (&json!(0), &Value::Null), "{id}");
    }
    assert!(!space.workers("evicted").await.contains(&pod));
    space.delete().await;
}
