//! System A: directory jobs as JSON in lists. Pushed at the left, taken from the right.
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use serde_json::{Map, Value};

use super::record::Record;
use super::{Interruption, Protocol};
use crate::effects::{Decision, Effect, Side, Verdict};
use crate::job::{DEATHS, Job, NotAJob};
use crate::keys::QueueKeys;
use crate::outcome::{Failure, OUT_OF_MEMORY, Outcome, Reason};
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
            effects.push(Effect::Trim { key: queue.dead_letters.clone(), max, counted: true });
        }
        Decision { verdict: Verdict::Dead(reason), effects }
    }

    fn dead(
        &self,
        job: &Job,
        failure: &Failure,
        counters: &[(&str, Value)],
        queue: &QueueKeys,
        now_ms: u64,
    ) -> Decision {
        let mut changes: Vec<(&str, Option<Value>)> =
            counters.iter().map(|(name, value)| (*name, Some(value.clone()))).collect();
        changes.extend([
            ("error", Some(Value::from(clipped(&failure.error)))),
            ("reason", Some(Value::from(failure.reason.as_str()))),
            ("failed_at", Some(Value::from(rfc3339(now_ms)))),
            ("origin_queue", Some(Value::from(origin(job, queue)))),
        ]);
        match job.edited(&changes) {
            Ok(letter) => self.bury(letter, failure.reason, queue),
            Err(why) => self.reject(&job.raw, &why, queue, now_ms),
        }
    }

    fn failed(
        &self,
        job: &Job,
        failure: &Failure,
        delay: Option<Duration>,
        queue: &QueueKeys,
        now_ms: u64,
        unique: &str,
    ) -> Decision {
        let retries = job.fields.retries.saturating_add(1);
        if retries > self.max_retries {
            return self.dead(job, failure, &[("retries", retries.into())], queue, now_ms);
        }
        let delay = delay.unwrap_or_else(|| backoff(self.backoff_base, self.backoff_max, retries));
        // An attempt that ended by itself clears the suspicion.
        let next = match job.edited(&[("retries", Some(retries.into())), (DEATHS, None)]) {
            Ok(next) => next,
            Err(why) => return self.reject(&job.raw, &why, queue, now_ms),
        };
        let at_ms = now_ms.saturating_add(u64::try_from(delay.as_millis()).unwrap_or(u64::MAX));
        let effects =
            vec![Effect::Delay { key: queue.delayed.clone(), at_ms, member: tagged(unique, &next) }];
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
                effects.push(Effect::Trim { key: queue.completed.clone(), max, counted: false });
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
            Outcome::Done | Outcome::DoneWith(_) => self.done(job, queue, now_ms),
            Outcome::Failed(failure) => self.failed(job, failure, None, queue, now_ms, unique),
            Outcome::RetryIn(delay, failure) => {
                self.failed(job, failure, Some(*delay), queue, now_ms, unique)
            }
            Outcome::Kill(failure) => self.dead(job, failure, &[], queue, now_ms),
            Outcome::Discard(failure) => {
                Decision { verdict: Verdict::of_discard(failure.as_ref()), effects: Vec::new() }
            }
            Outcome::HandlerDied(why) => {
                self.interrupted(&job.raw, queue, Interruption::of_handler(why, false), now_ms)
            }
            Outcome::HandlerUnavailable(_) | Outcome::PutOff(..) | Outcome::Released => {
                released(&job.raw, queue)
            }
        }
    }

    fn reject(&self, raw: &Bytes, why: &NotAJob, queue: &QueueKeys, now_ms: u64) -> Decision {
        let reason = why.reason();
        let mut letter = Map::new();
        if let Ok(text) = std::str::from_utf8(raw) {
            letter.insert("raw".into(), text.into());
        } else {
            letter.insert("raw_encoding".into(), "base64".into());
            letter.insert("raw".into(), BASE64.encode(raw).into());
        }
        letter.insert("error".into(), why.to_string().into());
        letter.insert("reason".into(), reason.as_str().into());
        letter.insert("failed_at".into(), rfc3339(now_ms).into());
        letter.insert("origin_queue".into(), queue.queue.clone().into());
        self.bury(Bytes::from(Value::Object(letter).to_string()), reason, queue)
    }

    fn interrupted(&self, raw: &Bytes, queue: &QueueKeys, how: Interruption<'_>, now_ms: u64) -> Decision {
        let job = match self.decode(raw.clone()) {
            // What a shutdown gives back has not been interrupted by anything.
            Ok(job) if how.outside && how.cause != "shutdown" => {
                // The job itself matters more than who interrupted it.
                let bytes = job.edited(&[("interrupted_by", Some(how.cause.into()))]).unwrap_or(job.raw);
                return released(&bytes, queue);
            }
            Ok(Job { raw, .. }) | Err((raw, _)) if how.outside => return released(&raw, queue),
            Ok(job) => job,
            Err((raw, why)) => return self.reject(&raw, &why, queue, now_ms),
        };
        let deaths = job.fields.deaths.saturating_add(1);
        // Only a suspect that ran alone can be blamed; among others any of them may have been the one.
        let blamed = how.alone && job.fields.deaths > 0;
        let interruptions = job.fields.interruptions.saturating_add(u32::from(blamed));
        let counters: [(&str, Value); 3] = [
            (DEATHS, deaths.into()),
            ("interruptions", interruptions.into()),
            ("interrupted_by", how.cause.into()),
        ];
        if blamed && interruptions >= self.max_interruptions {
            let reason = if how.cause == OUT_OF_MEMORY { Reason::Oom } else { Reason::Poison };
            let error = format!("its process died {interruptions} times while it ran alone ({})", how.cause);
            return self.dead(&job, &Failure::new(reason, error), &counters, queue, now_ms);
        }
        let changes: Vec<_> = counters.into_iter().map(|(name, value)| (name, Some(value))).collect();
        let bytes = match job.edited(&changes) {
            Ok(bytes) => bytes,
            Err(why) => return self.reject(&job.raw, &why, queue, now_ms),
        };
        let effects = vec![Effect::Push { key: queue.suspects.clone(), side: Side::Right, bytes }];
        Decision { verdict: Verdict::Suspected, effects }
    }

    fn promote(&self, member: &Bytes, queue: &QueueKeys, _now_ms: u64) -> Vec<Effect> {
        // Somebody else's entry may be a job as it is, with a `|` somewhere in it: ours have theirs before the job.
        let mark = member.iter().position(|byte| matches!(byte, b'|' | b'{'));
        let raw = match mark {
            Some(at) if member[at] == b'|' => member.slice(at + 1..),
            _ => member.clone(),
        };
        vec![Effect::Push { key: queue.queue.clone(), side: Side::Left, bytes: raw }]
    }

    fn revive(&self, letter: &Bytes) -> (Option<String>, Bytes) {
        let Some(mut record) = Record::read(letter) else { return (None, letter.clone()) };
        let origin = record.text("origin_queue");
        // What `reject` wrapped has no id; a job has one, and may well have a field of that name.
        let wrapped = if record.has("id") { None } else { record.text("raw") };
        if let Some(raw) = wrapped {
            let encoded = record.text("raw_encoding").as_deref() == Some("base64");
            let bytes = encoded.then(|| BASE64.decode(&raw).ok()).flatten();
            return (origin, Bytes::from(bytes.unwrap_or_else(|| raw.into_bytes())));
        }
        for name in ["error", "reason", "failed_at", DEATHS, "interrupted_by"] {
            record.remove(name);
        }
        for name in ["retries", "interruptions"] {
            if record.has(name) {
                record.set(name, &0.into());
            }
        }
        (origin, record.write())
    }

    fn breaker_sample(&self, outcome: &Outcome) -> Option<bool> {
        match outcome {
            Outcome::Done | Outcome::DoneWith(_) | Outcome::Discard(None) => Some(true),
            Outcome::Failed(_)
            | Outcome::RetryIn(..)
            | Outcome::Kill(_)
            | Outcome::Discard(Some(_))
            | Outcome::HandlerDied(_)
            | Outcome::HandlerUnavailable(_)
            | Outcome::PutOff(..) => Some(false),
            Outcome::Released => None,
        }
    }
}

