//! Logs: one line per event on stderr, JSON for machines and plain text for a terminal. Only fields on
//! the allowlist get out, whatever a caller writes: a payload, a path or a secret cannot be logged by
//! accident.
use std::{
    collections::BTreeMap,
    fmt::{self, Write as _},
    io::{IsTerminal, Write as _},
    sync::{Mutex, OnceLock, PoisonError},
};

use serde_json::Value;
use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    level_filters::LevelFilter,
    subscriber::Interest,
};
use tracing_subscriber::{
    Layer,
    layer::{Context, SubscriberExt},
    registry::Registry,
};

/// The keys that the log itself writes; an event cannot set them.
pub const OWN_KEYS: [&str; 3] = ["ts", "level", "msg"];

/// The keys that an event may carry. Every other field is dropped.
pub const EVENT_KEYS: [&str; 16] = [
    "trace_id",
    "span_id",
    "job_id",
    "queue",
    "worker_id",
    "request_id",
    "namespace",
    "duration_ms",
    "wait_ms",
    "error",
    "reason",
    "count",
    "attempt",
    "key",
    "value",
    "rule",
];

/// Long enough for an error with its causes, short enough that no payload fits by accident and that a
/// line stays below the 16 KiB at which container runtimes cut it (16 keys of 512 bytes are 8 KiB).
const MAX_VALUE_BYTES: usize = 512;

/// Field names are compile-time constants, so few; the bound is for the case that they are not.
const MAX_DROPPED_NAMES: usize = 64;

static IDENTITY: OnceLock<Identity> = OnceLock::new();
static DROPPED: Mutex<BTreeMap<&'static str, u64>> = Mutex::new(BTreeMap::new());

/// Who this process is, on every line unless the event says otherwise.
#[derive(Debug, Default)]
struct Identity {
    namespace: Option<String>,
    worker_id: OnceLock<String>,
}

/// Why logging could not be set up.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum LogError {
    /// The configured level is none of ours.
    #[error("observability.log_level = {0:?}: must be one of debug, info, warn, error")]
    UnknownLevel(String),
    /// Another subscriber is in place; only one can be.
    #[error("logging was set up twice in one process")]
    AlreadySetUp,
}

/// How a line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Json,
    Text { colours: bool },
}

/// Starts logging for this process: `level` is `observability.log_level`, `namespace` the Kubernetes
/// namespace (or whatever the environment calls it) if there is one.
///
/// A terminal gets plain text, in colours unless `NO_COLOR` is set; everything else JSON, as does a
/// terminal with `LOG_FORMAT=json`.
pub fn init(level: &str, namespace: Option<&str>) -> Result<(), LogError> {
    let level = parse_level(level)?;
    let identity = IDENTITY.get_or_init(|| Identity {
        namespace: namespace.filter(|name| !name.is_empty()).map(str::to_owned),
        worker_id: OnceLock::new(),
    });
    let layer = LogLayer { level, format: format_for_stderr(), identity, write: to_stderr };
    tracing::subscriber::set_global_default(Registry::default().with(layer))
        .map_err(|_| LogError::AlreadySetUp)?;
    log_panics_without_their_message();
    Ok(())
}

/// Names this process on every later line. The first call wins: an identity does not change.
pub fn set_worker_id(worker_id: impl Into<String>) {
    let identity = IDENTITY.get_or_init(Identity::default);
    // A second identity would be a bug of the caller, but not one to stop for.
    let _ = identity.worker_id.set(worker_id.into());
}

/// How many fields were dropped because their name is not on the allowlist, by name.
pub fn dropped_fields() -> BTreeMap<&'static str, u64> {
    DROPPED.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

fn parse_level(level: &str) -> Result<LevelFilter, LogError> {
    match level.to_ascii_lowercase().as_str() {
        "debug" => Ok(LevelFilter::DEBUG),
        "info" => Ok(LevelFilter::INFO),
        "warn" => Ok(LevelFilter::WARN),
        "error" => Ok(LevelFilter::ERROR),
        _ => Err(LogError::UnknownLevel(level.to_owned())),
    }
}

fn format_for_stderr() -> Format {
    let asked_for_json = std::env::var_os("LOG_FORMAT").is_some_and(|format| format == "json");
    if asked_for_json || !std::io::stderr().is_terminal() {
        return Format::Json;
    }
    let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    Format::Text { colours: !no_colour }
}

/// One write call per line, so that lines of several processes on one pipe do not mix. A closed or full
/// stderr is nobody's reason to stop working, so errors are ignored.
fn to_stderr(line: &[u8]) {
    let _ = std::io::stderr().lock().write_all(line);
}

