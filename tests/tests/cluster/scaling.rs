//! How many workers there are, and whether they take jobs.
use e2e::kubernetes::{LOW, Namespace, patiently};

#[tokio::test]
async fn two_hundred_and_fifty_jobs_start_three_workers_in_one_step() {
    let space = Namespace::create("burst").await;
    space.queue("burst", "{worker: {handler: {simulate: {base: 200ms}}}}").await;
    space.await_ready("burst").await;
    let redis = space.managed("burst").await;
    redis.push(LOW, 0..250).await;
    redis.await_completed(0..250).await;
    patiently("what was decided", async || {
        let scaling = space.get("jobqueue", "burst").await["status"]["scaling"].clone();
        if scaling["replicas"] == 3 && scaling["reason"] == "250 jobs, 100 a worker" {
            Ok(())
        } else {
            Err(scaling)
        }
    })
    .await;
    assert_eq!(space.events("Scaled").await, ["Scaled workers from 0 to 3: 250 jobs, 100 a worker"]);
    space.delete().await;
}

#[tokio::test]
async fn without_jobs_the_workers_go_again() {
    let space = Namespace::create("down").await;
    space.queue("down", "{scaling: {scaleDownDelay: 3s}}").await;
    space.await_ready("down").await;
    let redis = space.managed("down").await;
    redis.push(LOW, 0..5).await;
    redis.await_completed(0..5).await;
    space.await_asked_for("down", 0).await;
    space.await_condition("down", "Ready", "True/Ready: No jobs, no workers").await;
    space.delete().await;
}

#[tokio::test]
async fn in_mode_manual_kubectl_scale_is_obeyed() {
    let space = Namespace::create("manual").await;
    space.queue("manual", "{scaling: {mode: Manual}}").await;
    space.await_ready("manual").await;
    space.await_asked_for("manual", 1).await;
    space.kubectl(&["scale", "jobq/manual", "--replicas=2"]).await.expect("scaled");
    space.await_asked_for("manual", 2).await;
    space.await_condition("manual", "WorkersAvailable", "True/Available: 2 of 2").await;
    space.kubectl(&["scale", "jobq/manual", "--replicas=0"]).await.expect("scaled");
    space.await_asked_for("manual", 0).await;
    space.delete().await;
}

#[tokio::test]
async fn somebody_who_scales_the_deployment_is_overruled() {
    let space = Namespace::create("overruled").await;
    space.queue("overruled", "{scaling: {mode: Manual}, replicas: 1}").await;
    space.await_ready("overruled").await;
    space.kubectl(&["scale", "deployment/overruled-worker", "--replicas=3"]).await.expect("scaled");
    space.await_asked_for("overruled", 1).await;
    space.delete().await;
}

