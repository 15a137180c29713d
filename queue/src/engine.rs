//! From a configuration to the parts that carry it out: where Redis is, what the keys are called, what a job is.
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::breaker;
use crate::config::{Config, Protocol as Format, Redis, SidekiqPromote, SidekiqRetry};
use crate::connect::{Address, Connector, Pem, Reach, Settings, Tls};
use crate::keys::{Keys, Naming};
use crate::protocol::Protocol;
use crate::protocol::async_jobs::{AsyncJobs, Status};
use crate::protocol::files::Files;
use crate::protocol::sidekiq::Sidekiq;
use crate::protocol::sidekiq::names::Names;
use crate::protocol::sidekiq::retry::Formula;
use crate::reaper;
use crate::store::Session;

/// A configured queue set: makes sessions and knows the policy.
#[derive(Clone)]
pub struct Engine {
    /// Makes connections.
    pub connector: Connector,
    /// What the keys are made from.
    pub naming: Naming,
    /// The keys of every shard; a worker adds those that an earlier layout left behind.
    pub shards: Vec<Keys>,
    /// The wire format.
    pub protocol: Arc<dyn Protocol>,
    /// Names of the queues in the order of priority.
    pub queues: Vec<String>,
    /// How many entries the completed list keeps.
    pub completed_max: Option<u64>,
    /// The heartbeats' TTL.
    pub ttl: Duration,
}

impl Engine {
    /// The parts of a configuration.
    pub fn new(config: &Config) -> Self {
        let worker = &config.worker;
        let sidekiq = config.protocol == Format::Sidekiq;
        let by_name = config.protocol == Format::Async;
        let names = Names::new(&config.sidekiq.namespace);
        let naming = Naming {
            prefix: config.prefix().to_owned(),
            queues: (worker.priorities.iter())
                .filter_map(|name| worker.queues.get(name).map(|key| (name.clone(), key.clone())))
                .collect(),
            processing_pattern: worker.processing_list_pattern.clone(),
            heartbeat_pattern: worker.heartbeat_key_pattern.clone(),
            delayed_pattern: worker.delayed_set_pattern.clone(),
            // Sidekiq's lists are not ours: what we keep beside them has names of its own.
            suspects_pattern: sidekiq.then(|| format!("{}:suspects:%s", config.prefix())),
            completed: if by_name {
                format!("{}:index:{}", config.prefix(), Status::Completed.as_str())
            } else {
                worker.completed_list.clone()
            },
            dead_letters: if sidekiq { names.dead() } else { worker.dead_letter_list.clone() },
            dead_letters_sorted: sidekiq,
            paused_queues: sidekiq.then(|| names.paused()),
            by_name,
            shards: u16::try_from(worker.shards).unwrap_or(u16::MAX),
            cluster: config.redis.cluster,
        };
        Self {
            connector: Connector::new(Settings {
                refuses_cluster: sidekiq,
                ..redis_settings(&config.redis, worker.heartbeat_ttl.get() / 2)
            }),
            shards: Keys::all(&naming),
            protocol: protocol(config),
            queues: naming.queues.iter().map(|(name, _)| name.clone()).collect(),
            naming,
            completed_max: match config.protocol {
                // Sidekiq keeps no list of what is done; of a job over HTTP its own JSON says so.
                Format::Sidekiq | Format::Async => Some(0),
                Format::Files => kept(worker.completed_max),
            },
            ttl: worker.heartbeat_ttl.get(),
        }
    }

    /// The longest wait between two tries to reach Redis.
    pub fn longest_backoff(&self) -> Duration {
        Duration::from_secs(2).min(self.ttl / 4)
    }

    /// A session with a shard's node.
    pub fn session(&self, shard: &Keys) -> Session {
        Session::new(&self.connector, shard, self.longest_backoff())
    }

    /// The shard a job belongs to: one of those that are configured, never one that is only left over.
    pub fn shard_of(&self, job_id: &str) -> &Keys {
        &self.shards[usize::from(Keys::shard_of(job_id, self.naming.shards))]
    }
}

