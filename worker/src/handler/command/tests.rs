use super::super::tests::job;
use super::*;
use rustix::process::test_kill_process;
use std::path::Path;
use std::sync::Arc;
use tokio::time::Instant;

const PLAIN: &str = r#"{"id":"j-1","filepath":"/data/a b.pdf","retries":2,"mine":[1]}"#;

fn shell(script: &str) -> CommandSettings {
    CommandSettings { argv: vec!["/bin/sh".into(), "-c".into(), script.into()], ..CommandSettings::default() }
}

async fn run(settings: &CommandSettings) -> Outcome {
    Command::new(settings).unwrap().handle(&job(PLAIN), &Call::default()).await
}

fn failed(outcome: &Outcome) -> (Reason, &str) {
    match outcome {
        Outcome::Failed(failure) => (failure.reason, &failure.error),
        other => panic!("{other:?}"),
    }
}

/// Waits for a condition that another process brings about.
async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let ends = Instant::now() + Duration::from_secs(10);
    while !holds() {
        assert!(Instant::now() < ends, "{what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

fn pid_in(file: &Path) -> Option<Pid> {
    std::fs::read_to_string(file).ok()?.strip_suffix('\n')?.parse().ok().and_then(Pid::from_raw)
}

/// A zombie that its new parent has not reaped yet is as dead as one can be.
fn is_dead(pid: Pid) -> bool {
    test_kill_process(pid).is_err()
        || std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()))
            .map_or(true, |stat| stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" Z")))
}

#[tokio::test]
async fn exit_0_is_done() {
    assert_eq!(run(&shell("exit 0")).await, Outcome::Done);
}

#[tokio::test]
async fn the_payload_arrives_on_stdin_and_the_job_in_the_environment() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let script = format!(
        "{{ cat; printf '\\n%s|%s|%s|%s|%s' \"$JOB_ID\" \"$JOB_QUEUE\" \"$JOB_ATTEMPT\" \"$JOB_FILEPATH\" \"$TRACEPARENT\"; }} > {}",
        out.display()
    );
    let call = Call { queue: Arc::from("high"), traceparent: Some("00-aa-bb-01".into()), ..Call::default() };
    let outcome = Command::new(&shell(&script)).unwrap().handle(&job(PLAIN), &call).await;
    assert_eq!(outcome, Outcome::Done);
    assert_eq!(
        std::fs::read_to_string(out).unwrap(),
        format!("{PLAIN}\nj-1|high|3|/data/a b.pdf|00-aa-bb-01")
    );
}

