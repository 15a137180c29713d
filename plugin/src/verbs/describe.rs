//! `describe`: a page about a queue. What it is, what it waits for, how it stands, what happened last.
use std::fmt::Write as _;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use kube::api::DynamicObject;
use operator::api::v1alpha1::{JobQueue, Scaling, ScalingMode, Worker};
use serde_json::Value;

use super::list::redis;
use crate::cli::Name;
use crate::cluster::{Cluster, last_seen};
use crate::error::Error;
use crate::figures::{Figures, or_dash};
use crate::print;
use crate::table::{Cell, Paint, Table, Tone, age, shown, since, since_text};

/// So many events are shown, the last ones.
const EVENTS: usize = 10;

/// Prints the page.
pub async fn run(cluster: &Cluster, args: &Name) -> Result<(), Error> {
    let queue = cluster.queue(&args.name).await?;
    // Whoever may see the queue but not its events still gets the page.
    let (events, withheld) = match cluster.events_of(&queue).await {
        Ok(events) => (events, None),
        Err(error) => (vec![], Some(error.to_string())),
    };
    let now = Timestamp::now();
    print::text(&page(&queue, &events, withheld.as_deref(), now, Paint::detect()))
}

/// The page: pure.
fn page(
    queue: &JobQueue,
    events: &[DynamicObject],
    withheld: Option<&str>,
    now: Timestamp,
    paint: Paint,
) -> String {
    let figures = Figures::of(queue, now);
    let (ready, wanted) = figures.staying();
    let mut page = String::new();
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(page, "{:<14}{value}", format!("{name}:"));
    };
    line("Name", &figures.name);
    line("Namespace", &figures.namespace);
    line("Protocol", &figures.protocol);
    line("Redis", &redis(queue));
    line("Handler", &handler(&queue.spec.worker));
    line("Scaling", &scaling(queue));
    line(
        "Workers",
        &format!(
            "{ready} ready of {wanted} wanted{}, {} jobs each",
            figures.draining(),
            queue.spec.worker.concurrency
        ),
    );
    line(
        "Jobs",
        &format!(
            "{} waiting, {} running, {} delayed, {} dead ({})",
            figures.waiting,
            figures.in_flight,
            figures.delayed,
            figures.dead_letters,
            figures.as_of.map_or_else(|| "never looked".into(), |at| format!("as of {} ago", since(at, now)))
        ),
    );
    line("Ready", &paint.text(figures.readiness().tone, &figures.ready));
    line("Waits for", &waits_for(queue));
    let heading = |text: &str| paint.text(Tone::Strong, text);
    if !figures.queues.is_empty() {
        let mut table = Table::new(["  QUEUE", "WAITING", "OLDEST", "BREAKER", "KEY"]);
        for one in &figures.queues {
            let breaker = if one.breaker.is_empty() { "closed" } else { &one.breaker };
            table.row(vec![
                format!("  {}", one.name).into(),
                one.waiting.to_string().into(),
                or_dash(one.oldest_age_seconds.map(age)).into(),
                breaker.into(),
                one.key.clone().into(),
            ]);
        }
        let _ = write!(page, "{}\n{}", heading("Queues:"), table.render(paint));
    }
    let conditions = queue.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    if !conditions.is_empty() {
        let mut table = Table::new(["  TYPE", "STATUS", "SINCE", "REASON", "MESSAGE"]);
        for one in conditions {
            table.row(vec![
                format!("  {}", one.type_).into(),
                Cell::toned(tone(one), one.status.clone()),
                since(one.last_transition_time.0, now).into(),
                one.reason.clone().into(),
                shown(&one.message, 200).into(),
            ]);
        }
        let _ = write!(page, "{}\n{}", heading("Conditions:"), table.render(paint));
    }
    let _ = writeln!(page, "{}", heading("Events:"));
    match withheld {
        Some(why) => {
            let _ = writeln!(page, "  not shown: {why}");
        }
        None if events.is_empty() => page.push_str("  none in the last hour\n"),
        None => page.push_str(&events_table(events, now).render(paint)),
    }
    page
}

