//! The figures of a queue, from its status or from Redis: one line of `stats`, `list` and `top`. Pure.
use jiff::Timestamp;
use kube::ResourceExt;
use operator::api::v1alpha1::{JobQueue, JobQueueStatus, Protocol};
use serde::Serialize;

use crate::live;
use crate::table::{Cell, Tone, age, since};

/// The figures of a queue.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Figures {
    /// Where.
    pub namespace: String,
    /// Which.
    pub name: String,
    /// `True`, `False` or `Unknown`: whether jobs can be enqueued and are being run.
    pub ready: String,
    /// What there is to know about that.
    pub message: String,
    /// `files`, `sidekiq` or `async`.
    pub protocol: String,
    /// Jobs that wait.
    pub waiting: i64,
    /// Jobs that workers hold.
    pub in_flight: i64,
    /// Jobs that wait for their next attempt.
    pub delayed: i64,
    /// Jobs that were given up.
    pub dead_letters: i64,
    /// How long the job that waits the longest does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oldest_age_seconds: Option<i64>,
    /// Jobs that came a minute when the number of workers was decided on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arrivals_per_minute: Option<u64>,
    /// Jobs that ended a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub done_per_second: Option<f64>,
    /// Workers that are ready.
    pub workers_ready: i32,
    /// Workers that the Deployment is asked for, those that drain among them.
    pub workers_desired: i32,
    /// Workers that take no more jobs.
    pub workers_draining: i32,
    /// Queues whose breaker is open.
    pub breakers_open: Vec<String>,
    /// Queues whose breaker is open in some workers only, or tries whether it can close.
    pub breakers_half_open: Vec<String>,
    /// Whether workers take jobs.
    pub paused: bool,
    /// When the figures were true: not known, or now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub as_of: Option<Timestamp>,
    /// Whether they come from Redis.
    pub live: bool,
    /// Each of its queues.
    pub queues: Vec<Line>,
}

/// One queue of several.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Line {
    /// Its name.
    pub name: String,
    /// Its key.
    pub key: String,
    /// Jobs that wait.
    pub waiting: i64,
    /// Jobs that workers hold; not known from the status.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<i64>,
    /// Jobs that wait for their next attempt; not known from the status.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delayed: Option<i64>,
    /// How long its next job has waited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oldest_age_seconds: Option<i64>,
    /// `open`, `half-open`, or nothing.
    pub breaker: String,
}

impl Figures {
    /// What the status says.
    pub fn of(queue: &JobQueue, now: Timestamp) -> Self {
        let none = JobQueueStatus::default();
        let status = queue.status.as_ref().unwrap_or(&none);
        let ready = status.conditions.iter().find(|one| one.type_ == "Ready");
        let lines: Vec<Line> = status
            .queues
            .iter()
            .map(|one| Line {
                name: one.name.clone(),
                key: one.key.clone(),
                waiting: one.waiting,
                in_flight: None,
                delayed: None,
                oldest_age_seconds: one
                    .oldest_waiting_since
                    .as_ref()
                    .map(|at| now.duration_since(at.0).as_secs().max(0)),
                breaker: one.breaker.clone(),
            })
            .collect();
        Self {
            namespace: queue.namespace().unwrap_or_default(),
            name: queue.name_any(),
            ready: ready.map_or_else(|| "Unknown".into(), |one| one.status.clone()),
            message: ready.map(|one| one.message.clone()).unwrap_or_default(),
            protocol: match queue.spec.protocol {
                Protocol::Files => "files",
                Protocol::Sidekiq => "sidekiq",
                Protocol::Async => "async",
            }
            .into(),
            waiting: status.waiting,
            in_flight: status.in_flight,
            delayed: status.delayed,
            dead_letters: status.dead_letters,
            oldest_age_seconds: lines.iter().filter_map(|line| line.oldest_age_seconds).max(),
            arrivals_per_minute: arrivals(status),
            done_per_second: None,
            workers_ready: status.workers.ready,
            workers_desired: status.workers.desired,
            workers_draining: status.workers.draining,
            breakers_open: with_breaker(&lines, "open"),
            breakers_half_open: with_breaker(&lines, "half-open"),
            paused: queue.spec.paused,
            as_of: written(queue),
            live: false,
            queues: lines,
        }
    }

