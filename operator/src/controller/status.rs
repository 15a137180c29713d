//! What is told about a `JobQueue`: conditions and figures, made from what was applied and seen. Pure.
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use serde_json::Value;

use super::Error;
use super::apply::Applied;
use super::build::is_managed;
use super::names::Names;
use crate::api::conditions::{
    DURABLE, Finding, HANDLER_HEALTHY, READY, RECONCILING, REDIS_REACHABLE, SCALING_ACTIVE, STALLED,
    WORKERS_AVAILABLE, merge,
};
use crate::api::v1alpha1::{
    JobQueue, JobQueueStatus, QueueStatus, ScalingMode, ScalingStatus, WorkersStatus,
};
use crate::observer::{Observation, Remedy, Trouble};

/// What a reconcile came to.
pub enum Outcome<'a> {
    /// Everything is applied; the names and keys of the queues in the order of priority.
    Applied {
        /// The live objects.
        applied: &'a Applied,
        /// Name and key of each queue.
        queues: Vec<(String, String)>,
    },
    /// Something must be changed by hand, or tried again; what runs goes on.
    Failed {
        /// What it is.
        error: &'a Error,
        /// Name and key of each queue that is looked at meanwhile.
        queues: Vec<(String, String)>,
        /// The workers that go on; `None`: they could not be looked at.
        live: Option<&'a Applied>,
    },
}

/// The status that follows from what was applied and seen.
pub fn status(
    queue: &JobQueue,
    outcome: &Outcome,
    seen: Option<&Observation>,
    now: Timestamp,
) -> JobQueueStatus {
    let earlier = queue.status.clone().unwrap_or_default();
    let generation = queue.metadata.generation.unwrap_or(0);
    // Whoever begins to lead has not looked at Redis yet, and will within a second: until then what was found stands. It
    // would otherwise be unsaid and said again for every queue at each change of the leader.
    let news = seen.is_some() || earlier.conditions.is_empty();
    if let (Outcome::Applied { .. }, false) =
        (outcome, news || earlier.observed_generation != Some(generation))
    {
        return earlier;
    }
    let mut status = JobQueueStatus { observed_generation: Some(generation), ..earlier.clone() };
    let findings = match outcome {
        Outcome::Applied { applied, queues } => {
            counted(&mut status, queue, applied, seen);
            if let Some(seen) = seen.filter(|seen| seen.trouble.is_none()) {
                figures(&mut status, queues, seen);
            }
            findings(queue, &status, applied, seen)
        }
        Outcome::Failed { error, queues, live } => {
            // One that was never applied has none to speak of.
            let live = live.filter(|live| live.worker.is_some() || earlier.selector.is_some());
            if let Some(live) = live {
                counted(&mut status, queue, live, seen);
            }
            if let Some(seen) = seen.filter(|seen| seen.trouble.is_none()) {
                figures(&mut status, queues, seen);
            }
            failed(queue, &status, error, live, seen)
        }
    };
    status.conditions = merge(&earlier.conditions, &findings, generation, now);
    status
}

/// How many workers there are. Before the first look nobody knows anew how many of them drain.
fn counted(status: &mut JobQueueStatus, queue: &JobQueue, applied: &Applied, seen: Option<&Observation>) {
    let worker = applied.worker.as_ref();
    let count = |path: &str| worker.and_then(|live| live.pointer(path)?.as_i64()).unwrap_or(0);
    let small = |number: i64| i32::try_from(number).unwrap_or(i32::MAX);
    let (desired, ready) = (small(count("/spec/replicas")), small(count("/status/readyReplicas")));
    status.replicas = small(count("/status/replicas"));
    status.selector = Some(selector(queue));
    let draining = seen.map_or(status.workers.draining, |seen| seen.draining).min(desired);
    status.workers = WorkersStatus { desired, ready, draining, summary: summary(desired, ready, draining) };
}

/// What selects the worker pods, as text.
fn selector(queue: &JobQueue) -> String {
    let selector = Names::of(queue).selector("worker");
    selector.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(",")
}

