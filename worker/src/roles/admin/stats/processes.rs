//! The processes that hold jobs: their lanes put together.
use std::collections::{BTreeMap, HashSet};

use bytes::Bytes;
use jobqueue::breaker::State;
use jobqueue::protocol::Protocol;
use jobqueue::protocol::files::rfc3339;
use jobqueue::store::{LaneRecord, PAGE_COUNT, Session, StoreError};
use serde::Serialize;

/// So many lanes of a shard are shown as processes; all are counted.
const SHOWN: usize = 1000;

/// One process; its field names are what scripts rely on.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Process {
    #[serde(rename = "process")]
    pub name: String,
    pub host: String,
    pub pid: Option<u32>,
    pub pod_uid: Option<String>,
    pub jobqueue_uid: Option<String>,
    pub started_at: Option<String>,
    pub lanes: u64,
    pub in_flight: u64,
    pub oldest_job: Option<String>,
    pub state: &'static str,
    pub breakers: BTreeMap<String, String>,
    #[serde(skip)]
    seen: Seen,
}

/// What its lanes say of it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Seen {
    live: u64,
    expired: u64,
    fenced: u64,
    acknowledged: u64,
    told: bool,
}

impl Seen {
    /// In a word. A fenced lane beside living ones is only one that was lost.
    fn state(self, in_flight: u64) -> &'static str {
        match self {
            Self { live: 0, expired: 0, .. } => "fenced",
            Self { live: 0, .. } => "expired",
            Self { live, acknowledged, .. } if acknowledged == live && in_flight == 0 => "drained",
            Self { told, acknowledged, .. } if told || acknowledged > 0 => "quiet",
            _ => "active",
        }
    }
}

/// One lane, as it was found.
struct Lane {
    record: LaneRecord,
    held: u64,
    alive: bool,
    fenced: bool,
    word: Bytes,
}

/// All of them, over all shards.
#[derive(Debug, Default)]
pub struct Processes {
    by_name: BTreeMap<String, Process>,
    /// Lanes with a heartbeat.
    pub heartbeats: u64,
}

impl Processes {
    /// Looks at the lanes of a shard; answers the jobs in processing lists by queue. Fenced lanes count too: their jobs
    /// are on their way back.
    pub async fn look(
        &mut self,
        session: &mut Session,
        protocol: &dyn Protocol,
    ) -> Result<BTreeMap<String, u64>, StoreError> {
        let mut jobs = BTreeMap::new();
        let mut seen = HashSet::new();
        for fenced in [false, true] {
            let mut cursor = String::from("0");
            loop {
                let (next, lanes) = session.scan_lanes(fenced, &cursor, PAGE_COUNT).await?;
                let fresh: Vec<String> = lanes.into_iter().filter(|lane| seen.insert(lane.clone())).collect();
                for page in fresh.chunks(PAGE_COUNT) {
                    for lane in read(session, page, fenced, &mut jobs).await? {
                        self.heartbeats += u64::from(lane.alive && !fenced);
                        if seen.len() <= SHOWN {
                            self.add(&lane, protocol);
                        }
                    }
                }
                if next == "0" {
                    break;
                }
                cursor = next;
            }
        }
        let controls: Vec<String> = self.by_name.values().map(control).collect();
        let told = session.told_quiet(&controls).await?;
        for (process, told) in self.by_name.values_mut().zip(told) {
            process.seen.told |= told;
        }
        Ok(jobs)
    }

    fn add(&mut self, lane: &Lane, protocol: &dyn Protocol) {
        let record = &lane.record;
        let given = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        let (host, pid) = record.process.rsplit_once('-').unwrap_or((&record.process, ""));
        let process = self.by_name.entry(record.process.clone()).or_insert_with(|| Process {
            name: record.process.clone(),
            host: host.to_owned(),
            pid: pid.parse().ok(),
            pod_uid: given(&record.pod_uid),
            jobqueue_uid: given(&record.jobqueue_uid),
            started_at: (record.started_ms > 0).then(|| rfc3339(record.started_ms)),
            ..Process::default()
        });
        process.lanes += 1;
        process.in_flight += lane.held;
        if process.oldest_job.is_none() && !lane.word.is_empty() {
            let job = protocol.decode(lane.word.clone()).ok();
            process.oldest_job = job.map(|job| job.fields.id).or_else(|| id_alone(&lane.word));
        }
        process.seen.fenced += u64::from(lane.fenced);
        process.seen.expired += u64::from(!lane.fenced && !lane.alive);
        process.seen.live += u64::from(!lane.fenced && lane.alive);
        process.seen.acknowledged += u64::from(!lane.fenced && lane.alive && !record.quiet.is_empty());
        for (queue, state) in record.breakers.split(' ').filter_map(|word| word.split_once('=')) {
            process.breakers.insert(queue.to_owned(), state.to_owned());
        }
    }

