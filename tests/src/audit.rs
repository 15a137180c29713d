//! What operators have asked the API server for: the test cluster writes it down. Only after [`on_the_test_cluster`].
//!
//! [`on_the_test_cluster`]: crate::kubernetes::on_the_test_cluster
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;

use serde_json::Value;

use crate::kubernetes::{OPERATOR_NAMESPACE, kubectl, test_cluster};

/// The requests of an operator since a moment.
pub struct Audit {
    path: PathBuf,
    since: String,
    namespace: String,
    /// What the names of its pods begin with; empty: whatever they are called.
    replica_sets: Vec<String>,
}

/// A request of the operator.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Request {
    /// The verb of the API.
    pub verb: String,
    /// Group and resource, such as `apps/deployments` or `jobqueue.dev/jobqueues/status`; without a group `/pods`.
    pub resource: String,
    /// Where; empty: nowhere in particular.
    pub namespace: String,
    /// Whose; empty: of all.
    pub name: String,
    /// What came of it: the status of HTTP.
    pub code: i64,
    /// Whether its roles let it: `allow` or `forbid`.
    pub decision: String,
}

impl Request {
    /// Whether it may change something.
    pub fn is_write(&self) -> bool {
        !["get", "list", "watch"].contains(&self.verb.as_str())
    }
}

impl Audit {
    /// Everything from now on.
    pub async fn begin() -> Self {
        Self { since: jiff::Timestamp::now().to_string(), ..Self::all().await }
    }

    /// Everything since the cluster was started.
    pub async fn all() -> Self {
        let path = test_cluster(&["audit"]).await.into();
        Self { path, since: String::new(), namespace: OPERATOR_NAMESPACE.into(), replica_sets: vec![] }
    }

    /// Everything that this build of the operator has asked for: a cluster that is used again has seen others, which may
    /// have needed other rights. The log tells whose pods ran which image, also of those that are gone.
    pub async fn of_this_build() -> Self {
        let all = Self::all().await;
        let path = "jsonpath={.spec.template.spec.containers[0].image}";
        let get = ["-n", OPERATOR_NAMESPACE, "get", "deployment", "jobqueue-operator", "-o", path];
        let image = kubectl(&get).await.expect("an operator");
        let of_this_image = |entry: &Value| {
            let set = &entry["requestObject"];
            let same = set["kind"] == "ReplicaSet"
                && set["spec"]["template"]["spec"]["containers"][0]["image"] == image.as_str();
            same.then(|| format!("{}-", set["metadata"]["name"].as_str().expect("a name")))
        };
        let replica_sets: Vec<String> =
            all.entries("\"ReplicaSet\"").filter_map(|entry| of_this_image(&entry)).collect();
        assert!(
            !replica_sets.is_empty(),
            "the log knows no pods of {image}: the cluster was started by an older version of \
             tests/cluster/audit.yaml, tests/cluster/cluster down removes it"
        );
        Self { replica_sets, ..all }
    }

    /// Those of the operator in another namespace.
    #[must_use]
    pub fn of(self, namespace: &str) -> Self {
        Self { namespace: namespace.into(), ..self }
    }

    /// What the operator has written but the lease; that the leader renews it shows that the log is written and read.
    pub fn writes(&self) -> Vec<Request> {
        let writes = self.requests().into_iter().filter(Request::is_write);
        let (lease, writes): (Vec<_>, Vec<_>) =
            writes.partition(|request| request.resource == "coordination.k8s.io/leases");
        assert!(
            !lease.is_empty(),
            "no renewal of the lease in the audit log: it would show no other write either"
        );
        writes
    }

    /// What the operator asked for.
    pub fn requests(&self) -> Vec<Request> {
        let user = format!("system:serviceaccount:{}:", self.namespace);
        let entries = self.entries(&user).filter(|entry| self.is_its(entry));
        entries.filter_map(|entry| request(&entry, &user)).collect()
    }

    /// What was written down since, of the lines that contain a text.
    fn entries(&self, text: &str) -> impl Iterator<Item = Value> {
        // A full log is renamed and a new one begun.
        let logs = std::fs::read_dir(self.path.parent().expect("a directory")).expect("the logs");
        let logs = logs.filter_map(|entry| Some(entry.ok()?.path()));
        let logs = logs
            .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("audit")));
        let lines = logs.flat_map(|log| {
            BufReader::new(File::open(log).expect("an audit log")).lines().map_while(Result::ok)
        });
        let entries =
            lines.filter(move |line| line.contains(text)).filter_map(|line| serde_json::from_str(&line).ok());
        // Times of one format sort as text.
        let since = self.since.as_str();
        entries.filter(move |entry: &Value| {
            entry["requestReceivedTimestamp"].as_str().is_some_and(|received| received >= since)
        })
    }

    fn is_its(&self, entry: &Value) -> bool {
        let pod =
            entry["user"]["extra"]["authentication.kubernetes.io/pod-name"][0].as_str().unwrap_or_default();
        self.replica_sets.is_empty() || self.replica_sets.iter().any(|set| pod.starts_with(set.as_str()))
    }
}

fn request(entry: &Value, user: &str) -> Option<Request> {
    if !entry["user"]["username"].as_str()?.starts_with(user) {
        return None;
    }
    let object = &entry["objectRef"];
    let part = |name: &str| object[name].as_str().unwrap_or_default().to_owned();
    let mut resource = format!("{}/{}", part("apiGroup"), part("resource"));
    if let Some(below) = object["subresource"].as_str() {
        resource = format!("{resource}/{below}");
    }
    let verb = entry["verb"].as_str()?.to_owned();
    let code = entry["responseStatus"]["code"].as_i64().unwrap_or(0);
    let decision =
        entry["annotations"]["authorization.k8s.io/decision"].as_str().unwrap_or_default().to_owned();
    Some(Request { verb, resource, namespace: part("namespace"), name: part("name"), code, decision })
}
