//! What the facts mean: pure, so that every finding is a line in a test.
use jobqueue::config::Config;
use jobqueue::terminal::counted;

use super::facts::{Facts, Server, Untended};
use super::{Finding, Severity, Slowest, cve, slowest};
use Severity::{Error, Info, Warning};

/// Every check, made always.
pub const NAMES: [&str; 15] = [
    "eviction",
    "cve",
    "persistence",
    "memory",
    "replication",
    "clock",
    "drain",
    "readable",
    "lanes",
    "reaper",
    "keys",
    "layout",
    "queues",
    "dead",
    "completed",
];

/// Clocks that differ more than this make ages and logs misleading.
const SKEW_MS: u64 = 1000;
/// A lapsed lease is fenced within seconds, but for one TTL after an outage; this is far longer.
const UNTENDED_MS: u64 = 60_000;
/// More dead letters than anybody looks through.
const DEAD_MANY: u64 = 10_000;
/// A completed list without a limit grows until Redis is full.
const COMPLETED_MANY: u64 = 1_000_000;
/// Of what was found in great numbers, so many are named.
const NAMED: usize = 5;

/// All findings, the worst first.
pub fn findings(facts: &Facts, config: &Config) -> Vec<Finding> {
    let mut found = Vec::new();
    for server in &facts.servers {
        of_server(server, config, &mut found);
    }
    drain(config, &mut found);
    lanes(facts, config, &mut found);
    keys(facts, config, &mut found);
    queues(facts, config, &mut found);
    found.sort_by_key(|finding| finding.severity);
    found
}

fn finding(
    id: &'static str,
    severity: Severity,
    what: impl Into<String>,
    why: &str,
    fix: impl Into<String>,
) -> Finding {
    Finding { id, severity, what: what.into(), why: why.into(), fix: fix.into() }
}

fn of_server(server: &Server, config: &Config, found: &mut Vec<Finding>) {
    let policy = server.maxmemory_policy.as_str();
    if policy != "noeviction" && !policy.is_empty() {
        // Without a limit nothing is evicted, yet.
        let severity = if server.maxmemory > 0 { Error } else { Warning };
        found.push(finding(
            "eviction",
            severity,
            format!("maxmemory-policy is {policy}"),
            "when memory is short Redis deletes keys of its own choice, and queues are keys: jobs are lost",
            "set maxmemory-policy noeviction, in its configuration and by CONFIG SET; give caches a Redis of their own",
        ));
    }
    let vulnerable = cve::of(&server.software, &server.version);
    // One upgrade mends them all.
    if let Some((_, release)) = vulnerable.iter().max_by_key(|(_, release)| cve::parse(release)) {
        let (software, version) = (&server.software, &server.version);
        let ids: Vec<String> =
            vulnerable.iter().map(|(cve, _)| format!("{} ({})", cve.id, cve.what)).collect();
        found.push(finding(
            "cve",
            Warning,
            format!("{software} {version} is vulnerable to {} (as known on {})", ids.join(", "), cve::AS_OF),
            "whoever can log in to Redis may take over its machine; a distribution's package may have the fix \
             without the version",
            format!("upgrade to {software} {release} or newer, and let nobody reach it who need not"),
        ));
    }
    persistence(server, found);
    memory(server, found);
    if server.role == "slave" {
        found.push(finding(
            "replication",
            Error,
            "this Redis is a replica",
            "nothing can be written to it: no job is reserved or settled",
            "point redis.addr at the master, or use redis.sentinel",
        ));
    }
    if u64::from(config.redis.wait_replicas) > server.replicas && server.role != "slave" {
        let (wanted, there) = (config.redis.wait_replicas, server.replicas);
        found.push(finding(
            "replication",
            Error,
            format!("redis.wait_replicas = {wanted}, and there are {there} replicas"),
            "every enqueue waits for confirmations that never come",
            "bring the replicas back, or lower redis.wait_replicas",
        ));
    }
    if server.clock_skew_ms.unsigned_abs() > SKEW_MS {
        found.push(finding(
            "clock",
            Warning,
            format!("the clocks of Redis and of this machine differ by {} ms", server.clock_skew_ms),
            "leases and retries follow Redis' clock alone, but ages of jobs and times in logs mislead",
            "let NTP run on both",
        ));
    }
}

