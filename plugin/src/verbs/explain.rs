//! `explain`: why there are as many workers as there are. The operator wrote down what it decided on; the formula is filled
//! in with it here, and turned around: what would have to change for another number. Pure, but for the reading.
use std::fmt::Write as _;
use std::time::Duration;

use jiff::Timestamp;
use jobqueue::terminal::counted;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use operator::api::v1alpha1::{JobQueue, Scaling, ScalingInputs, ScalingMode, WorkersStatus};
use operator::autoscaler::UTILISATION;
use serde_json::json;

use crate::cli::Explain;
use crate::cluster::Cluster;
use crate::error::Error;
use crate::figures::staying;
use crate::print;
use crate::table::{Paint, Tone, since};

pub async fn run(cluster: &Cluster, args: &Explain) -> Result<(), Error> {
    let queue = cluster.queue(&args.name).await?;
    let now = Timestamp::now();
    let Some(format) = args.output else {
        return print::text(&page(&queue, now, Paint::detect()));
    };
    let status = queue.status.as_ref();
    print::data(
        format,
        &json!({
            "namespace": queue.namespace(), "name": queue.name_any(),
            "workers": status.map(|status| &status.workers),
            "decision": status.and_then(|status| status.scaling.as_ref()),
            "rules": queue.spec.scaling, "replicas": queue.spec.replicas, "paused": queue.spec.paused,
            "changes": changes(&queue),
        }),
    )
}

/// The page.
fn page(queue: &JobQueue, now: Timestamp, paint: Paint) -> String {
    let name = queue.name_any();
    let strong = |text: &str| paint.text(Tone::Strong, text);
    let Some(status) = &queue.status else {
        return format!(
            "{name} has no status yet: the operator has not looked at it; kubectl jobqueue doctor {name} says why\n"
        );
    };
    let WorkersStatus { desired, ready, draining, .. } = status.workers;
    let (ready, wanted) = staying(desired, ready, draining);
    let mut page =
        format!("{}\n", strong(&format!("{name}: {} wanted, {ready} ready", counted(wanted, "worker"))));
    if draining > 0 {
        let _ = writeln!(page, "{draining} more take no jobs any more, and go when theirs are done");
    }
    if let Some(scaling) = &status.scaling {
        let ago = since(scaling.time.0, now);
        let workers = counted(scaling.replicas, "worker");
        let _ = writeln!(page, "{workers}, decided on {ago} ago: {}", scaling.reason);
    } else {
        let _ = writeln!(page, "Nothing was decided yet");
    }
    // In mode Manual it is never active: what decides there is among the rules.
    let holds =
        |one: &&Condition| one.type_ == "ScalingActive" && one.status != "True" && one.reason != "Manual";
    if let Some(held) = status.conditions.iter().find(holds) {
        let _ = writeln!(page, "The number does not change now: {} ({})", held.message, held.reason);
    }
    if queue.spec.scaling.mode == ScalingMode::Auto {
        if let Some(inputs) = status.scaling.as_ref().and_then(|scaling| scaling.inputs.as_ref()) {
            let _ = write!(page, "\n{}\n{}", strong("What it was decided on"), inputs_page(inputs));
            let _ = write!(page, "\n{}\n{}", strong("The rules"), rules(queue, inputs));
        }
    } else {
        let _ = write!(
            page,
            "\n{}\n  scaling.mode is Manual: spec.replicas rules, and is {}; /scale sets it\n",
            strong("The rules"),
            queue.spec.replicas.unwrap_or(1)
        );
    }
    let _ = write!(
        page,
        "\n{}\n  {} waiting, {} running, {} delayed\n",
        strong("Since then"),
        status.waiting,
        status.in_flight,
        status.delayed
    );
    let _ = writeln!(page, "\n{}", strong("What would change it"));
    for change in changes(queue) {
        let _ = writeln!(page, "  * {change}");
    }
    page
}

fn inputs_page(inputs: &ScalingInputs) -> String {
    let mut page = format!("  {} waiting, {} running", inputs.backlog, inputs.in_flight);
    if inputs.blocked > 0 {
        let _ = write!(page, ", {} behind an open breaker (they ask for nobody)", inputs.blocked);
    }
    let run = inputs
        .run_millis
        .map_or_else(|| "not known yet".to_owned(), |ms| format!("{} on average", seconds(ms)));
    let _ = write!(page, "\n  {} arrivals a minute, run time {run}\n", inputs.arrivals_per_minute);
    page
}

