//! The managed Redis: one pod with a password, an append-only file and a volume of its own.
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{CONFIG_MAP, Child, Plan, SERVICE, STATEFUL_SET, VOLUME_CLAIM, container_security, is_managed};
use crate::api::v1alpha1::{JobQueue, Managed};
use crate::controller::names::Names;
use crate::controller::quantity;

/// What every managed Redis is told. Nothing may be evicted, and what was acknowledged is on disk a second later.
const CONF: &str = "\
port 6379
bind * -::*
dir /data
appendonly yes
appendfsync everysec
# The file stays readable when the machine stops in the middle of a write.
aof-load-truncated yes
save \"\"
maxmemory-policy noeviction
aclfile /etc/redis-users/users.acl
tcp-keepalive 60
";

/// What it is told of its memory, where that has a limit: full at three quarters, with room for a rewrite of the append-only
/// file, it refuses new jobs; at the limit it would be killed. It is read when Redis starts, so that nothing restarts one
/// that runs: who sets another limit restarts it anyway (see [`SETTINGS`]).
fn conf(managed: &Managed) -> String {
    match quantity::bytes(&json!(managed.resources)["limits"]["memory"]) {
        Some(limit) => format!("{CONF}maxmemory {}\n", limit / 4 * 3),
        None => CONF.to_owned(),
    }
}

/// The annotation with the hash of what the user decides about the pod: when it changes, the pod is replaced.
pub const SETTINGS: &str = "jobqueue.dev/settings";

pub(super) fn managed(queue: &JobQueue) -> Managed {
    queue.spec.redis.as_ref().and_then(|redis| redis.managed.clone()).unwrap_or_default()
}

/// Whether the jobs are kept on no volume.
pub(super) fn is_ephemeral(queue: &JobQueue) -> bool {
    managed(queue).storage.is_some_and(|storage| storage.ephemeral.is_some())
}

pub(super) fn config_map(plan: &Plan) -> Child {
    let name = plan.names.part("redis");
    let object = plan.managed().then(|| {
        json!({ "metadata": plan.names.owned(plan.queue, &name, "redis"), "data": { "redis.conf": conf(&managed(plan.queue)) } })
    });
    Child::new(&CONFIG_MAP, name, object)
}

pub(super) fn service(plan: &Plan) -> Child {
    let name = plan.names.part("redis");
    let object = plan.managed().then(|| {
        json!({
            "metadata": plan.names.owned(plan.queue, &name, "redis"),
            "spec": {
                "selector": plan.names.selector("redis"),
                "ports": [{ "name": "redis", "port": 6379, "targetPort": "redis" }],
            },
        })
    });
    Child::new(&SERVICE, name, object)
}

pub(super) fn stateful_set(plan: &Plan) -> Child {
    let name = plan.names.part("redis");
    if !plan.managed() {
        return Child::new(&STATEFUL_SET, name, None);
    }
    let managed = managed(plan.queue);
    let data = if is_ephemeral(plan.queue) {
        json!({ "name": "data", "emptyDir": {} })
    } else {
        json!({ "name": "data", "persistentVolumeClaim": { "claimName": name } })
    };
    let settings = super::hash(&json!([managed.image, managed.resources]));
    let resources = managed.resources.map_or_else(
        || json!({ "requests": { "cpu": "50m", "memory": "64Mi" } }),
        |resources| json!(resources),
    );
    let object = json!({
        "metadata": plan.names.owned(plan.queue, &name, "redis"),
        "spec": {
            "replicas": 1,
            "serviceName": name,
            "selector": { "matchLabels": plan.names.selector("redis") },
            // A new operator may describe the pod differently: that is no reason to restart a Redis with jobs in it. What
            // the user changes is (see `SETTINGS`).
            "updateStrategy": { "type": "OnDelete" },
            "template": {
                "metadata": { "labels": plan.names.labels("redis"), "annotations": { SETTINGS: settings } },
                "spec": {
                    "serviceAccountName": plan.names.queue,
                    "automountServiceAccountToken": false,
                    "enableServiceLinks": false,
                    // Time to write the file and close it.
                    "terminationGracePeriodSeconds": 30,
                    "securityContext": super::pod_security(),
                    "containers": [{
                        "name": "redis",
                        "image": managed.image.as_ref().unwrap_or(&plan.resolved.redis_image),
                        "command": ["redis-server", "/etc/redis/redis.conf"],
                        "ports": [{ "name": "redis", "containerPort": 6379 }],
                        "resources": resources,
                        "securityContext": container_security(),
                        "readinessProbe": { "tcpSocket": { "port": "redis" }, "periodSeconds": 2 },
                        "livenessProbe": { "tcpSocket": { "port": "redis" }, "periodSeconds": 10, "failureThreshold": 6 },
                        "volumeMounts": [
                            { "name": "config", "mountPath": "/etc/redis", "readOnly": true },
                            { "name": "users", "mountPath": "/etc/redis-users", "readOnly": true },
                            { "name": "data", "mountPath": "/data" },
                        ],
                    }],
                    "volumes": [
                        { "name": "config", "configMap": { "name": name } },
                        { "name": "users", "secret": { "secretName": name, "items": [{ "key": "users.acl", "path": "users.acl" }] } },
                        data,
                    ],
                },
            },
        },
    });
    Child::new(&STATEFUL_SET, name, Some(object))
}

/// The volume of the managed Redis; `None` when it keeps its jobs nowhere or is not ours. It has no owner: it stays when
/// the queue goes, unless the user says otherwise.
pub fn volume_claim(queue: &JobQueue) -> Option<Child> {
    if !is_managed(queue) || is_ephemeral(queue) {
        return None;
    }
    let names = Names::of(queue);
    let name = names.part("redis");
    let storage = managed(queue).storage.unwrap_or_default();
    let mut object = json!({
        "apiVersion": VOLUME_CLAIM.api_version,
        "kind": VOLUME_CLAIM.name,
        "metadata": names.kept(&name, "redis"),
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": { "requests": { "storage": storage.size.unwrap_or_else(|| "1Gi".into()) } },
        },
    });
    if let Some(class) = storage.storage_class_name {
        object["spec"]["storageClassName"] = json!(class);
    }
    Some(Child { kind: &VOLUME_CLAIM, name, object: Some(object) })
}

/// The Secret of a new managed Redis. Clients read `password`, Redis reads `users.acl`, which holds only its hash.
pub fn generated_secret(queue: &JobQueue, password: &str) -> Value {
    let names = Names::of(queue);
    let name = names.part("redis");
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": names.kept(&name, "redis"),
        "type": "Opaque",
        "stringData": { "password": password, "users.acl": users_acl(&[password]) },
    })
}

/// The users of a managed Redis: one, with each of these passwords.
pub fn users_acl(passwords: &[&str]) -> String {
    let hashes = passwords.iter().map(|password| {
        let digest = Sha256::digest(password.as_bytes());
        digest.iter().fold("#".to_owned(), |text, byte| format!("{text}{byte:02x}"))
    });
    format!("user default on {} ~* &* +@all\n", hashes.collect::<Vec<_>>().join(" "))
}
