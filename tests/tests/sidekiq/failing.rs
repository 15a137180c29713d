//! A job that fails carries what Sidekiq would have written, as compared with a run of Sidekiq itself.
use e2e::Worker;
use serde_json::json;

use crate::scene::Scene;

/// Brings every retry forward, as if its time had come.
const HURRY: &str = "$hurry ||= Thread.new { loop { sleep 0.05; Sidekiq.redis { |r| r.zrange('retry', 0, -1).each { |job| r.zadd('retry', 1, job, xx: true) } } } }; 1";

/// The dead job as people compare it: names in their order, all that does not depend on when and who.
const DEAD: &str = "job = JSON.parse(Sidekiq.redis { |r| r.zrange('dead', 0, 0) }.first); \
    lines = Sidekiq::DeadSet.new.first.error_backtrace; \
    times = %w[created_at enqueued_at failed_at retried_at]; \
    [job.keys, job.reject { |key, _| (times + %w[jid error_backtrace]).include?(key) }, \
     times.map { |time| job[time].class.name }, lines.size, lines.first[/in `.*/]]";

#[tokio::test]
async fn a_job_that_fails_until_it_is_dead_has_the_fields_that_sidekiq_writes() {
    let mut scene = Scene::start().await;
    scene.console.eval(HURRY);
    let enqueue = "Hopeless.set('extra' => 1.50, 'tags' => ['a']).perform_async(2**70, 'é')";
    let sidekiq = scene.sidekiq("default");
    scene.console.eval(enqueue);
    scene.console.until("Sidekiq::DeadSet.new.size", 1).await;
    drop(sidekiq);
    let theirs = scene.console.eval(DEAD);
    scene.console.eval("Sidekiq::DeadSet.new.clear; Sidekiq.redis { |r| r.del('ran') }");

    let _worker = Worker::spawn(&scene.options());
    scene.console.eval(enqueue);
    scene.console.until("Sidekiq::DeadSet.new.size", 1).await;
    assert_eq!(scene.console.eval(DEAD), theirs);
    assert_eq!(theirs[1]["retry_count"], 3, "four runs");
    assert_eq!(scene.console.eval("Sidekiq.redis { |r| r.llen('ran') }"), 4);
    assert_eq!(theirs[3], 2, "two lines of the backtrace, as it asks");
}

#[tokio::test]
async fn a_failed_job_waits_in_the_retries_as_sidekiqs_formula_says_and_can_be_retried_by_hand() {
    let mut scene = Scene::start().await;
    let _worker = Worker::spawn(&scene.options());
    let console = &mut scene.console;
    console.eval("Hopeless.perform_async(1)");
    console.until("Sidekiq::RetrySet.new.size", 1).await;
    let wait = console.eval("job = Sidekiq::RetrySet.new.first; job.score - job['failed_at']");
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
    let _worker = Worker::spawn(&scene.options());
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
}
