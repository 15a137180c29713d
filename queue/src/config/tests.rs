//! What an operator may rely on: precedence, messages, masking, and every rule.
use super::keys::{Kind, env_name, get, known};
use super::*;
use serde_json::json;
use std::collections::BTreeMap;
use std::io::Write;

fn vars(pairs: &[(&str, &str)]) -> std::vec::IntoIter<(String, String)> {
    pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect::<Vec<_>>().into_iter()
}

fn from_env(pairs: &[(&str, &str)]) -> Loaded {
    Config::load(None, vars(pairs)).unwrap()
}

fn from_yaml(text: &str, env: &[(&str, &str)]) -> Result<Loaded, Problems> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    Config::load(Some(file.path()), vars(env))
}

fn yaml(text: &str) -> Config {
    from_yaml(text, &[]).unwrap().config
}

/// The lines that a wrong file is answered with.
fn problems(text: &str) -> Vec<String> {
    from_yaml(text, &[]).unwrap_err().to_string().lines().map(String::from).collect()
}

fn notes(text: &str) -> Vec<String> {
    from_yaml(text, &[]).unwrap().notes.iter().map(ToString::to_string).collect()
}

/// The whole example of the first design document.
const EXAMPLE: &str = r#"
redis:
  addr: "localhost:6379"
  username: ""
  password: ""
  db: 0
  pool_size_multiplier: 10     # PoolSize = multiplier * NumCPU
  min_idle_conns: 5
  dial_timeout: 5s
  read_timeout: 3s
  write_timeout: 3s
  max_retries: 3
worker:
  count: 16
  heartbeat_ttl: 30s
  max_retries: 3
  backoff:
    base: 500ms
    max: 10s
  priorities: ["high", "low"]
  queues:
    high: "jobqueue:high_priority"
    low:  "jobqueue:low_priority"
  processing_list_pattern: "jobqueue:worker:%s:processing"  # %s = workerID
  heartbeat_key_pattern:  "jobqueue:processing:worker:%s"   # %s = workerID
  completed_list: "jobqueue:completed"
  dead_letter_list: "jobqueue:dead_letter"
  brpoplpush_timeout: 1s  # per-priority poll timeout
producer:
  scan_dir: "./data"
  include_globs: ["**/*"]
  exclude_globs: ["**/*.tmp", "**/.DS_Store"]
  default_priority: "low"
  high_priority_exts: [".pdf", ".docx", ".xlsx", ".zip"]
  rate_limit_per_sec: 100
  rate_limit_key: "jobqueue:rate_limit:producer"
circuit_breaker:
  failure_threshold: 0.5
  window: 1m
  cooldown_period: 30s
  min_samples: 20
observability:
  metrics_port: 9090
  log_level: "info"   # debug, info, warn, error
  tracing:
    enabled: false
    endpoint: ""      # e.g. OTLP gRPC or HTTP endpoint
"#;

mod sources {
    use super::*;

    #[test]
    fn the_example_of_the_design_is_the_default() {
        let loaded = from_yaml(EXAMPLE, &[]).unwrap();
        assert_eq!(loaded.config, Config::default());
        let keys: Vec<_> = loaded.notes.iter().map(|note| note.key.as_str()).collect();
        assert_eq!(keys, ["redis.pool_size_multiplier", "redis.min_idle_conns"]);
    }

    #[test]
    fn an_empty_file_and_no_file_are_the_default() {
        for text in ["", "# nothing\n", "{}", "redis:\nworker:\n  count:\n"] {
            assert_eq!(yaml(text), Config::default(), "{text:?}");
        }
        assert_eq!(from_env(&[]), Loaded { config: Config::default(), notes: vec![] });
    }

    #[test]
    fn a_missing_file_is_noted_and_gives_the_default() {
        let dir = tempfile::tempdir().unwrap();
        let loaded = Config::load(Some(&dir.path().join("absent.yaml")), vars(&[])).unwrap();
        assert_eq!(loaded.config, Config::default());
        assert!(loaded.notes[0].to_string().ends_with("absent.yaml does not exist: defaults are used"));
    }

    #[test]
    fn what_is_not_a_readable_yaml_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let error = Config::load(Some(dir.path()), vars(&[])).unwrap_err();
        assert!(error.to_string().contains("cannot be read"), "{error}");
        for text in ["worker: [", "a: 1\na: 2", "worker: {count: 1\n", "- 1\n---\n- 2", "\u{0}"] {
            let error = from_yaml(text, &[]).unwrap_err().to_string();
            assert!(error.contains("YAML") || error.contains("section"), "{text:?}: {error}");
        }
        assert_eq!(problems("just text"), [r#"configuration = "just text": must be a section with keys"#]);
        let deep = format!("worker: {}1{}", "[".repeat(200), "]".repeat(200));
        assert!(problems(&deep)[0].contains("is not valid YAML"));
    }

    #[test]
    fn a_file_of_more_than_a_mebibyte_is_refused() {
        let large = format!("# {}\n", "x".repeat(1024 * 1024));
        assert!(problems(&large)[0].ends_with("is larger than 1 MiB"));
    }

    #[test]
    fn the_environment_wins_over_the_file() {
        let loaded = from_yaml("worker: {count: 3, max_retries: 7}", &[("WORKER_COUNT", "5")]).unwrap();
        assert_eq!((loaded.config.worker.count, loaded.config.worker.max_retries), (5, 7));
    }

    #[test]
    fn a_resolved_configuration_reads_back_as_itself() {
        for tree in [
            json!({}),
            json!({"protocol": "sidekiq", "sidekiq": {"namespace": "app"}, "worker": {"handler": {"kind": "http", "http": {"url": "http://a"}}}}),
            json!({"protocol": "async", "key_prefix": "tasks", "redis": {"password": "pw"}}),
        ] {
            let config = Config::from_value(tree).unwrap().config;
            let rendered = serde_saphyr::to_string(&config).unwrap();
            assert_eq!(yaml(&rendered), config);
        }
    }
}

mod environment {
    use super::*;

