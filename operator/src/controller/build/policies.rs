//! What surrounds the pods: their identity, who may reach Redis, how many may be evicted, who scrapes them.
use serde_json::json;

use super::{Child, DISRUPTION_BUDGET, NETWORK_POLICY, POD_MONITOR, Plan, SERVICE_ACCOUNT};
use crate::controller::names::QUEUE_LABEL;

pub(super) fn service_account(plan: &Plan) -> Child {
    let name = plan.names.queue.clone();
    let object = json!({
        "metadata": plan.names.owned(plan.queue, &name, "identity"),
        "automountServiceAccountToken": false,
    });
    Child::new(&SERVICE_ACCOUNT, name, Some(object))
}

pub(super) fn disruption_budget(plan: &Plan) -> Child {
    let name = plan.names.part("worker");
    let object = json!({
        "metadata": plan.names.owned(plan.queue, &name, "worker"),
        "spec": {
            "maxUnavailable": "25%",
            "selector": { "matchLabels": plan.names.selector("worker") },
            // One that never becomes ready must not keep a node from being drained; what it holds it gives back.
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    });
    Child::new(&DISRUPTION_BUDGET, name, Some(object))
}

/// Pods of the namespace may push jobs; others, but for the operator, may not.
pub(super) fn network_policy(plan: &Plan) -> Child {
    let name = plan.names.part("redis");
    let object = plan.managed().then(|| {
        json!({
            "metadata": plan.names.owned(plan.queue, &name, "redis"),
            "spec": {
                "podSelector": { "matchLabels": plan.names.selector("redis") },
                "policyTypes": ["Ingress"],
                "ingress": [{
                    "from": [
                        { "podSelector": {} },
                        {
                            "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": plan.resolved.operator_namespace } },
                            "podSelector": { "matchLabels": { "app.kubernetes.io/name": "jobqueue-operator" } },
                        },
                    ],
                    "ports": [{ "port": 6379, "protocol": "TCP" }],
                }],
            },
        })
    });
    Child::new(&NETWORK_POLICY, name, object)
}

pub(super) fn pod_monitor(plan: &Plan) -> Child {
    let name = plan.names.queue.clone();
    let object = plan.resolved.pod_monitors.then(|| {
        json!({
            "metadata": plan.names.owned(plan.queue, &name, "monitor"),
            "spec": {
                "selector": { "matchLabels": { QUEUE_LABEL: plan.names.queue } },
                "podMetricsEndpoints": [{
                    "port": "metrics",
                    // The operator's gauges name the queue by this label too.
                    "relabelings": [{
                        "sourceLabels": ["__meta_kubernetes_pod_label_jobqueue_dev_queue"],
                        "targetLabel": "jobqueue",
                    }],
                }],
            },
        })
    });
    Child::new(&POD_MONITOR, name, object)
}
