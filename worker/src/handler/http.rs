//! Posts a job to a program that listens (an app beside the worker, or a service) and reads its verdict.
//! HTTP/1.1 only: there "was anything sent" has an answer, which decides whether an attempt is spent.
mod connections;
mod secret;
mod verdict;

use super::{ANSWER_MAX, Call, head};
use base64::Engine as _;
use bytes::{Bytes, BytesMut};
use connections::{Answer, Connections, JobRequest, Lost};
use hmac::{Hmac, KeyInit, Mac};
use http_body_util::{BodyExt as _, Full};
use hyper::header::{
    AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER, USER_AGENT,
};
use hyper::{Method, Request, StatusCode};
use jiff::Timestamp;
use jobqueue::job::Job;
use jobqueue::outcome::{Failure, Outcome, Reason};
use jobqueue::protocol::record::Record;
use reqwest::Url;
use secret::Secret;
use sha2::Sha256;
use std::error::Error;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// Puma closes an idle connection after 20 s. Closing it first, ours is never the request that crosses
/// with its FIN.
const IDLE: Duration = Duration::from_secs(15);

/// A peer that has not accepted by then is away. Half of the timeout at most, so that it is always seen
/// as away and not as a job that took too long.
const CONNECT: Duration = Duration::from_secs(5);

/// Threads become free at any moment: a whole second, the least that the header can say, is a long time.
const BUSY_LEAST: Duration = Duration::from_millis(50);
/// Nor is it left alone for longer than this, whatever it asks for.
const BUSY_MOST: Duration = Duration::from_secs(1);

/// How long the body of an answer that says all by its status may keep us.
const SKIPPING: Duration = Duration::from_millis(100);

/// A program that was told to stop jobs is asked this often whether it has: most end at once.
const STILL_RUNNING: Duration = Duration::from_millis(50);

/// How old what we know of a file (a secret, a certificate) may be.
const SECRET_AGE: Duration = Duration::from_secs(10);

/// As many as a request has that is not signed. A map keeps its room while the job runs, and one more is room for 24.
const FEW_HEADERS: usize = 12;

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const JOB_ID: HeaderName = HeaderName::from_static("x-job-id");
const JOB_QUEUE: HeaderName = HeaderName::from_static("x-job-queue");
const JOB_ATTEMPT: HeaderName = HeaderName::from_static("x-job-attempt");
const LAST_ATTEMPT: HeaderName = HeaderName::from_static("x-job-last-attempt");
const JOB_TIMEOUT: HeaderName = HeaderName::from_static("x-job-timeout");
const TIMESTAMP: HeaderName = HeaderName::from_static("x-jobqueue-timestamp");
const SIGNATURE: HeaderName = HeaderName::from_static("x-jobqueue-signature");
const HEADERS_SIGNATURE: HeaderName = HeaderName::from_static("x-jobqueue-headers-signature");

/// `worker.handler.http`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpSettings {
    /// Where the program listens. May be empty with `unix_socket`.
    pub url: String,
    /// Connect to this socket instead of the URL's host.
    pub unix_socket: Option<PathBuf>,
    /// Appended to the URL.
    pub path: String,
    /// From the first byte sent to the last byte received, connecting included.
    pub timeout: Duration,
    /// Holds bearer tokens, one a line, the first of which is sent. Read again while running, so a rotation needs no
    /// restart.
    pub token_file: Option<PathBuf>,
    /// Holds a key to sign requests with. Read again while running.
    pub hmac_key_file: Option<PathBuf>,
    /// Trust these authorities instead of the system's. The files of TLS are read again while running.
    pub ca_file: Option<PathBuf>,
    /// Our certificate, for a peer that asks for one; needs `key_file`.
    pub cert_file: Option<PathBuf>,
    /// The key of `cert_file`.
    pub key_file: Option<PathBuf>,
    /// Jobs that may run at once: as many connections are kept.
    pub concurrency: usize,
    /// What the answer says under `result` is the job's result.
    pub keeps_result: bool,
    /// The program is Sidekiq's sidecar: it always says what became of a job, so that whatever does not is something else
    /// or broken; and it can be told to stop jobs, beside `path`.
    pub sidecar: bool,
}

