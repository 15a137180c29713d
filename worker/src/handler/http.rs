//! Posts a job to a program that listens (an app beside the worker, or a service) and reads its verdict.
//! HTTP/1.1 only: there "was anything sent" has an answer, which decides whether an attempt is spent.
mod secret;
mod verdict;

use super::{Call, head};
use bytes::{Bytes, BytesMut};
use hmac::{Hmac, KeyInit, Mac};
use jiff::Timestamp;
use jobqueue::job::Job;
use jobqueue::outcome::{Failure, Outcome, Reason};
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use reqwest::{Certificate, Client, Identity, Response, StatusCode, Url};
use secret::Secret;
use sha2::Sha256;
use std::error::Error;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::timeout_at;

/// Read of an answer: more than a verdict needs, little enough to hold for every slot.
const ANSWER_MAX: usize = 64 * 1024;

/// Puma closes an idle connection after 20 s. Closing it first, ours is never the request that crosses
/// with its FIN.
const IDLE: Duration = Duration::from_secs(15);

/// A peer that has not accepted by then is away. Half of the timeout at most, so that it is always seen
/// as away and not as a job that took too long.
const CONNECT: Duration = Duration::from_secs(5);

/// How old what we know of a secret's file may be.
const SECRET_AGE: Duration = Duration::from_secs(10);

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const JOB_ID: HeaderName = HeaderName::from_static("x-job-id");
const JOB_ATTEMPT: HeaderName = HeaderName::from_static("x-job-attempt");
const TIMESTAMP: HeaderName = HeaderName::from_static("x-jobqueue-timestamp");
const SIGNATURE: HeaderName = HeaderName::from_static("x-jobqueue-signature");

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
    /// Holds a bearer token. Read again while running, so a rotation needs no restart.
    pub token_file: Option<PathBuf>,
    /// Holds a key to sign requests with. Read again while running.
    pub hmac_key_file: Option<PathBuf>,
    /// Trust these authorities instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// Our certificate, for a peer that asks for one; needs `key_file`.
    pub cert_file: Option<PathBuf>,
    /// The key of `cert_file`.
    pub key_file: Option<PathBuf>,
    /// Jobs that may run at once: as many connections are kept.
    pub concurrency: usize,
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

/// The handler that posts jobs.
#[derive(Debug)]
pub struct Http {
    client: Client,
    url: Url,
    timeout: Duration,
    token: Option<Secret>,
    hmac_key: Option<Secret>,
}

impl Http {
    /// A handler with these settings. The files of TLS are read now, those of secrets when needed.
    pub fn new(settings: &HttpSettings) -> Result<Self, HttpError> {
        let url = target(settings)?;
        let secret = |path: &Option<PathBuf>| path.clone().map(|path| Secret::new(path, SECRET_AGE));
        Ok(Self {
            client: client(settings, &url)?,
            url,
            timeout: settings.timeout,
            token: secret(&settings.token_file),
            hmac_key: secret(&settings.hmac_key_file),
        })
    }

    pub(super) async fn handle(&self, job: &Job, call: &Call) -> Outcome {
        let ends = call.ends_by(self.timeout);
        timeout_at(ends, self.post(job, call)).await.unwrap_or_else(|_| {
            let text = format!("no answer within {:?}", self.timeout);
            Outcome::Failed(Failure::new(Reason::Timeout, text))
        })
    }

    async fn post(&self, job: &Job, call: &Call) -> Outcome {
        let headers = match self.headers(job, call).await {
            Ok(headers) => headers,
            Err(reason) => return Outcome::HandlerUnavailable(reason),
        };
        let request = self.client.post(self.url.clone()).headers(headers).body(job.raw.clone());
        match request.send().await {
            Ok(response) => self.answer(response).await,
            Err(error) => lost(error),
        }
    }

