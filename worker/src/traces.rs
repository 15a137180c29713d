//! Traces over OTLP: spans `produce`, `consume` and `process` that join the trace a job carries, or
//! start one. Spans leave in batches from a thread of their own; a collector that is slow or gone costs
//! spans, never jobs. Switched off, every call is a look at an empty option.
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use axum::http::Uri;
use jobqueue::{job::Fields, outcome::Outcome};
use opentelemetry::{
    Context, KeyValue,
    trace::{
        Span as _, SpanContext, SpanId, SpanKind, Status, TraceContextExt, TraceFlags, TraceId, TraceState,
        Tracer as _, TracerProvider as _,
    },
};
use opentelemetry_otlp::{WithExportConfig, WithHttpConfig, WithTonicConfig, tonic_types::transport};
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    trace::{SdkTracer, SdkTracerProvider, Span, SpanData, SpanExporter},
};
use tokio::runtime::Handle;

use crate::logs::cut;

/// The `service.name` of every span.
pub const SERVICE_NAME: &str = "jobqueue-worker";

/// The port that belongs to OTLP over gRPC; any other means HTTP.
const GRPC_PORT: u16 = 4317;

/// One batch may take this long; meanwhile up to 2048 further spans wait, then they are dropped.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// What a shutdown may spend on the last batch.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// A collector that stays away is mentioned this often.
const WARN_INTERVAL: Duration = Duration::from_secs(60);

/// Ids are ours or a foreign producer's; a long one is cut rather than sent.
const MAX_ATTRIBUTE_BYTES: usize = 256;

/// Why tracing could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The endpoint is no URL we can send to.
    #[error(
        "observability.tracing.endpoint = {0:?}: must be grpc://HOST:PORT, http://HOST:PORT or https://HOST:PORT"
    )]
    Endpoint(String),
    /// The exporter refused its settings.
    #[error("observability.tracing.endpoint: {0}")]
    Exporter(#[from] opentelemetry_otlp::ExporterBuildError),
    /// The HTTP client could not be made.
    #[error("observability.tracing: {0}")]
    Client(#[from] reqwest::Error),
    /// Called outside the event loop.
    #[error("tracing needs a running event loop: {0}")]
    NoRuntime(#[from] tokio::runtime::TryCurrentError),
}

/// Makes spans, or nothing when switched off. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Tracer(Option<Arc<On>>);

#[derive(Debug)]
struct On {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
}

/// The provider's own drop waits five seconds for the last batch, on a thread that this batch may need:
/// whoever wants it sent calls [`Tracer::shutdown`].
impl Drop for On {
    fn drop(&mut self) {
        // An error means that it was shut down already.
        let _ = self.provider.shutdown_with_timeout(Duration::ZERO);
    }
}

/// One span in progress; dropped without [`JobSpan::end`] its outcome is `abandoned`.
#[derive(Debug)]
#[must_use = "a span ends when it is dropped"]
pub struct JobSpan(Option<Box<Span>>);

/// What a job carries to be found in its trace again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ids {
    /// 32 hex digits.
    pub trace_id: String,
    /// 16 hex digits.
    pub span_id: String,
}

impl Tracer {
    /// Makes no spans.
    pub const fn off() -> Self {
        Self(None)
    }

    /// Exports to an OTLP collector: `grpc://HOST:PORT`, or `http(s)://HOST:4317`, speaks gRPC; every
    /// other `http(s)://` URL is OTLP over HTTP, where a missing path means `/v1/traces`. The collector
    /// need not be there yet.
    pub fn start(endpoint: &str) -> Result<Self, TraceError> {
        let runtime = Handle::try_current()?;
        let exporter = exporter(&Endpoint::parse(endpoint)?)?;
        let exporter = Exporter { otlp: Arc::new(exporter), runtime, lost: Mutex::default() };
        let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
        let provider = SdkTracerProvider::builder()
            .with_resource(
                Resource::builder().with_service_name(SERVICE_NAME).with_attribute(version).build(),
            )
            .with_batch_exporter(exporter)
            .build();
        let tracer = provider.tracer(SERVICE_NAME);
        Ok(Self(Some(Arc::new(On { provider, tracer }))))
    }

    /// Whether spans are made at all.
    pub const fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// A job is being made and pushed: its [`JobSpan::ids`] belong into the job.
    pub fn produce(&self, queue: &str, job_id: &str) -> JobSpan {
        self.span("produce", SpanKind::Producer, Duration::ZERO, queue, job_id, Context::new)
    }

    /// A job was reserved this long ago, and starts now; the span is the time between.
    pub fn consume(&self, job: &Fields, queue: &str, waited: Duration) -> JobSpan {
        self.span("consume", SpanKind::Consumer, waited, queue, &job.id, || {
            remote_parent(job).map(under).unwrap_or_default()
        })
    }

    /// A job runs. It belongs to the span that made the job; a job without one to that of its
    /// `consumed`, so that both share a trace.
    pub fn process(&self, job: &Fields, queue: &str, consumed: &JobSpan) -> JobSpan {
        self.span("process", SpanKind::Internal, Duration::ZERO, queue, &job.id, || {
            remote_parent(job).or_else(|| consumed.context().cloned()).map(under).unwrap_or_default()
        })
    }

    /// Sends what was not sent yet, for two seconds at most.
    pub async fn shutdown(&self) {
        let Some(on) = self.0.clone() else { return };
        // It blocks, and what it waits for runs on this event loop.
        let flush = tokio::task::spawn_blocking(move || on.provider.shutdown_with_timeout(FLUSH_TIMEOUT));
        match flush.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "Lost the last spans"),
            Err(error) => tracing::warn!(%error, "Lost the last spans"),
        }
    }

    fn span(
        &self,
        name: &'static str,
        kind: SpanKind,
        since: Duration,
        queue: &str,
        job_id: &str,
        parent: impl FnOnce() -> Context,
    ) -> JobSpan {
        let Some(on) = &self.0 else { return JobSpan(None) };
        let attributes = [attribute("queue", queue), attribute("job_id", job_id)];
        let began = SystemTime::now().checked_sub(since).unwrap_or(SystemTime::UNIX_EPOCH);
        let builder =
            on.tracer.span_builder(name).with_kind(kind).with_start_time(began).with_attributes(attributes);
        JobSpan(Some(Box::new(on.tracer.build_with_context(builder, &parent()))))
    }
}

