//! System A: directory jobs as JSON in lists. Pushed at the left, taken from the right.
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use serde_json::{Map, Value};

use super::{Interruption, Protocol};
use crate::effects::{Decision, Effect, Side, Verdict};
use crate::job::{DEATHS, Job, NotAJob, edit};
use crate::keys::QueueKeys;
use crate::outcome::{Failure, Outcome, Reason};
use crate::retry::backoff;

/// Completed entries larger than this keep the job's metadata, not its bytes: 10,000 of them are then 40 MiB at most.
pub const COMPLETED_ENTRY_MAX: usize = 4096;

/// An error is kept with its job up to this length.
const ERROR_MAX: usize = 4096;

/// The policy of a `files` queue.
#[derive(Debug, Clone)]
pub struct Files {
    /// Failed attempts after the first before a job is given up.
    pub max_retries: u32,
    /// The first backoff.
    pub backoff_base: Duration,
    /// The longest backoff.
    pub backoff_max: Duration,
    /// Interruptions of a job that ran alone before it is given up.
    pub max_interruptions: u32,
    /// Payloads above this are refused before they are parsed.
    pub max_payload_bytes: usize,
    /// Entries the completed list keeps: `None` = all, `Some(0)` = none.
    pub completed_max: Option<u64>,
    /// Dead letters kept; `None` = all.
    pub dead_letter_max: Option<u64>,
}

impl Files {
    fn bury(&self, letter: Bytes, reason: Reason, queue: &QueueKeys) -> Decision {
        let mut effects =
            vec![Effect::Push { key: queue.dead_letters.clone(), side: Side::Left, bytes: letter }];
        if let Some(max) = self.dead_letter_max {
            effects.push(Effect::Trim { key: queue.dead_letters.clone(), max });
        }
        Decision { verdict: Verdict::Dead(reason), effects }
    }

    fn dead(&self, job: &Job, failure: &Failure, counters: &[(&str, Value)], queue: &QueueKeys, now_ms: u64) -> Decision {
        let mut changes: Vec<(&str, Option<Value>)> =
            counters.iter().map(|(name, value)| (*name, Some(value.clone()))).collect();
        changes.extend([
            ("error", Some(Value::from(clipped(&failure.error)))),
            ("reason", Some(Value::from(failure.reason.as_str()))),
            ("failed_at", Some(Value::from(rfc3339(now_ms)))),
            ("origin_queue", Some(Value::from(origin(job, queue)))),
        ]);
        self.bury(job.edited(&changes), failure.reason, queue)
    }

    fn failed(&self, job: &Job, failure: &Failure, delay: Option<Duration>, queue: &QueueKeys, now_ms: u64, unique: &str) -> Decision {
        let retries = job.fields.retries.saturating_add(1);
        if retries > self.max_retries {
            return self.dead(job, failure, &[("retries", retries.into())], queue, now_ms);
        }
        let delay = delay.unwrap_or_else(|| backoff(self.backoff_base, self.backoff_max, retries));
        // An attempt that ended by itself clears the suspicion.
        let next = job.edited(&[("retries", Some(retries.into())), (DEATHS, None)]);
        let at_ms = now_ms.saturating_add(u64::try_from(delay.as_millis()).unwrap_or(u64::MAX));
        let effects = vec![Effect::Delay { key: queue.delayed.clone(), at_ms, member: tagged(unique, &next) }];
        Decision { verdict: Verdict::Retried, effects }
    }

    fn done(&self, job: &Job, queue: &QueueKeys, now_ms: u64) -> Decision {
        let mut effects = Vec::new();
        if job.raw.len() > COMPLETED_ENTRY_MAX && self.completed_max != Some(0) {
            let fields = &job.fields;
            let entry = serde_json::json!({
                "id": fields.id, "priority": fields.priority, "retries": fields.retries,
                "creation_time": fields.creation_time, "completed_at": rfc3339(now_ms), "size": job.raw.len(),
            });
            let bytes = Bytes::from(entry.to_string());
            effects.push(Effect::Push { key: queue.completed.clone(), side: Side::Left, bytes });
            if let Some(max) = self.completed_max {
                effects.push(Effect::Trim { key: queue.completed.clone(), max });
            }
        }
        Decision { verdict: Verdict::Done, effects }
    }
}

impl Protocol for Files {
    fn consuming_side(&self) -> Side {
        Side::Right
    }

    fn decode(&self, raw: Bytes) -> Result<Job, (Bytes, NotAJob)> {
        Job::decode(raw, self.max_payload_bytes)
    }