fn persistence(server: &Server, found: &mut Vec<Finding>) {
    let all = "run Redis with appendonly yes and appendfsync everysec (or always, to lose nothing), on a disk that stays";
    if !server.aof_enabled {
        let (what, why) = match server.snapshots {
            Some(true) => (
                "the AOF is off, there are only snapshots",
                "a crash of Redis loses every job since the last one",
            ),
            Some(false) => ("nothing is written to disk", "a restart of Redis loses every job"),
            None => ("the AOF is off", "a crash of Redis loses every job, or all since the last snapshot"),
        };
        found.push(finding("persistence", Warning, what, why, all));
    } else if server.appendfsync.as_deref() == Some("no") {
        found.push(finding(
            "persistence",
            Warning,
            "appendfsync is no",
            "the system decides when the AOF reaches the disk: a crash of the machine loses half a minute of jobs",
            all,
        ));
    }
    if !server.failed_writes.is_empty() {
        found.push(finding(
            "persistence",
            Error,
            format!("Redis could not write {} the last time it tried", server.failed_writes.join(", ")),
            "what is not on disk is lost with Redis, and Redis may refuse all writes (MISCONF)",
            "look at the log of Redis: as a rule the disk is full, or not writable",
        ));
    }
}

fn memory(server: &Server, found: &mut Vec<Finding>) {
    let (limit, name) = match server.maxmemory {
        0 => (server.system_memory, "the machine's memory"),
        limit => (limit, "maxmemory"),
    };
    let percent = server.used_memory.saturating_mul(100).checked_div(limit).unwrap_or(0);
    if percent < 80 {
        return;
    }
    found.push(finding(
        "memory",
        if percent >= 95 { Error } else { Warning },
        format!("{percent} % of {name} are used: {} of {} MiB", server.used_memory >> 20, limit >> 20),
        "a full Redis refuses new jobs (those that are there are still run and settled)",
        "raise maxmemory, purge dead letters, lower worker.completed_max, or add workers to drain the queues",
    ));
}

fn drain(config: &Config, found: &mut Vec<Finding>) {
    let drain = config.worker.drain_timeout;
    let Slowest { section, kind, timeout: Some(timeout) } = slowest(config) else { return };
    if timeout <= drain {
        return;
    }
    found.push(finding(
        "drain",
        Warning,
        format!("{section}.{kind}.timeout = {timeout} is longer than worker.drain_timeout = {drain}"),
        "a job that takes longer than the drain is cut off by every rollout and runs again from its beginning",
        format!("set worker.drain_timeout to {timeout} or more (JobQueue: spec.worker.drainTimeout), or lower the timeout"),
    ));
}

fn lanes(facts: &Facts, config: &Config, found: &mut Vec<Finding>) {
    let ttl = u64::try_from(config.worker.heartbeat_ttl.get().as_millis()).unwrap_or(u64::MAX);
    let longest = UNTENDED_MS.saturating_add(ttl);
    let stuck = |lanes: &[Untended]| -> Vec<String> {
        let stuck = lanes.iter().filter(|lane| lane.ms > longest);
        stuck.map(|lane| format!("{} ({} s)", lane.lane, lane.ms / 1000)).collect()
    };
    for (lanes, what) in [
        (stuck(&facts.expired), "have lost their heartbeat and nobody has fenced them"),
        (stuck(&facts.fenced), "are fenced and nobody gives their jobs back"),
    ] {
        if !lanes.is_empty() {
            found.push(finding(
                "lanes",
                if facts.in_flight > 0 { Error } else { Warning },
                format!("{} lanes {what}: {}", lanes.len(), few(&lanes)),
                "the jobs they hold wait until somebody reaps them",
                "start a worker (worker.reaper.enabled), or see why the operator does not reach this Redis",
            ));
        }
    }
    let reaped = facts.central || (facts.heartbeats > 0 && config.worker.reaper.enabled);
    if !reaped && (facts.in_flight > 0 || facts.heartbeats > 0) {
        found.push(finding(
            "reaper",
            if facts.heartbeats == 0 { Error } else { Warning },
            "nobody gives back the jobs of dead workers",
            "there is no mark of an operator, and no living worker with worker.reaper.enabled",
            "start a worker or the operator, or set worker.reaper.enabled: true",
        ));
    }
}

