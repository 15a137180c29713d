//! Tables of what is built; no client, no cluster.
use std::collections::BTreeMap;

use super::*;
use crate::controller::resolve::SecretData;

fn queue(yaml: &str) -> JobQueue {
    let spec: Value = serde_saphyr::from_str(yaml).unwrap();
    let mut queue = JobQueue::new("thumbs", serde_json::from_value(spec).unwrap());
    queue.metadata.namespace = Some("team".into());
    queue.metadata.uid = Some("1-2-3".into());
    queue
}

fn resolved() -> Resolved {
    Resolved {
        worker_image: "worker:1".into(),
        redis_image: "redis:7".into(),
        cluster_domain: "cluster.local".into(),
        operator_namespace: "jobqueue-system".into(),
        ..Resolved::default()
    }
}

fn built(yaml: &str) -> Children {
    children(&queue(yaml), &resolved()).unwrap()
}

fn refusal(yaml: &str) -> String {
    children(&queue(yaml), &resolved()).unwrap_err().to_string()
}

fn pod(child: &Child) -> Value {
    child.object.as_ref().unwrap()["spec"]["template"]["spec"].clone()
}

fn all(children: &Children) -> Vec<&Child> {
    vec![
        &children.service_account,
        &children.config,
        &children.redis_config,
        &children.redis_service,
        &children.redis,
        &children.worker,
        &children.producer,
        &children.api,
        &children.api_service,
        &children.api_disruption_budget,
        &children.api_network_policy,
        &children.disruption_budget,
        &children.network_policy,
        &children.pod_monitor,
    ]
}

#[test]
fn an_empty_spec_needs_workers_and_a_redis_and_nothing_else() {
    let children = built("{}");
    let wanted: Vec<String> = all(&children)
        .into_iter()
        .filter(|child| child.object.is_some())
        .map(|child| format!("{}/{}", child.kind.name, child.name))
        .collect();
    assert_eq!(
        wanted,
        [
            "ServiceAccount/thumbs",
            "ConfigMap/thumbs-config",
            "ConfigMap/thumbs-redis",
            "Service/thumbs-redis",
            "StatefulSet/thumbs-redis",
            "Deployment/thumbs-worker",
            "PodDisruptionBudget/thumbs-worker",
            "NetworkPolicy/thumbs-redis",
        ]
    );
}

#[test]
fn every_child_is_owned_labelled_and_hashed() {
    let everything = "{producer: {volume: {emptyDir: {}}}}";
    for child in all(&built(everything)).into_iter().filter(|child| child.object.is_some()) {
        let metadata = &child.object.as_ref().unwrap()["metadata"];
        assert_eq!(metadata["ownerReferences"][0]["uid"], "1-2-3", "{}", child.name);
        assert_eq!(metadata["labels"]["app.kubernetes.io/managed-by"], "jobqueue-operator", "{}", child.name);
        assert_eq!(metadata["annotations"][HASH].as_str().map(str::len), Some(12), "{}", child.name);
    }
}

#[test]
fn every_pod_is_restricted_and_has_no_token() {
    let children = built("{producer: {volume: {emptyDir: {}}}}");
    for child in [&children.worker, &children.producer, &children.redis] {
        let pod = pod(child);
        assert_eq!(pod["automountServiceAccountToken"], false);
        assert_eq!(pod["enableServiceLinks"], false);
        assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
        assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
        for container in pod["containers"].as_array().unwrap() {
            assert_eq!(container["securityContext"]["allowPrivilegeEscalation"], false);
            assert_eq!(container["securityContext"]["capabilities"]["drop"][0], "ALL");
        }
    }
}

#[test]
fn the_configuration_is_what_the_worker_reads() {
    let children = built(
        "{keyPrefix: thumbs, queues: [{name: high, key: 'my:list'}, {name: slow}], retry: {maxRetries: 7, backoff: {base: 1s}},
          worker: {concurrency: 5, heartbeatTtl: 10s, handler: {simulate: {perMib: 3ms}}}, circuitBreaker: {failurePercent: 30, cooldown: 5s}}",
    );
    let config = &children.rendered.config;
    assert_eq!(config.worker.count, 5);
    assert_eq!(config.worker.max_retries, 7);
    assert_eq!(config.worker.queues["high"], "my:list");
    assert_eq!(config.worker.queues["slow"], "thumbs:slow");
    assert_eq!(config.worker.handler.simulate.per_mib.to_string(), "3ms");
    assert!((config.circuit_breaker.failure_threshold - 0.3).abs() < f64::EPSILON);
    assert_eq!(config.redis.addr, "thumbs-redis.team.svc.cluster.local:6379");
    assert_eq!(config.redis.password_file, "/etc/jobqueue-redis/password");
    let tree: Value = serde_saphyr::from_str(&children.rendered.yaml).unwrap();
    assert_eq!(jobqueue::config::Config::from_value(tree).unwrap().config, *config);
}

