//! System B: what Sidekiq clients enqueue. A job is Sidekiq's JSON in Sidekiq's lists and sorted sets, and what becomes
//! of it is what Sidekiq would have made of it, field by field; only jobs in flight live in lists of ours.
use std::fmt;
use std::io::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_json::value::RawValue;

use super::record::Record;
use super::{Delayed, Interruption, Protocol};
use crate::effects::{Decision, Effect, Side, Verdict};
use crate::job::{Fields, Job, MAX_DEPTH, NotAJob, OWN_FIELDS, depth, describe};
use crate::keys::{Keys, QueueKeys};
use crate::outcome::{Failure, OUT_OF_MEMORY, Outcome, Reason};
use crate::store::PageKind;

pub mod names;
pub mod retry;
#[cfg(test)]
mod tests;
pub mod time;

use names::Names;
use retry::{Formula, Retries};
use time::Style;

/// Sidekiq cuts messages here.
const MESSAGE_MAX: usize = 10_000;
/// Room for what a failure writes into a job: a message and a backtrace out of an answer of 64 KiB.
const FAILURE_FIELDS: usize = 128 * 1024;
/// The dead are kept this long by Sidekiq: 180 days.
const DEAD_FOR_MS: u64 = 180 * 86_400 * 1000;
/// The rank up to which Sidekiq removes the dead: 9,999 stay.
const DEAD_RANK: i64 = -10_000;
/// So much of what is no job is read to tell it from others: it may be of any size.
const REJECTED_READ: usize = 4096;
/// Fields of ours in a job whose process died; Sidekiq carries them like any other that it does not know.
const DEATHS: &str = "jobqueue_deaths";
const INTERRUPTIONS: &str = "jobqueue_interruptions";
const INTERRUPTED_BY: &str = "jobqueue_interrupted_by";

/// The policy of Sidekiq's queues.
#[derive(Debug, Clone)]
pub struct Sidekiq {
    /// What the keys are called.
    pub names: Names,
    /// How long a failed job waits.
    pub formula: Formula,
    /// Retries of a job that does not say how many.
    pub max_retries: u32,
    /// Interruptions of a job that ran alone before it is given up.
    pub max_interruptions: u32,
    /// Payloads above this are refused before they are parsed.
    pub max_payload_bytes: usize,
    /// Dead jobs kept; `None` = as many as Sidekiq.
    pub dead_max: Option<u64>,
    /// Bring due jobs back, of every queue.
    pub promotes: bool,
}

/// What we read of a job. Fields that may have any type are taken as they are: a job that Sidekiq would run must not
/// be refused for a field that it does not look at. Of two with one name the last counts, as in Ruby. Every job is read,
/// so nothing is copied that nobody keeps.
#[derive(Default)]
struct Head<'a> {
    jid: Option<&'a RawValue>,
    queue: Option<&'a RawValue>,
    retry_count: Option<&'a RawValue>,
    jobqueue_deaths: Option<&'a RawValue>,
    jobqueue_interruptions: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "snake_case")]
enum HeadField {
    Jid,
    Queue,
    RetryCount,
    JobqueueDeaths,
    JobqueueInterruptions,
    #[serde(other)]
    Other,
}

impl<'de> Deserialize<'de> for Head<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Head<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut head = Head::default();
                while let Some(field) = map.next_key()? {
                    match field {
                        HeadField::Jid => head.jid = Some(map.next_value()?),
                        HeadField::Queue => head.queue = Some(map.next_value()?),
                        HeadField::RetryCount => head.retry_count = Some(map.next_value()?),
                        HeadField::JobqueueDeaths => head.jobqueue_deaths = Some(map.next_value()?),
                        HeadField::JobqueueInterruptions => {
                            head.jobqueue_interruptions = Some(map.next_value()?);
                        }
                        HeadField::Other => {
                            map.next_value::<IgnoredAny>()?;
                        }
                    }
                }
                Ok(head)
            }
        }
        deserializer.deserialize_map(Fields)
    }
}

