//! Every rule of the schema that needs no cluster; the same rules are tried against a real API server in tests/.
use proptest::prelude::*;

use super::*;

fn queue(yaml: &str) -> JobQueue {
    let spec: Value = serde_saphyr::from_str(yaml).unwrap();
    let spec: JobQueueSpec = serde_json::from_value(spec).unwrap();
    JobQueue::new("thumbnails", spec)
}

#[track_caller]
fn refused(queue: &JobQueue, with: &str) {
    let errors = queue.validate_cel().unwrap_err().to_string();
    assert!(errors.contains(with), "{errors}");
}

#[track_caller]
fn change_refused(from: &str, to: &str, with: &str) {
    let errors = queue(to).validate_cel_update(&queue(from)).unwrap_err().to_string();
    assert!(errors.contains(with), "{errors}");
}

#[test]
fn an_empty_spec_is_valid() {
    assert!(queue("{}").validate_cel().is_ok());
}

#[test]
fn a_spec_with_everything_is_valid() {
    let all = "
protocol: files
keyPrefix: thumbs
redis: {external: {address: 'redis.data:6379', secretRef: {name: redis}, tls: {}}}
queues: [{name: high, key: 'thumbs:high', weight: 5}, {name: low, weight: 1}]
retry: {maxRetries: 3, backoff: {base: 500ms, max: 10s}, maxInterruptions: 3}
scaling: {mode: Manual, minReplicas: 0, maxReplicas: 50, backlogPerWorker: 100, targetLatency: 30s, scaleDownDelay: 1m}
worker: {concurrency: 16, handler: {http: {path: /run, timeout: 60s}}, app: {port: 3000}, template: {spec: {containers: [{name: app, image: 'thumbs:3'}]}}}
producer: {scanDir: /data, volume: {persistentVolumeClaim: {claimName: inbox}}, rateLimitPerSecond: 100}
circuitBreaker: {failurePercent: 50, window: 1m, cooldown: 30s, minSamples: 20}
paused: true
deletionPolicy: Delete
";
    assert!(queue(all).validate_cel().is_ok());
}

#[test]
fn a_name_that_is_too_long_for_pods_is_refused() {
    let mut long = queue("{}");
    long.metadata.name = Some("x".repeat(41));
    refused(&long, "at most 40 characters");
    long.metadata.name = Some("9lives".into());
    refused(&long, "begin with a letter");
}

#[test]
fn contradictions_are_refused_with_a_message_that_says_what_to_do() {
    for (spec, message) in [
        ("scaling: {minReplicas: 5, maxReplicas: 2}", "minReplicas must not exceed maxReplicas"),
        ("scaling: {targetLatency: 0s}", "targetLatency must be more than 0s"),
        ("redis: {managed: {}, external: {address: 'a:1'}}", "set one of managed and external"),
        ("redis: {waitReplicas: 1}", "needs an external Redis"),
        ("worker: {reaper: {enabled: false}}", "enabled cannot be false"),
        ("redis: {external: {}}", "exactly one of address and sentinel"),
        (
            "redis: {external: {address: 'a:1', sentinel: {master: m, addresses: ['a:2']}}}",
            "exactly one of address and sentinel",
        ),
        ("redis: {external: {address: 'a:1', cluster: true, db: 3}}", "only database 0"),
        ("redis: {managed: {storage: {ephemeral: {}, size: 1Gi}}}", "ephemeral storage has no size"),
        ("worker: {handler: {}}", "exactly one of simulate, http and command"),
        (
            "worker: {handler: {simulate: {}, command: {argv: [x]}}}",
            "exactly one of simulate, http and command",
        ),
        ("worker: {shards: 17}", "shards must not exceed concurrency"),
        ("worker: {app: {port: 3000}}", "app needs handler.http"),
        ("worker: {handler: {http: {}}}", "exactly one of app"),
        ("worker: {handler: {http: {unixSocket: /run/app.sock}}, app: {}}", "exactly one of app"),
        ("worker: {handler: {http: {unixSocket: /run/app.sock, url: 'http://a'}}}", "exactly one of app"),
        ("{protocol: async, producer: {volume: {emptyDir: {}}}}", "needs protocol: files"),
        ("api: {}", "protocol: async"),
        ("sidekiq: {}", "protocol: sidekiq"),
        ("protocol: sidekiq", "spec.worker.handler must be set with protocol: sidekiq"),
        ("async: {}", "protocol: async"),
        ("{protocol: async, async: {handlers: {email: {}}}}", "exactly one of simulate, http and command"),
    ] {
        refused(&queue(spec), message);
    }
}