#[test]
fn what_a_worker_would_refuse_stalls_and_names_the_key() {
    let refusal = refusal("{worker: {heartbeatTtl: 1s}}");
    assert!(refusal.contains("spec.worker.heartbeatTtl"), "{refusal}");
}

#[test]
fn a_changed_configuration_rolls_the_pods_and_an_equal_one_does_not() {
    let hash = |yaml: &str| {
        built(yaml).worker.object.unwrap()["spec"]["template"]["metadata"]["annotations"].clone()
    };
    assert_eq!(hash("{}"), hash("{}"));
    assert_ne!(hash("{}"), hash("{worker: {concurrency: 17}}"));
    assert_eq!(hash("{}"), hash("{scaling: {maxReplicas: 3}}"), "scaling is not of the workers' business");
}

#[test]
fn the_grace_period_is_the_drain_and_the_stop_and_some_seconds() {
    assert_eq!(pod(&built("{worker: {drainTimeout: 40s}}").worker)["terminationGracePeriodSeconds"], 45);
    let app = "{worker: {drainTimeout: 40s, handler: {http: {}}, app: {stopTimeout: 10s}, template: {spec: {containers: [{name: app, image: a}]}}}}";
    assert_eq!(pod(&built(app).worker)["terminationGracePeriodSeconds"], 55);
}

#[test]
fn a_worker_that_is_not_told_how_long_waits_for_the_longest_job() {
    let with = built("{worker: {handler: {http: {url: 'http://a', timeout: 90s}}}}");
    assert_eq!(with.rendered.config.worker.drain_timeout.to_string(), "1m30s");
    assert_eq!(pod(&with.worker)["terminationGracePeriodSeconds"], 95);
    assert!(
        built("{}").rendered.yaml.contains("drain_timeout: 25s"),
        "also what is the worker's own default"
    );
    let api = with_api("{protocol: async, worker: {handler: {http: {url: 'http://a'}}}, api: {}}").api;
    assert_eq!(pod(&api)["terminationGracePeriodSeconds"], 65);
}

#[test]
fn the_app_is_a_native_sidecar_before_the_worker() {
    let app = "{worker: {handler: {http: {}}, app: {port: 8000, healthPath: /up}, template: {spec: {containers: [{name: app, image: 'thumbs:3', env: [{name: A, value: b}]}]}}}}";
    let children = built(app);
    let pod = pod(&children.worker);
    let sidecar = &pod["initContainers"][0];
    assert_eq!((sidecar["name"].as_str(), sidecar["restartPolicy"].as_str()), (Some("app"), Some("Always")));
    assert_eq!(sidecar["startupProbe"]["httpGet"]["path"], "/up");
    assert_eq!(sidecar["startupProbe"]["failureThreshold"], 60);
    assert_eq!(sidecar["env"][0]["name"], "A");
    assert_eq!(pod["containers"].as_array().unwrap().len(), 1);
    assert_eq!(children.rendered.config.worker.handler.http.url.expose(), "http://127.0.0.1:8000");
    assert!(refusal("{worker: {handler: {http: {}}, app: {}}}").contains("a container named app"));
}

#[test]
fn a_command_runs_in_the_users_image_with_our_binary_in_it() {
    let command = "{worker: {handler: {command: {argv: [convert]}}, template: {spec: {containers: [{name: worker, image: 'magick:7', securityContext: {readOnlyRootFilesystem: false}}]}}}}";
    let pod = pod(&built(command).worker);
    let worker = &pod["containers"][0];
    assert_eq!(worker["image"], "magick:7");
    assert_eq!(worker["command"], json!(["/jobqueue/worker"]));
    assert_eq!(worker["args"][0], "--role=worker");
    assert_eq!(worker["securityContext"]["readOnlyRootFilesystem"], false);
    assert_eq!(worker["securityContext"]["allowPrivilegeEscalation"], false);
    assert_eq!(pod["initContainers"][0]["image"], "worker:1");
    assert_eq!(pod["initContainers"][0]["args"], json!(["install", "/jobqueue/worker"]));
    assert!(refusal("{worker: {handler: {command: {argv: [x]}}}}").contains("a container named worker"));
}