impl Head<'_> {
    fn fields(&self) -> Result<Fields, serde_json::Error> {
        let text = |field: Option<&RawValue>| match field.map(|json| serde_json::from_str(json.get())) {
            None => Ok(String::new()),
            Some(value) => value.map(|value| match value {
                Value::String(text) => text,
                Value::Null => String::new(),
                other => other.to_string(),
            }),
        };
        let whole = |field: Option<&RawValue>| field.and_then(|json| json.get().parse::<u32>().ok());
        let count = self.retry_count.and_then(|json| json.get().parse::<i64>().ok());
        let failures = count.map_or(0, |count| count.saturating_add(1));
        Ok(Fields {
            retries: u32::try_from(failures.max(0)).unwrap_or(u32::MAX),
            deaths: whole(self.jobqueue_deaths).unwrap_or(0),
            interruptions: whole(self.jobqueue_interruptions).unwrap_or(0),
            id: text(self.jid)?,
            priority: text(self.queue)?,
            ..Fields::default()
        })
    }
}

impl Sidekiq {
    fn bury(&self, member: Bytes, reason: Reason, now_ms: u64, random: u64) -> Decision {
        let key = self.names.dead();
        // Behind the rank of the last that goes stay those that are kept.
        let rank = match self.dead_max {
            Some(max) => -1 - i64::try_from(max).unwrap_or(i64::MAX - 1),
            None => DEAD_RANK,
        };
        let before = time::seconds(now_ms.saturating_sub(DEAD_FOR_MS));
        let effects = vec![
            Effect::Score { key: key.clone(), score: time::score(now_ms, random), member },
            Effect::TrimSet { key, before, rank },
        ];
        Decision { verdict: Verdict::Dead(reason), effects }
    }

    /// Whether a failure that raised `retry_count` to `count` is the last: by the number, or by the time. Of a job that does
    /// not say how often it is retried the application knows, by its class: one that it has `judged` and not given up is not
    /// given up here.
    fn is_exhausted(&self, record: &Record<'_>, count: i64, style: Style, now_ms: u64, judged: bool) -> bool {
        let allowed = match Retries::of(record.get("retry").as_ref()) {
            Retries::Never => return true,
            Retries::UpTo(count) => count,
            Retries::Unsaid if judged => return false,
            Retries::Usual | Retries::Unsaid => i64::from(self.max_retries),
        };
        match retry_until_ms(record) {
            // From 8.1 on the time alone decides.
            Some(until_ms) if style == Style::Millis => now_ms > until_ms,
            Some(until_ms) => now_ms > until_ms || count >= allowed,
            None => count >= allowed,
        }
    }

    /// Whether a failure that is still to be written into the job is the last.
    fn is_last(&self, record: &Record<'_>, now_ms: u64, judged: bool) -> bool {
        let count = record.integer("retry_count").map_or(0, |count| count.saturating_add(1));
        self.is_exhausted(record, count, style_of(record), now_ms, judged)
    }