#[tokio::test]
async fn somebody_who_scales_the_deployment_while_workers_drain_is_overruled() {
    let space = Namespace::create("interfered").await;
    space.queue("interfered", "{scaling: {mode: Manual}, replicas: 3}").await;
    space.await_ready("interfered").await;
    space.await_condition("interfered", "WorkersAvailable", "True/Available: 3 of 3").await;
    // More than is wished for, at the very moment at which fewer are.
    space.patch("interfered", r#"{"spec": {"replicas": 2}}"#).await;
    space.kubectl(&["scale", "deployment/interfered-worker", "--replicas=5"]).await.expect("scaled");
    space.await_asked_for("interfered", 2).await;
    space.await_condition("interfered", "WorkersAvailable", "True/Available: 2 of 2").await;
    let scaled = space.events("Scaled").await;
    assert!(scaled.iter().any(|note| note.starts_with("Scaled workers from")), "{scaled:?}");
    space.delete().await;
}

#[tokio::test]
async fn in_mode_auto_whoever_scales_is_told_that_it_has_no_effect() {
    let space = Namespace::create("ignored").await;
    space.queue("ignored", "{}").await;
    space.await_ready("ignored").await;
    space.kubectl(&["scale", "jobq/ignored", "--replicas=2"]).await.expect("scaled");
    patiently("an event", async || {
        let events = space.events("ScaleIgnored").await;
        if events.len() == 1 && events[0].contains("spec.replicas = 2 has no effect") {
            Ok(())
        } else {
            Err(events)
        }
    })
    .await;
    assert_eq!(space.asked_for("ignored").await, 0);
    space.delete().await;
}

#[tokio::test]
async fn a_paused_queue_keeps_its_jobs_until_it_is_resumed() {
    let space = Namespace::create("paused").await;
    space.queue("paused", "{paused: true, scaling: {minReplicas: 1}}").await;
    space.await_condition("paused", "Ready", "True/Paused").await;
    let redis = space.managed("paused").await;
    redis.push(LOW, 0..5).await;
    // By the time that the figures are told, the worker has asked for jobs many times.
    patiently("five waiting jobs in the status", async || {
        let status = space.get("jobqueue", "paused").await["status"].clone();
        if status["waiting"] == 5 { Ok(()) } else { Err(status["waiting"].clone()) }
    })
    .await;
    assert_eq!(redis.count(&["LLEN", LOW]).await, 5);
    space.patch("paused", r#"{"spec": {"paused": false}}"#).await;
    redis.await_completed(0..5).await;
    space.await_condition("paused", "Ready", "True/Ready").await;
    space.delete().await;
}

#[tokio::test]
async fn in_mode_manual_a_horizontal_pod_autoscaler_is_obeyed() {
    let space = Namespace::create("hpa").await;
    space.queue("hpa", "{scaling: {mode: Manual}, replicas: 1}").await;
    space.await_ready("hpa").await;
    space.await_asked_for("hpa", 1).await;
    // Without any metric it still keeps to its bounds.
    let autoscaler = "apiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\nmetadata: {name: hpa}\nspec: {scaleTargetRef: \
        {apiVersion: jobqueue.dev/v1alpha1, kind: JobQueue, name: hpa}, minReplicas: 2, maxReplicas: 3, metrics: \
        [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 50}}}]}\n";
    space.apply(autoscaler).await;
    space.await_asked_for("hpa", 2).await;
    assert_eq!(space.get("jobqueue", "hpa").await["spec"]["replicas"], 2);
    space.delete().await;
}

#[tokio::test]
async fn an_unreadable_redis_changes_nothing_and_the_queue_says_so() {
    let space = Namespace::create("unreadable").await;
    let redis = space.external("redis").await;
    let spec = space.on(
        "redis",
        "scaling: {scaleDownDelay: 2s, backlogPerWorker: 2}, worker: {handler: {simulate: {base: 1s}}}",
    );
    space.queue("unreadable", &spec).await;
    space.await_ready("unreadable").await;
    redis.push(LOW, 0..200).await;
    space.await_asked_for("unreadable", 10).await;
    // It accepts connections and answers nobody.
    redis.ask(&["CLIENT", "PAUSE", "20000", "ALL"]).await.expect("paused");
    space.await_condition("unreadable", "RedisReachable", "False/Unreachable").await;
    space.await_condition("unreadable", "ScalingActive", "False/Holding").await;
    assert_eq!(space.asked_for("unreadable").await, 10);
    space.await_condition("unreadable", "ScalingActive", "True/Following").await;
    redis.await_completed(0..200).await;
    space.await_asked_for("unreadable", 0).await;
    space.delete().await;
}

#[tokio::test]
async fn a_redis_that_comes_back_empty_sends_nobody_home_before_the_delay_is_over() {
    let space = Namespace::create("emptied").await;
    let redis = space.external("redis").await;
    // The jobs last longer than Redis is away. They are gone with it, and so are the records of who runs them: what is
    // promised is that an empty Redis is no reason to send workers away at once.
    let spec = space.on(
        "redis",
        "scaling: {scaleDownDelay: 30s, backlogPerWorker: 2}, worker: {concurrency: 2, handler: {simulate: {base: 30s}}}",
    );
    space.queue("emptied", &spec).await;
    space.await_ready("emptied").await;
    redis.push(LOW, 0..6).await;
    space.await_asked_for("emptied", 3).await;
    redis.await_running(6).await;
    let before = space.workers("emptied").await;
    space.kubectl(&["delete", "pod", "redis", "--wait=true"]).await.expect("deleted");
    space.await_condition("emptied", "RedisReachable", "False/Unreachable").await;
    let redis = space.external("redis").await;
    space.await_condition("emptied", "RedisReachable", "True").await;
    assert_eq!(redis.count(&["LLEN", "jobqueue:completed"]).await, 0, "it has forgotten everything");
    assert_eq!((space.asked_for("emptied").await, space.workers("emptied").await), (3, before.clone()));
    // The same three serve it, as before: none of them was sent home, or told to take no more jobs.
    redis.push(LOW, 10..16).await;
    redis.await_running(6).await;
    assert_eq!(space.workers("emptied").await, before);
    let draining = space.events("Draining").await;
    assert!(draining.is_empty(), "{draining:?}");
    space.delete().await;
}

#[tokio::test]
async fn a_job_whose_backoff_is_over_wakes_a_queue_without_workers() {
    let space = Namespace::create("woken").await;
    let worker = "{handler: {simulate: {base: 100ms, failGlob: '/data/*'}}}";
    let retry = "{maxRetries: 1, backoff: {base: 20s, max: 20s}}";
    space
        .queue("woken", &format!("{{worker: {worker}, retry: {retry}, scaling: {{scaleDownDelay: 1s}}}}"))
        .await;
    space.await_ready("woken").await;
    let redis = space.managed("woken").await;
    redis.push(LOW, 0..1).await;
    // It has failed and waits for its next attempt; nobody is kept for that.
    patiently("a delayed job and no workers", async || {
        let delayed = redis.count(&["ZCARD", "jobqueue:delayed:low"]).await;
        let workers = space.asked_for("woken").await;
        if (delayed, workers) == (1, 0) { Ok(()) } else { Err((delayed, workers)) }
    })
    .await;
    patiently("the end of its last attempt", async || {
        match redis.count(&["LLEN", "jobqueue:dead_letter"]).await {
            1 => Ok(()),
            none => Err(none),
        }
    })
    .await;
    assert_eq!(redis.count(&["HGET", "jobqueue:counters", "reserved"]).await, 2, "it was tried twice");
    space.await_asked_for("woken", 0).await;
    space.delete().await;
}

#[tokio::test]
async fn behind_an_open_breaker_nobody_is_started_but_one_who_tries() {
    let space = Namespace::create("breaker").await;
    let worker = "{handler: {simulate: {base: 10ms, failGlob: '/data/?.txt'}}}";
    let breaker = "{minSamples: 5, cooldown: 5m}";
    let scaling = "{backlogPerWorker: 10, scaleDownDelay: 5m}";
    let retry = "{maxRetries: 0}";
    space
        .queue(
            "breaker",
            &format!("{{worker: {worker}, circuitBreaker: {breaker}, scaling: {scaling}, retry: {retry}}}"),
        )
        .await;
    space.await_ready("breaker").await;
    let redis = space.managed("breaker").await;
    // Jobs 0 to 9 fail: one worker, whose breaker opens.
    redis.push(LOW, 0..10).await;
    patiently("an open breaker", async || {
        let open = space.metric("jobqueue_breaker_open", "breaker").await;
        if open > 0.5 { Ok(()) } else { Err(open) }
    })
    .await;
    redis.push(LOW, 100..300).await;
    patiently("the jobs that wait, as the operator sees them", async || {
        let waiting = space.metric("queue_length", "breaker").await;
        if waiting > 199.0 { Ok(()) } else { Err(waiting) }
    })
    .await;
    assert_eq!(space.asked_for("breaker").await, 1);
    // As it is for the next leader, who finds no workers to ask.
    assert_eq!(redis.ask(&["GET", "jobqueue:breaker:low"]).await.as_deref(), Ok("open"));
    space.delete().await;
}

#[tokio::test]
async fn a_breaker_that_was_open_when_the_last_worker_went_gets_one_who_tries_first() {
    let space = Namespace::create("probe").await;
    space
        .queue("probe", "{scaling: {backlogPerWorker: 10}, worker: {handler: {simulate: {base: 1s}}}}")
        .await;
    space.await_ready("probe").await;
    let redis = space.managed("probe").await;
    redis.ask(&["SET", "jobqueue:breaker:low", "open", "PX", "600000"]).await.expect("remembered");
    redis.push(LOW, 0..50).await;
    redis.await_completed(0..50).await;
    let scaled = space.events("Scaled").await;
    let first = "Scaled workers from 0 to 1: 50 jobs behind an open breaker, one worker to try it";
    assert!(scaled.iter().any(|note| note == first), "{scaled:?}");
    // What the one has not tried yet it does not call closed: when more are started, 20 (minSamples) of the 50 are done.
    assert!(!scaled.iter().any(|note| note.contains(" to 4:") || note.contains(" to 5:")), "{scaled:?}");
    space.delete().await;
}