#[test]
fn a_users_template_is_merged_under_ours() {
    let template = "{worker: {template: {metadata: {labels: {team: blue}}, spec: {nodeSelector: {disk: ssd}, tolerations: [{key: gpu}],
        volumes: [{name: cache, emptyDir: {}}], containers: [{name: worker, env: [{name: A, value: b}]}, {name: extra, image: e}]}}}}";
    let children = built(template);
    let object = children.worker.object.as_ref().unwrap();
    assert_eq!(object["spec"]["template"]["metadata"]["labels"]["team"], "blue");
    assert_eq!(object["spec"]["template"]["metadata"]["labels"]["jobqueue.dev/queue"], "thumbs");
    let pod = pod(&children.worker);
    assert_eq!(pod["nodeSelector"]["disk"], "ssd");
    assert_eq!(pod["tolerations"][0]["key"], "gpu");
    let names = |list: &Value| -> Vec<String> {
        list.as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&pod["containers"]), ["worker", "extra"]);
    assert_eq!(names(&pod["containers"][0]["env"]), ["WORKER_POD_UID", "WORKER_NAMESPACE", "A"]);
    assert!(names(&pod["volumes"]).contains(&"cache".to_owned()));
}

#[test]
fn fields_that_are_ours_are_refused_by_name() {
    for (template, path) in [
        ("{spec: {restartPolicy: Never}}", "spec.worker.template.spec.restartPolicy"),
        ("{spec: {terminationGracePeriodSeconds: 1}}", "spec.terminationGracePeriodSeconds"),
        ("{spec: {containers: [{name: worker, image: x}]}}", "spec.containers[worker].image"),
        ("{spec: {containers: [{name: worker, args: [x]}]}}", "spec.containers[worker].args"),
        ("{spec: {containers: [{name: worker, env: [{name: WORKER_POD_UID}]}]}}", "env[WORKER_POD_UID]"),
        (
            "{spec: {initContainers: [{name: app, lifecycle: {preStop: {}}}]}}",
            "spec.initContainers[app].lifecycle.preStop",
        ),
        ("{spec: {volumes: [{name: jobqueue-config}]}}", "spec.volumes[jobqueue-config]"),
        ("{metadata: {labels: {jobqueue.dev/queue: x}}}", "metadata.labels.jobqueue.dev/queue"),
        ("{containers: []}", "spec.worker.template.containers"),
    ] {
        let refusal = refusal(&format!("{{worker: {{template: {template}}}}}"));
        assert!(refusal.contains(path) && refusal.contains("cannot be set"), "{refusal}");
    }
}

#[test]
fn an_external_redis_brings_its_secret_and_none_of_ours() {
    let spec = "{redis: {external: {address: 'redis.data:6380', secretRef: {name: creds}, tls: {}}}}";
    let secret = BTreeMap::from([
        ("username".to_owned(), b"app\n".to_vec()),
        ("password".to_owned(), b"secret".to_vec()),
        ("ca.crt".to_owned(), b"pem".to_vec()),
    ]);
    let resolved = Resolved { redis_secret: Some(SecretData::new("creds", secret)), ..resolved() };
    let children = children(&queue(spec), &resolved).unwrap();
    assert!(children.redis.object.is_none() && children.redis_service.object.is_none());
    let redis = &children.rendered.config.redis;
    assert_eq!((redis.addr.as_str(), redis.username.as_str()), ("redis.data:6380", "app"));
    assert_eq!(redis.tls.ca_file, "/etc/jobqueue-redis/ca.crt");
    assert!(!children.rendered.yaml.contains("secret\n"), "a password has no place in a ConfigMap");
    let volumes = pod(&children.worker)["volumes"].clone();
    assert!(volumes.as_array().unwrap().iter().any(|volume| volume["secret"]["secretName"] == "creds"));
}

#[test]
fn the_volume_of_redis_has_no_owner_and_ephemeral_has_no_volume() {
    let claim = volume_claim(&queue("{}")).unwrap().object.unwrap();
    assert!(claim["metadata"].get("ownerReferences").is_none());
    assert_eq!(claim["spec"]["resources"]["requests"]["storage"], "1Gi");
    assert!(volume_claim(&queue("{redis: {managed: {storage: {ephemeral: {}}}}}")).is_none());
    assert!(volume_claim(&queue("{redis: {external: {address: 'a:1'}}}")).is_none());
}