/// The two rules with their numbers.
fn rules(queue: &JobQueue, inputs: &ScalingInputs) -> String {
    let scaling = &queue.spec.scaling;
    let per_worker = scaling.backlog_per_worker;
    let mut page = format!(
        "  by depth    ({} waiting + {} running) / {per_worker} backlogPerWorker = {}\n",
        inputs.backlog, inputs.in_flight, inputs.by_depth
    );
    let concurrency = queue.spec.worker.concurrency;
    match (scaling.target_latency, inputs.run_millis, inputs.by_latency) {
        (Some(latency), Some(run), Some(by_latency)) => {
            let _ = writeln!(
                page,
                "  by latency  ({}/min x {run} + {} waiting x {run} / {latency} targetLatency) / ({concurrency} slots x {UTILISATION}) = {by_latency}",
                inputs.arrivals_per_minute,
                inputs.backlog,
                run = seconds(run)
            );
        }
        (None, _, _) => page.push_str("  by latency  not asked for: scaling.targetLatency is not set\n"),
        _ => page.push_str("  by latency  not known yet: no job has ended\n"),
    }
    let wanted = inputs.by_depth.max(inputs.by_latency.unwrap_or(0));
    let (min, max) = (scaling.min_replicas, scaling.max_replicas);
    let _ = writeln!(
        page,
        "  the larger  {wanted}, kept between minReplicas {min} and maxReplicas {max}: {}",
        wanted.clamp(min, max.max(min))
    );
    let _ = writeln!(
        page,
        "  and down    only to the most that were wanted within scaleDownDelay {}: {}",
        scaling.scale_down_delay, inputs.highest
    );
    page
}

/// What would have to change for another number of workers.
fn changes(queue: &JobQueue) -> Vec<String> {
    let (name, scaling) = (queue.name_any(), &queue.spec.scaling);
    if scaling.mode == ScalingMode::Manual {
        return vec![
            format!("kubectl jobqueue scale {name} N"),
            "an autoscaler that writes /scale (HPA, KEDA)".into(),
            "scaling.mode: Auto, then the number of jobs decides".into(),
        ];
    }
    if queue.spec.paused {
        return vec![format!("kubectl jobqueue resume {name}: while it is paused nobody is started")];
    }
    // Those that drain take jobs again before anybody new is started.
    let wanted = queue.status.as_ref().map_or(0, |status| {
        let WorkersStatus { desired, ready, draining, .. } = status.workers;
        staying(desired, ready, draining).1
    });
    let inputs =
        queue.status.as_ref().and_then(|status| status.scaling.as_ref()?.inputs.clone()).unwrap_or_default();
    let mut changes = vec![];
    if inputs.blocked > 0 {
        changes.push(format!(
            "the handler works again: {} behind an open breaker would count",
            counted(inputs.blocked, "job")
        ));
    }
    changes.push(more(scaling, wanted, &name));
    changes.extend(fewer(scaling, wanted, &name));
    if scaling.target_latency.is_none() {
        changes.push("scaling.targetLatency, to count run times instead of jobs alone".into());
    }
    changes
}

fn more(scaling: &Scaling, wanted: i32, name: &str) -> String {
    let (per_worker, max) = (i64::from(scaling.backlog_per_worker), scaling.max_replicas);
    if wanted >= max {
        return format!("maxReplicas is reached: kubectl jobqueue scale {name} --max N");
    }
    let jobs = i64::from(wanted) * per_worker;
    format!(
        "more than {}, waiting and running: {}, at once",
        counted(jobs, "job"),
        counted(wanted + 1, "worker")
    )
}

fn fewer(scaling: &Scaling, wanted: i32, name: &str) -> Option<String> {
    if wanted == 0 {
        return None;
    }
    if wanted <= scaling.min_replicas {
        return Some(format!(
            "minReplicas is {}: kubectl jobqueue scale {name} --min N",
            scaling.min_replicas
        ));
    }
    let jobs = i64::from(wanted - 1) * i64::from(scaling.backlog_per_worker);
    let amount = if jobs == 0 {
        "no jobs".into()
    } else {
        format!("at most {}, and a margin for chance,", counted(jobs, "job"))
    };
    let delay: Duration = scaling.scale_down_delay.get();
    let delay =
        if delay.is_zero() { "at once".to_owned() } else { format!("after {}", scaling.scale_down_delay) };
    Some(format!("{amount} waiting and running: {}, {delay}", counted(wanted - 1, "worker")))
}