fn figures(status: &mut JobQueueStatus, queues: &[(String, String)], seen: &Observation) {
    let whole = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let figures = &seen.figures;
    let waiting = |at: usize| figures.waiting.get(at).copied().map_or(0, whole);
    let since = |at: usize| {
        let ms = i64::try_from(figures.oldest.get(at).copied().flatten()?).ok()?;
        // Whole seconds, as everywhere in the API.
        Some(Time(Timestamp::from_second(ms / 1000).ok()?))
    };
    let open = |at: usize| figures.open.get(at).copied().unwrap_or(false);
    status.queues = (queues.iter().enumerate())
        .map(|(at, (name, key))| QueueStatus {
            name: name.clone(),
            key: key.clone(),
            waiting: waiting(at),
            oldest_waiting_since: if waiting(at) > 0 { since(at) } else { None },
            breaker: if open(at) { "open".into() } else { String::new() },
        })
        .collect();
    status.waiting = whole(figures.waiting.iter().sum());
    status.in_flight = whole(figures.in_flight);
    status.delayed = whole(figures.delayed());
    status.dead_letters = whole(figures.dead_letters);
    if let Some((decision, at)) = &seen.decision {
        let time = Timestamp::from_second(i64::try_from(at / 1000).unwrap_or(0)).unwrap_or_default();
        status.scaling = Some(ScalingStatus {
            replicas: decision.replicas,
            reason: decision.reason.clone(),
            time: Time(time),
            inputs: Some(decision.inputs.clone()),
        });
    }
}

fn findings(
    queue: &JobQueue,
    earlier: &JobQueueStatus,
    applied: &Applied,
    seen: Option<&Observation>,
) -> Vec<Finding> {
    let WorkersStatus { desired, ready, .. } = earlier.workers;
    let conflict = seen.and_then(|seen| seen.conflict.as_ref());
    let was = |kind: &str| earlier.conditions.iter().any(|one| one.type_ == kind && one.status == "True");
    let redis = redis(queue, seen, was(REDIS_REACHABLE));
    let workers = workers(applied, &earlier.workers);
    // Workers that start because there are jobs are no trouble; workers that cannot start are.
    let starting = was(READY) && failure(applied).is_none();
    let mut findings = vec![];
    if let Some((key, owner)) = conflict {
        let claim = jobqueue::store::ownership::claim(key);
        let message = format!(
            "The queue {key} in this Redis belongs to {}: give this JobQueue another spec.keyPrefix or another Redis; \
             if the owner is gone for good, DEL {claim}",
            owner_name(owner)
        );
        findings.push(Finding::no(READY, "KeyConflict", message.clone()));
        findings.push(Finding::yes(STALLED, "KeyConflict", message));
    } else if redis.holds != Some(true) {
        findings.push(Finding { kind: READY, ..redis.clone() });
        if TERMINAL.contains(&redis.reason.as_str()) {
            findings.push(Finding { kind: STALLED, holds: Some(true), ..redis.clone() });
        }
    } else if desired > 0 && ready == 0 && !starting {
        findings.push(Finding { kind: READY, ..workers.clone() });
    } else {
        findings.push(serving(queue, earlier));
    }
    if applied.waits_to_roll {
        let message = "The operator was upgraded and rolls a few queues at a time: until it is the turn of this one its workers \
                       stay as they are, whatever is changed in spec.worker";
        findings.push(Finding::yes(RECONCILING, "WaitsForTurn", message));
    }
    findings.push(redis);
    findings.push(durable(queue));
    findings.push(workers);
    findings.push(scaling(queue, seen));
    findings.push(handler(earlier, seen));
    findings
}

/// A queue that is ready.
fn serving(queue: &JobQueue, status: &JobQueueStatus) -> Finding {
    if queue.spec.paused {
        let message = "Paused by spec.paused: jobs are accepted and kept, none is started";
        return Finding::yes(READY, "Paused", message);
    }
    Finding::yes(READY, "Ready", ready_message(queue, status))
}

/// What a queue that is ready does.
fn ready_message(queue: &JobQueue, status: &JobQueueStatus) -> String {
    let WorkersStatus { desired, ready, .. } = status.workers;
    if desired > 0 {
        return format!("{ready} of {desired} workers are ready");
    }
    let message = match queue.spec.scaling.mode {
        ScalingMode::Manual => "No workers: scaling.mode is Manual, and spec.replicas asks for none",
        ScalingMode::Auto if status.waiting > 0 => "No workers yet: there are jobs, they start",
        ScalingMode::Auto if status.delayed > 0 => {
            "No workers: the jobs are delayed, they start when the first is due"
        }
        ScalingMode::Auto => "No jobs, no workers: they start with the first job",
    };
    message.to_owned()
}

