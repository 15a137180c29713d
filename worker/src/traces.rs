//! Traces over OTLP: spans `produce`, `consume` and `process` that join the trace a job carries, or
//! start one. Spans leave in batches from a thread of their own; a collector that is slow or gone costs
//! spans, never jobs. Switched off, every call is a look at an empty option.
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
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
        self.span("produce", SpanKind::Producer, queue, job_id, Context::new)
    }

    /// A job was reserved; the span ends when it got a slot, or was given back.
    pub fn consume(&self, job: &Fields, queue: &str) -> JobSpan {
        self.span("consume", SpanKind::Consumer, queue, &job.id, || {
            remote_parent(job).map(under).unwrap_or_default()
        })
    }

    /// A job runs. It belongs to the span that made the job; a job without one to that of its
    /// `consumed`, so that both share a trace.
    pub fn process(&self, job: &Fields, queue: &str, consumed: &JobSpan) -> JobSpan {
        self.span("process", SpanKind::Internal, queue, &job.id, || {
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
        queue: &str,
        job_id: &str,
        parent: impl FnOnce() -> Context,
    ) -> JobSpan {
        let Some(on) = &self.0 else { return JobSpan(None) };
        let attributes = [attribute("queue", queue), attribute("job_id", job_id)];
        let builder = on.tracer.span_builder(name).with_kind(kind).with_attributes(attributes);
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
        Outcome::Done => "done",
        Outcome::Failed(_) | Outcome::RetryIn(..) => "failed",
        Outcome::Discard => "discarded",
        Outcome::Kill(_) => "killed",
        Outcome::HandlerDied(_) => "interrupted",
        Outcome::HandlerUnavailable(_) => "unavailable",
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
mod tests {
    use axum::{
        Router,
        body::{Body, Bytes},
        extract::State,
        http::HeaderMap,
        response::Response,
        routing::post,
    };
    use http_body_util::{BodyExt as _, Full};
    use opentelemetry_proto::tonic::{
        collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse},
        common::v1::any_value::Value,
        trace::v1::Span as Received,
    };
    use prost::Message as _;
    use tokio::{net::TcpListener, sync::mpsc};

    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const SPAN: &str = "00f067aa0ba902b7";

    /// A collector: what it received, as it came.
    struct Collector {
        port: u16,
        requests: mpsc::UnboundedReceiver<ExportTraceServiceRequest>,
    }

    type Requests = mpsc::UnboundedSender<ExportTraceServiceRequest>;

    async fn over_http(State(requests): State<Requests>, body: Bytes) -> Vec<u8> {
        requests.send(ExportTraceServiceRequest::decode(body).unwrap()).unwrap();
        ExportTraceServiceResponse::default().encode_to_vec()
    }

    /// One unary call: a message is a flag byte, its length in four, and the message.
    async fn over_grpc(State(requests): State<Requests>, body: Bytes) -> Response {
        requests.send(ExportTraceServiceRequest::decode(body.slice(5..)).unwrap()).unwrap();
        let status = HeaderMap::from_iter([("grpc-status".parse().unwrap(), "0".parse().unwrap())]);
        let empty = Full::new(Bytes::from_static(&[0; 5])).with_trailers(async { Some(Ok(status)) });
        Response::builder().header("content-type", "application/grpc").body(Body::new(empty)).unwrap()
    }

    async fn collector() -> Collector {
        let (sender, requests) = mpsc::unbounded_channel();
        let app = Router::new()
            .route("/v1/traces", post(over_http))
            .route("/opentelemetry.proto.collector.trace.v1.TraceService/Export", post(over_grpc))
            .with_state(sender);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async { axum::serve(listener, app).await });
        Collector { port, requests }
    }

    impl Collector {
        fn spans(&mut self) -> Vec<Received> {
            let mut spans = Vec::new();
            while let Ok(request) = self.requests.try_recv() {
                for resource in request.resource_spans {
                    let attributes = resource.resource.unwrap().attributes;
                    let name = attributes.iter().find(|attribute| attribute.key == "service.name").unwrap();
                    let name = name.value.clone().unwrap().value.unwrap();
                    assert_eq!(name, Value::StringValue(SERVICE_NAME.to_owned()));
                    spans.extend(resource.scope_spans.into_iter().flat_map(|scope| scope.spans));
                }
            }
            spans.sort_by_key(|span| span.start_time_unix_nano);
            spans
        }
    }

    fn of<'a>(span: &'a Received, attribute: &str) -> &'a str {
        let found = span.attributes.iter().find(|found| found.key == attribute).unwrap();
        match found.value.as_ref().unwrap().value.as_ref().unwrap() {
            Value::StringValue(text) => text,
            other => panic!("{other:?}"),
        }
    }

    fn hex(bytes: &[u8]) -> String {
        use std::fmt::Write as _;
        bytes.iter().fold(String::new(), |mut hex, byte| {
            write!(hex, "{byte:02x}").unwrap();
            hex
        })
    }

    fn job(trace_id: &str, span_id: &str) -> Fields {
        Fields { id: "job-1".into(), trace_id: trace_id.into(), span_id: span_id.into(), ..Fields::default() }
    }

    fn run(tracer: &Tracer, job: &Fields, outcome: &'static str) {
        let consumed = tracer.consume(job, "high");
        let processed = tracer.process(job, "high", &consumed);
        consumed.end("started");
        processed.end(outcome);
    }

    #[tokio::test]
    async fn a_job_is_followed_from_produce_to_process() {
        let mut collector = collector().await;
        let tracer = Tracer::start(&format!("http://127.0.0.1:{}", collector.port)).unwrap();
        let produced = tracer.produce("high", "job-1");
        let ids = produced.ids().unwrap();
        produced.end("done");
        run(&tracer, &job(&ids.trace_id, &ids.span_id), "done");
        tracer.shutdown().await;

        let spans = collector.spans();
        let names: Vec<_> = spans.iter().map(|span| span.name.as_str()).collect();
        assert_eq!(names, ["produce", "consume", "process"]);
        assert!(spans[0].parent_span_id.is_empty());
        assert_eq!(hex(&spans[0].span_id), ids.span_id);
        for span in &spans {
            assert_eq!(hex(&span.trace_id), ids.trace_id);
            assert_eq!((of(span, "queue"), of(span, "job_id")), ("high", "job-1"));
        }
        assert_eq!(of(&spans[1], "outcome"), "started");
        assert_eq!(of(&spans[2], "outcome"), "done");
    }

    #[tokio::test]
    async fn the_ids_of_a_job_are_the_remote_parent() {
        let mut collector = collector().await;
        let tracer = Tracer::start(&format!("http://127.0.0.1:{}/v1/traces", collector.port)).unwrap();
        run(&tracer, &job(TRACE, SPAN), "failed");
        tracer.shutdown().await;

        let spans = collector.spans();
        assert_eq!(spans.len(), 2);
        for span in &spans {
            assert_eq!((hex(&span.trace_id).as_str(), hex(&span.parent_span_id).as_str()), (TRACE, SPAN));
        }
        assert_eq!(spans[1].status.as_ref().unwrap().code, 2);
    }

    #[tokio::test]
    async fn a_job_without_valid_ids_starts_a_trace() {
        let mut collector = collector().await;
        let tracer = Tracer::start(&format!("http://127.0.0.1:{}", collector.port)).unwrap();
        let zeros = "0".repeat(32);
        let signed = format!("+{}", &TRACE[1..]);
        for (trace_id, span_id) in
            [("", ""), (TRACE, ""), (TRACE, "xyz"), (&TRACE[1..], SPAN), (&zeros, SPAN), (&signed, SPAN)]
        {
            run(&tracer, &job(trace_id, span_id), "done");
        }
        tracer.shutdown().await;

        let spans = collector.spans();
        assert_eq!(spans.len(), 12);
        for span in spans.iter().filter(|span| span.name == "process") {
            let consume = spans.iter().find(|consume| consume.span_id == span.parent_span_id).unwrap();
            assert_eq!(consume.name, "consume");
            assert!(consume.parent_span_id.is_empty());
            assert_eq!(consume.trace_id, span.trace_id);
            assert_ne!(hex(&span.trace_id), TRACE);
        }
    }

    #[tokio::test]
    async fn spans_travel_over_grpc() {
        let mut collector = collector().await;
        let tracer = Tracer::start(&format!("grpc://127.0.0.1:{}", collector.port)).unwrap();
        run(&tracer, &job(TRACE, SPAN), "done");
        tracer.shutdown().await;
        assert_eq!(collector.spans().len(), 2);
    }

    #[tokio::test]
    async fn a_span_that_nobody_ended_is_abandoned() {
        let mut collector = collector().await;
        let tracer = Tracer::start(&format!("http://127.0.0.1:{}", collector.port)).unwrap();
        drop(tracer.consume(&job(TRACE, SPAN), "high"));
        tracer.shutdown().await;
        assert_eq!(of(&collector.spans()[0], "outcome"), "abandoned");
    }

    #[tokio::test]
    async fn a_long_job_id_is_cut() {
        let mut collector = collector().await;
        let tracer = Tracer::start(&format!("http://127.0.0.1:{}", collector.port)).unwrap();
        tracer.produce("high", &"ä".repeat(100_000)).end("done");
        tracer.shutdown().await;
        assert!(of(&collector.spans()[0], "job_id").len() <= MAX_ATTRIBUTE_BYTES);
    }

    #[tokio::test]
    async fn a_collector_that_is_away_or_silent_slows_nothing() {
        // The kernel accepts for a listener that nobody asks: a collector that never answers.
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = silent.local_addr().unwrap().port();
        let endpoints = [
            "http://127.0.0.1:1".to_owned(),
            "grpc://127.0.0.1:1".to_owned(),
            format!("http://127.0.0.1:{port}"),
            format!("grpc://127.0.0.1:{port}"),
        ];
        let each = endpoints.map(async |endpoint| {
            let tracer = Tracer::start(&endpoint).unwrap();
            let start = Instant::now();
            for _ in 0..10_000 {
                run(&tracer, &job(TRACE, SPAN), "done");
            }
            assert!(start.elapsed() < Duration::from_secs(1), "{endpoint}: {:?}", start.elapsed());
            let start = Instant::now();
            tracer.shutdown().await;
            assert!(start.elapsed() < FLUSH_TIMEOUT + Duration::from_secs(1), "{endpoint}");
        });
        futures::future::join_all(each).await;
    }

    #[tokio::test]
    async fn a_tracer_dropped_on_the_way_out_does_not_wait() {
        let tracer = Tracer::start("http://127.0.0.1:1").unwrap();
        run(&tracer, &job(TRACE, SPAN), "done");
        let start = Instant::now();
        drop(tracer);
        assert!(start.elapsed() < Duration::from_secs(1));
    }

    #[test]
    fn switched_off_it_makes_nothing() {
        let tracer = Tracer::off();
        assert!(!tracer.is_on());
        let span = tracer.process(&job(TRACE, SPAN), "high", &tracer.consume(&job(TRACE, SPAN), "high"));
        assert_eq!((span.ids(), span.traceparent()), (None, None));
        span.end("done");
        assert_eq!(traceparent_of(&job(TRACE, SPAN)).unwrap(), format!("00-{TRACE}-{SPAN}-01"));
        assert_eq!(traceparent_of(&job("", "")), None);
    }

    #[tokio::test]
    async fn a_handler_joins_the_trace_by_its_traceparent() {
        let tracer = Tracer::start("http://127.0.0.1:1").unwrap();
        let span = tracer.process(&job(TRACE, SPAN), "high", &JobSpan(None));
        let span_id = span.ids().unwrap().span_id;
        assert_ne!(span_id, SPAN);
        assert_eq!(span.traceparent().unwrap(), format!("00-{TRACE}-{span_id}-01"));
    }

    #[test]
    fn the_endpoint_says_how_to_speak() {
        let grpc = |url: &str| Endpoint::Grpc(url.to_owned());
        let http = |url: &str| Endpoint::Http(url.to_owned());
        for (endpoint, expected) in [
            ("grpc://otel:4317", grpc("http://otel:4317")),
            ("grpc://otel:9999", grpc("http://otel:9999")),
            ("grpcs://otel:443", grpc("https://otel:443")),
            ("http://otel:4317", grpc("http://otel:4317")),
            ("https://otel:4317/", grpc("https://otel:4317")),
            ("http://otel:4318", http("http://otel:4318/v1/traces")),
            ("http://otel:4318/", http("http://otel:4318/v1/traces")),
            ("https://otel/v1/traces", http("https://otel/v1/traces")),
            ("https://otel/api/otlp?team=a", http("https://otel/api/otlp?team=a")),
        ] {
            assert_eq!(Endpoint::parse(endpoint).unwrap(), expected);
        }
    }

    #[test]
    fn an_endpoint_that_is_no_url_is_refused() {
        for endpoint in ["", "otel:4317", "ftp://otel", "http://", "grpc://:4317", "http://ho st:1"] {
            let error = Endpoint::parse(endpoint).unwrap_err();
            assert!(error.to_string().contains("must be grpc://HOST:PORT"), "{error}");
        }
    }
}
