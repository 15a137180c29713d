//! A real cluster, asked the way users ask it: through `kubectl`.
//!
//! `make test` starts the cluster, loads the images and installs the chart (`scripts/e2e`); the tests find all of it in
//! the environment. Each test lives in a namespace of its own, which enforces the level `restricted`.
use std::future::Future;
use std::ops::Range;
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use crate::wait::{Look, eventually};

/// The namespace that the operator is installed in.
pub const OPERATOR_NAMESPACE: &str = "jobqueue-system";
/// Long enough for pods to start on a busy machine, short enough to notice that one never will.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// The list that jobs of priority low are pushed to, where no prefix is set.
pub const LOW: &str = "jobqueue:low_priority";
/// The list of completed jobs, where no prefix is set.
pub const COMPLETED: &str = "jobqueue:completed";

/// A variable that `scripts/e2e` sets.
pub fn given(name: &str) -> String {
    std::env::var(name)
        .unwrap_or_else(|_| panic!("{name} is not set: run `make test`, or eval \"$(scripts/e2e)\" first"))
}

/// Runs a program; its output, or what went wrong in its own words.
pub async fn run(program: &str, arguments: &[&str], input: Option<&str>) -> Result<String, String> {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
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
        patiently(&what, async || {
            let now = self.condition(queue, kind).await;
            if now.starts_with(wanted) { Ok(now) } else { Err(now) }
        })
        .await
    }

    /// Waits until a `JobQueue` is ready.
    pub async fn await_ready(&self, queue: &str) {
        self.await_condition(queue, "Ready", "True").await;
    }

    /// The managed Redis of a queue.
    pub async fn managed(&self, queue: &str) -> Redis<'_> {
        let secret = self.get("secret", &format!("{queue}-redis")).await;
        let password = decoded(secret["data"]["password"].as_str().unwrap_or_default());
        let flags = ["--no-auth-warning", "-a", &password].map(str::to_owned).to_vec();
        Redis { namespace: self, pod: format!("{queue}-redis-0"), flags }
    }

    /// A Redis that users run themselves, behind a Service of its name.
    pub async fn external(&self, name: &str) -> Redis<'_> {
        self.external_with(name, &["--protected-mode", "no"], vec![], None).await
    }

    /// One on this node.
    pub async fn external_on(&self, name: &str, node: &str) -> Redis<'_> {
        self.start_external(name, &["--protected-mode", "no"], vec![], None, Some(node)).await
    }

    /// One with these arguments; `secret` is mounted at `/tls`.
    pub async fn external_with(
        &self,
        name: &str,
        arguments: &[&str],
        flags: Vec<String>,
        secret: Option<&str>,
    ) -> Redis<'_> {
        self.start_external(name, arguments, flags, secret, None).await
    }

    async fn start_external(
        &self,
        name: &str,
        arguments: &[&str],
        flags: Vec<String>,
        secret: Option<&str>,
        node: Option<&str>,
    ) -> Redis<'_> {
        let mut command = vec!["redis-server", "--save", "", "--dir", "/data"];
        command.extend(arguments);
        let tls = secret.map_or(
            json!({ "name": "tls", "emptyDir": {} }),
            |secret| json!({ "name": "tls", "secret": { "secretName": secret } }),
        );
        let object = json!({ "apiVersion": "v1", "kind": "List", "items": [
            {
                "apiVersion": "v1", "kind": "Pod",
                "metadata": { "name": name, "labels": { "app": name } },
                "spec": {
                    "automountServiceAccountToken": false,
                    "enableServiceLinks": false,
                    "terminationGracePeriodSeconds": 1,
                    "nodeName": node,
                    "securityContext": { "runAsNonRoot": true, "runAsUser": 65532, "fsGroup": 65532, "seccompProfile": { "type": "RuntimeDefault" } },
                    "containers": [{
                        "name": "redis", "image": given("REDIS_IMAGE"), "command": command,
                        "readinessProbe": { "tcpSocket": { "port": 6379 }, "periodSeconds": 1 },
                        "securityContext": { "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } },
                        "volumeMounts": [{ "name": "data", "mountPath": "/data" }, { "name": "tls", "mountPath": "/tls" }],
                    }],
                    "volumes": [{ "name": "data", "emptyDir": {} }, tls],
                },
            },
            {
                "apiVersion": "v1", "kind": "Service",
                "metadata": { "name": name },
                "spec": { "selector": { "app": name }, "ports": [{ "port": 6379 }] },
            },
        ]});
        self.apply(&object.to_string()).await;
        self.kubectl(&["wait", "--for=condition=Ready", "--timeout=120s", "pod", name])
            .await
            .expect("a Redis");
        Redis { namespace: self, pod: name.to_owned(), flags }
    }

    /// The spec of a queue on an external Redis, with more fields.
    pub fn on(&self, redis: &str, more: &str) -> String {
        format!("{{redis: {{external: {{address: \"{redis}.{}:6379\"}}}}, {more}}}", self.name)
    }

    /// Changes a `JobQueue`.
    pub async fn patch(&self, queue: &str, patch: &str) {
        self.kubectl(&["patch", "jobqueue", queue, "--type=merge", "-p", patch]).await.expect("patched");
    }

    /// The messages of the events with this reason.
    pub async fn events(&self, reason: &str) -> Vec<String> {
        let found = self
            .kubectl(&["get", "events", "--field-selector", &format!("reason={reason}"), "-o", "json"])
            .await;
        let list: Value = serde_json::from_str(&found.expect("events")).expect("JSON");
        let items = list["items"].as_array().cloned().unwrap_or_default();
        items.iter().filter_map(|event| event["message"].as_str().map(str::to_owned)).collect()
    }

    /// The names of a queue's worker pods that are not on their way out.
    pub async fn workers(&self, queue: &str) -> Vec<String> {
        let labels = format!("jobqueue.dev/queue={queue},app.kubernetes.io/component=worker");
        let pods = self.list("pods", &labels).await;
        let there = pods.iter().filter(|pod| pod["metadata"]["deletionTimestamp"].is_null());
        there.filter_map(|pod| pod["metadata"]["name"].as_str().map(str::to_owned)).collect()
    }

    /// The sum of a metric over the queues of a `JobQueue`, as the operators export it.
    pub async fn metric(&self, name: &str, queue: &str) -> f64 {
        let (of, within) = (format!("jobqueue=\"{queue}\""), format!("namespace=\"{}\"", self.name));
        let operators = [
            "-n",
            OPERATOR_NAMESPACE,
            "get",
            "pods",
            "-l",
            "app.kubernetes.io/name=jobqueue-operator",
            "-o",
            "name",
        ];
        let mut sum = 0.0;
        for pod in kubectl(&operators).await.expect("operators").lines() {
            let pod = pod.trim_start_matches("pod/");
            let path = format!("/api/v1/namespaces/{OPERATOR_NAMESPACE}/pods/{pod}:8080/proxy/metrics");
            let text = kubectl(&["get", "--raw", &path]).await.unwrap_or_default();
            let lines = text
                .lines()
                .filter(|line| line.starts_with(name) && line.contains(&of) && line.contains(&within));
            sum += lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum::<f64>();
        }
        sum
    }

    /// How many workers a queue's Deployment asks for.
    pub async fn asked_for(&self, queue: &str) -> i64 {
        let deployment = self.get("deployment", &format!("{queue}-worker")).await;
        deployment["spec"]["replicas"].as_i64().unwrap_or(-1)
    }

    /// Waits until a queue's Deployment asks for this many workers.
    pub async fn await_asked_for(&self, queue: &str, wanted: i64) {
        patiently("workers asked for", async || {
            let replicas = self.asked_for(queue).await;
            if replicas == wanted { Ok(()) } else { Err(replicas) }
        })
        .await;
    }

    /// Deletes the namespace without waiting for its end.
    pub async fn delete(self) {
        kubectl(&["delete", "namespace", &self.name, "--wait=false"]).await.expect("deleted");
    }
}