/// The default hook prints the panic's message, and a message may quote a job. Only the place gets out,
/// unless someone who debugs asked for backtraces.
fn log_panics_without_their_message() {
    if std::env::var_os("RUST_BACKTRACE").is_some_and(|value| value != "0") {
        return;
    }
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map_or_else(|| "unknown place".to_owned(), ToString::to_string);
        tracing::error!(error = %format_args!("panicked at {place}"), "Panicked");
    }));
}

/// Counts a field that was not let out. In debug builds the first one of each name is reported, so that
/// whoever wrote it finds out; its value is not.
fn count_dropped(name: &'static str) -> Option<&'static str> {
    let mut dropped = DROPPED.lock().unwrap_or_else(PoisonError::into_inner);
    let full = dropped.len() >= MAX_DROPPED_NAMES;
    let name = if full && !dropped.contains_key(name) { "other" } else { name };
    let count = dropped.entry(name).or_default();
    *count += 1;
    (cfg!(debug_assertions) && *count == 1).then_some(name)
}

/// The layer between `tracing` and stderr.
struct LogLayer<'a, W> {
    level: LevelFilter,
    format: Format,
    identity: &'a Identity,
    write: W,
}

impl<W> LogLayer<'_, W> {
    /// Ours at the configured level; others only when something is wrong.
    fn wants(&self, metadata: &Metadata<'_>) -> bool {
        let limit = if is_ours(metadata.target()) { self.level } else { self.level.min(LevelFilter::WARN) };
        metadata.is_event() && *metadata.level() <= limit
    }
}

/// Whether a tracing target is a module of this workspace.
fn is_ours(target: &str) -> bool {
    let krate = target.split("::").next().unwrap_or_default();
    krate.starts_with("jobqueue") || krate.starts_with("worker")
}

impl<S, W> Layer<S> for LogLayer<'static, W>
where
    S: Subscriber,
    W: Fn(&[u8]) + 'static,
{
    // Answering per call site, once, makes a switched-off event cost one relaxed load.
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if self.wants(metadata) { Interest::always() } else { Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        self.wants(metadata)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.level)
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let metadata = event.metadata();
        if !self.wants(metadata) {
            return;
        }
        let mut line = Line::new(is_ours(metadata.target()));
        event.record(&mut line);
        if line.msg.is_empty() {
            // Some crates name their events instead; the name is a constant.
            metadata.name().clone_into(&mut line.msg);
        }
        (self.write)(&line.render(*metadata.level(), self.identity, self.format));
        for key in line.first_drops {
            let mut notice = Line::new(true);
            "Dropped a log field that is not on the allowlist".clone_into(&mut notice.msg);
            notice.fields.push(("key", Value::String(key.to_owned())));
            (self.write)(&notice.render(Level::WARN, self.identity, self.format));
        }
    }
}

/// One event on its way out.
struct Line {
    ours: bool,
    msg: String,
    fields: Vec<(&'static str, Value)>,
    first_drops: Vec<&'static str>,
}

impl Line {
    fn new(ours: bool) -> Self {
        Self { ours, msg: String::new(), fields: Vec::new(), first_drops: Vec::new() }
    }

    fn put(&mut self, field: &Field, value: impl FnOnce() -> Value) {
        let name = field.name();
        if name == "message" {
            self.msg = match value() {
                Value::String(text) => text,
                other => other.to_string(),
            };
        } else if !self.ours {
            // Not counted: what other crates log is not ours to change.
        } else if EVENT_KEYS.contains(&name) {
            self.fields.push((name, value()));
        } else {
            self.first_drops.extend(count_dropped(name));
        }
    }

    fn render(&self, level: Level, identity: &Identity, format: Format) -> Vec<u8> {
        let ts = jiff::Timestamp::now();
        let mut fields = self.fields.clone();
        mask_a_secret_setting(&mut fields);
        let known = |name| fields.iter().any(|(key, _)| *key == name);
        let namespace = identity.namespace.as_ref().filter(|_| !known("namespace"));
        let worker_id = identity.worker_id.get().filter(|_| !known("worker_id"));
        fields.extend(namespace.map(|name| ("namespace", Value::String(name.clone()))));
        fields.extend(worker_id.map(|id| ("worker_id", Value::String(id.clone()))));

        let mut line = String::with_capacity(256);
        // Writing to a String does not fail.
        let _ = match format {
            Format::Json => write_json(&mut line, ts, level, &self.msg, &fields),
            Format::Text { colours } => write_text(&mut line, ts, level, &self.msg, &fields, colours),
        };
        line.push('\n');
        line.into_bytes()
    }
}

impl Visit for Line {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, || Value::String(presentable(value)));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, || value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, || value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, || value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, || value.into());
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.put(field, || Value::String(presentable(&value.to_string())));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, || Value::String(presentable(&format!("{value:?}"))));
    }
}