    async fn headers(&self, job: &Job, call: &Call) -> Result<HeaderMap, String> {
        let mut headers = HeaderMap::with_capacity(8);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(JOB_ATTEMPT, HeaderValue::from(job.fields.retries.saturating_add(1)));
        let optional = [
            (JOB_ID, Some(&job.fields.id)),
            (TRACEPARENT, call.traceparent.as_ref()),
            (REQUEST_ID, call.request_id.as_ref()),
        ];
        for (name, value) in optional {
            // An id that no header can carry (a line break) still stands in the body.
            if let Some(Ok(value)) = value.map(|value| HeaderValue::from_bytes(value.as_bytes())) {
                headers.insert(name, value);
            }
        }
        if let Some(token) = &self.token {
            let token = token.read().await.map_err(|error| format!("token_file: {error}"))?;
            let mut value = HeaderValue::from_bytes(&[b"Bearer ", &token[..]].concat())
                .map_err(|_| "token_file: holds more than one line of text".to_owned())?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        if let Some(key) = &self.hmac_key {
            let key = key.read().await.map_err(|error| format!("hmac_key_file: {error}"))?;
            let timestamp = Timestamp::now().as_second();
            let signature = HeaderValue::from_str(&sign(&key, timestamp, &job.raw)?)
                .map_err(|error| format!("hmac_key_file: {error}"))?;
            headers.insert(TIMESTAMP, HeaderValue::from(timestamp));
            headers.insert(SIGNATURE, signature);
        }
        Ok(headers)
    }

    async fn answer(&self, mut response: Response) -> Outcome {
        let status = response.status();
        if status == StatusCode::SERVICE_UNAVAILABLE {
            return Outcome::HandlerUnavailable("answered 503".into());
        }
        if status == StatusCode::UNAUTHORIZED && (self.token.is_some() || self.hmac_key.is_some()) {
            // It never ran: a secret that was just rotated must not cost every job its attempts.
            for secret in self.token.iter().chain(&self.hmac_key) {
                secret.forget().await;
            }
            return Outcome::HandlerUnavailable("answered 401 to our token_file or hmac_key_file".into());
        }
        let (body, whole) = match read(&mut response).await {
            Ok(body) => body,
            Err(error) => return Outcome::HandlerDied(explain(error)),
        };
        if status.is_success() {
            return verdict::outcome(&body, whole);
        }
        let text = match head(&body) {
            text if text.is_empty() => format!("answered {}", status.as_u16()),
            text => format!("answered {}: {text}", status.as_u16()),
        };
        let failure = Failure::new(Reason::Handler, text);
        match retry_after(status, response.headers(), Timestamp::now()) {
            Some(delay) => Outcome::RetryIn(delay, failure),
            None => Outcome::Failed(failure),
        }
    }
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

fn client(settings: &HttpSettings, url: &Url) -> Result<Client, HttpError> {
    // Fails only when a provider is installed already: by us, since the tree has no other.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut builder = Client::builder()
        .http1_only()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .retry(reqwest::retry::never())
        .tcp_nodelay(true)
        .connect_timeout(CONNECT.min(settings.timeout / 2))
        .pool_idle_timeout(IDLE)
        .pool_max_idle_per_host(settings.concurrency.max(1))
        .user_agent(concat!("jobqueue-worker/", env!("CARGO_PKG_VERSION")));
    if let Some(path) = &settings.unix_socket {
        builder = builder.unix_socket(path.as_path());
    }
    if let Some(path) = &settings.ca_file {
        let bad = |rule: String| HttpError::Content { key: "ca_file", path: path.clone(), rule };
        let certificates =
            Certificate::from_pem_bundle(&contents("ca_file", path)?).map_err(|error| bad(explain(error)))?;
        if certificates.is_empty() {
            return Err(bad("holds no PEM certificate".into()));
        }
        builder = builder.tls_certs_only(certificates);
    } else if url.scheme() == "http" {
        // Plain HTTP needs no authorities, and a `scratch` image has none to load.
        builder = builder.tls_certs_only([]);
    }
    match (&settings.cert_file, &settings.key_file) {
        (Some(cert), Some(key)) => {
            let mut pem = contents("cert_file", cert)?;
            pem.push(b'\n');
            pem.extend(contents("key_file", key)?);
            let identity = Identity::from_pem(&pem).map_err(|error| HttpError::Content {
                key: "cert_file",
                path: cert.clone(),
                rule: format!("makes no pair with key_file: {}", explain(error)),
            })?;
            builder = builder.identity(identity);
        }
        (None, None) => {}
        _ => return Err(HttpError::Client("cert_file and key_file must be set together".into())),
    }
    builder.build().map_err(|error| HttpError::Client(explain(error)))
}

fn contents(key: &'static str, path: &Path) -> Result<Vec<u8>, HttpError> {
    std::fs::read(path).map_err(|source| HttpError::File { key, path: path.to_owned(), source })
}

/// `sha256=` and the hex of HMAC-SHA256 over the Unix time, a dot and the body: the time is signed too, so
/// a recorded request cannot be replayed later.
fn sign(key: &[u8], timestamp: i64, body: &[u8]) -> Result<String, String> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).map_err(|error| format!("hmac_key_file: {error}"))?;
    mac.update(timestamp.to_string().as_bytes());
    mac.update(b".");
    mac.update(body);
    let mut signature = String::from("sha256=");
    for byte in mac.finalize().into_bytes() {
        // Writing to a string cannot fail.
        let _ = write!(signature, "{byte:02x}");
    }
    Ok(signature)
}

/// The body up to [`ANSWER_MAX`], and whether that is all of it.
async fn read(response: &mut Response) -> Result<(Bytes, bool), reqwest::Error> {
    let mut body = BytesMut::new();
    while let Some(chunk) = response.chunk().await? {
        let room = ANSWER_MAX - body.len();
        body.extend_from_slice(&chunk[..chunk.len().min(room)]);
        if chunk.len() > room {
            return Ok((body.freeze(), false));
        }
    }
    Ok((body.freeze(), true))
}

/// What an error of the transport means for the job: the line is whether a byte of it was sent.
///
/// A connection the peer closed while it was idle is replaced by hyper before anything is written (and a
/// request that was queued on it is moved to the new one), so `Canceled` is what remains of "not sent".
fn lost(error: reqwest::Error) -> Outcome {
    let sent = !(error.is_connect() || error.is_builder() || cause(&error, hyper::Error::is_canceled));
    let not_http = cause(&error, hyper::Error::is_parse);
    let text = explain(error);
    match (sent, not_http) {
        (false, _) => Outcome::HandlerUnavailable(text),
        (true, true) => Outcome::Failed(Failure::new(Reason::Handler, format!("no HTTP answer: {text}"))),
        (true, false) => Outcome::HandlerDied(text),
    }
}

fn cause(error: &reqwest::Error, is: impl Fn(&hyper::Error) -> bool) -> bool {
    causes(error).filter_map(|cause| cause.downcast_ref::<hyper::Error>()).any(is)
}

/// The innermost cause says what happened; the outer ones repeat that a request failed.
fn explain(error: reqwest::Error) -> String {
    let error = error.without_url();
    causes(&error).last().map_or_else(|| error.to_string(), ToString::to_string)
}

fn causes(error: &reqwest::Error) -> impl Iterator<Item = &(dyn Error + 'static)> {
    std::iter::successors(error.source(), |&cause| cause.source())
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
