//! What Sidekiq's API and its web page see of a process: `beat`, `depart`; and what they tell it.
use redis::{Cmd, Value};

use super::{BEAT, Call, DEPART, Session, StoreError, list, number, text};
use crate::protocol::sidekiq::names::Names;

/// Sidekiq forgets a process that has not been heard of for this long.
const TTL_S: u64 = 60;
/// The counters of a day are kept for five years.
const STATS_TTL_S: u64 = 5 * 365 * 86_400;

/// What a process says of itself.
#[derive(Debug, Clone, Default)]
pub struct ProcessBeat {
    /// `hostname:pid:nonce`.
    pub identity: String,
    /// One more than the last that was answered: a repeated one counts nothing twice.
    pub seq: u64,
    /// The day of Redis' clock: `2026-01-31`.
    pub day: String,
    /// Runs that ended since the last beat.
    pub processed: u64,
    /// Of those, failed.
    pub failed: u64,
    /// The fields of the process, by name.
    pub fields: Vec<(String, String)>,
    /// What runs, by thread.
    pub work: Vec<(String, String)>,
}

/// What a process is told.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Told {
    /// `TSTP`, `TERM`, `TTIN`.
    pub signals: Vec<String>,
    /// Queues that nobody may fetch from.
    pub paused: Vec<String>,
}

impl Session {
    /// Shows a process.
    pub async fn beat(&mut self, names: &Names, beat: &ProcessBeat) -> Result<(), StoreError> {
        let mut keys = vec![names.processes()];
        keys.extend(keys_of(names, &beat.identity));
        for day in [None, Some(beat.day.as_str())] {
            keys.extend(["processed", "failed"].map(|what| names.stat(what, day)));
        }
        let mut call = Call::new(keys);
        call.arg(&beat.identity).arg(TTL_S).arg(STATS_TTL_S).arg(beat.seq);
        call.arg(beat.processed).arg(beat.failed).arg(beat.fields.len());
        for (name, value) in beat.fields.iter().chain(&beat.work) {
            call.arg(name).arg(value);
        }
        if let [seconds, micros] = list(self.eval(&BEAT, &call).await?)?.as_slice() {
            self.saw_time(seconds, micros);
        }
        Ok(())
    }

    /// What people told a process by Sidekiq's API or its web page, and which queues they paused.
    pub async fn told(&mut self, names: &Names, identity: &str) -> Result<Told, StoreError> {
        let mut signal = Cmd::new();
        signal.arg("RPOP").arg(names.key(&format!("{identity}-signals")));
        let mut paused = Cmd::new();
        paused.arg("SMEMBERS").arg(names.paused());
        let mut answers = self.query_all(vec![signal, paused]).await?.into_iter();
        let signals = match answers.next() {
            None | Some(Value::Nil) => Vec::new(),
            Some(signal) => vec![text(signal)],
        };
        let paused = match answers.next() {
            Some(Value::Array(names) | Value::Set(names)) => names.into_iter().map(text).collect(),
            _ => Vec::new(),
        };
        Ok(Told { signals, paused })
    }

    /// Takes a process out of sight, or with `None` those that died.
    pub async fn depart(&mut self, names: &Names, identity: Option<&str>) -> Result<u64, StoreError> {
        let mut keys = vec![names.processes()];
        keys.extend(identity.into_iter().flat_map(|identity| keys_of(names, identity)));
        let mut call = Call::new(keys);
        call.arg(identity.unwrap_or_default());
        if identity.is_none() {
            let mut members = Cmd::new();
            members.arg("SRANDMEMBER").arg(names.processes()).arg(super::PAGE_COUNT);
            for process in list(self.query(&members).await?)?.into_iter().map(text) {
                call.arg(names.key(&process)).arg(&process);
            }
        }
        Ok(number(&self.eval(&DEPART, &call).await?).unwrap_or(0))
    }
}

/// The process, its work, the same for readers before 6.4.2.
fn keys_of(names: &Names, identity: &str) -> [String; 3] {
    ["", ":work", ":workers"].map(|suffix| names.key(&format!("{identity}{suffix}")))
}
