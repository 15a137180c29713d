//! `/livez`, `/readyz`, `/leader` and `/metrics`.
use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header::CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;

use crate::health::Health;
use crate::metrics::Metrics;

/// Serves until `shutdown`. A process that waits for its turn to lead is as ready as the leader.
pub async fn serve(
    port: u16,
    metrics: Arc<Metrics>,
    health: Arc<Health>,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> anyhow::Result<()> {
    let probes = Router::new()
        .route("/livez", get(live))
        .route("/healthz", get(live))
        .route("/readyz", get(ready))
        .route("/leader", get(leader))
        .with_state(health);
    let router = Router::new().route("/metrics", get(scrape)).with_state(metrics).merge(probes);
    let listener = on_every_address(port)
        .await
        .map_err(|error| anyhow::anyhow!("--port = {port}: {error}; set another port"))?;
    axum::serve(listener, router).with_graceful_shutdown(shutdown).await?;
    Ok(())
}

async fn live(State(health): State<Arc<Health>>) -> Response {
    unless(health.dead())
}

async fn ready(State(health): State<Arc<Health>>) -> Response {
    unless(health.waits_for().map(|what| format!("waiting for {what}")))
}

/// Who leads, be it this process or another: what `helm test` asks.
async fn leader(State(health): State<Arc<Health>>) -> Response {
    match health.leader() {
        Some(leader) => format!("{leader}\n").into_response(),
        None => unless(Some("nobody is known to lead")),
    }
}

/// All is well, unless something is said against it.
fn unless(trouble: Option<impl std::fmt::Display>) -> Response {
    match trouble {
        None => "ok\n".into_response(),
        Some(trouble) => (StatusCode::SERVICE_UNAVAILABLE, format!("{trouble}\n")).into_response(),
    }
}

/// A port of every address, of both kinds where the machine has IPv6: as the worker's `listen`.
async fn on_every_address(port: u16) -> io::Result<TcpListener> {
    match of_both_kinds(port) {
        // A kernel without IPv6 says so in more than one way.
        Err(error) if !matches!(error.kind(), io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied) => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await
        }
        outcome => outcome,
    }
}

fn of_both_kinds(port: u16) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::IPV6, Type::STREAM, Some(Protocol::TCP))?;
    socket.set_only_v6(false)?;
    socket.set_reuse_address(true)?;
    socket.bind(&SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)).into())?;
    socket.listen(1024)?;
    socket.set_nonblocking(true)?;
    TcpListener::from_std(socket.into())
}

async fn scrape(State(metrics): State<Arc<Metrics>>) -> Response {
    match metrics.text() {
        Ok(text) => ([(CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn probes_say_how_the_process_is() {
        let health = Arc::new(Health::default());
        let now = async || {
            let of = || State(Arc::clone(&health));
            [live(of()).await, ready(of()).await, leader(of()).await].map(|answer| answer.status().as_u16())
        };
        assert_eq!(now().await, [200, 503, 503], "it has just started");
        health.found_crd();
        health.saw_leader(None);
        assert_eq!(now().await, [200, 200, 503], "another was faster");
        health.saw_leader(Some("other"));
        assert_eq!(now().await, [200, 200, 200]);
    }

    #[tokio::test]
    async fn one_port_is_reached_by_either_kind_of_address() {
        let listener = on_every_address(0).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.unwrap();
        if std::net::TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok() {
            tokio::net::TcpStream::connect((Ipv6Addr::LOCALHOST, port)).await.unwrap();
        }
    }
}
