//! System C: jobs created and watched over HTTP. A queue holds ids, pushed at the right and taken from the left; the
//! job itself is JSON under a key of its own, which every program may read while the job waits, runs and is over.
//!
//! ```text
//!                start                 settle: done
//!   pending ---------------> running ---------------> completed
//!    |  ^  ^                  |  |  \-- settle: dead --> failed
//!    |  |  +--- reap, release-+  |
//!    |  +------ settle: retry ---+
//!    +--------> cancelled <------+   (by anyone, and for ever)
//! ```
//!
//! Each arrow is one script, which writes the new JSON only over the bytes that the decision was made for: a cancel is
//! never undone, and an id that is queued twice runs once.
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::files::{clipped, rfc3339, tagged};
use super::record::Record;
use super::{Interruption, Protocol, Records, Start, returned};
use crate::effects::{Decision, Effect, Side, Verdict};
use crate::job::{Data, Fields, Job, MAX_DEPTH, NotAJob, depth};
use crate::keys::{JobKeys, QueueKeys};
use crate::outcome::{Failure, OUT_OF_MEMORY, Outcome, Reason};
use crate::retry::backoff;

mod head;
#[cfg(test)]
mod tests;

use head::Head;
pub use head::{Status, timestamp};

/// Room for what is written into a job while it lives: an error, counters, a result.
const ROOM: usize = 512 * 1024;
/// Jobs up to this size are read although they are too large to be run (the limit was lowered, a client knows none): so
/// they can be shown, cancelled, and given up with a reason. Held a few times over while that is written, beside a
/// worker whose container may have 256 MiB.
const READABLE: usize = 8 << 20;

/// A batch's key lives for so long after the last of its jobs to end so far, should others of them never end.
const BATCH: Duration = Duration::from_secs(30 * 24 * 3600);

/// Larger ones are never read, by nobody.
fn largest_readable(max_payload_bytes: usize) -> usize {
    runnable(max_payload_bytes).max(READABLE)
}

/// Larger ones are not run.
fn runnable(max_payload_bytes: usize) -> usize {
    max_payload_bytes.saturating_add(ROOM)
}

/// The policy of an `async` queue.
#[derive(Debug, Clone)]
pub struct AsyncJobs {
    /// Failed attempts after the first before a job is given up.
    pub max_retries: u32,
    /// The first backoff.
    pub backoff_base: Duration,
    /// The longest backoff.
    pub backoff_max: Duration,
    /// Interruptions of a job that ran alone before it is given up.
    pub max_interruptions: u32,
    /// Jobs above this are refused before they are read.
    pub max_payload_bytes: usize,
    /// Dead letters kept; `None` = all.
    pub dead_letter_max: Option<u64>,
    /// How long a job can be read once it is over.
    pub result_ttl: Duration,
}

/// The effects of giving a job another status: the JSON, if it is still `from`; where it is listed; who is told.
/// A job that is over lives for `ttl` from now on, and so does its idempotency key; another one for ever.
pub fn transition(
    keys: &JobKeys,
    id: &str,
    (from, was): (&Bytes, Status),
    (to, is): (Bytes, Status),
    now_ms: u64,
    ttl: Duration,
) -> Vec<Effect> {
    let key = keys.data(id);
    let mut effects = vec![Effect::Swap { key: key.clone(), from: from.clone(), to: to.clone() }];
    if is.is_over() {
        // A cancelled job is still named by its queue: it lives until that name is met.
        if is != Status::Cancelled {
            effects.extend(expiry(keys, id, &to, ttl));
        }
        let before_ms = now_ms.saturating_sub(millis(ttl));
        let over = Status::ALL.into_iter().filter(|status| status.is_over());
        effects.extend(over.map(|status| Effect::TrimIndex { key: keys.index(status.as_str()), before_ms }));
    } else if was.is_over()
        && let Some(hash) = Head::read(&to).and_then(|head| head.idempotency_key)
    {
        let member = id.to_owned();
        effects.push(Effect::Index { key: unfinished(keys, &hash), at_ms: now_ms, member });
        effects.push(Effect::Expire { key: keys.idem(&hash), ttl_ms: None, unless: None });
    }
    if was != is {
        effects.push(Effect::Unindex { key: keys.index(was.as_str()), member: id.to_owned() });
    }
    effects.extend(listed(keys, id, is, now_ms, ttl));
    effects.push(Effect::Publish { channel: keys.events(), message: format!("{id} {}", is.as_str()) });
    effects
}

