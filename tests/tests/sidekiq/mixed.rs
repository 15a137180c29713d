//! Sidekiq's own processes and ours on the same queues at the same time.
#![allow(clippy::unwrap_used, reason = "a panic is the report")]

use e2e::Worker;
use serde_json::{Value, json};

use crate::scene::{SOON, Scene};

/// What Sidekiq's API says, and our command of what is the same to both; nobody may do anything meanwhile.
fn shown(scene: &mut Scene) -> Value {
    let page = scene.console.eval(
        "Sidekiq::Stats.new.then { |s| { 'enqueued' => s.enqueued, 'retry' => s.retry_size, 'scheduled' => s.scheduled_size, \
           'dead' => s.dead_size, 'processed' => s.processed, 'failed' => s.failed } }",
    );
    let runs = scene.console.eval(
        "runs = Sidekiq.redis { |r| r.lrange('ran', 0, -1) }.reverse.map { |run| JSON.parse(run) }; \
         tried = []; \
         failed = runs.select { |run| n = run['args'][0]; n > 0 ? n % 10 == 0 : (tried << n).count(n) == 1 }; \
         [runs, failed].map { |some| some.count { |run| run['who'] == 'ours' } }",
    );
    let stats = scene.options_of("").arg("stats").arg("-o").arg("json").output();
    let stats: Value = serde_json::from_slice(&stats.stdout).unwrap();
    let ours = json!([stats["totals"]["waiting"], stats["retry"], stats["scheduled"], stats["dead_letters"]]);
    assert_eq!(ours, json!([page["enqueued"], page["retry"], page["scheduled"], page["dead"]]), "{stats}");
    // Of what was run, our command counts what was run by us.
    let count = |name: &str| stats["counters"][name].as_u64().unwrap();
    assert_eq!(json!([count("done") + count("failed"), count("failed")]), runs, "{stats}");
    page
}

/// Of 11,000 jobs a thousand fail for good, and a thousand fail once: both bring them back when they are due, and whoever
/// comes first runs them.
#[tokio::test]
async fn sidekiq_and_our_worker_share_eleven_thousand_jobs_and_each_is_settled_once() {
    let mut scene = Scene::start().await;
    let console = &mut scene.console;
    console.eval("Sidekiq::Client.push_bulk('class' => Tenth, 'args' => (1..10).map { |n| [n] })");
    // For later, so that there are some.
    console.eval("Echo.perform_in(86_400, 0)");
    console
        .eval("$far = JSON.generate('class' => 'Echo', 'args' => [0], 'jid' => 'far', 'queue' => 'default')");
    console.eval("Sidekiq.redis { |r| r.call('ZADD', 'retry', Time.now.to_f + 86_400, $far) }");
    let before = shown(&mut scene);
    assert_eq!(
        before,
        json!({ "enqueued": 10, "retry": 1, "scheduled": 1, "dead": 0, "processed": 0, "failed": 0 })
    );
    let sidekiq = scene.sidekiq("default");
    let mut worker = Worker::spawn(&scene.options().env("WORKER_COUNT", "20"));
    // Both are there before there is much to do.
    scene.console.until("Sidekiq::ProcessSet.new.size", 2).await;
    let settled =
        "Sidekiq::Stats.new.then { |s| [s.enqueued, s.processed, s.failed, s.dead_size, s.retry_size] }";
    scene.console.eval("Sidekiq::Client.push_bulk('class' => Tenth, 'args' => (11..1000).map { |n| [n] })");
    scene.console.until(settled, json!([0, 1000, 100, 100, 1])).await;
    shown(&mut scene);
    scene.console.eval("Sidekiq.redis { |r| r.call('ZREM', 'retry', $far) }");
    scene.console.eval("hurry(noting: false)");
    scene.console.eval(
        "(1..10_000).each_slice(1000) do |slice| \
           Sidekiq::Client.push_bulk('class' => Tenth, 'args' => slice.map { |n| [n] }) if slice.first > 1000; \
           Sidekiq::Client.push_bulk('class' => SecondTime, 'args' => slice.first(100).map { |n| [-n] }) \
         end",
    );
    scene.console.until(settled, json!([0, 12_000, 2000, 1000, 0])).await;
    let ran = scene.console.eval(
        "runs = Sidekiq.redis { |r| r.lrange('ran', 0, -1) }.map { |run| JSON.parse(run) }; \
         again, once = runs.partition { |run| run['args'][0] < 0 }; \
         [once.size, once.map { |run| run['jid'] }.uniq.size, once.map { |run| run['args'][0] }.sort == (1..10_000).to_a, \
          again.group_by { |run| run['jid'] }.values.map(&:size).tally, runs.map { |run| run['who'] }.uniq.sort]",
    );
    assert_eq!(ran, json!([10_000, 10_000, true, { "2": 1000 }, ["ours", "sidekiq"]]));
    let crossed = scene.console.eval(
        "runs = Sidekiq.redis { |r| r.lrange('ran', 0, -1) }.map { |run| JSON.parse(run) }; \
         runs.select { |run| run['args'][0] < 0 }.group_by { |run| run['jid'] }.values \
           .map { |both| both.map { |run| run['who'] }.reverse.join(' then ') }.tally",
    );
    println!("who ran those that failed once: {crossed}");
    for crossing in ["ours then sidekiq", "sidekiq then ours"] {
        assert!(crossed[crossing].as_u64() > Some(0), "none crossed over: {crossed}");
    }
    let shares = scene
        .console
        .eval("Sidekiq.redis { |r| r.lrange('ran', 0, -1) }.map { |run| JSON.parse(run)['who'] }.tally");
    println!("who ran how many: {shares}");
    shown(&mut scene);
    worker.sigterm();
    worker.wait_exit(SOON).await;
    drop(sidekiq);
}