/// The workers in one word: those that drain are on their way out, whether they are ready or not.
fn summary(desired: i32, ready: i32, draining: i32) -> String {
    let stay = desired - draining;
    match draining {
        0 => format!("{ready}/{desired}"),
        _ => format!("{}/{stay} ({draining} draining)", ready.min(stay)),
    }
}

/// Whether the workers take jobs from every queue.
fn handler(earlier: &JobQueueStatus, seen: Option<&Observation>) -> Finding {
    let queues = earlier.queues.iter().map(|queue| queue.name.as_str());
    let open = seen.map(|seen| seen.figures.open.as_slice()).unwrap_or_default();
    let names: Vec<&str> = queues.zip(open).filter(|(_, open)| **open).map(|(name, _)| name).collect();
    if names.is_empty() {
        return Finding::yes(
            HANDLER_HEALTHY,
            "BreakersClosed",
            "No queue is held back because its jobs fail",
        );
    }
    let message = format!(
        "So many jobs failed that workers only try one now and then: {}. Look at their errors with kubectl logs; no workers are \
         started for these queues",
        names.join(", ")
    );
    Finding::no(HANDLER_HEALTHY, "BreakerOpen", message)
}

pub(super) fn owner_name(owner: &str) -> String {
    match owner.split('/').collect::<Vec<_>>().as_slice() {
        [_, namespace, name, _] => format!("JobQueue {namespace}/{name}"),
        _ => owner.to_owned(),
    }
}

fn redis(queue: &JobQueue, seen: Option<&Observation>, was_reachable: bool) -> Finding {
    let starting = is_managed(queue) && !was_reachable;
    match seen.map(|seen| &seen.trouble) {
        Some(None) => Finding::yes(REDIS_REACHABLE, "Reachable", "Redis answers"),
        Some(Some(trouble)) if starting && trouble.kind == Remedy::Wait => {
            let message = format!("The managed Redis starts; so far: {}", trouble.message);
            Finding::no(REDIS_REACHABLE, "RedisStarting", message)
        }
        Some(Some(trouble)) => {
            // The worker's words for what the user of a JobQueue sets elsewhere.
            let place = match queue.spec.redis.as_ref().and_then(|redis| redis.external.as_ref()) {
                Some(_) => "check username and password in the Secret of spec.redis.external.secretRef",
                None => {
                    "the Secret of the managed Redis was changed: restore it, or delete Redis' pod to have it read again"
                }
            };
            let message = trouble.message.replace("check redis.username and redis.password", place);
            Finding::no(REDIS_REACHABLE, reason(trouble), message)
        }
        None if starting => Finding::no(REDIS_REACHABLE, "RedisStarting", "The managed Redis starts"),
        None => Finding::unknown(REDIS_REACHABLE, "Connecting", "Redis has not been asked yet"),
    }
}

/// Reasons for which waiting will not help.
const TERMINAL: [&str; 2] = [AUTH_FAILED, UNUSABLE];
const AUTH_FAILED: &str = "RedisAuthFailed";
const UNUSABLE: &str = "RedisUnusable";

/// What is wrong with Redis, in one word.
pub(super) fn reason(trouble: &Trouble) -> &'static str {
    match trouble.kind {
        Remedy::Wait => "Unreachable",
        Remedy::Credentials => AUTH_FAILED,
        Remedy::Change => UNUSABLE,
    }
}

fn durable(queue: &JobQueue) -> Finding {
    if !is_managed(queue) {
        return Finding::unknown(DURABLE, "External", "The durability of an external Redis is its owner's");
    }
    let storage = queue.spec.redis.as_ref().and_then(|redis| redis.managed.as_ref()?.storage.as_ref());
    if storage.is_some_and(|storage| storage.ephemeral.is_some()) {
        let message = "spec.redis.managed.storage is ephemeral: all jobs are lost when the pod of Redis goes";
        return Finding::no(DURABLE, "Ephemeral", message);
    }
    Finding::yes(
        DURABLE,
        "Volume",
        "Jobs are kept on a volume; a crash of Redis may lose the last second of changes",
    )
}

