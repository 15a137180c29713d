//! What is wrong with a configuration, told to who wrote the `JobQueue`: by the fields of its spec, not by the keys that they
//! are rendered to.
use jobqueue::config::Problems;

/// Keys that are not just the field's path in snake case.
const RENAMED: &[(&str, &str)] = &[
    ("worker.count", "worker.concurrency"),
    ("worker.max_retries", "retry.max_retries"),
    ("worker.max_interruptions", "retry.max_interruptions"),
    ("worker.backoff", "retry.backoff"),
    ("worker.priorities", "queues"),
    ("worker.queues", "queues"),
    ("worker.weights", "queues"),
    ("producer.rate_limit_per_sec", "producer.rate_limit_per_second"),
    ("circuit_breaker.failure_threshold", "circuit_breaker.failure_percent"),
    ("circuit_breaker.cooldown_period", "circuit_breaker.cooldown"),
    ("redis.addr", "redis.external.address"),
    ("redis.sentinel.addrs", "redis.external.sentinel.addresses"),
    ("redis.sentinel.username", "redis.external.secret_ref"),
    ("redis.sentinel.password", "redis.external.secret_ref"),
    ("redis.sentinel", "redis.external.sentinel"),
    ("redis.cluster", "redis.external.cluster"),
    ("redis.db", "redis.external.db"),
    ("redis.tls.enabled", "redis.external.tls"),
    ("redis.tls.ca_file", "redis.external.secret_ref"),
    ("redis.tls.cert_file", "redis.external.secret_ref"),
    ("redis.tls.key_file", "redis.external.secret_ref"),
    ("redis.tls", "redis.external.tls"),
    ("redis.username", "redis.external.secret_ref"),
    ("redis.password", "redis.external.secret_ref"),
    ("redis.password_file", "redis.external.secret_ref"),
    ("worker.handler.kind", "worker.handler"),
    ("worker.handler.http.token_file", "worker.handler.http.secret_ref"),
    ("worker.handler.http.hmac_key_file", "worker.handler.http.secret_ref"),
    ("worker.handler.http.ca_file", "worker.handler.http.secret_ref"),
    ("worker.handler.http.cert_file", "worker.handler.http.secret_ref"),
    ("worker.handler.http.key_file", "worker.handler.http.secret_ref"),
    ("api.token_file", "api.token_secret_ref"),
];

/// What the keys of a configuration begin with.
const ROOTS: &[&str] = &[
    "protocol",
    "key_prefix",
    "redis",
    "worker",
    "producer",
    "api",
    "circuit_breaker",
    "observability",
    "sidekiq",
    "async",
];

/// Everything that is wrong, one line a problem.
pub fn told(problems: &Problems) -> String {
    let told = problems.0.iter().map(|problem| {
        let key = field(&problem.key).unwrap_or_else(|| problem.key.clone());
        format!("{} = {}: {}", key.escape_debug(), problem.value, sentence(&problem.rule))
    });
    told.collect::<Vec<_>>().join("\n")
}

/// A rule may speak of other keys.
fn sentence(rule: &str) -> String {
    let words = rule.split(' ').map(|word| {
        let key = word.trim_end_matches([',', ':', ';', '.']);
        // `worker` alone is a word, `worker.count` is a key.
        match field(key).filter(|_| key.contains('.') || key.contains('_')) {
            Some(field) => format!("{field}{}", &word[key.len()..]),
            None => word.to_owned(),
        }
    });
    words.collect::<Vec<_>>().join(" ")
}

/// The field of the spec that a key is rendered from.
fn field(key: &str) -> Option<String> {
    let below = |key: &str, of: &str| -> Option<String> {
        let rest = key.strip_prefix(of)?;
        (rest.is_empty() || rest.starts_with('.')).then(|| rest.to_owned())
    };
    ROOTS.iter().find(|root| below(key, root).is_some())?;
    let renamed = RENAMED.iter().find_map(|(from, to)| Some(format!("{to}{}", below(key, from)?)));
    // The name of a queue is no field: what follows it is as the user wrote it.
    let path = renamed.unwrap_or_else(|| key.to_owned());
    if let Some(name) = path.strip_prefix("queues.") {
        return Some(format!("spec.queues[{name}]"));
    }
    // Nor is the type of a job.
    if let Some(rest) = path.strip_prefix("async.handlers.") {
        let (name, field) = rest
            .split_once('.')
            .map_or((rest, String::new()), |(name, field)| (name, format!(".{}", camel_case(field))));
        return Some(format!("spec.async.handlers[{name}]{field}"));
    }
    Some(format!("spec.{}", camel_case(&path)))
}