impl Default for HttpSettings {
    fn default() -> Self {
        Self {
            url: String::new(),
            unix_socket: None,
            path: "/jobs/execute".into(),
            timeout: Duration::from_secs(60),
            token_file: None,
            hmac_key_file: None,
            ca_file: None,
            cert_file: None,
            key_file: None,
            concurrency: 1,
            keeps_result: false,
            sidecar: false,
        }
    }
}

/// Why no handler could be made of the settings.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// Not an address to post to.
    #[error("worker.handler.http.url: {value:?}: {rule}")]
    Url {
        /// What was given.
        value: String,
        /// The rule it breaks.
        rule: String,
    },
    /// A file that cannot be read.
    #[error("worker.handler.http.{key}: {path}: {source}")]
    File {
        /// The key that names it.
        key: &'static str,
        /// What was given.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// A file that does not hold what its key says.
    #[error("worker.handler.http.{key}: {path}: {rule}")]
    Content {
        /// The key that names it.
        key: &'static str,
        /// What was given.
        path: PathBuf,
        /// The rule it breaks.
        rule: String,
    },
    /// Anything else that keeps a client from being made.
    #[error("worker.handler.http: {0}")]
    Client(String),
}

impl HttpError {
    /// The key whose value is wrong, for a log line.
    fn key(&self) -> &'static str {
        match self {
            Self::Url { .. } => "url",
            Self::File { key, .. } | Self::Content { key, .. } => key,
            Self::Client(_) => "http",
        }
    }

    /// Why, without the path, which no log line names.
    fn reason(&self) -> String {
        match self {
            Self::Url { rule, .. } | Self::Content { rule, .. } | Self::Client(rule) => rule.clone(),
            Self::File { source, .. } => source.to_string(),
        }
    }
}

/// The handler that posts jobs.
#[derive(Debug)]
pub struct Http {
    connections: Connections,
    /// The path and the query.
    path: hyper::Uri,
    /// Where the program is told of jobs that are given up: beside it.
    death: hyper::Uri,
    /// Where it is told to stop jobs, if it knows how: beside it too.
    interrupt: Option<hyper::Uri>,
    /// The same for every job.
    fixed: HeaderMap,
    timeout: Duration,
    token: Option<Secret>,
    hmac_key: Option<Secret>,
    keeps_result: bool,
    sidecar: bool,
    /// The last answer was a 401: that is said once, not for every job.
    unauthorized: AtomicBool,
}

impl Http {
    /// A handler with these settings. The files of TLS are read now and again while running, those of secrets when needed.
    pub fn new(settings: &HttpSettings) -> Result<Self, HttpError> {
        let url = target(settings)?;
        let secret = |path: &Option<PathBuf>| path.clone().map(|path| Secret::new(path, SECRET_AGE));
        let beside = |name: &str| {
            origin(&url.join(name).map_err(|error| HttpError::Client(format!("path: {error}")))?)
        };
        Ok(Self {
            connections: Connections::new(settings, &url)?,
            path: origin(&url)?,
            death: beside("death")?,
            interrupt: settings.sidecar.then(|| beside("interrupt")).transpose()?,
            fixed: fixed_headers(&url)?,
            timeout: settings.timeout,
            token: secret(&settings.token_file),
            hmac_key: secret(&settings.hmac_key_file),
            keeps_result: settings.keeps_result,
            sidecar: settings.sidecar,
            unauthorized: AtomicBool::new(false),
        })
    }

    pub(super) async fn handle(&self, job: &Job, call: &Call) -> Outcome {
        self.ask(&self.path, job, call).await
    }

    /// Tells the program of a job that is given up without its own word.
    pub(super) async fn bury(&self, job: &Job, call: &Call) -> Outcome {
        self.ask(&self.death, job, call).await
    }

