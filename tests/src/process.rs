//! The real worker binary under a test's control: its arguments, its log, its metrics, its signals.

use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::child::{ChildProcess, scratch_dir};
use crate::http;
use crate::recorder::Recorder;
use crate::wait::eventually;

/// How long the worker may take to say something.
const LOG_TIMEOUT: Duration = Duration::from_secs(30);
/// The failpoint that the worker's debug build reads.
const FAILPOINT: &str = "WORKER_FAILPOINT";
/// What a child keeps of our environment. All else could be a setting: the worker reads its
/// configuration from the environment too. `LLVM_PROFILE_FILE` makes its coverage count.
const KEPT: [&str; 5] = ["PATH", "HOME", "TMPDIR", "RUST_BACKTRACE", "LLVM_PROFILE_FILE"];
/// How much of a worker's log a failed test shows.
const SHOWN_LINES: usize = 60;

/// How to start a worker.
#[derive(Clone, Debug, Default)]
pub struct WorkerOptions {
    /// `--role`; empty for none.
    pub role: String,
    /// The text of `--config`; none means no such option.
    pub config: Option<String>,
    /// `REDIS_ADDR`.
    pub redis: Option<String>,
    /// Arguments after those.
    pub args: Vec<String>,
    /// Environment overrides of the configuration.
    pub env: Vec<(String, String)>,
    /// The program that starts it, with its arguments: `unshare`.
    pub starter: Vec<String>,
    /// Where the process is to die: `after-cycle`, or `after-cycle:3` for the third time it gets there.
    pub failpoint: Option<String>,
}

#[allow(
    clippy::needless_pass_by_value,
    reason = "`.redis(server.addr())` reads better than a reference to it"
)]
impl WorkerOptions {
    /// A worker of this role; its metrics port is free choice unless the environment says otherwise.
    pub fn new(role: &str) -> Self {
        Self { role: role.to_owned(), ..Self::default() }.env("OBSERVABILITY_METRICS_PORT", "0")
    }

    /// Sets the configuration file's text.
    #[must_use]
    pub fn config(mut self, yaml: &str) -> Self {
        self.config = Some(yaml.to_owned());
        self
    }

    /// Sets the address of Redis (`127.0.0.1:6379`).
    #[must_use]
    pub fn redis(mut self, addr: impl ToString) -> Self {
        self.redis = Some(addr.to_string());
        self
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<String>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Adds an environment variable; a later one of the same name wins.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl ToString) -> Self {
        self.env.push((name.to_owned(), value.to_string()));
        self
    }

    /// Sets the program that starts it, and its arguments.
    #[must_use]
    pub fn started_by(mut self, starter: &[&str]) -> Self {
        self.starter = starter.iter().map(|word| (*word).to_owned()).collect();
        self
    }

    /// Sets the failpoint.
    #[must_use]
    pub fn failpoint(mut self, failpoint: &str) -> Self {
        self.failpoint = Some(failpoint.to_owned());
        self
    }

    /// Jobs are posted to a recorder, a dead worker's come back after the shortest TTL there is.
    #[must_use]
    pub fn recorded_by(self, recorder: &Recorder) -> Self {
        self.env("WORKER_HANDLER_KIND", "http")
            .env("WORKER_HANDLER_HTTP_URL", recorder.url())
            .env("WORKER_HEARTBEAT_TTL", "5s")
    }

    /// Runs it to its end: for `--role=admin`, `config check`, `--version`. It blocks.
    pub fn output(&self) -> Output {
        let dir = scratch_dir("worker-");
        self.command(&dir).stdin(Stdio::null()).output().expect("run the worker")
    }

