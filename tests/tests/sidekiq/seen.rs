//! What Sidekiq's API sees of our worker, and what it tells it.
use e2e::Worker;
use serde_json::json;

use crate::scene::{SOON, Scene};

#[tokio::test]
async fn sidekiqs_api_sees_the_process_and_what_it_runs() {
    let mut scene = Scene::start().await;
    let mut worker = Worker::spawn(&scene.options());
    let console = &mut scene.console;
    console.eval("Patient.perform_async('x'); Patient.perform_async('y' * 10_000)");
    console.until("Sidekiq::Workers.new.size", 2).await;
    let process = console.eval("Sidekiq::ProcessSet.new.first.then { |p| [p['busy'], p['concurrency'], p['queues'], p['tag'], p['pid'], p.stopping?] }");
    assert_eq!(process, json!([2, 8, ["default"], "jobqueue", worker.pid(), false]));
    let work = console.eval("work.map { |one| [one['identity'] == Sidekiq::ProcessSet.new.first.identity, one['queue'], one['job']['class'], one['job']['args'], (Time.now.to_i - one['run_at']).abs < 60] }.sort_by { |one| one[3] }");
    assert_eq!(
        work,
        json!([[true, "default", "Patient", ["..."], true], [true, "default", "Patient", ["x"], true]]),
        "large arguments are not shown"
    );
    console.eval("Sidekiq.redis { |r| r.set('go', 1) }");
    console.until_ran(2).await;
    console.until("Sidekiq::Workers.new.size", 0).await;
    console
        .until("Sidekiq::Stats.new.then { |s| [s.processed, s.failed, s.processes_size] }", json!([2, 0, 1]))
        .await;
    console.until("Sidekiq::Stats::History.new(1).processed.values", json!([2])).await;
    worker.sigterm();
    worker.wait_exit(SOON).await;
    assert_eq!(
        console.eval(
            "Sidekiq.redis { |r| [r.smembers('processes'), r.keys('*:work*') - r.keys('jobqueue:*')] }"
        ),
        json!([[], []])
    );
}

/// Sidekiq's page looks into the arguments of what Rails wraps, and fails as a whole where it does not find them.
#[tokio::test]
async fn large_mails_and_active_jobs_have_their_names_on_sidekiqs_page() {
    let mut scene = Scene::start().await;
    let _worker = Worker::spawn(&scene.options());
    let console = &mut scene.console;
    for (wrapped, arguments) in [
        (
            "ActionMailer::MailDeliveryJob",
            "['News', 'weekly', 'deliver_now', { 'params' => {}, 'args' => ['x' * 9000] }]",
        ),
        ("ActionMailer::DeliveryJob", "['Old', 'monthly', 'deliver_now', 'x' * 9000]"),
        ("Export", "['x' * 9000]"),
    ] {
        console.eval(&format!(
            "Sidekiq::Client.push('class' => 'ActiveJob::QueueAdapters::SidekiqAdapter::JobWrapper', 'wrapped' => '{wrapped}', \
             'args' => [{{ 'job_class' => '{wrapped}', 'job_id' => '1', 'arguments' => {arguments} }}])"
        ));
    }
    console.until("Sidekiq::Workers.new.size", 3).await;
    let names = json!([["Export", "..."], ["News#weekly", "..."], ["Old#monthly", "..."]]);
    assert_eq!(console.eval("names_of_work"), names);
    console.until("shows('/busy', 'Export', 'News#weekly', 'Old#monthly')", json!([])).await;
    console.eval("Sidekiq.redis { |r| r.set('go', 1) }");
    console.until_ran(3).await;
}

#[tokio::test]
async fn the_buttons_quiet_dump_and_stop_work_on_us() {
    let mut scene = Scene::start().await;
    let mut worker = Worker::spawn(&scene.options());
    let console = &mut scene.console;
    console.eval("Patient.perform_async(1)");
    console.until("Sidekiq::ProcessSet.new.size", 1).await;
    console.until("Sidekiq.redis { |r| r.get('started').to_i }", 1).await;
    console.eval("Sidekiq::ProcessSet.new.first.dump_threads");
    worker.wait_for_log("Job is running").await;
    console.eval("Sidekiq::ProcessSet.new.first.quiet!");
    console.until("Sidekiq::ProcessSet.new.first.stopping?", true).await;
    console.eval("Echo.perform_async(2)");
    console.eval("Sidekiq.redis { |r| r.set('go', 1) }");
    console
        .until(
            "Sidekiq.redis { |r| r.lrange('ran', 0, -1) }.map { |run| JSON.parse(run)['args'] }",
            json!([[1]]),
        )
        .await;
    console.eval("Sidekiq::ProcessSet.new.first.stop!");
    assert!(worker.wait_exit(SOON).await.success());
    assert_eq!(console.eval("Sidekiq::Queue.new.map(&:args)"), json!([[2]]), "nobody took it");
}