    /// The same with what Redis says instead.
    #[must_use]
    pub fn with(mut self, live: &live::Stats) -> Self {
        let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let seconds = |ms: Option<u64>| ms.map(|ms| signed(ms / 1000));
        self.waiting = signed(live.totals.waiting + live.totals.suspects);
        self.in_flight = signed(live.totals.in_flight);
        self.delayed = signed(live.totals.delayed);
        self.dead_letters = signed(live.dead_letters);
        self.oldest_age_seconds = seconds(live.totals.oldest_age_ms);
        self.done_per_second = live.per_second.as_ref().map(|rates| rates.done);
        self.paused |= live.paused;
        self.as_of = live.at.parse().ok();
        self.live = true;
        self.queues = live
            .queues
            .iter()
            .map(|one| Line {
                name: one.queue.clone(),
                key: one.key.clone(),
                waiting: signed(one.waiting + one.suspects),
                in_flight: Some(signed(one.in_flight)),
                delayed: Some(signed(one.delayed)),
                oldest_age_seconds: seconds(one.oldest_age_ms),
                breaker: one.breaker.clone().filter(|state| state != "closed").unwrap_or_default(),
            })
            .collect();
        self.breakers_open = with_breaker(&self.queues, "open");
        self.breakers_half_open = with_breaker(&self.queues, "half-open");
        self
    }

    /// Workers that are ready, of those that are wanted.
    pub fn workers(&self) -> Cell {
        let (ready, wanted) = self.staying();
        let tone = if ready < wanted { Tone::Warn } else { Tone::Plain };
        Cell::toned(tone, format!("{ready}/{wanted}{}", self.draining()))
    }

    /// The same where there is little room: `2/2 (-3)`.
    pub fn workers_in_short(&self) -> String {
        let (ready, wanted) = self.staying();
        match self.workers_draining {
            0 => format!("{ready}/{wanted}"),
            draining => format!("{ready}/{wanted} (-{draining})"),
        }
    }

    /// How many workers are ready, and how many are wanted.
    pub fn staying(&self) -> (i32, i32) {
        staying(self.workers_desired, self.workers_ready, self.workers_draining)
    }

    /// How many more there are that drain, if any.
    pub fn draining(&self) -> String {
        match self.workers_draining {
            0 => String::new(),
            draining => format!(" ({draining} draining)"),
        }
    }

    /// Whether it is ready.
    pub fn readiness(&self) -> Cell {
        let tone = match self.ready.as_str() {
            "True" => Tone::Good,
            "False" => Tone::Bad,
            _ => Tone::Warn,
        };
        Cell::toned(tone, self.ready.clone())
    }

    /// What holds jobs back.
    pub fn state(&self) -> Cell {
        if self.paused {
            Cell::toned(Tone::Warn, "paused")
        } else if !self.breakers_open.is_empty() {
            Cell::toned(Tone::Bad, format!("open: {}", self.breakers_open.join(",")))
        } else if self.breakers_half_open.is_empty() {
            Cell::toned(Tone::Dim, "closed")
        } else {
            Cell::toned(Tone::Warn, format!("half-open: {}", self.breakers_half_open.join(",")))
        }
    }

    /// Jobs that were given up.
    pub fn dead(&self) -> Cell {
        Cell::toned(
            if self.dead_letters > 0 { Tone::Bad } else { Tone::Plain },
            self.dead_letters.to_string(),
        )
    }

    /// How long the oldest job waits.
    pub fn oldest(&self) -> String {
        or_dash(self.oldest_age_seconds.map(age))
    }

    /// What comes or goes, in the words of the header `RATE`.
    pub fn rate(&self) -> String {
        match (self.done_per_second, self.arrivals_per_minute) {
            (Some(rate), _) => format!("{rate:.1}/s"),
            (None, Some(arrivals)) if !self.live => format!("~{arrivals}/m"),
            _ => "-".into(),
        }
    }

    /// How old the figures are.
    pub fn age(&self, now: Timestamp) -> String {
        if self.live { "live".into() } else { or_dash(self.as_of.map(|at| since(at, now))) }
    }
}

/// How many workers are ready, and how many are wanted, as `kubectl get` says it: those that drain are on their way out,
/// whether they are ready or not, but stay part of what the Deployment is asked for until they go.
pub fn staying(desired: i32, ready: i32, draining: i32) -> (i32, i32) {
    let wanted = (desired - draining).max(0);
    // Busy ones that drain are ready. Without any, more may be ready than are asked for: then that is what there is to see.
    (if draining > 0 { ready.min(wanted) } else { ready }, wanted)
}

/// A text, or `-`.
pub fn or_dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".into())
}

fn with_breaker(lines: &[Line], state: &str) -> Vec<String> {
    lines.iter().filter(|line| line.breaker == state).map(|line| line.name.clone()).collect()
}

/// What the last decision saw. One for no workers was made because nothing came any more: its average, of the minutes before,
/// would be shown for as long as the queue rests.
fn arrivals(status: &JobQueueStatus) -> Option<u64> {
    let scaling = status.scaling.as_ref().filter(|scaling| scaling.replicas > 0)?;
    Some(scaling.inputs.as_ref()?.arrivals_per_minute)
}

