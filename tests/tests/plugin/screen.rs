//! `top` in a real terminal: tmux holds it, keys are sent, the screen is read.
use e2e::kubernetes::{LOW, Namespace, patiently, run};
use e2e::process::binary;

/// A terminal of its own, which ends with the test.
struct Terminal {
    socket: String,
}

impl Terminal {
    async fn start(width: u16, height: u16, command: &str) -> Self {
        let terminal = Self { socket: format!("jobqueue-{:08x}", fastrand::u32(..)) };
        let (width, height) = (width.to_string(), height.to_string());
        // The shell tells its end, and stays: tmux may see a terminal closed and never hear of its program's status.
        let command = format!("{command}; echo ended with $?; cat");
        terminal.tmux(&["-f", "/dev/null", "new-session", "-d", "-x", &width, "-y", &height, &command]).await;
        terminal
    }

    async fn tmux(&self, arguments: &[&str]) -> String {
        let all = [&["-L", self.socket.as_str()], arguments].concat();
        run("tmux", &all, None).await.unwrap_or_else(|error| panic!("tmux {arguments:?}: {error}"))
    }

    async fn screen(&self) -> String {
        self.tmux(&["capture-pane", "-p"]).await
    }

    async fn press(&self, key: &str) {
        self.tmux(&["send-keys", key]).await;
    }

    /// Waits until the program has ended, and well.
    async fn ended(&self) {
        self.shows(&["ended with 0"]).await;
    }

    async fn shows(&self, parts: &[&str]) -> String {
        patiently(&format!("{parts:?} on the screen"), async || {
            let screen = self.screen().await;
            if parts.iter().all(|part| screen.contains(part)) { Ok(screen) } else { Err(screen) }
        })
        .await
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = std::process::Command::new("tmux").args(["-L", &self.socket, "kill-server"]).status();
    }
}

#[tokio::test]
async fn top_shows_queues_workers_and_decisions_and_obeys_keys_at_both_sizes() {
    let space = Namespace::create("screen").await;
    space.queue("alpha", "{scaling: {mode: Manual}, replicas: 1, worker: {concurrency: 2, handler: {simulate: {base: 10m}}}}").await;
    space.queue("beta", "{keyPrefix: other}").await;
    space.await_ready("alpha").await;
    space.await_ready("beta").await;
    let redis = space.managed("alpha").await;
    redis.push(LOW, 0..5).await;
    redis.await_running(2).await;
    crate::support::bury(&redis, 3).await;
    let worker = space.workers("alpha").await.remove(0);
    for (width, height) in [(80, 24), (200, 50)] {
        let command = format!("{} top -n {}", binary("kubectl-jobqueue").display(), space.name);
        let terminal = Terminal::start(width, height, &command).await;
        let screen = terminal
            .shows(&["jobqueue", "alpha", "beta", "Workers of alpha", &worker[..20], "active", "q quit"])
            .await;
        println!("{screen}");
        assert_eq!(screen.trim_end_matches('\n').lines().count(), usize::from(height), "\n{screen}");
        assert!(screen.lines().all(|line| line.chars().count() <= usize::from(width)), "\n{screen}");
        terminal.press("?").await;
        terminal.shows(&["pause or resume the selected queue"]).await;
        terminal.press("q").await;
        terminal.press("s").await;
        terminal.shows(&["by waiting"]).await;
        terminal.press("d").await;
        terminal.shows(&["Dead letters of alpha", "job-2", "simulated"]).await;
        terminal.press("q").await;
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
