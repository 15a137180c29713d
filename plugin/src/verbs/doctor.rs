//! `doctor`: what is wrong with a queue, as far as the cluster knows and as far as Redis knows, each with its fix.
mod checks;

use std::fmt::Write as _;

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::api::{DynamicObject, PostParams};
use kube::{Api, CustomResourceExt as _, ResourceExt};
use operator::api::v1alpha1::JobQueue;

use checks::{finding, unexamined, unseen};

use crate::cli::Doctor;
use crate::cluster::{Cluster, resource};
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::live::{Examined, Finding};
use crate::remote;
use crate::table::{Paint, Tone, whole};
use crate::{print, version};

/// What the commands need: verb, group, resource, subresource, and which of them.
const RIGHTS: [(&str, &str, &str, &str, &str); 13] = [
    ("get", "jobqueue.dev", "jobqueues", "", "every command"),
    ("list", "jobqueue.dev", "jobqueues", "", "list, top, and whatever names no queue"),
    ("patch", "jobqueue.dev", "jobqueues", "", "pause, resume, scale --min --max"),
    ("patch", "jobqueue.dev", "jobqueues", "scale", "scale"),
    ("list", "", "pods", "", "peek, job, enqueue, dlq, drain, logs, top"),
    // A WebSocket is opened with a GET, and Kubernetes asks for both.
    ("get", "", "pods", "exec", "peek, job, enqueue, dlq, drain, stats --live, doctor"),
    ("create", "", "pods", "exec", "the same"),
    ("get", "", "pods", "", "the same while a queue has no workers"),
    ("create", "", "pods", "", "the same while a queue has no workers"),
    ("delete", "", "pods", "", "the same while a queue has no workers, and drain"),
    ("get", "apps", "deployments", "", "the same while a queue has no workers"),
    ("get", "", "pods", "log", "logs, report"),
    ("list", "", "events", "", "describe, top, report"),
];

/// What was found, and about which queue.
#[derive(Debug, serde::Serialize)]
struct About {
    namespace: String,
    name: String,
    findings: Vec<Finding>,
}

pub async fn run(cluster: &Cluster, args: &Doctor, interrupt: &Interrupt) -> Result<(), Error> {
    let found = interrupt.or(cluster.select(&args.which)).await?;
    let mut all = vec![About {
        namespace: String::new(),
        name: "cluster".into(),
        findings: interrupt.or(async { Ok(installation(cluster).await) }).await?,
    }];
    let mut unseen_for = None;
    for (queue, error) in found.unreadable {
        let (namespace, name) = (queue.namespace().unwrap_or_default(), queue.name_any());
        all.push(About { namespace, name, findings: vec![unseen("version", &error)] });
        unseen_for = unseen_for.or(Some(error));
    }
    for queue in &found.queues {
        let within = cluster.within(&queue.namespace().unwrap_or_default());
        // Nothing is changed by it, so it may be left at any point.
        let examined = interrupt.or(Box::pin(of_queue(&within, queue, interrupt))).await?;
        unseen_for = unseen_for.or(examined.unseen_for);
        let (namespace, name) = (within.namespace.clone(), queue.name_any());
        all.push(About { namespace, name, findings: examined.findings });
    }
    if let Some(format) = args.output {
        print::data(format, &all)?;
    } else {
        print::text(&page(&all, Paint::detect()))?;
    }
    verdict(&all, unseen_for)
}

/// What to end with: nobody shall take for well what was not looked at. Pure.
fn verdict(all: &[About], unseen_for: Option<Error>) -> Result<(), Error> {
    let errors = all.iter().flat_map(|about| &about.findings).filter(|one| one.severity == "error").count();
    match (errors, unseen_for) {
        (0, None) => Ok(()),
        (0, Some(error)) => Err(error),
        (1, _) => Err(Error::Failed("1 thing must be put right".into())),
        (more, _) => Err(Error::Failed(format!("{more} things must be put right"))),
    }
}

/// Everything about one queue.
#[derive(Debug)]
pub struct Examination {
    /// The worst first.
    pub findings: Vec<Finding>,
    /// Why its Redis was not examined, if it was not.
    pub unseen_for: Option<Error>,
}

/// Examines one queue.
pub async fn of_queue(
    cluster: &Cluster,
    queue: &JobQueue,
    interrupt: &Interrupt,
) -> Result<Examination, Error> {
    let mut findings = checks::conditions(queue);
    findings.extend(checks::times(queue));
    let name = queue.name_any();
    match cluster.pods_of(&name, None).await {
        Ok(pods) => findings.extend(pods.iter().flat_map(checks::pod)),
        Err(error) => findings.push(unseen("pods", &error)),
    }
    findings.extend(rights(cluster).await);
    let asked = remote::with(cluster, queue, interrupt, async |remote| {
        let (examined, ended) = remote.json::<Examined>(&["doctor".into()]).await?;
        if ended.code > 1 { Err(remote.failed(&ended)) } else { Ok(examined.findings) }
    });
    let mut unseen_for = None;
    match asked.await {
        // The same rule, by the configuration that the workers read: theirs is nearer to the truth.
        Ok(inside) => {
            findings.retain(|one| !inside.iter().any(|other| other.id == one.id));
            findings.extend(inside);
        }
        Err(Error::Interrupted) => return Err(Error::Interrupted),
        Err(error) => {
            findings.push(unexamined(&error));
            unseen_for = Some(error);
        }
    }
    let rank = |one: &Finding| ["error", "warning", "info"].iter().position(|name| *name == one.severity);
    findings.sort_by_key(rank);
    Ok(Examination { findings, unseen_for })
}