    /// A value other than the default, with whatever else it needs to be valid.
    fn sample(
        path: &str,
        kind: &Kind,
        default: &Value,
    ) -> (String, Value, Vec<(&'static str, &'static str)>) {
        let plain = |text: &str| (text.to_owned(), Value::from(text), vec![]);
        match path {
            "protocol" => plain("async"),
            "key_prefix" => plain("other"),
            "redis.url" => plain("redis://elsewhere"),
            "redis.addr" => plain("elsewhere:6380"),
            "redis.sentinel.master" => {
                ("main".into(), json!("main"), vec![("REDIS_SENTINEL_ADDRS", "s1:26379")])
            }
            "redis.sentinel.addrs" => {
                ("a:1, b:2".into(), json!(["a:1", "b:2"]), vec![("REDIS_SENTINEL_MASTER", "main")])
            }
            "redis.tls.cert_file" => ("/c".into(), json!("/c"), vec![("REDIS_TLS_KEY_FILE", "/k")]),
            "redis.tls.key_file" => ("/k".into(), json!("/k"), vec![("REDIS_TLS_CERT_FILE", "/c")]),
            "worker.handler.http.cert_file" => {
                ("/c".into(), json!("/c"), vec![("WORKER_HANDLER_HTTP_KEY_FILE", "/k")])
            }
            "worker.handler.http.key_file" => {
                ("/k".into(), json!("/k"), vec![("WORKER_HANDLER_HTTP_CERT_FILE", "/c")])
            }
            "async.handlers" => {
                let expected = json!({ "a": { "command": { "argv": ["b"], "timeout": "1m" } } });
                ("{a: {command: {argv: [b]}}}".into(), expected, vec![])
            }
            "worker.priorities" => ("low, high".into(), json!(["low", "high"]), vec![]),
            "worker.handler.kind" => {
                ("http".into(), json!("http"), vec![("WORKER_HANDLER_HTTP_UNIX_SOCKET", "/app.sock")])
            }
            "worker.handler.http.url" => plain("http://127.0.0.1:3000"),
            "worker.handler.http.path" => plain("/run"),
            "producer.default_priority" => plain("high"),
            path if path.ends_with("_pattern") => plain("jobqueue:other:%s"),
            _ => match kind {
                Kind::Integer(..) => {
                    let next = default.as_i64().unwrap() + 1;
                    (next.to_string(), next.into(), vec![])
                }
                Kind::Number(..) => ("0.25".into(), json!(0.25), vec![]),
                Kind::Bool => {
                    let other = !default.as_bool().unwrap();
                    (other.to_string(), other.into(), vec![])
                }
                Kind::Duration => {
                    let longer = default.as_str().unwrap().parse::<Duration>().unwrap();
                    plain(&Duration::from(*longer + std::time::Duration::from_secs(1)).to_string())
                }
                Kind::List => ("one, two".into(), json!(["one", "two"]), vec![]),
                Kind::Choice(all) => plain(all.iter().find(|each| *default != json!(each)).unwrap()),
                _ => plain("other"),
            },
        }
    }

    #[test]
    fn every_key_with_one_value_can_be_overridden() {
        let defaults = serde_json::to_value(Config::default()).unwrap();
        let mut count = 0;
        for key in &known().leaves {
            if matches!(key.kind, Kind::TextMap | Kind::IntegerMap(..)) {
                continue;
            }
            let default = get(&defaults, &key.path).unwrap();
            let (text, expected, others) = sample(&key.path, &key.kind, default);
            assert_ne!(*default, expected, "{}", key.path);
            let mut pairs = others;
            let variable = key.env();
            pairs.push((variable.as_str(), text.as_str()));
            let loaded =
                Config::load(None, vars(&pairs)).unwrap_or_else(|error| panic!("{variable}: {error}"));
            let tree = serde_json::to_value(loaded.config).unwrap();
            assert_eq!(get(&tree, &key.path), Some(&expected), "{variable}");
            count += 1;
        }
        assert!(count > 70, "only {count} keys were tried");
    }

    #[test]
    fn no_two_keys_have_the_same_variable() {
        let mut seen = BTreeMap::new();
        let accepted = accepted::all().iter().map(|accepted| &accepted.key);
        for key in known().leaves.iter().chain(accepted) {
            assert_eq!(seen.insert(key.env(), &key.path), None, "{}", key.path);
        }
        for key in
            known().leaves.iter().filter(|key| matches!(key.kind, Kind::TextMap | Kind::IntegerMap(..)))
        {
            let inside = format!("{}_", key.env());
            assert!(!seen.keys().any(|name| name.starts_with(&inside)), "{inside}");
        }
    }

