//! From a `JobQueue` to the configuration that its workers read: pure.
//!
//! Fields have the same paths in both, in camel case here and in snake case there, so most of it is one renaming.
//! Only what was set is rendered: a worker of an older image reads it too, and what its reader sees is what somebody
//! decided. The worker's own type checks it, so a configuration that a worker would refuse never reaches one.
use jobqueue::config::{Config, Duration, Problems};
use serde_json::{Map, Value, json};

use super::names::Names;
use super::resolve::Resolved;
use crate::api::v1alpha1::{AsyncJobs, JobQueue, JobQueueSpec, Protocol, TypeHandler};

/// Where Secrets and the configuration are mounted in every pod of ours.
pub const CONFIG_DIR: &str = "/etc/jobqueue";
/// Where the credentials of Redis are mounted.
pub const REDIS_SECRET_DIR: &str = "/etc/jobqueue-redis";
/// Where the Secret of `handler.http.secretRef` is mounted.
pub const HANDLER_SECRET_DIR: &str = "/etc/jobqueue-handler";
/// Where the Secret of `api.tokenSecretRef` is mounted.
pub const API_SECRET_DIR: &str = "/etc/jobqueue-api";
/// The key of Redis' Secret with the user at the Sentinels.
const SENTINEL_USERNAME: &str = "sentinel-username";
/// The key with that user's password: pods have it as a variable, because the configuration is no place for it.
pub const SENTINEL_PASSWORD: &str = "sentinel-password";
/// The port of metrics and probes in every pod of ours.
pub const METRICS_PORT: i32 = 9090;
/// The port of the HTTP API.
pub const API_PORT: i32 = 8080;

/// How long it takes until nobody sends requests to a pod of the HTTP API that is to go.
const DRAIN_DELAY: std::time::Duration = std::time::Duration::from_secs(5);

/// A rendered configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct Rendered {
    /// What was set: the text of the `ConfigMap`.
    pub yaml: String,
    /// What it means: keys, queues, times.
    pub config: Config,
}

/// The configuration of the pods of a `JobQueue`, or everything that is wrong with it.
pub fn render(queue: &JobQueue, resolved: &Resolved) -> Result<Rendered, Problems> {
    let tree = tree(queue, resolved);
    let config = Config::from_value(tree.clone())?.config;
    // JSON is YAML: if it cannot be laid out nicely it still can be read.
    let yaml = serde_saphyr::to_string(&jobqueue::config::Plain(&tree)).unwrap_or_else(|_| tree.to_string());
    Ok(Rendered { yaml, config })
}

fn tree(queue: &JobQueue, resolved: &Resolved) -> Value {
    // Destructured whole, so that a new field of the spec cannot be forgotten here.
    let JobQueueSpec {
        protocol,
        key_prefix,
        redis,
        queues,
        retry,
        worker,
        producer,
        api,
        circuit_breaker,
        observability,
        sidekiq,
        async_jobs,
        // Not of the worker's business.
        replicas: _,
        scaling: _,
        paused: _,
        deletion_policy: _,
    } = &queue.spec;
    let mut tree = Tree::default();
    tree.set("protocol", protocol);
    let prefix = key_prefix.clone().unwrap_or_else(|| default_prefix(queue));
    tree.set("key_prefix", &prefix);
    if let Some(redis) = redis {
        tree.take("redis", redis, &["managed", "external"]);
    }
    redis_address(&mut tree, queue, resolved);
    if let Some(retry) = retry {
        tree.take("worker", retry, &[]);
    }
    tree.take("worker", worker, &["image", "concurrency", "handler", "app", "template", "resources"]);
    tree.set("worker.count", worker.concurrency);
    let drain_timeout = queue.spec.drain_timeout();
    tree.set("worker.drain_timeout", Duration::from(drain_timeout));
    handler(&mut tree, queue, resolved);
    if !queues.is_empty() {
        tree.set("worker.priorities", queues.iter().map(|queue| &queue.name).collect::<Vec<_>>());
        for queue in queues {
            let key = queue.key.clone().or_else(|| default_key(*protocol, &prefix, &queue.name));
            if let Some(key) = key {
                tree.set_in("worker.queues", &queue.name, key);
            }
            if let Some(weight) = queue.weight {
                tree.set_in("worker.weights", &queue.name, weight);
            }
        }
    }
    if let Some(producer) = producer {
        tree.take("producer", producer, &["volume", "template", "rate_limit_per_second"]);
        tree.set("producer.scan_dir", producer.scan_dir.as_deref().unwrap_or("/data"));
        if let Some(limit) = producer.rate_limit_per_second {
            tree.set("producer.rate_limit_per_sec", limit);
        }
    }
    if let Some(api) = api {
        tree.take("api", api, &["replicas", "token_secret_ref", "resources", "template"]);
        tree.set("api.port", API_PORT);
        if api.drain_delay.is_none() {
            tree.set("api.drain_delay", Duration::from((drain_timeout / 2).min(DRAIN_DELAY)));
        }
        if api.token_secret_ref.is_some() {
            tree.set("api.token_file", format!("{API_SECRET_DIR}/tokens"));
        }
    }
    if let Some(breaker) = circuit_breaker {
        tree.take("circuit_breaker", breaker, &["failure_percent", "cooldown"]);
        if let Some(percent) = breaker.failure_percent {
            tree.set("circuit_breaker.failure_threshold", f64::from(percent) / 100.0);
        }
        if let Some(cooldown) = breaker.cooldown {
            tree.set("circuit_breaker.cooldown_period", cooldown);
        }
    }
    if let Some(observability) = observability {
        tree.take("observability", observability, &[]);
    }
    tree.set("observability.metrics_port", METRICS_PORT);
    if let Some(sidekiq) = sidekiq {
        tree.take("sidekiq", sidekiq, &[]);
    }
    if let Some(async_jobs) = async_jobs {
        by_type(&mut tree, async_jobs);
    }
    tree.set("worker.jobqueue_uid", queue.metadata.uid.clone().unwrap_or_default());
    Value::Object(tree.0)
}