fn camel_case(name: &str) -> String {
    let mut raise = false;
    name.chars().fold(String::with_capacity(name.len()), |mut text, letter| {
        match (letter, raise) {
            ('_', _) => raise = true,
            (letter, true) => {
                text.push(letter.to_ascii_uppercase());
                raise = false;
            }
            (letter, false) => text.push(letter),
        }
        text
    })
}

#[cfg(test)]
mod tests {
    use jobqueue::config::Config;
    use kube::CustomResourceExt;
    use serde_json::{Value, json};

    use super::*;

    fn problems(tree: Value) -> String {
        told(&Config::from_value(tree).unwrap_err())
    }

    #[test]
    fn fields_are_told_by_their_path_in_the_spec() {
        assert_eq!(
            problems(json!({ "worker": { "heartbeat_ttl": "1s" } })).lines().next(),
            Some("spec.worker.heartbeatTtl = 1s: must be at least 5s")
        );
        assert!(problems(json!({ "key_prefix": "a b" })).starts_with("spec.keyPrefix = \"a b\": "));
        let both = problems(json!({ "worker": { "backoff": { "base": "20s" } } }));
        assert_eq!(both, "spec.retry.backoff.base = 20s: must be at most spec.retry.backoff.max, 10s");
    }

    #[test]
    fn queues_are_told_by_their_names() {
        let twice = json!({ "worker": { "priorities": ["my_a", "b"], "queues": { "my_a": "one", "b": "one" } },
            "producer": { "default_priority": "b" } });
        assert_eq!(problems(twice), "spec.queues[my_a] = \"one\": is the key of spec.queues[b] too");
    }

    #[test]
    fn handlers_are_told_by_the_type_of_their_jobs() {
        let handlers = json!({ "async": { "handlers": { "send_mail": { "http": {} } } } });
        assert_eq!(
            problems(handlers),
            "spec.async.handlers[send_mail] = {...}: http needs url or unix_socket"
        );
    }

    #[test]
    fn what_is_no_key_stays_as_it_is() {
        assert_eq!(sentence("a worker must not be redis: see api"), "a worker must not be redis: see api");
        assert_eq!(field("metadata.name"), None);
    }

    /// Keys that a `JobQueue` cannot set, and why.
    const WITHOUT_A_FIELD: &[(&str, &str)] = &[
        ("redis.url", "external.address, secretRef and tls say the same, without a password in the open"),
        ("worker.pod_uid", "the operator sets it"),
        ("worker.jobqueue_uid", "the operator sets it"),
        ("worker.namespace", "the operator sets it"),
        ("producer.rate_limit_key", "a queue has one producer, and the key is of its prefix"),
        ("producer.once", "a pod that has ended is started again: rescanInterval says when"),
        ("observability.metrics_port", "probes and monitors look at 9090"),
        ("api.port", "the Service is what clients know"),
        ("api.look_interval", "events tell of changes, a look is for those that get lost"),
    ];

    /// Every key that has a value.
    fn keys(path: &str, schema: &Value, found: &mut Vec<String>) {
        let Some(properties) = schema["properties"].as_object() else {
            found.push(path.to_owned());
            return;
        };
        for (name, below) in properties {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            keys(&path, below, found);
        }
    }

    /// Whether the schema of the resource has this field.
    fn exists(schema: &Value, field: &str) -> bool {
        let properties = |schema: &Value, name: &str| schema["properties"].get(name).cloned();
        field.split('.').try_fold(schema.clone(), |schema, name| properties(&schema, name)).is_some()
    }

    #[test]
    fn every_key_of_the_configuration_has_a_field() {
        let mut settings = schemars::generate::SchemaSettings::default();
        settings.inline_subschemas = true;
        let config = settings.into_generator().into_root_schema_for::<jobqueue::config::Config>();
        let mut all = vec![];
        keys("", config.as_value(), &mut all);
        assert!(all.len() > 80, "{all:?}");
        let crd = serde_json::to_value(crate::api::v1alpha1::JobQueue::crd()).unwrap();
        let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        let has_field = |key: &String| field(key).is_some_and(|field| exists(schema, &field));
        let without: Vec<&str> = all.iter().filter(|key| !has_field(key)).map(String::as_str).collect();
        let excused: Vec<&str> = WITHOUT_A_FIELD.iter().map(|(key, _)| *key).collect();
        let (mut without, mut excused) = (without, excused);
        without.sort_unstable();
        excused.sort_unstable();
        assert_eq!(without, excused);
    }
}