    fn settle(&self, job: &Job, outcome: &Outcome, queue: &QueueKeys, now_ms: u64, unique: &str) -> Decision {
        match outcome {
            Outcome::Done => self.done(job, queue, now_ms),
            Outcome::Failed(failure) => self.failed(job, failure, None, queue, now_ms, unique),
            Outcome::RetryIn(delay, failure) => self.failed(job, failure, Some(*delay), queue, now_ms, unique),
            Outcome::Kill(failure) => self.dead(job, failure, &[], queue, now_ms),
            Outcome::Discard => Decision { verdict: Verdict::Discarded, effects: Vec::new() },
            Outcome::HandlerDied(_) => self.interrupted(&job.raw, queue, Interruption::of_handler(false), now_ms),
            Outcome::HandlerUnavailable(_) | Outcome::Released => released(&job.raw, queue),
        }
    }

    fn reject(&self, raw: &Bytes, why: &NotAJob, queue: &QueueKeys, now_ms: u64) -> Decision {
        let reason = match why {
            NotAJob::Oversize { .. } => Reason::Oversize,
            NotAJob::Malformed(_) => Reason::Malformed,
        };
        let mut letter = Map::new();
        match std::str::from_utf8(raw) {
            Ok(text) => letter.insert("raw".into(), text.into()),
            Err(_) => {
                letter.insert("raw_encoding".into(), "base64".into());
                letter.insert("raw".into(), BASE64.encode(raw).into())
            }
        };
        letter.insert("error".into(), why.to_string().into());
        letter.insert("reason".into(), reason.as_str().into());
        letter.insert("failed_at".into(), rfc3339(now_ms).into());
        letter.insert("origin_queue".into(), queue.queue.clone().into());
        self.bury(Bytes::from(Value::Object(letter).to_string()), reason, queue)
    }

    fn interrupted(&self, raw: &Bytes, queue: &QueueKeys, how: Interruption<'_>, now_ms: u64) -> Decision {
        if how.outside {
            return released(raw, queue);
        }
        let job = match self.decode(raw.clone()) {
            Ok(job) => job,
            Err((raw, why)) => return self.reject(&raw, &why, queue, now_ms),
        };
        let deaths = job.fields.deaths.saturating_add(1);
        // Only a suspect that ran alone can be blamed; among others any of them may have been the one.
        let blamed = how.alone && job.fields.deaths > 0;
        let interruptions = job.fields.interruptions + u32::from(blamed);
        let counters: [(&str, Value); 3] =
            [(DEATHS, deaths.into()), ("interruptions", interruptions.into()), ("interrupted_by", how.cause.into())];
        if interruptions >= self.max_interruptions {
            let reason = if how.cause == "oom" { Reason::Oom } else { Reason::Poison };
            let error = format!("its process died {interruptions} times while it ran alone ({})", how.cause);
            return self.dead(&job, &Failure::new(reason, error), &counters, queue, now_ms);
        }
        let changes: Vec<_> = counters.into_iter().map(|(name, value)| (name, Some(value))).collect();
        let bytes = job.edited(&changes);
        let effects = vec![Effect::Push { key: queue.suspects.clone(), side: Side::Right, bytes }];
        Decision { verdict: Verdict::Suspected, effects }
    }

    fn promote(&self, member: &Bytes, queue: &QueueKeys) -> Vec<Effect> {
        let raw = member.iter().position(|byte| *byte == b'|').map_or(member.clone(), |at| member.slice(at + 1..));
        vec![Effect::Push { key: queue.queue.clone(), side: Side::Left, bytes: raw }]
    }

    fn revive(&self, letter: &Bytes) -> (Option<String>, Bytes) {
        let Ok(mut object) = serde_json::from_slice::<Map<String, Value>>(letter) else {
            return (None, letter.clone());
        };
        let origin = object.get("origin_queue").and_then(Value::as_str).map(str::to_owned);
        // What `reject` wrapped has no id; a job has one, and may well have a field of that name.
        let wrapped = if object.contains_key("id") { None } else { object.get("raw").and_then(Value::as_str) };
        if let Some(raw) = wrapped {
            let encoded = object.get("raw_encoding").and_then(Value::as_str) == Some("base64");
            let bytes = encoded.then(|| BASE64.decode(raw).ok()).flatten();
            return (origin, Bytes::from(bytes.unwrap_or_else(|| raw.as_bytes().to_vec())));
        }
        for name in ["error", "reason", "failed_at", DEATHS, "interrupted_by"] {
            object.shift_remove(name);
        }
        for name in ["retries", "interruptions"] {
            if let Some(value) = object.get_mut(name) {
                *value = 0.into();
            }
        }
        (origin, serde_json::to_vec(&object).map_or_else(|_| letter.clone(), Bytes::from))
    }