fn workers(applied: &Applied, workers: &WorkersStatus) -> Finding {
    let WorkersStatus { desired, ready, draining, .. } = *workers;
    if desired == 0 {
        return Finding::yes(WORKERS_AVAILABLE, "NoneWanted", "No workers are wanted");
    }
    let message = match draining {
        0 => format!("{ready} of {desired} workers are ready"),
        _ => format!("{ready} of {desired} workers are ready; {draining} finish their jobs and go"),
    };
    // One that has nothing left to do is not ready any more.
    if ready >= desired - draining {
        return Finding::yes(WORKERS_AVAILABLE, "Available", message);
    }
    match failure(applied) {
        Some(why) => Finding::no(WORKERS_AVAILABLE, "WorkersFailing", format!("{message}: {why}")),
        None => Finding::no(WORKERS_AVAILABLE, "WorkersStarting", message),
    }
}

/// What the Deployment says of pods that it could not make, or that do not become ready.
fn failure(applied: &Applied) -> Option<String> {
    if applied.obstacle.is_some() {
        return applied.obstacle.clone();
    }
    let conditions = applied.worker.as_ref()?["status"]["conditions"].as_array()?;
    let is = |one: &Value, kind: &str, status: &str| one["type"] == kind && one["status"] == status;
    let failed = conditions
        .iter()
        .find(|one| is(one, "ReplicaFailure", "True"))
        .or_else(|| conditions.iter().find(|one| is(one, "Progressing", "False")))?;
    failed["message"].as_str().map(str::to_owned)
}

fn scaling(queue: &JobQueue, seen: Option<&Observation>) -> Finding {
    match (queue.spec.scaling.mode, seen) {
        (ScalingMode::Manual, _) => {
            Finding::no(SCALING_ACTIVE, "Manual", "scaling.mode is Manual: spec.replicas decides")
        }
        (_, Some(Observation { conflict: Some(_), .. })) => {
            Finding::no(SCALING_ACTIVE, "KeyConflict", "No workers: the keys belong to another JobQueue")
        }
        (_, Some(Observation { trouble: None, figures, .. })) => {
            let range = &queue.spec.scaling;
            if queue.spec.paused || figures.paused {
                let message =
                    format!("The queue is paused: its workers go, down to {} of them", range.min_replicas);
                return Finding::yes(SCALING_ACTIVE, "Paused", message);
            }
            let in_time =
                range.target_latency.map(|latency| format!(", and as many as start each within {latency}"));
            let mut message = format!(
                "Between {} and {} workers, one for each {} jobs{}",
                range.min_replicas,
                range.max_replicas,
                range.backlog_per_worker,
                in_time.unwrap_or_default()
            );
            if figures.crowded {
                message += "; there are more than 100000 lanes (of a shard), and one look shows no more, so workers go only after \
                            scaling.drainTimeout: set it, or fewer workers with more worker.concurrency, or more worker.shards";
            }
            Finding::yes(SCALING_ACTIVE, "Following", message)
        }
        (_, Some(_)) => Finding::no(
            SCALING_ACTIVE,
            "Holding",
            "Redis cannot be read: the number of workers stays as it is",
        ),
        (_, None) => Finding::unknown(SCALING_ACTIVE, "Connecting", "Redis has not been asked yet"),
    }
}

/// A failure speaks of itself; what runs goes on and is looked at as ever. What was found earlier about the other parts
/// stands. A change that waits keeps no queue from being ready.
fn failed(
    queue: &JobQueue,
    status: &JobQueueStatus,
    error: &Error,
    live: Option<&Applied>,
    seen: Option<&Observation>,
) -> Vec<Finding> {
    let earlier = |kind: &str| status.conditions.iter().find(|old| old.type_ == kind);
    let was = |kind: &str| earlier(kind).is_some_and(|old| old.status == "True");
    let waits = matches!(error, Error::Waits { .. });
    let WorkersStatus { desired, ready, .. } = status.workers;
    let redis = redis(queue, seen, was(REDIS_REACHABLE));
    let serves = seen.is_some_and(|seen| seen.trouble.is_none() && seen.conflict.is_none());
    let mut findings = vec![match seen {
        Some(_) if waits && serves && (ready > 0 || desired == 0) => serving(queue, status),
        Some(_) if waits && redis.holds != Some(true) => Finding { kind: READY, ..redis.clone() },
        None if waits && was(READY) => again(READY, earlier(READY)),
        _ => Finding::no(READY, error.reason(), error.to_string()),
    }];
    if error.is_stalled() {
        findings.push(Finding::yes(STALLED, error.reason(), error.to_string()));
    }
    if waits {
        findings.push(Finding::yes(RECONCILING, error.reason(), error.to_string()));
    }
    for kind in [REDIS_REACHABLE, DURABLE, WORKERS_AVAILABLE, SCALING_ACTIVE, HANDLER_HEALTHY] {
        match kind {
            REDIS_REACHABLE if seen.is_some() => findings.push(redis.clone()),
            WORKERS_AVAILABLE if live.is_some() => {
                findings.extend(live.map(|live| workers(live, &status.workers)));
            }
            SCALING_ACTIVE if seen.is_some() => findings.push(scaling(queue, seen)),
            HANDLER_HEALTHY if seen.is_some() => findings.push(handler(status, seen)),
            kind if earlier(kind).is_some() => findings.push(again(kind, earlier(kind))),
            _ => {}
        }
    }
    findings
}

