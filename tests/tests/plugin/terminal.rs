//! A real terminal: tmux holds it, keys are sent, the screen is read.
use e2e::kubernetes::{patiently, run};

/// A terminal of its own, which ends with the test.
pub struct Terminal {
    socket: String,
}

impl Terminal {
    /// Runs a command in one of this size.
    pub async fn start(width: u16, height: u16, command: &str) -> Self {
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

    /// What is on it now.
    pub async fn screen(&self) -> String {
        self.tmux(&["capture-pane", "-p"]).await
    }

    /// Sends a key.
    pub async fn press(&self, key: &str) {
        self.tmux(&["send-keys", key]).await;
    }

    /// Waits until the program has ended, and well.
    pub async fn ended(&self) {
        self.shows(&["ended with 0"]).await;
    }

    /// Waits until all of this is on it.
    pub async fn shows(&self, parts: &[&str]) -> String {
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
