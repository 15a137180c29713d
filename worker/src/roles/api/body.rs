//! From the bytes of a request to jobs that may be created: limits first, then JSON, then the rules of each field.
use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::HeaderMap;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use serde::Deserialize;
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::problem::{Code, Problem};

/// The most jobs of one batch: created in one step, in which Redis does nothing else.
pub(super) const MAX_BATCH: usize = 1000;
/// The longest name of a type.
pub(super) const MAX_TYPE: usize = 128;
/// The longest idempotency key.
const MAX_KEY: usize = 255;

/// What is checked of every body.
#[derive(Debug, Clone)]
pub(super) struct Limits {
    /// The largest, in bytes.
    pub bytes: usize,
    /// The deepest.
    pub depth: usize,
    /// How long it may take to arrive.
    pub time: Duration,
    /// Bytes of bodies that may be in memory at once, of all requests.
    pub in_flight: Arc<Semaphore>,
}

/// A body that has arrived.
#[derive(Debug)]
pub(super) struct Received {
    pub bytes: Bytes,
    pub share: Share,
}

/// A body's share of the memory, given back with the last that holds it: the request, and the order that a clerk still
/// has when the request has given up.
#[derive(Debug, Clone)]
pub(super) struct Share {
    _permit: Arc<Option<OwnedSemaphorePermit>>,
}

impl Limits {
    /// Reads a body that is said to be JSON.
    pub(super) async fn receive(&self, headers: &HeaderMap, body: Body) -> Result<Received, Problem> {
        if !is_json(headers) {
            let detail = "send Content-Type: application/json";
            return Err(Problem::new(Code::UnsupportedMediaType, detail).about("Content-Type"));
        }
        let announced =
            headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
        if announced.is_some_and(|length| length > self.bytes as u64) {
            return Err(self.too_large());
        }
        let received = tokio::time::timeout(self.time, self.read(body)).await.unwrap_or_else(|_| {
            Err(Problem::new(Code::BodyTimeout, format!("it took longer than {:?}", self.time)))
        })?;
        let depth = jobqueue::job::depth(&received.bytes);
        if depth > self.depth {
            let detail = format!("it nests {depth} levels deep, more than api.depth_limit = {}", self.depth);
            return Err(Problem::new(Code::TooDeep, detail));
        }
        Ok(received)
    }

    async fn read(&self, mut body: Body) -> Result<Received, Problem> {
        let mut bytes = BytesMut::new();
        let mut share: Option<OwnedSemaphorePermit> = None;
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|_| Problem::new(Code::NotJson, "the body ended too early"))?;
            let Ok(data) = frame.into_data() else { continue };
            if bytes.len() + data.len() > self.bytes {
                return Err(self.too_large());
            }
            // Its share grows with what has arrived: a body that was only announced takes nothing from others.
            let more = u32::try_from(data.len()).unwrap_or(u32::MAX);
            let Ok(more) = Arc::clone(&self.in_flight).try_acquire_many_owned(more) else {
                return Err(Problem::new(Code::Overloaded, "the bodies of other requests fill the memory"));
            };
            match &mut share {
                Some(share) => share.merge(more),
                None => share = Some(more),
            }
            bytes.extend_from_slice(&data);
        }
        Ok(Received { bytes: bytes.freeze(), share: Share { _permit: Arc::new(share) } })
    }

    fn too_large(&self) -> Problem {
        Problem::new(Code::TooLarge, format!("at most api.body_limit = {} bytes are taken", self.bytes))
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let essence = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    essence == "application/json" || (essence.starts_with("application/") && essence.ends_with("+json"))
}

/// One job that is asked for.
#[derive(Debug)]
pub(super) struct Wanted<'a> {
    pub kind: Cow<'a, str>,
    pub payload: &'a RawValue,
}

/// Reads `{type, payload}`.
pub(super) fn job<'a>(bytes: &'a [u8], types: &Types) -> Result<Wanted<'a>, Problem> {
    wanted(parse(bytes)?, "", types)
}

/// Reads `{jobs: [{type, payload}, ...]}`.
pub(super) fn batch<'a>(bytes: &'a [u8], types: &Types) -> Result<Vec<Wanted<'a>>, Problem> {
    let Fields(fields) = parse(bytes)?;
    let mut jobs = None;
    for (name, value) in fields {
        match &*name {
            "jobs" if jobs.is_none() => jobs = Some(value),
            "jobs" => return Err(twice("jobs")),
            _ => return Err(unknown("", &name)),
        }
    }
    let jobs = jobs.ok_or_else(|| missing("jobs"))?;
    let invalid = |detail: String| Problem::new(Code::InvalidField, detail).about("jobs");
    let jobs: Vec<&RawValue> =
        serde_json::from_str(jobs.get()).map_err(|_| invalid("must be a list".into()))?;
    if jobs.is_empty() || jobs.len() > MAX_BATCH {
        return Err(invalid(format!("must be a list of 1 to {MAX_BATCH} jobs, not of {}", jobs.len())));
    }
    let each = |(at, raw): (usize, &'a RawValue)| {
        let place = format!("jobs[{at}]");
        let fields = serde_json::from_str(raw.get())
            .map_err(|_| Problem::new(Code::InvalidField, "must be an object").about(place.as_str()))?;
        wanted(fields, &format!("{place}."), types)
    };
    jobs.into_iter().enumerate().map(each).collect()
}

