//! A dead letter: its bytes, and what is read of them. Letters come from anybody: whatever cannot be read is not there.
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use jobqueue::job::Data;
use jobqueue::keys::Keys;
use jobqueue::protocol::sidekiq::time;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A dead letter as it stands in Redis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Letter {
    pub raw: Bytes,
    /// Its score, where the letters are a sorted set: when it was given up, in seconds.
    pub score: Option<String>,
    /// The job it names, where it only names one and somebody has looked.
    pub named: Option<Data>,
}

impl Letter {
    pub fn of(raw: Bytes, score: Option<String>) -> Self {
        Self { raw, score, named: None }
    }

    /// When it was given up, by the set it is in or by what it says.
    pub fn died_ms(&self, label: &Label) -> Option<u64> {
        self.score.as_deref().and_then(time::millis_of_score).or(label.failed_ms)
    }
}

/// What is read of a letter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Label {
    pub id: String,
    pub reason: String,
    pub failed_ms: Option<u64>,
}

impl Label {
    /// Reads the fields that selectors are about.
    pub fn read(raw: &[u8]) -> Self {
        #[derive(Deserialize)]
        struct Fields {
            #[serde(default)]
            id: Value,
            #[serde(default)]
            jid: Value,
            #[serde(default)]
            reason: Value,
            #[serde(default)]
            error_class: Value,
            #[serde(default)]
            failed_at: Value,
        }
        let Ok(fields) = serde_json::from_slice::<Fields>(raw) else {
            return Self { reason: "malformed".into(), ..Self::default() };
        };
        Self {
            id: text(&fields.id).or_else(|| text(&fields.jid)).unwrap_or_default(),
            reason: text(&fields.reason).or_else(|| text(&fields.error_class)).unwrap_or_default(),
            failed_ms: moment(&fields.failed_at),
        }
    }
}

/// A letter in a list of them; its field names are what scripts rely on.
#[derive(Debug, Serialize)]
pub struct Summary {
    pub id: Option<String>,
    pub queue: Option<String>,
    pub class: Option<String>,
    pub reason: Option<String>,
    pub error: Option<String>,
    pub failed_at: Option<String>,
    pub age_ms: Option<u64>,
    pub retries: Option<u64>,
    pub interruptions: Option<u64>,
    pub bytes: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub letter: Option<Value>,
}

impl Summary {
    pub fn of(letter: &Letter, keys: &Keys, now_ms: u64, full: bool) -> Self {
        let label = Label::read(&letter.raw);
        let object: Map<String, Value> = serde_json::from_slice(&letter.raw).unwrap_or_default();
        let field = |name: &str| object.get(name).and_then(text);
        let count = |name: &str| object.get(name).and_then(Value::as_u64);
        let origin = field("origin_queue");
        let of_origin = keys.queues.iter().find(|queue| Some(&queue.queue) == origin.as_ref());
        let died_ms = letter.died_ms(&label);
        Self {
            queue: of_origin
                .map(|queue| queue.name.clone())
                .or_else(|| field("priority"))
                .or_else(|| field("queue")),
            class: field("class"),
            error: field("error").or_else(|| field("error_message")),
            failed_at: died_ms.map(jobqueue::protocol::files::rfc3339),
            age_ms: died_ms.map(|died| now_ms.saturating_sub(died)),
            retries: count("retries").or_else(|| count("retry_count")),
            interruptions: count("interruptions").or_else(|| count("jobqueue_interruptions")),
            bytes: letter.raw.len(),
            letter: full.then(|| own_json(&letter.raw)),
            id: Some(label.id).filter(|id| !id.is_empty()),
            reason: Some(label.reason).filter(|reason| !reason.is_empty()),
        }
    }
}

/// What stands in Redis if that is a JSON object, else its bytes under `raw`, as dead letters keep them.
pub fn own_json(raw: &[u8]) -> Value {
    if let Ok(object) = serde_json::from_slice::<Map<String, Value>>(raw) {
        return Value::Object(object);
    }
    match std::str::from_utf8(raw) {
        Ok(text) => serde_json::json!({ "raw": text }),
        Err(_) => serde_json::json!({ "raw_encoding": "base64", "raw": BASE64.encode(raw) }),
    }
}

/// A field that says something.
fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) if !text.is_empty() => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// RFC 3339, or a number as Sidekiq writes it.
fn moment(value: &Value) -> Option<u64> {
    match value {
        Value::String(text) => u64::try_from(text.parse::<jiff::Timestamp>().ok()?.as_millisecond()).ok(),
        Value::Number(number) => time::millis(number),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn letter(raw: &'static str, score: Option<&str>) -> Letter {
        Letter::of(Bytes::from_static(raw.as_bytes()), score.map(str::to_owned))
    }

    #[test]
    fn a_label_is_read_in_either_dialect_and_never_fails() {
        let ours = Label::read(br#"{"id":"a","reason":"oom","failed_at":"1970-01-01T00:00:02Z"}"#);
        assert_eq!(ours, Label { id: "a".into(), reason: "oom".into(), failed_ms: Some(2_000) });
        let sidekiqs = Label::read(br#"{"jid":"b","error_class":"ArgumentError","failed_at":2.5}"#);
        assert_eq!(
            sidekiqs,
            Label { id: "b".into(), reason: "ArgumentError".into(), failed_ms: Some(2_500) }
        );
        assert_eq!(Label::read(br#"{"id":7,"reason":[],"failed_at":"soon"}"#).id, "7");
        assert_eq!(Label::read(b"\xff").reason, "malformed");
    }

    #[test]
    fn the_set_knows_best_when_a_letter_died() {
        let of = |letter: Letter| letter.died_ms(&Label::read(&letter.raw));
        assert_eq!(of(letter(r#"{"failed_at":1.0}"#, Some("2.5"))), Some(2_500));
        assert_eq!(of(letter(r#"{"failed_at":1.0}"#, Some("3"))), Some(3_000), "a score is seconds, always");
        assert_eq!(of(letter(r#"{"failed_at":1.0}"#, None)), Some(1_000));
        assert_eq!(of(letter("{}", None)), None);
    }

    #[test]
    fn an_entry_is_its_own_json_or_its_bytes() {
        let of = |raw: &'static [u8]| own_json(raw).to_string();
        assert_eq!(of(br#"{"b":123456789012345678901,"a":1.50}"#), r#"{"b":123456789012345678901,"a":1.50}"#);
        assert_eq!(of(b"5"), r#"{"raw":"5"}"#);
        assert_eq!(of(b"\xff"), r#"{"raw_encoding":"base64","raw":"/w=="}"#);
    }
}