/// Events, the last ones last.
pub fn events_table(events: &[DynamicObject], now: Timestamp) -> Table {
    let mut table = Table::new(["  AGE", "TYPE", "REASON", "MESSAGE"]);
    for event in &events[events.len().saturating_sub(EVENTS)..] {
        let text = |name: &str| event.data[name].as_str().unwrap_or_default().to_owned();
        let count = event.data.pointer("/series/count").or(event.data.get("count")).and_then(Value::as_i64);
        let times = count.filter(|times| *times > 1).map(|times| format!(" (x{times})")).unwrap_or_default();
        let tone = if text("type") == "Warning" { Tone::Warn } else { Tone::Plain };
        let created = event.creation_timestamp().map(|at| at.0.to_string());
        table.row(vec![
            format!("  {}{times}", since_text(last_seen(&event.data).or(created.as_deref()), now)).into(),
            Cell::toned(tone, text("type")),
            text("reason").into(),
            shown(&text("message"), 300).into(),
        ]);
    }
    table
}

/// What somebody or something has to do before jobs run as they should.
fn waits_for(queue: &JobQueue) -> String {
    let Some(status) = &queue.status else { return "the operator, which has not looked at it yet".into() };
    let condition = |kind: &str| status.conditions.iter().find(|one| one.type_ == kind);
    let is = |kind: &str, wanted: &str| condition(kind).filter(|one| one.status == wanted);
    if let Some(stalled) = is("Stalled", "True") {
        return format!("you: {} ({})", stalled.message, stalled.reason);
    }
    if queue.metadata.generation > status.observed_generation {
        return "the operator, which has not seen the last change yet".into();
    }
    if queue.spec.paused {
        return format!("kubectl jobqueue resume {}", queue.name_any());
    }
    for kind in ["RedisReachable", "WorkersAvailable", "HandlerHealthy", "ScalingActive"] {
        // In mode Manual scaling is never active, and nobody waits for it.
        if let Some(trouble) = is(kind, "False").filter(|one| one.reason != "Manual") {
            return format!("{} ({})", trouble.message, trouble.reason);
        }
    }
    // The last, because what runs goes on as before while a change waits.
    if let Some(change) = is("Reconciling", "True") {
        return format!("{} ({})", change.message, change.reason);
    }
    if status.waiting + status.in_flight == 0 { "jobs".into() } else { "nothing: jobs are run".into() }
}

fn tone(condition: &Condition) -> Tone {
    let Condition { type_, status, reason, .. } = condition;
    match (type_.as_str(), status.as_str()) {
        (_, "Unknown") | ("Reconciling", "True") => Tone::Warn,
        ("Stalled" | "Reconciling", "False") => Tone::Good,
        ("Stalled", _) => Tone::Bad,
        // Somebody wants it so.
        ("ScalingActive", "False") if reason == "Manual" => Tone::Plain,
        (_, "True") => Tone::Good,
        _ => Tone::Bad,
    }
}

fn handler(worker: &Worker) -> String {
    let Some(handler) = &worker.handler else { return "simulate".into() };
    if let Some(http) = &handler.http {
        let path = http.path.as_deref().unwrap_or("/jobs/execute");
        return match (&http.url, &worker.app) {
            (Some(url), _) => format!("http: POST {url}{path}"),
            (None, Some(app)) => format!("http: POST {path} to the app beside the worker, port {}", app.port),
            (None, None) => "http".into(),
        };
    }
    handler.command.as_ref().map_or_else(
        || "simulate".into(),
        |command| format!("command: {}", shown(&command.argv.join(" "), 80)),
    )
}