/// The types of jobs that have a handler; `None`: any.
#[derive(Debug, Clone, Default)]
pub(super) struct Types(pub Option<Vec<String>>);

fn wanted<'a>(Fields(fields): Fields<'a>, place: &str, types: &Types) -> Result<Wanted<'a>, Problem> {
    let (mut kind, mut payload) = (None, None);
    for (name, value) in fields {
        match &*name {
            "type" if kind.is_none() => kind = Some(value),
            "payload" if payload.is_none() => payload = Some(value),
            "type" | "payload" => return Err(twice(&format!("{place}{name}"))),
            _ => return Err(unknown(place, &name)),
        }
    }
    let field = format!("{place}type");
    let kind: Cow<'a, str> = match kind {
        None => return Err(missing(&field)),
        Some(raw) => match serde_json::from_str::<Text<'a>>(raw.get()) {
            Ok(Text(kind)) => kind,
            Err(_) => return Err(Problem::new(Code::InvalidField, "must be text").about(field)),
        },
    };
    if !is_type(&kind) {
        let detail = format!("must be 1 to {MAX_TYPE} of A-Z a-z 0-9 . _ : / -, the first a letter or digit");
        return Err(Problem::new(Code::InvalidField, detail).about(field));
    }
    if let Some(known) = &types.0
        && !known.iter().any(|known| *known == *kind)
    {
        return Err(
            Problem::new(Code::UnknownType, format!("async.handlers has: {}", known.join(", "))).about(field)
        );
    }
    Ok(Wanted { kind, payload: payload.unwrap_or(RawValue::NULL) })
}

fn is_type(kind: &str) -> bool {
    kind.len() <= MAX_TYPE
        && kind.starts_with(|first: char| first.is_ascii_alphanumeric())
        && kind.chars().all(|c| c.is_ascii_alphanumeric() || "._:/-".contains(c))
}

fn missing(field: &str) -> Problem {
    Problem::new(Code::MissingField, format!("{field} must be there")).about(field)
}

fn twice(field: &str) -> Problem {
    Problem::new(Code::InvalidField, "is there twice").about(field)
}

fn unknown(place: &str, name: &str) -> Problem {
    // A name comes from the client: its answer need not be as long as its question.
    let name: String = name.chars().take(64).collect();
    Problem::new(Code::UnknownField, format!("{place}{name} is not a field of a job"))
        .about(format!("{place}{name}"))
}

fn parse(bytes: &[u8]) -> Result<Fields<'_>, Problem> {
    // Looks into every text, payload too: a worker must be able to read what it gets.
    jobqueue::job::check_text(bytes).map_err(|why| Problem::new(Code::NotJson, why))?;
    serde_json::from_slice(bytes).map_err(|error| {
        let place = format!("at line {} column {}", error.line(), error.column());
        match error.classify() {
            serde_json::error::Category::Data => {
                Problem::new(Code::InvalidField, format!("the body must be an object, {place}"))
            }
            serde_json::error::Category::Eof => {
                Problem::new(Code::NotJson, format!("it ends too early, {place}"))
            }
            _ => Problem::new(Code::NotJson, format!("it is not JSON, {place}")),
        }
    })
}

/// The fields of an object in their order, each value in its own bytes.
struct Fields<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Fields<'de>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut fields = Vec::new();
                while let Some(Text(name)) = map.next_key()? {
                    fields.push((name, map.next_value()?));
                }
                Ok(Fields(fields))
            }
        }
        deserializer.deserialize_map(Visitor)
    }
}

/// Text, borrowed where nothing in it is escaped.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// An idempotency key of a request, by its hash; `None` when there is none.
pub(super) fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let mut keys = headers.get_all("idempotency-key").iter();
    let Some(key) = keys.next() else { return Ok(None) };
    let key = key.as_bytes();
    let fits = (1..=MAX_KEY).contains(&key.len()) && key.iter().all(u8::is_ascii_graphic);
    if !fits || keys.next().is_some() {
        let detail =
            format!("it must be 1 to {MAX_KEY} visible ASCII characters without spaces, and there once");
        return Err(Problem::new(Code::InvalidIdempotencyKey, detail).about("Idempotency-Key"));
    }
    Ok(Some(hex(&Sha256::digest(key))))
}

