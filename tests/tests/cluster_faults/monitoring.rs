//! What others see of the operator and its queues: metrics and traces.
use base64::Engine as _;
use e2e::kubernetes::{Namespace, OPERATOR_NAMESPACE, given, kubectl, patiently, run};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Text;
use prost::Message as _;
use serde_json::json;

use crate::{alone, await_operators, change, leader};

const POD_MONITORS: &str = "podmonitors.monitoring.coreos.com";

/// Which kinds there are is asked when an operator starts.
async fn restart() {
    let deployment = "deployment/jobqueue-operator";
    kubectl(&["-n", OPERATOR_NAMESPACE, "rollout", "restart", deployment]).await.expect("restarted");
    kubectl(&["-n", OPERATOR_NAMESPACE, "rollout", "status", deployment, "--timeout=120s"])
        .await
        .expect("ready");
    await_operators(2).await;
}

#[tokio::test]
async fn a_queue_has_a_pod_monitor_where_that_kind_exists() {
    let _turn = alone().await;
    if kubectl(&["get", "crd", POD_MONITORS]).await.is_ok() {
        println!("skipped: this cluster has a Prometheus operator");
        return;
    }
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": { "name": POD_MONITORS },
        "spec": {
            "group": "monitoring.coreos.com", "scope": "Namespaced",
            "names": { "plural": "podmonitors", "singular": "podmonitor", "kind": "PodMonitor" },
            "versions": [{ "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": {
                "type": "object",
                "properties": { "spec": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } },
            } } }],
        },
    });
    run("kubectl", &["create", "-f", "-"], Some(&definition.to_string())).await.expect("created");
    kubectl(&["wait", "--for=condition=Established", "crd", POD_MONITORS]).await.expect("established");
    restart().await;
    let space = Namespace::create("monitored").await;
    space.queue("orders", "{}").await;
    space.await_ready("orders").await;
    let monitor = space.get("podmonitor", "orders").await;
    assert_eq!(monitor["spec"]["selector"]["matchLabels"], json!({ "jobqueue.dev/queue": "orders" }));
    // The workers' metrics name their queue as the operator's do.
    let of_queue = "__meta_kubernetes_pod_label_jobqueue_dev_queue";
    let relabelings = json!([{ "sourceLabels": [of_queue], "targetLabel": "jobqueue" }]);
    assert_eq!(
        monitor["spec"]["podMetricsEndpoints"],
        json!([{ "port": "metrics", "relabelings": relabelings }])
    );
    assert_eq!(monitor["metadata"]["ownerReferences"][0]["name"], "orders");
    // The kind goes while the operator runs: queues are none the worse for it.
    kubectl(&["delete", "crd", POD_MONITORS]).await.expect("deleted");
    space.queue("after", "{}").await;
    space.await_ready("after").await;
    restart().await;
    space.delete().await;
}

#[tokio::test]
async fn promtool_accepts_a_live_scrape_of_the_operator() {
    let _turn = alone().await;
    let space = Namespace::create("scraped").await;
    space.queue("orders", "{scaling: {minReplicas: 1}}").await;
    space.await_ready("orders").await;
    let scrape = patiently("metrics of the queue", async || {
        let pod = leader().await?;
        let path = format!("/api/v1/namespaces/{OPERATOR_NAMESPACE}/pods/{pod}:8080/proxy/metrics");
        let scrape = kubectl(&["get", "--raw", &path]).await?;
        if scrape.contains(&format!("namespace=\"{}\"", space.name)) { Ok(scrape) } else { Err(scrape) }
    })
    .await;
    let said = run("promtool", &["check", "metrics"], Some(&scrape)).await.expect("accepted");
    assert!(said.trim().is_empty(), "{said}");
    space.delete().await;
}

#[tokio::test]
async fn the_operators_traces_arrive_at_a_collector() {
    let _turn = alone().await;
    let space = Namespace::create("traced").await;
    let security = json!({ "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } });
    let collector = json!({ "apiVersion": "v1", "kind": "List", "items": [
        { "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "collector", "labels": { "app": "collector" } }, "spec": {
            "securityContext": { "runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": { "type": "RuntimeDefault" } },
            "terminationGracePeriodSeconds": 1,
            "containers": [{ "name": "collector", "image": given("APP_IMAGE"), "securityContext": security,
                "readinessProbe": { "httpGet": { "path": "/health", "port": 3000 }, "periodSeconds": 1 } }],
        }},
        { "apiVersion": "v1", "kind": "Service", "metadata": { "name": "collector" }, "spec": {
            "selector": { "app": "collector" }, "ports": [{ "port": 4317, "targetPort": 3000 }] } },
    ]});
    space.apply(&collector.to_string()).await;
    space
        .kubectl(&["wait", "--for=condition=Ready", "--timeout=120s", "pod/collector"])
        .await
        .expect("a collector");
    let endpoint = format!("tracing.endpoint=http://collector.{}:4317", space.name);
    change(&["--set-string", &endpoint]).await;
    space.queue("orders", "{}").await;
    space.await_ready("orders").await;
    patiently("a span of the queue", async || {
        let path = format!("/api/v1/namespaces/{}/pods/collector:3000/proxy/traces", space.name);
        let lines = kubectl(&["get", "--raw", &path]).await?;
        let spans = spans(&lines);
        let found =
            spans.iter().any(|span| *span == format!("jobqueue-operator: reconcile {}/orders", space.name));
        if found { Ok(()) } else { Err(format!("{spans:?}")) }
    })
    .await;
    change(&["--set-string", "tracing.endpoint="]).await;
    space.delete().await;
}

/// The root spans of what a collector got: service, name, and whose queue.
fn spans(lines: &str) -> Vec<String> {
    let text = |attributes: &[KeyValue], name: &str| {
        let found = attributes.iter().find(|one| one.key == name);
        match found.and_then(|one| one.value.as_ref()?.value.as_ref()) {
            Some(Text::StringValue(text)) => text.clone(),
            _ => String::new(),
        }
    };
    let requests = lines.lines().map(|line| {
        let bytes = base64::engine::general_purpose::STANDARD.decode(line).expect("base64");
        ExportTraceServiceRequest::decode(bytes.as_slice()).expect("an export of traces")
    });
    let mut found = vec![];
    for of in requests.flat_map(|request| request.resource_spans) {
        let service = text(&of.resource.unwrap_or_default().attributes, "service.name");
        let spans = of.scope_spans.into_iter().flat_map(|scope| scope.spans);
        for span in spans.filter(|span| span.parent_span_id.is_empty()) {
            let (namespace, queue) =
                (text(&span.attributes, "namespace"), text(&span.attributes, "jobqueue"));
            found.push(format!("{service}: {} {namespace}/{queue}", span.name));
        }
    }
    found
}
