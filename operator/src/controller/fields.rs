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
    ("redis.sentinel", "redis.external.sentinel"),
    ("redis.cluster", "redis.external.cluster"),
    ("redis.db", "redis.external.db"),
    ("redis.tls", "redis.external.tls"),
    ("redis.username", "redis.external.secret_ref"),
    ("redis.password", "redis.external.secret_ref"),
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
    fn what_is_no_key_stays_as_it_is() {
        assert_eq!(sentence("a worker must not be redis: see api"), "a worker must not be redis: see api");
        assert_eq!(field("metadata.name"), None);
    }
}