fn keys(facts: &Facts, config: &Config, found: &mut Vec<Finding>) {
    if !facts.unreadable.is_empty() {
        found.push(finding(
            "readable",
            Error,
            few(&facts.unreadable),
            "jobs that belong there stay where they are",
            "rename or delete the key, or give the ACL user access (docs/reliability.md)",
        ));
    }
    for (key, kind, expected) in facts.wrong_types.iter().take(NAMED) {
        found.push(finding(
            "keys",
            Error,
            format!("{key} holds a {kind}, must be a {expected}"),
            "whatever belongs there is refused",
            format!("look at it, then rename it: RENAME {key} {key}.old"),
        ));
    }
    let unknown: Vec<String> = facts.unknown_keys.iter().cloned().collect();
    if !unknown.is_empty() {
        found.push(finding(
            "keys",
            Info,
            format!("{} keys under {} are none that this queue uses: {}", unknown.len(), config.prefix(), few(&unknown)),
            "another program uses the prefix, a queue was taken out of the configuration, or a newer version wrote them",
            "if a queue's jobs are in there, put it back into worker.queues until it is empty; delete what nobody needs",
        ));
    }
    if facts.scan_cut {
        found.push(finding(
            "keys",
            Info,
            "not all keys were looked at",
            "this Redis has many, and the scan is bounded",
            "raise --look-at",
        ));
    }
    if !facts.leftovers.is_empty() {
        found.push(finding(
            "layout",
            Warning,
            format!(
                "{} shards of an earlier layout still hold jobs: {}",
                facts.leftovers.len(),
                few(&facts.leftovers)
            ),
            "workers serve them until they are empty, without new pushes; dead letters keep them there",
            "requeue or purge their dead letters (dlq requeue), and leave a worker running",
        ));
    }
}

fn queues(facts: &Facts, config: &Config, found: &mut Vec<Finding>) {
    if facts.waiting > 0 && facts.heartbeats == 0 {
        found.push(finding(
            "queues",
            Warning,
            format!("{} waiting, and no worker is there", counted(facts.waiting, "job")),
            "nobody runs them",
            "start workers; in Kubernetes see kubectl describe jobqueue for why there are none",
        ));
    }
    if facts.paused {
        found.push(finding(
            "queues",
            Info,
            "the queues are paused",
            "no worker takes another job",
            "kubectl jobqueue resume; without Kubernetes: worker resume",
        ));
    }
    if !facts.open_breakers.is_empty() {
        found.push(finding(
            "queues",
            Warning,
            format!("the breakers of {} are open", facts.open_breakers.join(", ")),
            "their jobs kept failing: they wait for circuit_breaker.cooldown_period, then one is tried",
            "look at the handler and at dlq list",
        ));
    }
    if facts.dead > DEAD_MANY {
        found.push(finding(
            "dead",
            Warning,
            format!("there are {} dead letters", facts.dead),
            "they take memory, and nobody looks through so many",
            "dlq list; then dlq requeue or dlq purge --archive FILE, by --reason or --older-than; worker.dead_letter_max",
        ));
    }
    if config.worker.completed_max < 0 && facts.completed > COMPLETED_MANY {
        found.push(finding(
            "completed",
            Warning,
            format!("{} completed jobs are kept", facts.completed),
            "worker.completed_max = -1 keeps all of them, until Redis is full",
            "set worker.completed_max",
        ));
    }
}