    /// Has the program stop these jobs, and asks again until none of them runs: a connection that we close stops nothing
    /// there, Puma does not notice. Answers whether that was reached; a program that does not know the request (an older
    /// gem) or is away is not asked again. Of a job without a name nobody knows.
    pub(super) async fn stop(&self, jobs: &[Arc<Job>]) -> bool {
        let Some(path) = self.interrupt.as_ref().filter(|_| !jobs.is_empty()) else { return false };
        let order = order(jobs, false);
        while let Some(running) = self.running_after(path, &order).await {
            if running == 0 {
                return jobs.iter().all(|job| is_named(job));
            }
            tokio::time::sleep(STILL_RUNNING).await;
        }
        false
    }

    /// Tells the program that these jobs will be stopped: those that look (Sidekiq's `IterableJob`) end at a good place.
    pub(super) async fn warn(&self, jobs: &[Arc<Job>]) {
        if let Some(path) = self.interrupt.as_ref().filter(|_| !jobs.is_empty()) {
            let _ = self.running_after(path, &order(jobs, true)).await;
        }
    }

    /// How many jobs of an order to stop still run; `None` when the program does not say.
    async fn running_after(&self, path: &hyper::Uri, order: &Job) -> Option<u64> {
        let call = Call::default();
        let request = self.request(path, order, &call, call.ends_by(self.timeout)).await.ok()?;
        let (mut answer, connection) = self.connections.send(request).await.ok()?;
        let (status, (body, whole)) = (answer.status(), read(&mut answer).await.ok()?);
        if whole {
            self.connections.keep(connection);
        }
        let body: serde_json::Value = serde_json::from_slice(&body).ok()?;
        body["running"].as_u64().filter(|_| status.is_success())
    }

    async fn ask(&self, path: &hyper::Uri, job: &Job, call: &Call) -> Outcome {
        // How long a busy program is asked again: as long as it would have had for the job.
        let patience = call.ends_by(self.timeout);
        loop {
            let ends = call.ends_by(self.timeout);
            let said = timeout_at(ends, self.post(path, job, call, ends)).await.unwrap_or_else(|_| {
                let text = format!("no answer within {:?}", self.timeout);
                Said::Outcome(Outcome::Failed(Failure::new(Reason::Timeout, text)))
            });
            match said {
                Said::Outcome(outcome) => return outcome,
                Said::Busy(wait) => {
                    // Its slot waits with the job: given back, the job would be fetched again at once, by us or by
                    // another that the same program turns away.
                    let wait = wait.clamp(BUSY_LEAST, BUSY_MOST).mul_f64(fastrand::f64().mul_add(0.5, 0.75));
                    if Instant::now() + wait >= patience {
                        return Outcome::HandlerUnavailable("answered 503, busy for too long".into());
                    }
                    tokio::time::sleep(wait).await;
                }
            }
        }
    }

    async fn post(&self, path: &hyper::Uri, job: &Job, call: &Call, ends: Instant) -> Said {
        let request = match self.request(path, job, call, ends).await {
            Ok(request) => request,
            Err(reason) => return Said::Outcome(Outcome::HandlerUnavailable(reason)),
        };
        match self.connections.send(request).await {
            Ok((answer, connection)) => {
                let busy = busy(answer.status(), answer.headers());
                let (outcome, whole) = self.answer(answer).await;
                if whole {
                    self.connections.keep(connection);
                }
                busy.map_or(Said::Outcome(outcome), Said::Busy)
            }
            Err(lost) => Said::Outcome(without_answer(&lost, self.silent())),
        }
    }

    async fn request(
        &self,
        path: &hyper::Uri,
        job: &Job,
        call: &Call,
        ends: Instant,
    ) -> Result<JobRequest, String> {
        let headers = self.headers(path, job, call, ends).await?;
        let mut request = Request::new(Full::new(job.raw.clone()));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = path.clone();
        *request.headers_mut() = headers;
        Ok(request)
    }