/// Every tenth fails for good, as it would with Sidekiq: more than those are not among the dead, and none is retried.
#[tokio::test]
async fn of_ten_thousand_jobs_none_is_lost_or_costs_an_attempt_when_worker_and_application_are_killed() {
    let mut scene = Scene::start().await;
    let options = scene.options().env("WORKER_COUNT", "20");
    let mut workers: Vec<_> = (0..2).map(|_| Worker::spawn(&options)).collect();
    scene.console.until("Sidekiq::ProcessSet.new.size", 2).await;
    scene.console.eval("(1..10_000).each_slice(1000) { |slice| Sidekiq::Client.push_bulk('class' => Tenth, 'args' => slice.map { |n| [n, 0.02] }) }");
    for kill in 0..9 {
        let ran = 1000 * (kill + 1);
        let soon = format!("Sidekiq.redis {{ |r| r.llen('ran') }} >= {ran}");
        scene.console.until(&soon, true).await;
        if kill % 3 != 0 {
            scene.app.as_mut().unwrap().kill9();
        }
        if kill % 3 != 1 {
            workers[kill % 2].kill9();
            workers[kill % 2] = Worker::spawn(&options);
        }
        if kill % 3 != 0 {
            scene.start_app().await;
        }
    }
    let held =
        "Sidekiq.redis { |r| r.keys('jobqueue:sidekiq:worker:*').select { |key| r.type(key) == 'list' } }";
    scene.console.until(&format!("[Sidekiq::Queue.new.size, {held}]"), json!([0, []])).await;
    let ran = scene.console.eval("runs = Sidekiq.redis { |r| r.lrange('ran', 0, -1) }.map { |run| JSON.parse(run)['args'][0] }; [runs.uniq.sort == (1..10_000).to_a, runs.size]");
    assert_eq!(ran[0], true, "each ran");
    println!("{} runs of 10,000 jobs", ran[1]);
    let dead = "Sidekiq::DeadSet.new.map { |job| [job.args[0] % 10, job['retry_count'], job['error_message']] }.uniq";
    assert_eq!(scene.console.eval(dead), json!([[0, 0, "a tenth"]]));
    assert_eq!(scene.console.eval("[Sidekiq::DeadSet.new.map(&:jid).uniq.size, Sidekiq::DeadSet.new.size, Sidekiq::RetrySet.new.size]"), json!([1000, 1000, 0]));
}
