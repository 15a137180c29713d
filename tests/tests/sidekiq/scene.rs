//! A Redis, Ruby's console, an application behind our worker, and Sidekiq itself beside it.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a panic is the report")]
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use e2e::child::{ChildProcess, free_port};
use e2e::{Options, RedisServer, WorkerOptions, eventually};
use serde_json::Value;

/// Ruby takes a second to start, longer on a busy machine.
pub const SOON: Duration = Duration::from_secs(60);

fn ruby(file: &str, server: &RedisServer) -> Command {
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "tests/sidekiq/ruby", file].iter().collect();
    // Any that has a Sidekiq: scripts/newer-sidekiq has others than Debian's.
    let mut command = Command::new(std::env::var_os("SIDEKIQ_RUBY").unwrap_or_else(|| "ruby".into()));
    command.arg("-W0").arg(path).env("REDIS_URL", format!("redis://{}/0", server.addr()));
    command
}

/// `rails console`, for a test.
pub struct Console {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Console {
    fn start(server: &RedisServer) -> Self {
        let mut child = ruby("console.rb", server)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("ruby: run scripts/setup");
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, input, output }
    }

    /// What an expression comes to.
    pub fn eval(&mut self, code: &str) -> Value {
        writeln!(self.input, "{}", Value::from(code)).unwrap();
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        let answer: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("{code}: {line:?}"));
        assert!(answer.get("error").is_none(), "{code}: {}", answer["error"]);
        answer["ok"].clone()
    }

    /// Waits until an expression comes to this.
    pub async fn until(&mut self, code: &str, wanted: impl Into<Value>) {
        let wanted = wanted.into();
        eventually(SOON, &format!("{code} to be {wanted}"), async || {
            let found = self.eval(code);
            if found == wanted { Ok(()) } else { Err(found) }
        })
        .await;
    }

    /// How many runs were recorded.
    pub async fn until_ran(&mut self, count: usize) {
        self.until("Sidekiq.redis { |r| r.llen('ran') }", count).await;
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What these tests start from.
pub struct Scene {
    pub server: RedisServer,
    pub console: Console,
    pub port: u16,
    pub app: Option<ChildProcess>,
    /// Who answers in the application, for its `ANSWERS`.
    answers: &'static str,
}

impl Scene {
    /// A Redis and a console; the application is started.
    pub async fn start() -> Self {
        Self::answered_by("itself").await
    }

    /// The same with the gem for Rails in the application.
    pub async fn with_the_gem() -> Self {
        Self::answered_by("gem").await
    }

    async fn answered_by(answers: &'static str) -> Self {
        let server = RedisServer::start(Options::default()).await;
        let console = Console::start(&server);
        let mut scene = Self { server, console, port: free_port(), app: None, answers };
        scene.start_app().await;
        scene
    }

    /// Starts the application behind our worker, again if it is gone.
    pub async fn start_app(&mut self) {
        let mut command = ruby("app.rb", &self.server);
        command
            .env("PORT", self.port.to_string())
            .env("WHO", "ours")
            .env("ANSWERS", self.answers)
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        self.app = Some(ChildProcess::spawn(&mut command));
        let port = self.port;
        eventually(SOON, "the application to listen", async || {
            tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_ok()
        })
        .await;
    }

    /// Sidekiq itself on these queues.
    pub fn sidekiq(&self, queues: &str) -> ChildProcess {
        let mut command = ruby("server.rb", &self.server);
        command.env("QUEUES", queues).env("WHO", "sidekiq").stdin(Stdio::null()).stdout(Stdio::null());
        ChildProcess::spawn(&mut command)
    }

    /// Our worker on the queue `default`, its jobs run by the application.
    pub fn options(&self) -> WorkerOptions {
        self.options_of("worker")
    }

    /// The same in another role, or with a command.
    pub fn options_of(&self, role: &str) -> WorkerOptions {
        WorkerOptions::new(role)
            .redis(self.server.addr())
            .env("PROTOCOL", "sidekiq")
            .env("WORKER_HANDLER_KIND", "http")
            .env("WORKER_HANDLER_HTTP_URL", format!("http://127.0.0.1:{}", self.port))
            .env("WORKER_HEARTBEAT_TTL", "5s")
            .env("WORKER_COUNT", "8")
            .env("CIRCUIT_BREAKER_COOLDOWN_PERIOD", "500ms")
    }
}
