use super::*;
use crate::keys::JobKeys;
use proptest::prelude::*;

const NOW: u64 = 1_767_225_600_250;
const LANE: &str = "host-1-1";

fn policy() -> AsyncJobs {
    AsyncJobs {
        max_retries: 3,
        backoff_base: Duration::from_millis(500),
        backoff_max: Duration::from_secs(10),
        max_interruptions: 3,
        max_payload_bytes: 1 << 20,
        dead_letter_max: Some(10),
        result_ttl: Duration::from_secs(60),
    }
}

fn queue() -> QueueKeys {
    QueueKeys {
        name: "default".into(),
        queue: "jobs:queue".into(),
        suspects: "jobs:queue:suspects".into(),
        delayed: "jobs:delayed:default".into(),
        completed: "jobs:index:completed".into(),
        dead_letters: "jobs:dead_letter".into(),
        counters: "jobs:counters".into(),
        jobs: JobKeys::new("jobs:"),
    }
}

fn read(json: &str) -> Result<Job, NotAJob> {
    policy().read(&Bytes::from_static(b"a"), Data::Is(json.to_owned().into()))
}

fn job(json: &str) -> Job {
    read(json).unwrap()
}

/// The JSON that a decision writes.
fn written(effects: &[Effect]) -> Option<Map<String, Value>> {
    effects.iter().find_map(|effect| match effect {
        Effect::Swap { to, .. } => serde_json::from_slice(to).ok(),
        _ => None,
    })
}

fn running() -> Job {
    job(
        r#"{"id":"a","type":"t","status":"running","attempts":1,"worker":"host-1-1","x":[1.50,12345678901234567890]}"#,
    )
}