/// When the operator wrote the status last: Kubernetes remembers it beside the fields.
fn written(queue: &JobQueue) -> Option<Timestamp> {
    let managed = queue.metadata.managed_fields.as_ref()?;
    let of_status = managed.iter().filter(|one| one.subresource.as_deref() == Some("status"));
    of_status.filter_map(|one| Some(one.time.as_ref()?.0)).max()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn now() -> Timestamp {
        "2026-01-01T00:01:00Z".parse().unwrap()
    }

    fn queue() -> JobQueue {
        serde_json::from_value(json!({
            "apiVersion": "jobqueue.dev/v1alpha1", "kind": "JobQueue",
            "metadata": { "name": "hello", "namespace": "a", "managedFields": [
                { "manager": "kubectl", "operation": "Update", "time": "2026-01-01T00:00:59Z" },
                { "manager": "jobqueue-operator", "operation": "Apply", "subresource": "status", "time": "2026-01-01T00:00:48Z" },
            ] },
            "spec": {},
            "status": { "waiting": 250, "inFlight": 3, "delayed": 1, "deadLetters": 2, "workers": { "desired": 3, "ready": 2, "draining": 1, "summary": "2/3" },
                "queues": [{ "name": "high", "key": "k", "waiting": 250, "oldestWaitingSince": "2026-01-01T00:00:00Z", "breaker": "open" }] },
        }))
        .unwrap()
    }

    #[test]
    fn figures_of_the_status_say_how_old_they_are() {
        let figures = Figures::of(&queue(), now());
        assert_eq!((figures.age(now()), figures.oldest()), ("12s".into(), "60s".into()));
        assert_eq!(figures.workers().text, "2/2 (1 draining)");
        assert_eq!(figures.state().text, "open: high");
        assert_eq!(figures.ready, "Unknown", "nobody has looked at it yet");
    }

    #[test]
    fn workers_that_drain_are_neither_wanted_nor_missed() {
        let workers = |desired: i32, ready: i32, draining: i32| {
            let figures = Figures {
                workers_desired: desired,
                workers_ready: ready,
                workers_draining: draining,
                ..Figures::default()
            };
            figures.workers()
        };
        assert_eq!(workers(5, 2, 3), Cell::toned(Tone::Plain, "2/2 (3 draining)"));
        assert_eq!(workers(5, 5, 3), Cell::toned(Tone::Plain, "2/2 (3 draining)"), "busy ones are ready");
        assert_eq!(workers(5, 1, 3), Cell::toned(Tone::Warn, "1/2 (3 draining)"));
        assert_eq!(workers(10, 0, 10), Cell::toned(Tone::Plain, "0/0 (10 draining)"));
        assert_eq!(workers(3, 2, 0), Cell::toned(Tone::Warn, "2/3"));
    }

    #[test]
    fn a_queue_that_rests_has_no_rate() {
        let decided = |replicas: i32| {
            let mut queue = queue();
            let scaling = json!({ "replicas": replicas, "reason": "", "time": "2026-01-01T00:00:00Z", "inputs": { "arrivalsPerMinute": 266 } });
            queue.status.as_mut().unwrap().scaling = serde_json::from_value(scaling).unwrap();
            Figures::of(&queue, now()).rate()
        };
        assert_eq!((decided(1).as_str(), decided(0).as_str()), ("~266/m", "-"));
    }

    #[test]
    fn figures_of_redis_replace_them() {
        let live: live::Stats = serde_json::from_value(json!({
            "at": "2026-01-01T00:01:00Z", "dead_letters": 7, "totals": { "waiting": 5, "suspects": 1, "in_flight": 4 },
            "per_second": { "done": 39.04 }, "queues": [{ "queue": "high", "key": "k", "waiting": 5, "suspects": 1, "breaker": "closed" }],
        }))
        .unwrap();
        let figures = Figures::of(&queue(), now()).with(&live);
        assert_eq!((figures.waiting, figures.in_flight, figures.dead_letters), (6, 4, 7));
        assert_eq!(
            (figures.rate(), figures.age(now()), figures.state().text),
            ("39.0/s".into(), "live".into(), "closed".into())
        );
    }

    #[test]
    fn a_breaker_that_is_half_open_is_not_called_closed() {
        let live: live::Stats = serde_json::from_value(json!({
            "queues": [{ "queue": "high", "breaker": "half-open" }, { "queue": "low", "breaker": "closed" }],
        }))
        .unwrap();
        let mut figures = Figures::of(&queue(), now()).with(&live);
        assert_eq!(figures.state(), Cell::toned(Tone::Warn, "half-open: high"));
        figures.breakers_open = vec!["low".into()];
        assert_eq!(figures.state().text, "open: low", "the worse one is told");
    }
}
