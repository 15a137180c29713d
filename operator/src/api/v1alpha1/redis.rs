//! `spec.redis`: one that exists already, or one that is run for the queue.
use jobqueue::config::Duration;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Resources, duration, texts};

/// The Redis that keeps the jobs: `managed` or `external`.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!(has(self.managed) && has(self.external))").message("set one of managed and external, not both"),
    validation = Rule::new("!has(self.waitReplicas) || self.waitReplicas == 0 || has(self.external)")
        .message("waitReplicas needs an external Redis: a managed one has no replicas")
)]
pub struct Redis {
    /// A Redis that is run for this queue alone: one pod with a generated password, an append-only file and a volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub managed: Option<Managed>,
    /// A Redis that exists already: 6.2 or newer, with `maxmemory-policy noeviction`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external: Option<External>,
    /// How many replicas must have a job before its enqueueing is acknowledged. Not set: 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 10))]
    pub wait_replicas: Option<i32>,
    /// How long connecting may take. Not set: 5s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "duration")]
    pub dial_timeout: Option<Duration>,
    /// How long an answer may take. Not set: 3s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "duration")]
    pub read_timeout: Option<Duration>,
    /// Accepted, without effect of its own: a command that cannot be sent gets no answer within `readTimeout`. Not set: 3s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "duration")]
    pub write_timeout: Option<Duration>,
    /// Accepted, without effect: every call is safe to repeat, and is repeated until Redis answers. Not set: 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub max_retries: Option<i32>,
}

/// A Redis that is run for one queue.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Managed {
    /// The image, with `redis-server` 6.2 or newer on its path. Not set: what the operator was installed with when
    /// this queue was created. Changing it restarts Redis.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub image: Option<String>,
    /// Where the jobs are kept. Not set: a volume of 1Gi of the default storage class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<Storage>,
    /// CPU and memory. Not set: requests of 50m and 64Mi, no limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
}

/// Where a managed Redis keeps the jobs: a volume, or (`ephemeral`) nowhere.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!(has(self.ephemeral) && (has(self.size) || has(self.storageClassName)))")
        .message("ephemeral storage has no size and no storageClassName")
)]
pub struct Storage {
    /// The size of the volume; it can be raised when the storage class allows it. Not set: 1Gi.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 32),
        regex(pattern = r"^[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|Ti|Pi|k|M|G|T|P)?$")
    )]
    pub size: Option<String>,
    /// The storage class of the volume. Not set: the cluster's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub storage_class_name: Option<String>,
    /// No volume: all jobs are lost when the pod goes. For trying things out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ephemeral: Option<Ephemeral>,
}

/// No volume.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct Ephemeral {}

/// A Redis that exists already.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.address) != has(self.sentinel)").message("set exactly one of address and sentinel"),
    validation = Rule::new("!(has(self.sentinel) && has(self.cluster) && self.cluster)").message("a Redis Cluster has no Sentinel"),
    validation = Rule::new("!(has(self.cluster) && self.cluster && has(self.db) && self.db != 0)").message("a Redis Cluster has only database 0")
)]
pub struct External {
    /// Host and port, such as redis.data:6379. With `cluster`: of any node, or of several, with commas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 3, max = 260), regex(pattern = r"^[^\s/@]+:[0-9]{1,5}$"))]
    pub address: Option<String>,
    /// Finds the current master through Sentinel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sentinel: Option<Sentinel>,
    /// Whether `address` is a node of a Redis Cluster. Not set: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<bool>,
    /// The number of the database. Not set: 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 65535))]
    pub db: Option<i32>,
    /// A Secret of this namespace with the key `password`, and optionally `username` (the ACL user), `ca.crt`,
    /// `tls.crt` and `tls.key`; for Sentinels that ask for it also `sentinel-password` and `sentinel-username`, which
    /// pods read when they start. Not set: no password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretReference>,
    /// Encrypts the connection. `tls: {}` trusts the well-known authorities, or the Secret's `ca.crt` if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<Tls>,
}

/// Finds the current master through Sentinel.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Sentinel {
    /// The name of the master.
    #[schemars(length(min = 1, max = 128))]
    pub master: String,
    /// Host and port of each Sentinel.
    #[schemars(schema_with = "texts")]
    pub addresses: Vec<String>,
}

/// A Secret in the namespace of the `JobQueue`.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct SecretReference {
    /// The name of the Secret.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// Encryption of the connection.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Tls {
    /// The name that Redis' certificate must carry, when it is not the host of `address`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub server_name: Option<String>,
}