#[test]
fn what_the_jobs_depend_on_cannot_be_changed() {
    change_refused("{}", "protocol: async", "spec.protocol cannot be changed");
    for (from, to) in [("{}", "keyPrefix: a"), ("keyPrefix: a", "{}"), ("keyPrefix: a", "keyPrefix: b")] {
        change_refused(from, to, "spec.keyPrefix cannot be changed");
    }
    for (from, to) in [
        ("queues: [{name: a, key: one}]", "queues: [{name: a, key: two}]"),
        ("worker: {delayedSetPattern: 'a:%s'}", "worker: {delayedSetPattern: 'b:%s'}"),
        ("worker: {}", "worker: {deadLetterList: x}"),
    ] {
        change_refused(from, to, "cannot be changed");
    }
    let external = "redis: {external: {address: 'a:1'}}";
    for (from, to) in [("{}", external), (external, "{}"), (external, "redis: {managed: {}}")] {
        change_refused(from, to, "spec.redis cannot change");
    }
    // Rules about a change are skipped where the whole object appears or goes: each of these is another case.
    let none = "redis: {managed: {storage: {ephemeral: {}}}}";
    for volume in ["{}", "redis: {managed: {}}", "redis: {managed: {storage: {size: 1Gi}}}"] {
        for (from, to) in [(volume, none), (none, volume)] {
            change_refused(from, to, "cannot change between a volume and ephemeral");
        }
    }
    let class = "redis: {managed: {storage: {storageClassName: fast}}}";
    for (from, to) in
        [("{}", class), (class, "{}"), (class, "redis: {managed: {storage: {storageClassName: slow}}}")]
    {
        change_refused(from, to, "storageClassName cannot be changed");
    }
}

#[test]
fn everything_else_can_be_changed() {
    let (from, to) =
        ("redis: {external: {address: 'a:1'}}", "{redis: {external: {address: 'b:2'}}, paused: true}");
    assert!(queue(to).validate_cel_update(&queue(from)).is_ok());
    assert!(queue("redis: {managed: {}}").validate_cel_update(&queue("{}")).is_ok());
}

#[test]
fn the_crd_stays_small_and_has_no_unsigned_formats() {
    let yaml = crate::api::crd_yaml().unwrap();
    assert!(yaml.len() < 256 * 1024, "{}", yaml.len());
    assert!(!yaml.contains("uint"), "API servers warn about the formats of unsigned integers");
}

/// `scripts/generate` writes them.
#[test]
fn the_generated_files_are_those_of_the_types() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap_or_default();
    assert!(
        read("crds/jobqueues.yaml") == crate::api::crd_yaml().unwrap(),
        "crds/ is stale: run scripts/generate"
    );
    assert!(
        read("docs/crd.md") == crate::api::reference::markdown(),
        "docs/crd.md is stale: run scripts/generate"
    );
}

/// Strangers copy them, and the doctor would warn of what they copied.
#[test]
fn a_worker_of_the_examples_drains_for_as_long_as_a_job_may_take() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files = vec![root.join("README.md"), root.join("examples/rails/jobqueue.yaml")];
    files.extend(std::fs::read_dir(root.join("examples")).unwrap().map(|entry| entry.unwrap().path()));
    let mut limited = 0;
    for file in files.iter().filter(|file| file.is_file()) {
        let text = std::fs::read_to_string(file).unwrap();
        for document in text.split("---\n").flat_map(|part| part.split("```")) {
            let Some(at) = document.find("apiVersion: jobqueue.dev/v1alpha1\nkind: JobQueue\n") else {
                continue;
            };
            let queue: JobQueue = serde_saphyr::from_str(&document[at..]).unwrap();
            let Some((timeout, field)) = queue.spec.longest_job() else { continue };
            let drain = queue.spec.drain_timeout();
            assert!(timeout <= drain, "{}: {field} {timeout:?}, {drain:?}", file.display());
            limited += 1;
        }
    }
    assert!(limited >= 4, "{limited} have a timeout");
}

proptest! {
    /// Or one object that the API server has let in could not be read by us.
    #[test]
    fn every_duration_that_the_schema_takes_can_be_read(text in durations()) {
        prop_assert!(text.parse::<Duration>().is_ok(), "{text}");
    }
}

/// What the pattern takes, in 32 characters.
fn durations() -> impl Strategy<Value = String> {
    let few = DURATION.trim_matches(['^', '$']).replace(")+)", "){1,3})").replace("[0-9]+", "[0-9]{1,4}");
    proptest::string::string_regex(&few).unwrap().prop_filter("maxLength", |text| text.len() <= 32)
}
