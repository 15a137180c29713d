//! What is told about a `JobQueue`: conditions and figures, made from what was applied and seen. Pure.
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::Value;

use super::Error;
use super::apply::Applied;
use super::build::is_managed;
use super::names::Names;
use crate::api::conditions::{
    DURABLE, Finding, HANDLER_HEALTHY, READY, REDIS_REACHABLE, SCALING_ACTIVE, STALLED, WORKERS_AVAILABLE,
    merge,
};
use crate::api::v1alpha1::{
    JobQueue, JobQueueStatus, QueueStatus, ScalingMode, ScalingStatus, WorkersStatus,
};
use crate::observer::{Observation, Trouble};

/// What a reconcile came to.
pub enum Outcome<'a> {
    /// Everything is applied; the names and keys of the queues in the order of priority.
    Applied {
        /// The live objects.
        applied: &'a Applied,
        /// Name and key of each queue.
        queues: Vec<(String, String)>,
    },
    /// Something must be changed by hand, or tried again.
    Failed(&'a Error),
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
            let worker = applied.worker.as_ref();
            let count = |path: &str| worker.and_then(|live| live.pointer(path)?.as_i64()).unwrap_or(0);
            let small = |number: i64| i32::try_from(number).unwrap_or(i32::MAX);
            let (desired, ready) = (small(count("/spec/replicas")), small(count("/status/readyReplicas")));
            status.replicas = small(count("/status/replicas"));
            status.selector = Some(selector(queue));
            let draining = seen.map_or(0, |seen| seen.draining).min(desired);
            status.workers =
                WorkersStatus { desired, ready, draining, summary: format!("{ready}/{desired}") };
            if let Some(seen) = seen.filter(|seen| seen.trouble.is_none()) {
                figures(&mut status, queues, seen);
            }
            findings(queue, &status, applied, seen, desired, ready)
        }
        Outcome::Failed(error) => failed(&earlier, error),
    };
    status.conditions = merge(&earlier.conditions, &findings, generation, now);
    status
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
    desired: i32,
    ready: i32,
) -> Vec<Finding> {
    let conflict = seen.and_then(|seen| seen.conflict.as_ref());
    let was = |kind: &str| earlier.conditions.iter().any(|one| one.type_ == kind && one.status == "True");
    let redis = redis(queue, seen, was(REDIS_REACHABLE));
    let workers = workers(applied, desired, ready);
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
    } else if queue.spec.paused {
        findings.push(Finding::yes(
            READY,
            "Paused",
            "Paused by spec.paused: jobs are accepted and kept, none is started",
        ));
    } else {
        let message = match desired {
            0 => "No jobs, no workers: they start with the first job".to_owned(),
            _ => format!("{ready} of {desired} workers are ready"),
        };
        findings.push(Finding::yes(READY, "Ready", message));
    }
    findings.push(redis);
    findings.push(durable(queue));
    findings.push(workers);
    findings.push(scaling(queue, seen));
    findings.push(handler(earlier, seen));
    findings
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

fn owner_name(owner: &str) -> String {
    match owner.split('/').collect::<Vec<_>>().as_slice() {
        [_, namespace, name, _] => format!("JobQueue {namespace}/{name}"),
        _ => owner.to_owned(),
    }
}

fn redis(queue: &JobQueue, seen: Option<&Observation>, was_reachable: bool) -> Finding {
    let starting = is_managed(queue) && !was_reachable;
    match seen.map(|seen| &seen.trouble) {
        Some(None) => Finding::yes(REDIS_REACHABLE, "Reachable", "Redis answers"),
        Some(Some(trouble)) if starting && !trouble.permanent => {
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
fn reason(trouble: &Trouble) -> &'static str {
    let says = |words: &str| trouble.message.contains(words);
    match trouble.permanent {
        false => "Unreachable",
        true if says("refused the credentials") || says("denies access") => AUTH_FAILED,
        true => UNUSABLE,
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

fn workers(applied: &Applied, desired: i32, ready: i32) -> Finding {
    if desired == 0 {
        return Finding::yes(WORKERS_AVAILABLE, "NoneWanted", "No workers are wanted");
    }
    if ready >= desired {
        return Finding::yes(
            WORKERS_AVAILABLE,
            "Available",
            format!("{ready} of {desired} workers are ready"),
        );
    }
    let message = format!("{ready} of {desired} workers are ready");
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
        (_, Some(Observation { trouble: None, conflict: None, .. })) => {
            let range = &queue.spec.scaling;
            let message = format!(
                "Between {} and {} workers, one for each {} jobs",
                range.min_replicas, range.max_replicas, range.backlog_per_worker
            );
            Finding::yes(SCALING_ACTIVE, "Following", message)
        }
        _ => Finding::no(
            SCALING_ACTIVE,
            "Holding",
            "Redis cannot be read: the number of workers stays as it is",
        ),
    }
}

/// A failure speaks only of itself: what was found earlier about the parts stands.
fn failed(earlier: &JobQueueStatus, error: &Error) -> Vec<Finding> {
    let mut findings = vec![Finding::no(READY, error.reason(), error.to_string())];
    if error.is_stalled() {
        findings.push(Finding::yes(STALLED, error.reason(), error.to_string()));
    }
    for kind in [REDIS_REACHABLE, DURABLE, WORKERS_AVAILABLE, SCALING_ACTIVE, HANDLER_HEALTHY] {
        if let Some(old) = earlier.conditions.iter().find(|old| old.type_ == kind) {
            let holds = match old.status.as_str() {
                "True" => Some(true),
                "False" => Some(false),
                _ => None,
            };
            findings.push(Finding { kind, holds, reason: old.reason.clone(), message: old.message.clone() });
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use jobqueue::connect::ConnectError;
    use jobqueue::store::StoreError;

    use super::*;

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

    #[test]
    fn a_redis_that_is_away_stalls_nothing() {
        let error = StoreError::Lost("closed".into());
        assert_eq!(told(&error, READY).as_deref(), Some("False/Unreachable"));
        assert_eq!(told(&error, STALLED), None);
    }
}