/// What was found earlier.
fn again(kind: &'static str, old: Option<&Condition>) -> Finding {
    let holds = match old.map(|old| old.status.as_str()) {
        Some("True") => Some(true),
        Some("False") => Some(false),
        _ => None,
    };
    let text = |of: fn(&Condition) -> &String| old.map(of).cloned().unwrap_or_default();
    Finding { kind, holds, reason: text(|old| &old.reason), message: text(|old| &old.message) }
}

#[cfg(test)]
mod tests {
    use jobqueue::connect::ConnectError;
    use jobqueue::store::StoreError;

    use super::*;
    use crate::observer::Figures;

    fn conditions(error: &StoreError) -> Vec<(String, String, String)> {
        let external = serde_json::json!({ "redis": { "external": { "address": "store:6379" } } });
        let queue = JobQueue::new("orders", serde_json::from_value(external).unwrap());
        let seen = Observation { trouble: Some(Trouble::from(error)), ..Observation::default() };
        let outcome = Outcome::Applied { applied: &Applied::default(), queues: vec![] };
        let status = status(&queue, &outcome, Some(&seen), Timestamp::UNIX_EPOCH);
        status.conditions.into_iter().map(|one| (one.type_, one.status, one.reason)).collect()
    }

    fn told(error: &StoreError, kind: &str) -> Option<String> {
        let found = conditions(error).into_iter().find(|(of, _, _)| of == kind)?;
        Some(format!("{}/{}", found.1, found.2))
    }

    #[test]
    fn credentials_that_are_refused_stall_a_queue() {
        let address = "store:6379".to_owned();
        let denied = StoreError::Denied { what: "key jobqueue:lanes".into() };
        for error in [StoreError::Connect(ConnectError::Credentials { address }), denied] {
            assert_eq!(told(&error, READY).as_deref(), Some("False/RedisAuthFailed"));
            assert_eq!(told(&error, STALLED).as_deref(), Some("True/RedisAuthFailed"));
        }
    }

    #[test]
    fn what_is_no_redis_or_one_that_is_too_old_stalls_a_queue() {
        let too_old = ConnectError::TooOld { address: "store:6379".into(), version: "5.0".into() };
        let error = StoreError::Connect(too_old);
        assert_eq!(told(&error, STALLED).as_deref(), Some("True/RedisUnusable"));
    }

    #[test]
    fn until_the_first_look_what_was_found_stands() {
        let outcome = Outcome::Applied { applied: &Applied::default(), queues: vec![] };
        let mut queue = JobQueue::new("orders", serde_json::from_value(serde_json::json!({})).unwrap());
        queue.metadata.generation = Some(3);
        let seen = Observation::default();
        let found = status(&queue, &outcome, Some(&seen), Timestamp::UNIX_EPOCH);
        queue.status = Some(found.clone());
        assert_eq!(status(&queue, &outcome, None, Timestamp::MAX), found);
        // Of a changed spec nothing is known.
        queue.metadata.generation = Some(4);
        assert_ne!(status(&queue, &outcome, None, Timestamp::MAX), found);
    }

    /// What is said of a queue with this spec, of these workers (asked for, ready) and after this look.
    fn said(spec: &str, workers: (i32, i32), seen: &Observation, kind: &str) -> String {
        let spec = serde_json::from_value(serde_saphyr::from_str(spec).unwrap()).unwrap();
        let worker = serde_json::json!({ "spec": { "replicas": workers.0 }, "status": { "readyReplicas": workers.1 } });
        let applied = Applied { worker: Some(worker), ..Applied::default() };
        let outcome = Outcome::Applied { applied: &applied, queues: vec![("low".into(), "k".into())] };
        let status = status(&JobQueue::new("orders", spec), &outcome, Some(seen), Timestamp::UNIX_EPOCH);
        let found = status.conditions.into_iter().find(|one| one.type_ == kind).unwrap();
        format!("{}/{}: {} [{}]", found.status, found.reason, found.message, status.workers.summary)
    }

