//! A job: its raw bytes plus the few fields we read. Unknown fields are never lost, because the bytes
//! are what moves; an edit (a retry counter, an error) rewrites only the named fields, in order.
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::outcome::Reason;
use crate::protocol::record::Record;

/// The name of the field that holds how often a process died while it held this job, since an attempt
/// last ended by itself. Not the same as interruptions: it only says how carefully to run it.
pub const DEATHS: &str = "deaths";

/// What can be read must be editable too, and `serde_json` edits up to 128 levels: a job beyond that would keep its
/// retry counter for ever.
pub const MAX_DEPTH: usize = 100;

/// Room for what we write into a job (counters, the cause of an interruption): a job that was small enough to be
/// enqueued must not become too large by being retried.
pub const OWN_FIELDS: usize = 512;

/// One job, as it was read from Redis.
#[derive(Debug, Clone)]
pub struct Job {
    /// What stands in Redis, byte for byte.
    pub raw: Bytes,
    /// What we read of it.
    pub fields: Fields,
}

/// The fields of a `files` job that the engine or a handler reads. All but `id` may be missing: a
/// producer in another language may write only what its own handler needs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Fields {
    /// Unique per job; a UUID when we made it.
    pub id: String,
    /// The file to process.
    #[serde(default)]
    pub filepath: String,
    /// Its size in bytes when it was enqueued.
    #[serde(default)]
    pub filesize: u64,
    /// The name of its queue.
    #[serde(default)]
    pub priority: String,
    /// Failed attempts so far.
    #[serde(default)]
    pub retries: u32,
    /// Times its process died while it ran alone.
    #[serde(default)]
    pub interruptions: u32,
    /// See [`DEATHS`].
    #[serde(default)]
    pub deaths: u32,
    /// RFC 3339, when it was made.
    #[serde(default)]
    pub creation_time: String,
    /// The trace it belongs to: 32 hex digits, or empty.
    #[serde(default)]
    pub trace_id: String,
    /// The span that made it: 16 hex digits, or empty.
    #[serde(default)]
    pub span_id: String,
    /// The key of the queue it was first pushed to.
    #[serde(default)]
    pub origin_queue: String,
    /// What kind of job it is, where the protocol knows kinds: it chooses the handler.
    #[serde(skip)]
    pub kind: String,
}

/// Why bytes are not a job.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum NotAJob {
    /// Larger than allowed; checked before parsing.
    #[error("{size} bytes, more than worker.max_payload_bytes = {max}")]
    Oversize {
        /// Its size.
        size: usize,
        /// The limit.
        max: usize,
    },
    /// Not JSON, a field of the wrong type, nested too deep. The message quotes no data.
    #[error("not a job: {0}")]
    Malformed(String),
    /// Its queue names it, but there is no such job.
    #[error("no data: the queue names a job that does not exist, or does not exist any more")]
    NoData,
}

impl NotAJob {
    /// The reason that labels it.
    pub const fn reason(&self) -> Reason {
        match self {
            Self::Oversize { .. } => Reason::Oversize,
            Self::Malformed(_) => Reason::Malformed,
            Self::NoData => Reason::NoData,
        }
    }
}

/// What stands under the key of a job that lists only name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Data {
    /// Nothing.
    Missing,
    /// The job.
    Is(Bytes),
    /// More than was asked for: so many bytes.
    TooLarge(usize),
    /// No string: what `TYPE` says.
    Unfit(String),
}

impl Job {
    /// Reads a job. `max` bounds the bytes and [`MAX_DEPTH`] the nesting before anything is parsed.
    pub fn decode(raw: Bytes, max: usize) -> Result<Self, (Bytes, NotAJob)> {
        if raw.len() > max.saturating_add(OWN_FIELDS) {
            let size = raw.len();
            return Err((raw, NotAJob::Oversize { size, max }));
        }
        if depth(&raw) > MAX_DEPTH {
            return Err((raw, NotAJob::Malformed(format!("nested more than {MAX_DEPTH} levels deep"))));
        }
        match serde_json::from_slice::<Fields>(&raw) {
            // An array of the same values would do for serde, and has no fields to edit.
            Ok(_) if raw.trim_ascii_start().first() != Some(&b'{') => {
                Err((raw, NotAJob::Malformed("not a JSON object".into())))
            }
            Ok(fields) if fields.id.is_empty() => Err((raw, NotAJob::Malformed("field id is empty".into()))),
            Ok(fields) => match check_text(&raw) {
                Ok(()) => Ok(Self { raw, fields }),
                Err(why) => Err((raw, NotAJob::Malformed(why))),
            },
            Err(error) => Err((raw, NotAJob::Malformed(describe(&error)))),
        }
    }

    /// The same job with some fields set (`Some`) or removed (`None`); all others keep value and order.
    pub fn edited(&self, changes: &[(&str, Option<Value>)]) -> Result<Bytes, NotAJob> {
        edit(&self.raw, changes)
    }
}