    async fn headers(
        &self,
        path: &hyper::Uri,
        job: &Job,
        call: &Call,
        ends: Instant,
    ) -> Result<HeaderMap, String> {
        let mut headers = HeaderMap::with_capacity(FEW_HEADERS);
        headers.extend(self.fixed.clone());
        headers.insert(JOB_ATTEMPT, HeaderValue::from(job.fields.retries.saturating_add(1)));
        if let Some(last) = call.last_attempt {
            headers.insert(LAST_ATTEMPT, HeaderValue::from_static(if last { "true" } else { "false" }));
        }
        // How long we wait: a program that goes on after that knows that nobody does.
        let left = ends.saturating_duration_since(Instant::now());
        if let Ok(left) = HeaderValue::from_str(&format!("{:.3}", left.as_secs_f64())) {
            headers.insert(JOB_TIMEOUT, left);
        }
        let optional = [
            (JOB_ID, Some(job.fields.id.as_str())),
            (JOB_QUEUE, Some(&*call.queue).filter(|queue| !queue.is_empty())),
            (TRACEPARENT, call.traceparent.as_deref()),
            (REQUEST_ID, call.request_id.as_deref()),
        ];
        for (name, value) in optional {
            // An id that no header can carry (a line break) still stands in the body.
            if let Some(Ok(value)) = value.map(|value| HeaderValue::from_bytes(value.as_bytes())) {
                headers.insert(name, value);
            }
        }
        if let Some(token) = &self.token {
            let token = token.read().await.map_err(|error| format!("token_file: {error}"))?;
            let mut value = HeaderValue::from_bytes(&[b"Bearer ", first_line(&token)].concat())
                .map_err(|_| "token_file: its first line is no text that a header can carry".to_owned())?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        if let Some(key) = &self.hmac_key {
            let key = key.read().await.map_err(|error| format!("hmac_key_file: {error}"))?;
            let timestamp = Timestamp::now().as_second();
            let signature = sign(&key, &[format!("{timestamp}.{path}.").as_bytes(), &job.raw])?;
            // What a job's headers decide is signed with it, in a header of its own: who knows only the other
            // signature finds it as it was.
            let word = |name| headers.get(&name).map_or(&b""[..], HeaderValue::as_bytes);
            let parts = [signature.as_bytes(), b".", word(LAST_ATTEMPT), b".", word(JOB_TIMEOUT)];
            let of_headers = sign(&key, &parts)?;
            headers.insert(TIMESTAMP, HeaderValue::from(timestamp));
            headers.insert(SIGNATURE, signature);
            headers.insert(HEADERS_SIGNATURE, of_headers);
        }
        Ok(headers)
    }

    /// What the answer means, and whether it was read to its end: then its connection can be used again.
    async fn answer(&self, mut answer: Answer) -> (Outcome, bool) {
        let status = answer.status();
        if status == StatusCode::SERVICE_UNAVAILABLE {
            return (Outcome::HandlerUnavailable("answered 503".into()), skip(&mut answer).await);
        }
        if status == StatusCode::UNAUTHORIZED {
            return (self.unauthorized().await, skip(&mut answer).await);
        }
        self.unauthorized.store(false, Ordering::Relaxed);
        let (body, whole) = match read(&mut answer).await {
            Ok(body) => body,
            Err(error) => return (Outcome::HandlerDied(explain(&error)), false),
        };
        if status.is_success() {
            return (verdict::outcome(&body, whole, self.keeps_result, self.silent()), whole);
        }
        let text = match head(&body) {
            text if text.is_empty() => format!("answered {}", status.as_u16()),
            text => format!("answered {}: {text}", status.as_u16()),
        };
        let spoken = verdict::is_about_the_job(status, &body);
        let reason = if spoken { Reason::Handler } else { self.silent() };
        let failure = Failure::new(reason, text);
        let outcome = match retry_after(status, answer.headers(), Timestamp::now()) {
            Some(delay) => Outcome::RetryIn(delay, failure),
            None => Outcome::Failed(failure),
        };
        (outcome, whole)
    }
}

impl Http {
    /// Why a job failed whose answer does not say what became of it. Where any program may answer, that is its way to say
    /// that the job failed.
    fn silent(&self) -> Reason {
        if self.sidecar { Reason::NoVerdict } else { Reason::Handler }
    }