    fn waiting(waiting: u64, delayed: u64) -> Observation {
        let figures =
            Figures { waiting: vec![waiting], delayed_by_queue: vec![delayed], ..Figures::default() };
        Observation { figures, ..Observation::default() }
    }

    #[test]
    fn workers_that_drain_are_no_workers_that_are_missing() {
        let seen = Observation { draining: 3, ..Observation::default() };
        let told = "True/Available: 2 of 5 workers are ready; 3 finish their jobs and go [2/2 (3 draining)]";
        assert_eq!(said("{}", (5, 2), &seen, WORKERS_AVAILABLE), told);
        let told =
            "False/WorkersStarting: 1 of 5 workers are ready; 3 finish their jobs and go [1/2 (3 draining)]";
        assert_eq!(said("{}", (5, 1), &seen, WORKERS_AVAILABLE), told);
        assert!(
            said("{}", (5, 5), &seen, WORKERS_AVAILABLE).ends_with("[2/2 (3 draining)]"),
            "busy ones are ready"
        );
    }

    #[test]
    fn a_queue_without_workers_says_when_they_start() {
        for (spec, seen, told) in [
            ("{}", waiting(0, 0), "No jobs, no workers: they start with the first job"),
            ("{}", waiting(0, 2), "No workers: the jobs are delayed, they start when the first is due"),
            ("{}", waiting(2, 2), "No workers yet: there are jobs, they start"),
            (
                "{scaling: {mode: Manual}, replicas: 0}",
                waiting(2, 0),
                "No workers: scaling.mode is Manual, and spec.replicas asks for none",
            ),
        ] {
            assert_eq!(said(spec, (0, 0), &seen, READY), format!("True/Ready: {told} [0/0]"));
        }
    }

    #[test]
    fn what_the_number_of_workers_follows_is_told() {
        let all = "{scaling: {targetLatency: 30s}}";
        let told = "True/Following: Between 0 and 10 workers, one for each 100 jobs, and as many as start each within 30s [0/0]";
        assert_eq!(said(all, (0, 0), &waiting(0, 0), SCALING_ACTIVE), told);
        let told = "True/Paused: The queue is paused: its workers go, down to 0 of them [0/0]";
        assert_eq!(said("{paused: true}", (0, 0), &waiting(0, 0), SCALING_ACTIVE), told);
        let conflict = Some(("k".into(), "c/n/other/u".into()));
        let told = "False/KeyConflict: No workers: the keys belong to another JobQueue [0/0]";
        assert_eq!(said("{}", (0, 0), &Observation { conflict, ..waiting(0, 0) }, SCALING_ACTIVE), told);
    }

    #[test]
    fn what_takes_place_by_itself_stalls_nothing() {
        let error = Error::Waits { reason: "JobsLeftBehind", message: "3 jobs".into() };
        let queue = JobQueue::new("orders", serde_json::from_value(serde_json::json!({})).unwrap());
        let outcome = Outcome::Failed { error: &error, queues: vec![], live: None };
        let status = status(&queue, &outcome, None, Timestamp::UNIX_EPOCH);
        let kinds: Vec<_> =
            status.conditions.iter().map(|one| (one.type_.as_str(), one.status.as_str())).collect();
        assert_eq!(kinds, [(READY, "False"), (RECONCILING, "True")]);
    }

    /// What becomes of a queue with two workers that was ready, when this happens; with what was seen since.
    fn after(error: &Error, seen: Option<&Observation>) -> JobQueueStatus {
        followed_by(error, None, seen)
    }

