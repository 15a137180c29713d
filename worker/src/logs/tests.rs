use std::sync::Arc;

use super::*;

fn captured(level: &str, format: Format, identity: Identity, run: impl FnOnce()) -> Vec<String> {
    let written = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&written);
    let layer = LogLayer {
        level: parse_level(level).unwrap(),
        format,
        identity: Box::leak(Box::new(identity)),
        write: move |line: &[u8]| sink.lock().unwrap().push(String::from_utf8(line.to_vec()).unwrap()),
    };
    tracing::subscriber::with_default(Registry::default().with(layer), run);
    let lines = written.lock().unwrap().clone();
    // The notice about a dropped field depends on what other tests dropped before.
    lines.into_iter().filter(|line| !line.contains("Dropped a log field")).collect()
}

fn json_lines(run: impl FnOnce()) -> Vec<Value> {
    captured("debug", Format::Json, Identity::default(), run)
        .iter()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn one(run: impl FnOnce()) -> Value {
    let mut lines = json_lines(run);
    assert_eq!(lines.len(), 1);
    lines.remove(0)
}

macro_rules! log_key_is_written {
    ($($test:ident: $key:ident,)*) => { $(
        #[test]
        fn $test() {
            let line = one(|| tracing::info!($key = "x-1", "Reaped jobs"));
            assert_eq!(line[stringify!($key)], "x-1");
        }
    )* };
}

log_key_is_written! {
    log_key_trace_id_is_written: trace_id,
    log_key_span_id_is_written: span_id,
    log_key_job_id_is_written: job_id,
    log_key_queue_is_written: queue,
    log_key_worker_id_is_written: worker_id,
    log_key_request_id_is_written: request_id,
    log_key_namespace_is_written: namespace,
    log_key_error_is_written: error,
    log_key_reason_is_written: reason,
    log_key_key_is_written: key,
    log_key_value_is_written: value,
    log_key_rule_is_written: rule,
}

#[test]
fn log_key_level_is_written() {
    let levels = json_lines(|| {
        tracing::error!("One");
        tracing::warn!("Two");
        tracing::info!("Three");
        tracing::debug!("Four");
    });
    let levels: Vec<_> = levels.iter().map(|line| line["level"].as_str().unwrap()).collect();
    assert_eq!(levels, ["error", "warn", "info", "debug"]);
}

#[test]
fn log_key_ts_is_written() {
    let line = one(|| tracing::info!("Reaped jobs"));
    let ts: jiff::Timestamp = line["ts"].as_str().unwrap().parse().unwrap();
    assert!(jiff::Timestamp::now().duration_since(ts).as_secs() < 60);
}

#[test]
fn log_key_msg_is_written() {
    assert_eq!(one(|| tracing::info!("Reaped {} jobs", 3))["msg"], "Reaped 3 jobs");
}

#[test]
fn numbers_stay_numbers() {
    let line = one(|| {
        tracing::info!(duration_ms = 12.5, wait_ms = 3_u64, count = 7_u64, attempt = 2_i64, "Retried job");
    });
    assert_eq!(line["duration_ms"], 12.5);
    assert_eq!(line["wait_ms"], 3);
    assert_eq!(line["count"], 7);
    assert_eq!(line["attempt"], 2);
}

#[test]
fn an_unknown_key_cannot_get_out() {
    let before = dropped_fields().get("a_key_nobody_allowed").copied().unwrap_or_default();
    let lines = captured("debug", Format::Json, Identity::default(), || {
        tracing::error!(a_key_nobody_allowed = "precious", queue = "high", "Reaped jobs");
    });
    assert!(!lines[0].contains("precious") && !lines[0].contains("a_key_nobody_allowed"));
    assert!(lines[0].contains(r#""queue":"high""#));
    assert_eq!(dropped_fields()["a_key_nobody_allowed"], before + 1);
}

#[test]
fn an_event_cannot_forge_the_logs_own_keys() {
    let line = captured("debug", Format::Json, Identity::default(), || {
        tracing::info!(level = "error", ts = "never", msg = "forged", "Reaped jobs");
    });
    assert!(!line[0].contains("error") && !line[0].contains("never") && !line[0].contains("forged"));
}

#[test]
fn a_payload_cannot_get_out() {
    for format in [Format::Json, Format::Text { colours: false }] {
        let lines = captured("debug", format, Identity::default(), || {
            let payload = r#"{"id":"1","filepath":"/home/jane/tax.pdf"}"#;
            tracing::info!(payload, job_id = "1", "Completed job");
            tracing::info!(args = ?["jane@example.org"], filepath = "/home/jane/tax.pdf", "Completed job");
            tracing::info!(body = %payload, raw = payload.as_bytes(), "Completed job");
        });
        assert_eq!(lines.len(), 3);
        assert!(!lines.concat().contains("jane"), "{lines:?}");
    }
}

#[test]
fn a_value_too_long_to_be_a_message_is_cut() {
    let line = one(|| tracing::warn!(error = "ä".repeat(10_000), "Lost connection"));
    assert!(line["error"].as_str().unwrap().len() <= MAX_VALUE_BYTES + '…'.len_utf8());
}

#[test]
fn a_secret_cannot_get_out() {
    for format in [Format::Json, Format::Text { colours: true }] {
        let lines = captured("debug", format, Identity::default(), || {
            tracing::info!(password = "hunter2", token = "hunter2", "Connected");
            tracing::warn!(error = "cannot reach redis://app:hunter2@redis:6379/0", "Lost connection");
            tracing::warn!(error = "rediss://app:p@hunter2@redis and https://x@hunter2@y", "Lost connection");
            tracing::warn!(error = "401 for Authorization: Bearer hunter2", "Lost connection");
            tracing::error!(key = "redis.password", value = "hunter2", rule = "text", "Refused a setting");
            tracing::error!("Connected to redis://:hunter2@redis");
        });
        assert_eq!(lines.len(), 6);
        assert!(!lines.concat().contains("hunter2"), "{lines:?}");
        assert!(lines[1].contains("redis://***@redis:6379/0"));
    }
}

#[test]
fn the_path_of_a_secret_is_no_secret() {
    let line = one(|| tracing::error!(key = "api.token_file", value = "/t", rule = "exists", "Refused"));
    assert_eq!(line["value"], "/t");
}

#[test]
fn control_characters_are_escaped() {
    let forged = "a\nb\u{1b}[2J\r\u{0}\u{7f}\u{9b}2J";
    for format in [Format::Json, Format::Text { colours: false }] {
        let lines = captured("debug", format, Identity::default(), || {
            tracing::info!(queue = forged, "Reaped {forged}");
        });
        let (body, end) = lines[0].split_at(lines[0].len() - 1);
        assert_eq!(end, "\n");
        assert!(!body.contains(char::is_control), "{body:?}");
    }
    assert_eq!(one(|| tracing::info!(queue = forged, "Reaped jobs"))["queue"], forged);
}

#[test]
fn an_unknown_level_is_refused() {
    for level in ["loud", "", "information", "trace", "off", "worker=debug"] {
        assert_eq!(parse_level(level), Err(LogError::UnknownLevel(level.to_owned())));
    }
    assert_eq!(
        LogError::UnknownLevel("loud".into()).to_string(),
        r#"observability.log_level = "loud": must be one of debug, info, warn, error"#
    );
}

#[test]
fn events_below_the_level_are_not_written() {
    let lines = captured("warn", Format::Json, Identity::default(), || {
        tracing::info!("Reaped jobs");
        tracing::debug!("Reaped jobs");
        tracing::warn!("Lost connection");
    });
    assert_eq!(lines.len(), 1);
}

#[test]
fn other_crates_are_heard_from_warn_up_without_their_fields() {
    let lines = captured("debug", Format::Json, Identity::default(), || {
        tracing::info!(target: "hyper::client", "Chatter");
        tracing::warn!(target: "hyper::client", queue = "precious", "Trouble");
    });
    assert_eq!(lines.len(), 1);
    assert!(lines[0].contains("Trouble") && !lines[0].contains("precious"));
}

#[test]
fn an_event_without_a_message_is_called_by_its_name() {
    let line = one(|| tracing::warn!(name: "Exporter.Failed", target: "opentelemetry", count = 1));
    assert_eq!(line["msg"], "Exporter.Failed");
}

#[test]
fn other_crates_obey_a_stricter_level() {
    let lines = captured("error", Format::Json, Identity::default(), || {
        tracing::warn!(target: "hyper::client", "Trouble");
    });
    assert!(lines.is_empty());
}

#[test]
fn every_line_says_who_wrote_it_unless_the_event_does() {
    let identity =
        || Identity { namespace: Some("shop".to_owned()), worker_id: OnceLock::from("host-1-0".to_owned()) };
    let lines = captured("info", Format::Json, identity(), || {
        tracing::info!("Started");
        tracing::info!(worker_id = "host-1-7", "Registered lane");
    });
    let lines: Vec<Value> = lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&lines[0]["namespace"], &lines[0]["worker_id"]), (&"shop".into(), &"host-1-0".into()));
    assert_eq!((&lines[1]["namespace"], &lines[1]["worker_id"]), (&"shop".into(), &"host-1-7".into()));
}

/// Runs one test of this file again, in a process of its own and with stderr as the shell puts it.
fn in_a_child(test: &str, stderr: &str) -> std::process::Output {
    std::process::Command::new("sh")
        .arg("-c")
        .arg(format!(r#"exec "$0" --exact logs::tests::{test} --nocapture {stderr}"#))
        .arg(std::env::current_exe().unwrap())
        .env(CHILD, "1")
        .env_remove("RUST_BACKTRACE")
        .output()
        .unwrap()
}

const CHILD: &str = "JOBQUEUE_LOGS_TEST_CHILD";

#[test]
fn a_panic_is_logged_by_its_place_alone() {
    if std::env::var_os(CHILD).is_some() {
        init("info", Some("shop")).unwrap();
        set_worker_id("host-1-0");
        assert_eq!(init("info", None), Err(LogError::AlreadySetUp));
        let _ = std::panic::catch_unwind(|| panic!("quoted jane@example.org"));
        return;
    }
    let output = in_a_child("a_panic_is_logged_by_its_place_alone", "");
    assert!(output.status.success(), "{output:?}");
    let line: Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!((&line["msg"], &line["level"]), (&"Panicked".into(), &"error".into()));
    assert_eq!((&line["namespace"], &line["worker_id"]), (&"shop".into(), &"host-1-0".into()));
    assert!(line["error"].as_str().unwrap().starts_with("panicked at worker/src/logs/tests.rs:"), "{line}");
}

#[test]
fn a_closed_stderr_stops_nothing() {
    if std::env::var_os(CHILD).is_some() {
        init("info", None).unwrap();
        tracing::error!("Lost connection");
        return;
    }
    for stderr in ["2>&-", "2>/dev/full"] {
        let output = in_a_child("a_closed_stderr_stops_nothing", stderr);
        let ran = String::from_utf8_lossy(&output.stdout).contains("1 passed");
        assert!(output.status.success() && ran, "{output:?}");
    }
}

#[test]
fn a_terminal_gets_text() {
    let lines = captured("info", Format::Text { colours: false }, Identity::default(), || {
        tracing::info!(queue = "high", count = 3, error = "no route", "Reaped jobs");
    });
    assert!(lines[0].ends_with("info  Reaped jobs queue=high count=3 error=\"no route\"\n"), "{lines:?}");
}
