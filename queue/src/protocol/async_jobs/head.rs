//! What is read of a job's JSON.
use serde::Deserialize;
use serde_json::Value;

use crate::job::describe;
use crate::protocol::record::Record;

/// How far a job has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Status {
    /// It waits: in its queue, or for its backoff to pass.
    Pending,
    /// A handler has it.
    Running,
    /// It did what it had to do.
    Completed,
    /// It was given up.
    Failed,
    /// Somebody wanted it not to run. Never left again.
    Cancelled,
}

impl Status {
    /// All of them, in the order of a job's life.
    pub const ALL: [Self; 5] = [Self::Pending, Self::Running, Self::Completed, Self::Failed, Self::Cancelled];

    /// The word for it in Redis and over HTTP.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// The status of this word.
    pub fn of(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == word)
    }

    /// Nothing will become of it any more by itself.
    pub const fn is_over(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled)
    }
}

/// A moment of Redis' clock as jobs write it: RFC 3339, UTC, with milliseconds.
pub fn timestamp(now_ms: u64) -> String {
    let time = i64::try_from(now_ms).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    time.map_or_else(String::new, |time| time.strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string())
}

/// The fields that decide what becomes of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) status: Status,
    pub(super) kind: String,
    pub(super) created_at: String,
    pub(super) attempts: u32,
    pub(super) retries: u32,
    pub(super) interruptions: u32,
    pub(super) deaths: u32,
    /// The lane that runs it.
    pub(super) worker: Option<String>,
    /// The hash of the idempotency key that it was created under, in hex.
    pub(super) idempotency_key: Option<String>,
}

/// The same as they were written. Only what chooses a handler must have its type: a client of another language may
/// write 1.0 for an attempt, and its job still runs.
#[derive(Deserialize)]
struct Written {
    #[serde(default)]
    status: Value,
    #[serde(default, rename = "type")]
    kind: Option<String>,
    #[serde(default)]
    created_at: Value,
    #[serde(default)]
    attempts: Value,
    #[serde(default)]
    retries: Value,
    #[serde(default)]
    interruptions: Value,
    #[serde(default)]
    deaths: Value,
    #[serde(default)]
    worker: Value,
    #[serde(default)]
    idempotency_key: Value,
}

impl Head {
    /// Of a job that can be read.
    pub(super) fn read(raw: &[u8]) -> Option<Self> {
        Self::parse(raw).ok()
    }

    /// Of a job that cannot be run and that its clients see all the same: they read less of it.
    pub(super) fn seen(raw: &[u8]) -> Option<Self> {
        let (status, record) = (crate::submission::status(raw)?, Record::read(raw)?);
        let counter = |name| record.get(name).map_or(0, |value| count(&value));
        Some(Self {
            status,
            kind: record.text("type").unwrap_or_default(),
            created_at: record.text("created_at").unwrap_or_default(),
            attempts: counter("attempts"),
            retries: counter("retries"),
            interruptions: counter("interruptions"),
            deaths: counter("deaths"),
            worker: record.text("worker").filter(|worker| !worker.is_empty()),
            idempotency_key: record.text("idempotency_key").filter(|hash| is_hash(hash)),
        })
    }

    /// Of a job, or why it is none; the reason quotes no data.
    pub(super) fn parse(raw: &[u8]) -> Result<Self, String> {
        if std::str::from_utf8(raw).is_err() {
            return Err("not UTF-8".into());
        }
        if raw.trim_ascii_start().first() != Some(&b'{') {
            return Err("not an object".into());
        }
        let written: Written = serde_json::from_slice(raw).map_err(|error| describe(&error))?;
        let status = match &written.status {
            Value::Null => Status::Pending,
            Value::String(word) if word.is_empty() => Status::Pending,
            Value::String(word) => Status::of(word)
                .ok_or("its status is none of pending, running, completed, failed, cancelled")?,
            _ => return Err("its status is not text".into()),
        };
        let text = |value: Value| match value {
            Value::String(text) if !text.is_empty() => Some(text),
            _ => None,
        };
        Ok(Self {
            status,
            kind: written.kind.unwrap_or_default(),
            created_at: text(written.created_at).unwrap_or_default(),
            attempts: count(&written.attempts),
            retries: count(&written.retries),
            interruptions: count(&written.interruptions),
            deaths: count(&written.deaths),
            worker: text(written.worker),
            idempotency_key: text(written.idempotency_key).filter(|hash| is_hash(hash)),
        })
    }
}

fn is_hash(hash: &str) -> bool {
    hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// A counter; what is none counts nothing.
fn count(value: &Value) -> u32 {
    let whole = value.as_u64().or_else(|| {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded before")]
        value.as_f64().filter(|number| (0.0..4e9).contains(number)).map(|number| number as u64)
    });
    whole.map_or(0, |whole| u32::try_from(whole).unwrap_or(u32::MAX))
}