    /// A job ran and failed: what Sidekiq's own retry would have done.
    fn failed(
        &self,
        job: &Job,
        failure: &Failure,
        kind: Failed,
        queue: &QueueKeys,
        now_ms: u64,
        unique: &str,
    ) -> Decision {
        let Some(mut record) = Record::read(&job.raw) else {
            // It was read before: cannot be.
            return self.reject(
                &job.raw,
                &NotAJob::Malformed("not an object any more".into()),
                queue,
                now_ms,
            );
        };
        // What `retry: false` and `dead: false` say is said of a job that fails, not of one that kills.
        let kills = matches!(failure.reason, Reason::Poison | Reason::Oom);
        // It may never have run: gone without having been tried, it would be lost.
        let unheard = failure.reason == Reason::NoVerdict;
        if Retries::of(record.get("retry").as_ref()) == Retries::Never && !kills && !unheard {
            return Decision { verdict: Verdict::GivenUp, effects: Vec::new() };
        }
        let style = style_of(&record);
        let count = write_failure(&mut record, failure, queue, style, now_ms);
        // Retried by hand, one that kills has all its chances again, alone.
        record.remove(INTERRUPTIONS);
        if !kills {
            // An attempt that ended by itself clears the suspicion.
            record.remove(DEATHS);
            record.remove(INTERRUPTED_BY);
        }
        let chance = random(unique.as_bytes());
        let custom = match kind {
            Failed::Kill => None,
            Failed::Retry(custom) => {
                let judged = failure.raised.is_some();
                (!self.is_exhausted(&record, count, style, now_ms, judged)).then_some(custom)
            }
        };
        let Some(custom) = custom else {
            if record.get("dead") == Some(Value::Bool(false)) && !kills {
                return Decision { verdict: Verdict::GivenUp, effects: Vec::new() };
            }
            return self.bury(record.write(), failure.reason, now_ms, chance);
        };
        let count = u64::try_from(count).unwrap_or(0);
        // Other bits than those of the score: two that wait for equally long should still differ there.
        let delay = self.formula.delay(count, custom, style, chance >> 16);
        let at_ms = now_ms.saturating_add(u64::try_from(delay.as_millis()).unwrap_or(u64::MAX));
        let effects = vec![Effect::Score {
            key: self.names.retry(),
            score: time::score(at_ms, chance),
            member: record.write(),
        }];
        Decision { verdict: Verdict::Retried, effects }
    }
}

/// How a run failed.
#[derive(Clone, Copy)]
enum Failed {
    /// It is tried again, after its own delay if it has one.
    Retry(Option<std::time::Duration>),
    /// It is not.
    Kill,
}

impl Protocol for Sidekiq {
    fn consuming_side(&self) -> Side {
        Side::Right
    }

