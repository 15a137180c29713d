//! What Ruby enqueues runs, and arrives as it was sent.
use e2e::{Worker, eventually};
use serde_json::json;

use crate::scene::{SOON, Scene};

/// What ran: their arguments, the oldest first, as Ruby wrote them when it ran them.
const RAN: &str =
    "Sidekiq.redis { |r| r.lrange('ran', 0, -1) }.reverse.map { |run| JSON.parse(run)['args'] }";

#[tokio::test]
async fn what_ruby_enqueues_by_any_way_runs() {
    let mut scene = Scene::start().await;
    let worker = Worker::spawn(&scene.options());
    let console = &mut scene.console;
    console.eval("Echo.perform_async(1)");
    console.eval("Sidekiq::Client.push_bulk('class' => Echo, 'args' => (2..4).map { |n| [n] })");
    console.eval("Echo.perform_in(0.5, 5)");
    console.eval("Echo.set(queue: 'unserved').perform_in(0.5, 6)");
    console.until_ran(5).await;
    let mut ran: Vec<_> = console.eval(RAN).as_array().unwrap().clone();
    ran.sort_by_key(|args| args[0].as_i64());
    assert_eq!(ran, [json!([1]), json!([2]), json!([3]), json!([4]), json!([5])]);
    // Due jobs of queues that nobody of us serves are brought back as well.
    console.until("Sidekiq::Queue.new('unserved').map { |job| job.args }", json!([[6]])).await;
    console.until("Sidekiq::ScheduledSet.new.size", 0).await;
    console.until("[Sidekiq::Stats.new.processed, Sidekiq::Stats.new.failed]", json!([5, 0])).await;
    assert_eq!(console.eval("Sidekiq::Queue.all.map(&:name).sort"), json!(["default", "unserved"]));
    drop(worker);
}

#[tokio::test]
async fn arguments_arrive_in_ruby_equal_to_what_was_sent() {
    let mut scene = Scene::start().await;
    let _worker = Worker::spawn(&scene.options());
    let console = &mut scene.console;
    console.eval(
        "$sent = [2**200, -(2**64), 0.1, 1e300, -0.0, 1.0, 100.0, nil, true, '', \"é\\u2028\\u{1F600}\\\"\\\\\\n\\u0000\", \
         [[], {}, [nil]], {'a' => {'b' => [1, {'c' => 2.50}]}, '' => 'x'}, 'x' * 1_000_000]; Echo.perform_async(*$sent)",
    );
    console.until_ran(1).await;
    // Not by `==`, to which a large integer is its float, and -0.0 is 0.0.
    let equal = "JSON.parse(Sidekiq.redis { |r| r.lindex('ran', 0) })['args'].inspect == $sent.inspect";
    assert_eq!(console.eval(equal), json!(true));
}

#[tokio::test]
async fn the_jobs_of_a_killed_worker_run_again_and_none_is_lost() {
    let mut scene = Scene::start().await;
    let mut worker = Worker::spawn(&scene.options());
    scene.console.eval("20.times { |n| Patient.perform_async(n) }");
    scene.console.until("Sidekiq.redis { |r| r.get('started').to_i }", 8).await;
    worker.kill9();
    let second = Worker::spawn(&scene.options());
    second.wait_for_log("Reaped jobs").await;
    scene.console.eval("Sidekiq.redis { |r| r.set('go', 1) }");
    let ran =
        "Sidekiq.redis { |r| r.lrange('ran', 0, -1) }.map { |run| JSON.parse(run)['args'][0] }.uniq.size";
    scene.console.until(ran, 20).await;
    scene
        .console
        .until(
            "[Sidekiq::Queue.new.size, Sidekiq::RetrySet.new.size, Sidekiq::DeadSet.new.size]",
            json!([0, 0, 0]),
        )
        .await;
    // Held no more either: nothing is left in lists of ours.
    scene.console.until("Sidekiq.redis { |r| r.keys('jobqueue:sidekiq:worker:*') }", json!([])).await;
}

#[tokio::test]
async fn a_killed_application_costs_its_jobs_no_attempt() {
    let mut scene = Scene::start().await;
    let _worker = Worker::spawn(&scene.options());
    scene.console.eval("6.times { |n| Patient.perform_async(n) }");
    scene.console.until("Sidekiq.redis { |r| r.get('started').to_i }", 6).await;
    scene.app.as_mut().unwrap().kill9();
    scene.console.eval("Sidekiq.redis { |r| r.set('go', 1) }");
    scene.start_app().await;
    let ran =
        "Sidekiq.redis { |r| r.lrange('ran', 0, -1) }.map { |run| JSON.parse(run)['args'][0] }.uniq.size";
    scene.console.until(ran, 6).await;
    scene
        .console
        .until("Sidekiq::Stats.new.then { |s| [s.failed, s.retry_size, s.dead_size] }", json!([0, 0, 0]))
        .await;
}

#[tokio::test]
async fn a_job_that_kills_every_application_is_found_and_buried() {
    let mut scene = Scene::start().await;
    let _worker =
        Worker::spawn(&scene.options().env("WORKER_COUNT", "2").env("WORKER_MAX_INTERRUPTIONS", "2"));
    scene.console.eval("Killer.perform_async");
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

#[tokio::test]
async fn a_namespace_is_honoured_in_every_key() {
    let mut scene = Scene::start().await;
    let _worker = Worker::spawn(&scene.options().env("SIDEKIQ_NAMESPACE", "app"));
    let console = &mut scene.console;
    console.eval("Sidekiq.redis { |r| r.lpush('app:queue:default', JSON.generate('class' => 'Hopeless', 'args' => [1], 'jid' => 'j', 'retry' => 0, 'created_at' => 1.5)) }");
    console.eval("Sidekiq.redis { |r| r.zadd('app:schedule', 1, JSON.generate('class' => 'Echo', 'args' => [2], 'jid' => 'k', 'queue' => 'default')) }");
    console.until_ran(2).await;
    console
        .until(
            "Sidekiq.redis { |r| [r.zcard('app:dead'), r.scard('app:processes'), r.get('app:stat:failed')] }",
            json!([1, 1, "1"]),
        )
        .await;
    let foreign = "Sidekiq.redis { |r| r.keys('*') }.reject { |key| key.start_with?('app:', 'jobqueue:sidekiq:') || key == 'ran' }";
    assert_eq!(console.eval(foreign), json!([]));
}