/// How long a job that is over lives from now on, and its idempotency key with the last job that it stands for.
fn expiry(keys: &JobKeys, id: &str, raw: &[u8], ttl: Duration) -> Vec<Effect> {
    let ttl_ms = Some(millis(ttl));
    let mut effects = vec![Effect::Expire { key: keys.data(id), ttl_ms, unless: None }];
    if let Some(hash) = Head::read(raw).and_then(|head| head.idempotency_key) {
        let others = unfinished(keys, &hash);
        effects.push(Effect::Unindex { key: others.clone(), member: id.to_owned() });
        // One whose data another program has deleted never takes its name out: both lapse all the same.
        let kept = Some(millis(ttl.max(BATCH)));
        effects.extend([&others, &keys.idem(&hash)].map(|key| Effect::Expire {
            key: key.clone(),
            ttl_ms: kept,
            unless: None,
        }));
        effects.push(Effect::Expire { key: keys.idem(&hash), ttl_ms, unless: Some(others) });
    }
    effects
}

/// The jobs of a batch that are not over yet, by the hash of its idempotency key: gone with the last of them. A single
/// job has none.
pub fn unfinished(keys: &JobKeys, hash: &str) -> String {
    keys.index(&format!("batch-{hash}"))
}

/// Lists a job under a status from now on. What is over is listed for as long as it lives, and the list no longer than
/// the last of its jobs: so it tells whether there are any.
fn listed(
    keys: &JobKeys,
    id: &str,
    status: Status,
    now_ms: u64,
    ttl: Duration,
) -> impl Iterator<Item = Effect> + use<> {
    let key = keys.index(status.as_str());
    let lapse = status.is_over().then(|| Effect::Expire {
        key: key.clone(),
        ttl_ms: Some(millis(ttl)),
        unless: None,
    });
    [Effect::Index { key, at_ms: now_ms, member: id.to_owned() }].into_iter().chain(lapse)
}

/// What is no job (any more) is not listed any more among those that wait or run: nobody else would take it out.
fn unlisted(keys: &JobKeys, id: &str) -> impl Iterator<Item = Effect> {
    [Status::Pending, Status::Running]
        .into_iter()
        .map(move |status| Effect::Unindex { key: keys.index(status.as_str()), member: id.to_owned() })
}

/// Whether JSON of a handler can become part of a job: what is written must be readable again, by workers and clients.
pub fn is_sound(json: &str) -> bool {
    // One level is the job itself.
    if depth(json.as_bytes()) >= MAX_DEPTH {
        return false;
    }
    // Only reading a text wholly tells whether an escaped surrogate is half a pair.
    let surrogate = |window: &[u8]| window.eq_ignore_ascii_case(b"\\ud");
    if json.as_bytes().windows(3).any(surrogate) {
        return serde_json::from_str::<Value>(json).is_ok();
    }
    serde_json::from_str::<&RawValue>(json).is_ok()
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Of a job that its queue names though it runs, and nobody says where, as other programs' workers do not: there it may
/// still run, or that one has died. Started again it might run twice, and left alone it would never run.
const NOBODYS: &str = "it is marked as running and does not say where, as jobs of other programs' workers: requeue it if \
                       nothing runs it any more";

/// A change of a job's JSON under way.
struct Change<'a> {
    id: &'a str,
    raw: &'a Bytes,
    was: Status,
    record: Record<'a>,
}

impl<'a> Change<'a> {
    fn of(job: &'a Job) -> Option<(Self, Head)> {
        let record = Record::read(&job.raw)?;
        let head = Head::read(&job.raw).or_else(|| Head::seen(&job.raw))?;
        Some((Self { id: &job.fields.id, raw: &job.raw, was: head.status, record }, head))
    }

    /// The effects of giving it this status.
    fn to(mut self, is: Status, queue: &QueueKeys, now_ms: u64, ttl: Duration) -> (Bytes, Vec<Effect>) {
        self.record.set("status", &is.as_str().into());
        if is == Status::Running {
            self.record.set("started_at", &timestamp(now_ms).into());
        } else {
            // Who runs it is known only while it runs.
            self.record.remove("worker");
        }
        if is.is_over() {
            self.record.set("completed_at", &timestamp(now_ms).into());
        }
        let to = self.record.write();
        let effects = transition(&queue.jobs, self.id, (self.raw, self.was), (to.clone(), is), now_ms, ttl);
        (to, effects)
    }

