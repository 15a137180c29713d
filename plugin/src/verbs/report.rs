//! `report`: a support bundle. Objects, events, logs and figures of queues and of the operator, with secrets masked.
use std::collections::HashSet;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use jiff::Timestamp;
use kube::ResourceExt;
use kube::api::{DynamicObject, ListParams, LogParams};
use operator::api::v1alpha1::JobQueue;
use operator::controller::QUEUE_LABEL;
use serde_json::{Value, json};

use super::dlq::stamp;
use super::logs::tail_lines;
use super::{doctor, stats};
use crate::cli::Report;
use crate::cluster::{Cluster, Listing};
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::mask::Mask;
use crate::table::whole;
use crate::{print, version};

/// What belongs to a queue: version, kind, plural.
const KINDS: [(&str, &str, &str); 10] = [
    ("v1", "Secret", "secrets"),
    ("v1", "Pod", "pods"),
    ("v1", "ConfigMap", "configmaps"),
    ("v1", "Service", "services"),
    ("v1", "PersistentVolumeClaim", "persistentvolumeclaims"),
    ("apps/v1", "Deployment", "deployments"),
    // What the events say that no pod came for: a quota, a webhook.
    ("apps/v1", "ReplicaSet", "replicasets"),
    ("apps/v1", "StatefulSet", "statefulsets"),
    ("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets"),
    ("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies"),
];

pub async fn run(cluster: &Cluster, args: &Report, interrupt: &Interrupt) -> Result<(), Error> {
    let found = interrupt.or(cluster.select(&args.which)).await?;
    let path =
        args.output.clone().unwrap_or_else(|| PathBuf::from(format!("jobqueue-report-{}.tar.gz", stamp())));
    let mut bundle = Bundle::create(&path)?;
    let filled = Box::pin(fill(cluster, args, &found, interrupt, &mut bundle));
    let unread = match interrupt.or(filled).await {
        Ok(unread) => unread,
        Err(error) => {
            bundle.discard();
            return Err(error);
        }
    };
    let files = bundle.finish()?;
    if !unread.is_empty() {
        eprintln!("Warning: {}", whole(&unmasked(&unread)));
    }
    let masked = if unread.is_empty() { "secrets are masked, but" } else { "not all secrets are masked:" };
    print::text(&format!(
        "Wrote {files} files about {} queues to {}; {masked} look before you send it\n",
        found.queues.len(),
        path.display()
    ))
}

/// That values of Secrets may be in the report, because nobody knew them: pure.
fn unmasked(unread: &[Unread]) -> String {
    let names: Vec<String> = unread.iter().map(|one| format!("{} ({})", one.secret, one.why)).collect();
    format!(
        "values of Secrets that could not be read are masked only where they look like one; not read: {}",
        names.join("; ")
    )
}

/// A Secret whose values are not known.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Unread {
    /// Its namespace and name.
    secret: String,
    /// What Kubernetes said.
    why: String,
}

async fn fill(
    cluster: &Cluster,
    args: &Report,
    found: &Listing,
    interrupt: &Interrupt,
    bundle: &mut Bundle,
) -> Result<Vec<Unread>, Error> {
    let queues = &found.queues;
    // Secrets first: what they hold is masked wherever else it occurs.
    let mut unread = vec![];
    for queue in queues {
        let within = cluster.within(&queue.namespace().unwrap_or_default());
        learn(&within, queue, &mut bundle.mask, &mut unread).await;
    }
    bundle.text("README.txt", &readme(queues, &unread))?;
    of_operator(cluster, args, bundle).await?;
    for (queue, error) in &found.unreadable {
        let place = format!("{}/{}", queue.namespace().unwrap_or_default(), queue.name_any());
        bundle.error(&format!("{place}/jobqueue"), error)?;
    }
    for queue in queues {
        let within = cluster.within(&queue.namespace().unwrap_or_default());
        of_queue(&within, queue, args, interrupt, bundle).await?;
    }
    Ok(unread)
}

