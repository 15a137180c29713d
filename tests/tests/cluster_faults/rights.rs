//! The operator may do what it does, and nothing else.
use std::collections::BTreeSet;

use e2e::kubernetes::{Audit, OPERATOR_NAMESPACE, kubectl};
use serde_json::Value;

use crate::alone;

/// What is granted though no test has it used, and why. A verb `*` stands for all.
const UNUSED: &[(&str, &str, &str)] = &[
    ("create", "coordination.k8s.io/leases", "once in the life of a cluster, when its first operator starts"),
    ("*", "monitoring.coreos.com/podmonitors", "the kind exists where the Prometheus operator is installed"),
    (
        "update",
        "jobqueue.dev/jobqueues/finalizers",
        "asked for by an admission plugin that this cluster has not",
    ),
];

#[tokio::test]
async fn no_right_is_granted_that_is_never_used() {
    let _turn = alone().await;
    let Some(audit) = Audit::of_this_build().await else { return };
    let mut used: BTreeSet<(String, String)> =
        audit.requests().into_iter().map(|request| (request.verb, request.resource)).collect();
    // An apply of something new needs the right to create it as well; the log calls both a patch.
    let applied = used
        .iter()
        .filter(|(verb, _)| verb == "patch")
        .map(|(_, resource)| ("create".into(), resource.clone()));
    used.extend(applied.collect::<Vec<_>>());
    let idle: Vec<(String, String)> = granted().await.difference(&used).cloned().collect();
    let unexplained: Vec<&(String, String)> = (idle.iter())
        .filter(|(verb, resource)| {
            !UNUSED.iter().any(|(of, on, _)| on == resource && (*of == "*" || of == verb))
        })
        .collect();
    assert!(unexplained.is_empty(), "granted and never used: {unexplained:#?}");
}

/// A right that is missing shows only here: what is refused is tried again and again, and nobody is the worse for it at
/// first. While a test takes the roles away (an uninstallation) everything is refused, so what was also granted is well.
#[tokio::test]
async fn nothing_that_the_operator_needs_is_always_refused() {
    let _turn = alone().await;
    let Some(audit) = Audit::of_this_build().await else { return };
    let (mut granted, mut refused) = (BTreeSet::new(), BTreeSet::new());
    for request in audit.requests() {
        match request.decision.as_str() {
            "allow" => granted.insert((request.verb, request.resource)),
            // Not an admission's "no" (a namespace that goes away): that comes after this one's "yes".
            "forbid" => refused.insert((request.verb, request.resource)),
            _ => false,
        };
    }
    assert!(!granted.is_empty(), "the log of the API server says who was granted what");
    let missing: Vec<&(String, String)> = refused.difference(&granted).collect();
    assert!(missing.is_empty(), "always refused: {missing:#?}");
}

/// Every verb on every resource that some role grants to the operator.
async fn granted() -> BTreeSet<(String, String)> {
    let mut rights = BTreeSet::new();
    for (bindings, roles) in [("clusterrolebindings", "clusterroles"), ("rolebindings", "roles")] {
        for binding in list(&[bindings, "--all-namespaces"]).await {
            let subjects = binding["subjects"].as_array().cloned().unwrap_or_default();
            let ours = subjects.iter().any(|subject| {
                subject["kind"] == "ServiceAccount" && subject["namespace"] == OPERATOR_NAMESPACE
            });
            if !ours {
                continue;
            }
            let wanted = &binding["roleRef"]["name"];
            for role in list(&[roles, "--all-namespaces"])
                .await
                .iter()
                .filter(|role| role["metadata"]["name"] == *wanted)
            {
                for rule in role["rules"].as_array().into_iter().flatten() {
                    rights.extend(expand(rule));
                }
            }
        }
    }
    rights
}

fn expand(rule: &Value) -> Vec<(String, String)> {
    let texts = |name: &str| -> Vec<String> {
        rule[name]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|one| one.as_str().map(str::to_owned))
            .collect()
    };
    let mut rights = vec![];
    for group in texts("apiGroups") {
        for resource in texts("resources") {
            rights.extend(texts("verbs").into_iter().map(|verb| (verb, format!("{group}/{resource}"))));
        }
    }
    rights
}

async fn list(arguments: &[&str]) -> Vec<Value> {
    let found = kubectl(&[&["get", "-o", "json"], arguments].concat()).await.expect("a list");
    let list: Value = serde_json::from_str(&found).expect("JSON");
    list["items"].as_array().cloned().unwrap_or_default()
}