    #[test]
    fn a_variable_changes_the_key_of_one_queue() {
        let queues = from_env(&[("WORKER_QUEUES_HIGH", "jobqueue:urgent")]).config.worker.queues;
        assert_eq!(queues["high"], "jobqueue:urgent");
        assert_eq!(queues["low"], "jobqueue:low_priority");
    }

    #[test]
    fn the_variable_of_an_entry_finds_names_with_dashes() {
        let env = [("WORKER_PRIORITIES", "very-high,low"), ("WORKER_QUEUES_VERY_HIGH", "k")];
        assert_eq!(from_env(&env).config.worker.queues["very-high"], "k");
    }

    #[test]
    fn the_variable_of_an_entry_means_the_name_that_is_spelled_like_it() {
        let queues = [("WORKER_QUEUES_A_B", "k"), ("WORKER_PRIORITIES", "a-b,a_b")];
        let error = Config::load(None, vars(&queues)).unwrap_err().to_string();
        assert_eq!(
            error,
            r#"worker.priorities = "a-b": has no entry in worker.queues.a-b (set by WORKER_PRIORITIES)"#
        );
    }

    #[test]
    fn the_variable_of_a_queue_that_does_not_exist_is_noted_and_ignored() {
        let loaded = from_env(&[("WORKER_QUEUES_SERVICE_HOST", "10.0.0.1")]);
        assert_eq!(loaded.config, Config::default());
        assert_eq!(
            loaded.notes[0].to_string(),
            "WORKER_QUEUES_SERVICE_HOST is ignored: service_host is not in worker.priorities"
        );
    }

    #[test]
    fn weights_can_come_from_variables() {
        let env = [
            ("PROTOCOL", "sidekiq"),
            ("WORKER_QUEUES", "critical,default"),
            ("WORKER_HANDLER_KIND", "simulate"),
        ];
        let weights = [("WORKER_WEIGHTS_CRITICAL", "5"), ("WORKER_WEIGHTS_DEFAULT", "1")];
        let config = from_env(&[&env[..], &weights].concat()).config;
        assert_eq!(config.worker.weights, BTreeMap::from([("critical".into(), 5), ("default".into(), 1)]));
    }

    #[test]
    fn service_links_are_ignored_with_a_note() {
        let loaded = from_env(&[
            ("API_PORT", "tcp://10.0.0.1:80"),
            ("WORKER_QUEUES_PORT", "tcp://10.0.0.1:80"),
            ("REDIS_PORT", "tcp://10.0.0.1:6379"),
        ]);
        assert_eq!(loaded.config, Config::default());
        let keys: Vec<_> = loaded.notes.iter().map(|note| note.key.as_str()).collect();
        assert_eq!(keys, ["API_PORT", "WORKER_QUEUES_PORT"]);
    }

    #[test]
    fn foreign_and_empty_variables_are_ignored() {
        let loaded = from_env(&[("PATH", "/bin"), ("WORKER_CUONT", "3"), ("WORKER_COUNT", " ")]);
        assert_eq!(loaded, Loaded { config: Config::default(), notes: vec![] });
    }

    #[test]
    fn a_wrong_variable_is_named() {
        let error = Config::load(None, vars(&[("WORKER_COUNT", "many"), ("API_PORT", "70000")])).unwrap_err();
        let lines: Vec<_> = error.0.iter().map(ToString::to_string).collect();
        assert_eq!(
            lines,
            [
                r#"api.port = "70000": must be at most 65535 (set by API_PORT)"#,
                r#"worker.count = "many": must be a whole number (set by WORKER_COUNT)"#,
            ]
        );
    }

    #[test]
    fn the_simulated_duration_of_the_async_worker_is_understood() {
        let base = |env: &[_]| from_env(env).config.worker.handler.simulate.base;
        assert_eq!(base(&[("JOB_SIMULATION_DURATION", "2s")]), Duration::from_secs(2));
        let both = [("JOB_SIMULATION_DURATION", "2s"), ("WORKER_HANDLER_SIMULATE_BASE", "3s")];
        assert_eq!(base(&both), Duration::from_secs(3));
    }

    #[test]
    fn variables_are_upper_snake_case() {
        assert_eq!(env_name("worker.backoff.base"), "WORKER_BACKOFF_BASE");
    }
}

mod resolving {
    use super::*;

    #[test]
    fn the_prefix_names_every_default_key_but_no_configured_one() {
        let config = yaml("key_prefix: acme\nworker: {completed_list: done}");
        assert_eq!(config.prefix(), "acme");
        assert_eq!(config.worker.completed_list, "done");
        assert_eq!(config.worker.queues["high"], "acme:high_priority");
        assert_eq!(config.producer.rate_limit_key, "acme:rate_limit:producer");
        assert_eq!(config.worker.processing_list("host-1-2"), "acme:worker:host-1-2:processing");
        assert_eq!(config.worker.heartbeat_key("host-1-2"), "acme:processing:worker:host-1-2");
        assert_eq!(config.worker.delayed_set("high"), "acme:delayed:high");
        let rest = serde_json::to_string(&config).unwrap();
        assert!(!rest.contains("jobqueue:"), "{rest}");
    }

    #[test]
    fn an_empty_key_name_means_the_default_one() {
        let config = yaml("key_prefix: ''\nworker: {completed_list: ''}");
        assert_eq!(config, Config::default());
    }

