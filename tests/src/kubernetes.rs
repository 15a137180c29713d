//! A real cluster, asked the way users ask it: through `kubectl`.
//!
//! `make test` starts the cluster, loads the images and installs the chart (`scripts/e2e`); the tests find all of it in
//! the environment. Each test lives in a namespace of its own, which enforces the level `restricted`.
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use crate::wait::eventually;

/// The namespace that the operator is installed in.
pub const OPERATOR_NAMESPACE: &str = "jobqueue-system";
/// Long enough for pods to start on a busy machine, short enough to notice that one never will.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A variable that `scripts/e2e` sets.
pub fn given(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: run `make test`, or eval \"$(scripts/e2e)\" first"))
}

/// Runs a program; its output, or what went wrong in its own words.
pub async fn run(program: &str, arguments: &[&str], input: Option<&str>) -> Result<String, String> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{program}: {error}: run `make test`"));
    let mut stdin = child.stdin.take().expect("a pipe was asked for");
    let text = input.unwrap_or_default().to_owned();
    let write = async move {
        // A program that reads no input closes the pipe.
        let _ = stdin.write_all(text.as_bytes()).await;
    };
    let ((), output) = tokio::join!(write, child.wait_with_output());
    let output = output.expect("the program ran");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

/// `kubectl` with these arguments.
pub async fn kubectl(arguments: &[&str]) -> Result<String, String> {
    run("kubectl", arguments, None).await
}

/// A namespace of a test's own; deleted with everything in it when the test ends well, kept for a look when it fails.
pub struct Namespace {
    /// Its name.
    pub name: String,
}

impl Namespace {
    /// A fresh one, at the level `restricted`.
    pub async fn create(test: &str) -> Self {
        let name = format!("{test}-{:06x}", fastrand::u32(0..1 << 24));
        let object = json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": { "name": name, "labels": { "pod-security.kubernetes.io/enforce": "restricted", "jobqueue.dev/test": "true" } },
        });
        run("kubectl", &["create", "-f", "-"], Some(&object.to_string())).await.expect("a namespace");
        Self { name }
    }

    /// `kubectl` in this namespace.
    pub async fn kubectl(&self, arguments: &[&str]) -> Result<String, String> {
        let mut all = vec!["-n", self.name.as_str()];
        all.extend(arguments);
        kubectl(&all).await
    }

    /// Applies objects, written as users write them; the error is what `kubectl` says.
    pub async fn try_apply(&self, yaml: &str) -> Result<String, String> {
        run("kubectl", &["-n", &self.name, "apply", "-f", "-"], Some(yaml)).await
    }

    /// Applies objects that must be accepted.
    pub async fn apply(&self, yaml: &str) {
        self.try_apply(yaml).await.unwrap_or_else(|error| panic!("{error}\n{yaml}"));
    }

    /// Applies a `JobQueue` with this spec.
    pub async fn queue(&self, name: &str, spec: &str) {
        self.apply(&queue(name, spec)).await;
    }

    /// An object, or nothing.
    pub async fn find(&self, kind: &str, name: &str) -> Option<Value> {
        let found = self.kubectl(&["get", kind, name, "-o", "json", "--ignore-not-found"]).await.ok()?;
        serde_json::from_str(&found).ok()
    }

    /// An object that must be there.
    pub async fn get(&self, kind: &str, name: &str) -> Value {
        self.find(kind, name).await.unwrap_or_else(|| panic!("there is no {kind} {name} in {}", self.name))
    }

    /// All objects of a kind with these labels.
    pub async fn list(&self, kind: &str, labels: &str) -> Vec<Value> {
        let found = self.kubectl(&["get", kind, "-l", labels, "-o", "json"]).await.unwrap_or_default();
        let list: Value = serde_json::from_str(&found).unwrap_or_default();
        list["items"].as_array().cloned().unwrap_or_default()
    }

    /// A condition of a `JobQueue` as `status/reason: message`.
    pub async fn condition(&self, queue: &str, kind: &str) -> String {
        let object = self.find("jobqueue", queue).await.unwrap_or_default();
        let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let found = conditions.iter().find(|one| one["type"] == kind).cloned().unwrap_or_default();
        let part = |name: &str| found[name].as_str().unwrap_or("-").to_owned();
        format!("{}/{}: {}", part("status"), part("reason"), part("message"))
    }

    /// Waits until a condition of a `JobQueue` begins with `wanted`, such as `True` or `False/KeyConflict`.
    pub async fn await_condition(&self, queue: &str, kind: &str, wanted: &str) -> String {
        let what = format!("{kind} of {queue} to be {wanted}");
        eventually(PATIENCE, &what, async || {
            let now = self.condition(queue, kind).await;
            if now.starts_with(wanted) { Ok(now) } else { Err(now) }
        })
        .await
    }

    /// Waits until a `JobQueue` is ready.
    pub async fn await_ready(&self, queue: &str) {
        self.await_condition(queue, "Ready", "True").await;
    }

    /// The managed Redis of a queue, through `redis-cli` in its own pod.
    pub async fn redis(&self, queue: &str, command: &[&str]) -> Result<String, String> {
        let secret = self.get("secret", &format!("{queue}-redis")).await;
        let password = decoded(secret["data"]["password"].as_str().unwrap_or_default());
        let pod = format!("{queue}-redis-0");
        let mut all = vec!["exec", &pod, "--", "redis-cli", "--no-auth-warning", "-a", &password];
        all.extend(command);
        let answer = self.kubectl(&all).await?;
        let answer = answer.trim().to_owned();
        // redis-cli exits with 0 whatever Redis said.
        let refused = ["ERR", "NOAUTH", "WRONG", "LOADING", "MISCONF", "Could not connect"];
        if refused.iter().any(|word| answer.starts_with(word)) { Err(answer) } else { Ok(answer) }
    }

    /// A figure of the managed Redis.
    pub async fn count(&self, queue: &str, command: &[&str]) -> u64 {
        self.redis(queue, command).await.ok().and_then(|text| text.parse().ok()).unwrap_or(0)
    }

    /// Pushes jobs that take `millis` each onto the queue under `key` of a managed Redis.
    pub async fn push(&self, queue: &str, key: &str, ids: std::ops::Range<u32>) {
        let all: Vec<u32> = ids.collect();
        for page in all.chunks(100) {
            let jobs: Vec<String> = page.iter().map(|id| job(*id)).collect();
            let mut command = vec!["LPUSH", key];
            command.extend(jobs.iter().map(String::as_str));
            self.redis(queue, &command).await.expect("LPUSH");
        }
    }

    /// Deletes the namespace without waiting for its end.
    pub async fn delete(self) {
        kubectl(&["delete", "namespace", &self.name, "--wait=false"]).await.expect("deleted");
    }
}

/// A job of the files format.
pub fn job(id: u32) -> String {
    json!({ "id": format!("job-{id}"), "filepath": format!("/data/{id}.txt"), "filesize": 0, "priority": "low", "retries": 0 }).to_string()
}

/// A `JobQueue` with this spec, given in YAML's flow style.
pub fn queue(name: &str, spec: &str) -> String {
    format!("apiVersion: jobqueue.dev/v1alpha1\nkind: JobQueue\nmetadata: {{name: {name}}}\nspec: {spec}\n")
}

/// Base64, as Secrets have it.
pub fn decoded(text: &str) -> String {
    use base64::Engine as _;
    let bytes = base64::engine::general_purpose::STANDARD.decode(text).expect("base64");
    String::from_utf8(bytes).expect("text")
}
