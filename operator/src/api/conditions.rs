//! Conditions: what is true of a `JobQueue`, each with a reason for programs and a message for people.
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// Jobs can be enqueued and are being run.
pub const READY: &str = "Ready";
/// Redis answers.
pub const REDIS_REACHABLE: &str = "RedisReachable";
/// Jobs survive the loss of Redis' pod.
pub const DURABLE: &str = "Durable";
/// The workers that are wanted are there.
pub const WORKERS_AVAILABLE: &str = "WorkersAvailable";
/// The number of workers follows the number of jobs.
pub const SCALING_ACTIVE: &str = "ScalingActive";
/// No queue is held back because its jobs fail.
pub const HANDLER_HEALTHY: &str = "HandlerHealthy";
/// What was asked for waits for something, and takes place by itself.
pub const RECONCILING: &str = "Reconciling";
/// Something must be changed by hand.
pub const STALLED: &str = "Stalled";

/// More than anybody reads; Kubernetes takes 32 KiB.
const LONGEST_MESSAGE: usize = 1024;

/// Something that is true, false or not known, before it is known since when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// One of the constants above.
    pub kind: &'static str,
    /// `None`: not known.
    pub holds: Option<bool>,
    /// One word in camel case.
    pub reason: String,
    /// What to know or do.
    pub message: String,
}

impl Finding {
    /// It is so.
    pub fn yes(kind: &'static str, reason: &str, message: impl Into<String>) -> Self {
        Self { kind, holds: Some(true), reason: reason.into(), message: message.into() }
    }

    /// It is not so.
    pub fn no(kind: &'static str, reason: &str, message: impl Into<String>) -> Self {
        Self { kind, holds: Some(false), reason: reason.into(), message: message.into() }
    }

    /// Nobody has looked yet, or nobody could.
    pub fn unknown(kind: &'static str, reason: &str, message: impl Into<String>) -> Self {
        Self { kind, holds: None, reason: reason.into(), message: message.into() }
    }

    fn status(&self) -> &'static str {
        match self.holds {
            Some(true) => "True",
            Some(false) => "False",
            None => "Unknown",
        }
    }
}

/// The conditions that the findings make of the earlier ones: the time of transition moves only with the status.
pub fn merge(earlier: &[Condition], findings: &[Finding], generation: i64, now: Timestamp) -> Vec<Condition> {
    findings
        .iter()
        .map(|finding| {
            let same = earlier.iter().find(|old| old.type_ == finding.kind && old.status == finding.status());
            Condition {
                type_: finding.kind.into(),
                status: finding.status().into(),
                reason: finding.reason.clone(),
                message: shortened(&finding.message),
                observed_generation: Some(generation),
                last_transition_time: same.map_or(Time(now), |old| old.last_transition_time.clone()),
            }
        })
        .collect()
}

fn shortened(message: &str) -> String {
    let mut end = LONGEST_MESSAGE.min(message.len());
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    message[..end].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn the_time_of_transition_moves_only_with_the_status() {
        let first = merge(&[], &[Finding::no(READY, "Starting", "Redis starts")], 1, at(10));
        let second = merge(&first, &[Finding::no(READY, "NoWorkers", "No worker is ready")], 2, at(20));
        assert_eq!(second[0].last_transition_time, Time(at(10)));
        assert_eq!((second[0].observed_generation, second[0].reason.as_str()), (Some(2), "NoWorkers"));
        let third = merge(&second, &[Finding::yes(READY, "Ready", "")], 2, at(30));
        assert_eq!((third[0].last_transition_time.clone(), third[0].status.as_str()), (Time(at(30)), "True"));
    }

    #[test]
    fn a_condition_that_is_no_longer_found_goes() {
        let stalled = merge(&[], &[Finding::yes(STALLED, "KeyConflict", "")], 1, at(1));
        assert!(merge(&stalled, &[], 1, at(2)).is_empty());
    }

    #[test]
    fn a_long_message_is_cut_at_a_character() {
        let long = "é".repeat(2000);
        assert_eq!(shortened(&long).len(), 1024);
        let odd = format!("x{}", "é".repeat(2000));
        assert_eq!(shortened(&odd).len(), 1023);
    }
}
