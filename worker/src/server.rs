//! The HTTP server for probes and scrapes: `/metrics`, `/healthz` (also `/health`), `/readyz`.
use std::{future::Future, io, sync::Arc, time::Duration};

use axum::{
    Json, Router,
    extract::State,
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::get,
};
use tokio::net::TcpListener;

use crate::{
    health::{Readiness, Status},
    listen,
    metrics::Metrics,
};

/// A scraper that stalls in the middle of a request may not hold up the end of the process.
const GRACE: Duration = Duration::from_secs(1);

/// What the server tells about.
#[derive(Debug, Clone)]
pub struct Observed {
    /// Behind `/metrics`.
    pub metrics: Arc<Metrics>,
    /// Behind `/readyz`.
    pub readiness: Readiness,
}

/// The port could not be had.
#[derive(Debug, thiserror::Error)]
#[error("observability.metrics_port = {port}: {}; {}", reason(.source), advice(.source))]
pub struct BindError {
    port: u16,
    source: io::Error,
}

fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => "address in use".to_owned(),
        io::ErrorKind::PermissionDenied => "not permitted".to_owned(),
        _ => error.to_string(),
    }
}

fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "set a port from 1024 up, or 0",
        _ => "set another port or 0",
    }
}

/// Listens on `observability.metrics_port` of every address; port 0 takes any free one.
pub async fn bind(port: u16) -> Result<TcpListener, BindError> {
    listen::on_every_address(port).await.map_err(|source| BindError { port, source })
}

/// Serves until `shutdown` resolves, then lets requests in progress finish for a moment.
pub async fn serve(
    listener: TcpListener,
    observed: Observed,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let (stopping, stopped) = tokio::sync::oneshot::channel::<()>();
    let shutdown = async move {
        shutdown.await;
        // The receiver is gone only when serving has ended already.
        let _ = stopping.send(());
    };
    let server = axum::serve(listener, router(observed)).with_graceful_shutdown(shutdown);
    tokio::select! {
        ended = async { server.await } => ended,
        () = async { let _ = stopped.await; tokio::time::sleep(GRACE).await } => Ok(()),
    }
}

fn router(observed: Observed) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthz))
        .route("/health", get(healthz))
        .route("/readyz", get(readyz))
        .with_state(observed)
}

async fn metrics(State(observed): State<Observed>) -> Response {
    ([(CONTENT_TYPE, prometheus::TEXT_FORMAT)], observed.metrics.render()).into_response()
}

/// Alive while the event loop still starts and finishes tasks. Nothing else: a restart heals neither
/// Redis nor a handler.
pub(crate) async fn healthz() -> Response {
    match tokio::spawn(async {}).await {
        Ok(()) => "ok\n".into_response(),
        Err(_) => StatusCode::SERVICE_UNAVAILABLE.into_response(),
    }
}