fn few(all: &[String]) -> String {
    let more = all.len().saturating_sub(NAMED);
    let named = all[..all.len() - more].join(", ");
    if more > 0 { format!("{named} and {more} more") } else { named }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn healthy() -> Facts {
        let server = Server {
            software: "redis".into(),
            version: "8.8.3".into(),
            role: "master".into(),
            maxmemory: 100,
            used_memory: 10,
            maxmemory_policy: "noeviction".into(),
            aof_enabled: true,
            appendfsync: Some("everysec".into()),
            ..Server::default()
        };
        Facts { servers: vec![server], heartbeats: 1, ..Facts::default() }
    }

    fn ids(change: impl FnOnce(&mut Facts, &mut Config)) -> Vec<(&'static str, Severity)> {
        let (mut facts, mut config) = (healthy(), Config::default());
        change(&mut facts, &mut config);
        findings(&facts, &config).into_iter().map(|finding| (finding.id, finding.severity)).collect()
    }

    #[test]
    fn a_healthy_queue_has_no_findings() {
        assert!(ids(|_, _| {}).is_empty());
    }

    #[test]
    fn what_is_wrong_with_redis_is_found() {
        let server = |change: fn(&mut Server)| ids(|facts, _| change(&mut facts.servers[0]));
        assert_eq!(server(|redis| redis.maxmemory_policy = "allkeys-lru".into()), [("eviction", Error)]);
        assert_eq!(server(|redis| redis.version = "7.4.8".into()), [("cve", Warning)]);
        assert_eq!(server(|redis| redis.aof_enabled = false), [("persistence", Warning)]);
        assert_eq!(server(|redis| redis.appendfsync = Some("no".into())), [("persistence", Warning)]);
        assert_eq!(server(|redis| redis.failed_writes = vec!["a snapshot"]), [("persistence", Error)]);
        assert_eq!(server(|redis| redis.used_memory = 80), [("memory", Warning)]);
        assert_eq!(server(|redis| redis.used_memory = 95), [("memory", Error)]);
        assert_eq!(server(|redis| redis.role = "slave".into()), [("replication", Error)]);
        assert_eq!(server(|redis| redis.clock_skew_ms = -1001), [("clock", Warning)]);
        assert!(server(|redis| redis.clock_skew_ms = 1000).is_empty());
        assert_eq!(ids(|_, config| config.redis.wait_replicas = 1), [("replication", Error)]);
    }

    #[test]
    fn what_is_wrong_with_the_queue_is_found() {
        let lane = |ms| Untended { lane: "h-1-1".into(), ms };
        assert_eq!(ids(|facts, _| facts.expired = vec![lane(90_001)]), [("lanes", Warning)]);
        assert!(
            ids(|facts, _| facts.expired = vec![lane(90_000)]).is_empty(),
            "a reaper may wait for one TTL"
        );
        assert_eq!(
            ids(|facts, _| (facts.heartbeats, facts.in_flight, facts.fenced) = (0, 1, vec![lane(100_000)])),
            [("lanes", Error), ("reaper", Error)]
        );
        assert_eq!(ids(|facts, _| (facts.heartbeats, facts.waiting) = (0, 1)), [("queues", Warning)]);
        assert_eq!(ids(|_, config| config.worker.reaper.enabled = false), [("reaper", Warning)]);
        assert_eq!(ids(|facts, _| facts.paused = true), [("queues", Info)]);
        assert_eq!(ids(|facts, _| facts.open_breakers = vec!["high".into()]), [("queues", Warning)]);
        assert_eq!(ids(|facts, _| facts.dead = 10_001), [("dead", Warning)]);
        assert!(ids(|facts, _| facts.completed = 2_000_000).is_empty(), "there is a limit");
        assert_eq!(
            ids(|facts, config| (facts.completed, config.worker.completed_max) = (2_000_000, -1)),
            [("completed", Warning)]
        );
        assert_eq!(
            ids(|facts, _| facts.leftovers = vec!["{jobqueue:2}:lanes".into()]),
            [("layout", Warning)]
        );
        let unknown = || ["jobqueue:junk".to_owned()].into();
        assert_eq!(ids(|facts, _| facts.unknown_keys = unknown()), [("keys", Info)]);
        let wrong = || vec![("jobqueue:completed".to_owned(), "string".to_owned(), "list")];
        assert_eq!(ids(|facts, _| facts.wrong_types = wrong()), [("keys", Error)]);
    }

    #[test]
    fn a_handler_that_may_outlast_the_drain_is_found() {
        use jobqueue::config::HandlerKind;
        assert_eq!(ids(|_, config| config.worker.handler.kind = HandlerKind::Http), [("drain", Warning)]);
        assert!(
            ids(|_, config| {
                config.worker.handler.kind = HandlerKind::Http;
                config.worker.drain_timeout = jobqueue::config::Duration::from_secs(60);
            })
            .is_empty()
        );
    }

    #[test]
    fn the_slowest_handler_of_all_types_is_compared_with_the_drain_and_named() {
        let mut config = jobqueue::config::Config::from_value(serde_json::json!({
            "protocol": "async",
            "worker": {"drain_timeout": "60s", "handler": {"kind": "http", "http": {"url": "http://app", "timeout": "9m"}}},
            "async": {"handlers": {
                "email": {"http": {"url": "http://mailer", "timeout": "30s"}},
                "resize": {"command": {"argv": ["resize"], "timeout": "5m"}},
                "default": "simulate",
            }},
        }))
        .unwrap()
        .config;
        let mut found = Vec::new();
        drain(&config, &mut found);
        assert!(found[0].what.starts_with("async.handlers.resize.command.timeout = 5m"), "{found:?}");
        config.worker.drain_timeout = jobqueue::config::Duration::from_secs(300);
        found.clear();
        drain(&config, &mut found);
        assert!(found.is_empty(), "worker.handler runs none of them: {found:?}");
    }

    #[test]
    fn of_many_some_are_named() {
        let many: Vec<String> = (0..7).map(|n| n.to_string()).collect();
        assert_eq!(few(&many), "0, 1, 2, 3, 4 and 2 more");
        assert_eq!(few(&many[..1]), "0");
    }
}