/// What the asker may not do.
async fn rights(cluster: &Cluster) -> Vec<Finding> {
    let reviews: Api<SelfSubjectAccessReview> = Api::all(cluster.client.clone());
    let mut refused = vec![];
    for (verb, group, kind, below, commands) in RIGHTS {
        let attributes = ResourceAttributes {
            namespace: Some(cluster.namespace.clone()),
            verb: Some(verb.into()),
            group: Some(group.into()),
            resource: Some(kind.into()),
            subresource: (!below.is_empty()).then(|| below.into()),
            ..ResourceAttributes::default()
        };
        let spec = SelfSubjectAccessReviewSpec {
            resource_attributes: Some(attributes),
            ..SelfSubjectAccessReviewSpec::default()
        };
        let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
        let answer =
            cluster.ask("ask what you may do", reviews.create(&PostParams::default(), &review)).await;
        match answer {
            Ok(answer) if !answer.status.as_ref().is_some_and(|status| status.allowed) => {
                let whole = if below.is_empty() { kind.to_owned() } else { format!("{kind}/{below}") };
                refused.push(format!("{verb} {whole} ({commands})"));
            }
            Ok(_) => {}
            Err(error) => return vec![unseen("rights", &error)],
        }
    }
    if refused.is_empty() {
        return vec![];
    }
    vec![finding(
        "info",
        "rights",
        &format!("you may not {}", refused.join(", ")),
        "those commands are refused",
        "bind yourself to the ClusterRole jobqueue-edit or jobqueue-admin in this namespace",
    )]
}

/// The operator and the CRD.
async fn installation(cluster: &Cluster) -> Vec<Finding> {
    let mut findings = vec![];
    match version::operators(cluster).await {
        Ok(found) if found.is_empty() => findings.push(finding(
            "error",
            "operator",
            "no operator is installed",
            "queues neither scale nor react to changes",
            "docs/install.md",
        )),
        Ok(found) => findings.extend(found.iter().flat_map(checks::operator)),
        Err(error) => findings.push(unseen("operator", &error)),
    }
    let kind = resource("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions");
    let crds: Api<DynamicObject> = Api::all_with(cluster.client.clone(), &kind);
    match cluster.ask("get the CRD of jobqueues", crds.get(JobQueue::crd_name())).await {
        Ok(crd) => {
            let ours = serde_json::to_value(JobQueue::crd()).unwrap_or_default();
            let theirs = serde_json::to_value(crd).unwrap_or_default();
            let missing = version::missing_fields(&ours, &theirs);
            if !missing.is_empty() {
                findings.push(finding(
                    "warning",
                    "crd",
                    &format!("the CRD does not have {}", missing.join(", ")),
                    "Kubernetes drops these fields",
                    "install the chart of this version again: helm leaves an old CRD as it is",
                ));
            }
        }
        Err(error) => findings.push(unseen("crd", &error)),
    }
    findings
}

/// What was found, for people: pure.
fn page(all: &[About], paint: Paint) -> String {
    let mut page = String::new();
    for about in all {
        let place = if about.namespace.is_empty() {
            about.name.clone()
        } else {
            format!("{}/{}", about.namespace, about.name)
        };
        let _ = writeln!(page, "{}", paint.text(Tone::Strong, &place));
        if about.findings.is_empty() {
            let _ = writeln!(page, "  {}", paint.text(Tone::Good, "all is well"));
        }
        for one in &about.findings {
            let tone = match one.severity.as_str() {
                "error" => Tone::Bad,
                "warning" => Tone::Warn,
                _ => Tone::Dim,
            };
            // Padded before it is painted: what paints has no width.
            let severity = paint.text(tone, &format!("{:<8}", whole(&one.severity)));
            // Names of keys are anybody's to choose.
            let _ = writeln!(page, "  {severity} {} [{}]", whole(&one.what), whole(&one.id));
            let (why, fix) = (whole(&one.why), whole(&one.fix));
            let _ = writeln!(page, "           why: {why}\n           fix: {fix}");
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_finding_is_shown_with_its_fix() {
        let about = About {
            namespace: "a".into(),
            name: "hello".into(),
            findings: vec![finding("error", "redis", "away", "nothing runs", "bring it back")],
        };
        let plain = page(std::slice::from_ref(&about), Paint(false));
        assert!(plain.contains("error    away [redis]") && plain.contains("fix: bring it back"), "{plain}");
        let painted = page(&[about], Paint(true));
        assert!(painted.contains("\u{1b}[31merror   \u{1b}[0m away [redis]"), "{painted}");
    }

    #[test]
    fn a_redis_that_nobody_could_look_at_is_not_called_well() {
        let about = |severity: &str| About {
            namespace: "a".into(),
            name: "hello".into(),
            findings: vec![finding(severity, "redis", "x", "y", "z")],
        };
        let ended = |severity: &str, why: Option<Error>| {
            verdict(&[about(severity)], why).map_err(|error| error.code())
        };
        assert_eq!(ended("warning", None), Ok(()));
        assert_eq!(ended("info", Some(Error::Forbidden("no".into()))), Err(4));
        assert_eq!(ended("warning", Some(Error::Unreachable("no".into()))), Err(5));
        assert_eq!(ended("error", Some(Error::Forbidden("no".into()))), Err(1));
    }

    #[test]
    fn the_name_of_a_key_makes_no_terminal_do_something() {
        let evil = "jobqueue:\u{1b}[2J\u{202e}";
        let about = About {
            namespace: "a".into(),
            name: "hello".into(),
            findings: vec![finding("info", "keys", evil, evil, evil)],
        };
        let page = page(&[about], Paint(false));
        assert!(page.chars().all(|c| c == '\n' || !crate::table::unsafe_to_print(c)), "{page}");
    }
}