    /// A 401: it never ran, so a secret that was just rotated, or forgotten on one side, costs no job its attempts.
    async fn unauthorized(&self) -> Outcome {
        for secret in self.token.iter().chain(&self.hmac_key) {
            secret.forget().await;
        }
        let text = match (&self.token, &self.hmac_key) {
            (None, None) => "answered 401: set worker.handler.http.token_file or hmac_key_file to its secret",
            (Some(_), _) => "answered 401: worker.handler.http.token_file must hold one of its tokens",
            (None, Some(_)) => {
                "answered 401: worker.handler.http.hmac_key_file must hold one of its keys, and both clocks agree"
            }
        };
        if !self.unauthorized.swap(true, Ordering::Relaxed) {
            tracing::warn!(error = text, "Application refused us, its jobs wait");
        }
        Outcome::HandlerUnavailable(text.into())
    }
}

/// Whether the program certainly knows a job by the name that we have for it: what is no text may be written otherwise in
/// Ruby.
fn is_named(job: &Job) -> bool {
    Record::read(&job.raw).and_then(|job| job.text("jid")).is_some_and(|name| !name.is_empty())
}

/// What the program is told to stop, as the body of a request.
fn order(jobs: &[Arc<Job>], gently: bool) -> Job {
    let ids: Vec<_> = jobs.iter().map(|job| job.fields.id.as_str()).filter(|id| !id.is_empty()).collect();
    let raw = serde_json::json!({ "jids": ids, "gently": gently }).to_string().into();
    Job { raw, fields: jobqueue::job::Fields::default() }
}

/// What one request came to.
enum Said {
    /// How the run ended.
    Outcome(Outcome),
    /// It never began: every thread of the program has a job. Ask again after this time.
    Busy(Duration),
}

/// A 503 that says when to come again: the program is there, and full. Without that it may be anything.
fn busy(status: StatusCode, headers: &HeaderMap) -> Option<Duration> {
    if status != StatusCode::SERVICE_UNAVAILABLE {
        return None;
    }
    headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok().map(Duration::from_secs)
}

fn target(settings: &HttpSettings) -> Result<Url, HttpError> {
    let bad = |rule: &str| HttpError::Url {
        value: jobqueue::config::Url::from(settings.url.clone()).to_string(),
        rule: rule.to_owned(),
    };
    let base = match (settings.url.as_str(), &settings.unix_socket) {
        ("", Some(_)) => "http://localhost",
        ("", None) => return Err(bad("must be set when unix_socket is not")),
        (url, _) => url,
    };
    // Without the path first: a URL parser takes the `jobs` of `http:///jobs` for the host.
    let parse = |url: &str| Url::parse(url).map_err(|error| bad(&error.to_string()));
    if !matches!(parse(base)?.scheme(), "http" | "https") {
        return Err(bad("must begin with http:// or https://"));
    }
    let slash = if settings.path.is_empty() || settings.path.starts_with('/') { "" } else { "/" };
    parse(&format!("{}{slash}{}", base.trim_end_matches('/'), settings.path))
}

/// The path and the query of a URL: all that a request line holds.
fn origin(url: &Url) -> Result<hyper::Uri, HttpError> {
    let query = url.query().map(|query| format!("?{query}")).unwrap_or_default();
    let path = format!("{}{query}", url.path());
    path.parse().map_err(|error| HttpError::Client(format!("path: {error}")))
}

/// What is said with every job: whose host, what it is, who asks; and the URL's user, if it names one.
fn fixed_headers(url: &Url) -> Result<HeaderMap, HttpError> {
    let host = url.host_str().unwrap_or("localhost");
    let host = url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"));
    let host = HeaderValue::try_from(host).map_err(|error| HttpError::Client(format!("host: {error}")))?;
    let mut headers = HeaderMap::from_iter([
        (HOST, host),
        (CONTENT_TYPE, HeaderValue::from_static("application/json")),
        (USER_AGENT, HeaderValue::from_static(concat!("jobqueue-worker/", env!("CARGO_PKG_VERSION")))),
    ]);
    if !url.username().is_empty() || url.password().is_some() {
        let decode = |text: &str| jobqueue::engine::decoded(text);
        let pair = format!("{}:{}", decode(url.username()), decode(url.password().unwrap_or_default()));
        let value = format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(pair));
        let mut value =
            HeaderValue::try_from(value).map_err(|error| HttpError::Client(format!("user: {error}")))?;
        value.set_sensitive(true);
        headers.insert(AUTHORIZATION, value);
    }
    Ok(headers)
}

