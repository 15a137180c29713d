use std::io::Read as _;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::outcome::Raised;

const NOW: u64 = 1_700_000_000_123;

fn policy() -> Sidekiq {
    Sidekiq {
        names: Names::new(""),
        formula: Formula::Sidekiq,
        max_retries: 25,
        max_interruptions: 3,
        max_payload_bytes: 1 << 20,
        dead_max: None,
        promotes: true,
    }
}

fn queue() -> QueueKeys {
    QueueKeys {
        name: "default".into(),
        queue: "queue:default".into(),
        suspects: "p:suspects:default".into(),
        delayed: "p:delayed:default".into(),
        completed: "p:completed".into(),
        dead_letters: "dead".into(),
        counters: "p:counters".into(),
        jobs: crate::keys::JobKeys::new("jobqueue:"),
    }
}

fn job(json: &str) -> Job {
    policy().decode(Bytes::from(json.to_owned())).unwrap()
}

fn raised() -> Failure {
    let raised = Raised {
        class: "ArgumentError".into(),
        message: "no".into(),
        backtrace: vec!["a:1".into(), "b:2".into()],
    };
    Failure { reason: Reason::Handler, error: "ArgumentError: no".into(), raised: Some(Box::new(raised)) }
}

fn settle(json: &str, outcome: &Outcome) -> Decision {
    policy().settle(&job(json), outcome, &queue(), NOW, "lane-1-1")
}

/// What was put into a sorted set: the set, its score, the member.
fn scored(decision: &Decision) -> (&str, f64, serde_json::Map<String, Value>) {
    let Effect::Score { key, score, member } = &decision.effects[0] else { panic!("{decision:?}") };
    (key, score.parse().unwrap(), serde_json::from_slice(member).unwrap())
}

