//! What is the case, as far as it can be seen from here. Nothing is judged, nothing is changed.
use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use jobqueue::keys::Keys;
use jobqueue::store::{PAGE_COUNT, Session, Span, StoreError};
use serde::Serialize;

use super::super::stats::Processes;
use super::super::{Admin, AdminError, advice};

/// One server; its field names are what scripts rely on.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Server {
    pub software: String,
    pub version: String,
    pub mode: String,
    pub role: String,
    pub uptime_s: u64,
    pub maxmemory: u64,
    pub used_memory: u64,
    pub maxmemory_policy: String,
    pub aof_enabled: bool,
    pub appendfsync: Option<String>,
    pub clock_skew_ms: i64,
    pub round_trip_ms: u64,
    #[serde(skip)]
    pub system_memory: u64,
    /// Snapshots are taken by themselves; not known when we may not ask.
    #[serde(skip)]
    pub snapshots: Option<bool>,
    /// What Redis could not write to disk.
    #[serde(skip)]
    pub failed_writes: Vec<&'static str>,
    #[serde(skip)]
    pub replicas: u64,
    #[serde(skip)]
    pub run_id: String,
}

/// A lane that nobody tends, and for how long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Untended {
    pub lane: String,
    pub ms: u64,
}

/// All that is known.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    pub now_ms: u64,
    pub servers: Vec<Server>,
    /// Lanes whose lease has lapsed, and those that were fenced.
    pub expired: Vec<Untended>,
    pub fenced: Vec<Untended>,
    /// The operator reaps.
    pub central: bool,
    pub heartbeats: u64,
    pub waiting: u64,
    pub in_flight: u64,
    pub dead: u64,
    pub completed: u64,
    pub paused: bool,
    pub open_breakers: Vec<String>,
    /// Shards that an earlier layout left behind.
    pub leftovers: Vec<String>,
    pub unknown_keys: BTreeSet<String>,
    /// (key, what it holds, what it must hold).
    pub wrong_types: Vec<(String, String, &'static str)>,
    /// The scan was stopped by its bound.
    pub scan_cut: bool,
    /// What could not be read.
    pub unreadable: Vec<String>,
}

pub async fn gather(admin: &mut Admin<'_>, look_at: u64) -> Result<Facts, AdminError> {
    let mut facts = Facts::default();
    let configured = usize::from(admin.engine.naming.shards);
    facts.leftovers = admin.engine.shards.iter().skip(configured).map(Keys::lanes).collect();
    let side = admin.engine.protocol.consuming_side();
    let mut processes = Processes::default();
    for session in &mut admin.shards {
        let server = server(session).await?;
        let known = facts.servers.iter().any(|known| known.run_id == server.run_id);
        let snapshot = session.snapshot(side).await?;
        facts.now_ms = snapshot.now_ms;
        facts.in_flight += snapshot.in_flight;
        facts.dead += snapshot.dead_letters;
        facts.completed += snapshot.completed;
        facts.paused |= snapshot.paused;
        facts.waiting += snapshot.queues.iter().map(|queue| queue.waiting + queue.suspects).sum::<u64>();
        facts.central |= session.exists(&session.keys.central()).await?;
        let unfit = snapshot.queues.into_iter().flat_map(|queue| queue.unfit).chain(snapshot.unfit);
        facts.unreadable.extend(unfit.map(|refusal| advice(&refusal.into())));
        let (lanes, reaping) = (session.keys.lanes(), session.keys.reaping());
        for (registry, untended) in [(lanes, &mut facts.expired), (reaping, &mut facts.fenced)] {
            match lapsed(session, &registry).await {
                Err(error) if error.is_transient() => return Err(error.into()),
                // The snapshot has named it.
                Err(_) => {}
                Ok(lapsed) => untended.extend(lapsed),
            }
        }
        match processes.look(session, &*admin.engine.protocol).await {
            Err(error) if error.is_transient() => return Err(error.into()),
            Err(error) => facts.unreadable.push(advice(&error)),
            Ok(_) => {}
        }
        if !known {
            scan(session, &admin.engine.shards, &admin.config.producer.rate_limit_key, look_at, &mut facts)
                .await?;
            facts.servers.push(server);
        }
    }
    facts.unreadable.sort();
    facts.unreadable.dedup();
    facts.heartbeats = processes.heartbeats;
    let is_open = |queue: &&String| processes.breaker(queue) == Some("open");
    facts.open_breakers = admin.engine.queues.iter().filter(is_open).cloned().collect();
    Ok(facts)
}

async fn server(session: &mut Session) -> Result<Server, StoreError> {
    session.connect().await?;
    let asked = Instant::now();
    session.time().await?;
    let round_trip = asked.elapsed();
    let ours = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    // Theirs was read in the middle of the round trip, and is carried on since.
    let theirs = Duration::from_millis(session.now_ms()) + round_trip / 2;
    let difference = |more: Duration, less: Duration| {
        i64::try_from(more.saturating_sub(less).as_millis()).unwrap_or(i64::MAX)
    };
    let clock_skew_ms = difference(theirs, ours) - difference(ours, theirs);
    let info = session.info().await?;
    let appendfsync = session.setting("appendfsync").await?;
    let snapshots = session.setting("save").await?.map(|save| !save.trim().is_empty());
    Ok(Server {
        clock_skew_ms,
        round_trip_ms: u64::try_from(round_trip.as_millis()).unwrap_or(u64::MAX),
        appendfsync,
        snapshots,
        ..Server::of(&info)
    })
}