    /// The breaker of a queue, by all living processes that speak of it.
    pub fn breaker(&self, queue: &str) -> Option<&'static str> {
        let states: Vec<&str> = (self.by_name.values())
            .filter(|process| process.seen.live > 0)
            .filter_map(|process| process.breakers.get(queue).map(String::as_str))
            .collect();
        let of = |state: State| states.iter().filter(|said| **said == state.as_str()).count();
        match states.len() {
            0 => None,
            all if 2 * of(State::Open) >= all => Some(State::Open.as_str()),
            _ if of(State::Open) + of(State::HalfOpen) > 0 => Some(State::HalfOpen.as_str()),
            _ => Some(State::Closed.as_str()),
        }
    }

    pub fn into_list(self) -> Vec<Process> {
        let stated = |mut process: Process| {
            process.state = process.seen.state(process.in_flight);
            process
        };
        self.by_name.into_values().map(stated).collect()
    }
}

/// What `quiet` is named by.
fn control(process: &Process) -> String {
    process.pod_uid.clone().unwrap_or_else(|| process.name.clone())
}

/// A large job's heartbeat has only its id.
fn id_alone(word: &[u8]) -> Option<String> {
    serde_json::from_slice::<serde_json::Value>(word).ok()?.get("id")?.as_str().map(str::to_owned)
}

async fn read(
    session: &mut Session,
    page: &[String],
    fenced: bool,
    jobs: &mut BTreeMap<String, u64>,
) -> Result<Vec<Lane>, StoreError> {
    let words = session.heartbeat_words(page).await?;
    let (mut lanes, mut owners, mut lists) = (Vec::new(), Vec::new(), Vec::new());
    for ((record, alive), word) in session.look_at(page).await?.into_iter().zip(words) {
        let Some(record) = record else { continue };
        for queue in &record.lists {
            owners.extend(queue.lists.iter().map(|_| (lanes.len(), queue.name.clone())));
            lists.extend(queue.lists.iter().cloned());
        }
        lanes.push(Lane { record, held: 0, alive, fenced, word });
    }
    for (owners, lists) in owners.chunks(1000).zip(lists.chunks(1000)) {
        for ((lane, queue), length) in owners.iter().zip(session.lengths(lists).await?) {
            lanes[*lane].held += length;
            *jobs.entry(queue.clone()).or_default() += length;
        }
    }
    Ok(lanes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_what_its_lanes_say() {
        let state = |live, expired, fenced, acknowledged, told, held| {
            Seen { live, expired, fenced, acknowledged, told }.state(held)
        };
        assert_eq!(state(2, 0, 0, 0, false, 3), "active");
        assert_eq!(state(2, 0, 1, 0, false, 0), "active", "one lane was lost, the others go on");
        assert_eq!(state(2, 0, 0, 0, true, 3), "quiet");
        assert_eq!(state(2, 0, 0, 2, true, 1), "quiet");
        assert_eq!(state(2, 0, 0, 2, true, 0), "drained");
        assert_eq!(state(0, 1, 1, 0, false, 3), "expired");
        assert_eq!(state(0, 0, 1, 0, false, 3), "fenced");
    }

    #[test]
    fn a_breaker_is_open_when_half_of_those_who_speak_say_so() {
        let processes = |states: &[&str]| {
            let process = |(at, state): (usize, &&str)| {
                let breakers = BTreeMap::from([("high".to_owned(), (*state).to_owned())]);
                let seen = Seen { live: 1, ..Seen::default() };
                (at.to_string(), Process { breakers, seen, ..Process::default() })
            };
            Processes { by_name: states.iter().enumerate().map(process).collect(), heartbeats: 0 }
        };
        let of = |states: &[&str]| processes(states).breaker("high");
        assert_eq!(of(&["open", "closed"]), Some("open"));
        assert_eq!(of(&["open", "closed", "closed"]), Some("half-open"));
        assert_eq!(of(&["closed"]), Some("closed"));
        assert_eq!(processes(&["open"]).breaker("low"), None);
    }
}