#[test]
fn the_first_failure_writes_what_sidekiq_writes_in_its_order() {
    let json = r#"{"retry":true,"queue":"default","backtrace":1,"class":"Hard","args":[1.50,12345678901234567890],"jid":"j","created_at":1.5,"enqueued_at":1.6}"#;
    let decision = settle(json, &Outcome::Failed(raised()));
    assert_eq!(decision.verdict, Verdict::Retried);
    let Effect::Score { member, .. } = &decision.effects[0] else { panic!("{decision:?}") };
    let text = std::str::from_utf8(member).unwrap();
    let (before, packed) = text.split_once(r#","error_backtrace":""#).unwrap();
    assert_eq!(
        before,
        r#"{"retry":true,"queue":"default","backtrace":1,"class":"Hard","args":[1.50,12345678901234567890],"jid":"j","created_at":1.5,"enqueued_at":1.6,"error_message":"no","error_class":"ArgumentError","failed_at":1700000000.123,"retry_count":0"#
    );
    let packed = BASE64.decode(packed.trim_end_matches("\"}")).unwrap();
    let mut lines = String::new();
    flate2::read::ZlibDecoder::new(&packed[..]).read_to_string(&mut lines).unwrap();
    assert_eq!(lines, r#"["a:1"]"#, "as many lines as the job asks for");
    let (set, score, _) = scored(&decision);
    assert_eq!(set, "retry");
    let delay = score - 1_700_000_000.123;
    assert!((15.0..=24.1).contains(&delay), "{delay}");
}

#[test]
fn a_second_failure_counts_up_and_keeps_the_time_of_the_first() {
    let json = r#"{"class":"A","args":[],"jid":"j","retry":true,"created_at":1700000000000,"retry_count":0,"failed_at":1699999999000,"jobqueue_deaths":2,"jobqueue_interruptions":0,"jobqueue_interrupted_by":"oom"}"#;
    let decision = settle(json, &Outcome::Failed(raised()));
    let (_, score, member) = scored(&decision);
    assert_eq!(member["retry_count"], 1);
    assert_eq!(member["failed_at"].to_string(), "1699999999000");
    assert_eq!(member["retried_at"].to_string(), "1700000000123", "milliseconds, as created_at is");
    assert!((16.0..=36.1).contains(&(score - 1_700_000_000.123)));
    assert!(!member.keys().any(|name| name.starts_with("jobqueue_")), "{member:?}");
    assert!(!member.contains_key("error_backtrace"), "nobody asked for it");
}

#[test]
fn retry_says_how_often() {
    let failed = |fields: &str| {
        let json = format!(r#"{{"class":"A","args":[],"jid":"j"{fields}}}"#);
        settle(&json, &Outcome::Failed(raised())).verdict
    };
    let dead = Verdict::Dead(Reason::Handler);
    assert_eq!(failed(r#","retry":false"#), Verdict::GivenUp);
    assert_eq!(failed(r#","retry":0"#), dead);
    assert_eq!(failed(r#","retry":1"#), Verdict::Retried);
    assert_eq!(failed(r#","retry":1,"retry_count":0"#), dead);
    assert_eq!(failed(""), Verdict::Retried);
    assert_eq!(failed(r#","retry":true,"retry_count":23"#), Verdict::Retried);
    assert_eq!(failed(r#","retry":true,"retry_count":24"#), dead, "26 executions, dead with 25");
    assert_eq!(failed(r#","retry":true,"retry_count":-1"#), Verdict::Retried, "retried by hand");
    assert_eq!(failed(r#","retry":0,"dead":false"#), Verdict::GivenUp);
    assert_eq!(failed(r#","retry":0,"dead":true"#), dead);
}

#[test]
fn retry_for_is_a_time_and_from_8_on_the_only_limit() {
    let failed = |fields: &str| {
        let json = format!(r#"{{"class":"A","args":[],"jid":"j","retry":true,"retry_for":60{fields}}}"#);
        settle(&json, &Outcome::Failed(raised())).verdict
    };
    let dead = Verdict::Dead(Reason::Handler);
    assert_eq!(failed(r#","created_at":1.0"#), Verdict::Retried, "its time starts now");
    assert_eq!(failed(r#","created_at":1.0,"retry_count":0,"failed_at":1699999950.0"#), Verdict::Retried);
    assert_eq!(failed(r#","created_at":1.0,"retry_count":0,"failed_at":1699999900.0"#), dead);
    assert_eq!(failed(r#","created_at":1,"retry_count":0,"failed_at":1699999900000"#), dead);
    assert_eq!(failed(r#","created_at":1.0,"retry_count":24,"failed_at":1699999999.0"#), dead);
    assert_eq!(failed(r#","created_at":1,"retry_count":24,"failed_at":1699999999000"#), Verdict::Retried);
}

#[test]
fn a_retry_queue_takes_the_retries() {
    let json = r#"{"class":"A","args":[],"jid":"j","queue":"default","retry_queue":"slow"}"#;
    let (_, _, member) = scored(&settle(json, &Outcome::Failed(raised())));
    assert_eq!((&member["queue"], &member["retry_queue"]), (&"slow".into(), &"slow".into()));
}

#[test]
fn the_dead_have_sidekiqs_limits_or_ours() {
    let json = r#"{"class":"A","args":[],"jid":"j","retry":0}"#;
    let decision = settle(json, &Outcome::Failed(raised()));
    assert_eq!(scored(&decision).0, "dead");
    assert_eq!(
        decision.effects[1],
        Effect::TrimSet { key: "dead".into(), before: "1684448000.123".into(), rank: -10_000 }
    );
    let own = Sidekiq { dead_max: Some(5), ..policy() };
    let decision = own.settle(&job(json), &Outcome::Failed(raised()), &queue(), NOW, "u");
    assert!(matches!(decision.effects[1], Effect::TrimSet { rank: -6, .. }), "{decision:?}");
}

#[test]
fn a_kill_is_dead_at_once_and_a_discard_is_gone() {
    let json = r#"{"class":"A","args":[],"jid":"j","retry":true}"#;
    let kill = settle(json, &Outcome::Kill(Failure { reason: Reason::Killed, ..raised() }));
    assert_eq!(kill.verdict, Verdict::Dead(Reason::Killed));
    let (set, _, member) = scored(&kill);
    assert_eq!((set, &member["error_class"]), ("dead", &"ArgumentError".into()));
    let discard = settle(json, &Outcome::Discard(None));
    assert_eq!((discard.verdict, discard.effects), (Verdict::Discarded, Vec::new()));
    let discard = settle(json, &Outcome::Discard(Some(raised())));
    assert_eq!((discard.verdict, discard.effects), (Verdict::GivenUp, Vec::new()), "it counts as failed");
}

#[test]
fn a_failure_that_nobody_raised_has_a_class_too() {
    let json = r#"{"class":"A","args":[],"jid":"j"}"#;
    let late = Failure::new(Reason::Timeout, "no answer within 60s");
    let (_, _, member) = scored(&settle(json, &Outcome::Failed(late)));
    assert_eq!(member["error_class"], "Jobqueue::Timeout");
    assert_eq!(member["error_message"], "no answer within 60s");
}

#[test]
fn a_message_is_cut_where_sidekiq_cuts_it() {
    let mut failure = raised();
    failure.raised.as_mut().unwrap().message = "é".repeat(20_000);
    let (_, _, member) = scored(&settle(r#"{"class":"A","args":[]}"#, &Outcome::Failed(failure)));
    assert_eq!(member["error_message"].as_str().unwrap().chars().count(), 10_000);
}

#[test]
fn what_is_not_sidekiqs_json_dies_as_it_is() {
    for raw in [&b"not json"[..], b"", b"[1]", b"7", b"\xff\xfe"] {
        let (raw, why) = policy().decode(Bytes::copy_from_slice(raw)).unwrap_err();
        let decision = policy().reject(&raw, &why, &queue(), NOW);
        assert_eq!(decision.verdict, Verdict::Dead(Reason::Malformed));
        assert!(matches!(&decision.effects[0], Effect::Score { member, .. } if *member == raw));
    }
}

#[test]
fn fields_of_any_type_are_read_where_sidekiq_would_not_mind() {
    let job = job(r#"{"class":"A","args":[],"jid":7,"queue":null,"retry_count":"x"}"#);
    assert_eq!((job.fields.id.as_str(), job.fields.priority.as_str(), job.fields.retries), ("7", "", 0));
    let failed = self::job(r#"{"class":"A","args":[],"jid":"j","retry_count":2}"#);
    assert_eq!(failed.fields.retries, 3);
}

#[test]
fn of_two_fields_with_one_name_the_last_counts_as_in_ruby() {
    let job = job(r#"{"class":7,"jid":"a","retry_count":9,"class":"A","args":[],"jid":"b","retry_count":1}"#);
    assert_eq!((job.fields.id.as_str(), job.fields.retries), ("b", 2));
}

/// Sidekiq finds that out when it looks for the class, and retries it like any other.
#[test]
fn a_job_without_a_class_fails_like_any_other() {
    for json in [r#"{"jid":"j","retry":true}"#, r#"{"class":7,"retry":true}"#, r#"{"class":null,"retry":1}"#]
    {
        assert_eq!(settle(json, &Outcome::Failed(raised())).verdict, Verdict::Retried, "{json}");
    }
}

#[test]
fn of_a_job_that_does_not_say_how_often_it_is_retried_its_application_knows() {
    let last = |failure: &Failure, count: i64| {
        let json = format!(r#"{{"class":"A","args":[],"jid":"j","retry_count":{count}}}"#);
        assert_eq!(policy().is_last_attempt(&job(&json), NOW), None, "it is not told");
        let exhausted = settle(&json, &Outcome::Failed(failure.clone())).verdict != Verdict::Retried;
        assert_eq!(policy().is_last_failure(&job(&json), failure, NOW), Some(exhausted), "{json}");
        exhausted
    };
    assert!(!last(&raised(), 24) && !last(&raised(), 99), "its class may say 100");
    let late = Failure::new(Reason::Timeout, "no answer");
    assert!(!last(&late, 23) && last(&late, 24), "nobody knows: as often as is usual");
}

#[test]
fn a_job_of_which_nobody_knows_whether_it_ran_does_not_disappear() {
    let silent = Outcome::Failed(Failure::new(Reason::NoVerdict, "answered 404"));
    let json = |retry: &str| format!(r#"{{"class":"A","args":[],"jid":"j","retry":{retry}}}"#);
    let dead = settle(&json("false"), &silent);
    assert_eq!(dead.verdict, Verdict::Dead(Reason::NoVerdict));
    assert_eq!(
        (scored(&dead).0, &scored(&dead).2["error_class"]),
        ("dead", &"Jobqueue::HandlerError".into())
    );
    assert_eq!(settle(&json("true"), &silent).verdict, Verdict::Retried, "an attempt is spent");
    assert_eq!(settle(&json("true"), &silent).effects.len(), 1);
}

#[test]
fn a_job_that_came_back_is_where_it_was_fetched_from() {
    for outcome in [Outcome::Released, Outcome::HandlerUnavailable("refused".into())] {
        let json = r#"{"class":"A", "args":[]}"#;
        let back = Effect::Push {
            key: "queue:default".into(),
            side: Side::Right,
            bytes: Bytes::from_static(json.as_bytes()),
        };
        assert_eq!(settle(json, &outcome).effects, [back], "as it was, next out");
    }
    let died = settle(r#"{"class":"A","args":[]}"#, &Outcome::HandlerDied("reset".into()));
    assert_eq!(died.verdict, Verdict::Suspected);
    let Effect::Push { key, side, bytes } = &died.effects[0] else { panic!("{died:?}") };
    assert_eq!((key.as_str(), *side), ("queue:default", Side::Right));
    let again = policy().decode(bytes.clone()).unwrap();
    assert_eq!((again.fields.deaths, again.fields.interruptions), (1, 0));
}

#[test]
fn three_deaths_alone_condemn_a_job_and_it_is_buried_also_when_it_is_not_to_be_kept() {
    let alone = Interruption { cause: "heartbeat", outside: false, alone: true };
    let raw = |interruptions: u32| {
        Bytes::from(format!(
            r#"{{"class":"A","args":[],"dead":false,"retry":false,"jobqueue_deaths":4,"jobqueue_interruptions":{interruptions}}}"#
        ))
    };
    let back = |interruptions: u32, how: Interruption<'_>| {
        let decision = policy().interrupted(&raw(interruptions), &queue(), how, NOW);
        let Effect::Push { key, bytes, .. } = &decision.effects[0] else { panic!("{decision:?}") };
        assert_eq!(key, "queue:default", "whoever reaps it has nobody to tell");
        policy().decode(bytes.clone()).unwrap()
    };
    assert_eq!(policy().condemned(&back(1, alone)), None);
    assert_eq!(policy().condemned(&back(2, Interruption { outside: true, ..alone })), None);
    let oom = policy().condemned(&back(2, Interruption { cause: OUT_OF_MEMORY, ..alone })).unwrap();
    assert_eq!(oom.reason, Reason::Oom);
    let job = back(2, alone);
    let failure = policy().condemned(&job).unwrap();
    let told = policy().obituary(&job, &failure).unwrap();
    let told: serde_json::Map<String, Value> = serde_json::from_slice(&told).unwrap();
    assert_eq!(told["error_class"], "Jobqueue::Poison");
    assert!(!told.contains_key("retry_count"), "written for the handlers by the application");
    let decision = policy().settle(&job, &Outcome::Kill(failure), &queue(), NOW, "u");
    assert_eq!(decision.verdict, Verdict::Dead(Reason::Poison));
    let (_, _, dead) = scored(&decision);
    assert_eq!(dead["error_class"], "Jobqueue::Poison");
    let revived = policy().decode(policy().revive(&serde_json::to_vec(&dead).unwrap().into()).1).unwrap();
    assert_eq!(policy().condemned(&revived), None, "by hand it may be tried again");
    assert!(revived.fields.deaths > 0, "alone");
}

#[test]
fn a_due_job_goes_to_the_queue_it_names_with_a_new_time() {
    let policy = Sidekiq { names: Names::new("app"), ..policy() };
    let member = Bytes::from_static(br#"{"class":"A","enqueued_at":1.5,"queue":"mail","args":[1.0]}"#);
    let effects = policy.promote(&member, &queue(), NOW);
    let bytes =
        Bytes::from_static(br#"{"class":"A","enqueued_at":1700000000.123,"queue":"mail","args":[1.0]}"#);
    assert_eq!(effects[0], Effect::Push { key: "app:queue:mail".into(), side: Side::Left, bytes });
    assert_eq!(effects[1], Effect::Add { key: "app:queues".into(), member: "mail".into() });
    let garbage = policy.promote(&Bytes::from_static(b"garbage"), &queue(), NOW);
    assert!(matches!(&garbage[0], Effect::Score { key, .. } if key == "app:dead"), "{garbage:?}");
}

#[test]
fn only_the_applications_own_failures_open_the_breaker() {
    let sample = |outcome: Outcome| policy().breaker_sample(&outcome);
    assert_eq!(sample(Outcome::Failed(raised())), Some(true));
    assert_eq!(sample(Outcome::RetryIn(Duration::ZERO, raised())), Some(true));
    assert_eq!(sample(Outcome::Failed(Failure::new(Reason::Timeout, ""))), None);
    assert_eq!(sample(Outcome::Failed(Failure::new(Reason::NoVerdict, ""))), Some(false));
    assert_eq!(sample(Outcome::HandlerUnavailable(String::new())), Some(false));
    assert_eq!(sample(Outcome::HandlerDied(String::new())), Some(false));
}

#[test]
fn a_retry_by_hand_is_free() {
    let letter = Bytes::from_static(br#"{"class":"A","queue":"q","retry_count":25}"#);
    let (key, bytes) = policy().revive(&letter);
    assert_eq!(key.as_deref(), Some("queue:q"));
    assert_eq!(&bytes[..], br#"{"class":"A","queue":"q","retry_count":24}"#);
}

#[test]
fn jobs_that_fail_within_one_millisecond_have_scores_of_their_own() {
    for json in [r#"{"class":"A","args":[],"retry":0}"#, r#"{"class":"A","args":[],"retry":true}"#] {
        let score = |n: u64| {
            let decision = policy().settle(
                &job(json),
                &Outcome::Failed(raised()),
                &queue(),
                NOW,
                &format!("lane-7-{n}"),
            );
            let Effect::Score { score, .. } = &decision.effects[0] else { panic!("{decision:?}") };
            score.clone()
        };
        let scores: std::collections::HashSet<String> = (0..100).map(score).collect();
        assert!(scores.len() >= 85, "{} of 100: by chance five pairs of the dead meet", scores.len());
    }
}

#[test]
fn what_is_shown_of_a_large_job_has_the_shape_in_which_sidekiqs_page_looks_for_its_name() {
    let long = "x".repeat(5000);
    let shown = |args: &str| {
        let job = format!(r#"{{"class":"W","wrapped":"M","args":{args},"jid":"j"}}"#);
        let shown: Value = serde_json::from_str(&without_args(job.as_bytes())).unwrap();
        assert_eq!((&shown["wrapped"], &shown["jid"]), (&"M".into(), &"j".into()));
        shown["args"].to_string()
    };
    assert_eq!(shown(&format!(r#"["{long}",1]"#)), r#"["..."]"#);
    assert_eq!(shown(&format!(r#"[{{"a":"{long}"}}]"#)), r#"["..."]"#, "it wraps nothing");
    assert_eq!(shown("[]"), r#"["..."]"#);
    let mail = format!(
        r#"[{{"job_class":"M","locale":"{long}","executions":0,"arguments":["Mailer","welcome","deliver_now",{{"params":{{"a":1}},"args":["{long}"]}}]}}]"#
    );
    let expected = r#"[{"job_class":"M","locale":"...","executions":0,"arguments":["Mailer","welcome","deliver_now",{"params":{},"args":["..."]}]}]"#;
    assert_eq!(shown(&mail), expected);
    let plain = format!(r#"[{{"job_class":"M","arguments":["{long}",2,"short",{{"k":1}},5]}}]"#);
    assert_eq!(shown(&plain), r#"[{"job_class":"M","arguments":["...","...","short","..."]}]"#);
    assert_eq!(without_args(b"nothing"), "{}");
}

proptest! {
    #[test]
    fn a_job_runs_once_more_than_its_retries(max in 0i64..30, count in -1i64..40) {
        let json = format!(r#"{{"class":"A","args":[],"retry":{max},"retry_count":{count}}}"#);
        let decision = settle(&json, &Outcome::Failed(raised()));
        prop_assert_eq!(decision.verdict == Verdict::Retried, count + 1 < max);
        prop_assert_eq!(policy().is_last_attempt(&job(&json), NOW), Some(count + 1 >= max), "as the application was told");
    }

    #[test]
    fn every_failure_places_the_job_exactly_once_or_is_discarded(retry in "true|false|0|3|null", dead in "true|false", count in 0u32..5, kill: bool) {
        let json = format!(r#"{{"class":"A","args":[],"retry":{retry},"dead":{dead},"retry_count":{count}}}"#);
        let outcome = if kill { Outcome::Kill(raised()) } else { Outcome::Failed(raised()) };
        let decision = settle(&json, &outcome);
        let placed = decision.effects.iter().filter(|effect| matches!(effect, Effect::Push { .. } | Effect::Score { .. })).count();
        prop_assert_eq!(placed, usize::from(decision.verdict != Verdict::GivenUp));
    }

    #[test]
    fn the_arguments_survive_any_number_of_failures_byte_for_byte(number in "-?(0|[1-9][0-9]{0,40})(\\.[0-9]{1,20})?([eE][+-]?[0-9]{1,2})?", text in "\\PC{0,20}", rounds in 1usize..5) {
        let args = format!("[{number},{{\"k\":[{}]}}]", Value::from(text));
        let mut raw = Bytes::from(format!(r#"{{"class":"A","args":{args},"extra":{number},"retry":true,"created_at":1.0}}"#));
        for _ in 0..rounds {
            let job = policy().decode(raw).unwrap();
            let decision = policy().settle(&job, &Outcome::Failed(raised()), &queue(), NOW, "u");
            let Effect::Score { member, .. } = &decision.effects[0] else { panic!("{decision:?}") };
            let Effect::Push { bytes, .. } = &policy().promote(member, &queue(), NOW)[0] else { panic!() };
            raw = bytes.clone();
        }
        let text = std::str::from_utf8(&raw).unwrap();
        prop_assert!(text.starts_with(&format!(r#"{{"class":"A","args":{args},"extra":{number},"#)), "{}", text);
    }

    #[test]
    fn no_bytes_make_it_panic(raw in proptest::collection::vec(any::<u8>(), 0..200)) {
        let raw = Bytes::from(raw);
        let how = Interruption { cause: "heartbeat", outside: false, alone: true };
        let _ = policy().decode(raw.clone());
        let _ = policy().interrupted(&raw, &queue(), how, NOW);
        prop_assert!(!policy().promote(&raw, &queue(), NOW).is_empty());
    }
}