/// A hash of what is asked for: spaces and the order of fields do not change it.
pub(super) fn canonical(jobs: &[Wanted<'_>]) -> String {
    let mut hash = Sha256::new();
    for job in jobs {
        let mut value = serde_json::from_str(job.payload.get()).unwrap_or_default();
        sort(&mut value);
        // A type has no line breaks, and canonical JSON has none.
        hash.update(format!("{}\n{value}\n", job.kind));
    }
    hex(&hash.finalize())
}

fn sort(value: &mut serde_json::Value) {
    match value {
        serde_json::Value::Object(fields) => {
            fields.sort_keys();
            fields.values_mut().for_each(sort);
        }
        serde_json::Value::Array(items) => items.iter_mut().for_each(sort),
        _ => {}
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(64), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn any() -> Types {
        Types::default()
    }

    fn code(body: &str) -> Code {
        job(body.as_bytes(), &any()).unwrap_err().code
    }

    #[test]
    fn a_job_is_a_type_and_a_payload_as_it_came() {
        let body = r#"{ "type": "em\u0061il", "payload": {"n": 1.10} }"#;
        let wanted = job(body.as_bytes(), &any()).unwrap();
        assert_eq!((&*wanted.kind, wanted.payload.get()), ("email", r#"{"n": 1.10}"#));
        assert_eq!(job(br#"{"type":"a"}"#, &any()).unwrap().payload.get(), "null");
    }

    #[test]
    fn every_bad_body_has_its_reason() {
        for (body, expected) in [
            ("", Code::NotJson),
            ("{", Code::NotJson),
            ("nope", Code::NotJson),
            (r#"{"type":"a"} x"#, Code::NotJson),
            (r#"{"type":"a","payload":"\ud800"}"#, Code::NotJson),
            ("[]", Code::InvalidField),
            ("null", Code::InvalidField),
            ("{}", Code::MissingField),
            (r#"{"payload":1}"#, Code::MissingField),
            (r#"{"type":null}"#, Code::InvalidField),
            (r#"{"type":7}"#, Code::InvalidField),
            (r#"{"type":""}"#, Code::InvalidField),
            (r#"{"type":"a b"}"#, Code::InvalidField),
            (r#"{"type":"a","type":"b"}"#, Code::InvalidField),
            (r#"{"type":"a","priority":1}"#, Code::UnknownField),
        ] {
            assert_eq!(code(body), expected, "{body}");
        }
    }

    #[test]
    fn a_type_without_a_handler_is_refused_where_handlers_are_declared() {
        let declared = Types(Some(vec!["email".into()]));
        assert!(job(br#"{"type":"email"}"#, &declared).is_ok());
        assert_eq!(job(br#"{"type":"fax"}"#, &declared).unwrap_err().code, Code::UnknownType);
    }

    #[test]
    fn a_batch_says_which_of_its_jobs_is_wrong() {
        let problem = |body: &str| serde_json::to_value(batch(body.as_bytes(), &any()).unwrap_err()).unwrap();
        assert_eq!(problem(r#"{"jobs":[{"type":"a"},{"typ":"b"}]}"#)["field"], "jobs[1].typ");
        assert_eq!(problem(r#"{"jobs":[{"type":"a"},{}]}"#)["field"], "jobs[1].type");
        assert_eq!(problem(r#"{"jobs":[3]}"#)["field"], "jobs[0]");
        assert_eq!(problem(r#"{"jobs":[]}"#)["code"], "invalid_field");
        assert_eq!(problem(r#"{"jobs":{}}"#)["code"], "invalid_field");
        assert_eq!(problem("{}")["code"], "missing_field");
        let twice = problem(r#"{"jobs":[{"type":"a"}],"jobs":[{"type":"b"}]}"#);
        assert_eq!((&twice["code"], &twice["field"]), (&"invalid_field".into(), &"jobs".into()));
        assert_eq!(batch(br#"{"jobs":[{"type":"a"},{"type":"b"}]}"#, &any()).unwrap().len(), 2);
    }

    #[test]
    fn spaces_and_order_do_not_make_another_body() {
        let hash = |body: &str| canonical(&[job(body.as_bytes(), &any()).unwrap()]);
        let first = hash(r#"{"type":"a","payload":{"x":1,"y":[{"b":1,"a":2}]}}"#);
        assert_eq!(first, hash(r#"{ "payload": {"y":[{"a":2,"b":1}],"x":1}, "type":"a" }"#));
        assert_ne!(first, hash(r#"{"type":"a","payload":{"x":2,"y":[{"b":1,"a":2}]}}"#));
        assert_ne!(first, hash(r#"{"type":"b","payload":{"x":1,"y":[{"b":1,"a":2}]}}"#));
    }

    #[test]
    fn a_body_is_json_by_its_content_type() {
        let said = |kind: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, kind.parse().unwrap());
            is_json(&headers)
        };
        assert!(
            said("application/json") && said("Application/JSON; charset=utf-8") && said("application/x+json")
        );
        assert!(!said("text/json") && !said("") && !said("application/jsonp"));
    }
}