/// Sidekiq queues share Sidekiq's keys by nature; what is ours must still not collide.
fn default_prefix(queue: &JobQueue) -> String {
    match queue.spec.protocol {
        Protocol::Files => "jobqueue".into(),
        Protocol::Async => "jobs".into(),
        Protocol::Sidekiq => {
            let part = |text: &Option<String>| text.clone().unwrap_or_default();
            format!("jobqueue:{}:{}", part(&queue.metadata.namespace), part(&queue.metadata.name))
        }
    }
}

/// The key of a queue that names none.
fn default_key(protocol: Protocol, prefix: &str, name: &str) -> Option<String> {
    match (protocol, name) {
        (Protocol::Files, "high" | "low") => Some(format!("{prefix}:{name}_priority")),
        (Protocol::Files, name) => Some(format!("{prefix}:{name}")),
        (Protocol::Async, "default") => Some(format!("{prefix}:queue")),
        (Protocol::Async, name) => Some(format!("{prefix}:queue:{name}")),
        // Sidekiq's keys are derived by its rules.
        (Protocol::Sidekiq, _) => None,
    }
}

fn redis_address(tree: &mut Tree, queue: &JobQueue, resolved: &Resolved) {
    let external = queue.spec.redis.as_ref().and_then(|redis| redis.external.as_ref());
    let Some(external) = external else {
        tree.set("redis.addr", Names::of(queue).redis_address(&resolved.cluster_domain));
        tree.set("redis.password_file", format!("{REDIS_SECRET_DIR}/password"));
        return;
    };
    if let Some(address) = &external.address {
        tree.set("redis.addr", address);
    }
    if let Some(sentinel) = &external.sentinel {
        tree.set("redis.sentinel", json!({ "master": sentinel.master, "addrs": sentinel.addresses }));
    }
    if let Some(cluster) = external.cluster {
        tree.set("redis.cluster", cluster);
    }
    if let Some(db) = external.db {
        tree.set("redis.db", db);
    }
    let secret = resolved.redis_secret.as_ref();
    let file =
        |key: &str| secret.filter(|secret| secret.has(key)).map(|_| format!("{REDIS_SECRET_DIR}/{key}"));
    if let Some(path) = file("password") {
        tree.set("redis.password_file", path);
    }
    if let Some(username) = secret.and_then(|secret| secret.text("username")) {
        tree.set("redis.username", username);
    }
    let at_sentinels = secret.filter(|_| external.sentinel.is_some());
    if let Some(username) = at_sentinels.and_then(|secret| secret.text(SENTINEL_USERNAME)) {
        tree.set("redis.sentinel.username", username);
    }
    if let Some(tls) = &external.tls {
        tree.set("redis.tls.enabled", true);
        for (key, name) in [("ca_file", "ca.crt"), ("cert_file", "tls.crt"), ("key_file", "tls.key")] {
            if let Some(path) = file(name) {
                tree.set(&format!("redis.tls.{key}"), path);
            }
        }
        if let Some(name) = &tls.server_name {
            tree.set("redis.tls.server_name", name);
        }
    }
}