#[test]
fn a_generated_secret_gives_redis_only_the_hash() {
    let secret = generated_secret(&queue("{}"), "hunter2");
    let users = secret["stringData"]["users.acl"].as_str().unwrap();
    assert!(
        users.starts_with(
            "user default on #f52fbd32b2b3b86ff88ef6c490628285f482af15ddcb29541f94bcf526a3f6c7 "
        )
    );
    assert!(!users.contains("hunter2"));
}

#[test]
fn a_new_operator_image_never_restarts_redis() {
    let children = built("{}");
    assert_eq!(children.redis.object.unwrap()["spec"]["updateStrategy"]["type"], "OnDelete");
}

#[test]
fn a_redis_with_a_memory_limit_refuses_jobs_before_it_is_killed() {
    let conf = |spec: &str| {
        let object = built(spec).redis_config.object.unwrap();
        object["data"]["redis.conf"].as_str().unwrap().to_owned()
    };
    assert!(!conf("{}").contains("maxmemory "), "nobody knows how much there is");
    let limited = conf("{redis: {managed: {resources: {limits: {memory: 256Mi}}}}}");
    assert!(limited.ends_with("\nmaxmemory 201326592\n"), "{limited}");
    assert!(limited.contains("maxmemory-policy noeviction"));
}

#[test]
fn a_sidekiq_queue_has_sidekiqs_keys_its_weights_and_a_prefix_of_its_own() {
    let spec = "{protocol: sidekiq, queues: [{name: critical, weight: 5}, {name: default, weight: 1}], \
                sidekiq: {namespace: app, promote: 'off'}, worker: {handler: {http: {}}, app: {port: 3000}, \
                template: {spec: {containers: [{name: app, image: 'rails:1'}]}}}}";
    let config = built(spec).rendered.config;
    assert_eq!(config.protocol, jobqueue::config::Protocol::Sidekiq);
    assert_eq!(config.worker.priorities, ["critical", "default"]);
    assert_eq!(config.worker.queues["critical"], "app:queue:critical");
    assert_eq!((config.worker.weights["critical"], config.worker.weights["default"]), (5, 1));
    assert_eq!(config.prefix(), "jobqueue:team:thumbs");
    assert_eq!(config.sidekiq.promote, jobqueue::config::SidekiqPromote::Off);
    assert_eq!(config.worker.max_retries, 25);
    assert_eq!(config.worker.handler.http.url.expose(), "http://127.0.0.1:3000");
    let engine = jobqueue::engine::Engine::new(&config);
    let keys = &engine.shards[0];
    assert_eq!(keys.dead_letters(), "app:dead");
    assert!(keys.queues_are_foreign());
    assert_eq!(keys.queues[0].suspects, "jobqueue:team:thumbs:suspects:critical");
}

