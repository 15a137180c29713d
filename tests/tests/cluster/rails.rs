//! A Rails application with the sidecar beside each worker, and Sidekiq's own client and API in a pod of that application.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a panic is the report")]

use e2e::kubernetes::{Namespace, given, patiently};
use serde_json::{Value, json};

/// A pod of the application in which Ruby is asked.
struct Console<'a> {
    space: &'a Namespace,
}

impl<'a> Console<'a> {
    async fn start(space: &'a Namespace) -> Self {
        let image = given("RAILS_IMAGE");
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "console" },
            "spec": {
                "securityContext": { "runAsNonRoot": true, "runAsUser": 1000, "seccompProfile": { "type": "RuntimeDefault" } },
                "terminationGracePeriodSeconds": 0,
                "containers": [{
                    "name": "console", "image": image, "command": ["ruby", "-e", "sleep"],
                    "env": [{ "name": "REDIS_URL", "value": "redis://store:6379/0" }],
                    "securityContext": { "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } },
                }],
            },
        });
        space.apply(&pod.to_string()).await;
        space
            .kubectl(&["wait", "--for=condition=Ready", "pod/console", "--timeout=120s"])
            .await
            .expect("ready");
        Self { space }
    }

    /// What Ruby comes to, in the environment of the application.
    async fn eval(&self, code: &str) -> Result<Value, String> {
        let code = format!(
            "require './config/environment'; require 'sidekiq/api'; puts JSON.generate([begin; {code}; end])"
        );
        let said = self
            .space
            .kubectl(&["exec", "console", "--", "bundle", "exec", "ruby", "-W0", "-e", &code])
            .await?;
        let line = said.lines().last().unwrap_or_default();
        let answer: Value = serde_json::from_str(line).map_err(|error| format!("{error}: {said}"))?;
        Ok(answer[0].clone())
    }

    async fn until(&self, code: &str, wanted: Value) {
        patiently(&format!("{code} to be {wanted}"), async || match self.eval(code).await {
            Ok(found) if found == wanted => Ok(()),
            Ok(found) => Err(found.to_string()),
            Err(error) => Err(error),
        })
        .await;
    }
}

#[tokio::test]
async fn a_rails_application_has_its_sidekiq_jobs_run_by_workers_that_come_and_go() {
    let space = Namespace::create("rails").await;
    space.external("store").await;
    let (image, env) =
        (given("RAILS_IMAGE"), |name: &str, value: &str| json!({ "name": name, "value": value }));
    let app = json!({
        "name": "app", "image": image,
        "env": [
            env("REDIS_URL", "redis://store:6379/0"),
        ],
        "securityContext": { "runAsUser": 1000, "readOnlyRootFilesystem": true },
        "volumeMounts": [{ "name": "tmp", "mountPath": "/tmp" }],
    });
    let volume = json!({ "name": "tmp", "emptyDir": { "medium": "Memory", "sizeLimit": "64Mi" } });
    let spec = json!({
        "protocol": "sidekiq",
        "redis": { "external": { "address": format!("store.{}:6379", space.name) } },
        "queues": [{ "name": "critical" }, { "name": "default" }],
        "worker": {
            "concurrency": 5,
            // Too short for the slow jobs: one whose worker is stopped would be made twice.
            "drainTimeout": "1s",
            "handler": { "http": { "timeout": "60s", "secretRef": { "name": "jobs-token" } } },
            "app": { "port": 3000, "healthPath": "/health", "stopTimeout": "10s" },
            "template": { "spec": { "containers": [app], "volumes": [volume] } },
        },
        // 20 jobs of two queues are two workers, each queue alone would be one.
        "scaling": { "maxReplicas": 3, "backlogPerWorker": 10, "scaleDownDelay": "10s" },
    });
    let token = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "jobs-token" },
        "stringData": { "token": "t0ken" },
    });
    space.apply(&token.to_string()).await;
    space.queue("shop", &spec.to_string()).await;
    space.await_ready("shop").await;
    let console = Console::start(&space).await;
    // The process that enqueues also looks: another would be starting while what it is to see is over.
    let seen = console.eval(
        "10.times { |n| ThumbnailJob.perform_async(\"slow#{n}\", 20) }; \
         Sidekiq::Client.push_bulk('class' => 'ThumbnailJob', 'queue' => 'critical', 'args' => (0..9).map { |n| [\"quick#{n}\"] }); \
         tries = 0; \
         until (seen = Sidekiq::Workers.new.map { |_, _, work| work['payload']['class'] }.uniq).any? || (tries += 1) > 1200; \
           sleep 0.1; \
         end; \
         seen",
    );
    let asked = async {
        space.await_asked_for("shop", 2).await;
        patiently("the reason for two workers", async || {
            let decided = space.get("jobqueue", "shop").await["status"]["scaling"]["reason"].clone();
            if decided == "20 jobs, 10 a worker" { Ok(()) } else { Err(decided) }
        })
        .await;
    };
    let (seen, ()) = tokio::join!(seen, asked);
    assert_eq!(seen, Ok(json!(["ThumbnailJob"])), "jobs of ours in Sidekiq's list of what runs");
    // What fails for good, what is scheduled, and an ActiveJob.
    console
        .eval(
            "ChargeJob.set(retry: 0).perform_async('eve'); ThumbnailJob.perform_in(1, 'later'); \
             ReportJob.perform_later('sales', at: Time.at(0).utc); nil",
        )
        .await
        .expect("enqueued");
    console
        .until("Sidekiq::Stats.new.then { |s| [s.processed, s.failed, s.enqueued, s.scheduled_size, s.retry_size, s.dead_size] }", json!([23, 1, 0, 0, 0, 1]))
        .await;
    let notes =
        console.eval("Sidekiq.redis { |r| r.lrange('example:notes', 0, -1) }").await.expect("the notes");
    let notes: Vec<_> = notes.as_array().unwrap().iter().filter_map(Value::as_str).collect();
    let made = |name: &str| notes.iter().filter(|note| **note == format!("made {name} []")).count();
    for name in (0..10).flat_map(|n| [format!("slow{n}"), format!("quick{n}")]).chain(["later".to_owned()]) {
        assert_eq!(made(&name), 1, "{name}: {notes:?}");
    }
    assert!(notes.iter().any(|note| note.starts_with("reported sales 1970-01-01T00:00:00Z")), "{notes:?}");
    assert_eq!(
        notes.iter().filter(|note| note.starts_with("gave up") || note.starts_with("died")).count(),
        2
    );
    // Nothing to do, nobody there: in Kubernetes and in Sidekiq's list of processes.
    space.await_asked_for("shop", 0).await;
    console.until("Sidekiq::ProcessSet.new.size", json!(0)).await;
    let status = space.get("jobqueue", "shop").await["status"]["queues"].clone();
    assert_eq!((&status[0]["waiting"], &status[1]["waiting"]), (&json!(0), &json!(0)), "{status}");
    space.delete().await;
}