impl JobSpan {
    /// What to write into a job; nothing when tracing is off or this span is not sampled, so that the
    /// worker decides anew.
    pub fn ids(&self) -> Option<Ids> {
        self.context().filter(|context| context.is_sampled()).map(|context| Ids {
            trace_id: context.trace_id().to_string(),
            span_id: context.span_id().to_string(),
        })
    }

    /// The W3C header that lets a handler join the trace.
    pub fn traceparent(&self) -> Option<String> {
        self.context().map(traceparent)
    }

    /// Ends the span; `outcome` is one of [`outcome_word`] or a word as short and as bounded.
    pub fn end(mut self, outcome: &'static str) {
        self.finish(outcome);
    }

    fn finish(&mut self, outcome: &'static str) {
        if let Some(mut span) = self.0.take() {
            span.set_attribute(KeyValue::new("outcome", outcome));
            if matches!(outcome, "failed" | "killed" | "interrupted" | "unavailable") {
                // The word again, not the error: that may quote the job's data.
                span.set_status(Status::error(outcome));
            }
            span.end();
        }
    }

    fn context(&self) -> Option<&SpanContext> {
        self.0.as_ref().map(|span| span.span_context())
    }
}

impl Drop for JobSpan {
    fn drop(&mut self) {
        self.finish("abandoned");
    }
}

/// The word for an outcome in spans.
pub const fn outcome_word(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Done | Outcome::DoneWith(_) => "done",
        Outcome::Failed(_) | Outcome::RetryIn(..) => "failed",
        Outcome::Discard(_) => "discarded",
        Outcome::Kill(_) => "killed",
        Outcome::HandlerDied(_) => "interrupted",
        Outcome::HandlerUnavailable(_) | Outcome::PutOff(..) => "unavailable",
        Outcome::Released => "released",
    }
}

/// The header for a job's own trace: what a handler gets while tracing is off here.
pub fn traceparent_of(job: &Fields) -> Option<String> {
    remote_parent(job).as_ref().map(traceparent)
}

fn traceparent(context: &SpanContext) -> String {
    let flags = context.trace_flags().to_u8();
    format!("00-{}-{}-{flags:02x}", context.trace_id(), context.span_id())
}

/// The span that made the job, if it carries one. A job has no place for the sampling flag: carrying
/// ids at all means that its producer sampled it.
fn remote_parent(job: &Fields) -> Option<SpanContext> {
    // The library's parser takes signs and any length.
    let is_hex = |id: &str, digits| id.len() == digits && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !is_hex(&job.trace_id, 32) || !is_hex(&job.span_id, 16) {
        return None;
    }
    let trace_id = TraceId::from_hex(&job.trace_id).ok()?;
    let span_id = SpanId::from_hex(&job.span_id).ok()?;
    let context = SpanContext::new(trace_id, span_id, TraceFlags::SAMPLED, true, TraceState::NONE);
    context.is_valid().then_some(context)
}

