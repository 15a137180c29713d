use super::super::tests::job;
use super::*;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio_rustls::TlsAcceptor;

const JOB: &str = r#"{"id":"j-1","retries":2, "class":"Hard","args":[12345678901234567890]}"#;

fn answer(status: &str, headers: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n{headers}\r\n{body}", body.len())
}

/// One whole request: head and body.
async fn request(stream: &mut (impl AsyncRead + Unpin)) -> Option<(String, String)> {
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes);
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let head = head.to_ascii_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            if body.len() == length.unwrap_or("0").parse::<usize>().unwrap() {
                return Some((head, body.to_owned()));
            }
        }
        if stream.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
            return None;
        }
    }
}

async fn listener() -> (TcpListener, HttpSettings) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    (listener, HttpSettings { url, timeout: Duration::from_secs(20), ..HttpSettings::default() })
}

/// Posts one job to a server that gives this answer, and says what came of it.
async fn answered(response: String) -> Outcome {
    answered_by(response, false).await
}

async fn answered_by(response: String, sidecar: bool) -> Outcome {
    let (listener, settings) = listener().await;
    let settings = HttpSettings { sidecar, ..settings };
    let server = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        request(&mut stream).await.unwrap();
        stream.write_all(response.as_bytes()).await.unwrap();
        stream
    };
    let http = Http::new(&settings).unwrap();
    tokio::join!(post(&http), server).0
}

async fn post(http: &Http) -> Outcome {
    http.handle(&job(JOB), &Call::default()).await
}

