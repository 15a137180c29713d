//! A job of protocol `async` as clients of the HTTP API make, see and cancel it: JSON in, JSON out, all pure.
//! Whatever else stands in a job (a foreign client's fields) survives every edit.
use bytes::Bytes;
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::protocol::async_jobs::{Status, timestamp};
use crate::protocol::record::Record;

/// A job that is to be created.
#[derive(Debug, Clone, Copy)]
pub struct New<'a> {
    /// Its id, never used before.
    pub id: &'a str,
    /// Which handler runs it.
    pub kind: &'a str,
    /// What the handler gets, byte for byte.
    pub payload: &'a RawValue,
    /// The hash of the client's idempotency key: whoever settles the job knows from it which key to let lapse.
    pub idempotency: Option<&'a str>,
    /// Now.
    pub now_ms: u64,
}

impl New<'_> {
    /// Its JSON.
    pub fn to_bytes(&self) -> Bytes {
        #[derive(Serialize)]
        struct Json<'a> {
            id: &'a str,
            r#type: &'a str,
            payload: &'a RawValue,
            status: &'static str,
            created_at: String,
            started_at: (),
            completed_at: (),
            error: (),
            attempts: u32,
            result: (),
            #[serde(skip_serializing_if = "Option::is_none")]
            idempotency_key: Option<&'a str>,
        }
        let Self { id, kind, payload, idempotency, now_ms } = *self;
        let json = Json {
            id,
            r#type: kind,
            payload,
            status: Status::Pending.as_str(),
            created_at: timestamp(now_ms),
            started_at: (),
            completed_at: (),
            error: (),
            attempts: 0,
            result: (),
            idempotency_key: idempotency,
        };
        // Texts, numbers and JSON that was read before: there is nothing in it that cannot be written.
        serde_json::to_vec(&json).map(Bytes::from).unwrap_or_default()
    }
}

/// What a job's own life wrote into it, and its next one does not begin with.
const LIVED: [&str; 5] = ["retries", "deaths", "interruptions", "worker", IDEMPOTENCY];

/// The JSON of a new job that is made of what somebody wrote or kept of an earlier one: type, payload and whatever else
/// stands there as they are, all that is written while a job lives as [`New`] has it.
pub fn anew(record: &mut Record<'_>, id: &str, now_ms: u64) -> Bytes {
    for field in LIVED {
        record.remove(field);
    }
    record.set("id", &id.into());
    fill(record, "payload", "null");
    record.set("status", &Status::Pending.as_str().into());
    record.set("created_at", &timestamp(now_ms).into());
    for field in ["started_at", "completed_at", "error", "result"] {
        record.set(field, &Value::Null);
    }
    record.set("attempts", &0.into());
    record.write()
}

/// A job as its clients see it: its own bytes, so that no number, no depth and no escape in it matters here.
#[derive(Debug, Clone)]
pub struct View {
    /// Where it is in its life.
    pub status: Status,
    /// Its JSON, complete.
    pub json: Box<RawValue>,
}

/// What a job's JSON is called that says by which key it was created; of no use to its client.
const IDEMPOTENCY: &str = "idempotency_key";

impl View {
    /// Reads what stands in Redis under an id; `None` when it is no job. What a foreign client left out is filled in.
    pub fn read(id: &str, raw: &[u8]) -> Option<Self> {
        let (mut record, status) = read(raw)?;
        record.set("status", &status.as_str().into());
        record.set("id", &id.into());
        if record.text("type").is_none() {
            record.set("type", &"".into());
        }
        for field in ["payload", "created_at", "started_at", "completed_at", "error"] {
            fill(&mut record, field, "null");
        }
        fill(&mut record, "attempts", "0");
        fill(&mut record, "result", "null");
        record.remove(IDEMPOTENCY);
        RawValue::from_string(record.to_json()).ok().map(|json| Self { status, json })
    }
}

fn fill(record: &mut Record<'_>, field: &str, json: &str) {
    if !record.has(field) {
        record.set_json(field, json.to_owned());
    }
}

/// The status of what stands in Redis; `None` when it is no job.
pub fn status(raw: &[u8]) -> Option<Status> {
    read(raw).map(|(_, status)| status)
}

fn read(raw: &[u8]) -> Option<(Record<'_>, Status)> {
    let record = Record::read(raw)?;
    // What is there and cannot be read is not the same as what is not there.
    let field = |name| if record.has(name) { record.get(name) } else { Some(Value::Null) };
    let status = match field("status")? {
        Value::Null => Status::Pending,
        Value::String(word) if word.is_empty() => Status::Pending,
        word => Status::of(word.as_str()?)?,
    };
    let kind = field("type")?;
    (kind.is_null() || kind.is_string()).then_some((record, status))
}

/// What cancelling a job comes to.
#[derive(Debug, Clone, PartialEq)]
pub enum Cancel {
    /// These bytes instead of those that were read.
    Write {
        /// What it was.
        from: Status,
        /// What it becomes.
        bytes: Bytes,
    },
    /// It is already.
    Already,
    /// It ended before.
    Finished(Status),
    /// It is no job.
    Malformed,
}

