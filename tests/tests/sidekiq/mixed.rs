//! Sidekiq's own processes and ours on the same queues at the same time.
use e2e::Worker;
use serde_json::json;

use crate::scene::{SOON, Scene};

#[tokio::test]
async fn sidekiq_and_our_worker_share_ten_thousand_jobs_and_each_is_settled_once() {
    let mut scene = Scene::start().await;
    let sidekiq = scene.sidekiq("default");
    let mut worker = Worker::spawn(&scene.options().env("WORKER_COUNT", "20"));
    // Both are there before there is anything to do.
    scene.console.until("Sidekiq::ProcessSet.new.size", 2).await;
    scene.console.eval("(1..10_000).each_slice(1000) { |slice| Sidekiq::Client.push_bulk('class' => Tenth, 'args' => slice.map { |n| [n] }) }");
    scene
        .console
        .until(
            "Sidekiq::Stats.new.then { |s| [s.enqueued, s.processed, s.failed, s.dead_size, s.retry_size] }",
            json!([0, 10_000, 1000, 1000, 0]),
        )
        .await;
    let ran = scene.console.eval("runs = Sidekiq.redis { |r| r.lrange('ran', 0, -1) }.map { |run| JSON.parse(run) }; [runs.size, runs.map { |run| run['jid'] }.uniq.size, runs.map { |run| run['args'][0] }.sort == (1..10_000).to_a, runs.group_by { |run| run['who'] }.keys.sort]");
    assert_eq!(ran, json!([10_000, 10_000, true, ["ours", "sidekiq"]]));
    let shares = scene
        .console
        .eval("Sidekiq.redis { |r| r.lrange('ran', 0, -1) }.map { |run| JSON.parse(run)['who'] }.tally");
    println!("who ran how many: {shares}");
    worker.sigterm();
    worker.wait_exit(SOON).await;
    drop(sidekiq);
}
