//! Every way to reach Redis that the configuration promises, and every way not to.
#![allow(
    clippy::unwrap_used,
    clippy::wildcard_imports,
    reason = "tests: a panic is the report, and modules only group them"
)]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use e2e::engine::{Bench, CONSUMING, config, enqueue, fresh_prefix, ids, job, registration, shared_server};
use e2e::{Options, RedisServer, Sentinel, Tls};
use jobqueue::connect::ConnectError;
use jobqueue::effects::Side;
use jobqueue::engine::Engine;
use jobqueue::store::{Session, Status, StoreError};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

/// A session by configuration alone.
fn session(redis: &Value) -> Session {
    let engine = Engine::new(&config(json!({ "key_prefix": fresh_prefix(), "redis": redis })));
    engine.session(&engine.shards[0])
}

/// Enqueues, reserves and settles a job.
async fn works(mut session: Session) {
    let (queue, seen) = (session.keys.queues[0].queue.clone(), session.keys.seen("p"));
    session.enqueue("1", &seen, Side::Left, &enqueue(&queue, &[job("a")])).await.unwrap();
    let lane = session.register(&registration(60_000)).await.unwrap();
    let ask = jobqueue::store::QueueAsk { limit: 1, ..Default::default() };
    let queues = vec![ask, jobqueue::store::QueueAsk::default()];
    let mut cycle = jobqueue::store::Cycle { seq: 1, room: 1, queues, ..Default::default() };
    let cycled = session.cycle(&lane, &cycle, CONSUMING, None).await.unwrap().unwrap();
    assert_eq!(ids(&cycled.queues[0].jobs), ["a"]);
    (cycle.seq, cycle.room, cycle.queues[0].limit, cycle.queues[0].expected) = (2, 0, 0, 1);
    cycle.queues[0].done.push(job("a"));
    assert_eq!(
        session.cycle(&lane, &cycle, CONSUMING, None).await.unwrap().unwrap().statuses,
        [Status::Settled]
    );
    assert!(session.close(&lane, false).await.unwrap());
}

/// Somebody who takes connections and never says a word.
pub(crate) async fn hung() -> (String, TcpListener) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    (listener.local_addr().unwrap().to_string(), listener)
}

async fn fails(mut session: Session) -> ConnectError {
    match session.time().await {
        Err(StoreError::Connect(error)) => error,
        other => panic!("{other:?}"),
    }
}

