//! An operator that looks after some namespaces only.
use std::panic::AssertUnwindSafe;

use e2e::audit::Audit;
use e2e::kubernetes::{LOW, Namespace, kubectl, on_the_test_cluster, patiently, run};
use futures::FutureExt as _;

use crate::{CHART, alone, scale_operators, values};

#[tokio::test]
async fn an_operator_for_two_namespaces_asks_for_nothing_elsewhere_and_serves_one_when_the_other_is_gone() {
    if !on_the_test_cluster() {
        return;
    }
    let _turn = alone().await;
    let values = values().await;
    // Who looks after all namespaces would do the work of the other one.
    scale_operators(0).await;
    let served = AssertUnwindSafe(serve(values.path().to_str().expect("text"))).catch_unwind().await;
    // Whatever was found: the tests after this one need an operator.
    scale_operators(2).await;
    let outside = match served {
        Ok(outside) => outside,
        Err(panicked) => std::panic::resume_unwind(panicked),
    };
    outside.await_ready("ignored").await;
    outside.delete().await;
}

async fn serve(values: &str) -> Namespace {
    let (home, doomed, inside, outside) = (
        Namespace::create("home").await,
        Namespace::create("doomed").await,
        Namespace::create("inside").await,
        Namespace::create("outside").await,
    );
    outside.queue("ignored", "{}").await;
    inside.queue("served", "{}").await;
    let helm = async |arguments: &[&str]| {
        let all = [&["--namespace", home.name.as_str()], arguments].concat();
        run("helm", &all, None).await.unwrap_or_else(|error| panic!("helm {arguments:?}: {error}"))
    };
    let only = format!("watchNamespaces={{{},{}}}", doomed.name, inside.name);
    // Two releases cannot both own what a cluster has once.
    let mine = ["--set", &only, "--set", "crds.enabled=false,rbac.aggregate=false,replicaCount=1"];
    let install = ["install", "single", CHART, "--values", values, "--wait", "--timeout=3m"];
    let audit = Audit::begin().await;
    helm(&[&install[..], &mine].concat()).await;
    let said = helm(&["test", "single", "--timeout=2m"]).await;
    assert!(said.contains("Phase:          Succeeded"), "{said}");
    inside.await_ready("served").await;
    let redis = inside.managed("served").await;
    redis.push(LOW, 0..3).await;
    redis.await_completed(0..3).await;
    assert_eq!(outside.condition("ignored", "Ready").await, "-/-: -");
    let requests = audit.of(&home.name).requests();
    assert!(requests.iter().any(|request| request.namespace == inside.name && request.is_write()));
    let ours = ["", "kube-system", home.name.as_str(), doomed.name.as_str(), inside.name.as_str()];
    let astray: Vec<_> = requests
        .iter()
        // Where the API server is has to be known: no Redis may be there.
        .filter(|one| {
            (one.resource.as_str(), one.name.as_str()) != ("discovery.k8s.io/endpointslices", "kubernetes")
        })
        .filter(|one| !ours.contains(&one.namespace.as_str()) || one.code == 403)
        .collect();
    assert!(astray.is_empty(), "{astray:#?}");

    // The first of its namespaces goes, and our Role with it. Who starts after that serves the other one.
    kubectl(&["delete", "namespace", &doomed.name, "--timeout=120s"]).await.expect("gone");
    let operator = "deployment/single-jobqueue-operator";
    home.kubectl(&["rollout", "restart", operator]).await.expect("restarted");
    home.kubectl(&["rollout", "status", operator, "--timeout=120s"]).await.expect("ready");
    inside.queue("later", "{}").await;
    inside.await_ready("later").await;
    helm(&["uninstall", "single", "--wait", "--timeout=3m"]).await;
    patiently("the queue without its operator", async || {
        inside.condition("served", "Ready").await.starts_with("True")
    })
    .await;
    inside.delete().await;
    home.delete().await;
    outside
}
