//! A job that fails carries what Sidekiq would have written, as compared with a run of Sidekiq itself.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a panic is the report")]

use e2e::{Worker, eventually};
use serde_json::{Value, json};

use crate::scene::{SOON, Scene};

/// What is compared of a run: each retry as it waited, the dead job, and for how long each waited.
async fn run_until_dead(scene: &mut Scene, enqueue: &str) -> (Value, Vec<f64>) {
    let console = &mut scene.console;
    console.eval("hurry");
    console.eval(enqueue);
    console.until("Sidekiq::DeadSet.new.size", 1).await;
    let shapes = console.eval(
        "[$retries.sort.map { |_, (shape, _)| shape }, shape(Sidekiq.redis { |r| r.zrange('dead', 0, 0) }.first)]",
    );
    let waits = console.eval("$retries.sort.map { |_, (_, wait)| wait }");
    console.eval("Sidekiq::DeadSet.new.clear; Sidekiq.redis { |r| r.del('ran') }");
    (shapes, waits.as_array().unwrap().iter().map(|wait| wait.as_f64().unwrap()).collect())
}

/// As many retries as are usual, and as few as the class says.
#[tokio::test]
async fn a_job_that_fails_until_it_is_dead_has_at_every_retry_the_fields_that_sidekiq_writes() {
    agree_on(Scene::start().await, &[("true", 25), ("3", 3)]).await;
}

#[tokio::test]
async fn it_has_them_too_when_it_is_the_gem_that_runs_it() {
    agree_on(Scene::with_the_gem().await, &[("true", 25), ("3", 3)]).await;
}

/// Sidekiq and our worker run the same job, with this `retry`, and as often.
async fn agree_on(mut scene: Scene, variants: &[(&str, u32)]) {
    for (retry, retries) in variants {
        let enqueue = format!(
            "Hopeless.set('extra' => 1.50, 'tags' => ['a'], 'retry' => {retry}).perform_async(2**70, 'é')"
        );
        let mut sidekiq = scene.sidekiq("default");
        let (theirs, _) = run_until_dead(&mut scene, &enqueue).await;
        sidekiq.terminate();
        sidekiq.wait_exit(SOON).await;

        let mut worker = Worker::spawn(&scene.options());
        let (ours, waits) = run_until_dead(&mut scene, &enqueue).await;
        worker.sigterm();
        worker.wait_exit(SOON).await;

        let counts = |run: &Value| -> Vec<_> {
            run[0].as_array().unwrap().iter().map(|retry| retry["values"]["retry_count"].clone()).collect()
        };
        assert_eq!(counts(&theirs), (0..*retries).map(Value::from).collect::<Vec<_>>());
        assert_eq!(theirs[1]["values"]["retry_count"], *retries);
        assert_eq!(theirs[1]["lines"], 2, "two lines of the backtrace, as it asks");
        for (at, (ours, theirs)) in
            ours[0].as_array().unwrap().iter().zip(theirs[0].as_array().unwrap()).enumerate()
        {
            assert_eq!(ours, theirs, "retry {at}");
        }
        assert_eq!(ours, theirs);
        for (count, wait) in (0u32..).zip(waits) {
            let least = f64::from(count.pow(4) + 15);
            assert!(
                (least..least + 10.0 * f64::from(count + 1)).contains(&wait.round()),
                "{wait} after {count}"
            );
        }
    }
}

#[tokio::test]
async fn an_application_is_told_of_jobs_that_are_given_up_without_its_word() {
    let mut scene = Scene::start().await;
    let options =
        scene.options().env("WORKER_HANDLER_HTTP_TIMEOUT", "2s").env("WORKER_MAX_INTERRUPTIONS", "1");
    let _worker = Worker::spawn(&options);
    let console = &mut scene.console;
    console.eval("Patient.set(retry: 0).perform_async('late')");
    console.eval("Patient.set(retry: 0).perform_async('forget')");
    console.eval("Patient.set(retry: 1).perform_async('again')");
    console.eval("Hopeless.set(retry: 0).perform_async('said')");
    let died = "Sidekiq.redis { |r| r.lrange('died', 0, -1) }.map { |job| JSON.parse(job).values }.sort";
    console
        .until(
            died,
            json!([["Patient", ["forget"], "Jobqueue::Timeout"], ["Patient", ["late"], "Jobqueue::Timeout"]]),
        )
        .await;
    let dead = "Sidekiq::DeadSet.new.map { |job| [job.args, job['error_class'], job['retry_count']] }.sort";
    console.until(dead, json!([[["late"], "Jobqueue::Timeout", 0], [["said"], "ArgumentError", 0]])).await;
    console.until("Sidekiq::RetrySet.new.map(&:args)", json!([["again"]])).await;

    // One that kills is buried once there is somebody to tell; and by hand it may be tried again.
    console.eval("Sidekiq::RetrySet.new.clear; Sidekiq::DeadSet.new.clear; Sidekiq.redis { |r| r.del('died', 'started') }");
    for _ in 0..2 {
        scene.console.eval("Sidekiq::DeadSet.new.first&.retry || Killer.set(retry: false).perform_async");
        let dead = "Sidekiq::DeadSet.new.map { |job| [job.klass, job['error_class']] }";
        eventually(SOON, "the burial", async || {
            // As Kubernetes would.
            if scene.app.as_mut().unwrap().exit_status().is_some() {
                scene.start_app().await;
            }
            let found = scene.console.eval(dead);
            if found == json!([["Killer", "Jobqueue::Poison"]]) { Ok(()) } else { Err(found) }
        })
        .await;
    }
    let buried = json!(["Killer", [], "Jobqueue::Poison"]);
    assert_eq!(scene.console.eval(died), json!([buried, buried]));
}

