//! What takes minutes: figures to be read beside those of others, and the same guarantees over a longer time.
#![allow(clippy::expect_used, reason = "a panic is the report")]
use std::time::{Duration, Instant};

use e2e::kubernetes::{LOW, Namespace, patiently};

/// The numbers of workers of all `Scaled` events: from how many to how many.
async fn steps(space: &Namespace) -> Vec<(i64, i64)> {
    let number = |text: &str| text.parse::<i64>().unwrap_or(-1);
    let step = |note: String| {
        let words: Vec<&str> = note.split([' ', ':']).collect();
        let after = |word: &str| words.iter().position(|one| *one == word).map(|at| number(words[at + 1]));
        Some((after("from")?, after("to")?))
    };
    space.events("Scaled").await.into_iter().filter_map(step).collect()
}

/// When the workers were scaled for the first time, as the event says that follows the write at once. Whoever polls sees it
/// later, by the time that two programs take to start on a busy machine.
async fn first_scaled(space: &Namespace) -> jiff::Timestamp {
    let path = "jsonpath={range .items[*]}{.eventTime}{\"\\n\"}{end}";
    let times = space.kubectl(&["get", "events", "--field-selector", "reason=Scaled", "-o", path]).await;
    let times = times.expect("events");
    times.lines().filter_map(|time| time.parse().ok()).min().expect("an event that says when")
}

#[tokio::test]
#[ignore = "long: two hundred jobs of five seconds"]
async fn two_hundred_jobs_at_zero_workers_start_twenty_of_them_in_one_step() {
    let space = Namespace::create("keda").await;
    // As KEDA was measured: one job at a time in a worker, five a worker, twenty workers at most.
    let scaling = "{maxReplicas: 20, backlogPerWorker: 5}";
    let worker = "{concurrency: 1, handler: {simulate: {base: 5s}}}";
    space.queue("keda", &format!("{{worker: {worker}, scaling: {scaling}}}")).await;
    space.await_ready("keda").await;
    let redis = space.managed("keda").await;
    let (pushed, at) = (Instant::now(), jiff::Timestamp::now());
    redis.push(LOW, 0..200).await;
    space.await_asked_for("keda", 20).await;
    assert_eq!(steps(&space).await, [(0, 20)], "in one step");
    // Until the next look at most a second, then two reads and a write of the Kubernetes API.
    let took = first_scaled(&space).await.duration_since(at);
    println!("twenty workers were asked for {took:.1?} after the push began (KEDA: 47-69 s)");
    redis.await_completed(0..200).await;
    println!("all two hundred jobs were done {:.1?} after that (KEDA: 78-100 s)", pushed.elapsed());
    space.delete().await;
}

#[tokio::test]
#[ignore = "long: jobs of a minute"]
async fn forty_jobs_of_a_minute_outlive_the_scale_in_that_they_are_in_the_middle_of() {
    let space = Namespace::create("minute").await;
    let image = e2e::kubernetes::given("APP_IMAGE");
    let template = format!("{{spec: {{containers: [{{name: app, image: '{image}'}}]}}}}");
    // Stricter than the defaults. A worker that is stopped has a second for jobs of a minute (not 25 s, nor what follows
    // from the timeout), so whoever is sent away while it runs one gives it back, and it is reserved again. The delay before
    // scaling in is short (not a minute), so that it falls into the middle of the jobs. And they may take longer than they do
    // (300 s, not 60), so that none of them ends by its timeout.
    let worker = format!(
        "{{concurrency: 10, drainTimeout: 1s, handler: {{http: {{timeout: 300s}}}}, app: {{healthPath: /health}}, template: {template}}}"
    );
    space
        .queue(
            "minute",
            &format!("{{worker: {worker}, scaling: {{backlogPerWorker: 10, scaleDownDelay: 5s}}}}"),
        )
        .await;
    space.await_ready("minute").await;
    let redis = space.managed("minute").await;
    let mut jobs: Vec<_> = (0..80).map(e2e::kubernetes::job).collect();
    for (at, job) in jobs.iter_mut().enumerate() {
        job["duration_ms"] = if at % 2 == 0 { 60_000 } else { 1_000 }.into();
    }
    redis.push_all(LOW, &jobs).await;
    space.await_asked_for("minute", 8).await;
    patiently("workers that drain, with jobs of a minute", async || {
        let running = redis.held().await.len();
        let draining = space.events("Draining").await;
        if draining.is_empty() || running < 30 { Err((running, draining)) } else { Ok(()) }
    })
    .await;
    redis.await_completed(0..80).await;
    space.await_asked_for("minute", 0).await;
    assert_eq!(redis.count(&["HGET", "jobqueue:counters", "reserved"]).await, 80, "no job was given back");
    println!("40 jobs of a minute in flight: scaled {:?}, 0 jobs interrupted", steps(&space).await);
    space.delete().await;
}

#[tokio::test]
#[ignore = "long: a minute without Redis"]
async fn a_minute_without_redis_changes_no_number_of_workers() {
    let space = Namespace::create("away").await;
    let redis = space.external("redis").await;
    let more =
        "scaling: {scaleDownDelay: 2s, backlogPerWorker: 10}, worker: {handler: {simulate: {base: 2s}}}";
    space.queue("away", &space.on("redis", more)).await;
    space.await_ready("away").await;
    redis.push(LOW, 0..400).await;
    space.await_asked_for("away", 10).await;
    redis.ask(&["CLIENT", "PAUSE", "60000", "ALL"]).await.expect("paused");
    let away = Instant::now();
    space.await_condition("away", "ScalingActive", "False/Holding").await;
    while away.elapsed() < Duration::from_secs(58) {
        assert_eq!(space.asked_for("away").await, 10);
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    space.await_condition("away", "ScalingActive", "True/Following").await;
    redis.await_completed(0..400).await;
    assert_eq!(redis.count(&["HGET", "jobqueue:counters", "done"]).await, 400, "each once");
    space.await_asked_for("away", 0).await;
    space.delete().await;
}

#[tokio::test]
#[ignore = "long: two minutes of load"]
async fn two_minutes_of_poisson_load_do_not_make_the_number_of_workers_flap() {
    let space = Namespace::create("poisson").await;
    let worker = "{concurrency: 16, handler: {simulate: {base: 2s}}}";
    space.queue("poisson", &format!("{{worker: {worker}, scaling: {{backlogPerWorker: 16}}}}")).await;
    space.await_ready("poisson").await;
    let redis = space.managed("poisson").await;
    let mut random = fastrand::Rng::with_seed(1);
    let (began, mut pushed, mut due) = (Instant::now(), 0, 0.0);
    while began.elapsed() < Duration::from_secs(120) {
        // 12 a second: what came until now is pushed in one command.
        let mut until = pushed;
        while due <= began.elapsed().as_secs_f64() {
            due -= random.f64().max(1e-9).ln() / 12.0;
            until += 1;
        }
        if until > pushed {
            redis.push(LOW, pushed..until).await;
            pushed = until;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let during = steps(&space).await;
    patiently("all jobs", async || {
        let done = redis.count(&["HGET", "jobqueue:counters", "done"]).await;
        if done == u64::from(pushed) { Ok(()) } else { Err(done) }
    })
    .await;
    println!("{pushed} jobs in two minutes: scaled {during:?}");
    let turns = during.windows(2).filter(|pair| (pair[0].1 > pair[0].0) != (pair[1].1 > pair[1].0)).count();
    assert!(turns <= 1, "{during:?}");
    space.delete().await;
}