#[test]
fn a_started_job_says_so_and_keeps_all_else_byte_for_byte() {
    let before = job(r#"{"status":"pending","id":"a","x":[1.50, 12345678901234567890],"started_at":null}"#);
    let Start::Run(after, effects) = policy().start(&before, LANE, &queue(), NOW) else { panic!() };
    assert_eq!(
        &after.raw[..],
        &br#"{"status":"running","id":"a","x":[1.50, 12345678901234567890],"started_at":"2026-01-01T00:00:00.250Z","attempts":1,"worker":"host-1-1"}"#[..]
    );
    assert_eq!(effects[0], Effect::Swap { key: "jobs:data:a".into(), from: before.raw, to: after.raw });
    assert!(
        effects.contains(&Effect::Publish { channel: "jobs:events".into(), message: "a running".into() })
    );
    assert!(effects.contains(&Effect::Unindex { key: "jobs:index:pending".into(), member: "a".into() }));
    assert!(effects.contains(&Effect::Index {
        key: "jobs:index:running".into(),
        at_ms: NOW,
        member: "a".into()
    }));
}

#[test]
fn only_what_is_pending_is_started_or_what_this_lane_runs_already() {
    let starts = |json: &str| matches!(policy().start(&job(json), LANE, &queue(), NOW), Start::Run(..));
    assert!(starts("{}"), "a client need not say that it is pending");
    assert!(starts(r#"{"status":"pending"}"#));
    assert!(starts(r#"{"status":"running","worker":"host-1-1"}"#));
    for other in ["completed", "failed", "cancelled", "running"] {
        assert!(!starts(&format!(r#"{{"status":"{other}"}}"#)), "{other}");
    }
    assert!(!starts(r#"{"status":"running","worker":"host-1-2"}"#));
}

#[test]
fn a_job_that_another_programs_worker_left_running_is_a_dead_letter_that_can_be_revived() {
    let left = job(r#"{"id":"a","type":"t","status":"running","started_at":"2026-01-01T00:00:00Z"}"#);
    let Start::Drop(decision) = policy().start(&left, LANE, &queue(), NOW) else { panic!("started") };
    assert_eq!(decision.verdict, Verdict::Dead(Reason::NoVerdict));
    let swapped = decision.effects.iter().find_map(|effect| match effect {
        Effect::Swap { from, to, .. } if *from == left.raw => Some(to.clone()),
        _ => None,
    });
    let failed = Job { raw: swapped.unwrap(), fields: left.fields.clone() };
    let head = Head::read(&failed.raw).unwrap();
    assert_eq!(head.status, Status::Failed, "only if nobody has changed it meanwhile");
    let letter = decision.effects.iter().find_map(|effect| match effect {
        Effect::Push { bytes, .. } => Some(String::from_utf8_lossy(bytes).into_owned()),
        _ => None,
    });
    assert!(letter.is_some_and(|letter| letter.contains("requeue it if nothing runs it any more")));
    assert!(!policy().revived(&failed, &queue(), NOW).is_empty(), "requeued, it runs");
}

#[test]
fn what_is_dropped_is_left_alone_but_a_cancelled_job_lives_from_now_on() {
    let dropped = |json: &str| match policy().start(&job(json), LANE, &queue(), NOW) {
        Start::Drop(decision) => decision,
        Start::Run(..) => panic!("{json}"),
    };
    let hash = "0f".repeat(32);
    let cancelled = dropped(&format!(r#"{{"status":"cancelled","idempotency_key":"{hash}"}}"#));
    let keys = queue().jobs;
    let expire = |key, ttl_ms, unless| Effect::Expire { key, ttl_ms: Some(ttl_ms), unless };
    let (others, list, month) = (unfinished(&keys, &hash), keys.index("cancelled"), 30 * 86_400_000);
    let expected = [
        expire(keys.data("a"), 60_000, None),
        Effect::Unindex { key: others.clone(), member: "a".into() },
        expire(others.clone(), month, None),
        expire(keys.idem(&hash), month, None),
        expire(keys.idem(&hash), 60_000, Some(others)),
        Effect::Index { key: list.clone(), at_ms: NOW, member: "a".into() },
        expire(list, 60_000, None),
    ];
    assert_eq!(cancelled.effects, expected);
    assert_eq!(dropped(r#"{"status":"completed"}"#), Decision { verdict: Verdict::Dropped, effects: vec![] });
    assert_eq!(cancelled.verdict, Verdict::Dropped);
}

#[test]
fn a_done_job_has_its_result_no_error_and_a_time_to_live() {
    let result = Outcome::DoneWith(Bytes::from_static(br#"{"n":12345678901234567890}"#));
    let decision = policy().settle(&running(), &result, &queue(), NOW, "u");
    let Effect::Swap { to, .. } = &decision.effects[0] else { panic!() };
    let text = std::str::from_utf8(to).unwrap();
    assert!(
        text.contains(r#""result":{"n":12345678901234567890}"#)
            && text.contains("[1.50,12345678901234567890]")
    );
    let done = written(&decision.effects).unwrap();
    assert_eq!((&done["status"], &done["error"]), (&json!("completed"), &Value::Null));
    assert!(!done.contains_key("worker"));
    let lives = Effect::Expire { key: "jobs:data:a".into(), ttl_ms: Some(60_000), unless: None };
    assert!(decision.effects.contains(&lives));
    assert_eq!(decision.verdict, Verdict::Done);
}

#[test]
fn a_result_that_could_not_be_read_again_is_kept_as_text() {
    let nested = |depth: usize| format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
    let kept = |result: &str| {
        let outcome = Outcome::DoneWith(Bytes::from(result.to_owned()));
        let decision = policy().settle(&running(), &outcome, &queue(), NOW, "u");
        let Effect::Swap { to, .. } = &decision.effects[0] else { panic!() };
        assert!(depth(to) <= MAX_DEPTH);
        serde_json::from_slice::<Map<String, Value>>(to).unwrap().remove("result").unwrap()
    };
    for text in [nested(100), nested(1000), r#""\ud800""#.into(), "{".into(), String::new()] {
        assert_eq!(kept(&text), json!(text));
    }
    assert_eq!(kept(r#""\ud83d\ude00""#), json!("😀"));
    assert!(kept(&nested(99)).is_array());
}

#[test]
fn what_is_no_job_is_listed_no_more() {
    let oversize = NotAJob::Oversize { size: 1 << 30, max: 1 << 20 };
    for why in [NotAJob::NoData, oversize, NotAJob::Malformed("not an object".into())] {
        let decision = policy().reject(&Bytes::from_static(b"a"), &why, &queue(), NOW);
        for status in ["pending", "running"] {
            let effect = Effect::Unindex { key: format!("jobs:index:{status}"), member: "a".into() };
            assert!(decision.effects.contains(&effect), "{why}: {status}");
        }
    }
}

#[test]
fn what_is_too_large_to_be_run_is_read_to_be_given_up_and_a_run_of_it_still_counts() {
    let of = |size: usize, more: &str| {
        let payload = "x".repeat(size);
        read(&format!(r#"{{"id":"a","type":"t"{more},"payload":"{payload}"}}"#)).unwrap()
    };
    assert_eq!(policy().condemned(&of(1 << 20, "")), None, "there is room for what workers write");
    let large = of(2 << 20, r#","status":"pending""#);
    let Start::Run(same, effects) = policy().start(&large, LANE, &queue(), NOW) else { panic!() };
    assert_eq!((&same.raw, effects), (&large.raw, vec![]), "nothing says that it ran");
    let failure = policy().condemned(&same).unwrap();
    assert_eq!(failure.reason, Reason::Oversize);
    assert!(failure.error.ends_with("bytes, more than worker.max_payload_bytes = 1048576"), "{failure:?}");
    let decision = policy().settle(&same, &Outcome::Kill(failure), &queue(), NOW, "u");
    assert_eq!(written(&decision.effects).unwrap()["status"], "failed");
    assert!(
        decision.effects.iter().any(|effect| matches!(effect, Effect::Expire { ttl_ms: Some(60_000), .. }))
    );
    let grown = of(2 << 20, r#","status":"running","worker":"host-1-1""#);
    assert_eq!(policy().disowned(&grown, LANE, &queue(), 0), None);
    assert!(policy().largest() >= largest_readable(0), "what clients are shown, a worker can give up");
}

#[test]
fn a_revived_job_keeps_the_key_that_it_was_created_under() {
    let hash = "0f".repeat(32);
    let dead = job(&format!(r#"{{"status":"failed","idempotency_key":"{hash}"}}"#));
    let (keys, effects) = (queue().jobs, policy().revived(&dead, &queue(), NOW));
    let member = "a".to_owned();
    assert!(effects.contains(&Effect::Index { key: unfinished(&keys, &hash), at_ms: NOW, member }));
    assert!(effects.contains(&Effect::Expire { key: keys.idem(&hash), ttl_ms: None, unless: None }));
}

#[test]
fn a_released_job_is_as_it_was_before_it_was_started() {
    let before = job(r#"{"status":"pending","attempts":0,"started_at":null}"#);
    let Start::Run(started, _) = policy().start(&before, LANE, &queue(), NOW) else { panic!() };
    let decision = policy().settle(&started, &Outcome::Released, &queue(), NOW + 5, "u");
    let Effect::Swap { to, .. } = &decision.effects[0] else { panic!() };
    assert_eq!(to, &before.raw);
    let back = Effect::Push { key: "jobs:queue".into(), side: Side::Left, bytes: "a".into() };
    assert_eq!(decision.effects.last(), Some(&back));
    let unstarted = policy().settle(&before, &Outcome::Released, &queue(), NOW, "u");
    assert_eq!(unstarted.effects, [back], "what was not started is not written");
}

#[test]
fn what_was_reserved_and_not_started_was_not_interrupted() {
    let how = Interruption { cause: "heartbeat", outside: false, alone: true };
    let decision = Records::interrupted(&policy(), &job("{}"), LANE, &queue(), how, NOW);
    assert_eq!((decision.verdict, decision.effects.len()), (Verdict::Released, 1));
}

#[test]
fn a_run_of_another_lane_is_not_taken_back() {
    let how = Interruption { cause: "heartbeat", outside: false, alone: false };
    let of = |json: &str| Records::interrupted(&policy(), &job(json), LANE, &queue(), how, NOW).verdict;
    assert_eq!(of(r#"{"status":"running","worker":"host-1-2"}"#), Verdict::Dropped);
    assert_eq!(of(r#"{"status":"running","worker":"host-1-1"}"#), Verdict::Suspected);
    assert_eq!(
        of(r#"{"status":"running"}"#),
        Verdict::Suspected,
        "whoever dropped the name did not mean to lose it"
    );
    assert_eq!(of(r#"{"status":"cancelled","worker":"host-1-1"}"#), Verdict::Dropped);
}

#[test]
fn three_deaths_of_a_job_that_ran_alone_make_it_poison() {
    let json = |interruptions: u32| {
        job(&format!(
            r#"{{"status":"running","worker":"host-1-1","deaths":5,"interruptions":{interruptions}}}"#
        ))
    };
    let how = Interruption { cause: "oom", outside: false, alone: true };
    let of = |job: &Job, how| Records::interrupted(&policy(), job, LANE, &queue(), how, NOW);
    assert_eq!(of(&json(1), how).verdict, Verdict::Suspected);
    let poison = of(&json(2), how);
    assert_eq!(poison.verdict, Verdict::Dead(Reason::Oom));
    assert_eq!(written(&poison.effects).unwrap()["status"], "failed");
    assert_eq!(of(&json(2), Interruption { outside: true, ..how }).verdict, Verdict::Released);
}

#[test]
fn only_a_dead_job_is_revived() {
    assert!(policy().revived(&job(r#"{"status":"cancelled"}"#), &queue(), NOW).is_empty());
    let dead = job(
        r#"{"status":"failed","attempts":4,"retries":4,"deaths":1,"error":"e","completed_at":"t","x":1}"#,
    );
    let revived = written(&policy().revived(&dead, &queue(), NOW)).unwrap();
    let expected = json!({ "status": "pending", "attempts": 0, "error": null, "completed_at": null, "x": 1,
        "started_at": null, "result": null });
    assert_eq!(Value::Object(revived), expected);
}

#[test]
fn what_is_no_job_is_named_among_the_dead_letters_with_its_reason() {
    for (data, reason) in [
        (Data::Missing, Reason::NoData),
        (Data::TooLarge(1 << 30), Reason::Oversize),
        (Data::Unfit("hash".into()), Reason::Malformed),
        (Data::Is(Bytes::from_static(b"[]")), Reason::Malformed),
        (Data::Is(Bytes::from_static(br#"{"status":"odd"}"#)), Reason::Malformed),
        (Data::Is(Bytes::from_static(br#"{"type":7}"#)), Reason::Malformed),
        (Data::Is(Bytes::from_static(b"{\"x\":\"\xff\"}")), Reason::Malformed),
        (Data::Is(Bytes::from("[".repeat(200))), Reason::Malformed),
    ] {
        let id = Bytes::from_static(b"a");
        let why = policy().read(&id, data).unwrap_err();
        let decision = policy().reject(&id, &why, &queue(), NOW);
        assert_eq!(decision.verdict, Verdict::Dead(reason), "{why}");
        let Effect::Push { bytes, .. } = &decision.effects[0] else { panic!() };
        assert_eq!(policy().revive(bytes), (Some("jobs:queue".into()), id));
    }
    let raw = Bytes::from_static(b"\xff\xfe");
    let (_, why) = policy().decode(raw.clone()).unwrap_err();
    let decision = policy().reject(&raw, &why, &queue(), NOW);
    let Effect::Push { bytes, .. } = &decision.effects[0] else { panic!() };
    assert_eq!(policy().revive(bytes).1, raw);
}

#[test]
fn what_clients_see_as_a_job_and_cannot_be_run_is_seen_to_fail() {
    let deep =
        format!(r#"{{"type":"t","status":"pending","payload":{}{}}}"#, "[".repeat(200), "]".repeat(200));
    for raw in [deep.as_str(), r#"{"type":"t","created_at":"\ud800"}"#, r#"{"status":"","status":"pending"}"#]
    {
        let job = job(raw);
        let Start::Run(same, effects) = policy().start(&job, LANE, &queue(), NOW) else { panic!("{raw}") };
        assert_eq!((&same.raw, effects), (&job.raw, vec![]), "nothing says that it ran");
        let failure = policy().condemned(&same).expect(raw);
        assert_eq!(failure.reason, Reason::Malformed);
        let decision = policy().settle(&same, &Outcome::Kill(failure), &queue(), NOW, "u");
        assert_eq!(decision.verdict, Verdict::Dead(Reason::Malformed));
        assert!(matches!(&decision.effects[0], Effect::Swap { from, .. } if *from == job.raw), "{raw}");
        let Effect::Swap { to, .. } = &decision.effects[0] else { panic!() };
        assert_eq!(crate::submission::status(to), Some(Status::Failed), "{raw}");
        assert!(
            decision
                .effects
                .iter()
                .any(|effect| matches!(effect, Effect::Expire { ttl_ms: Some(60_000), .. }))
        );
    }
    assert_eq!(policy().condemned(&job("{}")), None, "what has no type may still be run");
    let over = job(r#"{"created_at":"\ud800","status":"completed"}"#);
    assert!(matches!(policy().start(&over, LANE, &queue(), NOW), Start::Drop(_)));
}

#[test]
fn the_breaker_learns_only_from_handlers_that_were_asked() {
    let failure = |reason| Failure::new(reason, "e");
    let sample = |outcome: Outcome| policy().breaker_sample(&outcome);
    assert_eq!(sample(Outcome::Done), Some(true));
    assert_eq!(sample(Outcome::Failed(failure(Reason::Handler))), Some(false));
    assert_eq!(sample(Outcome::Kill(failure(Reason::Killed))), Some(false), "by its own word");
    assert_eq!(sample(Outcome::Kill(failure(Reason::Handler))), None, "there is none for its type");
    assert_eq!(sample(Outcome::Released), None);
}

#[test]
fn counters_of_any_client_are_read() {
    let fields = job(r#"{"retries":2.0,"deaths":"many","interruptions":-1}"#).fields;
    assert_eq!((fields.retries, fields.deaths, fields.interruptions), (2, 0, 0));
}

fn outcomes() -> impl Strategy<Value = Outcome> {
    let failure = || Failure::new(Reason::Handler, "é\u{0}\"");
    prop_oneof![
        Just(Outcome::Done),
        Just(Outcome::DoneWith(Bytes::from_static(b"[1]"))),
        Just(Outcome::Failed(failure())),
        Just(Outcome::RetryIn(Duration::from_secs(1), failure())),
        Just(Outcome::Kill(failure())),
        Just(Outcome::Discard(None)),
        Just(Outcome::Discard(Some(failure()))),
        Just(Outcome::HandlerDied("gone".into())),
        Just(Outcome::HandlerUnavailable("gone".into())),
        Just(Outcome::PutOff(Duration::from_secs(1), "gone".into())),
        Just(Outcome::Released),
    ]
}

proptest! {
    #[test]
    fn every_settlement_compares_first_and_places_the_id_unless_the_job_is_over(outcome in outcomes(), retries in 0u32..6) {
        let raw = format!(r#"{{"status":"running","worker":"{LANE}","attempts":{},"retries":{retries}}}"#, retries + 1);
        let job = job(&raw);
        let decision = policy().settle(&job, &outcome, &queue(), NOW, "u");
        let compares = matches!(&decision.effects[0], Effect::Swap { from, .. } if *from == job.raw);
        prop_assert!(compares);
        let after = written(&decision.effects).unwrap();
        let status = Status::of(after["status"].as_str().unwrap()).unwrap();
        let queued = decision.effects.iter().any(|effect| match effect {
            Effect::Push { key, .. } => *key == queue().queue,
            Effect::Delay { .. } => true,
            _ => false,
        });
        prop_assert_eq!(queued, !status.is_over(), "exactly what is not over is queued");
        prop_assert!(status != Status::Running && status != Status::Cancelled);
        prop_assert!(!after.contains_key("worker"));
        let lives = decision.effects.iter().any(|effect| matches!(effect, Effect::Expire { .. }));
        prop_assert_eq!(lives, status.is_over());
        let retried = decision.verdict == Verdict::Retried;
        prop_assert!(!retried || after["retries"].as_u64().unwrap() <= 3, "never more than the limit");
    }

    #[test]
    fn no_bytes_make_it_panic(raw in proptest::collection::vec(any::<u8>(), 0..200)) {
        let id = Bytes::from_static(b"a");
        if let Ok(job) = policy().read(&id, Data::Is(raw.into())) {
            let _ = policy().start(&job, LANE, &queue(), NOW);
            let _ = policy().settle(&job, &Outcome::Done, &queue(), NOW, "u");
        }
    }

    #[test]
    fn promotion_gives_back_exactly_the_id_that_was_delayed(id in "[a-z|0-9-]{1,40}") {
        let effects = policy().promote(&tagged("lane-1-2", id.as_bytes()), &queue(), 0);
        prop_assert_eq!(effects, vec![Effect::Push { key: "jobs:queue".into(), side: Side::Right, bytes: id.into() }]);
    }
}