    fn command(&self, dir: &TempDir) -> Command {
        let worker = binary("worker");
        let mut command = match &self.starter[..] {
            [] => Command::new(worker),
            [program, args @ ..] => {
                let mut command = Command::new(program);
                command.args(args).arg(worker);
                command
            }
        };
        if !self.role.is_empty() {
            command.arg(format!("--role={}", self.role));
        }
        if let Some(yaml) = &self.config {
            let path = dir.path().join("config.yaml");
            std::fs::write(&path, yaml).expect("write the worker's configuration");
            command.arg(format!("--config={}", path.display()));
        }
        command.args(&self.args).current_dir(dir.path()).env_clear();
        command.envs(KEPT.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
        command.envs(self.redis.iter().map(|addr| ("REDIS_ADDR", addr)));
        command.envs(self.failpoint.iter().map(|failpoint| (FAILPOINT, failpoint)));
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }
}

/// The path of a binary of this workspace: `JOBQUEUE_BIN_DIR`, or where cargo puts it beside the test.
///
/// Cargo builds another package's binaries for no test: `make test` builds them first.
pub fn binary(name: &str) -> PathBuf {
    let dir = std::env::var_os("JOBQUEUE_BIN_DIR").map_or_else(
        || {
            // target/debug/deps/e2e-0123456789abcdef, or target/debug/bench for a binary.
            let exe = std::env::current_exe().expect("the path of this test");
            let dir = exe.parent().expect("a directory");
            if dir.ends_with("deps") { dir.parent().expect("a directory").to_owned() } else { dir.to_owned() }
        },
        PathBuf::from,
    );
    let path = dir.join(name);
    assert!(path.exists(), "{} is missing: run `cargo build --workspace --bins` first", path.display());
    path
}

/// A running worker, killed on drop.
#[derive(Debug)]
pub struct Worker {
    process: ChildProcess,
    log: Arc<Mutex<VecDeque<String>>>,
    // Last: the directory goes after the process that reads from it.
    _dir: TempDir,
}

impl Worker {
    /// Starts the worker; it has said nothing yet.
    pub fn spawn(options: &WorkerOptions) -> Self {
        let dir = scratch_dir("worker-");
        let mut command = options.command(&dir);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut process = ChildProcess::spawn(&mut command);
        let stderr = BufReader::new(process.take_stderr().expect("stderr is piped"));
        let log = Arc::new(Mutex::new(VecDeque::new()));
        let lines = Arc::clone(&log);
        // A thread, not a task: the pipe must be drained even while the test's runtime is busy.
        std::thread::spawn(move || {
            for line in stderr.split(b'\n').map_while(Result::ok) {
                lines.lock().expect("the log's lock").push_back(String::from_utf8_lossy(&line).into_owned());
            }
        });
        Self { process, log, _dir: dir }
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Every line of its standard error so far, as written.
    pub fn log_lines(&self) -> Vec<String> {
        self.log.lock().expect("the log's lock").iter().cloned().collect()
    }

    /// Every JSON line of its standard error so far.
    pub fn log(&self) -> Vec<Value> {
        self.log_lines().iter().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// The first log entry with this `msg`, waited for.
    pub async fn wait_for_log(&self, msg: &str) -> Value {
        self.wait_for_log_where(msg, |_| true).await
    }

    /// The first log entry with this `msg` that `accepts`, waited for.
    pub async fn wait_for_log_where(&self, msg: &str, accepts: impl Fn(&Value) -> bool) -> Value {
        eventually(LOG_TIMEOUT, &format!("the worker to log {msg:?}"), async || {
            let found = self.log().into_iter().find(|entry| entry["msg"] == msg && accepts(entry));
            found.ok_or_else(|| self.tail())
        })
        .await
    }

    /// Where it serves metrics and probes: the worker logs the address once it listens.
    pub async fn metrics_addr(&self) -> SocketAddr {
        let entry = self.wait_for_log("Serving metrics").await;
        let addr = entry["value"].as_str().unwrap_or_default();
        let mut addr: SocketAddr = addr.parse().unwrap_or_else(|_| panic!("not an address: {addr:?}"));
        // It listens everywhere, as it must in a pod; nobody can connect to "everywhere".
        if addr.ip().is_unspecified() {
            addr.set_ip(Ipv4Addr::LOCALHOST.into());
        }
        addr
    }

    /// The response of a GET on its metrics port: status and body.
    pub async fn get(&self, path: &str) -> (u16, String) {
        let url = format!("http://{}{path}", self.metrics_addr().await);
        let response = http::client().get(&url).send().await.unwrap_or_else(|error| panic!("{url}: {error}"));
        let status = response.status().as_u16();
        (status, response.text().await.unwrap_or_else(|error| panic!("{url}: {error}")))
    }

    /// A scrape.
    pub async fn metrics(&self) -> String {
        let (status, body) = self.get("/metrics").await;
        assert_eq!(status, 200, "GET /metrics: {body}");
        body
    }

    /// The sum over all samples of a metric whose labels include these, `None` if there is no such sample.
    pub async fn metric(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        sum_of(&self.metrics().await, name, labels)
    }

    /// SIGKILL; it is gone on return.
    pub fn kill9(&mut self) {
        self.process.kill9();
    }

    /// SIGSTOP.
    pub fn sigstop(&self) {
        self.process.signal(Signal::STOP);
    }

    /// SIGCONT.
    pub fn sigcont(&self) {
        self.process.signal(Signal::CONT);
    }

    /// SIGTERM: the graceful way.
    pub fn sigterm(&self) {
        self.process.signal(Signal::TERM);
    }

    /// SIGINT: the same from a keyboard.
    pub fn sigint(&self) {
        self.process.signal(Signal::INT);
    }

    /// Its resident memory in KiB.
    pub fn rss_kib(&self) -> u64 {
        self.status_kib("VmRSS:")
    }

    /// The part of it that is no page of the program's own file, which in a debug build is several times as large.
    pub fn allocated_kib(&self) -> u64 {
        self.status_kib("RssAnon:")
    }

    fn status_kib(&self, name: &str) -> u64 {
        let path = format!("/proc/{}/status", self.pid());
        let status = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a line of that name");
        line.trim().trim_end_matches(" kB").parse().expect("a number of KiB")
    }

    /// How it ended, if it has.
    pub fn exit_status(&mut self) -> Option<ExitStatus> {
        self.process.exit_status()
    }

    /// Waits until it has ended by itself.
    pub async fn wait_exit(&mut self, timeout: Duration) -> ExitStatus {
        self.process.wait_exit(timeout).await
    }

    fn tail(&self) -> String {
        let lines = self.log_lines();
        lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n")
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the worker's last lines (pid {}):\n{}", self.pid(), self.tail());
        }
    }
}

/// The sum over all samples of `name` in a scrape whose labels include `labels`.
pub fn sum_of(scrape: &str, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let wanted: Vec<String> = labels.iter().map(|(label, value)| format!("{label}=\"{value}\"")).collect();
    let samples = scrape.lines().filter_map(|line| {
        let (series, value) = line.rsplit_once(' ')?;
        let (series_name, rest) = series.split_once('{').unwrap_or((series, ""));
        let has = |label: &String| rest.starts_with(label.as_str()) || rest.contains(&format!(",{label}"));
        let labelled = wanted.iter().all(has);
        (series_name == name && labelled).then(|| value.parse::<f64>().ok())?
    });
    samples.fold(None, |sum, value| Some(sum.unwrap_or(0.0) + value))
}

#[cfg(test)]
mod tests {
    use super::sum_of;

    #[test]
    fn a_metric_is_summed_over_the_labels_not_asked_for() {
        let scrape = "# TYPE jobs_total counter\n\
                      jobs_total{queue=\"high\",result=\"done\"} 3\n\
                      jobs_total{queue=\"high\",result=\"dead\"} 1\n\
                      jobs_total{queue=\"low\",result=\"done\"} 5\n\
                      jobs_total_other 9\nup 1\n";
        assert_eq!(sum_of(scrape, "jobs_total", &[]), Some(9.0));
        assert_eq!(sum_of(scrape, "jobs_total", &[("queue", "high")]), Some(4.0));
        assert_eq!(sum_of(scrape, "jobs_total", &[("queue", "high"), ("result", "dead")]), Some(1.0));
        assert_eq!(sum_of(scrape, "jobs_total", &[("queue", "gone")]), None);
        assert_eq!(sum_of(scrape, "up", &[]), Some(1.0));
    }
}
