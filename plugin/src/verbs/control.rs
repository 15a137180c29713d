//! `pause`, `resume`, `scale`: changes of the spec, each refused when another field rules.
use jobqueue::terminal::counted;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use operator::api::v1alpha1::{JobQueue, ScalingMode};
use serde_json::{Value, json};

use crate::cli::{Names, Scale};
use crate::cluster::Cluster;
use crate::error::Error;
use crate::print;
use crate::table::whole;

/// Who changes fields.
const MANAGER: &str = "kubectl-jobqueue";

/// Pauses or resumes queues. One that fails keeps no other from it; the first failure is the exit code.
pub async fn pause(cluster: &Cluster, args: &Names, paused: bool) -> Result<(), Error> {
    let names = match &args.selector {
        None => args.names.clone(),
        selector => {
            let found = cluster.list(false, selector.as_deref()).await?;
            found.tell().iter().map(ResourceExt::name_any).collect()
        }
    };
    if names.is_empty() {
        eprintln!("No jobqueues found");
    }
    let mut failures = vec![];
    for name in &names {
        match pause_one(cluster, name, paused).await {
            Ok(said) => print::text(&said)?,
            Err(error) => failures.push(error),
        }
    }
    let mut failures = failures.into_iter();
    let Some(first) = failures.next() else { return Ok(()) };
    failures.for_each(|error| eprintln!("Error: {}", whole(&error.to_string())));
    Err(first)
}

async fn pause_one(cluster: &Cluster, name: &str, paused: bool) -> Result<String, Error> {
    let queue = cluster.queue(name).await?;
    let (verb, done) = if paused { ("pause", "paused") } else { ("resume", "resumed") };
    if queue.spec.paused == paused {
        return Ok(format!("jobqueue.jobqueue.dev/{name} was {done} already\n"));
    }
    patch(cluster, name, verb, &json!({ "spec": { "paused": paused } })).await?;
    let what =
        if paused { "no worker takes another job, those that run finish" } else { "workers take jobs again" };
    Ok(format!("jobqueue.jobqueue.dev/{name} {done}: {what}\n"))
}

/// Changes the spec of a queue.
pub async fn patch(cluster: &Cluster, name: &str, verb: &str, patch: &Value) -> Result<(), Error> {
    let params = PatchParams { field_manager: Some(MANAGER.into()), ..PatchParams::default() };
    let queues = cluster.queues();
    cluster
        .ask(&format!("{verb} jobqueue {name}"), queues.patch(name, &params, &Patch::Merge(patch)))
        .await
        .map(drop)
}

pub async fn scale(cluster: &Cluster, args: &Scale) -> Result<(), Error> {
    let queue = cluster.queue(&args.name).await?;
    let name = &args.name;
    match change(&queue, args)? {
        Change::Replicas(replicas) => {
            let params = PatchParams { field_manager: Some(MANAGER.into()), ..PatchParams::default() };
            let body = Patch::Merge(json!({ "spec": { "replicas": replicas } }));
            let queues = cluster.queues();
            cluster.ask(&format!("scale jobqueue {name}"), queues.patch_scale(name, &params, &body)).await?;
            print::text(&format!(
                "jobqueue.jobqueue.dev/{name} scaled to {}; workers that are too many finish their jobs first\n",
                counted(replicas, "worker")
            ))
        }
        Change::Bounds(bounds) => {
            patch(cluster, name, "scale", &json!({ "spec": { "scaling": bounds } })).await?;
            let words: Vec<String> = bounds
                .as_object()
                .into_iter()
                .flatten()
                .map(|(field, value)| format!("{field} is {value}"))
                .collect();
            print::text(&format!("jobqueue.jobqueue.dev/{name} scales by itself: {} now\n", words.join(", ")))
        }
    }
}

/// What `scale` changes.
#[derive(Debug, PartialEq)]
enum Change {
    Replicas(i32),
    Bounds(Value),
}

/// What was asked for, if that is what rules: pure.
fn change(queue: &JobQueue, args: &Scale) -> Result<Change, Error> {
    let (name, scaling) = (&args.name, &queue.spec.scaling);
    let bounds = || {
        let mut bounds = json!({});
        if let Some(min) = args.min {
            bounds["minReplicas"] = json!(min);
        }
        if let Some(max) = args.max {
            bounds["maxReplicas"] = json!(max);
        }
        bounds
    };
    match (scaling.mode, args.replicas) {
        (ScalingMode::Manual, Some(replicas)) => Ok(Change::Replicas(replicas)),
        (ScalingMode::Auto, None) if args.min.is_some() || args.max.is_some() => {
            let (min, max) =
                (args.min.unwrap_or(scaling.min_replicas), args.max.unwrap_or(scaling.max_replicas));
            if min > max {
                return Err(Error::Usage(format!(
                    "jobqueue {name} would have minReplicas {min} and maxReplicas {max}: give both --min and --max"
                )));
            }
            Ok(Change::Bounds(bounds()))
        }
        (_, None) if args.min.is_none() && args.max.is_none() => Err(Error::Usage(format!(
            "say how many: kubectl jobqueue scale {name} N (scaling.mode: Manual), or --min and --max (Auto)"
        ))),
        (ScalingMode::Auto, _) => Err(Error::Usage(format!(
            "jobqueue {name} scales by itself (scaling.mode: Auto): scaling.minReplicas ({}) and scaling.maxReplicas ({}) rule, \
             spec.replicas has no effect; use --min and --max, or set scaling.mode: Manual",
            scaling.min_replicas, scaling.max_replicas
        ))),
        (ScalingMode::Manual, None) => Err(Error::Usage(format!(
            "jobqueue {name} is scaled by hand (scaling.mode: Manual): spec.replicas rules, --min and --max have no effect; \
             kubectl jobqueue scale {name} N"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[allow(clippy::needless_pass_by_value, reason = "reads better where it is called")]
    fn asked(spec: Value, args: Scale) -> Result<Change, String> {
        let queue = serde_json::from_value(json!({
            "apiVersion": "jobqueue.dev/v1alpha1", "kind": "JobQueue", "metadata": { "name": "hello" }, "spec": spec,
        }))
        .unwrap();
        change(&queue, &args).map_err(|error| error.to_string())
    }

    fn args(replicas: Option<i32>, min: Option<i32>, max: Option<i32>) -> Scale {
        Scale { name: "hello".into(), replicas, min, max }
    }

    #[test]
    fn a_number_holds_in_mode_manual_and_bounds_hold_in_mode_auto() {
        let manual = json!({ "scaling": { "mode": "Manual" } });
        assert_eq!(asked(manual, args(Some(3), None, None)), Ok(Change::Replicas(3)));
        assert_eq!(
            asked(json!({}), args(None, Some(1), Some(4))),
            Ok(Change::Bounds(json!({ "minReplicas": 1, "maxReplicas": 4 })))
        );
    }

    #[test]
    fn what_has_no_effect_is_refused_with_the_fields_that_rule() {
        let auto = asked(json!({}), args(Some(3), None, None)).unwrap_err();
        assert!(auto.contains("scaling.minReplicas (0)") && auto.contains("--max"), "{auto}");
        let manual =
            asked(json!({ "scaling": { "mode": "Manual" } }), args(None, None, Some(3))).unwrap_err();
        assert!(manual.contains("spec.replicas rules"), "{manual}");
        let crossed = asked(json!({}), args(None, Some(20), None)).unwrap_err();
        assert!(crossed.contains("minReplicas 20 and maxReplicas 10"), "{crossed}");
    }
}
