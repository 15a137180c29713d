//! The plugin on the PATH, and queues to try it on.
use std::path::{Path, PathBuf};
use std::process::Stdio;

use e2e::kubernetes::{LOW, Namespace, Redis, run};
use e2e::process::binary;
use serde_json::{Value, json};
use tokio::process::Command;

/// How a call ended.
#[derive(Debug)]
pub struct Ended {
    /// Its exit code.
    pub code: i32,
    /// What it answered.
    pub out: String,
    /// What it said beside it.
    pub err: String,
}

impl Ended {
    /// Its answer; it must have ended well.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.code, 0, "{self:#?}");
        self.out
    }

    /// What it said; it must have ended with this code.
    #[track_caller]
    pub fn failed(self, code: i32) -> String {
        assert_eq!(self.code, code, "{self:#?}");
        assert!(
            self.err.starts_with("Error: ") && self.err.trim_end().lines().count() == 1,
            "one line: {self:#?}"
        );
        self.err
    }

    /// Its answer as data.
    #[track_caller]
    pub fn json(self) -> Value {
        let out = self.ok();
        serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"))
    }
}

/// The PATH with the plugin on it.
pub fn path() -> String {
    let folder = binary("kubectl-jobqueue").parent().map(Path::to_owned).unwrap_or_default();
    format!("{}:{}", folder.display(), std::env::var("PATH").unwrap_or_default())
}

/// `kubectl jobqueue` with these arguments, not run yet.
pub fn command(space: &Namespace, arguments: &[&str]) -> Command {
    let mut command = Command::new("kubectl");
    command.args(["jobqueue", "-n", &space.name]).args(arguments).env("PATH", path()).kill_on_drop(true);
    command
}

/// `kubectl jobqueue` with these arguments.
pub async fn jobqueue(space: &Namespace, arguments: &[&str]) -> Ended {
    jobqueue_with(space, arguments, None).await
}

/// The same as somebody else: the kubeconfig of another.
pub async fn jobqueue_with(space: &Namespace, arguments: &[&str], kubeconfig: Option<&Path>) -> Ended {
    let mut command = command(space, arguments);
    if let Some(path) = kubeconfig {
        command.env("KUBECONFIG", path);
    }
    let output = command.stdin(Stdio::null()).output().await.expect("kubectl ran");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ended { code: output.status.code().unwrap_or(-1), out: text(&output.stdout), err: text(&output.stderr) }
}

/// A kubeconfig of a new `ServiceAccount` with this `ClusterRole` in the namespace.
pub async fn stranger(space: &Namespace, name: &str, role: Option<&str>) -> tempfile::NamedTempFile {
    space.kubectl(&["create", "serviceaccount", name]).await.expect("an account");
    if let Some(role) = role {
        let account = format!("--serviceaccount={}:{name}", space.name);
        space
            .kubectl(&["create", "rolebinding", name, &format!("--clusterrole={role}"), &account])
            .await
            .expect("bound");
    }
    let token = space.kubectl(&["create", "token", name]).await.expect("a token").trim().to_owned();
    let admin = run("kubectl", &["config", "view", "--raw", "--minify", "-o", "json"], None)
        .await
        .expect("a kubeconfig");
    let mut config: Value = serde_json::from_str(&admin).expect("JSON");
    config["users"][0]["user"] = json!({ "token": token });
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), config.to_string()).expect("written");
    file
}

/// A queue whose jobs in `bad/` fail at once, with workers from the first job on.
pub const FAILING: &str = "{scaling: {scaleDownDelay: 5s}, retry: {maxRetries: 0}, \
    worker: {handler: {simulate: {failGlob: '/bad/**'}}}}";

/// Dead letters as the workers write them, put there in one go: `count` of them, `job-0` the oldest.
pub async fn bury(redis: &Redis<'_>, count: u32) {
    const SCRIPT: &str = "for n = ARGV[1], ARGV[2] do redis.call('LPUSH', 'jobqueue:dead_letter', \
        '{\"id\":\"job-' .. string.format('%d', n) .. '\",\"filepath\":\"/bad/x\",\"filesize\":0,\"priority\":\"low\",\"retries\":3,\
        \"error\":\"simulated\",\"reason\":\"handler\",\"failed_at\":\"2026-01-01T00:00:00Z\",\"origin_queue\":\"jobqueue:low_priority\"}') end \
        return redis.call('LLEN', 'jobqueue:dead_letter')";
    for from in (0..count).step_by(10_000) {
        let to = (from + 10_000).min(count) - 1;
        redis.ask(&["EVAL", SCRIPT, "0", &from.to_string(), &to.to_string()]).await.expect("buried");
    }
}

/// The ids in the lists of waiting and of dead jobs together, sorted: what a requeue must not change.
pub async fn all_ids(redis: &Redis<'_>) -> Vec<String> {
    const SCRIPT: &str = "local ids = {} for _, key in ipairs({'jobqueue:low_priority', 'jobqueue:dead_letter'}) do \
        for _, job in ipairs(redis.call('LRANGE', key, 0, -1)) do ids[#ids + 1] = string.match(job, '\"id\":\"([^\"]*)\"') end end \
        table.sort(ids) return ids";
    redis.ask(&["EVAL", SCRIPT, "0"]).await.expect("ids").lines().map(str::to_owned).collect()
}

/// Waits until jobs wait in the queue `low`.
pub async fn waiting(redis: &Redis<'_>) -> u64 {
    redis.count(&["LLEN", LOW]).await
}

/// A file of a test's own.
pub fn file(directory: &tempfile::TempDir, name: &str) -> PathBuf {
    directory.path().join(name)
}
