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
        spans.sort_by_key(|span| span.end_time_unix_nano);
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

/// Between the reservation of a job and its start.
const WAITED: Duration = Duration::from_secs(3);

fn run(tracer: &Tracer, job: &Fields, outcome: &'static str) {
    let consumed = tracer.consume(job, "high", WAITED);
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
    let lasted = Duration::from_nanos(spans[1].end_time_unix_nano - spans[1].start_time_unix_nano);
    assert!(lasted >= WAITED, "the wait is in the trace: {lasted:?}");
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
    drop(tracer.consume(&job(TRACE, SPAN), "high", WAITED));
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
        let recorded = start.elapsed();
        // That it comes back at all: two of them never answer.
        tracer.shutdown().await;
        println!("{endpoint}: 10,000 spans in {recorded:?}, given up after {:?}", start.elapsed());
    });
    futures::future::join_all(each).await;
}

#[tokio::test]
async fn a_tracer_dropped_on_the_way_out_does_not_wait() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let tracer = Tracer::start(&format!("http://127.0.0.1:{}", silent.local_addr().unwrap().port())).unwrap();
    run(&tracer, &job(TRACE, SPAN), "done");
    let start = Instant::now();
    drop(tracer);
    println!("dropped in {:?}", start.elapsed());
}

#[test]
fn switched_off_it_makes_nothing() {
    let tracer = Tracer::off();
    assert!(!tracer.is_on());
    let span = tracer.process(&job(TRACE, SPAN), "high", &tracer.consume(&job(TRACE, SPAN), "high", WAITED));
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