    #[test]
    fn async_has_its_own_prefix_and_queue() {
        let config = yaml("protocol: async");
        assert_eq!(
            (config.prefix(), config.worker.priorities.as_slice()),
            ("jobs", &["default".to_owned()][..])
        );
        assert_eq!(config.worker.queues["default"], "jobs:queue");
        assert_eq!(config.producer.default_priority, "default");
        assert_eq!(config.worker.dead_letter_max, 10_000);
    }

    #[test]
    fn a_handler_that_is_a_word_has_the_settings_of_all() {
        let text = "protocol: async\nworker: {handler: {http: {url: 'http://a:1', path: /x}}}\n\
            async: {handlers: {email: http, resize: {command: {argv: [resize, -q], timeout: 5s}}, default: simulate}}";
        let env = [("JOB_SIMULATION_DURATION", "3s")];
        let handlers = from_yaml(text, &env).unwrap().config.async_jobs;
        let shown = serde_json::to_value(&handlers).unwrap()["handlers"].clone();
        assert_eq!(
            (&shown["email"]["http"]["url"], &shown["email"]["http"]["path"]),
            (&"http://a:1".into(), &"/x".into())
        );
        assert_eq!(
            shown["resize"]["command"],
            serde_json::json!({ "argv": ["resize", "-q"], "timeout": "5s" })
        );
        assert_eq!(shown["default"]["simulate"]["base"], "3s");
        assert!(handlers.runs("anything"));
    }