fn under(parent: SpanContext) -> Context {
    Context::new().with_remote_span_context(parent)
}

fn attribute(name: &'static str, value: &str) -> KeyValue {
    KeyValue::new(name, cut(value, MAX_ATTRIBUTE_BYTES).to_owned())
}

/// Where spans go.
#[derive(Debug, PartialEq, Eq)]
enum Endpoint {
    Grpc(String),
    Http(String),
}

impl Endpoint {
    fn parse(endpoint: &str) -> Result<Self, TraceError> {
        let bad = || TraceError::Endpoint(jobqueue::config::Url::from(endpoint.to_owned()).to_string());
        let (scheme, rest) = endpoint.split_once("://").ok_or_else(bad)?;
        let (scheme, grpc) = match scheme {
            "grpc" => ("http", true),
            "grpcs" => ("https", true),
            "http" | "https" => (scheme, false),
            _ => return Err(bad()),
        };
        let uri: Uri = format!("{scheme}://{rest}").parse().map_err(|_| bad())?;
        let authority = uri.authority().filter(|authority| !authority.host().is_empty()).ok_or_else(bad)?;
        if grpc || uri.port_u16() == Some(GRPC_PORT) {
            return Ok(Self::Grpc(format!("{scheme}://{authority}")));
        }
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let path = if path == "/" { "/v1/traces" } else { path };
        Ok(Self::Http(format!("{scheme}://{authority}{path}")))
    }
}

fn exporter(endpoint: &Endpoint) -> Result<opentelemetry_otlp::SpanExporter, TraceError> {
    // An error means that a provider is in place already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let builder = opentelemetry_otlp::SpanExporter::builder();
    Ok(match endpoint {
        Endpoint::Grpc(url) => {
            let builder = builder.with_tonic().with_endpoint(url).with_timeout(EXPORT_TIMEOUT);
            if url.starts_with("https://") {
                builder.with_tls_config(transport::ClientTlsConfig::new().with_enabled_roots()).build()?
            } else {
                builder.build()?
            }
        }
        Endpoint::Http(url) => {
            let client = reqwest::Client::builder().timeout(EXPORT_TIMEOUT).build()?;
            builder
                .with_http()
                .with_http_client(client)
                .with_endpoint(url)
                .with_timeout(EXPORT_TIMEOUT)
                .build()?
        }
    })
}

/// Runs the OTLP exporter on the event loop (the batch thread has none, and the HTTP client needs one),
/// bounds it, and keeps its failures from filling the log.
#[derive(Debug)]
struct Exporter {
    otlp: Arc<opentelemetry_otlp::SpanExporter>,
    runtime: Handle,
    lost: Mutex<Lost>,
}

/// Spans lost since the log last mentioned it.
#[derive(Debug, Default)]
struct Lost {
    spans: usize,
    warned: Option<Instant>,
}

impl SpanExporter for Exporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        let otlp = Arc::clone(&self.otlp);
        let export = async move { tokio::time::timeout(EXPORT_TIMEOUT, otlp.export(batch)).await };
        let failure = match self.runtime.spawn(export).await {
            Ok(Ok(Ok(()))) => None,
            Ok(Ok(Err(error))) => Some(error.to_string()),
            Ok(Err(_)) => Some(format!("no answer within {EXPORT_TIMEOUT:?}")),
            // The event loop ended: so does the process.
            Err(_) => return Ok(()),
        };
        self.report(spans, failure.as_deref());
        // It was reported; the SDK would do so once more for every batch.
        Ok(())
    }

    fn set_resource(&mut self, resource: &Resource) {
        // Called while the provider is built, before anyone else could hold it.
        if let Some(otlp) = Arc::get_mut(&mut self.otlp) {
            otlp.set_resource(resource);
        }
    }
}

impl Exporter {
    fn report(&self, spans: usize, failure: Option<&str>) {
        let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(error) = failure else {
            if lost.warned.take().is_some() {
                tracing::info!(count = lost.spans, "Exported spans again");
                lost.spans = 0;
            }
            return;
        };
        lost.spans += spans;
        if lost.warned.is_none_or(|at| at.elapsed() >= WARN_INTERVAL) {
            tracing::warn!(error, count = lost.spans, "Lost spans");
            lost.spans = 0;
            lost.warned = Some(Instant::now());
        }
    }
}

#[cfg(test)]
mod tests;