#[test]
fn a_rails_app_is_told_where_to_listen_how_many_jobs_to_take_and_who_the_worker_is() {
    let app = |path: &str, container: &str| {
        format!(
            "{{protocol: sidekiq, queues: [{{name: default}}], worker: {{concurrency: 7, handler: {{http: {{secretRef: {{name: s}}}}}}, \
             app: {{port: 4000{path}}}, template: {{spec: {{containers: [{{name: app, image: 'rails:1'{container}}}]}}}}}}}}"
        )
    };
    let sidecar = |spec: &str, key: Option<&str>| {
        let secret = key.map(|key| SecretData::new("s", BTreeMap::from([(key.to_owned(), b"x".to_vec())])));
        let resolved = Resolved { handler_secret: secret, ..resolved() };
        pod(&children(&queue(spec), &resolved).unwrap().worker)["initContainers"][0].clone()
    };
    let env = |container: &Value| -> BTreeMap<String, Value> {
        let entries = container["env"].as_array().unwrap().iter();
        entries.map(|entry| (entry["name"].as_str().unwrap().to_owned(), entry["value"].clone())).collect()
    };
    let of = |pairs: &[(&str, &str)]| -> BTreeMap<String, Value> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect()
    };
    let told = |stop: &str, who: (&str, &str)| {
        let (bind, concurrency) = (("JOBQUEUE_BIND", "tcp://0.0.0.0:4000"), ("JOBQUEUE_CONCURRENCY", "7"));
        of(&[bind, concurrency, ("JOBQUEUE_STOP_TIMEOUT", stop), ("JOBQUEUE_LOG_FORMAT", "json"), who])
    };
    let nobody = ("JOBQUEUE_WITHOUT_SECRET", "loopback");
    let plain = sidecar(&app("", ""), None);
    assert_eq!(env(&plain), told("4", nobody), "a second less than it has");
    assert_eq!(env(&sidecar(&app(", stopTimeout: 2m", ""), None)), told("119", nobody));
    assert_eq!(env(&sidecar(&app(", stopTimeout: 500ms", ""), None)), told("0", nobody));
    assert_eq!((&plain["volumeMounts"], &plain["livenessProbe"]), (&Value::Null, &Value::Null));
    for (key, variable) in [("token", "JOBQUEUE_TOKEN_FILE"), ("hmac", "JOBQUEUE_HMAC_KEY_FILE")] {
        let known = sidecar(&app(", healthPath: /health", ""), Some(key));
        let file = format!("/etc/jobqueue-handler/{key}");
        assert_eq!(env(&known), told("4", (variable, &file)));
        assert_eq!(known["volumeMounts"][0]["mountPath"], "/etc/jobqueue-handler");
        let asked = json!({ "path": "/health", "port": 4000 });
        assert_eq!(
            (&known["livenessProbe"]["httpGet"], &known["livenessProbe"]["periodSeconds"]),
            (&asked, &json!(10))
        );
    }
    let own = ", env: [{name: JOBQUEUE_CONCURRENCY, valueFrom: {fieldRef: {fieldPath: metadata.name}}}], livenessProbe: {tcpSocket: {port: 1}}";
    let own = sidecar(&app(", healthPath: /health", own), None);
    let said = json!({ "name": "JOBQUEUE_CONCURRENCY", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } });
    assert_eq!(own["env"][0], said, "the user's word");
    assert_eq!(own["livenessProbe"], json!({ "tcpSocket": { "port": 1 } }));
    // Of other applications nothing is known.
    let files = "{worker: {handler: {http: {}}, app: {healthPath: /up}, template: {spec: {containers: [{name: app, image: a}]}}}}";
    let other = sidecar(files, None);
    assert_eq!((&other["env"], &other["livenessProbe"]), (&Value::Null, &Value::Null));
}

#[test]
fn a_cluster_cannot_hold_sidekiqs_queues() {
    let said = refusal(
        "{protocol: sidekiq, worker: {handler: {simulate: {}}}, redis: {external: {address: 'a:1', cluster: true}}}",
    );
    assert!(said.contains("Sidekiq's own client cannot use Redis Cluster"), "{said}");
}

#[test]
fn handlers_by_type_are_rendered_and_post_where_all_others_do_unless_they_name_a_place() {
    let spec = "{protocol: async, worker: {handler: {http: {url: 'http://app:1', path: /run, timeout: 5s, secretRef: {name: s}}}},
        async: {handlers: {email: {http: {}}, sms: {http: {url: 'http://sms:2', path: /send}}, resize: {simulate: {base: 2s}}}}}";
    let secret = SecretData::new("s", BTreeMap::from([("token".to_owned(), b"x".to_vec())]));
    let resolved = Resolved { handler_secret: Some(secret), ..resolved() };
    let config = children(&queue(spec), &resolved).unwrap().rendered.config;
    let handlers = serde_json::to_value(&config.async_jobs.handlers).unwrap();
    let (email, sms) = (&handlers["email"]["http"], &handlers["sms"]["http"]);
    assert_eq!((&email["url"], &email["path"]), (&json!("http://app:1"), &json!("/run")));
    assert_eq!(
        (&email["token_file"], &email["timeout"]),
        (&json!("/etc/jobqueue-handler/token"), &json!("5s"))
    );
    assert_eq!(
        (&sms["url"], &sms["path"], &sms["token_file"]),
        (&json!("http://sms:2"), &json!("/send"), &json!(""))
    );
    assert_eq!(handlers["resize"]["simulate"]["base"], "2s");
}