    #[test]
    fn handlers_by_type_can_be_a_variable_and_know_which_types_they_run() {
        let env = [("ASYNC_HANDLERS", r#"{"email": {"http": {"url": "http://user:secret@a"}}}"#)];
        let config = from_yaml("protocol: async", &env).unwrap().config;
        assert!(config.async_jobs.runs("email") && !config.async_jobs.runs("sms"));
        assert!(Config::default().async_jobs.runs("anything"), "the one handler runs all types");
        assert!(!config.to_yaml_masked().contains("secret"), "{}", config.to_yaml_masked());
        let wrong = from_yaml("", &[("ASYNC_HANDLERS", "{email: pigeon}")]).unwrap_err().to_string();
        assert_eq!(
            wrong,
            "async.handlers.email = \"pigeon\": must be simulate, http or command, or a section of one of them (set by ASYNC_HANDLERS)"
        );
    }

    #[test]
    fn a_handler_whose_kind_is_not_written_is_the_one_that_has_somewhere_to_run_jobs() {
        let kind = |text: &str| yaml(text).worker.handler.kind;
        for protocol in ["files", "async", "sidekiq"] {
            for (handler, expected) in [
                ("http: {url: 'http://a'}", HandlerKind::Http),
                ("http: {unix_socket: /a}", HandlerKind::Http),
                ("command: {argv: [a]}", HandlerKind::Command),
                ("kind: simulate, http: {url: 'http://a'}, command: {argv: [a]}", HandlerKind::Simulate),
            ] {
                let text = format!("protocol: {protocol}\nworker: {{handler: {{{handler}}}}}");
                assert_eq!(kind(&text), expected, "{text}");
            }
        }
        assert_eq!(kind("worker: {handler: {http: {timeout: 5s}}}"), HandlerKind::Simulate);
        let both = "worker: {handler: {http: {url: 'http://a'}, command: {argv: [a]}}}";
        yaml(&format!("protocol: async\n{both}\nasync: {{handlers: {{a: http, default: command}}}}"));
    }

    #[test]
    fn who_runs_no_jobs_need_not_say_what_does() {
        let env = [("PROTOCOL", "sidekiq")];
        assert!(Config::load_to_look(None, vars(&env)).is_ok());
        assert!(Config::load(None, vars(&env)).is_err());
    }

    #[test]
    fn sidekiq_queues_keep_sidekiqs_names() {
        let config = yaml(
            "protocol: sidekiq\nworker: {priorities: [critical, default], handler: {kind: simulate}}\nsidekiq: {namespace: app}",
        );
        assert_eq!(config.worker.queues["critical"], "app:queue:critical");
        assert_eq!(config.worker.max_retries, 25);
        assert_eq!(config.worker.completed_list, "jobqueue:sidekiq:completed");
        assert_eq!(
            problems("protocol: sidekiq\nworker: {queues: {default: elsewhere}, handler: {kind: simulate}}"),
            [r#"worker.queues.default = "elsewhere": must be queue:default: Sidekiq derives its keys"#]
        );
    }

    #[test]
    fn the_default_priority_follows_the_priorities() {
        let config = yaml("worker: {priorities: [a, b], queues: {a: x, b: y}}");
        assert_eq!(config.producer.default_priority, "b");
    }
}

mod accepted_keys {
    use super::*;

    const OLDER: &str = "
protocol: sidekiq
redis: {url: 'redis://redis:6379', password: '', db: 0}
sidecar: {url: 'http://127.0.0.1:3000', timeout: 90s}
worker: {concurrency: 25, queues: [critical, default], poll_interval: 1s}
retry: {max_attempts: 25, base_delay: 15s, max_delay: 24h}
";

    #[test]
    fn the_configuration_of_the_sidekiq_worker_is_understood() {
        let config = yaml(OLDER);
        let http = &config.worker.handler.http;
        assert_eq!(config.worker.handler.kind, HandlerKind::Http);
        assert_eq!((http.url.expose(), http.timeout), ("http://127.0.0.1:3000", Duration::from_secs(90)));
        assert_eq!(config.worker.count, 25);
        assert_eq!(config.worker.priorities, ["critical", "default"]);
        assert_eq!(config.sidekiq.retry, SidekiqRetry::Exponential);
        assert_eq!(config.worker.max_retries, 24);
    }

    #[test]
    fn each_accepted_key_is_noted() {
        let notes = notes(OLDER);
        for note in [
            "sidecar.url is read as worker.handler.http.url",
            "worker.concurrency is read as worker.count",
            "worker.poll_interval has no effect: nothing polls; an idle worker wakes with the next push",
            "worker.queues is a list and is read as worker.priorities",
            "retry.max_attempts is read as worker.max_retries",
        ] {
            assert!(notes.iter().any(|each| each == note), "{note} is not in {notes:#?}");
        }
    }

    #[test]
    fn our_own_key_wins_over_an_accepted_one() {
        let text = "worker: {count: 3, concurrency: 9}";
        assert_eq!(yaml(text).worker.count, 3);
        assert_eq!(notes(text), ["worker.concurrency is ignored: worker.count is set"]);
    }

    #[test]
    fn a_violated_rule_names_the_key_that_was_written() {
        assert_eq!(
            problems("retry: {base_delay: 15s}"),
            ["worker.backoff.base = 15s: must be at most worker.backoff.max, 10s (set by retry.base_delay)"]
        );
        let error = Config::load(None, vars(&[("WORKER_LANES", "17")])).unwrap_err().to_string();
        assert_eq!(error, "worker.lanes = 17: must be at most worker.count, 16 (set by WORKER_LANES)");
    }

    #[test]
    fn accepted_keys_are_checked_and_have_variables() {
        assert_eq!(problems("sidecar: {timeout: soon}").len(), 1);
        assert_eq!(problems("sidecar: {tiemout: 1s}"), [r#"sidecar.tiemout = "1s": unknown key"#]);
        assert_eq!(from_env(&[("WORKER_CONCURRENCY", "9")]).config.worker.count, 9);
    }
}

mod messages {
    use super::*;

    #[test]
    fn all_problems_are_reported_at_once() {
        let text = "
worker: {count: 0, cuont: 3, heartbeat_ttl: abc, brpoplpush_timeout: 10ms, lanes: 20}
wroker: {count: 1}
worker.count: 4
observability: {log_level: loud}
circuit_breaker: {failure_threshold: 1.5, min_samples: '20'}
api: 8080
";
        assert_eq!(
            problems(text),
            [
                "worker.count = 0: must be at least 1",
                "worker.cuont = 3: unknown key, did you mean worker.count?",
                r#"worker.heartbeat_ttl = "abc": must be a duration such as 500ms, 30s or 1m"#,
                "wroker = {...}: unknown key, did you mean worker?",
                "worker.count = 4: unknown key: write each part before a dot as a section",
                r#"observability.log_level = "loud": must be debug, info, warn or error"#,
                "circuit_breaker.failure_threshold = 1.5: must be a number above 0 and at most 1",
                r#"circuit_breaker.min_samples = "20": must be a whole number"#,
                "api = 8080: must be a section with keys",
                "worker.brpoplpush_timeout = 10ms: must be at least 50ms",
            ]
        );
    }

    #[test]
    fn wrong_types_are_named() {
        for (text, line) in [
            ("redis: {cluster: yes please}", r#"redis.cluster = "yes please": must be true or false"#),
            ("redis: {username: 5}", "redis.username = 5: must be text; put it in quotes"),
            ("worker: {priorities: high}", r#"worker.priorities = "high": must be a list of texts"#),
            ("worker: {queues: {high: 1}}", "worker.queues = {...}: must map names to texts"),
            ("worker: {count: 1.5}", "worker.count = 1.5: must be a whole number"),
            (
                "circuit_breaker: {failure_threshold: .nan}",
                r#"circuit_breaker.failure_threshold = ".nan": must be a number above 0 and at most 1"#,
            ),
            (
                "worker: {heartbeat_ttl: 30}",
                "worker.heartbeat_ttl = 30: must be a duration such as 500ms, 30s or 1m",
            ),
        ] {
            assert_eq!(problems(text), [line]);
        }
    }

    #[test]
    fn a_problem_is_one_line() {
        assert_eq!(problems("\"a\\nb\": \"c\\nd\"").len(), 1);
    }

    #[test]
    fn zero_is_a_duration_without_a_unit() {
        assert_eq!(yaml("worker: {backoff: {base: 0}}").worker.backoff.base, Duration::ZERO);
    }
}

mod secrets {
    use super::*;

    const TEXT: &str = "
redis: {url: 'redis://app:hunter2@host', password: hunter2, sentinel: {password: hunter2}}
observability: {tracing: {endpoint: 'http://me:hunter2@collector'}}
worker: {handler: {kind: http, command: {argv: [run, 'http://me:hunter2@host']}, http: {url: 'http://:hunter2@app'}}}
";

    #[test]
    fn no_view_of_a_configuration_shows_a_secret() {
        let config = yaml(TEXT);
        assert_eq!(config.redis.password.expose(), "hunter2");
        assert_eq!(config.redis.url.to_string(), "redis://app:***@host");
        let debug = format!("{config:?}");
        for view in [debug, config.masked().to_string(), config.to_yaml_masked()] {
            assert!(!view.contains("hunter2") && view.contains("***"), "{view}");
        }
    }

    #[test]
    fn the_masked_document_reads_back() {
        let text = Config::default().to_yaml_masked();
        assert_eq!(yaml(&text), Config::default(), "{text}");
        for line in ["\n  heartbeat_ttl: 30s\n", "\n  count: 16\n", "\n  failure_threshold: 0.5\n"] {
            assert!(text.contains(line), "{text}");
        }
    }

    #[test]
    fn an_unset_secret_is_not_masked() {
        assert_eq!(Config::default().masked()["redis"]["password"], "");
    }

    #[test]
    fn no_problem_shows_a_secret() {
        for text in [
            "redis: {password: 12345}",
            "redis: {password: [12345]}",
            "redis: {passwrod: '12345'}",
            "redis: {passwrod: 12345}",
            "redis: {my_secret: '12345'}",
            "redis: {my_secrets: ['12345']}",
            "redis: {password: {a: '12345'}}",
            "redis: {url: 'http://:12345@host'}",
            "redis: {uri: 'redis://:12345@host'}",
            "redis: {uri: ['redis://:12345@host']}",
            "redis: {addr: 'redis://:12345@host'}",
            "redis.password: '12345'",
            "redis: 'redis://:12345@host'",
            "redis: {password: '12345'",
        ] {
            let error = from_yaml(text, &[]).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("12345"), "{text}: {error}");
        }
        let error = Config::load(None, vars(&[("REDIS_URL", "http://:12345@host")])).unwrap_err();
        assert!(!error.to_string().contains("12345"), "{error}");
    }
}

/// One test a rule: the wrong file and the line it is answered with.
macro_rules! rules {
    ($($name:ident: $text:expr => $line:expr;)*) => {
        mod rule {
            $(#[test]
            fn $name() {
                assert_eq!(super::problems($text), [$line]);
            })*
        }
    };
}

rules! {
    worker_count_must_be_at_least_one:
        "worker: {count: 0}" => "worker.count = 0: must be at least 1";
    worker_count_must_not_be_absurd:
        "worker: {count: 100001}" => "worker.count = 100001: must be at most 100000";
    there_must_be_a_priority:
        "worker: {priorities: []}" =>
        "worker.priorities = []: must name at least one queue";
    every_priority_needs_an_entry_in_queues:
        "worker: {priorities: [high, bulk, low]}" =>
        r#"worker.priorities = "bulk": has no entry in worker.queues.bulk"#;
    configured_queues_replace_the_defaults:
        "worker: {queues: {high: 'jobqueue:h'}}" =>
        r#"worker.priorities = "low": has no entry in worker.queues.low"#;
    a_priority_must_not_be_named_twice:
        "worker: {priorities: [high, low, high]}" => r#"worker.priorities = "high": is named twice"#;
    two_queues_must_not_share_a_key:
        "worker: {queues: {high: k, low: k}}" =>
        r#"worker.queues.low = "k": is the key of worker.queues.high too"#;
    a_queue_must_not_be_the_dead_letter_list:
        "worker: {dead_letter_list: 'jobqueue:low_priority'}" =>
        r#"worker.dead_letter_list = "jobqueue:low_priority": is the key of worker.queues.low too"#;
    heartbeat_ttl_must_be_at_least_five_seconds:
        "worker: {heartbeat_ttl: 4999ms}" => "worker.heartbeat_ttl = 4s999ms: must be at least 5s";
    brpoplpush_timeout_must_be_at_most_half_of_heartbeat_ttl:
        "worker: {heartbeat_ttl: 10s, brpoplpush_timeout: 5001ms}" =>
        "worker.brpoplpush_timeout = 5s1ms: must be at most half of worker.heartbeat_ttl, 5s";
    brpoplpush_timeout_must_be_at_least_fifty_milliseconds:
        "worker: {brpoplpush_timeout: 0s}" => "worker.brpoplpush_timeout = 0s: must be at least 50ms";
    a_long_poll_must_end:
        "api: {max_wait: 11m}" => "api.max_wait = 11m: must be at most 10m";
    an_api_that_drains_must_have_time_for_requests:
        "{api: {drain_delay: 25s}, worker: {drain_timeout: 25s}}" =>
        "api.drain_delay = 25s: must be less than worker.drain_timeout, 25s";
    a_body_must_be_readable_by_workers:
        "api: {depth_limit: 100}" => "api.depth_limit = 100: must be at most 99";
    redis_must_have_some_time_to_answer:
        "api: {redis_timeout: 0s}" => "api.redis_timeout = 0s: must be at least 1ms";
    rate_limit_must_not_be_negative:
        "producer: {rate_limit_per_sec: -1}" => "producer.rate_limit_per_sec = -1: must be at least 0";
    a_pattern_must_contain_its_place_once:
        "worker: {heartbeat_key_pattern: 'a:%s:%s'}" =>
        r#"worker.heartbeat_key_pattern = "a:%s:%s": must contain %s exactly once"#;
    a_pattern_must_contain_its_place:
        "worker: {processing_list_pattern: 'a:b'}" =>
        r#"worker.processing_list_pattern = "a:b": must contain %s exactly once"#;
    failure_threshold_must_be_above_zero:
        "circuit_breaker: {failure_threshold: 0}" =>
        "circuit_breaker.failure_threshold = 0: must be a number above 0 and at most 1";
    the_breaker_needs_a_window:
        "circuit_breaker: {window: 0s}" => "circuit_breaker.window = 0s: must be at least 1ms";
    the_breaker_needs_a_cooldown:
        "circuit_breaker: {cooldown_period: 0s}" => "circuit_breaker.cooldown_period = 0s: must be at least 1ms";
    the_breaker_needs_a_sample:
        "circuit_breaker: {min_samples: 0}" => "circuit_breaker.min_samples = 0: must be at least 1";
    there_are_no_more_lanes_than_slots:
        "worker: {count: 4, lanes: 5}" => "worker.lanes = 5: must be at most worker.count, 4";
    every_shard_needs_a_lane:
        "worker: {lanes: 2, shards: 3}" =>
        "worker.lanes = 2: must be 0 or at least worker.shards, 3: a lane serves one shard";
    every_shard_needs_a_slot:
        "worker: {count: 4, shards: 5}" =>
        "worker.shards = 5: must be at most worker.count, 4: each shard needs a slot to be served; lower worker.shards \
         or raise worker.count";
    there_is_at_least_one_shard:
        "worker: {shards: 0}" => "worker.shards = 0: must be at least 1";
    there_are_at_most_1024_shards:
        "worker: {shards: 1025}" => "worker.shards = 1025: must be at most 1024";
    backoff_base_must_not_exceed_its_maximum:
        "worker: {backoff: {base: 11s}}" => "worker.backoff.base = 11s: must be at most worker.backoff.max, 10s";
    max_retries_must_not_be_negative:
        "worker: {max_retries: -1}" => "worker.max_retries = -1: must be at least 0";
    max_interruptions_must_be_at_least_one:
        "worker: {max_interruptions: 0}" => "worker.max_interruptions = 0: must be at least 1";
    completed_max_must_be_at_least_minus_one:
        "worker: {completed_max: -2}" => "worker.completed_max = -2: must be at least -1";
    dead_letter_max_must_be_at_least_minus_one:
        "worker: {dead_letter_max: -2}" => "worker.dead_letter_max = -2: must be at least -1";
    payloads_need_a_size:
        "worker: {max_payload_bytes: 0}" => "worker.max_payload_bytes = 0: must be at least 1";
    payloads_must_fit_redis:
        "worker: {max_payload_bytes: 536870913}" =>
        "worker.max_payload_bytes = 536870913: must be at most 536870912";
    a_port_must_fit_its_type:
        "observability: {metrics_port: 65536}" => "observability.metrics_port = 65536: must be at most 65535";
    handlers_by_type_are_a_map:
        "async: {handlers: [http]}" => r#"async.handlers = ["http"]: must map types of jobs to handlers"#;
    a_handler_by_type_is_one_handler:
        "async: {handlers: {email: {simulate: {}, http: {}}}}" =>
        "async.handlers.email = {...}: must be simulate, http or command, or a section of one of them";
    a_handler_by_type_has_the_keys_of_its_kind:
        "async: {handlers: {email: {http: {url: 'http://a', argv: [x]}}}}" =>
        r#"async.handlers.email.http.argv = ["x"]: unknown key"#;
    a_value_of_a_handler_by_type_has_its_type:
        "async: {handlers: {email: {http: {url: 'http://a', timeout: soon}}}}" =>
        r#"async.handlers.email.http.timeout = "soon": must be a duration such as 500ms, 30s or 1m"#;
    an_http_handler_by_type_needs_an_address:
        "async: {handlers: {email: http}}" => "async.handlers.email = {...}: http needs url or unix_socket";
    a_command_by_type_needs_a_program:
        "async: {handlers: {email: {command: {argv: []}}}}" =>
        "async.handlers.email = {...}: command needs argv";
    sidekiqs_jobs_are_not_done_without_a_handler_that_is_said:
        "protocol: sidekiq\nworker: {handler: {simulate: {base: 1s}}}" =>
        "worker.handler.kind = \"\": must be set with protocol sidekiq, or jobs would be done without being run: http \
         with worker.handler.http.url, command, or simulate to try things out";
    of_two_handlers_one_is_said:
        "worker: {handler: {http: {unix_socket: /a}, command: {argv: [b]}}}" =>
        "worker.handler.kind = \"\": must be set when both worker.handler.http and worker.handler.command are";
    a_handler_that_is_none_is_one_problem:
        "protocol: sidekiq\nworker: {handler: {kind: pigeon}}" =>
        r#"worker.handler.kind = "pigeon": must be simulate, http or command"#;
    the_http_handler_needs_an_address:
        "worker: {handler: {kind: http}}" =>
        r#"worker.handler.kind = "http": needs worker.handler.http.url or worker.handler.http.unix_socket"#;
    the_http_handler_has_one_address:
        "worker: {handler: {http: {url: 'http://a', unix_socket: /a}}}" =>
        r#"worker.handler.http.unix_socket = "/a": must be empty when worker.handler.http.url is set"#;
    the_command_handler_needs_a_program:
        "worker: {handler: {kind: command}}" =>
        r#"worker.handler.kind = "command": needs worker.handler.command.argv"#;
    requests_are_authenticated_one_way:
        "worker: {handler: {http: {token_file: /t, hmac_key_file: /h}}}" =>
        r#"worker.handler.http.hmac_key_file = "/h": must be empty when worker.handler.http.token_file is set"#;
    default_priority_must_be_a_priority:
        "producer: {default_priority: medium}" =>
        r#"producer.default_priority = "medium": is not in worker.priorities"#;
    redis_url_must_have_a_scheme_of_redis:
        "redis: {url: 'http://localhost'}" =>
        r#"redis.url = "http://localhost": must start with redis://, rediss://, unix:// or redis+unix://"#;
    redis_addr_must_have_a_port:
        "redis: {addr: localhost}" =>
        r#"redis.addr = "localhost": must be a host and a port such as localhost:6379"#;
    each_node_of_a_cluster_must_have_a_port:
        "redis: {addr: 'a:7000, b', cluster: true}" =>
        r#"redis.addr = "b": must be a host and a port such as localhost:6379"#;
    only_a_cluster_has_several_nodes:
        "redis: {addr: 'a:7000,b:7000'}" =>
        r#"redis.addr = "a:7000,b:7000": must be a host and a port such as localhost:6379"#;
    redis_db_must_not_be_negative:
        "redis: {db: -1}" => "redis.db = -1: must be at least 0";
    redis_cluster_has_one_database:
        "redis: {db: 1, cluster: true}" => "redis.db = 1: must be 0 with Redis Cluster";
    redis_cluster_has_one_database_in_its_url_too:
        "redis: {url: 'redis://node:7000/1', cluster: true}" =>
        r#"redis.url = "redis://node:7000/1": must not name a database with Redis Cluster"#;
    sentinel_finds_the_address_instead_of_a_url:
        "redis: {url: 'redis://node', sentinel: {master: main, addrs: ['a:1']}}" =>
        r#"redis.url = "redis://node": must be empty when redis.sentinel.master is set"#;
    redis_has_one_source_of_the_password:
        "redis: {password: a, password_file: /b}" =>
        r#"redis.password_file = "/b": must be empty when redis.password is set"#;
    a_certificate_needs_its_key:
        "redis: {tls: {cert_file: /c}}" =>
        r#"redis.tls.cert_file = "/c": redis.tls.cert_file and redis.tls.key_file are set together or not at all"#;
    sentinel_needs_addresses:
        "redis: {sentinel: {master: main}}" => r#"redis.sentinel.master = "main": needs redis.sentinel.addrs"#;
    sentinel_and_cluster_exclude_each_other:
        "redis: {cluster: true, sentinel: {master: main, addrs: ['a:1']}}" =>
        "redis.cluster = true: cannot be combined with redis.sentinel.master: a cluster finds its own masters";
    sidekiq_cannot_use_a_cluster:
        "protocol: sidekiq\nredis: {cluster: true}\nworker: {handler: {kind: simulate}}" =>
        "redis.cluster = true: cannot be combined with protocol sidekiq: Sidekiq's own client cannot use Redis Cluster";
    sidekiq_cannot_be_sharded:
        "protocol: sidekiq\nworker: {shards: 2, handler: {kind: simulate}}" =>
        "worker.shards = 2: must be 1 with protocol sidekiq: Sidekiq's own client pushes to one key a queue";
    configured_keys_must_follow_the_hash_tag:
        "key_prefix: acme\nredis: {cluster: true}\nworker: {completed_list: 'done'}" =>
        "worker.completed_list = \"done\": must start with acme: and contain no braces; with shards or Redis \
         Cluster, shard n keeps it under the hash tag {acme:n}";
    a_prefix_must_not_break_hash_tags:
        "key_prefix: '{acme}'" =>
        "key_prefix = \"{acme}\": must not contain spaces, {, } or %, nor end with a colon";
    weights_are_given_to_all_queues_or_to_none:
        "worker: {weights: {high: 5}}" =>
        "worker.weights = {...}: needs a weight for low: weights are given to all queues or to none";
    weights_belong_to_priorities:
        "worker: {weights: {high: 5, low: 1, bulk: 1}}" =>
        "worker.weights.bulk = 1: is not in worker.priorities";
}

#[test]
fn limits_themselves_are_allowed() {
    yaml("worker: {heartbeat_ttl: 5s, brpoplpush_timeout: 2500ms, count: 1, lanes: 1, completed_max: 0}");
    yaml("circuit_breaker: {failure_threshold: 1, min_samples: 1}\nproducer: {rate_limit_per_sec: 0}");
    yaml("observability: {metrics_port: 0}\nworker: {backoff: {base: 10s, max: 10s}, max_retries: 0}");
    yaml("redis: {cluster: true, addr: '[::1]:7000'}\nworker: {shards: 4}");
}

#[test]
fn a_queue_that_nothing_serves_is_noted() {
    let text = "worker: {queues: {high: a, low: b, bulk: c}}";
    assert_eq!(notes(text), ["worker.queues.bulk is not in worker.priorities: no worker serves it"]);
}

#[test]
fn every_key_says_what_it_does() {
    for key in &known().leaves {
        assert!(!key.meaning.is_empty(), "{}", key.path);
    }
}

#[test]
fn configuration_reference_is_up_to_date() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/configuration.md");
    let text = reference_markdown();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::create_dir_all(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs")).unwrap();
        std::fs::write(path, &text).unwrap();
    }
    let committed = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        committed == text,
        "docs/configuration.md is stale: run UPDATE=1 cargo test configuration_reference"
    );
}
