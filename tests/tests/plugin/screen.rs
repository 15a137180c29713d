//! `top` in a real terminal.
use e2e::kubernetes::{LOW, Namespace, patiently};
use e2e::process::binary;

use crate::terminal::Terminal;

/// What the trend of a queue is drawn with.
const BARS: &str = "▁▂▃▄▅▆▇█";

/// Whether the row of a queue ends with its trend.
fn has_trend(screen: &str, queue: &str) -> bool {
    let row = screen.lines().find(|line| line.starts_with(queue)).unwrap_or_default();
    row.trim_end().chars().last().is_some_and(|last| BARS.contains(last))
}

/// What of the name of a pod is shown wherever there is little room.
fn end_of(pod: &str) -> &str {
    &pod[pod.len().saturating_sub(16)..]
}

#[tokio::test]
async fn top_shows_queues_workers_and_decisions_and_obeys_keys_at_both_sizes() {
    let space = Namespace::create("screen").await;
    space.queue("alpha", "{scaling: {mode: Manual}, replicas: 1, worker: {concurrency: 2, handler: {simulate: {base: 10m}}}}").await;
    space.queue("beta", "{keyPrefix: other}").await;
    // One that scaled by itself, so that there is a decision to show.
    space
        .queue("gamma", "{keyPrefix: third, worker: {concurrency: 1, handler: {simulate: {base: 10m}}}}")
        .await;
    for queue in ["alpha", "beta", "gamma"] {
        space.await_ready(queue).await;
    }
    space.managed("gamma").await.push("third:low_priority", 0..1).await;
    space.await_asked_for("gamma", 1).await;
    let redis = space.managed("alpha").await;
    redis.push(LOW, 0..5).await;
    redis.await_running(2).await;
    crate::support::bury(&redis, 3).await;
    let worker = space.workers("alpha").await.remove(0);
    let gamma = space.workers("gamma").await.remove(0);
    for (width, height) in [(80, 24), (200, 50)] {
        let command = format!("{} top -n {}", binary("kubectl-jobqueue").display(), space.name);
        let terminal = Terminal::start(width, height, &command).await;
        let parts =
            ["jobqueue", "alpha", "beta", "gamma", "Workers of alpha", end_of(&worker), "active", "TREND"];
        terminal.shows(&parts).await;
        // A worker says with its next heartbeat what it runs.
        let runs = |screen: &str| {
            let row =
                screen.lines().find(|line| line.contains(end_of(&worker))).unwrap_or_default().trim_end();
            row.ends_with("job-0") || row.ends_with("job-1")
        };
        let screen = patiently("the trend of a queue, and what its worker runs", async || {
            let screen = terminal.screen().await;
            if has_trend(&screen, "alpha") && runs(&screen) { Ok(screen) } else { Err(screen) }
        })
        .await;
        println!("{screen}");
        // From edge to edge and from top to bottom: the rules are as wide as the screen, the keys stand on its last line.
        let lines: Vec<&str> = screen.trim_end_matches('\n').lines().collect();
        let rules: Vec<&&str> = lines.iter().filter(|line| line.ends_with('─')).collect();
        assert_eq!(rules.len(), 3, "queues, workers and decisions\n{screen}");
        assert!(rules.iter().all(|rule| rule.chars().count() == usize::from(width)), "\n{screen}");
        assert_eq!(lines.len(), usize::from(height), "\n{screen}");
        assert!(lines.last().is_some_and(|keys| keys.contains("q quit")), "\n{screen}");
        for column in ["AS OF", "LOAD"] {
            assert_eq!(screen.contains(column), width == 200, "a column that only a wide one has\n{screen}");
        }
        terminal.press("Enter").await;
        terminal.shows(&[&format!("{worker}  active  2 running"), "oldest job job-"]).await;
        terminal.press("q").await;
        terminal.press("?").await;
        terminal.shows(&["pause or resume the selected queue"]).await;
        terminal.press("q").await;
        terminal.press("s").await;
        terminal.shows(&["by waiting"]).await;
        terminal.press("d").await;
        terminal.shows(&["Dead letters of alpha", "job-2", "simulated"]).await;
        terminal.press("Enter").await;
        terminal.shows(&["Retries  3", "Error    simulated"]).await;
        terminal.press("q").await;
        terminal.press("q").await;
        // On, until they are sorted by name again.
        for _ in 0..4 {
            terminal.press("s").await;
        }
        terminal.shows(&["by name"]).await;
        terminal.press("G").await;
        terminal.shows(&["Workers of gamma", end_of(&gamma), "Scaled workers from 0 to 1"]).await;
        terminal.press("g").await;
        terminal.press("Down").await;
        terminal.shows(&["Workers of beta", "no workers run"]).await;
        terminal.press("p").await;
        terminal.shows(&["Pause beta?"]).await;
        terminal.press("y").await;
        patiently("a paused queue", async || space.get("jobqueue", "beta").await["spec"]["paused"] == true)
            .await;
        terminal.shows(&["beta paused"]).await;
        space.patch("beta", r#"{"spec": {"paused": false}}"#).await;
        terminal.press("q").await;
        terminal.ended().await;
    }
    space.delete().await;
}

#[tokio::test]
async fn a_queue_that_does_not_exist_or_may_not_be_seen_is_said_before_the_screen_is_taken() {
    let space = Namespace::create("unseen").await;
    let plugin = binary("kubectl-jobqueue");
    let top = format!("{} top nobody -n {}", plugin.display(), space.name);
    let terminal = Terminal::start(200, 50, &top).await;
    terminal.shows(&["Error: there is no JobQueue nobody in namespace", "ended with 3"]).await;
    let nobody = crate::support::stranger(&space, "nobody", None).await;
    let top = format!("env KUBECONFIG={} {top}", nobody.path().display());
    let terminal = Terminal::start(200, 50, &top).await;
    terminal.shows(&["Error: cannot list jobqueues", "forbidden", "ended with 4"]).await;
    space.delete().await;
}

#[tokio::test]
async fn top_says_that_redis_is_away_and_goes_on() {
    let space = Namespace::create("topless").await;
    let redis = space.external("redis").await;
    space.queue("hello", &space.on("redis", "scaling: {mode: Manual}, replicas: 1")).await;
    space.await_condition("hello", "WorkersAvailable", "True/Available: 1 of 1").await;
    drop(redis);
    space.kubectl(&["delete", "pod", "redis", "--wait=true"]).await.expect("deleted");
    let top = format!("{} top -n {}", binary("kubectl-jobqueue").display(), space.name);
    let terminal = Terminal::start(200, 50, &top).await;
    terminal.shows(&["hello", "Workers of hello", "not known: ", "cannot reach Redis at"]).await;
    space.external("redis").await;
    terminal.shows(&["Workers of hello", "hello-worker-", "active"]).await;
    terminal.press("q").await;
    terminal.ended().await;
    space.delete().await;
}