fn scaling(queue: &JobQueue) -> String {
    let Scaling { mode, min_replicas, max_replicas, backlog_per_worker, target_latency, .. } =
        &queue.spec.scaling;
    match mode {
        ScalingMode::Manual => format!("Manual: spec.replicas is {}", queue.spec.replicas.unwrap_or(1)),
        ScalingMode::Auto => format!(
            "Auto: {min_replicas} to {max_replicas} workers, {backlog_per_worker} jobs each{}",
            target_latency.map(|latency| format!(", started within {latency}")).unwrap_or_default()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[allow(clippy::needless_pass_by_value, reason = "reads better where it is called")]
    fn queue(spec: Value, status: Value) -> JobQueue {
        serde_json::from_value(json!({
            "apiVersion": "jobqueue.dev/v1alpha1", "kind": "JobQueue",
            "metadata": { "name": "hello", "namespace": "a", "generation": 1 }, "spec": spec, "status": status,
        }))
        .unwrap()
    }

    fn condition(kind: &str, status: &str, reason: &str, message: &str) -> Value {
        json!({ "type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": "2026-01-01T00:00:00Z" })
    }

    #[test]
    fn a_stalled_queue_waits_for_a_person() {
        let stalled = condition("Stalled", "True", "SecretNotFound", "create the Secret redis");
        let queue =
            queue(json!({ "paused": true }), json!({ "observedGeneration": 1, "conditions": [stalled] }));
        assert_eq!(waits_for(&queue), "you: create the Secret redis (SecretNotFound)");
    }

    #[test]
    fn a_queue_whose_workers_somebody_counts_waits_for_jobs() {
        let manual = condition("ScalingActive", "False", "Manual", "spec.replicas decides");
        let status = json!({ "observedGeneration": 1, "conditions": [manual] });
        let mut queue = queue(json!({ "scaling": { "mode": "Manual" } }), status);
        assert_eq!(waits_for(&queue), "jobs");
        queue.status.as_mut().unwrap().in_flight = 1;
        assert_eq!(waits_for(&queue), "nothing: jobs are run");
        let held = condition("ScalingActive", "False", "Holding", "Redis cannot be read");
        queue.status.as_mut().unwrap().conditions = vec![serde_json::from_value(held).unwrap()];
        assert_eq!(waits_for(&queue), "Redis cannot be read (Holding)");
    }

    #[test]
    fn a_change_that_waits_is_told_unless_something_worse_is() {
        let change = condition("Reconciling", "True", "JobsLeftBehind", "3 jobs would be left behind");
        let away = condition("RedisReachable", "False", "Unreachable", "no answer");
        let status =
            |conditions: Value| json!({ "observedGeneration": 1, "waiting": 3, "conditions": conditions });
        assert_eq!(
            waits_for(&queue(json!({}), status(json!([change])))),
            "3 jobs would be left behind (JobsLeftBehind)"
        );
        assert_eq!(waits_for(&queue(json!({}), status(json!([change, away])))), "no answer (Unreachable)");
    }

    #[test]
    fn workers_that_drain_stand_beside_those_that_are_wanted() {
        let workers = json!({ "desired": 5, "ready": 5, "draining": 3, "summary": "2/2 (3 draining)" });
        let queue = queue(json!({}), json!({ "observedGeneration": 1, "workers": workers }));
        let page = page(&queue, &[], None, "2026-01-01T00:01:00Z".parse().unwrap(), Paint(false));
        assert!(page.contains("Workers:      2 ready of 2 wanted (3 draining), "), "{page}");
    }

    #[test]
    fn the_page_has_conditions_and_events() {
        let ready = condition("Ready", "True", "Ready", "No jobs, no workers");
        let queue = queue(
            json!({}),
            json!({ "observedGeneration": 1, "conditions": [ready], "queues": [{ "name": "high", "key": "jobqueue:high_priority" }] }),
        );
        let event: DynamicObject = serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "Event", "metadata": {}, "type": "Normal", "reason": "Scaled", "message": "Scaled workers from 0 to 3",
            "series": { "count": 2, "lastObservedTime": "2026-01-01T00:00:50Z" },
        }))
        .unwrap();
        let page = page(&queue, &[event], None, "2026-01-01T00:01:00Z".parse().unwrap(), Paint(false));
        for part in [
            "Waits for:    jobs",
            "  Ready   True     60s     Ready    No jobs, no workers",
            "  10s (x2)   Normal   Scaled   Scaled workers from 0 to 3",
            "jobqueue:high_priority",
        ] {
            assert!(page.contains(part), "{part}\n{page}");
        }
    }
}
