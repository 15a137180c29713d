use std::{
    io::Write as _,
    process::{Command, Stdio},
};

use super::*;

fn metrics() -> Metrics {
    Metrics::new(&["high".to_owned(), "low".to_owned()]).unwrap()
}

fn sample() -> QueueSample {
    let high = QueueReading {
        queue: "high".into(),
        length: 7,
        delayed: 2,
        oldest_age: Some(Duration::from_millis(1500)),
    };
    let low = QueueReading { queue: "low".into(), ..QueueReading::default() };
    QueueSample { queues: vec![high, low], dead_letters: 4 }
}

/// Asserts that the scrape has this line.
#[track_caller]
fn has(metrics: &Metrics, line: &str) {
    let text = metrics.render();
    assert!(text.lines().any(|found| found == line), "no line {line:?} in\n{text}");
}

fn value(text: &str, name: &str) -> f64 {
    let line = text.lines().find(|line| line.starts_with(&format!("{name} "))).unwrap();
    line.split(' ').next_back().unwrap().parse().unwrap()
}

#[test]
fn metric_jobs_produced_total_has_the_label_queue() {
    let metrics = metrics();
    metrics.queue("high").jobs_produced(3);
    has(&metrics, r#"jobs_produced_total{queue="high"} 3"#);
    has(&metrics, r#"jobs_produced_total{queue="low"} 0"#);
}

#[test]
fn metric_jobs_consumed_total_has_the_label_queue() {
    let metrics = metrics();
    metrics.queue("low").jobs_consumed(64);
    has(&metrics, r#"jobs_consumed_total{queue="low"} 64"#);
}

#[test]
fn metric_jobs_completed_total_has_the_label_queue() {
    let metrics = metrics();
    metrics.queue("high").jobs_completed(64);
    has(&metrics, r#"jobs_completed_total{queue="high"} 64"#);
}

#[test]
fn metric_jobs_failed_total_has_the_labels_queue_and_reason() {
    let metrics = metrics();
    for (n, reason) in (1..).zip(Reason::ALL) {
        metrics.queue("high").jobs_failed(reason, n);
    }
    for (n, reason) in (1..).zip(Reason::ALL) {
        has(&metrics, &format!(r#"jobs_failed_total{{queue="high",reason="{reason}"}} {n}"#));
    }
}

#[test]
fn metric_jobs_retried_total_has_the_label_queue() {
    let metrics = metrics();
    metrics.queue("high").jobs_retried(1);
    has(&metrics, r#"jobs_retried_total{queue="high"} 1"#);
}

#[test]
fn metric_jobs_dead_letter_total_has_the_label_queue() {
    let metrics = metrics();
    metrics.queue("high").jobs_dead_lettered(1);
    has(&metrics, r#"jobs_dead_letter_total{queue="high"} 1"#);
}

#[test]
fn metric_reaper_jobs_moved_total_counts_as_jobs_reaped_total() {
    let metrics = metrics();
    metrics.queue("high").jobs_reaped(5);
    has(&metrics, r#"jobs_reaped_total{queue="high"} 5"#);
    has(&metrics, r#"reaper_jobs_moved_total{queue="high"} 5"#);
}

#[test]
fn metric_jobs_interrupted_total_is_apart_from_jobs_released_total() {
    let metrics = metrics();
    metrics.queue("high").jobs_interrupted(1);
    metrics.queue("high").jobs_released(2);
    has(&metrics, r#"jobs_interrupted_total{queue="high"} 1"#);
    has(&metrics, r#"jobs_released_total{queue="high"} 2"#);
}

#[test]
fn metric_dead_letters_trimmed_total_has_no_label() {
    let metrics = metrics();
    metrics.dead_letters_trimmed(9);
    has(&metrics, "dead_letters_trimmed_total 9");
}

#[test]
fn metric_job_processing_duration_seconds_has_the_label_queue_and_counts_seconds() {
    let metrics = metrics();
    metrics.queue("high").job_ran(Duration::from_millis(250));
    has(&metrics, r#"job_processing_duration_seconds_sum{queue="high"} 0.25"#);
    has(&metrics, r#"job_processing_duration_seconds_bucket{queue="high",le="0.1"} 0"#);
    has(&metrics, r#"job_processing_duration_seconds_bucket{queue="high",le="0.5"} 1"#);
    has(&metrics, "# TYPE job_processing_duration_seconds histogram");
}

#[test]
fn metric_job_wait_seconds_counts_the_wait_for_a_slot() {
    let metrics = metrics();
    metrics.queue("high").job_waited(Duration::from_secs(2));
    has(&metrics, r#"job_wait_seconds_sum{queue="high"} 2"#);
    has(&metrics, r#"job_wait_seconds_count{queue="high"} 1"#);
}

#[test]
fn metric_queue_length_has_the_label_queue() {
    let metrics = metrics();
    metrics.export_queue_gauges(Some(sample()));
    has(&metrics, r#"queue_length{queue="high"} 7"#);
    has(&metrics, r#"queue_length{queue="low"} 0"#);
}

#[test]
fn metric_queue_oldest_age_seconds_and_queue_delayed_and_dead_letters_come_with_a_sample() {
    let metrics = metrics();
    metrics.export_queue_gauges(Some(sample()));
    has(&metrics, r#"queue_oldest_age_seconds{queue="high"} 1.5"#);
    has(&metrics, r#"queue_oldest_age_seconds{queue="low"} 0"#);
    has(&metrics, r#"queue_delayed{queue="high"} 2"#);
    has(&metrics, "dead_letters 4");
}

#[test]
fn gauges_of_whole_queues_are_absent_unless_this_process_exports_them() {
    let metrics = metrics();
    let exported = |metrics: &Metrics| {
        let text = metrics.render();
        ["queue_length", "queue_oldest_age_seconds", "queue_delayed", "dead_letters "]
            .iter()
            .filter(|name| text.contains(&format!("\n{name}")))
            .count()
    };
    assert_eq!(exported(&metrics), 0);
    metrics.export_queue_gauges(Some(sample()));
    assert_eq!(exported(&metrics), 4);
    metrics.export_queue_gauges(None);
    assert_eq!(exported(&metrics), 0);
}

#[test]
fn a_queue_missing_from_the_next_sample_leaves_the_scrape() {
    let metrics = metrics();
    metrics.export_queue_gauges(Some(sample()));
    metrics.render();
    let mut later = sample();
    later.queues.remove(0);
    metrics.export_queue_gauges(Some(later));
    assert!(!metrics.render().contains(r#"queue_length{queue="high"}"#));
}

#[test]
fn metric_circuit_breaker_state_is_0_closed_1_half_open_2_open() {
    let metrics = metrics();
    has(&metrics, r#"circuit_breaker_state{queue="high"} 0"#);
    for (state, value) in [(State::Open, 2), (State::HalfOpen, 1), (State::Closed, 0)] {
        metrics.queue("high").breaker_is(state);
        has(&metrics, &format!(r#"circuit_breaker_state{{queue="high"}} {value}"#));
    }
}

#[test]
fn metric_worker_active_and_worker_slots_and_jobs_in_flight_tell_how_busy_it_is() {
    let metrics = metrics();
    metrics.worker_slots(16);
    let mut running = Vec::from([(); 9].map(|()| metrics.job_runs()));
    running.pop();
    metrics.jobs_in_flight_changed(5);
    metrics.jobs_in_flight_changed(-2);
    has(&metrics, "worker_slots 16");
    has(&metrics, "worker_active 8");
    has(&metrics, "jobs_in_flight 3");
}

#[test]
fn metric_redis_up_and_redis_round_trips_total_tell_about_redis() {
    let metrics = metrics();
    has(&metrics, "redis_up 0");
    metrics.redis_answers(true);
    metrics.redis_round_trips(2);
    has(&metrics, "redis_up 1");
    has(&metrics, "redis_round_trips_total 2");
}

#[test]
fn metric_build_info_has_the_label_version() {
    has(&metrics(), &format!(r#"build_info{{version="{}"}} 1"#, env!("CARGO_PKG_VERSION")));
}

#[tokio::test]
async fn process_metrics_are_measured() {
    let text = metrics().render();
    assert!(value(&text, "process_resident_memory_bytes") > 1e6);
    assert!(value(&text, "process_open_fds") >= 3.0);
    assert!(value(&text, "process_cpu_seconds_total") >= 0.0);
    assert!(value(&text, "tokio_tasks_alive") >= 0.0);
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs_f64();
    let age = now - value(&text, "process_start_time_seconds");
    assert!((-2.0..86_400.0).contains(&age), "{age}");
}

#[test]
fn label_values_stay_bounded() {
    let queues: Vec<String> = (0..200).map(|n| format!("q{n}")).collect();
    let metrics = Metrics::new(&queues).unwrap();
    for n in 0..1000 {
        metrics.queue(&format!("q{n}")).jobs_produced(1);
        metrics.queue(&format!("q{n}")).jobs_failed(Reason::Panic, 1);
    }
    let reading = |queue: &String| QueueReading { queue: queue.clone(), length: 1, ..Default::default() };
    let readings = queues.iter().map(reading).collect();
    metrics.export_queue_gauges(Some(QueueSample { queues: readings, dead_letters: 0 }));
    let text = metrics.render();
    for family in ["jobs_produced_total{", "queue_length{", "circuit_breaker_state{"] {
        assert_eq!(text.lines().filter(|line| line.starts_with(family)).count(), MAX_QUEUES, "{family}");
    }
    let failed = text.lines().filter(|line| line.starts_with("jobs_failed_total{")).count();
    assert_eq!(failed, MAX_QUEUES * Reason::ALL.len());
    has(&metrics, r#"jobs_produced_total{queue="other"} 951"#);
    has(&metrics, r#"queue_length{queue="other"} 151"#);
}

#[test]
fn a_name_that_is_not_configured_counts_as_other() {
    let metrics = metrics();
    assert!(!metrics.render().contains(OTHER));
    metrics.queue("jobs\n{evil=\"1\"}").jobs_consumed(1);
    has(&metrics, r#"jobs_consumed_total{queue="other"} 1"#);
}

#[tokio::test]
async fn promtool_accepts_the_scrape() {
    let metrics = metrics();
    metrics.export_queue_gauges(Some(sample()));
    metrics.queue("high").job_ran(Duration::from_millis(3));
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool is installed (package prometheus)");
    promtool.stdin.take().unwrap().write_all(metrics.render().as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{said}");
}