fn readme(queues: &[JobQueue], unread: &[Unread]) -> String {
    let names: Vec<String> = queues
        .iter()
        .map(|queue| format!("{}/{}", queue.namespace().unwrap_or_default(), queue.name_any()))
        .collect();
    let mut text = format!(
        "A report of kubectl jobqueue {}, made at {}.\nQueues: {}\nWhat could not be read says so in a file that ends with .error.txt.\n",
        version::CLIENT,
        Timestamp::now(),
        names.join(", ")
    );
    if !unread.is_empty() {
        text = text + "Warning: " + &unmasked(unread) + "\n";
    }
    text
}

/// Learns the Secrets that a queue uses; of those that cannot be read it is told.
async fn learn(cluster: &Cluster, queue: &JobQueue, mask: &mut Mask, unread: &mut Vec<Unread>) {
    let api = cluster.objects("v1", "Secret", "secrets");
    for name in secrets(queue) {
        match cluster.ask(&format!("get secret {name}"), api.get_opt(&name)).await {
            Ok(Some(secret)) => mask.learn(&serde_json::to_value(secret).unwrap_or_default()),
            // It is not there, so nobody has read it either.
            Ok(None) => {}
            Err(error) => unread
                .push(Unread { secret: format!("{}/{name}", cluster.namespace), why: error.to_string() }),
        }
    }
}

/// The names of the Secrets that a queue uses: pure.
fn secrets(queue: &JobQueue) -> Vec<String> {
    let mut names = vec![];
    // That of the Redis which the operator runs.
    if queue.spec.redis.as_ref().is_none_or(|redis| redis.external.is_none()) {
        names.push(format!("{}-redis", queue.name_any()));
    }
    references(&serde_json::to_value(&queue.spec).unwrap_or_default(), &mut names);
    names.sort();
    names.dedup();
    names
}

/// The names of Secrets in a spec, wherever they stand.
fn references(value: &Value, names: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (field, value) in fields {
                let lower = field.to_lowercase();
                // A volume has `secret.secretName`, a source of a projected one `secret.name`.
                if lower.ends_with("secretref") || lower == "secretkeyref" || lower == "secret" {
                    names.extend(value["name"].as_str().map(str::to_owned));
                } else if lower == "imagepullsecrets" {
                    let listed = value.as_array().into_iter().flatten();
                    names.extend(listed.filter_map(|one| Some(one["name"].as_str()?.to_owned())));
                } else if lower == "secretname" {
                    names.extend(value.as_str().map(str::to_owned));
                }
                references(value, names);
            }
        }
        Value::Array(entries) => entries.iter().for_each(|entry| references(entry, names)),
        _ => {}
    }
}

async fn of_operator(cluster: &Cluster, args: &Report, bundle: &mut Bundle) -> Result<(), Error> {
    let found = match version::operators(cluster).await {
        Ok(found) => found,
        Err(error) => return bundle.error("operator", &error),
    };
    for operator in found {
        let within = cluster.within(&operator.namespace().unwrap_or_default());
        let mut about = HashSet::from([operator.uid().unwrap_or_default()]);
        bundle.object(&format!("operator/{}.yaml", operator.name_any()), &operator)?;
        let api = within.objects("v1", "Pod", "pods");
        let params = ListParams::default().labels("app.kubernetes.io/name=jobqueue-operator");
        match within.ask("list the operator's pods", api.list(&params)).await {
            Ok(pods) => {
                for pod in pods.items {
                    about.insert(pod.uid().unwrap_or_default());
                    bundle.object(&format!("operator/pod-{}.yaml", pod.name_any()), &pod)?;
                    logs(&within, &pod, args.tail, "operator", bundle).await?;
                }
            }
            Err(error) => bundle.error("operator/pods", &error)?,
        }
        events(&within, &about, &operator.name_any(), "operator", bundle).await?;
    }
    Ok(())
}