#[tokio::test]
async fn a_failed_job_waits_in_the_retries_as_sidekiqs_formula_says_and_can_be_retried_by_hand() {
    let mut scene = Scene::start().await;
    let _worker = Worker::spawn(&scene.options());
    let console = &mut scene.console;
    console.eval("Hopeless.perform_async(1)");
    console.until("Sidekiq::RetrySet.new.size", 1).await;
    let wait = console.eval("Sidekiq.redis { |r| json = r.zrange('retry', 0, 0).first; wait_of(json, r.zscore('retry', json).to_f) }");
    let wait = wait.as_f64().unwrap();
    assert!((15.0..=24.1).contains(&wait), "{wait}");
    console.eval("Sidekiq::RetrySet.new.first.retry");
    console.until_ran(2).await;
    console.until("Sidekiq::RetrySet.new.map { |job| job['retry_count'] }", json!([0])).await;
    console.eval("Sidekiq::RetrySet.new.first.kill");
    console.until("[Sidekiq::RetrySet.new.size, Sidekiq::DeadSet.new.size]", json!([0, 1])).await;
}

#[tokio::test]
async fn what_a_job_says_of_its_retries_is_done() {
    let mut scene = Scene::start().await;
    let worker = Worker::spawn(&scene.options());
    let console = &mut scene.console;
    console.eval("Hopeless.set(retry: false).perform_async('never')");
    console.eval("Hopeless.set(retry: 0).perform_async('dead')");
    console.eval("Hopeless.set(retry: 0, dead: false).perform_async('gone')");
    console.eval("Hopeless.set(retry_queue: 'slow').perform_async('slow')");
    console.eval("Sidekiq.redis { |r| r.lpush('queue:default', '{\"class\":\"Echo') }");
    console.eval("Sidekiq::Client.push('class' => 'NoSuchClass', 'args' => [])");
    console.until_ran(4).await;
    console
        .until(
            "Sidekiq::RetrySet.new.map { |job| [job.klass, job.queue, job['error_class']] }.sort",
            json!([["Hopeless", "slow", "ArgumentError"], ["NoSuchClass", "default", "NameError"]]),
        )
        .await;
    let dead = "Sidekiq.redis { |r| r.zrange('dead', 0, -1) }.map { |job| JSON.parse(job)['args'] rescue job }.sort_by(&:to_s)";
    console.until(dead, json!([["dead"], "{\"class\":\"Echo"])).await;
    console.until("Sidekiq::Stats.new.then { |s| [s.processed, s.failed] }", json!([5, 5])).await;
    assert_eq!(console.eval("Sidekiq::Queue.new.size"), 0);
    // What is forgotten after a failure is not completed: only what is done is.
    console.eval("Echo.perform_async('done')");
    console.until_ran(5).await;
    eventually(SOON, "the one that is done to be counted", async || {
        let completed = worker.metric("jobs_completed_total", &[("queue", "default")]).await;
        if completed == Some(1.0) { Ok(()) } else { Err(completed) }
    })
    .await;
}

/// The API names a retry by Ruby's JSON of it: where ours is another, it adds a second one, which is due at once.
#[tokio::test]
async fn retries_of_ours_that_the_api_reschedules_are_moved_and_not_doubled() {
    let mut scene = Scene::start().await;
    let options = scene.options().env("SIDEKIQ_RETRY", "exponential").env("WORKER_BACKOFF_BASE", "1h");
    let _worker = Worker::spawn(&options);
    let console = &mut scene.console;
    // So many that the time of some ends with a zero.
    console
        .eval("Sidekiq::Client.push_bulk('class' => Hopeless, 'args' => (1..200).map { |n| [n, 'é', 0.5] })");
    console.until("Sidekiq::RetrySet.new.size", 200).await;
    console.eval("Sidekiq::RetrySet.new.to_a.each { |job| job.reschedule(Time.now + 10_000) }");
    assert_eq!(
        console.eval(
            "Sidekiq::RetrySet.new.then { |set| [set.size, set.count { |job| job.at > Time.now + 9000 }] }"
        ),
        json!([200, 200])
    );
}

/// The time in which a job may be retried ends while it runs: its application could not know that this was the last time.
#[tokio::test]
async fn an_application_is_told_of_a_job_whose_time_for_retries_ended_while_it_ran() {
    let mut scene = Scene::start().await;
    let _worker = Worker::spawn(&scene.options());
    let console = &mut scene.console;
    console.until("Sidekiq::ProcessSet.new.size", 1).await;
    // Its time ends in four seconds; it runs for six, and fails.
    console.eval(
        "now = Time.now.to_f; \
         Sidekiq::Client.push('class' => 'SlowAndHopeless', 'args' => [6], 'retry_for' => 64, 'retry_count' => 0, \
           'created_at' => now - 60, 'failed_at' => now - 60)",
    );
    let died = "Sidekiq.redis { |r| r.lrange('died', 0, -1) }.map { |job| JSON.parse(job).values }";
    console.until(died, json!([["SlowAndHopeless", [6], "Jobqueue::HandlerError"]])).await;
    let dead = "Sidekiq::DeadSet.new.map { |job| [job.klass, job['error_class'], job['retry_count']] }";
    console.until(dead, json!([["SlowAndHopeless", "ArgumentError", 1]])).await;
}