/// Since when a job waits, of which perhaps only the head is at hand: its `creation_time` (RFC 3339), its
/// `enqueued_at` as Sidekiq writes it (seconds with a fraction, or whole milliseconds), or its `created_at`
/// (RFC 3339).
pub fn waits_since_ms(head: &[u8]) -> Option<u64> {
    if let Some(Value::String(time)) = in_head(head, "creation_time") {
        return u64::try_from(time.parse::<jiff::Timestamp>().ok()?.as_millisecond()).ok();
    }
    match in_head(head, "enqueued_at") {
        Some(Value::Number(number)) => return crate::protocol::sidekiq::time::millis(&number),
        Some(_) => return None,
        None => {}
    }
    let Value::String(time) = in_head(head, "created_at")? else { return None };
    u64::try_from(time.parse::<jiff::Timestamp>().ok()?.as_millisecond()).ok()
}

/// A field of a job of which perhaps only the head is at hand; `None` when it is not in there.
fn in_head(head: &[u8], field: &str) -> Option<Value> {
    struct Until<'a>(&'a str, &'a mut Option<Value>);
    impl<'de> serde::de::Visitor<'de> for Until<'_> {
        type Value = ();

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
            while let Some(name) = map.next_key::<std::borrow::Cow<'_, str>>()? {
                if name == self.0 {
                    let value: Value = map.next_value()?;
                    if value.is_number() {
                        // At the end of a head it may have lost digits: something has to follow.
                        map.next_key::<serde::de::IgnoredAny>()?;
                    }
                    *self.1 = Some(value);
                    return Ok(());
                }
                map.next_value::<serde::de::IgnoredAny>()?;
            }
            Ok(())
        }
    }
    if depth(head) > MAX_DEPTH {
        return None;
    }
    let mut found = None;
    // A head ends in the middle of something: what was read until then counts.
    let _ = serde::Deserializer::deserialize_map(
        &mut serde_json::Deserializer::from_slice(head),
        Until(field, &mut found),
    );
    found
}

/// Sets (`Some`) or removes (`None`) top-level fields of a JSON object. What cannot be edited must not stay as it is: a
/// job whose counters never grow would be run for ever.
pub fn edit(raw: &[u8], changes: &[(&str, Option<Value>)]) -> Result<Bytes, NotAJob> {
    let mut record =
        Record::read(raw).ok_or_else(|| NotAJob::Malformed("its fields cannot be edited".into()))?;
    for (name, value) in changes {
        match value {
            Some(value) => record.set(name, value),
            None => record.remove(name),
        }
    }
    Ok(record.write())
}

/// `serde_json` looks only for the end of a text that nobody asked for, not into it; an edit has to, and a job that
/// cannot be edited would be retried for ever. Reading everything costs more than all else here, so that is done
/// only when an escaped surrogate may be half a pair.
pub fn check_text(raw: &[u8]) -> Result<(), String> {
    if std::str::from_utf8(raw).is_err() {
        return Err("not UTF-8".into());
    }
    let surrogate = |window: &[u8]| window.eq_ignore_ascii_case(b"\\ud");
    if raw.contains(&b'\\') && raw.windows(3).any(surrogate) {
        return serde_json::from_slice::<Map<String, Value>>(raw).map(drop).map_err(|error| describe(&error));
    }
    Ok(())
}