    fn decode(&self, raw: Bytes) -> Result<Job, (Bytes, NotAJob)> {
        let (size, max) = (raw.len(), self.max_payload_bytes);
        if size > max.saturating_add(OWN_FIELDS + FAILURE_FIELDS) {
            return Err((raw, NotAJob::Oversize { size, max }));
        }
        // As deep as Ruby's parser goes by default.
        if depth(&raw) > MAX_DEPTH {
            return Err((raw, NotAJob::Malformed(format!("nested more than {MAX_DEPTH} levels deep"))));
        }
        let Ok(json) = std::str::from_utf8(&raw) else {
            return Err((raw, NotAJob::Malformed("not UTF-8".into())));
        };
        match serde_json::from_str::<Head<'_>>(json).and_then(|head| head.fields()) {
            Ok(fields) => Ok(Job { raw, fields }),
            Err(error) => Err((raw, NotAJob::Malformed(describe(&error)))),
        }
    }

    fn settle(&self, job: &Job, outcome: &Outcome, queue: &QueueKeys, now_ms: u64, unique: &str) -> Decision {
        match outcome {
            Outcome::Done | Outcome::DoneWith(_) => Decision { verdict: Verdict::Done, effects: Vec::new() },
            Outcome::Discard(failure) => {
                Decision { verdict: Verdict::of_discard(failure.as_ref()), effects: Vec::new() }
            }
            Outcome::Failed(failure) => self.failed(job, failure, Failed::Retry(None), queue, now_ms, unique),
            Outcome::RetryIn(delay, failure) => {
                self.failed(job, failure, Failed::Retry(Some(*delay)), queue, now_ms, unique)
            }
            Outcome::Kill(failure) => self.failed(job, failure, Failed::Kill, queue, now_ms, unique),
            Outcome::HandlerDied(why) => {
                self.interrupted(&job.raw, queue, Interruption::of_handler(why, false), now_ms)
            }
            Outcome::HandlerUnavailable(_) | Outcome::PutOff(..) | Outcome::Released => {
                returned(job.raw.clone(), queue, Verdict::Released)
            }
        }
    }

    /// Unknown of a job that does not say how often it is retried: its class does.
    fn is_last_attempt(&self, job: &Job, now_ms: u64) -> Option<bool> {
        let record = Record::read(&job.raw)?;
        let said = Retries::of(record.get("retry").as_ref()) != Retries::Unsaid;
        said.then(|| self.is_last(&record, now_ms, false))
    }

    fn is_last_failure(&self, job: &Job, failure: &Failure, now_ms: u64) -> Option<bool> {
        Some(self.is_last(&Record::read(&job.raw)?, now_ms, failure.raised.is_some()))
    }

    fn condemned(&self, job: &Job) -> Option<Failure> {
        let interruptions = job.fields.interruptions;
        if interruptions == 0 || interruptions < self.max_interruptions {
            return None;
        }
        let cause = Record::read(&job.raw)?.text(INTERRUPTED_BY).unwrap_or_default();
        let reason = if cause == OUT_OF_MEMORY { Reason::Oom } else { Reason::Poison };
        let error = format!("its process died {interruptions} times while it ran alone ({cause})");
        Some(Failure::new(reason, error))
    }

    /// The job as it was, and what it dies of: the application writes the rest for its handlers as after any failure.
    fn obituary(&self, job: &Job, failure: &Failure) -> Option<Bytes> {
        let mut record = Record::read(&job.raw)?;
        record.set("error_message", &failure.error.as_str().into());
        record.set("error_class", &class_of(failure.reason).into());
        Some(record.write())
    }

    /// Into the dead as it is, as Sidekiq does: there people see it, and nothing is added to what is no object.
    fn reject(&self, raw: &Bytes, why: &NotAJob, _queue: &QueueKeys, now_ms: u64) -> Decision {
        // Whoever finds it has no name for that; its beginning tells it from others well enough.
        let chance = random(&raw[..raw.len().min(REJECTED_READ)]);
        self.bury(raw.clone(), why.reason(), now_ms, chance)
    }

    /// Back to the list it was fetched from, whose other readers may be Sidekiq's: a list of suspects of ours would
    /// keep the job from them when the last of our workers is gone. One that has killed often enough is condemned, and
    /// buried by the worker that fetches it next: whoever reaps it has no application to tell.
    fn interrupted(&self, raw: &Bytes, queue: &QueueKeys, how: Interruption<'_>, now_ms: u64) -> Decision {
        if how.outside {
            return returned(raw.clone(), queue, Verdict::Released);
        }
        let (job, mut record) = match (self.decode(raw.clone()), Record::read(raw)) {
            (Ok(job), Some(record)) => (job, record),
            (Err((raw, why)), _) => return self.reject(&raw, &why, queue, now_ms),
            (Ok(_), None) => {
                return self.reject(raw, &NotAJob::Malformed("not an object".into()), queue, now_ms);
            }
        };
        // Only a suspect that ran alone can be blamed; among others any of them may have been the one.
        let blamed = how.alone && job.fields.deaths > 0;
        let interruptions = job.fields.interruptions.saturating_add(u32::from(blamed));
        record.set(DEATHS, &job.fields.deaths.saturating_add(1).into());
        record.set(INTERRUPTIONS, &interruptions.into());
        record.set(INTERRUPTED_BY, &how.cause.into());
        returned(record.write(), queue, Verdict::Suspected)
    }

    fn delayed(&self, keys: &Keys) -> Vec<Delayed> {
        let Some(queue) = keys.queues.first().filter(|_| self.promotes) else { return Vec::new() };
        let of = |key| Delayed { key, kind: PageKind::DueSeconds, queue: queue.clone() };
        vec![of(self.names.retry()), of(self.names.schedule())]
    }

    /// To the queue that the job names, whoever serves it: as Sidekiq's own poller pushes it.
    fn promote(&self, member: &Bytes, queue: &QueueKeys, now_ms: u64) -> Vec<Effect> {
        let Some(mut record) = Record::read(member) else {
            // Sidekiq would lose it here.
            return self.reject(member, &NotAJob::Malformed("not an object".into()), queue, now_ms).effects;
        };
        let name = record.text("queue").unwrap_or_else(|| "default".into());
        let style = style_of(&record);
        record.set_json("enqueued_at", style.write(now_ms));
        vec![
            Effect::Push { key: self.names.queue(&name), side: Side::Left, bytes: record.write() },
            Effect::Add { key: self.names.queues(), member: name },
        ]
    }

    /// As Sidekiq's own API does: a try by hand costs the job none of its own.
    fn revive(&self, letter: &Bytes) -> (Option<String>, Bytes) {
        let Some(mut record) = Record::read(letter) else { return (None, letter.clone()) };
        if let Some(count) = record.integer("retry_count") {
            record.set("retry_count", &count.saturating_sub(1).into());
        }
        (record.text("queue").map(|name| self.names.queue(&name)), record.write())
    }

    /// A job's own failure says nothing about the application that ran it; one that could not be reached, died, or does not
    /// say what became of the job, does.
    fn breaker_sample(&self, outcome: &Outcome) -> Option<bool> {
        match outcome {
            Outcome::HandlerDied(_) | Outcome::HandlerUnavailable(_) | Outcome::PutOff(..) => Some(false),
            Outcome::Failed(failure) if failure.reason == Reason::NoVerdict => Some(false),
            // It may hang, or the job may be long: nobody knows.
            Outcome::Failed(failure) if failure.reason == Reason::Timeout => None,
            Outcome::Done
            | Outcome::DoneWith(_)
            | Outcome::Discard(_)
            | Outcome::Failed(_)
            | Outcome::RetryIn(..)
            | Outcome::Kill(_) => Some(true),
            Outcome::Released => None,
        }
    }
}

