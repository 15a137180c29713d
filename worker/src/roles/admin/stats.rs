//! `stats`: what waits, runs, is delayed, completed and dead, over all shards.
use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use jobqueue::store::{PAGE_COUNT, Session, Snapshot, StoreError};
use serde::Serialize;

use super::table::{Table, age};
use super::{Admin, AdminError, End, advice, answer};
use crate::cli::Output;

/// The answer; its field names are what scripts rely on.
#[derive(Debug, Default, PartialEq, Serialize)]
struct Stats {
    queues: Vec<QueueStats>,
    /// Over all queues; in flight includes lists of queues that are not configured any more.
    totals: QueueStats,
    lanes: u64,
    heartbeats: u64,
    fenced: u64,
    completed: u64,
    dead_letters: u64,
    paused: bool,
    paused_shards: u64,
    shards: u64,
    /// What could not be read: the figures are without it.
    errors: Vec<String>,
}

#[derive(Debug, Default, PartialEq, Serialize)]
struct QueueStats {
    #[serde(skip_serializing_if = "String::is_empty")]
    queue: String,
    waiting: u64,
    suspects: u64,
    delayed: u64,
    due: u64,
    in_flight: u64,
    oldest_age_ms: Option<u64>,
}

pub async fn run(admin: &mut Admin, output: Output) -> Result<End, AdminError> {
    let names = admin.engine.queues.iter().cloned();
    let mut stats = Stats {
        queues: names.map(|queue| QueueStats { queue, ..QueueStats::default() }).collect(),
        ..Stats::default()
    };
    let side = admin.engine.protocol.consuming_side();
    for session in &mut admin.shards {
        let snapshot = session.snapshot(side).await?;
        stats.add(&snapshot);
        let (heartbeats, in_flight) = match in_flight(session).await {
            Err(error) if error.is_transient() => return Err(error.into()),
            Err(error) => {
                // By queue it is not known then, but in all it is.
                stats.note(&error);
                stats.totals.in_flight += snapshot.in_flight;
                continue;
            }
            Ok(counted) => counted,
        };
        stats.heartbeats += heartbeats;
        for (queue, jobs) in in_flight {
            stats.totals.in_flight += jobs;
            if let Some(queue) = stats.queues.iter_mut().find(|stats| stats.queue == queue) {
                queue.in_flight += jobs;
            }
        }
    }
    answer(output, || stats.table(), || serde_json::to_value(&stats).unwrap_or_default())?;
    for error in &stats.errors {
        eprintln!("Error: {error}");
    }
    Ok(if stats.errors.is_empty() { End::Done } else { End::Incomplete })
}

/// Lanes with a heartbeat, and the jobs in processing lists by queue. Fenced lanes count too: their jobs are on
/// their way back.
async fn in_flight(session: &mut Session) -> Result<(u64, BTreeMap<String, u64>), StoreError> {
    let (mut heartbeats, mut jobs) = (0, BTreeMap::new());
    let mut counted = HashSet::new();
    for fenced in [false, true] {
        let mut cursor = String::from("0");
        loop {
            let (next, lanes) = session.scan_lanes(fenced, &cursor, PAGE_COUNT).await?;
            let fresh: Vec<String> = lanes.into_iter().filter(|lane| counted.insert(lane.clone())).collect();
            for page in fresh.chunks(PAGE_COUNT) {
                let (mut queues, mut lists) = (Vec::new(), Vec::new());
                for (record, alive) in session.look_at(page).await? {
                    heartbeats += u64::from(alive && !fenced);
                    for queue in record.into_iter().flat_map(|record| record.lists) {
                        queues.extend(queue.lists.iter().map(|_| queue.name.clone()));
                        lists.extend(queue.lists);
                    }
                }
                for (queues, lists) in queues.chunks(1000).zip(lists.chunks(1000)) {
                    for (queue, length) in queues.iter().zip(session.lengths(lists).await?) {
                        *jobs.entry(queue.clone()).or_default() += length;
                    }
                }
            }
            if next == "0" {
                break;
            }
            cursor = next;
        }
    }
    Ok((heartbeats, jobs))
}