/// The events about some objects, and about those that are gone by now: they were called after this one.
async fn events(
    cluster: &Cluster,
    about: &HashSet<String>,
    owner: &str,
    place: &str,
    bundle: &mut Bundle,
) -> Result<(), Error> {
    match cluster.events("list the events", &ListParams::default()).await {
        Ok(events) => {
            let meant = events.iter().filter(|event| is_about(&event.data, about, owner));
            let events = meant.map(|event| serde_json::to_value(event).unwrap_or_default()).collect();
            bundle.value(&format!("{place}/events.yaml"), Value::Array(events))
        }
        Err(error) => bundle.error(&format!("{place}/events"), &error),
    }
}

/// Whether an event is about one of these objects, or one whose name begins with that of their owner: pure.
fn is_about(event: &Value, about: &HashSet<String>, owner: &str) -> bool {
    let text = |field: &str| event["involvedObject"][field].as_str().unwrap_or_default();
    about.contains(text("uid")) || text("name").strip_prefix(owner).is_some_and(|rest| rest.starts_with('-'))
}

async fn of_queue(
    cluster: &Cluster,
    queue: &JobQueue,
    args: &Report,
    interrupt: &Interrupt,
    bundle: &mut Bundle,
) -> Result<(), Error> {
    let name = queue.name_any();
    let place = format!("{}/{name}", cluster.namespace);
    bundle.value(&format!("{place}/jobqueue.yaml"), serde_json::to_value(queue).unwrap_or_default())?;
    let mut about = HashSet::from([queue.uid().unwrap_or_default()]);
    for (api_version, kind, plural) in KINDS {
        let api = cluster.objects(api_version, kind, plural);
        let params = ListParams::default().labels(&format!("{QUEUE_LABEL}={name}"));
        match cluster.ask(&format!("list {plural}"), api.list(&params)).await {
            Ok(found) => {
                for mut object in found.items {
                    about.insert(object.uid().unwrap_or_default());
                    object.types =
                        Some(kube::core::TypeMeta { api_version: api_version.into(), kind: kind.into() });
                    bundle.object(
                        &format!("{place}/{}-{}.yaml", kind.to_lowercase(), object.name_any()),
                        &object,
                    )?;
                    if kind == "Pod" {
                        logs(cluster, &object, args.tail, &place, bundle).await?;
                    }
                }
            }
            Err(error) => bundle.error(&format!("{place}/{plural}"), &error)?,
        }
    }
    events(cluster, &about, &name, &place, bundle).await?;
    match stats::ask(cluster, queue, interrupt).await {
        Ok(found) => bundle.value(&format!("{place}/stats.yaml"), json!(found))?,
        Err(error) => bundle.error(&format!("{place}/stats"), &error)?,
    }
    match doctor::of_queue(cluster, queue, interrupt).await {
        Ok(found) => bundle.value(&format!("{place}/doctor.yaml"), json!(found.findings)),
        Err(error) => bundle.error(&format!("{place}/doctor"), &error),
    }
}

async fn logs(
    cluster: &Cluster,
    pod: &DynamicObject,
    tail: i64,
    place: &str,
    bundle: &mut Bundle,
) -> Result<(), Error> {
    let name = pod.name_any();
    for list in ["initContainers", "containers"] {
        for container in pod.data["spec"][list].as_array().into_iter().flatten() {
            let container = container["name"].as_str().unwrap_or_default().to_owned();
            let params = LogParams {
                container: Some(container.clone()),
                tail_lines: tail_lines(tail),
                ..LogParams::default()
            };
            let pods = cluster.pods();
            match cluster.ask(&format!("read the logs of pod {name}"), pods.logs(&name, &params)).await {
                Ok(text) => bundle.text(&format!("{place}/logs/{name}-{container}.log"), &text)?,
                Err(error) => bundle.error(&format!("{place}/logs/{name}-{container}"), &error)?,
            }
            // What it said before it died last.
            let params = LogParams { previous: true, ..params };
            if let Ok(text) = cluster.ask("read earlier logs", pods.logs(&name, &params)).await {
                bundle.text(&format!("{place}/logs/{name}-{container}-previous.log"), &text)?;
            }
        }
    }
    Ok(())
}