    /// The same, when these are its workers (asked for, ready) now.
    fn followed_by(error: &Error, now: Option<(i32, i32)>, seen: Option<&Observation>) -> JobQueueStatus {
        let with = |(asked, ready): (i32, i32)| {
            let worker = serde_json::json!({ "spec": { "replicas": asked }, "status": { "replicas": asked, "readyReplicas": ready } });
            Applied { worker: Some(worker), ..Applied::default() }
        };
        let applied = with((2, 2));
        let queues = vec![("low".to_owned(), "k".to_owned())];
        let outcome = Outcome::Applied { applied: &applied, queues: queues.clone() };
        let mut queue = JobQueue::new("orders", serde_json::from_value(serde_json::json!({})).unwrap());
        queue.status = Some(status(&queue, &outcome, Some(&waiting(1, 0)), Timestamp::UNIX_EPOCH));
        let live = now.map(with);
        let failed = Outcome::Failed { error, queues, live: live.as_ref() };
        let found = status(&queue, &failed, seen, Timestamp::UNIX_EPOCH);
        if seen.is_none_or(|seen| seen.trouble.is_none()) {
            queue.status = Some(found.clone());
            assert_eq!(status(&queue, &failed, seen, Timestamp::MAX), found, "nothing to write at rest");
        }
        found
    }

    fn found(status: &JobQueueStatus, kind: &str) -> String {
        let found = status.conditions.iter().find(|one| one.type_ == kind);
        found.map_or_else(|| "-".into(), |one| format!("{}/{}", one.status, one.reason))
    }

    #[test]
    fn a_queue_whose_change_waits_serves_and_says_so() {
        let waits = Error::Waits { reason: "JobsLeftBehind", message: "3 jobs".into() };
        let now = after(&waits, Some(&waiting(7, 0)));
        assert_eq!((found(&now, READY).as_str(), now.waiting), ("True/Ready", 7));
        assert_eq!(found(&now, RECONCILING), "True/JobsLeftBehind");
        assert_eq!(found(&after(&waits, None), READY), "True/Ready", "nobody has looked since");
        let trouble = Some(Trouble::from(&StoreError::Lost("closed".into())));
        let away = after(&waits, Some(&Observation { trouble, ..waiting(7, 0) }));
        assert_eq!(found(&away, READY), "False/Unreachable");
        assert_eq!((found(&away, SCALING_ACTIVE).as_str(), away.waiting), ("False/Holding", 1));
    }

    #[test]
    fn what_runs_is_looked_at_while_the_spec_is_refused() {
        let stalled = Error::stalled("SecretNotFound", "create it");
        let mut seen = waiting(7, 0);
        seen.figures.open = vec![true];
        let now = after(&stalled, Some(&seen));
        assert_eq!((found(&now, READY).as_str(), now.waiting), ("False/SecretNotFound", 7));
        assert_eq!(found(&now, HANDLER_HEALTHY), "False/BreakerOpen");
        assert_eq!(found(&now, WORKERS_AVAILABLE), "True/Available", "as it was");
        assert_eq!(now.queues[0].breaker, "open");
        let unseen = after(&stalled, None);
        assert_eq!((found(&unseen, HANDLER_HEALTHY).as_str(), unseen.waiting), ("True/BreakersClosed", 1));
    }

    #[test]
    fn workers_are_counted_while_the_spec_is_refused_or_waits() {
        let waits = Error::Waits { reason: "JobsLeftBehind", message: "3 jobs".into() };
        for error in [Error::stalled("SecretNotFound", "create it"), waits] {
            let seen = Observation { draining: 1, ..waiting(1, 0) };
            let now = followed_by(&error, Some((5, 2)), Some(&seen));
            assert_eq!((now.replicas, now.workers.summary.as_str()), (5, "2/4 (1 draining)"));
            assert_eq!(found(&now, WORKERS_AVAILABLE), "False/WorkersStarting");
            let now = followed_by(&error, Some((0, 0)), None);
            assert_eq!((now.replicas, found(&now, WORKERS_AVAILABLE).as_str()), (0, "True/NoneWanted"));
        }
        let queue = JobQueue::new("orders", serde_json::from_value(serde_json::json!({})).unwrap());
        let error = Error::stalled("SecretNotFound", "create it");
        let never = Applied::default();
        let outcome = Outcome::Failed { error: &error, queues: vec![], live: Some(&never) };
        let status = status(&queue, &outcome, None, Timestamp::UNIX_EPOCH);
        assert_eq!((found(&status, WORKERS_AVAILABLE).as_str(), status.selector), ("-", None));
    }

    #[test]
    fn a_redis_that_is_away_stalls_nothing() {
        let error = StoreError::Lost("closed".into());
        assert_eq!(told(&error, READY).as_deref(), Some("False/Unreachable"));
        assert_eq!(told(&error, STALLED), None);
    }
}