impl Stats {
    fn add(&mut self, shard: &Snapshot) {
        self.shards += 1;
        self.lanes += shard.lanes;
        self.fenced += shard.reaping;
        self.completed += shard.completed;
        self.dead_letters += shard.dead_letters;
        self.paused |= shard.paused;
        self.paused_shards += u64::from(shard.paused);
        for unfit in shard.queues.iter().flat_map(|queue| &queue.unfit).chain(&shard.unfit) {
            self.note(&unfit.clone().into());
        }
        for (queue, seen) in self.queues.iter_mut().zip(&shard.queues) {
            let oldest = seen.oldest_age(shard.now_ms).map(millis);
            for stats in [queue, &mut self.totals] {
                stats.waiting += seen.waiting;
                stats.suspects += seen.suspects;
                stats.delayed += seen.delayed;
                stats.due += seen.due;
                stats.oldest_age_ms = stats.oldest_age_ms.max(oldest);
            }
        }
    }

    /// Once: the same key is met again on the way.
    fn note(&mut self, error: &StoreError) {
        let said = advice(error);
        if !self.errors.contains(&said) {
            self.errors.push(said);
        }
    }

    fn table(&self) -> String {
        let mut queues =
            Table::new(&["QUEUE", "WAITING", "SUSPECTS", "DELAYED", "DUE", "IN-FLIGHT", "OLDEST"]);
        let counts = |name: &str, stats: &QueueStats| {
            let counts = [stats.waiting, stats.suspects, stats.delayed, stats.due, stats.in_flight];
            let oldest = stats.oldest_age_ms.map_or_else(|| "-".to_owned(), age);
            let counts = counts.iter().map(u64::to_string);
            std::iter::once(name.to_owned()).chain(counts).chain([oldest]).collect()
        };
        for stats in &self.queues {
            queues.row(counts(&stats.queue, stats));
        }
        queues.row(counts("TOTAL", &self.totals));
        let mut rest = Table::new(&["LANES", "HEARTBEATS", "FENCED", "COMPLETED", "DEAD", "PAUSED"]);
        let paused = match self.paused_shards {
            0 => "no".to_owned(),
            all if all == self.shards => "yes".to_owned(),
            some => format!("{some} of {} shards", self.shards),
        };
        let counts = [self.lanes, self.heartbeats, self.fenced, self.completed, self.dead_letters];
        rest.row(counts.iter().map(u64::to_string).chain([paused]).collect());
        format!("{queues}\n{rest}")
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use jobqueue::store::QueueSnapshot;

    fn shard(waiting: u64, paused: bool) -> Snapshot {
        let oldest = bytes::Bytes::from_static(br#"{"id":"a","creation_time":"2026-01-01T00:00:00Z"}"#);
        let queue = QueueSnapshot { waiting, oldest, ..QueueSnapshot::default() };
        Snapshot {
            now_ms: 1_767_225_660_000,
            dead_letters: 2,
            paused,
            queues: vec![queue],
            ..Snapshot::default()
        }
    }

    #[test]
    fn shards_add_up() {
        let queue = QueueStats { queue: "high".into(), ..QueueStats::default() };
        let mut stats = Stats { queues: vec![queue], ..Stats::default() };
        stats.add(&shard(3, true));
        stats.add(&shard(4, false));
        assert_eq!((stats.queues[0].waiting, stats.totals.waiting, stats.dead_letters), (7, 7, 4));
        assert_eq!(
            stats.table(),
            "QUEUE   WAITING   SUSPECTS   DELAYED   DUE   IN-FLIGHT   OLDEST\n\
             high    7         0          0         0     0           60s\n\
             TOTAL   7         0          0         0     0           60s\n\
             \n\
             LANES   HEARTBEATS   FENCED   COMPLETED   DEAD   PAUSED\n\
             0       0            0        0           4      1 of 2 shards\n"
        );
    }
}
