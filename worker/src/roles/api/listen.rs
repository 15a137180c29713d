//! Sockets: how many at once, how slow they may be, and how they end. HTTP/1.1 and HTTP/2 (with prior knowledge) on
//! one port.
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::body::Incoming;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};

use super::answers::Untaken;
use crate::shutdown::{Shutdown, Stopper};

/// The largest head of a request.
const HEAD_BYTES: usize = 32 * 1024;
/// The most headers of a request.
const HEADERS: usize = 100;
/// Requests at once on one HTTP/2 connection.
const STREAMS: u32 = 100;
/// A client that takes nothing of its answer for so long is gone.
const UNREAD: Duration = Duration::from_secs(30);
/// How HTTP/2 begins.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// After an error such as too many open files, others get the time to end.
const BREATH: Duration = Duration::from_millis(50);

/// How connections are served.
#[derive(Debug, Clone, Copy)]
pub(super) struct Manners {
    /// How long a head may take to arrive; so long a connection may also be idle.
    pub header_timeout: Duration,
    /// How long a client may take to read an answer.
    pub answer_timeout: Duration,
    pub max_connections: u32,
    pub drain_delay: Duration,
    pub drain_timeout: Duration,
}

/// The port could not be had.
#[derive(Debug, thiserror::Error)]
#[error("api.port = {port}: {source}; set another port, or 0 for any")]
pub(super) struct NoPort {
    port: u16,
    source: std::io::Error,
}

/// Listens on a port of every address.
pub(super) async fn bind(port: u16) -> Result<TcpListener, NoPort> {
    crate::listen::on_every_address(port).await.map_err(|source| NoPort { port, source })
}

/// Serves until it is asked to stop; then takes no more connections, says so (`end`), and lets requests finish. `false`
/// when some of them did not in time.
pub(super) async fn serve(
    listener: TcpListener,
    router: Router,
    manners: Manners,
    stopping: Shutdown,
    (end, ending): (Stopper, Shutdown),
) -> bool {
    let connections = Arc::new(Semaphore::new(manners.max_connections as usize));
    let mut server = auto::Builder::new(TokioExecutor::new());
    server
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(manners.header_timeout)
        .max_headers(HEADERS)
        .max_buf_size(HEAD_BYTES);
    server
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(u32::try_from(HEAD_BYTES).unwrap_or(u32::MAX))
        .keep_alive_interval(Duration::from_secs(20))
        .keep_alive_timeout(Duration::from_secs(20));
    let over = async {
        stopping.clone().requested().await;
        tokio::time::sleep(manners.drain_delay).await;
    };
    tokio::pin!(over);
    loop {
        // A place first: who cannot be served waits in the kernel's queue, and costs nothing here.
        let accepted = async {
            let Ok(place) = Arc::clone(&connections).acquire_owned().await else { return None };
            Some((place, listener.accept().await))
        };
        let (place, accepted) = tokio::select! {
            () = &mut over => break,
            accepted = accepted => match accepted {
                Some(accepted) => accepted,
                None => break,
            },
        };
        let socket = match accepted {
            Ok((socket, _)) => socket,
            Err(error) => {
                tracing::warn!(%error, "Could not accept a connection");
                tokio::time::sleep(BREATH).await;
                continue;
            }
        };
        prepare(&socket);
        let requests = TowerToHyperService::new(router.clone());
        let (server, mut ending) = (server.clone(), ending.clone());
        tokio::spawn(async move {
            // Given back whichever way this ends.
            let _place = place;
            let begun = tokio::select! {
                begun = tokio::time::timeout(manners.header_timeout, speaks_http2(&socket)) => begun,
                () = ending.requested() => return,
            };
            let (server, http2) = match begun {
                Ok(Ok(true)) => (server.http2_only(), true),
                Ok(Ok(false)) => (server.http1_only(), false),
                Ok(Err(_)) | Err(_) => return,
            };
            let under_way = watch::Sender::new(0);
            let mut idle = under_way.subscribe();
            let untaken = Untaken::default();
            let of_requests = untaken.clone();
            let service = service_fn(move |mut request: hyper::Request<Incoming>| {
                request.extensions_mut().insert(of_requests.clone());
                let (counted, answer) = (UnderWay::new(&under_way), requests.call(request));
                async move {
                    let answer = answer.await;
                    drop(counted);
                    answer
                }
            });
            let connection = server.serve_connection(TokioIo::new(socket), service).into_owned();
            tokio::pin!(connection);
            // How a client ends its connection is its own affair.
            tokio::select! {
                _ = connection.as_mut() => return,
                () = ending.requested() => {}
                // Of HTTP/1 the next head is waited for no longer.
                () = is_idle(&mut idle, manners.header_timeout), if http2 => {}
                // What it leaves lying is room that others need.
                () = untaken.overdue(manners.answer_timeout) => {
                    tracing::debug!("Closed a connection that left its answers lying");
                    return;
                }
            }
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                _ = connection => {}
                // A client that does not even hear the goodbye.
                () = is_idle(&mut idle, UNREAD) => {}
                () = untaken.overdue(manners.answer_timeout) => {}
            }
        });
    }
    drop(listener);
    end.stop();
    let left = manners.drain_timeout.saturating_sub(manners.drain_delay);
    // All places are free when the last connection has ended.
    tokio::time::timeout(left, connections.acquire_many(manners.max_connections)).await.is_ok()
}

/// A request counts as long as this lives.
struct UnderWay(watch::Sender<usize>);

impl UnderWay {
    fn new(count: &watch::Sender<usize>) -> Self {
        count.send_modify(|count| *count += 1);
        Self(count.clone())
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

/// Returns when nothing was under way for so long.
async fn is_idle(under_way: &mut watch::Receiver<usize>, time: Duration) {
    loop {
        let quiet = *under_way.borrow_and_update() == 0;
        let changed = under_way.changed();
        let changed = if quiet {
            match tokio::time::timeout(time, changed).await {
                Ok(changed) => changed,
                Err(_) => return,
            }
        } else {
            changed.await
        };
        if changed.is_err() {
            // The service is gone, and the connection with it.
            return;
        }
    }
}

/// Which of the two a client speaks, by its first bytes, which stay where they are. The server could find out itself,
/// but would wait for ever for a client that says nothing.
async fn speaks_http2(socket: &TcpStream) -> std::io::Result<bool> {
    let mut begin = [0; PREFACE.len()];
    loop {
        let count = socket.peek(&mut begin).await?;
        if count == 0 || begin[..count] != PREFACE[..count] {
            return Ok(false);
        }
        if count == PREFACE.len() {
            return Ok(true);
        }
        // What is there is not enough to tell, and nobody says when there is more.
        tokio::time::sleep(BREATH).await;
    }
}

fn prepare(socket: &TcpStream) {
    let _ = socket.set_nodelay(true);
    let socket = socket2::SockRef::from(socket);
    let _ = socket.set_tcp_user_timeout(Some(UNREAD));
    let keepalive = socket2::TcpKeepalive::new().with_time(UNREAD).with_interval(Duration::from_secs(5));
    let _ = socket.set_tcp_keepalive(&keepalive);
}