fn released(raw: &Bytes, queue: &QueueKeys) -> Decision {
    let effects = vec![Effect::Push { key: queue.queue.clone(), side: Side::Right, bytes: raw.clone() }];
    Decision { verdict: Verdict::Released, effects }
}

/// A member of the delayed set: equal bytes would be one member, and a job lost.
pub(super) fn tagged(unique: &str, raw: &[u8]) -> Bytes {
    [unique.as_bytes(), b"|", raw].concat().into()
}

fn origin(job: &Job, queue: &QueueKeys) -> String {
    if job.fields.origin_queue.is_empty() { queue.queue.clone() } else { job.fields.origin_queue.clone() }
}

pub(super) fn clipped(error: &str) -> &str {
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn policy() -> Files {
        Files {
            max_retries: 3,
            backoff_base: Duration::from_millis(500),
            backoff_max: Duration::from_secs(10),
            max_interruptions: 3,
            max_payload_bytes: 1 << 20,
            completed_max: Some(10_000),
            dead_letter_max: None,
        }
    }

    fn queue() -> QueueKeys {
        QueueKeys {
            name: "low".into(),
            queue: "jobqueue:low_priority".into(),
            suspects: "jobqueue:low_priority:suspects".into(),
            delayed: "jobqueue:delayed:low".into(),
            completed: "jobqueue:completed".into(),
            dead_letters: "jobqueue:dead_letter".into(),
            counters: "jobqueue:counters".into(),
            jobs: crate::keys::JobKeys::new("jobqueue:"),
        }
    }

    fn job(json: &str) -> Job {
        policy().decode(Bytes::from(json.to_owned())).unwrap()
    }

    fn failed() -> Outcome {
        Outcome::Failed(Failure::new(Reason::Handler, "no such file"))
    }

    fn object(bytes: &Bytes) -> Map<String, Value> {
        serde_json::from_slice(bytes).unwrap()
    }

    fn settle(job: &Job, outcome: &Outcome) -> Decision {
        policy().settle(job, outcome, &queue(), 1_000, "lane-1-1")
    }

    #[test]
    fn a_done_job_takes_the_fast_path() {
        let decision = settle(&job(r#"{"id":"a"}"#), &Outcome::Done);
        assert_eq!(decision, Decision { verdict: Verdict::Done, effects: vec![] });
    }

    #[test]
    fn a_large_done_job_leaves_its_metadata() {
        let json = format!(r#"{{"id":"a","filepath":"{}"}}"#, "x".repeat(5_000));
        let decision = settle(&job(&json), &Outcome::Done);
        let Effect::Push { key, bytes, .. } = &decision.effects[0] else { panic!("{decision:?}") };
        assert_eq!(key, "jobqueue:completed");
        assert!(bytes.len() < 300, "{bytes:?}");
        assert_eq!(object(bytes)["id"], "a");
        assert_eq!(
            decision.effects[1],
            Effect::Trim { key: "jobqueue:completed".into(), max: 10_000, counted: false }
        );
    }

    #[test]
    fn a_failed_job_waits_for_its_backoff_with_one_more_retry() {
        let decision = settle(
            &job(r#"{"id":"a","retries":1,"deaths":2,"future":[1.50,12345678901234567890]}"#),
            &failed(),
        );
        assert_eq!(decision.verdict, Verdict::Retried);
        let Effect::Delay { key, at_ms, member } = &decision.effects[0] else { panic!("{decision:?}") };
        assert_eq!((key.as_str(), *at_ms), ("jobqueue:delayed:low", 2_000), "0.5 s doubled once");
        assert_eq!(
            &member[..],
            &br#"lane-1-1|{"id":"a","retries":2,"future":[1.50,12345678901234567890]}"#[..],
            "unknown fields keep their order and digits, the suspicion is cleared"
        );
    }

    #[test]
    fn exhausted_retries_become_a_dead_letter_that_tells_the_story() {
        let decision = settle(&job(r#"{"id":"a","retries":3,"priority":"low"}"#), &failed());
        assert_eq!(decision.verdict, Verdict::Dead(Reason::Handler));
        let Effect::Push { key, side, bytes } = &decision.effects[0] else { panic!("{decision:?}") };
        assert_eq!((key.as_str(), *side), ("jobqueue:dead_letter", Side::Left));
        let letter = object(bytes);
        assert_eq!(letter["retries"], 4);
        assert_eq!(letter["error"], "no such file");
        assert_eq!(letter["reason"], "handler");
        assert_eq!(letter["failed_at"], "1970-01-01T00:00:01Z");
        assert_eq!(letter["origin_queue"], "jobqueue:low_priority");
    }

    #[test]
    fn its_own_delay_replaces_the_backoff() {
        let outcome = Outcome::RetryIn(Duration::from_secs(60), Failure::new(Reason::Handler, "later"));
        let decision = settle(&job(r#"{"id":"a"}"#), &outcome);
        assert!(matches!(decision.effects[0], Effect::Delay { at_ms: 61_000, .. }), "{decision:?}");
    }

    #[test]
    fn an_unreachable_handler_and_a_release_cost_nothing() {
        for outcome in [Outcome::HandlerUnavailable("refused".into()), Outcome::Released] {
            let job = job(r#"{"id":"a","retries":1}"#);
            let back = Effect::Push {
                key: "jobqueue:low_priority".into(),
                side: Side::Right,
                bytes: job.raw.clone(),
            };
            assert_eq!(settle(&job, &outcome).effects, [back], "as it was, next out");
        }
    }

    fn interrupted(json: &str, how: Interruption<'_>) -> Decision {
        policy().interrupted(&Bytes::from(json.to_owned()), &queue(), how, 1_000)
    }

    const HEARTBEAT: Interruption<'static> =
        Interruption { cause: "heartbeat", outside: false, alone: false };

    #[test]
    fn a_death_makes_a_suspect_and_blames_nobody() {
        let decision = interrupted(r#"{"id":"a","retries":2}"#, HEARTBEAT);
        assert_eq!(decision.verdict, Verdict::Suspected);
        let Effect::Push { key, side, bytes } = &decision.effects[0] else { panic!("{decision:?}") };
        assert_eq!((key.as_str(), *side), ("jobqueue:low_priority:suspects", Side::Right));
        let suspect = object(bytes);
        assert_eq!(
            (&suspect["retries"], &suspect["deaths"], &suspect["interruptions"]),
            (&2.into(), &1.into(), &0.into())
        );
        assert_eq!(suspect["interrupted_by"], "heartbeat");
    }

    #[test]
    fn a_cause_from_outside_is_told_and_counts_nothing() {
        let how = Interruption { cause: "evicted", outside: true, alone: true };
        let decision = interrupted(r#"{"id":"a","deaths":9}"#, how);
        assert_eq!(decision.verdict, Verdict::Released);
        let Effect::Push { bytes, .. } = &decision.effects[0] else { panic!("{decision:?}") };
        assert_eq!(&bytes[..], br#"{"id":"a","deaths":9,"interrupted_by":"evicted"}"#);
        let shutdown = interrupted(r#"{"id":"a"}"#, Interruption { cause: "shutdown", ..how });
        assert_eq!(shutdown, released(&Bytes::from_static(br#"{"id":"a"}"#), &queue()));
    }

    #[test]
    fn only_a_suspect_that_ran_alone_is_blamed_and_three_times_make_it_poison() {
        let alone = Interruption { alone: true, ..HEARTBEAT };
        assert_eq!(
            interrupted(r#"{"id":"a","deaths":7,"interruptions":2}"#, HEARTBEAT).verdict,
            Verdict::Suspected
        );
        assert_eq!(
            interrupted(r#"{"id":"a","interruptions":2}"#, alone).verdict,
            Verdict::Suspected,
            "no suspect before"
        );
        assert_eq!(
            interrupted(r#"{"id":"a","deaths":7,"interruptions":1}"#, alone).verdict,
            Verdict::Suspected
        );
        let poison = interrupted(r#"{"id":"a","deaths":7,"interruptions":2}"#, alone);
        assert_eq!(poison.verdict, Verdict::Dead(Reason::Poison));
        let oom = Interruption { cause: "oom", ..alone };
        assert_eq!(
            interrupted(r#"{"id":"a","deaths":7,"interruptions":2}"#, oom).verdict,
            Verdict::Dead(Reason::Oom)
        );
    }

    #[test]
    fn what_is_not_a_job_is_kept_raw_and_comes_back_as_its_bytes() {
        for raw in [&b"not json"[..], b"", b"{\"id\":7}", b"\xff\xfe{", b"[]", b"{\"id\":\"\"}"] {
            let (raw, why) = policy().decode(Bytes::copy_from_slice(raw)).unwrap_err();
            let decision = policy().reject(&raw, &why, &queue(), 1_000);
            assert_eq!(decision.verdict, Verdict::Dead(Reason::Malformed));
            let Effect::Push { bytes, .. } = &decision.effects[0] else { panic!("{decision:?}") };
            assert_eq!(policy().revive(bytes), (Some("jobqueue:low_priority".into()), raw));
        }
    }

    #[test]
    fn too_deep_and_too_large_are_refused_before_they_hurt() {
        let deep = format!(r#"{{"id":"a","x":{}{}}}"#, "[".repeat(200), "]".repeat(200));
        assert!(matches!(policy().decode(deep.into()), Err((_, NotAJob::Malformed(_)))));
        let size = (1 << 20) + crate::job::OWN_FIELDS + 1;
        let large = vec![b' '; size];
        let (raw, why) = policy().decode(large.into()).unwrap_err();
        assert_eq!(why, NotAJob::Oversize { size, max: 1 << 20 });
        assert_eq!(policy().reject(&raw, &why, &queue(), 0).verdict, Verdict::Dead(Reason::Oversize));
    }

    #[test]
    fn a_job_of_the_largest_size_can_be_retried_and_interrupted() {
        let frame = r#"{"id":"a","x":""}"#.len();
        let job = job(&format!(r#"{{"id":"a","x":"{}"}}"#, "x".repeat((1 << 20) - frame)));
        let Effect::Delay { member, .. } = &settle(&job, &failed()).effects[0] else { panic!() };
        let retried = member.slice("lane-1-1|".len()..);
        let Effect::Push { bytes, .. } = &policy().interrupted(&retried, &queue(), HEARTBEAT, 0).effects[0]
        else {
            panic!()
        };
        assert!(policy().decode(bytes.clone()).is_ok());
    }

    #[test]
    fn a_message_about_bad_bytes_quotes_none_of_them() {
        let (_, why) = policy().decode(Bytes::from_static(br#"{"id":["secret"]}"#)).unwrap_err();
        assert!(!why.to_string().contains("secret"), "{why}");
    }

    #[test]
    fn a_revived_letter_starts_anew() {
        let letter = r#"{"id":"a","retries":4,"interruptions":3,"deaths":8,"interrupted_by":"oom","x":1.0,"error":"e","reason":"oom","failed_at":"t","origin_queue":"q"}"#;
        let (origin, raw) = policy().revive(&Bytes::from_static(letter.as_bytes()));
        assert_eq!(origin.as_deref(), Some("q"));
        assert_eq!(&raw[..], &br#"{"id":"a","retries":0,"interruptions":0,"x":1.0,"origin_queue":"q"}"#[..]);
    }

    #[test]
    fn dead_letters_are_trimmed_only_when_asked() {
        let asked = Files { dead_letter_max: Some(5), ..policy() };
        let kill = Outcome::Kill(Failure::new(Reason::Killed, "no"));
        let job = job(r#"{"id":"a"}"#);
        assert_eq!(settle(&job, &kill).effects.len(), 1);
        let decision = asked.settle(&job, &kill, &queue(), 0, "u");
        assert_eq!(
            decision.effects[1],
            Effect::Trim { key: "jobqueue:dead_letter".into(), max: 5, counted: true }
        );
    }

    #[test]
    fn a_job_with_a_field_named_raw_is_revived_whole() {
        let kill = Outcome::Kill(Failure::new(Reason::Killed, "no"));
        let decision = settle(&job(r#"{"id":"a","raw":"mine"}"#), &kill);
        let Effect::Push { bytes, .. } = &decision.effects[0] else { panic!("{decision:?}") };
        let revived = object(&policy().revive(bytes).1);
        assert_eq!((&revived["id"], &revived["raw"]), (&"a".into(), &"mine".into()));
        assert!(!revived.contains_key("error"));
    }

    #[test]
    fn a_letter_of_somebody_else_is_revived_as_it_is() {
        let foreign = Bytes::from_static(b"\xfe not ours");
        assert_eq!(policy().revive(&foreign), (None, foreign));
    }

    #[test]
    fn a_delayed_entry_of_somebody_else_comes_back_whole() {
        let foreign = Bytes::from_static(br#"{"id":"a","pipe":"x|y"}"#);
        let back = Effect::Push { key: queue().queue, side: Side::Left, bytes: foreign.clone() };
        assert_eq!(policy().promote(&foreign, &queue(), 0), [back]);
    }

    #[test]
    fn attempts_and_deaths_of_a_job_that_looks_like_a_number_of_serde_json_are_counted() {
        let odd = r#"{"id":"a","x":{"$serde_json::private::Number":1}}"#;
        let Effect::Delay { member, .. } = &settle(&job(odd), &failed()).effects[0] else { panic!() };
        let retried = policy().decode(member.slice("lane-1-1|".len()..)).unwrap();
        assert_eq!(retried.fields.retries, 1);
        let Effect::Push { bytes, .. } = &interrupted(odd, HEARTBEAT).effects[0] else { panic!() };
        assert_eq!(policy().decode(bytes.clone()).unwrap().fields.deaths, 1);
    }

    proptest! {
        #[test]
        fn attempts_never_exceed_the_limit(retries in 0u32..10, max in 0u32..10) {
            let policy = Files { max_retries: max, ..policy() };
            let job = job(&format!(r#"{{"id":"a","retries":{retries}}}"#));
            let decision = policy.settle(&job, &failed(), &queue(), 0, "u");
            prop_assert_eq!(decision.verdict == Verdict::Retried, retries < max);
        }

        #[test]
        fn every_decision_but_done_and_discard_places_the_job_exactly_once(deaths in 0u32..10, alone: bool, outside: bool) {
            let how = Interruption { cause: "heartbeat", outside, alone };
            let raw = Bytes::from(format!(r#"{{"id":"a","deaths":{deaths}}}"#));
            let decision = policy().interrupted(&raw, &queue(), how, 0);
            let placed = decision.effects.iter().filter(|effect| !matches!(effect, Effect::Trim { .. })).count();
            prop_assert_eq!(placed, 1);
        }

        #[test]
        fn promotion_gives_back_exactly_what_was_delayed(raw in proptest::collection::vec(any::<u8>(), 0..64)) {
            let effects = policy().promote(&tagged("lane-1-2", &raw), &queue(), 0);
            let back = Effect::Push { key: queue().queue, side: Side::Left, bytes: raw.into() };
            prop_assert_eq!(effects, vec![back]);
        }
    }
}