/// The token that is sent, of a file with one a line. In a pod the application beside us reads the same file and accepts
/// each of them: a new token is added as the last line, and is sent once those before it are removed. (A key to sign with
/// may be any bytes, also line breaks, and is the whole file.)
fn first_line(tokens: &[u8]) -> &[u8] {
    let mut lines = tokens.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    lines.find(|line| !line.is_empty()).unwrap_or_default()
}

/// `sha256=` and the hex of HMAC-SHA256 over these parts. Of a request they are the Unix time, the path (with its query)
/// and the body, with dots between: a recorded one can be replayed neither later nor elsewhere (a job's end as a job).
fn sign(key: &[u8], parts: &[&[u8]]) -> Result<HeaderValue, String> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).map_err(|error| format!("hmac_key_file: {error}"))?;
    for part in parts {
        mac.update(part);
    }
    let mut signature = String::from("sha256=");
    for byte in mac.finalize().into_bytes() {
        // Writing to a string cannot fail.
        let _ = write!(signature, "{byte:02x}");
    }
    HeaderValue::from_str(&signature).map_err(|error| format!("hmac_key_file: {error}"))
}

/// The body up to [`ANSWER_MAX`], and whether that is all of it.
async fn read(answer: &mut Answer) -> Result<(Bytes, bool), hyper::Error> {
    let mut body = BytesMut::new();
    while let Some(frame) = answer.body_mut().frame().await {
        // What is no data is a trailer, of which we know none.
        let Ok(chunk) = frame?.into_data() else { continue };
        let room = ANSWER_MAX - body.len();
        body.extend_from_slice(&chunk[..chunk.len().min(room)]);
        if chunk.len() > room {
            return Ok((body.freeze(), false));
        }
    }
    Ok((body.freeze(), true))
}

/// A body that nobody wants is read for the sake of its connection, if it is there at once; answers whether it was.
async fn skip(answer: &mut Answer) -> bool {
    matches!(tokio::time::timeout(SKIPPING, read(answer)).await, Ok(Ok((_, true))))
}

/// What an error of the transport means for the job: the line is whether a byte of it was sent.
fn without_answer(lost: &Lost, silent: Reason) -> Outcome {
    match lost {
        Lost::Unsent(text) => Outcome::HandlerUnavailable(text.clone()),
        Lost::Sent(error) if error.is_canceled() => Outcome::HandlerUnavailable(explain(error)),
        Lost::Sent(error) if error.is_parse() => {
            Outcome::Failed(Failure::new(silent, format!("no HTTP answer: {}", explain(error))))
        }
        Lost::Sent(error) => Outcome::HandlerDied(explain(error)),
    }
}

/// The innermost cause says what happened; the outer ones repeat that a request failed.
fn explain(error: &hyper::Error) -> String {
    let causes = std::iter::successors(error.source(), |&cause| cause.source());
    causes.last().map_or_else(|| error.to_string(), ToString::to_string)
}

/// The wait a 429 asks for, as seconds or as a date.
fn retry_after(status: StatusCode, headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    if status != StatusCode::TOO_MANY_REQUESTS {
        return None;
    }
    let value = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = value.parse::<u64>() {
        return Some(verdict::bounded(Duration::from_secs(seconds)));
    }
    let at = jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(value).ok()?;
    Some(verdict::bounded(Duration::try_from(at.duration_since(now)).unwrap_or(Duration::ZERO)))
}

#[cfg(test)]
mod tests;