/// A bad setting is reported as `key`, `value`, `rule`: the value of a secret stays inside.
fn mask_a_secret_setting(fields: &mut [(&'static str, Value)]) {
    let secret = fields.iter().any(|(name, value)| *name == "key" && value.as_str().is_some_and(is_secret));
    if secret {
        for (_, value) in fields.iter_mut().filter(|(name, _)| *name == "value") {
            *value = Value::String("***".to_owned());
        }
    }
}

/// Whether a setting of this name holds a secret (`redis.password`; not `api.token_file`, a path; but
/// `redis.url`, which may contain one).
fn is_secret(setting: &str) -> bool {
    let name = setting.to_ascii_lowercase();
    let words = ["password", "secret", "token", "hmac_key", "url"];
    !name.ends_with("_file") && words.iter().any(|word| name.contains(word))
}

/// Without the credentials that URLs and headers quote, and short.
fn presentable(text: &str) -> String {
    let mut text = mask_after(&mask_userinfo(text), "bearer ");
    if text.len() > MAX_VALUE_BYTES {
        text.truncate(cut(&text, MAX_VALUE_BYTES).len());
        text.push('…');
    }
    text
}

/// As much of `text` as fits into `max` bytes.
pub(crate) fn cut(text: &str, max: usize) -> &str {
    let end = (0..=max.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or_default()]
}

/// `redis://user:password@host` becomes `redis://***@host`.
fn mask_userinfo(text: &str) -> String {
    let mut masked = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + "://".len());
        masked.push_str(before);
        // A password may itself contain an @, hence the last one of the authority.
        let authority = after.find(['/', '?', '#', ' ', '"', '\n']).unwrap_or(after.len());
        rest = match after[..authority].rfind('@') {
            Some(end) => {
                masked.push_str("***");
                &after[end..]
            }
            None => after,
        };
    }
    masked.push_str(rest);
    masked
}

/// Replaces the word after each `marker` (lower case) by `***`.
fn mask_after(text: &str, marker: &str) -> String {
    let lower = text.to_ascii_lowercase();
    let mut masked = String::with_capacity(text.len());
    let mut from = 0;
    while let Some(at) = lower[from..].find(marker) {
        let start = from + at + marker.len();
        let end = text[start..].find([' ', '"', '\n', ',']).map_or(text.len(), |length| start + length);
        masked.push_str(&text[from..start]);
        masked.push_str("***");
        from = end;
    }
    masked.push_str(&text[from..]);
    masked
}

const fn level_name(level: Level) -> &'static str {
    match level {
        Level::ERROR => "error",
        Level::WARN => "warn",
        Level::INFO => "info",
        Level::DEBUG => "debug",
        Level::TRACE => "trace",
    }
}

fn write_json(
    line: &mut String,
    ts: jiff::Timestamp,
    level: Level,
    msg: &str,
    fields: &[(&'static str, Value)],
) -> fmt::Result {
    write!(line, r#"{{"ts":"{ts:.6}","level":"{}","msg":{}"#, level_name(level), json(&msg.into()))?;
    for (name, value) in fields {
        write!(line, r#","{name}":{}"#, json(value))?;
    }
    line.write_char('}')
}

/// JSON allows the control characters from 0x7f up as they are; a terminal obeys some of them.
fn json(value: &Value) -> String {
    value.to_string().chars().fold(String::new(), |mut out, c| {
        if c.is_control() {
            // Writing to a String does not fail.
            let _ = write!(out, "\\u{:04x}", u32::from(c));
        } else {
            out.push(c);
        }
        out
    })
}

fn write_text(
    line: &mut String,
    ts: jiff::Timestamp,
    level: Level,
    msg: &str,
    fields: &[(&'static str, Value)],
    colours: bool,
) -> fmt::Result {
    let colour = match level {
        Level::ERROR => "\x1b[31m",
        Level::WARN => "\x1b[33m",
        Level::INFO => "\x1b[32m",
        _ => "\x1b[34m",
    };
    let (colour, dim, reset) = if colours { (colour, "\x1b[2m", "\x1b[0m") } else { ("", "", "") };
    write!(line, "{dim}{ts:.3}{reset} {colour}{:<5}{reset} {}", level_name(level), printable(msg))?;
    for (name, value) in fields {
        write!(line, " {dim}{name}={reset}")?;
        match value {
            Value::String(text) if text.contains([' ', '"', '=']) => {
                write!(line, "\"{}\"", printable(&text.replace('"', "\\\"")))?;
            }
            Value::String(text) => line.write_str(&printable(text))?,
            other => write!(line, "{other}")?,
        }
    }
    Ok(())
}

/// Control characters would let data move the cursor or forge a line.
fn printable(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut out, c| {
        if c.is_control() {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
        out
    })
}

#[cfg(test)]
mod tests;