/// A Redis of the cluster, asked through `redis-cli` in its own pod.
pub struct Redis<'a> {
    namespace: &'a Namespace,
    pod: String,
    flags: Vec<String>,
}

impl Redis<'_> {
    /// Its answer, or its error.
    pub async fn ask(&self, command: &[&str]) -> Result<String, String> {
        let mut all = vec!["exec", &self.pod, "--", "redis-cli"];
        all.extend(self.flags.iter().map(String::as_str));
        all.extend(command);
        self.answer(&all, None).await
    }

    async fn answer(&self, arguments: &[&str], input: Option<&str>) -> Result<String, String> {
        let mut all = vec!["-n", self.namespace.name.as_str()];
        all.extend(arguments);
        let answer = run("kubectl", &all, input).await?.trim().to_owned();
        // redis-cli exits with 0 whatever Redis said.
        let refused =
            ["ERR", "NOAUTH", "NOPERM", "WRONG", "LOADING", "MISCONF", "(error)", "Could not connect"];
        if refused.iter().any(|word| answer.starts_with(word)) { Err(answer) } else { Ok(answer) }
    }

    /// A figure.
    pub async fn count(&self, command: &[&str]) -> u64 {
        let answer = self.ask(command).await.unwrap_or_else(|error| panic!("{command:?}: {error}"));
        answer.parse().unwrap_or_else(|_| panic!("{command:?}: {answer}"))
    }

    /// Pushes jobs in one command, so that nobody sees a part of them.
    pub async fn push(&self, key: &str, ids: Range<u32>) {
        self.push_all(key, &ids.map(job).collect::<Vec<_>>()).await;
    }

    /// Pushes these jobs.
    pub async fn push_all(&self, key: &str, jobs: &[Value]) {
        let line = jobs.iter().fold(format!("LPUSH {key}"), |line, job| format!("{line} '{job}'"));
        let mut all = vec!["exec", "-i", &self.pod, "--", "redis-cli"];
        all.extend(self.flags.iter().map(String::as_str));
        self.answer(&all, Some(&format!("{line}\n"))).await.expect("pushed");
    }

    /// The ids of the completed jobs, sorted.
    pub async fn completed(&self) -> Result<Vec<String>, String> {
        self.completed_in(COMPLETED).await
    }

    /// The ids of the jobs in a list of completed ones, sorted.
    pub async fn completed_in(&self, list: &str) -> Result<Vec<String>, String> {
        let lines = self.ask(&["LRANGE", list, "0", "-1"]).await?;
        let ids = lines.lines().filter_map(|line| {
            let job: Value = serde_json::from_str(line).ok()?;
            job["id"].as_str().map(str::to_owned)
        });
        let mut ids: Vec<String> = ids.collect();
        ids.sort();
        Ok(ids)
    }

    /// Waits until this many jobs are held by workers.
    pub async fn await_running(&self, wanted: u64) {
        patiently("jobs that run", async || {
            let held = self.held().await.len() as u64;
            if held == wanted { Ok(()) } else { Err(held) }
        })
        .await;
    }

    /// The jobs that workers hold, as they are.
    pub async fn held(&self) -> Vec<Value> {
        const LOOK: &str = "local found = {} for _, key in ipairs(redis.call('KEYS', 'jobqueue:worker:*')) do \
            for _, job in ipairs(redis.call('LRANGE', key, 0, -1)) do found[#found + 1] = job end end return found";
        let lines = self.ask(&["EVAL", LOOK, "0"]).await.unwrap_or_default();
        lines.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// What the completed jobs look like, by id.
    pub async fn completed_jobs(&self) -> std::collections::BTreeMap<String, Value> {
        let lines = self.ask(&["LRANGE", COMPLETED, "0", "-1"]).await.unwrap_or_default();
        let jobs = lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        jobs.map(|job| (job["id"].as_str().unwrap_or_default().to_owned(), job)).collect()
    }

    /// Waits until these jobs are completed: each of them, once, and nothing else.
    pub async fn await_completed(&self, ids: Range<u32>) {
        self.await_completed_in(COMPLETED, ids).await;
    }

    /// The same, in another list of completed jobs.
    pub async fn await_completed_in(&self, list: &str, ids: Range<u32>) {
        let mut wanted: Vec<String> = ids.map(id).collect();
        wanted.sort();
        patiently("completed jobs", async || {
            let completed = self.completed_in(list).await?;
            if completed.len() >= wanted.len() {
                Ok(())
            } else {
                Err(format!("{} of {}", completed.len(), wanted.len()))
            }
        })
        .await;
        assert_eq!(self.completed_in(list).await.expect("completed jobs"), wanted, "each job once");
    }
}

