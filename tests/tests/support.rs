//! The support is itself tested: a fault injector that injects nothing would make every test of faults pass.

use std::time::Duration;

use bytes::Bytes;
use e2e::redis_server::connect;
use e2e::{
    AppendOnly, Behaviour, Cluster, Fault, Options, Proxy, Recorder, RedisServer, Sentinel, Tls, eventually,
};
use redis::AsyncCommands as _;
use serde_json::json;

const SOON: Duration = Duration::from_secs(20);

fn is(command: &[Bytes], name: &str) -> bool {
    command[0].eq_ignore_ascii_case(name.as_bytes())
}

#[tokio::test]
async fn a_server_answers_and_keeps_what_it_acknowledged_when_killed() {
    let options =
        Options { appendonly: AppendOnly::Always, password: Some("geheim".into()), ..Options::default() };
    let mut server = RedisServer::start(options).await;
    server.connection().await.set::<_, _, ()>("k", "v").await.unwrap();
    let port = server.port();
    server.kill9();
    server.restart().await;
    assert_eq!(server.port(), port);
    assert_eq!(server.cli(&["GET", "k"]), "v");
    server.stop().await;
    server.restart().await;
    assert_eq!(server.cli(&["GET", "k"]), "v");
}

#[tokio::test]
async fn a_paused_server_answers_after_it_was_resumed() {
    let server = RedisServer::start(Options::default()).await;
    let mut connection = server.connection().await;
    server.pause();
    let mut waiting =
        tokio::spawn(async move { redis::cmd("PING").query_async::<String>(&mut connection).await });
    assert!(tokio::time::timeout(Duration::from_millis(200), &mut waiting).await.is_err());
    server.resume();
    assert_eq!(waiting.await.unwrap().unwrap(), "PONG");
}

#[tokio::test]
async fn users_sockets_and_memory_limits_are_as_asked_for() {
    let options = Options {
        users: vec!["worker on >pw ~jobqueue:* +@all".into()],
        unix_socket: true,
        maxmemory: Some("100mb".into()),
        ..Options::default()
    };
    let server = RedisServer::start(options).await;
    let mut worker = server.connection_as("worker", "pw").await.unwrap();
    worker.set::<_, _, ()>("jobqueue:a", 1).await.unwrap();
    assert_eq!(worker.set::<_, _, ()>("other", 1).await.unwrap_err().code(), Some("NOPERM"));
    assert!(server.connection_as("worker", "wrong").await.is_err());
    assert!(std::os::unix::net::UnixStream::connect(server.unix_socket()).is_ok());
    assert_eq!(server.cli(&["CONFIG", "GET", "maxmemory"]), "maxmemory\n104857600");
}

#[tokio::test]
async fn a_tls_server_asks_for_the_certificates_it_was_told_to() {
    let server = RedisServer::start(Options { tls: Tls::Mutual, ..Options::default() }).await;
    assert!(server.url().starts_with("rediss://"));
    let pong: String = redis::cmd("PING").query_async(&mut server.connection().await).await.unwrap();
    assert_eq!(pong, "PONG");
    assert_eq!(server.cli(&["PING"]), "PONG");
}

#[tokio::test]
async fn sentinel_names_a_new_master_when_the_old_one_dies() {
    let mut group = Sentinel::start(1).await;
    let old = group.kill_master();
    let new = group.wait_failover(old).await;
    assert_ne!(new, old);
    assert_eq!(group.master_addr(), new);
    group.master().connection().await.set::<_, _, ()>("k", "v").await.unwrap();
    group.restart_node(old).await;
    let old_node = group.nodes().iter().find(|node| node.addr() == old).unwrap();
    eventually(SOON, "the old master to follow the new one", async || {
        let role = old_node.cli(&["ROLE"]);
        if role.starts_with("slave") { Ok(()) } else { Err(role) }
    })
    .await;
}

#[tokio::test]
async fn a_moved_slot_takes_its_keys_along() {
    let cluster = Cluster::start().await;
    let slot = cluster.slot_of("k");
    let from = cluster.owner_of(slot);
    let to = (from + 1) % 3;
    assert_eq!(cluster.nodes()[from].cli(&["SET", "k", "v"]), "OK");
    assert!(cluster.nodes()[to].cli(&["GET", "k"]).starts_with("MOVED"));

    cluster.move_slot(slot, to).await;
    assert_eq!(cluster.nodes()[to].cli(&["GET", "k"]), "v");
    assert!(cluster.nodes()[from].cli(&["GET", "k"]).starts_with(&format!("MOVED {slot}")));

    cluster.move_all_slots(to, from).await;
    assert_eq!(cluster.slots_of(to), Vec::<u16>::new());
    assert_eq!(cluster.nodes()[from].cli(&["GET", "k"]), "v");
    cluster.wait_ok().await;
}

#[tokio::test]
async fn exactly_one_reply_is_lost_and_the_command_was_carried_out() {
    let server = RedisServer::start(Options::default()).await;
    let proxy = Proxy::start(server.addr()).await;
    let rule = proxy.drop_reply_once(|command| is(command, "INCRBY"));

    let mut connection = connect(&proxy.url()).await;
    let mut pipeline = redis::pipe();
    pipeline.set("before", 1).incr("n", 1).set("after", 1);
    assert!(pipeline.query_async::<()>(&mut connection).await.is_err());
    rule.hit().await;
    assert_eq!(server.cli(&["GET", "n"]), "1");

    let mut connection = connect(&proxy.url()).await;
    assert_eq!(connection.incr::<_, _, i64>("n", 1).await.unwrap(), 2);
    assert_eq!(rule.hits(), 1);
    assert_eq!(proxy.counters().by_name["INCRBY"], 2);
}