    /// A counter, left out while it is 0.
    fn count(&mut self, name: &str, count: u32) {
        if count == 0 {
            self.record.remove(name);
        } else {
            self.record.set(name, &count.into());
        }
    }

    fn explain(&mut self, error: &str) {
        self.record.set("error", &clipped(error).into());
    }
}

impl AsyncJobs {
    /// A job was given up: it says so itself, and is named among the dead letters so that it can be revived.
    fn dead(
        &self,
        (mut change, head): (Change<'_>, &Head),
        failure: &Failure,
        queue: &QueueKeys,
        now_ms: u64,
    ) -> Decision {
        change.explain(&failure.error);
        let id = change.id;
        let letter = json!({
            "id": id, "type": head.kind, "attempts": head.attempts, "retries": head.retries,
            "error": clipped(&failure.error), "reason": failure.reason.as_str(),
            "failed_at": rfc3339(now_ms), "origin_queue": queue.queue,
        });
        let (_, mut effects) = change.to(Status::Failed, queue, now_ms, self.result_ttl);
        effects.extend(self.bury(letter.to_string().into(), queue));
        Decision { verdict: Verdict::Dead(failure.reason), effects }
    }

    fn bury(&self, letter: Bytes, queue: &QueueKeys) -> Vec<Effect> {
        let key = || queue.dead_letters.clone();
        let mut effects = vec![Effect::Push { key: key(), side: Side::Left, bytes: letter }];
        effects.extend(self.dead_letter_max.map(|max| Effect::Trim { key: key(), max, counted: true }));
        effects
    }

    fn failed(
        &self,
        (mut change, mut head): (Change<'_>, Head),
        failure: &Failure,
        delay: Option<Duration>,
        queue: &QueueKeys,
        now_ms: u64,
        unique: &str,
    ) -> Decision {
        head.retries = head.retries.saturating_add(1);
        change.count("retries", head.retries);
        if head.retries > self.max_retries {
            return self.dead((change, &head), failure, queue, now_ms);
        }
        // An attempt that ended by itself clears the suspicion.
        change.count("deaths", 0);
        change.explain(&failure.error);
        let delay = delay.unwrap_or_else(|| backoff(self.backoff_base, self.backoff_max, head.retries));
        let member = tagged(unique, change.id.as_bytes());
        let at_ms = now_ms.saturating_add(millis(delay));
        let (_, mut effects) = change.to(Status::Pending, queue, now_ms, self.result_ttl);
        effects.push(Effect::Delay { key: queue.delayed.clone(), at_ms, member });
        Decision { verdict: Verdict::Retried, effects }
    }

    fn done(
        &self,
        mut change: Change<'_>,
        result: Option<&Bytes>,
        queue: &QueueKeys,
        now_ms: u64,
    ) -> Decision {
        change.record.set("error", &Value::Null);
        change.count("deaths", 0);
        let result = result.map(|json| String::from_utf8_lossy(json));
        change.record.set_json(
            "result",
            match result {
                None => "null".into(),
                Some(json) if is_sound(&json) => json.into_owned(),
                Some(text) => Value::from(text).to_string(),
            },
        );
        let (_, effects) = change.to(Status::Completed, queue, now_ms, self.result_ttl);
        Decision { verdict: Verdict::Done, effects }
    }

    /// It is to be run again, from where `back` puts it, as if it had not been started.
    fn released(
        &self,
        (mut change, head): (Change<'_>, Head),
        back: Decision,
        queue: &QueueKeys,
        now_ms: u64,
    ) -> Decision {
        if head.status != Status::Running {
            return back;
        }
        let attempts = head.attempts.saturating_sub(1);
        change.record.set("attempts", &attempts.into());
        if attempts == 0 {
            change.record.set("started_at", &Value::Null);
        }
        let (_, mut effects) = change.to(Status::Pending, queue, now_ms, self.result_ttl);
        effects.extend(back.effects);
        Decision { verdict: Verdict::Released, effects }
    }

    /// Its queue named it and it is not to be run. A cancelled job's time to live starts now, and so does the time for
    /// which it is listed.
    fn dropped(&self, job: &Job, head: &Head, queue: &QueueKeys, now_ms: u64) -> Decision {
        let id = &job.fields.id;
        let effects = match head.status {
            Status::Cancelled => {
                let mut effects = expiry(&queue.jobs, id, &job.raw, self.result_ttl);
                effects.extend(listed(&queue.jobs, id, Status::Cancelled, now_ms, self.result_ttl));
                effects
            }
            _ => Vec::new(),
        };
        Decision { verdict: Verdict::Dropped, effects }
    }

    /// Why a job of this size is not run.
    fn oversize(&self, size: usize) -> Option<NotAJob> {
        let max = self.max_payload_bytes;
        (size > runnable(max)).then_some(NotAJob::Oversize { size, max })
    }

    /// What is wrong with a job's JSON; the reason quotes no data.
    fn parse(raw: &[u8]) -> Result<Head, String> {
        if depth(raw) > MAX_DEPTH {
            return Err(format!("nested more than {MAX_DEPTH} levels deep"));
        }
        Head::parse(raw)
    }

    /// It was read before: cannot be.
    fn unreadable(&self, job: &Job, queue: &QueueKeys, now_ms: u64) -> Decision {
        let entry = Bytes::copy_from_slice(job.fields.id.as_bytes());
        self.reject(&entry, &NotAJob::Malformed("not an object any more".into()), queue, now_ms)
    }
}

impl Protocol for AsyncJobs {
    fn consuming_side(&self) -> Side {
        Side::Left
    }

    /// Of an entry alone only its name is known.
    fn decode(&self, raw: Bytes) -> Result<Job, (Bytes, NotAJob)> {
        match std::str::from_utf8(&raw).map(str::to_owned) {
            Ok(id) if !id.is_empty() => Ok(Job { raw, fields: Fields { id, ..Fields::default() } }),
            _ => Err((raw, NotAJob::Malformed("a queue of this protocol holds ids, which are text".into()))),
        }
    }

    fn settle(&self, job: &Job, outcome: &Outcome, queue: &QueueKeys, now_ms: u64, unique: &str) -> Decision {
        let Some((change, head)) = Change::of(job) else { return self.unreadable(job, queue, now_ms) };
        match outcome {
            Outcome::Done => self.done(change, None, queue, now_ms),
            Outcome::DoneWith(result) => self.done(change, Some(result), queue, now_ms),
            Outcome::Failed(failure) => self.failed((change, head), failure, None, queue, now_ms, unique),
            Outcome::RetryIn(delay, failure) => {
                self.failed((change, head), failure, Some(*delay), queue, now_ms, unique)
            }
            Outcome::Kill(failure) => self.dead((change, &head), failure, queue, now_ms),
            Outcome::Discard(failure) => {
                let mut change = change;
                change.explain("its handler discarded it");
                let (_, effects) = change.to(Status::Failed, queue, now_ms, self.result_ttl);
                Decision { verdict: Verdict::of_discard(failure.as_ref()), effects }
            }
            Outcome::HandlerDied(why) => {
                let worker = head.worker.clone().unwrap_or_default();
                let how = Interruption::of_handler(why, false);
                Records::interrupted(self, job, &worker, queue, how, now_ms)
            }
            Outcome::HandlerUnavailable(_) | Outcome::Released => {
                let entry = Bytes::copy_from_slice(change.id.as_bytes());
                let back = returned(entry, queue, self.consuming_side());
                self.released((change, head), back, queue, now_ms)
            }
            Outcome::PutOff(delay, _) => {
                let member = tagged(unique, change.id.as_bytes());
                let at_ms = now_ms.saturating_add(millis(*delay));
                let effects = vec![Effect::Delay { key: queue.delayed.clone(), at_ms, member }];
                let back = Decision { verdict: Verdict::Released, effects };
                self.released((change, head), back, queue, now_ms)
            }
        }
    }

    fn is_last_attempt(&self, job: &Job, _now_ms: u64) -> Option<bool> {
        Some(job.fields.retries >= self.max_retries)
    }

    /// No run helps a job that cannot be read wholly. It goes the way of one that ran and is given up, so that whoever
    /// changes it meanwhile is heard.
    fn condemned(&self, job: &Job) -> Option<Failure> {
        // What has a type was read wholly, and that is nearly every job.
        if !job.fields.kind.is_empty() {
            return None;
        }
        let why = match self.oversize(job.raw.len()) {
            Some(why) => why,
            None => NotAJob::Malformed(Self::parse(&job.raw).err()?),
        };
        Some(Failure::new(why.reason(), why.to_string()))
    }

    /// A letter that names it, and no list of jobs does any more. What stands under its key is left alone: it is not a job
    /// to its clients either, or was too large to be read.
    fn reject(&self, raw: &Bytes, why: &NotAJob, queue: &QueueKeys, now_ms: u64) -> Decision {
        let reason = why.reason();
        let mut letter = Map::new();
        if let Ok(id) = std::str::from_utf8(raw) {
            letter.insert("id".into(), id.into());
        } else {
            letter.insert("raw_encoding".into(), "base64".into());
            letter.insert("raw".into(), BASE64.encode(raw).into());
        }
        letter.insert("error".into(), why.to_string().into());
        letter.insert("reason".into(), reason.as_str().into());
        letter.insert("failed_at".into(), rfc3339(now_ms).into());
        letter.insert("origin_queue".into(), queue.queue.clone().into());
        let mut effects = self.bury(Value::Object(letter).to_string().into(), queue);
        if let Ok(id) = std::str::from_utf8(raw) {
            effects.extend(unlisted(&queue.jobs, id));
        }
        Decision { verdict: Verdict::Dead(reason), effects }
    }

    /// What is only named can only be given back: see [`Records::interrupted`].
    fn interrupted(&self, raw: &Bytes, queue: &QueueKeys, _how: Interruption<'_>, _now_ms: u64) -> Decision {
        returned(raw.clone(), queue, self.consuming_side())
    }

    fn promote(&self, member: &Bytes, queue: &QueueKeys, _now_ms: u64) -> Vec<Effect> {
        let id =
            member.iter().position(|byte| *byte == b'|').map_or(member.clone(), |at| member.slice(at + 1..));
        vec![Effect::Push { key: queue.queue.clone(), side: self.consuming_side().opposite(), bytes: id }]
    }

    fn revive(&self, letter: &Bytes) -> (Option<String>, Bytes) {
        let Ok(letter) = serde_json::from_slice::<Map<String, Value>>(letter) else {
            return (None, letter.clone());
        };
        let text = |name: &str| letter.get(name).and_then(Value::as_str);
        let raw = text("raw").and_then(|raw| BASE64.decode(raw).ok()).map(Bytes::from);
        let entry = text("id").map(|id| Bytes::copy_from_slice(id.as_bytes())).or(raw).unwrap_or_default();
        (text("origin_queue").map(str::to_owned), entry)
    }

    fn breaker_sample(&self, outcome: &Outcome) -> Option<bool> {
        match outcome {
            Outcome::Done | Outcome::DoneWith(_) | Outcome::Discard(None) => Some(true),
            // No handler was asked: there is none for its type. One type that nobody knows must not stop all others.
            Outcome::Kill(failure) if failure.reason != Reason::Killed => None,
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

    fn records(&self) -> Option<&dyn Records> {
        Some(self)
    }
}

impl Records for AsyncJobs {
    fn key(&self, entry: &[u8], keys: &JobKeys) -> String {
        keys.data(std::str::from_utf8(entry).unwrap_or_default())
    }

    fn largest(&self) -> usize {
        largest_readable(self.max_payload_bytes)
    }

    fn read(&self, entry: &Bytes, data: Data) -> Result<Job, NotAJob> {
        let Fields { id, .. } = self.decode(entry.clone()).map_err(|(_, why)| why)?.fields;
        let raw = match data {
            Data::Is(raw) => raw,
            Data::Missing => return Err(NotAJob::NoData),
            Data::TooLarge(size) => return Err(NotAJob::Oversize { size, max: self.max_payload_bytes }),
            Data::Unfit(kind) => return Err(NotAJob::Malformed(format!("its key holds a {kind}"))),
        };
        let head = match self.oversize(raw.len()) {
            Some(why) => Err(why),
            None => Self::parse(&raw).map_err(NotAJob::Malformed),
        };
        let head = match head {
            Ok(head) => head,
            // Its clients see a job that waits: it is condemned, so that they see it fail.
            Err(_) if Head::seen(&raw).is_some() => {
                return Ok(Job { raw, fields: Fields { id, ..Fields::default() } });
            }
            Err(why) => return Err(why),
        };
        let fields = Fields {
            id,
            kind: head.kind,
            retries: head.retries,
            interruptions: head.interruptions,
            deaths: head.deaths,
            creation_time: head.created_at,
            ..Fields::default()
        };
        Ok(Job { raw, fields })
    }

    fn start(&self, job: &Job, lane: &str, queue: &QueueKeys, now_ms: u64) -> Start {
        let Some((mut change, head)) = Change::of(job) else {
            return Start::Drop(self.unreadable(job, queue, now_ms));
        };
        // Running here already: a run of this lane that it does not know of any more.
        let ours = head.status == Status::Running && head.worker.as_deref() == Some(lane);
        if head.status == Status::Running && head.worker.is_none() {
            return Start::Drop(self.dead(
                (change, &head),
                &Failure::new(Reason::NoVerdict, NOBODYS),
                queue,
                now_ms,
            ));
        }
        if head.status != Status::Pending && !ours {
            return Start::Drop(self.dropped(job, &head, queue, now_ms));
        }
        // It is not going to run: nothing of it says that it did.
        if self.condemned(job).is_some() {
            return Start::Run(Box::new(job.clone()), Vec::new());
        }
        change.record.set("attempts", &head.attempts.saturating_add(1).into());
        change.record.set("worker", &lane.into());
        let (raw, effects) = change.to(Status::Running, queue, now_ms, self.result_ttl);
        Start::Run(Box::new(Job { raw, fields: job.fields.clone() }), effects)
    }

    fn disowned(&self, job: &Job, lane: &str, queue: &QueueKeys, now_ms: u64) -> Option<Decision> {
        let head = Head::read(&job.raw)?;
        let ours = head.worker.as_ref().is_none_or(|worker| worker == lane);
        match head.status {
            Status::Running | Status::Pending if ours => None,
            _ => Some(self.dropped(job, &head, queue, now_ms)),
        }
    }

    fn interrupted(
        &self,
        job: &Job,
        lane: &str,
        queue: &QueueKeys,
        how: Interruption<'_>,
        now_ms: u64,
    ) -> Decision {
        let Some((mut change, head)) = Change::of(job) else { return self.unreadable(job, queue, now_ms) };
        let back = returned(Bytes::copy_from_slice(change.id.as_bytes()), queue, self.consuming_side());
        match head.status {
            // Reserved and not started: nothing was interrupted.
            Status::Pending => return back,
            // Whoever dropped the name of the lane when it changed the job did not mean that it is lost.
            Status::Running if head.worker.as_ref().is_none_or(|worker| worker == lane) => {}
            // Another lane runs it, and has it in a list of its own; or it is over.
            _ => return self.dropped(job, &head, queue, now_ms),
        }
        if how.outside {
            change.explain(&format!("its worker was stopped while it ran ({})", how.cause));
            let (_, mut effects) = change.to(Status::Pending, queue, now_ms, self.result_ttl);
            effects.extend(back.effects);
            return Decision { verdict: Verdict::Released, effects };
        }
        // Only a suspect that ran alone can be blamed; among others any of them may have been the one.
        let blamed = how.alone && head.deaths > 0;
        let interruptions = head.interruptions.saturating_add(u32::from(blamed));
        change.count("deaths", head.deaths.saturating_add(1));
        change.count("interruptions", interruptions);
        if blamed && interruptions >= self.max_interruptions {
            let reason = if how.cause == OUT_OF_MEMORY { Reason::Oom } else { Reason::Poison };
            let error = format!("its process died {interruptions} times while it ran alone ({})", how.cause);
            return self.dead((change, &head), &Failure::new(reason, error), queue, now_ms);
        }
        change.explain(&format!("its worker died while it ran ({})", how.cause));
        let (_, mut effects) = change.to(Status::Pending, queue, now_ms, self.result_ttl);
        effects.extend(back.effects);
        Decision { verdict: Verdict::Suspected, effects }
    }

    fn revived(&self, job: &Job, queue: &QueueKeys, now_ms: u64) -> Vec<Effect> {
        let Some((mut change, head)) = Change::of(job) else { return Vec::new() };
        // Anything else is not dead: cancelled for ever, or alive already.
        if head.status != Status::Failed {
            return Vec::new();
        }
        for counter in ["retries", "deaths", "interruptions"] {
            change.count(counter, 0);
        }
        change.record.set("attempts", &0.into());
        for field in ["error", "started_at", "completed_at", "result"] {
            change.record.set(field, &Value::Null);
        }
        change.to(Status::Pending, queue, now_ms, self.result_ttl).1
    }
}
