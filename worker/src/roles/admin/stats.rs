//! `stats`: what waits, runs, is delayed, completed and dead, over all shards; and who runs it.
mod processes;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::IsTerminal as _;
use std::time::Duration;

use jobqueue::protocol::files::rfc3339;
use jobqueue::store::{Snapshot, StoreError};
use serde::Serialize;

use super::table::{Table, age, json_line, or_dash, shown, yaml};
use super::{Admin, AdminError, End, advice, answer, print};
use crate::cli::{self, Format};
pub use processes::Processes;

/// The answer; its field names are what scripts rely on.
#[derive(Debug, Default, PartialEq, Serialize)]
struct Stats {
    at: String,
    queues: Vec<QueueStats>,
    /// Over all queues; in flight includes lists of queues that are not configured any more.
    totals: Counts,
    completed: u64,
    dead_letters: u64,
    retry: Option<u64>,
    scheduled: Option<u64>,
    counters: BTreeMap<String, u64>,
    per_second: Option<BTreeMap<String, f64>>,
    lanes: u64,
    heartbeats: u64,
    fenced: u64,
    processes: Vec<processes::Process>,
    paused: bool,
    paused_shards: u64,
    shards: u64,
    /// What could not be read: the figures are without it.
    errors: Vec<String>,
    #[serde(skip)]
    now_ms: u64,
}

#[derive(Debug, Default, PartialEq, Serialize)]
struct QueueStats {
    queue: String,
    key: String,
    #[serde(flatten)]
    counts: Counts,
    breaker: Option<&'static str>,
}

#[derive(Debug, Default, PartialEq, Serialize)]
struct Counts {
    waiting: u64,
    suspects: u64,
    delayed: u64,
    due: u64,
    in_flight: u64,
    oldest_age_ms: Option<u64>,
}

/// Counters whose differences are the throughput.
const RATES: [&str; 3] = ["reserved", "done", "failed"];
/// Counters that are there from the beginning.
const COUNTERS: [&str; 5] = ["reserved", "done", "failed", "busy_ms", "trimmed"];

pub async fn run(admin: &mut Admin<'_>, args: &cli::Stats) -> Result<End, AdminError> {
    let mut before: Option<Stats> = None;
    loop {
        let mut stats = look(admin).await?;
        stats.per_second = before.as_ref().and_then(|before| stats.since(before));
        let Some(interval) = args.watch else {
            answer(args.common, || stats.table(), || serde_json::to_value(&stats).unwrap_or_default())?;
            for error in &stats.errors {
                eprintln!("Error: {error}");
            }
            return Ok(if stats.errors.is_empty() { End::Done } else { End::Incomplete });
        };
        let value = || serde_json::to_value(&stats).unwrap_or_default();
        let text = match args.common.output {
            Format::Table if std::io::stdout().is_terminal() => format!("\x1b[H\x1b[2J{}", stats.table()),
            Format::Table => format!("{}\n", stats.table()),
            Format::Json => format!("{}\n", json_line(&value())),
            Format::Yaml => format!("---\n{}", yaml(&value())),
        };
        if !print(&text)? {
            return Ok(End::Done);
        }
        if admin.stop.within(interval).await {
            return Ok(End::Interrupted);
        }
        before = Some(stats);
    }
}

async fn look(admin: &mut Admin<'_>) -> Result<Stats, AdminError> {
    let queue = |keys: &jobqueue::keys::QueueKeys| QueueStats {
        queue: keys.name.clone(),
        key: keys.queue.clone(),
        ..QueueStats::default()
    };
    let mut stats = Stats {
        queues: admin.engine.shards[0].queues.iter().map(queue).collect(),
        counters: COUNTERS.iter().map(|name| ((*name).to_owned(), 0)).collect(),
        ..Stats::default()
    };
    let mut processes = Processes::default();
    let side = admin.engine.protocol.consuming_side();
    for session in &mut admin.shards {
        let snapshot = session.snapshot(side).await?;
        stats.add(&snapshot);
        let in_flight = match processes.look(session, &*admin.engine.protocol).await {
            Err(error) if error.is_transient() => return Err(error.into()),
            Err(error) => {
                // By queue it is not known then, but in all it is.
                stats.note(&error);
                stats.totals.in_flight += snapshot.in_flight;
                continue;
            }
            Ok(in_flight) => in_flight,
        };
        for (queue, jobs) in in_flight {
            stats.totals.in_flight += jobs;
            if let Some(queue) = stats.queues.iter_mut().find(|stats| stats.queue == queue) {
                queue.counts.in_flight += jobs;
            }
        }
    }
    stats.heartbeats = processes.heartbeats;
    for queue in &mut stats.queues {
        queue.breaker = processes.breaker(&queue.queue);
    }
    stats.processes = processes.into_list();
    if let Some(names) = admin.names() {
        for (set, key) in [(&mut stats.retry, names.retry()), (&mut stats.scheduled, names.schedule())] {
            match admin.shards[0].members(&key).await {
                Err(error) if error.is_transient() => return Err(error.into()),
                Err(error) => stats.errors.push(advice(&error)),
                Ok(members) => *set = Some(members),
            }
        }
    }
    Ok(stats)
}