/// The wire format with its policy.
fn protocol(config: &Config) -> Arc<dyn Protocol> {
    let worker = &config.worker;
    let max_payload_bytes = usize::try_from(worker.max_payload_bytes).unwrap_or(usize::MAX);
    match config.protocol {
        Format::Files => Arc::new(Files {
            max_retries: worker.max_retries,
            backoff_base: worker.backoff.base.get(),
            backoff_max: worker.backoff.max.get(),
            max_interruptions: worker.max_interruptions,
            max_payload_bytes,
            completed_max: kept(worker.completed_max),
            dead_letter_max: kept(worker.dead_letter_max),
        }),
        Format::Sidekiq => Arc::new(Sidekiq {
            names: Names::new(&config.sidekiq.namespace),
            formula: match config.sidekiq.retry {
                SidekiqRetry::Sidekiq => Formula::Sidekiq,
                SidekiqRetry::Exponential => {
                    Formula::Exponential { base: worker.backoff.base.get(), max: worker.backoff.max.get() }
                }
            },
            max_retries: worker.max_retries,
            max_interruptions: worker.max_interruptions,
            max_payload_bytes,
            dead_max: kept(worker.dead_letter_max),
            promotes: config.sidekiq.promote == SidekiqPromote::All,
        }),
        Format::Async => Arc::new(AsyncJobs {
            max_retries: worker.max_retries,
            backoff_base: worker.backoff.base.get(),
            backoff_max: worker.backoff.max.get(),
            max_interruptions: worker.max_interruptions,
            max_payload_bytes,
            dead_letter_max: kept(worker.dead_letter_max),
            result_ttl: config.api.result_ttl.get(),
        }),
    }
}

/// A limit of the configuration, where a negative number is none.
fn kept(max: i64) -> Option<u64> {
    u64::try_from(max).ok()
}

/// How a reaper works, by configuration.
pub fn reaper_settings(config: &Config) -> reaper::Settings {
    let reaper = &config.worker.reaper;
    reaper::Settings {
        ttl: config.worker.heartbeat_ttl.get(),
        park_timeout: config.worker.brpoplpush_timeout.get(),
        page_delay: reaper.page_delay.get(),
        scan_count: reaper.scan_count as usize,
        scan_pages: usize::MAX,
        pass_budget: reaper.pass_budget.get(),
        cause_wait: Duration::ZERO,
    }
}

/// How breakers work, by configuration.
pub fn breaker_settings(config: &Config) -> breaker::Settings {
    let breaker = &config.circuit_breaker;
    breaker::Settings {
        failure_threshold: breaker.failure_threshold,
        window: breaker.window.get(),
        cooldown: breaker.cooldown_period.get(),
        min_samples: breaker.min_samples,
    }
}

/// `longest`: whoever waits longer for a connection or a reply cannot renew its lease in time.
fn redis_settings(redis: &Redis, longest: Duration) -> Settings {
    let given = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let file = |text: &str| given(text).map(PathBuf::from);
    let mut settings = Settings {
        reach: Reach::Any,
        address: Address::Tcp(redis.addr.clone()),
        tls: None,
        username: given(&redis.username),
        password: given(redis.password.expose()),
        password_file: file(&redis.password_file),
        sentinel_username: given(&redis.sentinel.username),
        sentinel_password: given(redis.sentinel.password.expose()),
        db: i64::from(redis.db),
        wait_replicas: redis.wait_replicas,
        refuses_cluster: false,
        dial_timeout: redis.dial_timeout.get().min(longest),
        read_timeout: redis.read_timeout.get().min(longest),
        write_timeout: redis.write_timeout.get(),
    };
    let mut encrypted = redis.tls.enabled;
    let mut seed = redis.addr.clone();
    if !redis.url.is_empty() {
        encrypted = encrypted || redis.url.scheme().as_deref() == Some("rediss");
        apply_url(redis.url.expose(), &mut settings);
        if let Address::Tcp(addr) = &settings.address {
            seed.clone_from(addr);
        }
    }
    if redis.cluster {
        settings.address = Address::Cluster(seed.split(',').map(|addr| addr.trim().to_owned()).collect());
    } else if !redis.sentinel.master.is_empty() {
        settings.address =
            Address::Sentinel { master: redis.sentinel.master.clone(), addrs: redis.sentinel.addrs.clone() };
    }
    settings.tls = encrypted.then(|| Tls {
        ca: file(&redis.tls.ca_file).map(Pem::File),
        cert: file(&redis.tls.cert_file).map(Pem::File),
        key: file(&redis.tls.key_file).map(Pem::File),
        server_name: given(&redis.tls.server_name),
    });
    settings
}