    fn breaker_sample(&self, outcome: &Outcome) -> Option<bool> {
        match outcome {
            Outcome::Done | Outcome::Discard => Some(true),
            Outcome::Failed(_)
            | Outcome::RetryIn(..)
            | Outcome::Kill(_)
            | Outcome::HandlerDied(_)
            | Outcome::HandlerUnavailable(_) => Some(false),
            Outcome::Released => None,
        }
    }
}

fn released(raw: &Bytes, queue: &QueueKeys) -> Decision {
    let effects = vec![Effect::Push { key: queue.queue.clone(), side: Side::Right, bytes: raw.clone() }];
    Decision { verdict: Verdict::Released, effects }
}

/// A member of the delayed set: equal bytes would be one member, and a job lost.
fn tagged(unique: &str, raw: &[u8]) -> Bytes {
    [unique.as_bytes(), b"|", raw].concat().into()
}

fn origin(job: &Job, queue: &QueueKeys) -> String {
    if job.fields.origin_queue.is_empty() { queue.queue.clone() } else { job.fields.origin_queue.clone() }
}

fn clipped(error: &str) -> &str {
    let mut end = error.len().min(ERROR_MAX);
    while !error.is_char_boundary(end) {
        end -= 1;
    }
    &error[..end]
}

/// A moment of Redis' clock, for people and other programs.
pub fn rfc3339(now_ms: u64) -> String {
    let millis = i64::try_from(now_ms).unwrap_or(i64::MAX);
    jiff::Timestamp::from_millisecond(millis).map_or_else(|_| String::new(), |time| time.to_string())
}

/// Removes what only a dead letter carries: for tests and tools that compare jobs.
pub fn without_letter_fields(letter: &Bytes) -> Bytes {
    edit(letter, &[("error", None), ("reason", None), ("failed_at", None)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::QueueKeys;

    fn files() -> Files {
        Files {
            max_retries: 3,
            backoff_base: Duration::from_millis(500),
            backoff_max: Duration::from_secs(10),
            max_interruptions: 3,
            max_payload_bytes: 1 << 20,
            completed_max: None,
            dead_letter_max: None,
        }
    }

    fn queue() -> QueueKeys {
        QueueKeys {
            name: "high".into(),
            queue: "jobqueue:high_priority".into(),
            suspects: "jobqueue:high_priority:suspects".into(),
            delayed: "jobqueue:delayed:high".into(),
            completed: "jobqueue:completed".into(),
            dead_letters: "jobqueue:dead_letter".into(),
            counters: "jobqueue:counters".into(),
        }
    }

    fn letter(decision: &Decision) -> Bytes {
        match decision.effects.as_slice() {
            [Effect::Push { key, bytes, .. }] if key == "jobqueue:dead_letter" => bytes.clone(),
            other => panic!("not one dead letter: {other:?}"),
        }
    }

    fn buried(job: &str) -> Bytes {
        let job = files().decode(Bytes::copy_from_slice(job.as_bytes())).unwrap();
        let kill = Outcome::Kill(Failure::new(Reason::Killed, "no"));
        letter(&files().settle(&job, &kill, &queue(), 1_700_000_000_000, "u"))
    }

    #[test]
    fn a_revived_job_is_as_new_and_keeps_every_other_field() {
        let letter = buried(r#"{"id":"a","big":123456789012345678901234567890,"retries":4,"interruptions":2,"deaths":1}"#);
        let (origin, bytes) = files().revive(&letter);
        assert_eq!(origin.as_deref(), Some("jobqueue:high_priority"));
        assert_eq!(
            std::str::from_utf8(&bytes).unwrap(),
            r#"{"id":"a","big":123456789012345678901234567890,"retries":0,"interruptions":0,"origin_queue":"jobqueue:high_priority"}"#
        );
    }

    #[test]
    fn bytes_that_were_no_job_come_back_as_they_were() {
        for raw in [&b"not json"[..], b"\xff\x00\x1b[31m", b"[1,2]", b"", br#"{"raw":"x"}"#] {
            let raw = Bytes::copy_from_slice(raw);
            let (raw, why) = files().decode(raw).unwrap_err();
            let letter = letter(&files().reject(&raw, &why, &queue(), 1_700_000_000_000));
            assert_eq!(files().revive(&letter), (Some("jobqueue:high_priority".into()), raw));
        }
    }

    #[test]
    fn a_job_with_a_field_named_raw_is_revived_whole() {
        let (_, bytes) = files().revive(&buried(r#"{"id":"a","raw":"mine"}"#));
        let job: Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!((&job["id"], &job["raw"], &job["error"]), (&"a".into(), &"mine".into(), &Value::Null));
    }

    #[test]
    fn a_letter_of_somebody_else_is_revived_as_it_is() {
        let foreign = Bytes::from_static(b"\xfe not ours");
        assert_eq!(files().revive(&foreign), (None, foreign));
    }
}