#[tokio::test]
async fn a_large_payload_that_is_never_read_does_no_harm() {
    let filler = "x".repeat(900_000);
    let large = job(&format!(r#"{{"id":"1","filler":"{filler}"}}"#));
    for script in ["exit 0", "exec <&-; exit 0"] {
        let outcome = Command::new(&shell(script)).unwrap().handle(&large, &Call::default()).await;
        assert_eq!(outcome, Outcome::Done, "{script}");
    }
}

#[tokio::test]
async fn a_program_that_floods_stdout_and_stderr_before_it_reads_does_not_hang() {
    let script = "head -c 300000 /dev/zero | tr '\\0' o; head -c 300000 /dev/zero | tr '\\0' e >&2; cat >/dev/null; exit 1";
    let outcome = run(&shell(script)).await;
    let (reason, error) = failed(&outcome);
    assert_eq!(reason, Reason::Handler);
    assert_eq!(error, format!("exit status 1: {}", "e".repeat(ERROR_MAX)));
}

#[tokio::test]
async fn another_exit_status_fails_with_the_end_of_stderr() {
    let outcome = run(&shell("echo first >&2; printf 'disk \\377full\\n\\n' >&2; exit 3")).await;
    assert_eq!(failed(&outcome), (Reason::Handler, "exit status 3: first\ndisk \u{fffd}full"));
    assert_eq!(failed(&run(&shell("exit 4")).await), (Reason::Handler, "exit status 4"));
}

#[tokio::test]
async fn exit_75_asks_for_the_configured_delay() {
    let settings =
        CommandSettings { retry_later: Duration::from_secs(7), ..shell("echo locked >&2; exit 75") };
    assert_eq!(
        run(&settings).await,
        Outcome::RetryIn(
            Duration::from_secs(7),
            Failure::new(Reason::Handler, "exit status 75, retry later: locked")
        )
    );
}

#[tokio::test]
async fn a_program_killed_by_a_signal_failed() {
    let outcome = run(&shell("echo dying >&2; kill -9 $$")).await;
    assert_eq!(failed(&outcome), (Reason::Handler, "killed by signal 9: dying"));
}

#[tokio::test]
async fn a_missing_or_unusable_program_is_not_the_jobs_fault() {
    for program in ["/does/not/exist", "/etc/hostname", "/tmp"] {
        let settings = CommandSettings { argv: vec![program.into()], ..CommandSettings::default() };
        assert!(matches!(run(&settings).await, Outcome::HandlerUnavailable(_)), "{program}");
    }
    assert!(Command::new(&CommandSettings::default()).is_err());
}

#[tokio::test]
async fn a_job_that_fits_into_no_environment_fails() {
    let nul = job(r#"{"id":"1","filepath":"a\u0000b"}"#);
    let outcome = Command::new(&shell("exit 0")).unwrap().handle(&nul, &Call::default()).await;
    assert_eq!(failed(&outcome).0, Reason::Handler);
}

#[tokio::test]
async fn the_timeout_kills_the_whole_process_group() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("grandchild");
    let script = format!("echo started >&2; sleep 1000 & echo $! > {}; wait", file.display());
    let call = Call { deadline: None, ..Call::default() };
    let settings = CommandSettings { timeout: Duration::from_millis(300), ..shell(&script) };
    let outcome = Command::new(&settings).unwrap().handle(&job(PLAIN), &call).await;
    assert_eq!(failed(&outcome), (Reason::Timeout, "killed after 300ms: started"));
    let grandchild = pid_in(&file).expect("it was started");
    until("the grandchild is dead", || is_dead(grandchild)).await;
}

#[tokio::test]
async fn a_grandchild_that_keeps_stderr_open_holds_nobody_up_and_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("grandchild");
    let script = format!("sleep 1000 & echo $! > {}; echo leaving >&2; exit 5", file.display());
    let started = Instant::now();
    assert_eq!(failed(&run(&shell(&script)).await), (Reason::Handler, "exit status 5: leaving"));
    println!("not held up: {:?}, of 1000 s", started.elapsed());
    let grandchild = pid_in(&file).expect("it was started");
    until("the grandchild is dead", || is_dead(grandchild)).await;
}

#[tokio::test]
async fn a_grandchild_that_left_the_group_holds_nobody_up() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("daemon");
    let script = format!(
        "setsid sh -c 'echo $$ > {file}.new; mv {file}.new {file}; exec sleep 1000' & while ! test -e {file}; do :; done; exit 0",
        file = file.display()
    );
    assert_eq!(run(&shell(&script)).await, Outcome::Done);
    let daemon = pid_in(&file).expect("it was started");
    assert!(!is_dead(daemon), "it is not ours to kill");
    rustix::process::kill_process(daemon, Signal::KILL).unwrap();
}

#[tokio::test]
async fn a_dropped_run_kills_the_whole_process_group() {
    let dir = tempfile::tempdir().unwrap();
    let (parent, child) = (dir.path().join("parent"), dir.path().join("child"));
    let script = format!("sleep 1000 & echo $! > {}; echo $$ > {}; wait", child.display(), parent.display());
    let command = Command::new(&shell(&script)).unwrap();
    let (plain, call) = (job(PLAIN), Call::default());
    tokio::select! {
        outcome = command.handle(&plain, &call) => panic!("{outcome:?}"),
        () = until("it runs", || pid_in(&parent).is_some()) => {}
    }
    let (parent, child) = (pid_in(&parent).unwrap(), pid_in(&child).unwrap());
    until("both are dead", || is_dead(parent) && is_dead(child)).await;
}
