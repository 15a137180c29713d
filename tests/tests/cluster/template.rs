//! The user's partial pod template.
use e2e::kubernetes::Namespace;
use serde_json::json;

#[tokio::test]
async fn fields_that_are_the_operators_are_refused_by_name() {
    let space = Namespace::create("owned").await;
    let cases = [
        (
            "grace",
            "{spec: {terminationGracePeriodSeconds: 5}}",
            "spec.worker.template.spec.terminationGracePeriodSeconds cannot be set: it is computed",
        ),
        (
            "image",
            "{spec: {containers: [{name: worker, image: 'mine:1'}]}}",
            "spec.worker.template.spec.containers[worker].image cannot be set: set spec.worker.image",
        ),
        (
            "label",
            "{metadata: {labels: {jobqueue.dev/queue: mine}}}",
            "spec.worker.template.metadata.labels.jobqueue.dev/queue cannot be set",
        ),
        ("unknown", "{spec: {tolerance: []}}", "tolerance"),
    ];
    for (name, template, _) in cases {
        space.queue(name, &space.on("nowhere", &format!("worker: {{template: {template}}}"))).await;
    }
    for (name, _, message) in cases {
        let stalled = space.await_condition(name, "Stalled", "True/").await;
        assert!(stalled.contains(message), "{name}: {stalled}");
        assert!(name == "unknown" || stalled.starts_with("True/InvalidSpec"), "{name}: {stalled}");
    }
    space.delete().await;
}

#[tokio::test]
async fn what_users_add_to_the_pods_is_merged_in() {
    let space = Namespace::create("merged").await;
    let template = "{metadata: {labels: {team: blue}}, spec: {tolerations: [{key: dedicated, operator: Exists}], \
                    containers: [{name: worker, env: [{name: GREETING, value: hello}]}]}}";
    space
        .queue("merged", &format!("{{scaling: {{minReplicas: 1}}, worker: {{template: {template}}}}}"))
        .await;
    space.await_condition("merged", "WorkersAvailable", "True/Available").await;
    let pods = space.list("pods", "team=blue,app.kubernetes.io/component=worker").await;
    assert_eq!(pods.len(), 1);
    let pod = &pods[0]["spec"];
    assert!(
        pod["tolerations"].as_array().unwrap().contains(&json!({ "key": "dedicated", "operator": "Exists" }))
    );
    let env = pod["containers"][0]["env"].as_array().unwrap();
    assert!(env.contains(&json!({ "name": "GREETING", "value": "hello" })), "{env:?}");
    assert!(env.iter().any(|variable| variable["name"] == "WORKER_POD_UID"), "{env:?}");
    space.delete().await;
}