pub(crate) async fn readyz(State(observed): State<Observed>) -> Response {
    let report = observed.readiness.report();
    let code = match report.status {
        Status::Ready => StatusCode::OK,
        Status::Waiting | Status::Drained => StatusCode::SERVICE_UNAVAILABLE,
    };
    (code, Json(report)).into_response()
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpStream,
        time::timeout,
    };

    use super::*;
    use crate::health::{Dependency, FIRST_LANE};

    struct Server {
        port: u16,
        readiness: Readiness,
        stop: tokio::sync::oneshot::Sender<()>,
        task: tokio::task::JoinHandle<io::Result<()>>,
    }

    async fn start() -> Server {
        let readiness = Readiness::waiting_for(&[FIRST_LANE]);
        let metrics = Arc::new(Metrics::new(&["high".to_owned()]).unwrap());
        let listener = bind(0).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let observed = Observed { metrics, readiness: readiness.clone() };
        let task = tokio::spawn(serve(listener, observed, async { stopped.await.unwrap() }));
        Server { port, readiness, stop, task }
    }

    /// Status code, head and body of one request over a socket of its own.
    async fn ask(server: &Server, method: &str, path: &str) -> (u16, String, String) {
        let mut socket = TcpStream::connect(("127.0.0.1", server.port)).await.unwrap();
        let request = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        socket.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let code = head.split(' ').nth(1).unwrap().parse().unwrap();
        (code, head.to_ascii_lowercase(), body.to_owned())
    }

    #[tokio::test]
    async fn metrics_are_scraped() {
        let server = start().await;
        let (code, head, body) = ask(&server, "GET", "/metrics").await;
        assert_eq!(code, 200);
        assert!(head.contains("content-type: text/plain; version=0.0.4"), "{head}");
        assert!(body.contains("# TYPE jobs_produced_total counter") && body.contains("tokio_tasks_alive"));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn a_health_check_asks_as_a_probe_does() {
        let server = start().await;
        let ask = |path| tokio::task::block_in_place(|| crate::health::ask(server.port, path));
        assert!(ask("/healthz").is_ok());
        let waiting = ask("/readyz").unwrap_err().to_string();
        assert!(waiting.starts_with("/readyz answered 503") && waiting.contains(FIRST_LANE), "{waiting}");
        server.readiness.reached(FIRST_LANE);
        assert!(ask("/readyz").is_ok());
        server.task.abort();
        assert!(server.task.await.is_err());
        let silent = tokio::task::block_in_place(|| crate::health::ask(server.port, "/healthz")).unwrap_err();
        assert!(silent.to_string().starts_with("no answer at 127.0.0.1:"), "{silent}");
        assert!(crate::health::ask(0, "/healthz").unwrap_err().to_string().contains("metrics_port = 0"));
    }

    #[tokio::test]
    async fn health_is_an_alias_of_healthz() {
        let server = start().await;
        for path in ["/healthz", "/health"] {
            let (code, _, body) = ask(&server, "GET", path).await;
            assert_eq!((code, body.as_str()), (200, "ok\n"));
        }
    }

    #[tokio::test]
    async fn readyz_waits_for_the_first_lane_and_then_ignores_outages() {
        let server = start().await;
        server.readiness.dependency("redis", Dependency::Up);
        let (code, head, body) = ask(&server, "GET", "/readyz").await;
        assert_eq!(code, 503);
        assert!(head.contains("content-type: application/json"));
        assert_eq!(
            body,
            r#"{"status":"waiting","waiting_for":["first lane"],"dependencies":{"redis":"up"}}"#
        );

        server.readiness.reached(FIRST_LANE);
        server.readiness.dependency("redis", Dependency::Down);
        let (code, _, body) = ask(&server, "GET", "/readyz").await;
        assert_eq!(code, 200);
        assert_eq!(body, r#"{"status":"ready","waiting_for":[],"dependencies":{"redis":"down"}}"#);

        server.readiness.drained();
        let (code, _, body) = ask(&server, "GET", "/readyz").await;
        assert_eq!((code, body.contains(r#""status":"drained""#)), (503, true));
        assert_eq!(ask(&server, "GET", "/healthz").await.0, 200);
    }

    #[tokio::test]
    async fn other_paths_and_methods_are_refused() {
        let server = start().await;
        assert_eq!(ask(&server, "GET", "/").await.0, 404);
        assert_eq!(ask(&server, "GET", "/metrics/../etc/passwd").await.0, 404);
        assert_eq!(ask(&server, "POST", "/metrics").await.0, 405);
    }

    #[tokio::test]
    async fn a_port_in_use_is_an_error_that_says_what_to_do() {
        let taken = bind(0).await.unwrap();
        let port = taken.local_addr().unwrap().port();
        let error = bind(port).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("observability.metrics_port = {port}: address in use; set another port or 0")
        );
    }

    #[tokio::test]
    async fn a_stalled_scraper_does_not_hold_up_the_end() {
        let server = start().await;
        let mut stalled = TcpStream::connect(("127.0.0.1", server.port)).await.unwrap();
        stalled.write_all(b"GET /metrics HT").await.unwrap();
        assert_eq!(ask(&server, "GET", "/healthz").await.0, 200);
        server.stop.send(()).unwrap();
        timeout(GRACE * 3, server.task).await.unwrap().unwrap().unwrap();
    }
}