#[test]
fn a_program_of_one_type_of_job_runs_in_the_users_image() {
    let by_type = "async: {handlers: {resize: {command: {argv: [resize]}}}}";
    let said = refusal(&format!("{{protocol: async, {by_type}}}"));
    assert!(said.contains("needs a container named worker"), "{said}");
    let worker = "worker: {template: {spec: {containers: [{name: worker, image: mine}]}}}";
    let pod = pod(&built(&format!("{{protocol: async, {by_type}, {worker}}}")).worker);
    assert_eq!(pod["containers"][0]["image"], "mine");
}

#[test]
fn the_certificates_of_a_handler_are_of_its_secret_too() {
    let spec = "{worker: {handler: {http: {url: 'https://app:1', secretRef: {name: s}}}}}";
    let held = ["hmac", "ca.crt", "tls.crt", "tls.key"].map(|key| (key.to_owned(), b"x".to_vec()));
    let secret = SecretData::new("s", BTreeMap::from(held));
    let resolved = Resolved { handler_secret: Some(secret), ..resolved() };
    let http = children(&queue(spec), &resolved).unwrap().rendered.config.worker.handler.http;
    assert_eq!(http.ca_file, "/etc/jobqueue-handler/ca.crt");
    assert_eq!(
        (http.cert_file.as_str(), http.key_file.as_str()),
        ("/etc/jobqueue-handler/tls.crt", "/etc/jobqueue-handler/tls.key")
    );
    assert_eq!(http.token_file, "");
}

#[test]
fn the_secret_of_a_handler_is_used_by_what_it_holds() {
    let spec = "{worker: {handler: {http: {url: 'http://app:1', secretRef: {name: s}}}}}";
    for (key, field) in [("token", "token_file"), ("hmac", "hmac_key_file")] {
        let secret = SecretData::new("s", BTreeMap::from([(key.to_owned(), b"x".to_vec())]));
        let resolved = Resolved { handler_secret: Some(secret), ..resolved() };
        let yaml = children(&queue(spec), &resolved).unwrap().rendered.yaml;
        assert!(yaml.contains(&format!("{field}: /etc/jobqueue-handler/{key}")), "{yaml}");
    }
}

#[test]
fn who_a_pod_is_and_what_it_may_do_is_the_users_where_the_user_says_so() {
    let template =
        "{worker: {template: {spec: {serviceAccountName: cloud, securityContext: {fsGroup: 1000}}}}}";
    let pod = pod(&built(template).worker);
    assert_eq!(pod["serviceAccountName"], "cloud");
    assert_eq!(
        (&pod["securityContext"]["fsGroup"], &pod["securityContext"]["runAsNonRoot"]),
        (&json!(1000), &json!(true))
    );
}

const WITH_API: &str = "{protocol: async, api: {tokenSecretRef: {name: tokens}, resultTtl: 1h}}";

fn with_api(yaml: &str) -> Children {
    let secret = SecretData::new("tokens", BTreeMap::from([("tokens".to_owned(), b"x".to_vec())]));
    children(&queue(yaml), &Resolved { api_secret: Some(secret), ..resolved() }).unwrap()
}

#[test]
fn an_api_has_pods_an_address_a_budget_and_a_policy() {
    let children = with_api(WITH_API);
    let wanted: Vec<String> = all(&children)
        .into_iter()
        .filter(|child| child.object.is_some() && child.name == "thumbs-api")
        .map(|child| child.kind.name.to_owned())
        .collect();
    assert_eq!(wanted, ["Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy"]);
    for child in all(&with_api("{protocol: async}")) {
        assert!(child.name != "thumbs-api" || child.object.is_none(), "{}", child.name);
    }
}

#[test]
fn the_pods_of_an_api_are_restricted_probed_and_know_their_tokens() {
    let children = with_api(WITH_API);
    let pod = pod(&children.api);
    let container = &pod["containers"][0];
    assert_eq!(container["args"][0], "--role=api");
    assert_eq!(container["ports"][1], json!({ "name": "http", "containerPort": 8080 }));
    assert_eq!(container["readinessProbe"]["httpGet"]["path"], "/readyz");
    assert_eq!(container["livenessProbe"]["httpGet"]["path"], "/healthz");
    assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], true);
    assert_eq!(pod["terminationGracePeriodSeconds"], 30);
    let volumes = pod["volumes"].as_array().unwrap();
    assert!(volumes.iter().any(|volume| volume["secret"]["secretName"] == "tokens"), "{volumes:?}");
    let api = &children.rendered.config.api;
    assert_eq!(
        (api.token_file.as_str(), api.result_ttl.to_string()),
        ("/etc/jobqueue-api/tokens", "1h".into())
    );
    assert_eq!(api.drain_delay.to_string(), "5s");
}