fn handler(tree: &mut Tree, queue: &JobQueue, resolved: &Resolved) {
    let worker = &queue.spec.worker;
    let Some(handler) = &worker.handler else { return };
    if let Some(simulate) = &handler.simulate {
        tree.set("worker.handler.kind", "simulate");
        tree.take("worker.handler.simulate", simulate, &[]);
    }
    if let Some(http) = &handler.http {
        tree.set("worker.handler.kind", "http");
        tree.take("worker.handler.http", http, &["secret_ref"]);
        if let Some(secret) = &resolved.handler_secret {
            for (field, key) in [
                ("hmac_key_file", "hmac"),
                ("token_file", "token"),
                ("ca_file", "ca.crt"),
                ("cert_file", "tls.crt"),
                ("key_file", "tls.key"),
            ] {
                // Signed requests need no token.
                if secret.has(key) && (key != "token" || !secret.has("hmac")) {
                    tree.set(&format!("worker.handler.http.{field}"), format!("{HANDLER_SECRET_DIR}/{key}"));
                }
            }
        }
        if let Some(app) = &worker.app {
            tree.set("worker.handler.http.url", format!("http://127.0.0.1:{}", app.port));
        }
    }
    if let Some(command) = &handler.command {
        tree.set("worker.handler.kind", "command");
        tree.take("worker.handler.command", command, &[]);
    }
}

/// Handlers by the type of job. One that names no place posts to where all others do, in the same way.
fn by_type(tree: &mut Tree, async_jobs: &AsyncJobs) {
    let common = tree.at("worker.handler.http").clone();
    for (name, TypeHandler { simulate, http, command }) in &async_jobs.handlers {
        let mut own = Tree::default();
        if let Some(simulate) = simulate {
            own.take("simulate", simulate, &[]);
        }
        if let Some(http) = http {
            if http.url.is_none() {
                own.at("http").extend(common.clone());
            }
            own.take("http", http, &[]);
        }
        if let Some(command) = command {
            own.take("command", command, &[]);
        }
        tree.set_in("async.handlers", name, own.0);
    }
    if common.is_empty() {
        tree.at("worker.handler").shift_remove("http");
    }
    if tree.at("worker.handler").is_empty() {
        tree.at("worker").shift_remove("handler");
    }
}

/// A configuration in the making.
#[derive(Default)]
struct Tree(Map<String, Value>);

impl Tree {
    /// Sets the value at a dotted path.
    fn set(&mut self, path: &str, value: impl serde::Serialize) {
        let (at, name) = path.rsplit_once('.').unwrap_or(("", path));
        self.set_in(at, name, value);
    }

    /// Sets one entry of the map at a dotted path; its name may have dots.
    fn set_in(&mut self, path: &str, name: &str, value: impl serde::Serialize) {
        let value = serde_json::to_value(value).unwrap_or_default();
        self.at(path).insert(name.to_owned(), value);
    }

    /// Takes over the fields of a part of the spec, renamed, but for the ones that mean something else.
    fn take(&mut self, path: &str, part: &impl serde::Serialize, without: &[&str]) {
        let Value::Object(fields) = serde_json::to_value(part).unwrap_or_default() else { return };
        let into = self.at(path);
        for (name, value) in fields {
            let name = snake_case(&name);
            if !without.contains(&name.as_str()) {
                into.insert(name, renamed(value));
            }
        }
    }

    fn at(&mut self, path: &str) -> &mut Map<String, Value> {
        path.split('.').filter(|part| !part.is_empty()).fold(&mut self.0, |map, part| {
            let value = map.entry(part).or_insert_with(|| json!({}));
            if !value.is_object() {
                *value = json!({});
            }
            match value {
                Value::Object(map) => map,
                // It was made an object above.
                _ => unreachable!("not an object"),
            }
        })
    }
}

fn renamed(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            fields.into_iter().map(|(name, value)| (snake_case(&name), renamed(value))).collect()
        }
        other => other,
    }
}

fn snake_case(name: &str) -> String {
    name.chars().fold(String::with_capacity(name.len() + 4), |mut text, letter| {
        if letter.is_ascii_uppercase() {
            text.push('_');
        }
        text.push(letter.to_ascii_lowercase());
        text
    })
}