impl Stats {
    fn add(&mut self, shard: &Snapshot) {
        self.shards += 1;
        self.now_ms = self.now_ms.max(shard.now_ms);
        self.at = rfc3339(self.now_ms);
        self.lanes += shard.lanes;
        self.fenced += shard.reaping;
        self.completed += shard.completed;
        self.dead_letters += shard.dead_letters;
        self.paused |= shard.paused;
        self.paused_shards += u64::from(shard.paused);
        for (name, count) in &shard.counters {
            *self.counters.entry(name.clone()).or_default() += count;
        }
        for unfit in shard.queues.iter().flat_map(|queue| &queue.unfit).chain(&shard.unfit) {
            self.note(&unfit.clone().into());
        }
        for (queue, seen) in self.queues.iter_mut().zip(&shard.queues) {
            let oldest = seen.oldest_age(shard.now_ms).map(millis);
            for counts in [&mut queue.counts, &mut self.totals] {
                counts.waiting += seen.waiting;
                counts.suspects += seen.suspects;
                counts.delayed += seen.delayed;
                counts.due += seen.due;
                counts.oldest_age_ms = counts.oldest_age_ms.max(oldest);
            }
        }
    }

    /// What happened a second since an earlier look. Counters that fell were deleted meanwhile.
    fn since(&self, before: &Self) -> Option<BTreeMap<String, f64>> {
        let seconds = Duration::from_millis(self.now_ms.checked_sub(before.now_ms)?).as_secs_f64();
        let rate = |name: &&str| {
            let grown = self.counters.get(*name)?.checked_sub(*before.counters.get(*name)?)?;
            let grown = f64::from(u32::try_from(grown).unwrap_or(u32::MAX));
            Some(((*name).to_owned(), (grown / seconds * 10.0).round() / 10.0))
        };
        (seconds > 0.0).then(|| RATES.iter().filter_map(rate).collect())
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
            Table::new(&["QUEUE", "WAITING", "SUSPECTS", "DELAYED", "DUE", "IN-FLIGHT", "OLDEST", "BREAKER"]);
        let row = |name: &str, counts: &Counts, breaker: &str| {
            let oldest = counts.oldest_age_ms.map_or_else(|| "-".to_owned(), age);
            let counts = [counts.waiting, counts.suspects, counts.delayed, counts.due, counts.in_flight];
            let counts = counts.iter().map(u64::to_string);
            std::iter::once(name.to_owned()).chain(counts).chain([oldest, breaker.to_owned()]).collect()
        };
        for stats in &self.queues {
            queues.row(row(&stats.queue, &stats.counts, stats.breaker.unwrap_or("-")));
        }
        queues.row(row("TOTAL", &self.totals, ""));
        let mut header = vec!["LANES", "HEARTBEATS", "FENCED", "COMPLETED", "DEAD", "PAUSED"];
        let paused = match self.paused_shards {
            0 => "no".to_owned(),
            all if all == self.shards => "yes".to_owned(),
            some => format!("{some} of {} shards", self.shards),
        };
        let counts = [self.lanes, self.heartbeats, self.fenced, self.completed, self.dead_letters];
        let mut cells: Vec<String> = counts.iter().map(u64::to_string).chain([paused]).collect();
        for (name, figure) in [("RETRY", self.retry), ("SCHEDULED", self.scheduled)] {
            if let Some(figure) = figure {
                header.push(name);
                cells.push(figure.to_string());
            }
        }
        for (name, rate) in self.per_second.iter().flatten() {
            header.push(match name.as_str() {
                "reserved" => "RESERVED/S",
                "done" => "DONE/S",
                _ => "FAILED/S",
            });
            cells.push(rate.to_string());
        }
        let mut rest = Table::new(&header);
        rest.row(cells);
        let mut text = format!("{queues}\n{rest}");
        if !self.processes.is_empty() {
            let mut table = Table::new(&["PROCESS", "STATE", "LANES", "IN-FLIGHT", "OLDEST-JOB"]);
            for process in &self.processes {
                table.row(vec![
                    shown(&process.name),
                    process.state.to_owned(),
                    process.lanes.to_string(),
                    process.in_flight.to_string(),
                    or_dash(shown(process.oldest_job.as_deref().unwrap_or_default())),
                ]);
            }
            let _ = write!(text, "\n{table}");
        }
        text
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
            counters: vec![("done".into(), waiting)],
            paused,
            queues: vec![queue],
            ..Snapshot::default()
        }
    }

    fn empty() -> Stats {
        let queue = QueueStats { queue: "high".into(), ..QueueStats::default() };
        Stats { queues: vec![queue], ..Stats::default() }
    }

    #[test]
    fn shards_add_up() {
        let mut stats = empty();
        stats.add(&shard(3, true));
        stats.add(&shard(4, false));
        assert_eq!((stats.queues[0].counts.waiting, stats.totals.waiting, stats.dead_letters), (7, 7, 4));
        assert_eq!((stats.at.as_str(), stats.counters["done"]), ("2026-01-01T00:01:00Z", 7));
        assert_eq!(
            stats.table(),
            "QUEUE   WAITING   SUSPECTS   DELAYED   DUE   IN-FLIGHT   OLDEST   BREAKER\n\
             high    7         0          0         0     0           60s      -\n\
             TOTAL   7         0          0         0     0           60s\n\
             \n\
             LANES   HEARTBEATS   FENCED   COMPLETED   DEAD   PAUSED\n\
             0       0            0        0           4      1 of 2 shards\n"
        );
    }

    #[test]
    fn throughput_is_the_difference_of_two_looks() {
        let (mut before, mut after) = (empty(), empty());
        before.add(&shard(3, false));
        after.add(&Snapshot { now_ms: 1_767_225_662_000, ..shard(10, false) });
        assert_eq!(after.since(&before), Some(BTreeMap::from([("done".to_owned(), 3.5)])));
        assert_eq!(before.since(&before), None, "no time has passed");
        assert_eq!(before.since(&after), None, "Redis' clock was set back");
    }
}