/// The archive: everything that goes in is masked.
struct Bundle {
    archive: tar::Builder<GzEncoder<File>>,
    mask: Mask,
    root: String,
    files: usize,
    /// Where it grows, and where it goes when it is whole.
    growing: PathBuf,
    path: PathBuf,
}

impl Bundle {
    /// Begins one, in a file beside that which was asked for: an earlier report stays until the new one is whole.
    fn create(path: &Path) -> Result<Self, Error> {
        let unwritable = |error| Error::Usage(format!("--output {}: {error}", path.display()));
        // A pipe or a device is written to as it is.
        let special = std::fs::metadata(path).is_ok_and(|there| !there.is_file());
        let (growing, file) = if special {
            (path.to_owned(), File::options().write(true).open(path))
        } else {
            let mut name = path.file_name().unwrap_or_default().to_owned();
            name.push(format!(".{}.part", std::process::id()));
            let growing = path.with_file_name(name);
            (growing.clone(), File::create_new(growing))
        };
        let archive = tar::Builder::new(GzEncoder::new(file.map_err(unwritable)?, Compression::default()));
        let root = format!("jobqueue-report-{}", stamp());
        Ok(Self { archive, mask: Mask::default(), root, files: 0, growing, path: path.to_owned() })
    }

    /// It did not get to its end.
    fn discard(self) {
        if self.growing != self.path {
            let _ = std::fs::remove_file(&self.growing);
        }
    }

    fn object(&mut self, name: &str, object: &DynamicObject) -> Result<(), Error> {
        self.value(name, serde_json::to_value(object).unwrap_or_default())
    }