#[tokio::test]
async fn a_process_that_stops_is_shown_as_quiet_while_its_jobs_end_and_counts_them_all() {
    let mut scene = Scene::start().await;
    let mut worker = Worker::spawn(&scene.options());
    let console = &mut scene.console;
    console.eval("Patient.perform_async(1)");
    console.until("Sidekiq.redis { |r| r.get('started').to_i }", 1).await;
    console.until("Sidekiq::ProcessSet.new.map(&:stopping?)", json!([false])).await;
    worker.sigterm();
    console.until("Sidekiq::ProcessSet.new.map(&:stopping?)", json!([true])).await;
    console.eval("Sidekiq.redis { |r| r.set('go', 1) }");
    assert!(worker.wait_exit(SOON).await.success());
    assert_eq!(console.eval("Sidekiq::Stats.new.then { |s| [s.processed, s.failed] }"), json!([1, 0]));
}

/// The same in a browser: `sidecar/rails/spec/stack_spec.rb`.
#[tokio::test]
async fn sidekiqs_own_pages_show_us_and_their_buttons_work() {
    let mut scene = Scene::start().await;
    let mut worker = Worker::spawn(&scene.options());
    let console = &mut scene.console;
    console.eval("Hopeless.perform_async('again'); Hopeless.set(retry: 0).perform_async('lost')");
    console.eval("Echo.set(queue: 'unserved').perform_async('waits'); Echo.perform_in(3600, 'later')");
    console.eval("Patient.perform_async('runs')");
    console.until("Sidekiq::Workers.new.size", 1).await;
    for page in [
        "'/busy', Sidekiq::ProcessSet.new.first.identity, 'Patient', 'runs', 'jobqueue'",
        "'/queues', 'default', 'unserved'",
        "'/queues/unserved', 'Echo', 'waits'",
        "'/retries', 'Hopeless', 'again', 'ArgumentError'",
        "'/scheduled', 'Echo', 'later'",
        "'/morgue', 'Hopeless', 'lost', 'ArgumentError'",
        "'/', '/morgue'",
    ] {
        console.until(&format!("shows({page})"), json!([])).await;
    }
    console.eval("press('quiet')");
    console.until("Sidekiq::ProcessSet.new.first.stopping?", true).await;
    console.eval("press('stop')");
    console.eval("Sidekiq.redis { |r| r.set('go', 1) }");
    assert!(worker.wait_exit(SOON).await.success());
    console.until("Sidekiq::ProcessSet.new.size", 0).await;
}

#[tokio::test]
async fn a_paused_queue_is_left_alone_until_it_is_resumed() {
    let mut scene = Scene::start().await;
    let worker = Worker::spawn(&scene.options().env("WORKER_PRIORITIES", "held,default"));
    let console = &mut scene.console;
    console.eval("Sidekiq.redis { |r| r.sadd('paused', 'held') }");
    worker.wait_for_log_where("Queue was paused or resumed", |line| line["value"] == "paused").await;
    console.eval("Echo.set(queue: 'held').perform_async(1); Echo.perform_async(2)");
    console.until_ran(1).await;
    assert_eq!(console.eval("Sidekiq::Queue.new('held').size"), 1);
    console.eval("Sidekiq.redis { |r| r.srem('paused', 'held') }");
    console.until_ran(2).await;
}

#[tokio::test]
async fn weighted_queues_are_served_by_their_weights_and_strict_ones_in_order() {
    let mut scene = Scene::start().await;
    let weighted =
        "{protocol: sidekiq, worker: {priorities: [often, seldom], weights: {often: 3, seldom: 1}}}";
    for (config, strict) in
        [("{protocol: sidekiq, worker: {priorities: [often, seldom]}}", true), (weighted, false)]
    {
        let console = &mut scene.console;
        console.eval("Sidekiq.redis { |r| r.del('ran') }");
        console.eval("%w[seldom often].each { |q| Sidekiq::Client.push_bulk('class' => Echo, 'queue' => q, 'args' => [[q]] * 200) }");
        let worker = Worker::spawn(&scene.options().config(config).env("WORKER_COUNT", "1"));
        let console = &mut scene.console;
        console.until_ran(400).await;
        let first = console.eval("Sidekiq.redis { |r| r.lrange('ran', -200, -1) }.count { |run| JSON.parse(run)['args'] == ['often'] }");
        let first = first.as_u64().unwrap();
        // Of 200 draws 150 are expected, with a deviation of 6.
        assert!(
            if strict { first == 200 } else { (110..190).contains(&first) },
            "{first} of the first 200, strict: {strict}"
        );
        drop(worker);
    }
}