async fn serve_one(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> (String, String) {
    let seen = request(&mut stream).await.unwrap();
    stream.write_all(answer("200 OK", "", "").as_bytes()).await.unwrap();
    stream.flush().await.unwrap();
    seen
}

#[tokio::test]
async fn a_job_is_posted_byte_for_byte_with_what_is_known_about_its_run() {
    let (listener, settings) = listener().await;
    let http = Http::new(&settings).unwrap();
    let call = Call {
        queue: "mail".into(),
        traceparent: Some("00-aa-bb-01".into()),
        request_id: Some("r-7".into()),
        ..Call::default()
    };
    let server = async { serve_one(listener.accept().await.unwrap().0).await };
    let subject = job(JOB);
    let (outcome, (head, body)) = tokio::join!(http.handle(&subject, &call), server);
    assert_eq!(outcome, Outcome::Done);
    assert_eq!(body, JOB);
    assert!(head.starts_with("post /jobs/execute http/1.1\r\n"), "{head}");
    for line in [
        "content-type: application/json",
        "traceparent: 00-aa-bb-01",
        "x-request-id: r-7",
        "x-job-id: j-1",
        "x-job-queue: mail",
        "x-job-attempt: 3",
        concat!("user-agent: jobqueue-worker/", env!("CARGO_PKG_VERSION")),
    ] {
        assert!(head.lines().any(|found| found == line), "{line} in {head}");
    }
    let timeout = head.lines().find_map(|line| line.strip_prefix("x-job-timeout: ")).unwrap();
    assert!((10.0..=20.0).contains(&timeout.parse::<f64>().unwrap()), "{timeout}");
    assert!(!head.contains("authorization"), "{head}");
}

#[tokio::test]
async fn the_end_of_a_job_is_told_beside_where_jobs_are_posted() {
    for (path, death) in [("/jobs/execute", "/jobs/death"), ("/run?app=1", "/death"), ("/", "/death")] {
        let (listener, settings) = listener().await;
        let http = Http::new(&HttpSettings { path: path.into(), ..settings }).unwrap();
        let (job, call) = (job(JOB), Call::default());
        let served = async { serve_one(listener.accept().await.unwrap().0).await };
        let (outcome, (head, body)) = tokio::join!(http.bury(&job, &call), served);
        assert_eq!((outcome, body.as_str()), (Outcome::Done, JOB));
        assert!(head.starts_with(&format!("post {death} http/1.1")), "{head}");
    }
}

#[tokio::test]
async fn a_program_that_stops_jobs_is_asked_until_none_of_them_runs() {
    let (listener, settings) = listener().await;
    let http = Http::new(&HttpSettings { sidecar: true, ..settings.clone() }).unwrap();
    let server = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        for running in [2, 1, 0] {
            let (head, body) = request(&mut stream).await.unwrap();
            assert!(head.starts_with("post /jobs/interrupt http/1.1"), "{head}");
            assert_eq!(body, r#"{"jids":["j-1"],"gently":false}"#);
            let body = format!(r#"{{"status":"success","running":{running}}}"#);
            stream.write_all(answer("200 OK", "", &body).as_bytes()).await.unwrap();
        }
    };
    let jobs = [Arc::new(named(r#""j-1""#))];
    assert!(tokio::join!(http.stop(&jobs), server).0);
    assert!(!http.stop(&[]).await, "nobody is asked about no jobs");
    assert!(!Http::new(&settings).unwrap().stop(&jobs).await, "nor who does not know how");
}

/// A job of Sidekiq's with this `jid`.
fn named(jid: &str) -> Job {
    let raw = Bytes::from(format!(r#"{{"class":"Hard","args":[],"jid":{jid}}}"#));
    let id = jid.trim_matches('"').to_owned();
    Job { raw, fields: jobqueue::job::Fields { id, ..Default::default() } }
}

#[tokio::test]
async fn of_a_job_without_a_text_for_its_name_nobody_knows_whether_it_was_stopped() {
    for (jid, sent) in [("\"\"", r#"["a"]"#), ("7", r#"["a","7"]"#)] {
        let (listener, settings) = listener().await;
        let http = Http::new(&HttpSettings { sidecar: true, ..settings }).unwrap();
        let server = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let (_, body) = request(&mut stream).await.unwrap();
            assert_eq!(body, format!(r#"{{"jids":{sent},"gently":false}}"#));
            stream.write_all(answer("200 OK", "", r#"{"running":0}"#).as_bytes()).await.unwrap();
        };
        let jobs = [Arc::new(named(r#""a""#)), Arc::new(named(jid))];
        assert!(!tokio::join!(http.stop(&jobs), server).0, "{jid}");
    }
}

#[tokio::test]
async fn what_does_not_answer_as_the_sidecar_does_is_not_believed() {
    let not_it = [
        answer("404 Not Found", "", r#"{"status":"error","result":"there is nothing here"}"#),
        answer("405 Not Allowed", "allow: GET\r\n", ""),
        answer("500 Oops", "", r#"{"status":500,"error":"Internal Server Error"}"#),
        answer("502 Bad Gateway", "", "<html>"),
        answer("504 Gateway Timeout", "", ""),
        answer("200 OK", "", "<html>Welcome"),
        answer("200 OK", "", r#"{"status":"ok"}"#),
        answer("204 No Content", "", ""),
        "220 mail.example ESMTP\r\n".into(),
    ];
    for response in not_it {
        let outcome = answered_by(response.clone(), true).await;
        assert!(
            matches!(outcome, Outcome::Failed(Failure { reason: Reason::NoVerdict, raised: None, .. })),
            "{response}: {outcome:?}"
        );
    }
    let its_word = [
        answer("400 No", "", r#"{"status":"error","result":"args: must be an array"}"#),
        answer("413 Large", "", r#"{"status":"error","result":"the body is larger"}"#),
        answer("413 Payload Too Large", "", "Payload Too Large"),
        answer("500 Oops", "", r#"{"status":"failure","result":"boom"}"#),
        answer("200 OK", "", r#"{"status":"failure","result":"boom"}"#),
    ];
    for response in its_word {
        let outcome = answered_by(response.clone(), true).await;
        assert!(
            matches!(outcome, Outcome::Failed(Failure { reason: Reason::Handler, .. })),
            "{response}: {outcome:?}"
        );
    }
    assert_eq!(answered_by(answer("200 OK", "", r#"{"status":"success"}"#), true).await, Outcome::Done);
}

#[tokio::test]
async fn a_program_that_knows_no_way_to_stop_jobs_is_asked_once() {
    for response in [answer("404 Not Found", "", "{\"running\":1}"), answer("200 OK", "", "ok")] {
        let (listener, settings) = listener().await;
        let http = Http::new(&HttpSettings { sidecar: true, ..settings }).unwrap();
        let server = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            request(&mut stream).await.unwrap();
            stream.write_all(response.as_bytes()).await.unwrap();
        };
        let jobs = [Arc::new(job(JOB))];
        assert!(!tokio::join!(http.stop(&jobs), server).0);
    }
}

#[tokio::test]
async fn a_job_goes_over_a_unix_socket() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("app.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let settings = HttpSettings { unix_socket: Some(path.clone()), ..HttpSettings::default() };
    let http = Http::new(&settings).unwrap();
    let server = async { serve_one(listener.accept().await.unwrap().0).await };
    let (outcome, (head, body)) = tokio::join!(post(&http), server);
    assert_eq!((outcome, body.as_str()), (Outcome::Done, JOB));
    assert!(head.contains("host: localhost"), "{head}");

    drop(listener);
    assert!(matches!(post(&Http::new(&settings).unwrap()).await, Outcome::HandlerUnavailable(_)));
    std::fs::remove_file(path).unwrap();
    assert!(matches!(post(&Http::new(&settings).unwrap()).await, Outcome::HandlerUnavailable(_)));
}

#[tokio::test]
async fn the_body_of_a_success_is_its_verdict() {
    let body = r#"{"status":"failure","error_class":"E","error_message":"no"}"#;
    let outcome = answered(answer("200 OK", "content-type: application/json\r\n", body)).await;
    let Outcome::Failed(failure) = outcome else { panic!("{outcome:?}") };
    assert_eq!((failure.reason, failure.error.as_str()), (Reason::Handler, "E: no"));
    assert!(failure.raised.is_some(), "what was raised is told apart, for Sidekiq's fields");
    assert_eq!(answered(answer("204 No Content", "", "")).await, Outcome::Done);
}

#[tokio::test]
async fn other_statuses_fail_with_a_piece_of_the_body() {
    let long = "x".repeat(10_000);
    let Outcome::Failed(failure) = answered(answer("500 Oops", "", &long)).await else { panic!() };
    assert!(failure.error.starts_with("answered 500: xxx") && failure.error.len() < 5_000);
    assert_eq!(
        answered(answer("422 No", "", "bad args")).await,
        Outcome::Failed(Failure::new(Reason::Handler, "answered 422: bad args"))
    );
    // Never followed: the target is what was configured.
    assert_eq!(
        answered(answer("302 Found", "location: /other\r\n", "")).await,
        Outcome::Failed(Failure::new(Reason::Handler, "answered 302"))
    );
}

#[tokio::test]
async fn a_429_is_obeyed_when_it_says_how_long() {
    let failure = Failure::new(Reason::Handler, "answered 429: slow");
    assert_eq!(
        answered(answer("429 Slow", "retry-after: 7\r\n", "slow")).await,
        Outcome::RetryIn(Duration::from_secs(7), failure.clone())
    );
    assert_eq!(answered(answer("429 Slow", "", "slow")).await, Outcome::Failed(failure.clone()));
    assert_eq!(answered(answer("500 No", "retry-after: 7\r\n", "")).await, {
        Outcome::Failed(Failure::new(Reason::Handler, "answered 500"))
    });
}

#[test]
fn retry_after_may_be_a_date() {
    let now: Timestamp = "2015-10-21T07:27:50Z".parse().unwrap();
    let wait = |value: &'static str| {
        let headers = HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_static(value))]);
        retry_after(StatusCode::TOO_MANY_REQUESTS, &headers, now)
    };
    assert_eq!(wait("Wed, 21 Oct 2015 07:28:00 GMT"), Some(Duration::from_secs(10)));
    assert_eq!(wait("Wed, 21 Oct 2015 07:27:00 GMT"), Some(Duration::ZERO));
    assert_eq!(wait("soon"), None);
}

#[tokio::test]
async fn a_busy_program_is_asked_again_until_it_has_room() {
    let (listener, settings) = listener().await;
    let http = Http::new(&settings).unwrap();
    let server = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        for response in [answer("503 Busy", "retry-after: 0\r\n", "{}"), answer("200 OK", "", "")] {
            let (head, body) = if let Some(seen) = request(&mut stream).await {
                seen
            } else {
                // The answer came slowly: its connection was not used again.
                stream = listener.accept().await.unwrap().0;
                request(&mut stream).await.unwrap()
            };
            assert!(head.contains("x-job-last-attempt: true"), "{head}");
            assert_eq!(body, JOB);
            stream.write_all(response.as_bytes()).await.unwrap();
        }
    };
    let (subject, call) = (job(JOB), Call { last_attempt: Some(true), ..Call::default() });
    let (outcome, ()) = tokio::join!(http.handle(&subject, &call), server);
    assert_eq!(outcome, Outcome::Done);
}

#[tokio::test]
async fn a_program_that_stays_busy_gives_the_job_back() {
    let (listener, mut settings) = listener().await;
    // Less than the shortest time that it is left alone.
    settings.timeout = Duration::from_millis(700);
    let http = Http::new(&settings).unwrap();
    let server = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        while request(&mut stream).await.is_some() {
            let busy = answer("503 Busy", "retry-after: 9\r\n", "{}");
            stream.write_all(busy.as_bytes()).await.unwrap();
        }
    };
    let outcome =
        tokio::select! { outcome = post(&http) => outcome, () = server => panic!("nothing was posted") };
    assert!(matches!(outcome, Outcome::HandlerUnavailable(_)), "{outcome:?}");
}

#[tokio::test]
async fn a_503_is_not_the_jobs_fault_even_when_its_body_is_cut_off() {
    for response in [
        answer("503 Stopping", "", "{\"status\":\"failure\"}"),
        "HTTP/1.1 503 Busy\r\ncontent-length: 100\r\n\r\ncut".into(),
    ] {
        assert!(matches!(answered(response).await, Outcome::HandlerUnavailable(_)));
    }
}

#[tokio::test]
async fn a_peer_that_cannot_be_reached_is_not_the_jobs_fault() {
    let (listener, settings) = listener().await;
    drop(listener);
    assert!(matches!(post(&Http::new(&settings).unwrap()).await, Outcome::HandlerUnavailable(_)), "refused");
    let unknown = HttpSettings { url: "http://no-such-host.invalid".into(), ..settings };
    assert!(matches!(post(&Http::new(&unknown).unwrap()).await, Outcome::HandlerUnavailable(_)), "unknown");
}

#[tokio::test]
async fn a_peer_that_dies_with_the_request_was_interrupted() {
    let (listener, settings) = listener().await;
    let http = Http::new(&settings).unwrap();
    let server = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        request(&mut stream).await.unwrap();
    };
    let outcome = tokio::join!(post(&http), server).0;
    assert!(matches!(outcome, Outcome::HandlerDied(_)), "{outcome:?}");
}

#[tokio::test]
async fn a_peer_that_dies_within_its_answer_was_interrupted() {
    for begun in [
        "HTTP/1.1 200 OK\r\ncontent-len",
        "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"status\":\"success\"}",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n",
    ] {
        let (listener, settings) = listener().await;
        let http = Http::new(&settings).unwrap();
        let server = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            request(&mut stream).await.unwrap();
            stream.write_all(begun.as_bytes()).await.unwrap();
        };
        let outcome = tokio::join!(post(&http), server).0;
        assert!(matches!(outcome, Outcome::HandlerDied(_)), "{begun}: {outcome:?}");
    }
}

#[tokio::test]
async fn a_connection_that_the_peer_closed_while_idle_is_replaced() {
    let (listener, settings) = listener().await;
    let http = Http::new(&settings).unwrap();
    for _ in 0..20 {
        let server = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            request(&mut stream).await.unwrap();
            stream.write_all(answer("200 OK", "", "").as_bytes()).await.unwrap();
            stream.shutdown().await.unwrap();
            stream
        };
        let (outcome, mut stream) = tokio::join!(post(&http), server);
        assert_eq!(outcome, Outcome::Done);
        // The end of what the client sends: it has seen our end, and will not use this one again.
        assert_eq!(stream.read(&mut [0; 1]).await.unwrap(), 0);
    }
}

#[tokio::test]
async fn a_connection_is_used_again() {
    let (listener, settings) = listener().await;
    let http = Http::new(&settings).unwrap();
    let server = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        for _ in 0..3 {
            serve_one(&mut stream).await;
        }
        stream
    };
    let jobs = async {
        for _ in 0..3 {
            assert_eq!(post(&http).await, Outcome::Done);
        }
    };
    tokio::join!(jobs, server);
}

#[tokio::test]
async fn what_is_not_http_fails_the_job() {
    let outcome = answered("220 mail.example ESMTP\r\n".into()).await;
    assert!(matches!(outcome, Outcome::Failed(Failure { reason: Reason::Handler, .. })), "{outcome:?}");
}

#[tokio::test]
async fn an_answer_without_end_is_not_read_to_its_end() {
    let (listener, settings) = listener().await;
    let http = Http::new(&settings).unwrap();
    let server = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        request(&mut stream).await.unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n{\"status\":\"success\",\"result\":\"").await.unwrap();
        while stream.write_all(&[b'x'; 4096]).await.is_ok() {}
    };
    let (outcome, ()) = tokio::join!(post(&http), server);
    assert_eq!(outcome, Outcome::Done);
}

#[tokio::test]
async fn a_peer_that_says_nothing_in_time_failed_and_its_connection_is_closed() {
    let (listener, settings) = listener().await;
    let http = Http::new(&HttpSettings { timeout: Duration::from_millis(100), ..settings }).unwrap();
    let server = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        request(&mut stream).await.unwrap();
        stream.read(&mut [0; 1]).await.unwrap()
    };
    let (outcome, read) = tokio::join!(post(&http), server);
    assert_eq!(read, 0);
    assert_eq!(outcome, Outcome::Failed(Failure::new(Reason::Timeout, "no answer within 100ms")));
}

#[tokio::test]
async fn a_request_carries_the_token_and_follows_its_rotation() {
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("token");
    let (listener, settings) = listener().await;
    let http = Http::new(&HttpSettings { token_file: Some(token.clone()), ..settings }).unwrap();
    assert!(matches!(post(&http).await, Outcome::HandlerUnavailable(_)), "no file yet");

    std::fs::write(&token, "first\n").unwrap();
    let server = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let (first, _) = request(&mut stream).await.unwrap();
        stream.write_all(answer("401 No", "", "").as_bytes()).await.unwrap();
        let (second, _) = request(&mut stream).await.unwrap();
        stream.write_all(answer("200 OK", "", "").as_bytes()).await.unwrap();
        (first, second, stream)
    };
    let jobs = async {
        let refused = post(&http).await;
        std::fs::write(&token, "second").unwrap();
        (refused, post(&http).await)
    };
    let ((refused, accepted), (first, second, _)) = tokio::join!(jobs, server);
    assert!(matches!(refused, Outcome::HandlerUnavailable(_)), "{refused:?}");
    assert_eq!(accepted, Outcome::Done);
    assert!(first.contains("authorization: bearer first") && second.contains("authorization: bearer second"));
}

#[tokio::test]
async fn of_several_tokens_the_first_is_sent() {
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("token");
    for tokens in ["one\ntwo\n", "\r\n \r\none\r\n\r\ntwo", "one"] {
        std::fs::write(&token, tokens).unwrap();
        let (listener, settings) = listener().await;
        let http = Http::new(&HttpSettings { token_file: Some(token.clone()), ..settings }).unwrap();
        let server = async { serve_one(listener.accept().await.unwrap().0).await };
        let (outcome, (head, _)) = tokio::join!(post(&http), server);
        assert_eq!(outcome, Outcome::Done, "{tokens:?}");
        let sent: Vec<&str> = head.lines().filter(|line| line.starts_with("authorization:")).collect();
        assert_eq!(sent, ["authorization: bearer one"], "{tokens:?}");
    }
}

#[tokio::test]
async fn the_user_of_the_url_is_said_as_basic_authorization() {
    let (listener, settings) = listener().await;
    let url = settings.url.replace("http://", "http://us%40er:s3cret@");
    let http = Http::new(&HttpSettings { url, ..settings }).unwrap();
    let server = async { serve_one(listener.accept().await.unwrap().0).await };
    let (outcome, (head, _)) = tokio::join!(post(&http), server);
    assert_eq!(outcome, Outcome::Done);
    // base64 of us@er:s3cret; the test's server lowers the case of all heads.
    assert!(head.contains("authorization: basic dxnazxi6cznjcmv0"), "{head}");
    assert!(!format!("{http:?}").contains("s3cret"));
}

#[tokio::test]
async fn a_connection_that_was_idle_for_too_long_is_closed() {
    let (listener, settings) = listener().await;
    let mut http = Http::new(&settings).unwrap();
    http.connections.keep_for = Duration::from_millis(20);
    let server = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        serve_one(&mut stream).await;
        // The end of what the client sends: the next job gets another connection.
        stream.read(&mut [0; 1]).await.unwrap()
    };
    let (outcome, read) = tokio::join!(post(&http), server);
    assert_eq!((outcome, read), (Outcome::Done, 0));
}

#[tokio::test]
async fn a_401_is_not_the_jobs_fault_and_says_what_to_do() {
    let outcome = answered(answer("401 No", "", "")).await;
    let Outcome::HandlerUnavailable(text) = outcome else { panic!("{outcome:?}") };
    assert!(text.contains("set worker.handler.http.token_file"), "{text}");
}

#[tokio::test]
async fn a_secret_is_read_again_when_old_and_kept_while_its_file_is_away() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("secret");
    let young = Secret::new(path.clone(), Duration::from_secs(3600));
    let old = Secret::new(path.clone(), Duration::ZERO);
    assert!(young.read().await.is_err() && old.read().await.is_err());
    std::fs::write(&path, " one\n").unwrap();
    assert_eq!((young.read().await.unwrap(), old.read().await.unwrap()), ("one".into(), "one".into()));
    std::fs::write(&path, "two").unwrap();
    assert_eq!((young.read().await.unwrap(), old.read().await.unwrap()), ("one".into(), "two".into()));
    std::fs::write(&path, "\n").unwrap();
    assert_eq!(old.read().await.unwrap(), "two", "an empty file is no secret");
    std::fs::remove_file(&path).unwrap();
    assert_eq!(old.read().await.unwrap(), "two");
    assert!(!format!("{old:?}").contains("two"));
    old.forget().await;
    assert!(old.read().await.is_err());
}

#[test]
fn the_signature_covers_time_path_and_body() {
    // printf '1700000000./jobs/execute?a=1.{"id":"1"}' | openssl dgst -sha256 -hmac key
    assert_eq!(
        sign(b"key", &[&b"1700000000./jobs/execute?a=1."[..], br#"{"id":"1"}"#]).unwrap(),
        "sha256=a1b24ff74bdc140dbae87759bf6507625139f5ffb819c455d3e5059fb0361a94"
    );
}

#[tokio::test]
async fn a_request_is_signed_as_it_is_sent() {
    let dir = tempfile::tempdir().unwrap();
    let key = dir.path().join("key");
    std::fs::write(&key, "k3y\n").unwrap();
    let (listener, settings) = listener().await;
    let http = Http::new(&HttpSettings { hmac_key_file: Some(key), ..settings }).unwrap();
    let server = async { serve_one(listener.accept().await.unwrap().0).await };
    let (job, call) = (job(JOB), Call { last_attempt: Some(true), ..Call::default() });
    let (outcome, (head, body)) = tokio::join!(http.handle(&job, &call), server);
    assert_eq!(outcome, Outcome::Done);
    let header = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    let timestamp = header("x-jobqueue-timestamp: ");
    let signed = |text: String| sign(b"k3y", &[text.as_bytes()]).unwrap();
    let signature = header("x-jobqueue-signature: ");
    assert_eq!(signature, signed(format!("{timestamp}./jobs/execute.{body}")));
    // And what decides about the job beside its body.
    let words = format!("{}.{}", header("x-job-last-attempt: "), header("x-job-timeout: "));
    assert_eq!(header("x-jobqueue-headers-signature: "), signed(format!("{signature}.{words}")));
}

#[test]
fn an_address_that_cannot_be_posted_to_is_named() {
    for url in ["", "ftp://host", "nonsense", "http://"] {
        let error = Http::new(&HttpSettings { url: url.into(), ..HttpSettings::default() }).unwrap_err();
        assert!(error.to_string().starts_with("worker.handler.http.url: "), "{error}");
    }
    let settings =
        HttpSettings { url: "http://h/base/".into(), path: "run".into(), ..HttpSettings::default() };
    assert_eq!(target(&settings).unwrap().as_str(), "http://h/base/run");
}

#[test]
fn a_file_that_is_missing_or_holds_something_else_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let (missing, other) = (dir.path().join("missing"), dir.path().join("other"));
    std::fs::write(&other, "hello").unwrap();
    let base = HttpSettings { url: "https://h".into(), ..HttpSettings::default() };
    for path in [missing, other.clone()] {
        let settings = HttpSettings { ca_file: Some(path), ..base.clone() };
        let error = Http::new(&settings).unwrap_err().to_string();
        assert!(error.starts_with("worker.handler.http.ca_file: "), "{error}");
    }
    let settings =
        HttpSettings { cert_file: Some(other.clone()), key_file: Some(other.clone()), ..base.clone() };
    assert!(Http::new(&settings).unwrap_err().to_string().starts_with("worker.handler.http.cert_file: "));
    assert!(Http::new(&HttpSettings { cert_file: Some(other), ..base }).is_err());
}

/// An authority, a server that asks for its certificates, and a client's.
struct Pki {
    dir: tempfile::TempDir,
    acceptor: TlsAcceptor,
}

impl Pki {
    fn new() -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let issue = |name: &str| {
            let key = KeyPair::generate().unwrap();
            (CertificateParams::new(vec![name.into()]).unwrap().signed_by(&key, &ca).unwrap(), key)
        };
        let (server, server_key) = issue("localhost");
        let (client, client_key) = issue("worker");
        let mut roots = rustls::RootCertStore::empty();
        roots.add(ca.der().clone()).unwrap();
        let verifier = rustls::server::WebPkiClientVerifier::builder(Arc::new(roots)).build().unwrap();
        let config = rustls::ServerConfig::builder()
            .with_client_cert_verifier(verifier)
            .with_single_cert(
                vec![server.der().clone()],
                rustls::pki_types::PrivateKeyDer::try_from(server_key.serialize_der()).unwrap(),
            )
            .unwrap();
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("ca"), ca.pem()).unwrap();
        std::fs::write(dir.path().join("cert"), client.pem()).unwrap();
        std::fs::write(dir.path().join("key"), client_key.serialize_pem()).unwrap();
        Self { dir, acceptor: TlsAcceptor::from(Arc::new(config)) }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

#[tokio::test]
async fn certificates_that_were_replaced_are_used_for_the_next_connection() {
    let (pki, next) = (Pki::new(), Pki::new());
    let (listener, settings) = listener().await;
    let url = settings.url.replace("http://127.0.0.1", "https://localhost");
    let file = |name| Some(pki.file(name));
    let settings =
        HttpSettings { url, ca_file: file("ca"), cert_file: file("cert"), key_file: file("key"), ..settings };
    let mut http = Http::new(&settings).unwrap();
    http.connections.read_certificates_always();
    let replace = |name: &str| std::fs::copy(next.file(name), pki.file(name)).unwrap();
    let accepted = async |pki: &Pki| pki.acceptor.accept(listener.accept().await.unwrap().0).await;

    // Of what is just being replaced the old is kept: a certificate without its key is of no use.
    replace("cert");
    let (outcome, _) = tokio::join!(post(&http), async { serve_one(accepted(&pki).await.unwrap()).await });
    assert_eq!(outcome, Outcome::Done);

    replace("ca");
    replace("key");
    http.connections.keep_for = Duration::ZERO;
    let (outcome, _) = tokio::join!(post(&http), async { serve_one(accepted(&next).await.unwrap()).await });
    assert_eq!(outcome, Outcome::Done);
}

#[tokio::test]
async fn both_sides_prove_who_they_are() {
    let pki = Pki::new();
    let (listener, settings) = listener().await;
    let url = settings.url.replace("http://127.0.0.1", "https://localhost");
    let trusting = HttpSettings { url, ca_file: Some(pki.file("ca")), ..settings };
    let known = HttpSettings {
        cert_file: Some(pki.file("cert")),
        key_file: Some(pki.file("key")),
        ..trusting.clone()
    };

    let accept = async || -> std::io::Result<tokio_rustls::server::TlsStream<TcpStream>> {
        pki.acceptor.accept(listener.accept().await.unwrap().0).await
    };
    let http = Http::new(&known).unwrap();
    let (outcome, (_, body)) = tokio::join!(post(&http), async { serve_one(accept().await.unwrap()).await });
    assert_eq!((outcome, body.as_str()), (Outcome::Done, JOB));

    // A server whose authority we do not know gets nothing.
    let other = Pki::new();
    let http = Http::new(&HttpSettings { ca_file: Some(other.file("ca")), ..known }).unwrap();
    let (outcome, accepted) = tokio::join!(post(&http), accept());
    assert!(accepted.is_err());
    assert!(matches!(outcome, Outcome::HandlerUnavailable(_)), "{outcome:?}");

    // A server that does not know us has run nothing, though with TLS 1.3 it says so after the request left.
    let http = Http::new(&trusting).unwrap();
    let (outcome, accepted) = tokio::join!(post(&http), accept());
    assert!(accepted.is_err());
    assert!(matches!(outcome, Outcome::HandlerUnavailable(_)), "{outcome:?}");
}