/// Something that listens, reads a request and answers with the first of `answers` whose name is in it.
pub(crate) async fn stranger_at(
    place: IpAddr,
    answers: &'static [(&'static str, &'static str)],
) -> SocketAddr {
    let listener = TcpListener::bind((place, 0)).await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut buffer = [0; 1024];
                while let Ok(read @ 1..) = client.read(&mut buffer).await {
                    let request = String::from_utf8_lossy(&buffer[..read]).into_owned();
                    let answer = answers.iter().find(|(name, _)| request.contains(name));
                    let Some((_, answer)) = answer else { return };
                    if client.write_all(answer.as_bytes()).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    addr
}

mod ways_in {
    use super::*;

    fn tls(server: &RedisServer) -> Value {
        json!({ "enabled": true, "ca_file": server.certificates().ca })
    }

    fn with(mut base: Value, key: &str, value: impl Into<Value>) -> Value {
        base[key] = value.into();
        base
    }

    #[tokio::test]
    async fn tls_trusts_the_configured_authority_and_no_other() {
        let server = RedisServer::start(Options { tls: Tls::On, ..Options::default() }).await;
        let addr = server.addr().to_string();
        works(session(&json!({ "addr": addr, "tls": tls(&server) }))).await;
        works(session(&json!({ "url": server.url(), "tls": tls(&server) }))).await;
        let error = fails(session(&json!({ "addr": addr, "tls": { "enabled": true } }))).await;
        assert!(error.to_string().contains("TLS"), "{error}");
        assert!(!error.is_permanent(), "a server may get another certificate");
    }

    #[tokio::test]
    async fn the_certificate_must_carry_the_server_name() {
        let server = RedisServer::start(Options { tls: Tls::On, ..Options::default() }).await;
        let addr = server.addr().to_string();
        works(session(&json!({ "addr": addr, "tls": with(tls(&server), "server_name", "localhost") }))).await;
        let wrong = with(tls(&server), "server_name", "redis.example");
        let error = fails(session(&json!({ "addr": addr, "tls": wrong }))).await;
        assert!(error.to_string().contains("redis.example") || error.to_string().contains("name"), "{error}");
    }

    #[tokio::test]
    async fn a_server_that_asks_for_our_certificate_gets_it() {
        let server = RedisServer::start(Options { tls: Tls::Mutual, ..Options::default() }).await;
        let addr = server.addr().to_string();
        let files = server.certificates();
        let mutual = with(tls(&server), "cert_file", files.client_cert.to_str());
        let mutual = with(mutual, "key_file", files.client_key.to_str());
        works(session(&json!({ "addr": addr, "tls": mutual }))).await;
        let error = session(&json!({ "addr": addr, "tls": tls(&server) })).time().await.unwrap_err();
        assert!(error.is_transient(), "{error}");
    }

    #[tokio::test]
    async fn a_file_that_cannot_be_used_is_named_with_its_config_key() {
        let server = RedisServer::start(Options { tls: Tls::On, ..Options::default() }).await;
        let addr = server.addr().to_string();
        let missing = with(tls(&server), "ca_file", "/nowhere/ca.crt");
        let error = fails(session(&json!({ "addr": addr, "tls": missing }))).await;
        assert!(error.is_permanent());
        assert!(error.to_string().starts_with("redis.tls.ca_file = /nowhere/ca.crt: "), "{error}");
        let plain = shared_server().await.addr().to_string();
        let error = fails(session(&json!({ "addr": plain, "password_file": "/nowhere/password" }))).await;
        assert!(error.to_string().starts_with("redis.password_file = /nowhere/password: "), "{error}");
    }

    #[tokio::test]
    async fn an_acl_user_a_unix_socket_and_a_database_of_their_own() {
        let options = Options {
            users: vec!["worker on >p@ss ~* +@all".into()],
            unix_socket: true,
            ..Options::default()
        };
        let server = RedisServer::start(options).await;
        works(session(
            &json!({ "addr": server.addr().to_string(), "username": "worker", "password": "p@ss" }),
        ))
        .await;
        works(session(&json!({ "url": format!("redis://worker:p%40ss@{}/3", server.addr()) }))).await;
        works(session(&json!({ "url": format!("unix://{}?db=2", server.unix_socket().display()) }))).await;
        let keyspace = server.cli(&["INFO", "keyspace"]);
        for database in ["db0:", "db2:", "db3:"] {
            assert!(keyspace.contains(database), "{keyspace}");
        }
    }

    #[tokio::test]
    async fn a_rotated_password_file_is_read_at_the_next_connect() {
        let server = RedisServer::start(Options { password: Some("old".into()), ..Options::default() }).await;
        let file = server.dir().join("password");
        std::fs::write(&file, "old\n").unwrap();
        let mut session = session(&json!({ "addr": server.addr().to_string(), "password_file": file }));
        session.time().await.unwrap();
        let mut admin = server.connection().await;
        redis::cmd("CONFIG")
            .arg("SET")
            .arg("requirepass")
            .arg("new")
            .query_async::<()>(&mut admin)
            .await
            .unwrap();
        session.time().await.unwrap();
        session.disconnect();
        assert!(matches!(session.time().await, Err(StoreError::Connect(ConnectError::Credentials { .. }))));
        std::fs::write(&file, "new\n").unwrap();
        session.time().await.unwrap();
        assert!(session.connected_since().is_some());
    }
}

mod no_way_in {
    use super::*;

    async fn stranger(answers: &'static [(&'static str, &'static str)]) -> SocketAddr {
        stranger_at(Ipv4Addr::LOCALHOST.into(), answers).await
    }

    #[tokio::test]
    async fn a_wrong_password_says_what_to_check_and_is_not_tried_again() {
        let server =
            RedisServer::start(Options { password: Some("right".into()), ..Options::default() }).await;
        let addr = server.addr().to_string();
        for redis in [
            json!({ "addr": addr, "password": "wrong" }),
            json!({ "addr": addr }),
            json!({ "addr": addr, "username": "nobody", "password": "right" }),
        ] {
            let error = fails(session(&redis)).await;
            assert!(matches!(error, ConnectError::Credentials { .. }) && error.is_permanent(), "{error:?}");
            assert!(error.to_string().contains("check redis.username and redis.password"), "{error}");
            assert!(!error.to_string().contains("wrong") && !error.to_string().contains("right"), "{error}");
        }
        let open = shared_server().await.addr().to_string();
        let error = fails(session(&json!({ "addr": open, "password": "needless" }))).await;
        assert!(matches!(error, ConnectError::Credentials { .. }), "{error:?}");
    }

    #[tokio::test]
    async fn something_else_on_the_port_gets_no_credentials() {
        let web = stranger(&[("PING", "HTTP/1.1 400 Bad Request\r\n\r\n")]).await;
        let error = fails(session(&json!({ "addr": web.to_string(), "password": "secret" }))).await;
        assert!(matches!(error, ConnectError::NotRedis { .. }) && error.is_permanent(), "{error:?}");
        assert!(error.to_string().contains("check redis.addr and redis.tls.enabled"), "{error}");
        let tls = RedisServer::start(Options { tls: Tls::On, ..Options::default() }).await;
        let error = fails(session(&json!({ "addr": tls.addr().to_string() }))).await;
        assert!(
            matches!(error, ConnectError::NotRedis { .. } | ConnectError::Unreachable { .. }),
            "{error:?}"
        );
    }

    // No Redis older than 6.2 can be had on the machines that run this: these only say they are.
    #[tokio::test]
    async fn a_redis_that_is_too_old_is_refused_by_its_version() {
        let six = stranger(
            const {
                &[
                    ("PING", "+PONG\r\n"),
                    ("HELLO", "*4\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$6\r\n6.0.16\r\n"),
                ]
            },
        )
        .await;
        let five = stranger(
            const {
                &[
                    ("PING", "+PONG\r\n"),
                    ("HELLO", "-ERR unknown command `HELLO`, with args beginning with: \r\n"),
                    ("INFO", "$27\r\n# Server\r\nredis_version:5\r\n\r\n"),
                ]
            },
        )
        .await;
        for (addr, version) in [(six, "6.0.16"), (five, "5")] {
            let error = fails(session(&json!({ "addr": addr.to_string() }))).await;
            assert!(matches!(error, ConnectError::TooOld { .. }) && error.is_permanent(), "{error:?}");
            assert!(error.to_string().starts_with(&format!("Redis {version} at ")), "{error}");
            assert!(error.to_string().ends_with("at least 6.2 is needed"), "{error}");
        }
    }

    #[tokio::test]
    async fn a_redis_that_loads_its_data_is_waited_for() {
        let loading = stranger(&[("PING", "-LOADING Redis is loading the dataset in memory\r\n")]).await;
        let error = fails(session(&json!({ "addr": loading.to_string() }))).await;
        assert!(matches!(error, ConnectError::Loading { .. }) && !error.is_permanent(), "{error:?}");
    }

    #[tokio::test]
    async fn nobody_there_and_nobody_who_answers_are_tried_again() {
        let closed = format!("127.0.0.1:{}", e2e::child::free_port());
        let error = fails(session(&json!({ "addr": closed }))).await;
        assert!(matches!(error, ConnectError::Unreachable { .. }) && !error.is_permanent(), "{error:?}");
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = silent.local_addr().unwrap().to_string();
        let error = fails(session(&json!({ "addr": addr, "dial_timeout": "100ms" }))).await;
        assert!(error.to_string().contains("timed out"), "{error}");
        let error = fails(session(&json!({ "url": "unix:///nowhere/redis.sock" }))).await;
        assert!(!error.is_permanent() && !Path::new("/nowhere").exists(), "{error}");
        let error = fails(session(&json!({ "addr": "no.such.host.invalid:6379" }))).await;
        assert!(!error.is_permanent(), "{error}");
    }

    #[tokio::test]
    async fn waits_between_tries_double_up_to_a_quarter_of_the_ttl() {
        let bench = Bench::new().await;
        assert_eq!(bench.engine.longest_backoff(), Duration::from_secs(2));
        let mut session = bench.session();
        let waits: Vec<Duration> = (0..12).map(|_| session.backoff()).collect();
        assert!(waits[0] <= Duration::from_millis(20));
        assert!(waits[11] >= Duration::from_secs(1) && waits[11] <= Duration::from_secs(2));
        session.time().await.unwrap();
        assert!(session.backoff() <= Duration::from_millis(20), "an answer starts anew");
    }
}

mod sentinel {
    use super::*;

    #[tokio::test]
    async fn a_session_goes_on_with_the_new_master() {
        let mut group = Sentinel::start(1).await;
        let addrs: Vec<String> = group.addrs().iter().map(ToString::to_string).collect();
        // The first of them is nobody: the others are asked.
        let mut with_a_dead_one = vec![format!("127.0.0.1:{}", e2e::child::free_port())];
        with_a_dead_one.extend(addrs);
        let redis = json!({ "sentinel": { "master": Sentinel::MASTER, "addrs": with_a_dead_one } });
        let engine = Engine::new(&config(json!({ "key_prefix": fresh_prefix(), "redis": redis })));
        let mut session = engine.session(&engine.shards[0]);
        let queue = session.keys.queues[0].queue.clone();
        let seen = session.keys.seen("p");
        session.enqueue("1", &seen, Side::Left, &enqueue(&queue, &[job("a")])).await.unwrap();
        let replicated: i64 = {
            let mut master = group.master().connection().await;
            redis::cmd("WAIT").arg(1).arg(10_000).query_async(&mut master).await.unwrap()
        };
        assert_eq!(replicated, 1);
        let old = group.kill_master();
        assert!(session.time().await.unwrap_err().is_transient());
        let jobs = enqueue(&queue, &[job("b")]);
        session.persist(async |session| session.enqueue("2", &seen, Side::Left, &jobs).await).await.unwrap();
        assert_ne!(group.wait_failover(old).await, old);
        let page = session.page(&queue, jobqueue::store::PageKind::Head, 9).await.unwrap();
        assert_eq!(ids(&page.entries), ["b", "a"]);
    }

    #[tokio::test]
    async fn a_sentinel_that_hangs_keeps_nobody_from_the_others() {
        let group = Sentinel::start(0).await;
        let (hung, _open) = hung().await;
        let mut addrs = vec![hung];
        addrs.extend(group.addrs().iter().map(ToString::to_string));
        let sentinel = json!({ "master": Sentinel::MASTER, "addrs": addrs });
        works(session(&json!({ "sentinel": sentinel, "dial_timeout": "2s" }))).await;
    }

    /// Something that answers as Redis does, and sends everybody to a node that is gone.
    async fn behind_the_times() -> String {
        let port = e2e::child::free_port().to_string();
        let node = format!("$9\r\n127.0.0.1\r\n${}\r\n{port}\r\n", port.len());
        let master: &str = Box::leak(format!("*2\r\n{node}").into_boxed_str());
        let slots = format!("*1\r\n*3\r\n:0\r\n:16383\r\n*3\r\n$9\r\n127.0.0.1\r\n:{port}\r\n$2\r\nid\r\n");
        let answers = Box::leak(Box::new([
            ("PING", "+PONG\r\n"),
            ("HELLO", "*0\r\n"),
            ("get-master-addr-by-name", master),
            ("SLOTS", Box::leak(slots.into_boxed_str())),
        ]));
        stranger_at(Ipv4Addr::LOCALHOST.into(), answers).await.to_string()
    }

    #[tokio::test]
    async fn a_sentinel_that_names_a_master_that_is_gone_does_not_hide_the_others() {
        let group = Sentinel::start(0).await;
        let mut addrs = vec![behind_the_times().await];
        addrs.extend(group.addrs().iter().map(ToString::to_string));
        let sentinel = json!({ "master": Sentinel::MASTER, "addrs": addrs });
        works(session(&json!({ "sentinel": sentinel }))).await;
    }

    #[tokio::test]
    async fn a_node_that_names_an_owner_that_is_gone_does_not_hide_the_others() {
        let cluster = e2e::Cluster::start().await;
        let addrs = format!("{},{}", behind_the_times().await, cluster.addrs()[0]);
        works(session(&json!({ "addr": addrs, "cluster": true }))).await;
    }

    #[tokio::test]
    async fn a_master_that_two_sentinels_name_and_that_is_gone_is_named() {
        let addrs = [behind_the_times().await, behind_the_times().await];
        let error = fails(session(&json!({ "sentinel": { "master": "m", "addrs": addrs } }))).await;
        assert!(error.to_string().contains("127.0.0.1:"), "{error}");
        assert!(!error.is_permanent());
    }

    #[tokio::test]
    async fn a_sentinel_that_asks_for_a_password_gets_its_own() {
        let group = Sentinel::start_with_password(0, Some("s3ntinel")).await;
        let addrs: Vec<String> = group.addrs().iter().map(ToString::to_string).collect();
        let with = |password: &str| {
            let sentinel = json!({ "master": Sentinel::MASTER, "addrs": addrs, "password": password });
            session(&json!({ "sentinel": sentinel }))
        };
        works(with("s3ntinel")).await;
        for wrong in ["", "wrong"] {
            let error = fails(with(wrong)).await;
            assert!(error.to_string().contains("check redis.sentinel.username and"), "{wrong:?}: {error}");
            assert!(!error.is_permanent(), "another Sentinel may know us");
        }
    }

    #[tokio::test]
    async fn a_master_that_no_sentinel_knows_is_named() {
        // A Redis that is no Sentinel does not know the command either.
        let addr = shared_server().await.addr().to_string();
        let redis = json!({ "sentinel": { "master": "unknown", "addrs": [addr] } });
        let error = fails(session(&redis)).await;
        assert!(error.to_string().contains("sentinel master unknown"), "{error}");
        assert!(!error.is_permanent());
    }
}