/// `redis://user:password@host:port/db`, `rediss://...`, `unix:///path?db=1`.
fn apply_url(url: &str, settings: &mut Settings) {
    let (scheme, rest) = url.split_once("://").unwrap_or(("redis", url));
    // Credentials first: a password may hold a `?`, a host may not hold an `@`.
    let (credentials, rest) = rest.rsplit_once('@').map_or((None, rest), |(user, rest)| (Some(user), rest));
    let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
    for pair in query.split('&') {
        match pair.split_once('=') {
            Some(("db", db)) => settings.db = db.parse().unwrap_or(settings.db),
            Some(("user" | "username", user)) => settings.username = Some(decoded(user)),
            Some(("pass" | "password", password)) => settings.password = Some(decoded(password)),
            _ => {}
        }
    }
    if scheme.contains("unix") {
        settings.address = Address::Unix(PathBuf::from(decoded(place)));
        return;
    }
    if let Some(credentials) = credentials {
        let (user, password) = credentials.split_once(':').unwrap_or((credentials, ""));
        settings.username = (!user.is_empty()).then(|| decoded(user)).or_else(|| settings.username.take());
        settings.password =
            (!password.is_empty()).then(|| decoded(password)).or_else(|| settings.password.take());
    }
    let (addr, db) = place.split_once('/').unwrap_or((place, ""));
    settings.db = db.parse().unwrap_or(settings.db);
    let has_port = addr.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    settings.address = Address::Tcp(if has_port { addr.to_owned() } else { format!("{addr}:6379") });
}

/// A part of a URL without its percent signs.
pub fn decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut plain = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = (bytes[at] == b'%').then(|| text.get(at + 1..at + 3)).flatten();
        if let Some(byte) = hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            plain.push(byte);
            at += 3;
        } else {
            plain.push(bytes[at]);
            at += 1;
        }
    }
    String::from_utf8_lossy(&plain).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(yaml: &str) -> Settings {
        let tree = serde_saphyr::from_str::<serde_json::Value>(yaml).unwrap();
        redis_settings(&Config::from_value(tree).unwrap().config.redis, Duration::from_secs(15))
    }

    #[test]
    fn a_url_says_where_who_and_which_database() {
        let settings = of("redis: {url: 'rediss://app:p%40ss@redis.example:7000/3'}");
        assert_eq!(settings.address, Address::Tcp("redis.example:7000".into()));
        assert_eq!((settings.username.as_deref(), settings.password.as_deref()), (Some("app"), Some("p@ss")));
        assert_eq!(settings.db, 3);
        assert!(settings.tls.is_some());
    }

    #[test]
    fn a_url_without_a_port_means_6379() {
        assert_eq!(of("redis: {url: 'redis://cache'}").address, Address::Tcp("cache:6379".into()));
    }

    #[test]
    fn a_sentinel_gets_its_own_credentials_and_not_those_of_redis() {
        let settings = of(
            "redis: {username: app, password: p, sentinel: {master: m, addrs: ['a:1'], username: s, password: q}}",
        );
        assert_eq!((settings.username.as_deref(), settings.password.as_deref()), (Some("app"), Some("p")));
        assert_eq!(settings.sentinel_username.as_deref(), Some("s"));
        assert_eq!(settings.sentinel_password.as_deref(), Some("q"));
    }

    #[test]
    fn a_job_never_belongs_to_a_shard_that_is_only_left_over() {
        let config = Config::from_value(serde_json::json!({ "worker": { "shards": 2 } })).unwrap().config;
        let mut engine = Engine::new(&config);
        let ids: Vec<String> = (0..100).map(|n| n.to_string()).collect();
        let homes =
            |engine: &Engine| -> Vec<String> { ids.iter().map(|id| engine.shard_of(id).lanes()).collect() };
        let before = homes(&engine);
        let wider = Naming { shards: 4, ..engine.naming.clone() };
        engine.shards.extend((2..4).map(|shard| Keys::new(&wider, shard)));
        assert_eq!(homes(&engine), before);
    }

    #[test]
    fn a_unix_socket_is_an_address_too() {
        assert_eq!(
            of("redis: {url: 'unix:///run/redis.sock'}").address,
            Address::Unix("/run/redis.sock".into())
        );
    }

    #[test]
    fn sentinel_and_cluster_replace_the_address() {
        let sentinel = of("redis: {sentinel: {master: main, addrs: ['a:26379', 'b:26379']}}");
        assert_eq!(
            sentinel.address,
            Address::Sentinel { master: "main".into(), addrs: vec!["a:26379".into(), "b:26379".into()] }
        );
        assert_eq!((sentinel.sentinel_username, sentinel.sentinel_password), (None, None));
        let cluster = of("redis: {addr: 'a:7000', cluster: true}");
        assert_eq!(cluster.address, Address::Cluster(vec!["a:7000".into()]));
    }
}