fn returned(bytes: Bytes, queue: &QueueKeys, verdict: Verdict) -> Decision {
    Decision { verdict, effects: vec![Effect::Push { key: queue.queue.clone(), side: Side::Right, bytes }] }
}

/// What Sidekiq writes into a job that failed, in its order; answers the new `retry_count`.
fn write_failure(
    record: &mut Record<'_>,
    failure: &Failure,
    queue: &QueueKeys,
    style: Style,
    now_ms: u64,
) -> i64 {
    let raised = failure.raised.as_deref();
    let name = record.text("retry_queue").unwrap_or_else(|| queue.name.clone());
    record.set("queue", &name.into());
    let message = raised.map_or(failure.error.as_str(), |raised| raised.message.as_str());
    record.set("error_message", &message.chars().take(MESSAGE_MAX).collect::<String>().into());
    let class = raised.map(|raised| raised.class.as_str()).filter(|class| !class.is_empty());
    record.set("error_class", &class.unwrap_or_else(|| class_of(failure.reason)).into());
    let count = if let Some(count) = record.integer("retry_count") {
        record.set_json("retried_at", style.write(now_ms));
        count.saturating_add(1)
    } else {
        record.set_json("failed_at", style.write(now_ms));
        0
    };
    record.set("retry_count", &count.into());
    let lines = raised.map(|raised| &raised.backtrace[..]).unwrap_or_default();
    let wanted = match record.get("backtrace") {
        None | Some(Value::Null | Value::Bool(false)) => None,
        Some(Value::Number(number)) => {
            number.as_u64().map(|lines| usize::try_from(lines).unwrap_or(usize::MAX))
        }
        Some(_) => Some(usize::MAX),
    };
    if let Some(packed) = wanted.and_then(|wanted| pack(&lines[..lines.len().min(wanted)])) {
        record.set("error_backtrace", &packed.into());
    }
    count
}