#[test]
fn the_memory_of_an_api_goes_with_the_bodies_that_it_takes() {
    let limit =
        |yaml: &str| pod(&with_api(yaml).api)["containers"][0]["resources"]["limits"]["memory"].clone();
    assert_eq!(limit("{protocol: async, api: {}}"), "256Mi");
    assert_eq!(limit("{protocol: async, api: {bodyLimit: 67108864}}"), "560Mi");
    assert_eq!(limit("{protocol: async, api: {resources: {limits: {memory: 2Gi}}}}"), "2Gi");
    let small = queue("{protocol: async, api: {bodyLimit: 67108864, resources: {limits: {memory: 512Mi}}}}");
    let refused = children(&small, &resolved()).unwrap_err().to_string();
    assert!(refused.contains("560Mi") && refused.contains("bodyLimit"), "{refused}");
}

#[test]
fn the_number_of_api_pods_is_ours_only_where_the_queue_says_it() {
    let replicas = |yaml: &str| with_api(yaml).api.object.unwrap()["spec"].get("replicas").cloned();
    assert_eq!(replicas("{protocol: async, api: {}}"), None);
    assert_eq!(replicas("{protocol: async, api: {replicas: 3}}"), Some(json!(3)));
}

#[test]
fn pods_of_the_namespace_reach_the_api_and_everybody_its_metrics() {
    let policy = with_api(WITH_API).api_network_policy.object.unwrap();
    let ingress = &policy["spec"]["ingress"];
    assert_eq!(ingress[0]["from"], json!([{ "podSelector": {} }]));
    assert_eq!(
        (&ingress[0]["ports"][0]["port"], &ingress[1]["ports"][0]["port"]),
        (&json!(8080), &json!(9090))
    );
}

#[test]
fn a_short_drain_leaves_time_for_requests() {
    let config = with_api("{protocol: async, worker: {drainTimeout: 4s}, api: {}}").rendered.config;
    assert_eq!(config.api.drain_delay.to_string(), "2s");
}

#[test]
fn an_async_queue_has_the_keys_of_its_clients() {
    let config = built("{protocol: async}").rendered.config;
    let keys = &jobqueue::engine::Engine::new(&config).shards[0];
    assert_eq!((keys.queues[0].queue.as_str(), keys.jobs().data("a")), ("jobs:queue", "jobs:data:a".into()));
}

#[test]
fn sentinels_are_asked_with_credentials_of_their_own() {
    let external = "{sentinel: {master: main, addresses: ['a:26379']}, secretRef: {name: login}}";
    let queue =
        queue(&format!("{{redis: {{external: {external}}}, producer: {{volume: {{emptyDir: {{}}}}}}}}"));
    let secret = |keys: &[&str]| {
        let data = keys.iter().map(|key| ((*key).to_owned(), format!("the-{key}").into_bytes()));
        Some(SecretData::new("login", data.collect::<BTreeMap<_, _>>()))
    };
    let keys = ["sentinel-username", "sentinel-password"];
    let with = children(&queue, &Resolved { redis_secret: secret(&keys), ..resolved() }).unwrap();
    assert_eq!(with.rendered.config.redis.sentinel.username, "the-sentinel-username");
    assert!(!with.rendered.yaml.contains("the-sentinel-password"), "it is no secret there");
    for child in [&with.worker, &with.producer] {
        let variables = pod(child)["containers"][0]["env"].as_array().unwrap().clone();
        let login = variables.iter().find(|one| one["name"] == "REDIS_SENTINEL_PASSWORD").unwrap();
        let key = json!({ "name": "login", "key": "sentinel-password" });
        assert_eq!(login["valueFrom"]["secretKeyRef"], key, "{}", child.name);
    }
    let without = children(&queue, &Resolved { redis_secret: secret(&["password"]), ..resolved() }).unwrap();
    assert!(!pod(&without.worker).to_string().contains("REDIS_SENTINEL_PASSWORD"));
}

#[test]
fn a_socket_is_an_address_too() {
    let config = built("{worker: {handler: {http: {unixSocket: /run/app/app.sock}}}}").rendered.config;
    assert_eq!(config.worker.handler.http.unix_socket, "/run/app/app.sock");
    assert!(config.worker.handler.http.url.is_empty());
}
