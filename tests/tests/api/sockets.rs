//! Bad HTTP on raw sockets: whatever comes, the server goes on serving.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a panic is the report")]

use std::time::Duration;

use crate::scene::{SOON, Scene};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

async fn socket(scene: &Scene) -> TcpStream {
    TcpStream::connect(scene.addr).await.unwrap()
}

/// Sends some bytes, closes its half of the connection if asked to, and reads until the server closes the rest.
pub async fn say(scene: &Scene, bytes: &[u8], close: bool) -> String {
    let mut socket = socket(scene).await;
    // The server may close while we write: that is its answer.
    let _ = socket.write_all(bytes).await;
    if close {
        let _ = socket.shutdown().await;
    }
    let mut answer = Vec::new();
    timeout(SOON, socket.read_to_end(&mut answer)).await.expect("the server to end the connection").ok();
    String::from_utf8_lossy(&answer).into_owned()
}

async fn serves(scene: &Scene) {
    scene.create("t").await;
}

#[tokio::test]
async fn bad_http_is_refused_and_the_server_goes_on() {
    let scene = Scene::with(|options| options.env("API_HEADER_TIMEOUT", "500ms")).await;
    let long_line = format!("GET /{} HTTP/1.1\r\nhost: x\r\n\r\n", "a".repeat(100_000));
    let long_header = format!("GET /jobs HTTP/1.1\r\nhost: x\r\nx: {}\r\n\r\n", "a".repeat(100_000));
    let many: Vec<String> = (0..1000).map(|n| format!("x-{n}: y\r\n")).collect();
    let many = format!("GET /jobs HTTP/1.1\r\nhost: x\r\n{}\r\n", many.concat());
    let two_lengths = "POST /jobs HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n{}";
    let bad_chunk = "POST /jobs HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n{}";
    let smuggled = "POST /jobs HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n";
    for (bytes, expected) in [
        ("\r\n\r\n\r\n", ""),
        ("NONSENSE\r\n\r\n", "400"),
        ("GET /jobs HTTP/9.9\r\n\r\n", "400"),
        ("GET jobs HTTP/1.1\r\nhost: x\r\n\r\n", "404"),
        ("GET /jobs HTTP/1.1\r\n: x\r\n\r\n", "400"),
        (two_lengths, "400"),
        (bad_chunk, "400"),
        (smuggled, ""),
        (&long_line, ""),
        (&long_header, "431"),
        (&many, "431"),
    ] {
        let answer = say(&scene, bytes.as_bytes(), false).await;
        let line = answer.lines().next().unwrap_or_default();
        assert!(line.contains(expected) && !line.contains(" 20"), "{bytes:.80}: {line}");
    }
    serves(&scene).await;
}

#[tokio::test]
async fn random_bytes_do_it_no_harm() {
    let scene =
        Scene::with(|options| options.env("API_HEADER_TIMEOUT", "500ms").env("API_BODY_TIMEOUT", "500ms"))
            .await;
    let mut random = fastrand::Rng::with_seed(8);
    let starts = [
        "",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "POST /jobs HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n",
        "GET /jobs HTTP/1.1\r\nhost: x\r\n",
        "DELETE /jobs/%ff%00 HTTP/1.1\r\nhost: x\r\n\r\n",
    ];
    let scene = &scene;
    let noise: Vec<Vec<u8>> = (0..300)
        .map(|n| {
            let mut bytes = starts[n % starts.len()].as_bytes().to_vec();
            let length = random.usize(..2000);
            bytes.extend(std::iter::repeat_with(|| random.u8(..)).take(length));
            bytes
        })
        .collect();
    for page in noise.chunks(30) {
        futures::future::join_all(page.iter().map(|bytes| say(scene, bytes, true))).await;
    }
    serves(scene).await;
}

#[tokio::test]
async fn slow_heads_and_slow_bodies_are_ended() {
    let scene =
        Scene::with(|options| options.env("API_HEADER_TIMEOUT", "300ms").env("API_BODY_TIMEOUT", "300ms"))
            .await;
    let slow_head = say(&scene, b"GET /jobs HTTP/1.1\r\nhost:", false).await;
    assert!(!slow_head.contains(" 200 "), "{slow_head}");
    let head =
        "POST /jobs HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{";
    let slow_body = say(&scene, head.as_bytes(), false).await;
    assert!(slow_body.starts_with("HTTP/1.1 408") && slow_body.contains("body_timeout"), "{slow_body}");
    serves(&scene).await;
}

#[tokio::test]
async fn a_client_that_leaves_its_answers_lying_is_ended_and_its_room_given_back() {
    let scene = Scene::with(|options| {
        options.env("API_ANSWER_TIMEOUT", "300ms").env("OBSERVABILITY_LOG_LEVEL", "debug")
    })
    .await;
    let large = json!({ "type": "t", "payload": "x".repeat(1_000_000) });
    let created = scene.post("/jobs", &large).await;
    let request = format!("GET /jobs/{} HTTP/1.1\r\nhost: x\r\n\r\n", created.body["id"].as_str().unwrap());
    // More than the kernel takes for it.
    let mut lazy = TcpStream::connect(scene.addr).await.unwrap();
    lazy.write_all(request.repeat(64).as_bytes()).await.unwrap();
    scene.api.wait_for_log("Closed a connection that left its answers lying").await;
    assert_eq!(scene.post("/jobs", &large).await.status, 201);
    drop(lazy);
}

