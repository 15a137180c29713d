//! How Redis is reached.
use super::{Duration, Secret, Url};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How Redis is reached.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Redis {
    /// `redis://`, `rediss://` (TLS), `unix://` or `redis+unix://`; what it says wins over `addr`,
    /// `username`, `password` and `db`.
    pub url: Url,
    /// Host and port; of a Redis Cluster also several, with commas.
    pub addr: String,
    /// The ACL user; empty is Redis' default user.
    pub username: String,
    /// The password. In Kubernetes prefer `password_file`.
    pub password: Secret,
    /// A file with the password, read again at every connect, so that a rotated Secret needs no restart.
    pub password_file: String,
    /// The number of the database; 0 with Redis Cluster.
    #[schemars(range(min = 0, max = 65_535))]
    pub db: u32,
    /// Encryption of the connection.
    pub tls: Tls,
    /// Finds the current master through Sentinel.
    pub sentinel: Sentinel,
    /// `addr` names nodes of a Redis Cluster: one that answers is enough, it names the others.
    pub cluster: bool,
    /// How many replicas must have a job before its enqueueing is acknowledged; 0 does not wait.
    pub wait_replicas: u32,
    /// How long connecting may take.
    pub dial_timeout: Duration,
    /// How long an answer may take, besides the time that a blocking command waits on purpose.
    pub read_timeout: Duration,
    /// Accepted, without effect of its own: a command that cannot be sent gets no answer within `read_timeout`.
    pub write_timeout: Duration,
    /// Accepted, without effect: every call of ours is safe to repeat, and a worker or producer repeats it until
    /// Redis answers; an admin command does not repeat, it says what happened.
    #[schemars(range(min = 0, max = 100))]
    pub max_retries: u32,
}

impl Default for Redis {
    fn default() -> Self {
        Self {
            url: Url::default(),
            addr: "localhost:6379".into(),
            username: String::new(),
            password: Secret::default(),
            password_file: String::new(),
            db: 0,
            tls: Tls::default(),
            sentinel: Sentinel::default(),
            cluster: false,
            wait_replicas: 0,
            dial_timeout: Duration::from_secs(5),
            read_timeout: Duration::from_secs(3),
            write_timeout: Duration::from_secs(3),
            max_retries: 3,
        }
    }
}

/// Encryption of the connection to Redis.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Tls {
    /// Use TLS; a `rediss://` URL does too.
    pub enabled: bool,
    /// PEM file with the authorities that are trusted instead of the well-known ones (Mozilla's list).
    pub ca_file: String,
    /// PEM file with our certificate, for a Redis that asks for one.
    pub cert_file: String,
    /// PEM file with the key of `cert_file`.
    pub key_file: String,
    /// The name that Redis' certificate must carry, when it is not the host that is dialled.
    pub server_name: String,
}

/// Finds the current master through Sentinel.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Sentinel {
    /// The name of the master; empty: Sentinel is not used.
    pub master: String,
    /// Host and port of each Sentinel.
    pub addrs: Vec<String>,
    /// The ACL user at the Sentinels.
    pub username: String,
    /// The password at the Sentinels.
    pub password: Secret,
}