/// How deep brackets nest outside of strings; says nothing about whether it is JSON.
pub fn depth(raw: &[u8]) -> usize {
    let (mut depth, mut deepest, mut in_string, mut escaped) = (0usize, 0usize, false, false);
    for byte in raw {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'[' | b'{' if !in_string => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

/// `serde_json`'s messages may quote a value ("invalid type: string \"...\""): keep the kind and the place.
pub(crate) fn describe(error: &serde_json::Error) -> String {
    use serde_json::error::Category;
    let what = match error.classify() {
        Category::Syntax => "invalid JSON",
        Category::Eof => "incomplete JSON",
        Category::Data => "a field is missing or has the wrong type",
        Category::Io => "unreadable",
    };
    format!("{what} at line {} column {}", error.line(), error.column())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_the_id_is_needed() {
        let job = Job::decode(Bytes::from_static(br#"{"id":"a","payload":{"any":"thing"}}"#), 1000).unwrap();
        assert_eq!(job.fields, Fields { id: "a".into(), ..Fields::default() });
    }

    #[test]
    fn the_time_of_creation_is_found_in_a_head_that_ends_anywhere_behind_it() {
        let whole =
            r#"{"id":"a","nested":{"creation_time":"no"},"creation_time":"1970-01-01T00:00:07Z","x":"éé"}"#;
        let end = whole.find(r#","x""#).unwrap();
        for cut in end..=whole.len() {
            assert_eq!(waits_since_ms(&whole.as_bytes()[..cut]), Some(7_000), "of {cut} bytes");
        }
        for cut in 0..end - 1 {
            assert_eq!(waits_since_ms(&whole.as_bytes()[..cut]), None, "of {cut} bytes");
        }
        assert_eq!(waits_since_ms(&[b'['; 1000]), None);
        assert_eq!(waits_since_ms(br#"{"creation_time":7}"#), None);
    }

    #[test]
    fn the_time_of_enqueueing_has_the_type_of_its_sidekiq_and_all_its_digits() {
        assert_eq!(waits_since_ms(br#"{"enqueued_at":7.25}"#), Some(7_250));
        assert_eq!(waits_since_ms(br#"{"enqueued_at":7250,"x":1}"#), Some(7_250));
        assert_eq!(waits_since_ms(br#"{"enqueued_at":7.2"#), None, "the head of 7.25");
        assert_eq!(waits_since_ms(br#"{"enqueued_at":"now"}"#), None);
    }

    #[test]
    fn a_job_over_http_says_when_it_was_created() {
        assert_eq!(waits_since_ms(br#"{"id":"a","created_at":"1970-01-01T00:00:07.250Z"}"#), Some(7_250));
        assert_eq!(waits_since_ms(br#"{"created_at":7.25}"#), None);
    }

    #[test]
    fn text_that_nobody_reads_must_be_text_all_the_same() {
        for good in [r#"{"id":"a","x":"\ud83d\ude00"}"#, r#"{"id":"a","x":"\\ud83d"}"#] {
            let job = Job::decode(Bytes::from_static(good.as_bytes()), 100).unwrap();
            assert_ne!(job.edited(&[("retries", Some(1.into()))]).unwrap(), job.raw);
        }
        for bad in [&br#"{"id":"a","x":"\ud83d"}"#[..], b"{\"id\":\"a\",\"x\":\"\xff\"}"] {
            let (_, why) = Job::decode(Bytes::from_static(bad), 100).unwrap_err();
            assert!(matches!(why, NotAJob::Malformed(_)), "{why}");
        }
    }

    #[test]
    fn brackets_in_strings_do_not_nest() {
        assert_eq!(depth(br#"{"a":"[[[[\"[["}"#), 1);
        assert_eq!(depth(br#"{"a":[[],{}]}"#), 3);
    }

    #[test]
    fn an_edit_keeps_everything_else_as_it_was() {
        let raw =
            Bytes::from_static(br#"{"z":1.10,"id":"a","big":12345678901234567890,"n":null,"retries":0}"#);
        let edited =
            edit(&raw, &[("retries", Some(1.into())), ("n", None), ("new", Some("x".into()))]).unwrap();
        assert_eq!(
            &edited[..],
            &br#"{"z":1.10,"id":"a","big":12345678901234567890,"retries":1,"new":"x"}"#[..]
        );
    }

    /// Any JSON, and names that `serde_json` gives a meaning of its own.
    fn json() -> impl Strategy<Value = String> {
        let name = prop_oneof![
            Just("$serde_json::private::Number".to_owned()),
            Just("$serde_json::private::RawValue".to_owned()),
            "[a-zé\"\\\\\n]{0,4}",
        ];
        let leaf = prop_oneof![
            Just("null".to_owned()),
            "-?(0|[1-9][0-9]{0,30})(\\.[0-9]{1,4})?([eE][+-]?[0-9]{1,4})?",
            any::<String>().prop_map(|text| Value::from(text).to_string()),
            Just(r#""\ud83d""#.to_owned()),
        ];
        leaf.prop_recursive(4, 24, 4, move |inner| {
            let field = (name.clone(), inner.clone())
                .prop_map(|(name, value)| format!("{}:{value}", Value::from(name)));
            prop_oneof![
                proptest::collection::vec(inner, 0..4).prop_map(|all| format!("[{}]", all.join(","))),
                proptest::collection::vec(field, 0..4).prop_map(|all| format!("{{{}}}", all.join(","))),
            ]
        })
    }

    #[test]
    fn an_array_is_no_job_whatever_it_holds() {
        let (_, why) = Job::decode(Bytes::from_static(br#" ["a"]"#), 100).unwrap_err();
        assert!(matches!(why, NotAJob::Malformed(_)), "{why}");
        assert!(edit(br#"["a"]"#, &[]).is_err(), "nor can it be edited");
    }

    #[test]
    fn a_job_that_looks_like_a_number_of_serde_json_is_edited_like_any_other() {
        let raw = r#"{"id":"a","x":{"$serde_json::private::Number":1}}"#;
        let job = Job::decode(raw.into(), 100).unwrap();
        let edited = job.edited(&[("retries", Some(1.into()))]).unwrap();
        assert_eq!(edited, r#"{"id":"a","x":{"$serde_json::private::Number":1},"retries":1}"#);
    }

    proptest! {
        #[test]
        fn whatever_can_be_decoded_can_be_edited(depth in 0usize..300, inner in json()) {
            let json = format!(r#"{{"id":"a","x":{}{inner}{}}}"#, "[".repeat(depth), "]".repeat(depth));
            if let Ok(job) = Job::decode(json.into(), usize::MAX) {
                let edited = job.edited(&[("retries", Some(7.into()))]).unwrap();
                prop_assert_eq!(Job::decode(edited, usize::MAX).unwrap().fields.retries, 7);
            }
        }

        #[test]
        fn no_bytes_make_it_panic(raw in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Job::decode(raw.into(), 100);
        }
    }
}