/// Decides what cancelling a job comes to that stands in Redis as `raw`.
pub fn cancel(raw: &[u8], now_ms: u64) -> Cancel {
    let Some((mut record, status)) = read(raw) else { return Cancel::Malformed };
    match status {
        Status::Cancelled => Cancel::Already,
        Status::Completed | Status::Failed => Cancel::Finished(status),
        Status::Pending | Status::Running => {
            record.set("status", &Status::Cancelled.as_str().into());
            record.set("completed_at", &timestamp(now_ms).into());
            Cancel::Write { from: status, bytes: record.write() }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new(payload: &str) -> Bytes {
        let payload = RawValue::from_string(payload.to_owned()).unwrap();
        New { id: "a-1", kind: "email", payload: &payload, idempotency: Some("00ff"), now_ms: 1_123 }
            .to_bytes()
    }

    #[test]
    fn a_new_job_has_every_field_and_its_payload_as_it_came() {
        let text = String::from_utf8(new(r#"{"n":12345678901234567890,"f":1.10}"#).to_vec()).unwrap();
        assert_eq!(
            text,
            r#"{"id":"a-1","type":"email","payload":{"n":12345678901234567890,"f":1.10},"status":"pending","created_at":"1970-01-01T00:00:01.123Z","started_at":null,"completed_at":null,"error":null,"attempts":0,"result":null,"idempotency_key":"00ff"}"#
        );
    }

    #[test]
    fn a_job_that_is_made_anew_has_lived_no_life_and_keeps_all_else() {
        let lived = br#"{"id":"old","type":"t","payload":{"f":1.10},"status":"failed","error":"e","retries":3,"worker":"w","idempotency_key":"00ff","mine":12345678901234567890,"attempts":4}"#;
        let new = anew(&mut Record::read(lived).unwrap(), "b", 0);
        assert_eq!(
            std::str::from_utf8(&new).unwrap(),
            r#"{"id":"b","type":"t","payload":{"f":1.10},"status":"pending","error":null,"mine":12345678901234567890,"attempts":0,"created_at":"1970-01-01T00:00:00.000Z","started_at":null,"completed_at":null,"result":null}"#
        );
        assert_eq!(
            status(&anew(&mut Record::read(br#"{"type":"t"}"#).unwrap(), "b", 0)),
            Some(Status::Pending)
        );
    }

    #[test]
    fn a_client_sees_all_fields_and_not_how_it_was_made_unique() {
        let view = View::read("a-1", &new("1")).unwrap();
        assert!(!view.json.get().contains(IDEMPOTENCY));
        let foreign = View::read("x", br#"{"type":"t","status":"running","extra":[1]}"#).unwrap();
        let shown: Value = serde_json::from_str(foreign.json.get()).unwrap();
        assert_eq!((foreign.status, &shown["attempts"]), (Status::Running, &Value::from(0)));
        assert_eq!((&shown["id"], &shown["extra"][0]), (&Value::from("x"), &Value::from(1)));
        assert_eq!(shown.get("result"), Some(&Value::Null));
        assert_eq!(View::read("x", b"{}").unwrap().status, Status::Pending);
    }

    #[test]
    fn what_is_no_job_is_not_shown_as_one() {
        for raw in [
            "",
            "[]",
            r#"{"type":"t","status":"lost"}"#,
            r#"{"type":1,"status":"pending"}"#,
            r#"{"type":"\ud800"}"#,
            r#"{"status":"\ud800"}"#,
        ] {
            assert!(View::read("x", raw.as_bytes()).is_none(), "{raw}");
            assert_eq!(cancel(raw.as_bytes(), 0), Cancel::Malformed, "{raw}");
        }
    }

    #[test]
    fn a_cancel_changes_status_and_time_and_nothing_else() {
        let raw =
            Bytes::from_static(br#"{"id":"x","type":"t","status":"running","big":12345678901234567890}"#);
        let Cancel::Write { from, bytes } = cancel(&raw, 0) else { panic!("it can be cancelled") };
        assert_eq!(from, Status::Running);
        assert_eq!(
            &bytes[..],
            &br#"{"id":"x","type":"t","status":"cancelled","big":12345678901234567890,"completed_at":"1970-01-01T00:00:00.000Z"}"#[..]
        );
        assert_eq!(cancel(&bytes, 1), Cancel::Already);
    }

    #[test]
    fn what_is_deep_or_half_a_text_is_shown_and_cancelled_as_it_stands() {
        for value in [format!("{}1{}", "[".repeat(500), "]".repeat(500)), r#""\ud800""#.to_owned()] {
            let raw = format!(r#"{{"id":"x","type":"t","status":"running","result":{value}}}"#);
            assert!(View::read("x", raw.as_bytes()).unwrap().json.get().contains(&value));
            let Cancel::Write { bytes, .. } = cancel(raw.as_bytes(), 0) else { panic!("{value}") };
            assert_eq!(status(&bytes), Some(Status::Cancelled));
        }
    }

    #[test]
    fn what_has_ended_is_not_cancelled() {
        for status in [Status::Completed, Status::Failed] {
            let raw = format!(r#"{{"id":"x","type":"t","status":"{}"}}"#, status.as_str());
            assert_eq!(cancel(raw.as_bytes(), 0), Cancel::Finished(status));
        }
    }
}