#[tokio::test]
async fn a_lost_command_never_reaches_the_server() {
    let server = RedisServer::start(Options::default()).await;
    let proxy = Proxy::start(server.addr()).await;
    let third = proxy.on(Fault::LoseCommand, 2, 1, |command| is(command, "INCRBY"));
    let mut connection = connect(&proxy.url()).await;
    for expected in 1..=2 {
        assert_eq!(connection.incr::<_, _, i64>("n", 1).await.unwrap(), expected);
    }
    assert!(connection.incr::<_, _, i64>("n", 1).await.is_err());
    assert_eq!(third.hits(), 1);
    assert_eq!(server.cli(&["GET", "n"]), "2");
}

#[tokio::test]
async fn held_frozen_and_invented_replies_come_in_order() {
    let server = RedisServer::start(Options::default()).await;
    let proxy = Proxy::start(server.addr()).await;
    let mut connection = connect(&proxy.url()).await;

    let held = proxy.hold_replies(|command| is(command, "SET"));
    let mut writer = connection.clone();
    let waiting = tokio::spawn(async move { writer.set::<_, _, ()>("k", "v").await });
    held.hit().await;
    assert_eq!(server.cli(&["GET", "k"]), "v", "the server has answered, the client has not heard");
    assert!(!waiting.is_finished());
    held.release();
    waiting.await.unwrap().unwrap();

    let full = Fault::Answer(Bytes::from_static(b"-OOM command not allowed\r\n"));
    proxy.on(full, 0, 1, |command| is(command, "LPUSH"));
    let mut pipeline = redis::pipe();
    pipeline.get("k").lpush("list", 1).get("k");
    let error = pipeline.query_async::<()>(&mut connection).await.unwrap_err();
    assert!(error.to_string().contains("OOM"), "{error}");
    assert_eq!(server.cli(&["EXISTS", "list"]), "0");
    assert_eq!(connection.get::<_, String>("k").await.unwrap(), "v");

    proxy.freeze();
    let mut reader = connection.clone();
    let waiting = tokio::spawn(async move { reader.get::<_, String>("k").await });
    assert_eq!(server.cli(&["GET", "k"]), "v");
    assert!(!waiting.is_finished());
    proxy.thaw();
    assert_eq!(waiting.await.unwrap().unwrap(), "v");

    proxy.cut();
    eventually(SOON, "the cut to be noticed", async || connection.get::<_, String>("k").await.is_err()).await;
}

#[tokio::test]
async fn large_values_blocking_commands_and_resp3_pass_unchanged() {
    let server = RedisServer::start(Options::default()).await;
    let proxy = Proxy::start(server.addr()).await;
    let mut connection = connect(&format!("{}?protocol=resp3", proxy.url())).await;
    let large = vec![b'\n'; 5 << 20];
    connection.set::<_, _, ()>("large", &large).await.unwrap();
    assert_eq!(connection.get::<_, Vec<u8>>("large").await.unwrap(), large);
    connection.hset::<_, _, _, ()>("hash", "field", "value").await.unwrap();
    let map: std::collections::HashMap<String, String> = connection.hgetall("hash").await.unwrap();
    assert_eq!(map["field"], "value");

    let before = proxy.counters();
    let mut other = connect(&proxy.url()).await;
    let waiting = tokio::spawn(async move { connection.blpop::<_, (String, String)>("list", 0.0).await });
    eventually(SOON, "a blocked client", async || {
        server.cli(&["INFO", "clients"]).contains("blocked_clients:1")
    })
    .await;
    other.rpush::<_, _, ()>("list", "x").await.unwrap();
    assert_eq!(waiting.await.unwrap().unwrap(), ("list".to_owned(), "x".to_owned()));

    let mut pipeline = redis::pipe();
    (0..100).for_each(|n| {
        pipeline.set(n, n).ignore();
    });
    let start = proxy.counters();
    pipeline.query_async::<()>(&mut other).await.unwrap();
    let end = proxy.counters();
    assert_eq!(end.commands - start.commands, 100);
    assert!(end.round_trips - start.round_trips <= 3, "a pipeline is one round trip, or few if cut by TCP");
    assert_eq!(end.connections, before.connections + 1);
    assert!(end.reply_bytes > 5 << 20);
}

#[tokio::test]
async fn the_recorder_remembers_every_run_and_behaves_as_told() {
    let recorder = Recorder::start().await;
    let client = e2e::http::client();
    let url = format!("{}/jobs/execute", recorder.url());
    let post = |id: &str| client.post(&url).json(&json!({"id": id})).send();

    recorder.behave("a", [Behaviour::Unavailable, Behaviour::HangUp]);
    assert_eq!(post("a").await.unwrap().status().as_u16(), 503);
    assert!(post("a").await.is_err());
    assert_eq!(post("a").await.unwrap().json::<serde_json::Value>().await.unwrap()["status"], "success");
    assert_eq!(recorder.duplicates()["a"], 3);

    recorder.behave("b", [Behaviour::Hold]);
    let waiting = tokio::spawn(post("b"));
    recorder.wait_started("b", 1).await;
    assert_eq!(recorder.running(), ["b"]);
    recorder.release("b");
    assert!(waiting.await.unwrap().unwrap().status().is_success());

    recorder.behave("c", [Behaviour::Hold]);
    let abandoned = tokio::spawn(post("c"));
    recorder.wait_started("c", 1).await;
    abandoned.abort();
    eventually(SOON, "the recorder to notice", async || recorder.running().is_empty()).await;
    assert_eq!(recorder.runs_of("c")[0].ended.as_ref().unwrap().1, e2e::recorder::End::Abandoned);
    assert_eq!(recorder.answered(), 2);
    assert_eq!(recorder.runs()[0].headers["content-type"], "application/json");
}