#[tokio::test]
async fn a_body_that_ends_too_early_creates_nothing() {
    let scene = Scene::start().await;
    let head =
        "POST /jobs HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n";
    say(&scene, format!("{head}{{\"type\":\"t\"}}").as_bytes(), true).await;
    assert!(scene.queued().await.is_empty());
    serves(&scene).await;
}

#[tokio::test]
async fn half_closed_connections_are_ended_and_hold_nothing() {
    // One place, and nobody is too slow while this test runs: only their end gives it back.
    let scene =
        Scene::with(|options| options.env("API_MAX_CONNECTIONS", "1").env("API_HEADER_TIMEOUT", "10m")).await;
    for request in
        ["", "GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n", "GET /healthz HTTP/1.1\r\n", "POST /jobs HT"]
    {
        // Answered or not: whoever says no more may be gone, and is not waited for.
        say(&scene, request.as_bytes(), true).await;
        // Over a connection that gives the one place back in its turn.
        let answer =
            say(&scene, b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n", false).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{request:?}: {answer}");
    }
    serves(&scene).await;
}

#[tokio::test]
async fn answers_that_nobody_reads_are_bounded_and_others_hear_of_it() {
    let scene = Scene::start().await;
    let large = serde_json::json!({ "type": "t", "payload": "x".repeat(1_000_000) });
    let created = scene.post("/jobs", &large).await;
    assert_eq!(created.status, 201);
    let path = format!("/jobs/{}", created.body["id"].as_str().unwrap());
    // Windows so small that nearly all of an answer stays where it is.
    let client = reqwest::Client::builder()
        .http2_prior_knowledge()
        .http2_initial_stream_window_size(65_535)
        .http2_initial_connection_window_size(65_535)
        .build()
        .unwrap();
    let before = scene.api.allocated_kib();
    let heads = (0..90).map(|_| client.get(scene.url(&path)).send());
    let unread = futures::future::try_join_all(heads).await.unwrap();
    let refused = unread.iter().filter(|answer| answer.status() == 503).count();
    let kept = unread.len() - refused;
    println!(
        "{kept} answers of 1 MB lie unread, {refused} were refused; {before} KiB before, {} now",
        scene.api.allocated_kib()
    );
    assert!((60..=68).contains(&kept), "{kept}");
    scene.get(&path).await.is_problem(503, "overloaded");
    scene.post("/jobs", &large).await.is_problem(503, "overloaded");
    assert_eq!(scene.queued().await.len(), 1, "nothing is created that could not be answered");
    assert_eq!(scene.get("/healthz").await.status, 200);
    drop((unread, client));
    e2e::eventually(SOON, "the memory to be given back", async || {
        let answer = scene.get(&path).await;
        if answer.status == 200 { Ok(()) } else { Err(answer.status) }
    })
    .await;
    serves(&scene).await;
}

#[tokio::test]
async fn connections_beyond_the_limit_wait_until_others_end() {
    let scene =
        Scene::with(|options| options.env("API_MAX_CONNECTIONS", "3").env("API_HEADER_TIMEOUT", "1s")).await;
    // Those that say nothing, or not enough to know what they speak, hold their places until they are too slow.
    let mut idle = futures::future::join_all((0..3).map(|_| socket(&scene))).await;
    idle[0].write_all(b"PRI * HTTP/2.0").await.unwrap();
    idle[1].write_all(b"P").await.unwrap();
    serves(&scene).await;
    drop(idle);
    serves(&scene).await;
}

#[tokio::test]
async fn requests_that_go_away_leave_nothing_behind() {
    let scene = Scene::start().await;
    let id = scene.create("t").await;
    for _ in 0..50 {
        let mut socket = socket(&scene).await;
        let request = format!("GET /jobs/{id}?wait=60s HTTP/1.1\r\nhost: x\r\n\r\n");
        socket.write_all(request.as_bytes()).await.unwrap();
    }
    e2e::eventually(SOON + Duration::from_secs(5), "nobody to wait", async || {
        match scene.api.metric("http_requests_waiting", &[]).await {
            Some(0.0) => Ok(()),
            other => Err(other),
        }
    })
    .await;
    serves(&scene).await;
}

#[tokio::test]
async fn an_idle_http_2_connection_gives_its_place_to_others() {
    let scene =
        Scene::with(|options| options.env("API_MAX_CONNECTIONS", "1").env("API_HEADER_TIMEOUT", "300ms"))
            .await;
    let idle = reqwest::Client::builder().http2_prior_knowledge().pool_idle_timeout(None).build().unwrap();
    for _ in 0..3 {
        assert_eq!(idle.get(scene.url("/healthz")).send().await.unwrap().status(), 200);
        // Over HTTP/1, which is closed at its own end.
        say(&scene, b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n", false).await;
    }
}

#[tokio::test]
async fn a_request_that_waits_on_an_http_2_connection_does_not_make_it_idle() {
    let scene = Scene::with(|options| options.env("API_HEADER_TIMEOUT", "100ms")).await;
    let client = reqwest::Client::builder().http2_prior_knowledge().build().unwrap();
    let id = scene.create("t").await;
    let waiting = client.get(scene.url(&format!("/jobs/{id}?wait=1s"))).send().await.unwrap();
    assert_eq!(waiting.status(), 200);
}