/// Until when a job that says so may be retried.
fn retry_until_ms(record: &Record<'_>) -> Option<u64> {
    let seconds = record.get("retry_for")?.as_f64().filter(|seconds| *seconds > 0.0)?;
    let Some(Value::Number(failed_at)) = record.get("failed_at") else { return None };
    let span = std::time::Duration::try_from_secs_f64(seconds).ok()?;
    time::millis(&failed_at)?.checked_add(u64::try_from(span.as_millis()).ok()?)
}

/// How a job writes its times: as the client that made it. Those of 8.x are rarer, and a job without any is older still.
fn style_of(record: &Record<'_>) -> Style {
    for field in ["created_at", "enqueued_at", "failed_at"] {
        if let Some(Value::Number(number)) = record.get(field) {
            return Style::of(&number);
        }
    }
    Style::Seconds
}

/// What stands where Sidekiq writes the class of an exception, when there was none.
pub const fn class_of(reason: Reason) -> &'static str {
    match reason {
        Reason::Handler | Reason::NoVerdict => "Jobqueue::HandlerError",
        Reason::Timeout => "Jobqueue::Timeout",
        Reason::Panic => "Jobqueue::Panic",
        Reason::Malformed => "Jobqueue::Malformed",
        Reason::Oversize => "Jobqueue::Oversize",
        Reason::NoData => "Jobqueue::NoData",
        Reason::Poison => "Jobqueue::Poison",
        Reason::Oom => "Jobqueue::OutOfMemory",
        Reason::Killed => "Jobqueue::Killed",
    }
}

/// Lines as Sidekiq keeps them: JSON, deflated, in base64. Its readers take it with and without line breaks.
fn pack(lines: &[String]) -> Option<String> {
    let mut deflate = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
    deflate.write_all(&serde_json::to_vec(lines).ok()?).ok()?;
    Some(BASE64.encode(deflate.finish().ok()?))
}

/// A number from a name that is never used twice: decisions stay pure, and still differ (FNV-1a, its bits mixed).
fn random(unique: &[u8]) -> u64 {
    let hash = unique.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    (hash ^ (hash >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 11
}

/// A job's JSON without its arguments, for people to look at: that there were some, they see.
pub fn without_args(raw: &[u8]) -> String {
    let Some(mut record) = Record::read(raw) else { return "{}".into() };
    let shown = record.json("args").and_then(wrapped_without_args).unwrap_or_else(|| CUT.into());
    record.set_json("args", format!("[{shown}]"));
    record.to_json()
}

/// Of an argument or a field that people look at, what is longer is not shown.
const SHOWN_VALUE: usize = 256;
/// What stands for a value that is not shown.
const CUT: &str = r#""...""#;

/// The one argument of a job that wraps another, with that one's own arguments cut. Sidekiq's page looks into it to show
/// what is wrapped, and for a mail also into its arguments: the mailer, its method, how it is sent, then an object.
fn wrapped_without_args(args: &str) -> Option<String> {
    let args: Vec<&RawValue> = serde_json::from_str(args).ok()?;
    let mut inner = Record::read(args.first()?.get().as_bytes())?;
    let arguments: Vec<&RawValue> = serde_json::from_str(inner.json("arguments")?).ok()?;
    let (leading, rest) = arguments.split_at(arguments.len().min(3));
    let is_shown = |json: &str| json.starts_with('"') && json.len() <= SHOWN_VALUE;
    let mut shown: Vec<&str> =
        leading.iter().map(|json| if is_shown(json.get()) { json.get() } else { CUT }).collect();
    if let Some(next) = rest.first() {
        let is_mail = Record::read(next.get().as_bytes()).is_some_and(|mail| mail.has("args"));
        shown.push(if is_mail { r#"{"params":{},"args":["..."]}"# } else { CUT });
    }
    let shown = format!("[{}]", shown.join(","));
    inner.cut(SHOWN_VALUE, CUT);
    inner.set_json("arguments", shown);
    Some(inner.to_json())
}
