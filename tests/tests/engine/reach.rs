//! A process that dials what others tell it to: where it does not go, and what it does not take.
#![allow(clippy::unwrap_used, reason = "tests: a panic is the report")]

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use e2e::engine::{config, fresh_prefix, shared_server};
use e2e::{Options, RedisServer};
use jobqueue::connect::{Bounds, Connector, Reach};
use jobqueue::engine::Engine;
use jobqueue::store::{Session, StoreError};
use serde_json::{Value, json};

use crate::connect::stranger_at;

/// A session of somebody who may go elsewhere only.
fn elsewhere(redis: &Value, bounds: Bounds) -> Session {
    let engine = Engine::new(&config(json!({ "key_prefix": fresh_prefix(), "redis": redis })));
    let mut settings = engine.connector.settings().clone();
    settings.reach = Reach::Elsewhere(bounds);
    Session::new(&Connector::new(settings), &engine.shards[0], Duration::from_secs(1))
}

fn bounds() -> Bounds {
    Bounds { largest_reply: 1 << 20, ..Bounds::default() }
}

async fn refused(redis: &Value, bounds: Bounds, reason: &str) {
    match elsewhere(redis, bounds).time().await {
        Err(error @ StoreError::Connect(_)) => assert!(error.to_string().contains(reason), "{error}"),
        other => panic!("{redis}: {other:?}"),
    }
}

/// An address of this machine that is not loopback; nothing is sent to find it.
fn own_address() -> IpAddr {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.connect("203.0.113.1:9").unwrap();
    socket.local_addr().unwrap().ip()
}

/// Somebody who speaks the protocol and says this to each request that names something.
async fn stranger(answers: &'static [(&'static str, &'static str)]) -> SocketAddr {
    stranger_at(own_address(), answers).await
}

const PONG: (&str, &str) = ("PING", "+PONG\r\n");
const HELLO: (&str, &str) = ("HELLO", "*0\r\n");

#[tokio::test]
async fn a_redis_on_the_same_machine_is_not_dialled() {
    let server = shared_server().await;
    refused(&json!({ "addr": server.addr().to_string() }), bounds(), "loopback address").await;
    refused(&json!({ "addr": format!("localhost:{}", server.port()) }), bounds(), "loopback address").await;
    let local = RedisServer::start(Options { unix_socket: true, ..Options::default() }).await;
    let url = format!("unix://{}", local.unix_socket().display());
    refused(&json!({ "url": url }), bounds(), "unix socket").await;
}

#[tokio::test]
async fn only_the_networks_that_are_named_are_dialled() {
    let addr = stranger(&[PONG, HELLO, ("TIME", "*2\r\n$1\r\n1\r\n$1\r\n0\r\n")]).await;
    let named = |only: &str| Bounds { only: vec![only.parse().unwrap()], ..bounds() };
    let redis = json!({ "addr": addr.to_string() });
    let mut session = elsewhere(&redis, named(&format!("{}/32", addr.ip())));
    assert!(session.time().await.is_ok());
    refused(&redis, named("198.51.100.0/24"), "none of the networks").await;
    refused(&redis, Bounds { never: vec![addr.ip()], ..bounds() }, "not allowed").await;
}

#[tokio::test]
async fn neither_a_sentinel_nor_a_cluster_node_leads_to_this_machine() {
    let sentinel = stranger(&[PONG, HELLO, ("SENTINEL", "*2\r\n$9\r\n127.0.0.1\r\n$4\r\n6379\r\n")]).await;
    let by_sentinel = json!({ "sentinel": { "master": "main", "addrs": [sentinel.to_string()] } });
    refused(&by_sentinel, bounds(), "loopback address").await;
    let slots = "*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:6379\r\n";
    let node = Box::leak(Box::new([PONG, HELLO, ("CLUSTER", slots)]));
    let by_node = json!({ "addr": stranger(node).await.to_string(), "cluster": true });
    refused(&by_node, bounds(), "loopback address").await;
}

#[tokio::test]
async fn a_reply_larger_than_allowed_ends_the_connection() {
    for endless in ["$2000000000\r\n", "*1000000000\r\n", "*1\r\n$2000000\r\n"] {
        let answers = Box::leak(Box::new([PONG, HELLO, ("TIME", endless)]));
        let addr = stranger(answers).await;
        let mut session = elsewhere(&json!({ "addr": addr.to_string() }), bounds());
        match session.time().await {
            Err(StoreError::Lost(reason)) => assert!(!reason.contains("timed out"), "{endless:?}: {reason}"),
            other => panic!("{endless:?}: {other:?}"),
        }
    }
}