fn seconds(ms: u64) -> String {
    if ms < 1000 { format!("{ms}ms") } else { format!("{}.{}s", ms / 1000, ms % 1000 / 100) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[allow(clippy::needless_pass_by_value, reason = "reads better where it is called")]
    fn queue(spec: Value, replicas: i32, inputs: Value) -> JobQueue {
        serde_json::from_value(json!({
            "apiVersion": "jobqueue.dev/v1alpha1", "kind": "JobQueue", "metadata": { "name": "hello" }, "spec": spec,
            "status": {
                "waiting": 12, "workers": { "desired": replicas, "ready": replicas, "draining": 0, "summary": "" },
                "scaling": { "replicas": replicas, "reason": "250 jobs, 100 a worker", "time": "2026-01-01T00:00:00Z", "inputs": inputs },
            },
        }))
        .unwrap()
    }

    fn shown(queue: &JobQueue) -> String {
        page(queue, "2026-01-01T00:00:12Z".parse().unwrap(), Paint(false))
    }

    #[test]
    fn the_formula_is_filled_in_with_the_numbers_it_was_decided_on() {
        let inputs = json!({ "backlog": 250, "blocked": 0, "inFlight": 0, "arrivalsPerMinute": 600, "runMillis": 2000, "byDepth": 3, "byLatency": 5, "highest": 5 });
        let page = shown(&queue(
            json!({ "scaling": { "targetLatency": "30s" }, "worker": { "concurrency": 4 } }),
            5,
            inputs,
        ));
        for part in [
            "hello: 5 workers wanted, 5 ready",
            "5 workers, decided on 12s ago: 250 jobs, 100 a worker",
            "by depth    (250 waiting + 0 running) / 100 backlogPerWorker = 3",
            "by latency  (600/min x 2.0s + 250 waiting x 2.0s / 30s targetLatency) / (4 slots x 0.8) = 5",
            "the larger  5, kept between minReplicas 0 and maxReplicas 10: 5",
            "more than 500 jobs, waiting and running: 6 workers, at once",
            "at most 400 jobs, and a margin for chance, waiting and running: 4 workers, after 1m",
        ] {
            assert!(page.contains(part), "{part}\n{page}");
        }
    }

    #[test]
    fn workers_that_drain_are_counted_once() {
        let mut queue = queue(json!({}), 10, json!({ "highest": 0 }));
        queue.status.as_mut().unwrap().workers.draining = 10;
        let resting = shown(&queue);
        for part in [
            "hello: 0 workers wanted, 0 ready",
            "10 more take no jobs any more",
            "more than 0 jobs, waiting and running: 1 worker, at once",
        ] {
            assert!(resting.contains(part), "{part}\n{resting}");
        }
        queue.status.as_mut().unwrap().workers.draining = 7;
        let fewer = shown(&queue);
        for part in [
            "hello: 3 workers wanted, 3 ready",
            "7 more take no jobs any more",
            "more than 300 jobs, waiting and running: 4 workers, at once",
            "at most 200 jobs, and a margin for chance, waiting and running: 2 workers",
        ] {
            assert!(fewer.contains(part), "{part}\n{fewer}");
        }
    }

    #[test]
    fn a_number_that_is_held_is_told_and_one_that_somebody_sets_is_not_called_held() {
        let with = |spec: Value, reason: &str| {
            let mut queue = queue(spec, 2, json!({}));
            let condition = json!({ "type": "ScalingActive", "status": "False", "reason": reason, "message": "why", "lastTransitionTime": "2026-01-01T00:00:00Z" });
            queue.status.as_mut().unwrap().conditions = vec![serde_json::from_value(condition).unwrap()];
            shown(&queue)
        };
        let held = with(json!({}), "Holding");
        assert!(held.contains("The number does not change now: why (Holding)"), "{held}");
        let manual = with(json!({ "scaling": { "mode": "Manual" }, "replicas": 2 }), "Manual");
        assert!(!manual.contains("does not change now") && manual.contains("/scale"), "{manual}");
    }

    #[test]
    fn what_would_change_it_names_the_field_that_rules() {
        let inputs = json!({ "backlog": 2000, "byDepth": 20, "highest": 10 });
        let full = shown(&queue(json!({}), 10, inputs.clone()));
        assert!(full.contains("maxReplicas is reached: kubectl jobqueue scale hello --max N"), "{full}");
        let manual =
            shown(&queue(json!({ "scaling": { "mode": "Manual" }, "replicas": 2 }), 2, inputs.clone()));
        assert!(
            manual.contains("spec.replicas rules, and is 2") && !manual.contains("backlogPerWorker"),
            "{manual}"
        );
        let paused = shown(&queue(json!({ "paused": true }), 0, inputs));
        assert!(paused.contains("kubectl jobqueue resume hello"), "{paused}");
    }

    #[test]
    fn jobs_behind_an_open_breaker_are_told_apart() {
        let page = shown(&queue(json!({}), 1, json!({ "blocked": 40, "highest": 1 })));
        assert!(
            page.contains("40 behind an open breaker") && page.contains("the handler works again"),
            "{page}"
        );
    }
}
