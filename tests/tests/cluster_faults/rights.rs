//! The operator may do what it does, and nothing else.
use std::collections::BTreeSet;

use e2e::audit::{Audit, Request};
use e2e::kubernetes::{OPERATOR_NAMESPACE, kubectl, on_the_test_cluster};
use serde_json::Value;

use crate::alone;

/// What is granted though no test has it used, and why.
const UNUSED: &[(&str, &str, &str)] = &[
    ("create", "coordination.k8s.io/leases", "once in the life of a cluster, when its first operator starts"),
    (
        "update",
        "jobqueue.dev/jobqueues/finalizers",
        "asked for by an admission plugin that this cluster has not",
    ),
];

/// A verb on a resource that a role grants to the operator.
#[derive(Debug)]
struct Right {
    verb: String,
    resource: String,
    /// Only for these; empty: for all.
    names: Vec<String>,
    /// Only here; none: everywhere.
    namespace: Option<String>,
}

impl Right {
    fn is_used_by(&self, request: &Request) -> bool {
        // An apply of something new needs the right to create it as well; the log calls both a patch.
        let verb = self.verb == request.verb || (self.verb == "create" && request.verb == "patch");
        verb && self.resource == request.resource
            && (self.names.is_empty() || self.names.contains(&request.name))
            && self.namespace.as_ref().is_none_or(|namespace| *namespace == request.namespace)
    }

    fn is_explained(&self) -> bool {
        UNUSED.iter().any(|(verb, resource, _)| *verb == self.verb && *resource == self.resource)
    }
}

#[tokio::test]
async fn no_right_is_granted_that_is_never_used() {
    if !on_the_test_cluster() {
        return;
    }
    let _turn = alone().await;
    let used: BTreeSet<Request> = Audit::of_this_build().await.requests().into_iter().collect();
    let mut idle = granted().await;
    idle.retain(|right| !right.is_explained() && !used.iter().any(|request| right.is_used_by(request)));
    assert!(idle.is_empty(), "granted and never used: {idle:#?}");
}

/// A right that is missing shows only here: what is refused is tried again and again, and nobody is the worse for it at
/// first. While a test takes the roles away (an uninstallation) everything is refused, so what was also granted is well.
#[tokio::test]
async fn nothing_that_the_operator_needs_is_always_refused() {
    if !on_the_test_cluster() {
        return;
    }
    let _turn = alone().await;
    let (mut granted, mut refused) = (BTreeSet::new(), BTreeSet::new());
    for request in Audit::of_this_build().await.requests() {
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

/// What the roles that are bound to the operator grant.
async fn granted() -> Vec<Right> {
    let mut rights = vec![];
    for bindings in ["clusterrolebindings", "rolebindings"] {
        for binding in list(&[bindings, "--all-namespaces"]).await {
            let subjects = binding["subjects"].as_array().cloned().unwrap_or_default();
            let ours = subjects.iter().any(|subject| {
                subject["kind"] == "ServiceAccount" && subject["namespace"] == OPERATOR_NAMESPACE
            });
            if !ours {
                continue;
            }
            let namespace = binding["metadata"]["namespace"].as_str();
            let text = |name: &str| binding["roleRef"][name].as_str().expect("a reference");
            let within = format!("--namespace={}", namespace.unwrap_or("default"));
            let get = ["get", text("kind"), text("name"), "-o", "json", &within];
            let role: Value = serde_json::from_str(&kubectl(&get).await.expect("a role")).expect("JSON");
            for rule in role["rules"].as_array().into_iter().flatten() {
                rights.extend(expand(rule, namespace));
            }
        }
    }
    rights
}

fn expand(rule: &Value, namespace: Option<&str>) -> Vec<Right> {
    let texts = |name: &str| -> Vec<String> {
        let all = rule[name].as_array().into_iter().flatten();
        all.filter_map(|one| one.as_str().map(str::to_owned)).collect()
    };
    let mut rights = vec![];
    for group in texts("apiGroups") {
        for resource in texts("resources") {
            rights.extend(texts("verbs").into_iter().map(|verb| Right {
                verb,
                resource: format!("{group}/{resource}"),
                names: texts("resourceNames"),
                namespace: namespace.map(str::to_owned),
            }));
        }
    }
    rights
}

async fn list(arguments: &[&str]) -> Vec<Value> {
    let found = kubectl(&[&["get", "-o", "json"], arguments].concat()).await.expect("a list");
    let list: Value = serde_json::from_str(&found).expect("JSON");
    list["items"].as_array().cloned().unwrap_or_default()
}
