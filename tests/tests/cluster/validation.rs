//! What the API server refuses, in words that say what to do.
use e2e::kubernetes::{Namespace, queue};

#[tokio::test]
async fn a_bad_spec_is_refused_with_the_reason() {
    let space = Namespace::create("refused").await;
    let cases = [
        ("{scaling: {minReplicas: 5, maxReplicas: 2}}", "minReplicas must not exceed maxReplicas"),
        ("{scaling: {minReplicas: 11}}", "minReplicas must not exceed maxReplicas"),
        ("{scaling: {targetLatency: 0s}}", "targetLatency must be more than 0s"),
        ("{redis: {managed: {}, external: {address: 'a:1'}}}", "set one of managed and external, not both"),
        ("{redis: {external: {}}}", "set exactly one of address and sentinel"),
        ("{redis: {external: {address: 'redis://a'}}}", "spec.redis.external.address"),
        ("{redis: {managed: {storage: {ephemeral: {}, size: 1Gi}}}}", "ephemeral storage has no size"),
        ("{worker: {handler: {}}}", "set exactly one of simulate, http and command"),
        (
            "{worker: {handler: {simulate: {}, command: {argv: [a]}}}}",
            "set exactly one of simulate, http and command",
        ),
        ("{worker: {app: {}}}", "app needs handler.http: the worker posts the jobs to it"),
        ("{worker: {handler: {http: {}}}}", "handler.http needs exactly one of app"),
        ("{worker: {app: {}, handler: {http: {url: 'http://a'}}}}", "handler.http needs exactly one of app"),
        ("{worker: {app: {}, handler: {http: {unixSocket: /a}}}}", "handler.http needs exactly one of app"),
        ("{worker: {concurrency: 0}}", "spec.worker.concurrency"),
        ("{worker: {drainTimeout: soon}}", "spec.worker.drainTimeout"),
        ("{worker: {drainTimeout: 5}}", "spec.worker.drainTimeout"),
        ("{worker: {drainTimeout: 9999999h}}", "spec.worker.drainTimeout"),
        (
            "{protocol: async, producer: {volume: {emptyDir: {}}}}",
            "spec.producer scans files: it needs protocol: files",
        ),
        ("{api: {}}", "spec.api is the HTTP API of protocol: async"),
        ("{sidekiq: {}}", "spec.sidekiq needs protocol: sidekiq"),
        ("{protocol: sidekiq}", "spec.worker.handler must be set with protocol: sidekiq"),
        ("{producer: {}}", "spec.producer.volume: Required value"),
        ("{queues: [{name: a}, {name: a}]}", "Duplicate value"),
        ("{protocol: resque}", "Unsupported value: \"resque\""),
        ("{workers: 3}", "unknown field \"spec.workers\""),
    ];
    for (spec, message) in cases {
        refused(&space, "bad", spec, message).await;
    }
    let long = "a".repeat(41);
    for name in [long.as_str(), "1st", "with.dots"] {
        refused(&space, name, "{}", "metadata.name must have at most 40 characters, begin with a letter")
            .await;
    }
    space.delete().await;
}

#[tokio::test]
async fn what_would_leave_jobs_behind_cannot_be_changed() {
    let space = Namespace::create("immutable").await;
    let external = "{redis: {external: {address: 'nowhere.invalid:6379'}}}";
    let prefixed = "{keyPrefix: a, redis: {external: {address: 'nowhere.invalid:6379'}}}";
    let other = "{keyPrefix: b, redis: {external: {address: 'nowhere.invalid:6379'}}}";
    let cases = [
        (
            "protocol",
            external,
            "{protocol: async, redis: {external: {address: 'nowhere.invalid:6379'}}}",
            "spec.protocol cannot be changed",
        ),
        ("prefix", prefixed, other, "spec.keyPrefix cannot be changed"),
        ("prefix-added", external, prefixed, "spec.keyPrefix cannot be changed"),
        ("prefix-removed", prefixed, external, "spec.keyPrefix cannot be changed"),
        ("to-external", "{}", external, "spec.redis cannot change between managed and external"),
        (
            "to-managed",
            external,
            "{redis: {managed: {}}}",
            "spec.redis cannot change between managed and external",
        ),
        ("to-nothing", external, "{}", "spec.redis cannot change between managed and external"),
        (
            "to-ephemeral",
            "{redis: {managed: {storage: {size: 1Gi}}}}",
            "{redis: {managed: {storage: {ephemeral: {}}}}}",
            "storage cannot change between a volume and ephemeral",
        ),
    ];
    for (name, before, after, message) in cases {
        space.queue(name, before).await;
        refused(&space, name, after, message).await;
    }
    space.delete().await;
}

#[tokio::test]
async fn storage_that_is_set_or_unset_as_a_whole_is_a_change_too() {
    let space = Namespace::create("storage").await;
    let ephemeral = "{redis: {managed: {storage: {ephemeral: {}}}}}";
    let message = "storage cannot change between a volume and ephemeral";
    space.queue("to-ephemeral", "{}").await;
    refused(&space, "to-ephemeral", ephemeral, message).await;
    space.queue("to-volume", ephemeral).await;
    refused(&space, "to-volume", "{}", message).await;
    space.queue("to-class", "{}").await;
    let class = "{redis: {managed: {storage: {storageClassName: other}}}}";
    refused(&space, "to-class", class, "storageClassName cannot be changed").await;
    space.delete().await;
}

async fn refused(space: &Namespace, name: &str, spec: &str, message: &str) {
    match space.try_apply(&queue(name, spec)).await {
        Ok(said) => panic!("{name}: {spec} was accepted: {said}"),
        Err(error) => assert!(error.contains(message), "{name}: {spec}: {error}"),
    }
}