/// Waits for something of the cluster. Each look starts a program or two: five a second are enough.
#[track_caller]
pub fn patiently<L: Look>(what: &str, mut look: impl AsyncFnMut() -> L) -> impl Future<Output = L::Found> {
    eventually(PATIENCE, what, async move || {
        tokio::time::sleep(Duration::from_millis(200)).await;
        look().await
    })
}

/// Whether this is the project's own cluster, which `scripts/e2e` says: some tests need to reach below Kubernetes, or
/// change what a cluster of yours needs. On another one the test that asks does not run, and says so.
pub fn on_the_test_cluster() -> bool {
    use std::io::Write as _;
    let ours = match given("JOBQUEUE_CLUSTER").as_str() {
        "test" => true,
        "foreign" => false,
        other => panic!("JOBQUEUE_CLUSTER={other}: neither test nor foreign; eval \"$(scripts/e2e)\""),
    };
    if !ours {
        let test = std::thread::current();
        let test = test.name().unwrap_or("a test");
        // Not eprintln: what a test that passes prints is not shown.
        let _ = writeln!(std::io::stderr(), "{test}: not run: needs the test cluster (unset KUBECONFIG)");
    }
    ours
}

/// The tool of the test cluster: only after [`on_the_test_cluster`].
pub async fn test_cluster(arguments: &[&str]) -> String {
    let tool = concat!(env!("CARGO_MANIFEST_DIR"), "/cluster/cluster");
    let said = run(tool, arguments, None).await.unwrap_or_else(|error| panic!("{arguments:?}: {error}"));
    said.trim().to_owned()
}