    fn value(&mut self, name: &str, mut value: Value) -> Result<(), Error> {
        if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("managedFields");
        }
        self.mask.object(&mut value);
        let text = print::yaml_text(&value);
        self.write(name, &text)
    }

    fn text(&mut self, name: &str, text: &str) -> Result<(), Error> {
        let text = self.mask.text(text);
        self.write(name, &text)
    }

    fn error(&mut self, name: &str, error: &Error) -> Result<(), Error> {
        self.text(&format!("{name}.error.txt"), &format!("{error}\n"))
    }

    fn write(&mut self, name: &str, text: &str) -> Result<(), Error> {
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(u64::try_from(Timestamp::now().as_second()).unwrap_or(0));
        let path = format!("{}/{name}", self.root);
        self.files += 1;
        self.archive
            .append_data(&mut header, path, text.as_bytes())
            .map_err(|error| Error::Failed(format!("cannot write the report: {error}")))
    }

    /// Closes it and puts it in its place; how many files it has.
    fn finish(self) -> Result<usize, Error> {
        let failed = |error: std::io::Error| Error::Failed(format!("cannot write the report: {error}"));
        let Self { archive, files, growing, path, .. } = self;
        let whole = archive.into_inner().and_then(GzEncoder::finish).and_then(|mut file| file.flush());
        let whole =
            whole.and_then(|()| if growing == path { Ok(()) } else { std::fs::rename(&growing, &path) });
        if let Err(error) = whole {
            if growing != path {
                let _ = std::fs::remove_file(&growing);
            }
            return Err(failed(error));
        }
        Ok(files)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;

    #[test]
    fn no_secret_gets_into_the_bundle_in_any_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("report.tar.gz");
        let mut bundle = Bundle::create(&path).unwrap();
        let secret = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "redis" }, "data": { "password": "aHVudGVyMnh5eg==" } });
        bundle.mask.learn(&secret);
        bundle.value("secret.yaml", secret).unwrap();
        bundle.value("pod.yaml", json!({ "kind": "Pod", "spec": { "containers": [{ "env": [{ "name": "X", "value": "redis://u:hunter2xyz@h" }] }] } })).unwrap();
        bundle.text("worker.log", "cannot log in with hunter2xyz\n").unwrap();
        bundle.error("stats", &Error::Failed("AUTH hunter2xyz".into())).unwrap();
        assert_eq!(bundle.finish().unwrap(), 4);
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(File::open(&path).unwrap()));
        let mut all = String::new();
        for entry in archive.entries().unwrap() {
            entry.unwrap().read_to_string(&mut all).unwrap();
        }
        assert!(!all.contains("hunter2xyz") && !all.contains("aHVudGVyMnh5eg"), "{all}");
        assert!(all.contains("cannot log in with ***") && all.contains("name: redis"), "{all}");
    }

    #[test]
    fn an_earlier_report_stays_until_the_new_one_is_whole() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("report.tar.gz");
        let files = || std::fs::read_dir(directory.path()).unwrap().count();
        std::fs::write(&path, "earlier").unwrap();
        let mut bundle = Bundle::create(&path).unwrap();
        bundle.text("a", "b").unwrap();
        bundle.discard();
        assert_eq!((std::fs::read(&path).unwrap().as_slice(), files()), (b"earlier".as_slice(), 1));
        let bundle = Bundle::create(&path).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"earlier");
        bundle.finish().unwrap();
        assert!(std::fs::read(&path).unwrap().starts_with(&[0x1f, 0x8b]) && files() == 1, "a gzip file");
        assert!(Bundle::create(directory.path()).is_err(), "a directory is no file");
    }

    #[test]
    fn every_secret_that_a_queue_refers_to_is_found() {
        let mut names = vec![];
        references(
            &json!({ "redis": { "external": { "secretRef": { "name": "a" } } }, "worker": { "template": { "spec": {
                "containers": [{ "env": [{ "valueFrom": { "secretKeyRef": { "name": "b" } } }] }],
                "imagePullSecrets": [{ "name": "e" }],
                "volumes": [{ "secret": { "secretName": "c" } }, { "projected": { "sources": [{ "configMap": { "name": "x" } }, { "secret": { "name": "f" } }] } }] } } }, "api": { "tokenSecretRef": { "name": "d" } } }),
            &mut names,
        );
        names.sort();
        assert_eq!(names, ["a", "b", "c", "d", "e", "f"]);
    }

    #[test]
    fn a_secret_that_could_not_be_read_is_named_where_the_report_is_read() {
        let queue = |spec: Value| -> JobQueue {
            serde_json::from_value(json!({
                "apiVersion": "jobqueue.dev/v1alpha1", "kind": "JobQueue",
                "metadata": { "name": "hello", "namespace": "a" }, "spec": spec,
            }))
            .unwrap()
        };
        assert_eq!(secrets(&queue(json!({}))), ["hello-redis"]);
        let external =
            json!({ "redis": { "external": { "address": "r:6379", "secretRef": { "name": "mine" } } } });
        assert_eq!(secrets(&queue(external)), ["mine"]);
        let unread =
            [Unread { secret: "a/hello-redis".into(), why: "cannot get secret hello-redis: no".into() }];
        let text = readme(&[queue(json!({}))], &unread);
        let text = Mask::default().text(&text);
        assert!(text.contains("a/hello-redis (cannot get secret hello-redis: no)"), "{text}");
        assert!(!readme(&[], &[]).contains("Warning"));
    }

    #[test]
    fn events_are_about_listed_objects_and_those_that_were() {
        let about = HashSet::from(["1".to_owned()]);
        let event = |uid: &str, name: &str| json!({ "involvedObject": { "uid": uid, "name": name } });
        assert!(is_about(&event("1", "any"), &about, "hello"));
        assert!(is_about(&event("2", "hello-worker-1"), &about, "hello"), "a pod that is gone");
        assert!(!is_about(&event("2", "hellover-worker-1"), &about, "hello"));
        assert!(!is_about(&event("2", "other"), &about, "hello"));
    }
}