impl Server {
    fn of(info: &HashMap<String, String>) -> Self {
        let text = |name: &str| info.get(name).cloned().unwrap_or_default();
        let number = |name: &str| info.get(name).and_then(|value| value.parse().ok()).unwrap_or(0);
        let valkey = text("valkey_version");
        let failed = [
            ("aof_last_write_status", "to the AOF"),
            ("aof_last_bgrewrite_status", "the AOF anew"),
            ("rdb_last_bgsave_status", "a snapshot"),
        ];
        Self {
            software: if valkey.is_empty() { "redis" } else { "valkey" }.into(),
            version: if valkey.is_empty() { text("redis_version") } else { valkey },
            mode: text("redis_mode"),
            role: text("role"),
            uptime_s: number("uptime_in_seconds"),
            maxmemory: number("maxmemory"),
            used_memory: number("used_memory"),
            system_memory: number("total_system_memory"),
            maxmemory_policy: text("maxmemory_policy"),
            aof_enabled: text("aof_enabled") == "1",
            failed_writes: (failed.into_iter())
                .filter(|(name, _)| info.get(*name).is_some_and(|status| status != "ok"))
                .map(|(_, what)| what)
                .collect(),
            replicas: number("connected_slaves"),
            run_id: text("run_id"),
            ..Self::default()
        }
    }
}

/// The lanes of a registry whose moment has passed, up to a page.
async fn lapsed(session: &mut Session, registry: &str) -> Result<Vec<Untended>, StoreError> {
    let now_ms = session.now_ms();
    let page = session.scored(registry, &Span { to: now_ms.to_string(), ..Span::up() }, PAGE_COUNT).await?;
    let untended = |(lane, score): (bytes::Bytes, String)| Untended {
        lane: String::from_utf8_lossy(&lane).into_owned(),
        ms: now_ms.saturating_sub(score.parse().unwrap_or(now_ms)),
    };
    Ok(page.entries.into_iter().map(untended).collect())
}

/// Looks at the keys under the prefix, as far as the bound goes.
async fn scan(
    session: &mut Session,
    shards: &[Keys],
    rate_limit: &str,
    look_at: u64,
    facts: &mut Facts,
) -> Result<(), StoreError> {
    let page = usize::try_from(look_at).unwrap_or(1000).min(1000);
    for glob in session.keys.prefix_globs() {
        let (mut cursor, mut left) = (String::from("0"), look_at);
        loop {
            let (next, keys) = session.scan_any(&cursor, &glob, page).await?;
            let kinds = session.types(&keys).await?;
            for (key, kind) in keys.into_iter().zip(kinds) {
                let expected = shards.iter().find_map(|shard| shard.kind_of(&key));
                let limits = shards.iter().any(|shard| shard.rate_limit(rate_limit) == key);
                match expected {
                    _ if kind == "none" || limits || is_layout(&key) => {}
                    Some(expected) if kind != expected => facts.wrong_types.push((key, kind, expected)),
                    Some(_) => {}
                    None => drop(facts.unknown_keys.insert(key)),
                }
            }
            cursor = next;
            left = left.saturating_sub(page as u64);
            if cursor == "0" {
                break;
            }
            if left == 0 {
                facts.scan_cut = true;
                break;
            }
        }
    }
    facts.unknown_keys = not_of_others(std::mem::take(&mut facts.unknown_keys));
    Ok(())
}

/// Every layout writes itself down at its own place.
fn is_layout(key: &str) -> bool {
    key.ends_with(":layout")
}

/// Another queue's prefix may begin with this one's: what belongs to it is not unknown.
fn not_of_others(keys: BTreeSet<String>) -> BTreeSet<String> {
    let sign = |key: &String| {
        [":lanes", ":lane_seq", ":counters", ":layout"]
            .iter()
            .find_map(|end| key.strip_suffix(end))
            .map(str::to_owned)
    };
    let others: BTreeSet<String> = keys.iter().filter_map(sign).collect();
    let is_others = |key: &String| {
        others
            .iter()
            .any(|prefix| key.strip_prefix(prefix.as_str()).is_some_and(|rest| rest.starts_with(':')))
    };
    keys.into_iter().filter(|key| !is_others(key)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_another_queue_are_not_unknown() {
        let keys =
            ["jobqueue:sidekiq:lanes", "jobqueue:sidekiq:lane:h-1-1", "jobqueue:sidekiqs", "jobqueue:junk"];
        let left = not_of_others(keys.iter().map(|key| (*key).to_owned()).collect());
        assert_eq!(left.into_iter().collect::<Vec<_>>(), ["jobqueue:junk", "jobqueue:sidekiqs"]);
    }

    #[test]
    fn valkey_says_its_own_version() {
        let info = |fields: &[(&str, &str)]| {
            Server::of(&fields.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect())
        };
        let valkey = info(&[("redis_version", "7.2.4"), ("valkey_version", "8.1.3")]);
        assert_eq!((valkey.software.as_str(), valkey.version.as_str()), ("valkey", "8.1.3"));
        let redis =
            info(&[("redis_version", "7.0.15"), ("aof_last_write_status", "err"), ("aof_enabled", "1")]);
        assert_eq!((redis.software.as_str(), redis.failed_writes.as_slice()), ("redis", &["to the AOF"][..]));
        assert!(redis.aof_enabled);
    }
}