/// The process of a pod's container, seen from the machine that the test cluster runs on.
pub async fn process_of(namespace: &str, pod: &str, container: &str) -> rustix::process::Pid {
    let object = kubectl(&["-n", namespace, "get", "pod", pod, "-o", "json"]).await.expect("a pod");
    let object: Value = serde_json::from_str(&object).expect("JSON");
    let lists =
        ["containerStatuses", "initContainerStatuses"].map(|list| object["status"][list].as_array().cloned());
    let containers: Vec<Value> = lists.into_iter().flatten().flatten().collect();
    let found = containers.iter().find(|one| one["name"] == container).expect("a container of that name");
    let id = found["containerID"].as_str().expect("a running container");
    let id = id.rsplit('/').next().unwrap_or_default().to_owned();
    let processes = std::fs::read_dir("/proc").expect("processes");
    let found = processes.filter_map(Result::ok).find_map(|entry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        let groups = std::fs::read_to_string(entry.path().join("cgroup")).ok()?;
        groups.contains(&id).then_some(pid)
    });
    rustix::process::Pid::from_raw(found.expect("the process of the container")).expect("a process id")
}

/// The id of a job.
pub fn id(number: u32) -> String {
    format!("job-{number}")
}

/// A job of the files format.
pub fn job(number: u32) -> Value {
    json!({ "id": id(number), "filepath": format!("/data/{number}.txt"), "filesize": 0, "priority": "low", "retries": 0 })
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
