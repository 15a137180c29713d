//! What is known of each request: its id, its route, how long it took and how it ended. Labels are routes and codes of
//! ours, never what a client sent.
use std::sync::Arc;
use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::http::header::CONNECTION;
use axum::http::{HeaderMap, HeaderValue, Method, Version};
use axum::middleware::Next;
use axum::response::Response;
use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, IntGauge, Opts, Registry};
use uuid::Uuid;

use super::answers::Untaken;
use super::{Api, problem};

/// The header that names a request, the client's or ours.
const REQUEST_ID: &str = "x-request-id";
/// The longest that a client may give.
const MAX_ID: usize = 128;
/// From a read in memory to a long-poll.
const BUCKETS: [f64; 12] = [0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.1, 0.5, 1.0, 2.0, 10.0, 60.0];

/// Counts requests.
#[derive(Debug)]
pub(super) struct Requests {
    ended: IntCounterVec,
    took: HistogramVec,
    in_flight: IntGauge,
    waiting: IntGauge,
}

/// Counts as long as it lives.
pub(super) struct Counted(IntGauge);

impl Counted {
    fn new(gauge: &IntGauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Requests {
    pub(super) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let ended = IntCounterVec::new(
            Opts::new("http_requests_total", "Requests that were answered"),
            &["route", "method", "code"],
        )?;
        let opts = HistogramOpts::new("http_request_duration_seconds", "Time until a request was answered");
        let took = HistogramVec::new(opts.buckets(BUCKETS.to_vec()), &["route", "method"])?;
        let in_flight = IntGauge::new("http_requests_in_flight", "Requests under way")?;
        let waiting = IntGauge::new("http_requests_waiting", "Requests that wait for a job to change")?;
        registry.register(Box::new(ended.clone()))?;
        registry.register(Box::new(took.clone()))?;
        registry.register(Box::new(in_flight.clone()))?;
        registry.register(Box::new(waiting.clone()))?;
        Ok(Self { ended, took, in_flight, waiting })
    }

    /// A request waits for a job to change, as long as this lives.
    pub(super) fn waiting(&self) -> Counted {
        Counted::new(&self.waiting)
    }
}

/// Around every request.
pub(super) async fn observe(State(api): State<Arc<Api>>, request: Request, next: Next) -> Response {
    let started = Instant::now();
    let _counted = Counted::new(&api.observed.in_flight);
    let request_id = request_id(request.headers());
    let (method, version) = (method(request.method()), request.version());
    let matched = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let route = matched.as_deref().unwrap_or("other");
    let untaken = request.extensions().get::<Untaken>().cloned();
    let response = api.answers.count(next.run(request).await, untaken.as_ref()).await;
    let mut response = problem::told(response, &request_id);
    if let Ok(value) = HeaderValue::try_from(&request_id) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    // Whoever asks again finds another process. HTTP/2 has its own way to say so, when the connection ends.
    if api.stopping.is_requested() && version <= Version::HTTP_11 {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    let code = response.status().as_u16();
    api.observed.ended.with_label_values(&[route, method, &code.to_string()]).inc();
    api.observed.took.with_label_values(&[route, method]).observe(started.elapsed().as_secs_f64());
    let duration_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    tracing::debug!(request_id, value = code, duration_ms, key = route, "Answered a request");
    response
}

/// The client's, where it is one that a log can show; else a new one.
fn request_id(headers: &HeaderMap) -> String {
    let given = headers.get(REQUEST_ID).and_then(|id| id.to_str().ok());
    let usable = |id: &&str| {
        (1..=MAX_ID).contains(&id.len())
            && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
    };
    given.filter(usable).map_or_else(|| Uuid::new_v4().to_string(), str::to_owned)
}

/// Anybody can invent a method.
fn method(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::POST => "POST",
        Method::DELETE => "DELETE",
        Method::HEAD => "HEAD",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::OPTIONS => "OPTIONS",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_keeps_its_id_if_it_is_one() {
        let of = |id: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(REQUEST_ID, HeaderValue::from_static(id));
            request_id(&headers)
        };
        assert_eq!(of("abc-1.2_3"), "abc-1.2_3");
        assert_ne!(of("a b"), "a b");
        assert_eq!(of("").len(), 36);
    }
}
