//! The rules that a type and its bounds cannot say: between keys, and about the text of one.
use super::load::default_queue;
use super::problem::{Note, Problem};
use super::secret::mask_url;
use super::{Config, Duration, HandlerKind, Http, Protocol, TypeHandler};
use crate::fetch::MOST_WEIGHTED;
use std::collections::HashSet;
use std::fmt;

/// Checks every rule. A rule about a key that is already a problem is left out: its value was replaced by
/// the default, so whatever it said would be about something that nobody wrote.
pub(super) fn rules(config: &Config, problems: &mut Vec<Problem>, notes: &mut Vec<Note>) {
    let broken = problems.iter().map(|problem| problem.key.clone()).collect();
    let mut rules = Rules { broken, problems };
    queues(config, &mut rules, notes);
    key_names(config, &mut rules);
    times(config, &mut rules);
    lanes(config, &mut rules);
    handler(config, &mut rules);
    globs(config, &mut rules);
    redis(config, &mut rules);
}

struct Rules<'a> {
    broken: HashSet<String>,
    problems: &'a mut Vec<Problem>,
}

impl Rules<'_> {
    /// Reports the first of `keys` unless `holds`; the others are what the rule compares it with.
    fn require(&mut self, holds: bool, keys: &[&str], value: impl fmt::Display, rule: impl Into<String>) {
        let within = |broken: &String, key: &str| {
            key.strip_prefix(broken.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        if holds || keys.iter().any(|key| self.broken.iter().any(|broken| within(broken, key))) {
            return;
        }
        let key = keys.first().copied().unwrap_or_default().to_owned();
        self.problems.push(Problem { key, value: value.to_string(), rule: rule.into() });
    }
}

fn globs(config: &Config, rules: &mut Rules) {
    let producer = &config.producer;
    let included = producer.include_globs.iter().map(|glob| ("producer.include_globs", glob));
    let excluded = producer.exclude_globs.iter().map(|glob| ("producer.exclude_globs", glob));
    let failing = ("worker.handler.simulate.fail_glob", &config.worker.handler.simulate.fail_glob);
    for (key, glob) in included.chain(excluded).chain([failing]) {
        if let Err(error) = globset::Glob::new(glob) {
            rules.require(false, &[key], quoted(glob), format!("must be a glob: {}", error.kind()));
        }
    }
}

/// Text as it would be written, without the password of a URL.
fn quoted(text: &str) -> String {
    format!("{:?}", mask_url(text))
}

fn queues(config: &Config, rules: &mut Rules, notes: &mut Vec<Note>) {
    let worker = &config.worker;
    let key = "worker.priorities";
    rules.require(!worker.priorities.is_empty(), &[key], "[]", "must name at least one queue");
    let mut seen = HashSet::new();
    for name in &worker.priorities {
        let clean =
            !name.is_empty() && !name.contains(|c: char| c.is_whitespace() || c.is_control() || c == ',');
        rules.require(clean, &[key], quoted(name), "a name must not be empty or contain spaces or commas");
        rules.require(seen.insert(name), &[key], quoted(name), "is named twice");
        let known = worker.queues.contains_key(name);
        rules.require(
            known,
            &[key, "worker.queues"],
            quoted(name),
            format!("has no entry in worker.queues.{name}"),
        );
    }
    for (name, queue) in &worker.queues {
        if !worker.priorities.contains(name) {
            notes.push(Note::new(
                format!("worker.queues.{name}"),
                "is not in worker.priorities: no worker serves it",
            ));
        }
        if config.protocol == Protocol::Sidekiq {
            let derived = default_queue(Protocol::Sidekiq, "", &config.sidekiq.namespace, name);
            let entry = format!("worker.queues.{name}");
            let rule = format!("must be {}: Sidekiq derives its keys", derived.clone().unwrap_or_default());
            rules.require(
                derived.as_ref() == Some(queue),
                &[&entry, "sidekiq.namespace"],
                quoted(queue),
                rule,
            );
        }
    }
    for (name, weight) in &worker.weights {
        let entry = format!("worker.weights.{name}");
        rules.require(
            worker.priorities.contains(name),
            &[&entry, key],
            weight,
            "is not in worker.priorities",
        );
        rules.require(*weight >= 1, &[&entry], weight, "must be at least 1");
    }
    for name in worker.priorities.iter().filter(|_| !worker.weights.is_empty()) {
        let rule = format!("needs a weight for {name}: weights are given to all queues or to none");
        rules.require(worker.weights.contains_key(name), &["worker.weights", key], "{...}", rule);
    }
    let drawn = worker.weights.is_empty() || worker.priorities.len() <= MOST_WEIGHTED;
    let rule = format!("weights are drawn among at most {MOST_WEIGHTED} queues");
    rules.require(drawn, &[key, "worker.weights"], worker.priorities.len(), rule);
    let fallback = &config.producer.default_priority;
    let listed = worker.priorities.is_empty() || worker.priorities.contains(fallback);
    rules.require(
        listed,
        &["producer.default_priority", key],
        quoted(fallback),
        "is not in worker.priorities",
    );
}

fn key_names(config: &Config, rules: &mut Rules) {
    let worker = &config.worker;
    let prefix = config.prefix();
    let clean = !prefix.contains(|c: char| c.is_whitespace() || c.is_control() || "{}%".contains(c));
    rules.require(
        clean && !prefix.ends_with(':'),
        &["key_prefix"],
        quoted(prefix),
        "must not contain spaces, {, } or %, nor end with a colon",
    );
    let patterns = [
        ("worker.processing_list_pattern", &worker.processing_list_pattern),
        ("worker.heartbeat_key_pattern", &worker.heartbeat_key_pattern),
        ("worker.delayed_set_pattern", &worker.delayed_set_pattern),
    ];
    for (key, pattern) in patterns {
        let once = pattern.matches("%s").count() == 1;
        rules.require(once, &[key], quoted(pattern), "must contain %s exactly once");
    }
    let entries: Vec<(String, &String)> =
        worker.queues.iter().map(|(name, queue)| (format!("worker.queues.{name}"), queue)).collect();
    let mut names: Vec<(&str, &String)> = entries.iter().map(|(key, queue)| (key.as_str(), *queue)).collect();
    names.extend(patterns);
    names.push(("worker.completed_list", &worker.completed_list));
    names.push(("worker.dead_letter_list", &worker.dead_letter_list));
    names.push(("producer.rate_limit_key", &config.producer.rate_limit_key));
    for (index, (key, name)) in names.iter().enumerate() {
        rules.require(!name.is_empty(), &[key], "\"\"", "must not be empty");
        for (other, same) in &names[..index] {
            rules.require(name != same, &[key, other], quoted(name), format!("is the key of {other} too"));
        }
    }
    if worker.shards > 1 || config.redis.cluster {
        for (key, name) in names {
            let inside = name.starts_with(&format!("{prefix}:")) && !name.contains(['{', '}']);
            let rule = format!(
                "must start with {prefix}: and contain no braces; with shards or Redis Cluster, shard n keeps it \
                 under the hash tag {{{prefix}:n}}"
            );
            // Sidekiq's own names cannot follow; that is one problem of its own, below.
            rules.require(
                inside || config.protocol == Protocol::Sidekiq,
                &[key, "key_prefix"],
                quoted(name),
                rule,
            );
        }
    }
}

fn times(config: &Config, rules: &mut Rules) {
    let worker = &config.worker;
    let ttl = worker.heartbeat_ttl;
    rules.require(ttl >= Duration::from_secs(5), &["worker.heartbeat_ttl"], ttl, "must be at least 5s");
    let wait = worker.brpoplpush_timeout;
    let key = "worker.brpoplpush_timeout";
    rules.require(wait >= Duration::from_millis(50), &[key], wait, "must be at least 50ms");
    let half = Duration::from(*ttl / 2);
    let rule = format!("must be at most half of worker.heartbeat_ttl, {half}");
    rules.require(wait <= half, &[key, "worker.heartbeat_ttl"], wait, rule);
    let (base, max) = (worker.backoff.base, worker.backoff.max);
    let rule = format!("must be at most worker.backoff.max, {max}");
    rules.require(base <= max, &["worker.backoff.base", "worker.backoff.max"], base, rule);
    for (key, time) in [
        ("redis.dial_timeout", config.redis.dial_timeout),
        ("redis.read_timeout", config.redis.read_timeout),
        ("redis.write_timeout", config.redis.write_timeout),
        ("worker.handler.http.timeout", worker.handler.http.timeout),
        ("worker.handler.command.timeout", worker.handler.command.timeout),
        ("worker.reaper.interval", worker.reaper.interval),
        ("worker.reaper.pass_budget", worker.reaper.pass_budget),
        ("producer.rescan_interval", config.producer.rescan_interval),
        ("circuit_breaker.window", config.circuit_breaker.window),
        ("circuit_breaker.cooldown_period", config.circuit_breaker.cooldown_period),
        ("observability.queue_sample_interval", config.observability.queue_sample_interval),
        ("api.result_ttl", config.api.result_ttl),
        ("api.look_interval", config.api.look_interval),
        ("api.redis_timeout", config.api.redis_timeout),
        ("api.header_timeout", config.api.header_timeout),
        ("api.body_timeout", config.api.body_timeout),
        ("api.answer_timeout", config.api.answer_timeout),
    ] {
        positive(key, time, rules);
    }
    let (key, wait) = ("api.max_wait", config.api.max_wait);
    rules.require(wait <= Duration::from_secs(600), &[key], wait, "must be at most 10m");
    let (key, delay) = ("api.drain_delay", config.api.drain_delay);
    let rule = format!("must be less than worker.drain_timeout, {}", worker.drain_timeout);
    rules.require(delay < worker.drain_timeout, &[key, "worker.drain_timeout"], delay, rule);
}

fn lanes(config: &Config, rules: &mut Rules) {
    let worker = &config.worker;
    let (key, lanes) = ("worker.lanes", worker.lanes);
    let rule = format!("must be at most worker.count, {}", worker.count);
    rules.require(lanes <= worker.count, &[key, "worker.count"], lanes, rule);
    let rule = format!("must be 0 or at least worker.shards, {}: a lane serves one shard", worker.shards);
    rules.require(lanes == 0 || lanes >= worker.shards, &[key, "worker.shards"], lanes, rule);
    let (key, shards) = ("worker.shards", worker.shards);
    let rule = format!(
        "must be at most worker.count, {}: each shard needs a slot to be served; lower worker.shards or raise \
         worker.count",
        worker.count
    );
    rules.require(shards <= worker.count, &[key, "worker.count"], shards, rule);
}

fn handler(config: &Config, rules: &mut Rules) {
    let handler = &config.worker.handler;
    let somewhere = !handler.http.url.is_empty() || !handler.http.unix_socket.is_empty();
    let (url, socket) = ("worker.handler.http.url", "worker.handler.http.unix_socket");
    rules.require(
        handler.kind != HandlerKind::Http || somewhere,
        &["worker.handler.kind", url, socket],
        "\"http\"",
        format!("needs {url} or {socket}"),
    );
    http(&handler.http, "worker.handler.http", rules);
    let program = handler.command.argv.first().is_some_and(|program| !program.is_empty());
    rules.require(
        handler.kind != HandlerKind::Command || program,
        &["worker.handler.kind", "worker.handler.command.argv"],
        "\"command\"",
        "needs worker.handler.command.argv",
    );
    for (name, handler) in &config.async_jobs.handlers {
        let path = format!("async.handlers.{name}");
        rules.require(!name.is_empty(), &[&path], "\"\"", "the type of a job must not be empty");
        match handler {
            TypeHandler::Simulate(_) => {}
            TypeHandler::Http(settings) => {
                let somewhere = !settings.url.is_empty() || !settings.unix_socket.is_empty();
                rules.require(somewhere, &[&path], "{...}", "http needs url or unix_socket");
                let path = format!("{path}.http");
                http(settings, &path, rules);
                positive(&format!("{path}.timeout"), settings.timeout, rules);
            }
            TypeHandler::Command(settings) => {
                let program = settings.argv.first().is_some_and(|program| !program.is_empty());
                rules.require(program, &[&path], "{...}", "command needs argv");
                positive(&format!("{path}.command.timeout"), settings.timeout, rules);
            }
        }
    }
}

/// The rules between the keys of one HTTP handler.
fn http(http: &Http, path: &str, rules: &mut Rules) {
    let key = |name: &str| format!("{path}.{name}");
    let (url, socket) = (key("url"), key("unix_socket"));
    rules.require(
        http.url.is_empty() || http.unix_socket.is_empty(),
        &[&socket, &url],
        quoted(&http.unix_socket),
        format!("must be empty when {url} is set"),
    );
    let web =
        http.url.is_empty() || http.url.scheme().is_some_and(|scheme| scheme == "http" || scheme == "https");
    rules.require(web, &[&url], quoted(http.url.expose()), "must start with http:// or https://");
    rules.require(http.path.starts_with('/'), &[&key("path")], quoted(&http.path), "must start with /");
    let (token, hmac) = (key("token_file"), key("hmac_key_file"));
    rules.require(
        http.token_file.is_empty() || http.hmac_key_file.is_empty(),
        &[&hmac, &token],
        quoted(&http.hmac_key_file),
        format!("must be empty when {token} is set"),
    );
    let (certificate, private) = (key("cert_file"), key("key_file"));
    rules.require(
        http.cert_file.is_empty() == http.key_file.is_empty(),
        &[&certificate, &private],
        quoted(&http.cert_file),
        format!("{certificate} and {private} are set together or not at all"),
    );
}

fn positive(key: &str, time: Duration, rules: &mut Rules) {
    rules.require(time >= Duration::from_millis(1), &[key], time, "must be at least 1ms");
}

fn redis(config: &Config, rules: &mut Rules) {
    let redis = &config.redis;
    let scheme = redis.url.scheme().unwrap_or_default();
    let usable = redis.url.is_empty() || ["redis", "rediss", "unix", "redis+unix"].contains(&scheme.as_str());
    let rule = "must start with redis://, rediss://, unix:// or redis+unix://";
    rules.require(usable, &["redis.url"], quoted(redis.url.expose()), rule);
    let address = "must be a host and a port such as localhost:6379";
    // What stands before an `@` may be a password.
    let shown = |addr: &str| quoted(addr.rsplit_once('@').map_or(addr, |(_, host)| host));
    // Of a Cluster several nodes may be named: one of them answers, and names the others.
    let seeds = redis.addr.split(',').map(str::trim).filter(|_| redis.cluster);
    for each in seeds.chain((!redis.cluster).then_some(redis.addr.as_str())) {
        rules.require(is_address(each), &["redis.addr"], shown(each), address);
    }
    for each in &redis.sentinel.addrs {
        rules.require(is_address(each), &["redis.sentinel.addrs"], shown(each), address);
    }
    rules.require(
        redis.password.is_empty() || redis.password_file.is_empty(),
        &["redis.password_file", "redis.password"],
        quoted(&redis.password_file),
        "must be empty when redis.password is set",
    );
    let tls = &redis.tls;
    let pair = tls.cert_file.is_empty() == tls.key_file.is_empty();
    rules.require(
        pair,
        &["redis.tls.cert_file", "redis.tls.key_file"],
        quoted(&tls.cert_file),
        "redis.tls.cert_file and redis.tls.key_file are set together or not at all",
    );
    let (master, addrs) = (&redis.sentinel.master, &redis.sentinel.addrs);
    rules.require(
        master.is_empty() || !addrs.is_empty(),
        &["redis.sentinel.master", "redis.sentinel.addrs"],
        quoted(master),
        "needs redis.sentinel.addrs",
    );
    rules.require(
        addrs.is_empty() || !master.is_empty(),
        &["redis.sentinel.addrs", "redis.sentinel.master"],
        "[...]",
        "needs redis.sentinel.master",
    );
    let cluster = "redis.cluster";
    let rule = "cannot be combined with redis.sentinel.master: a cluster finds its own masters";
    rules.require(!redis.cluster || master.is_empty(), &[cluster, "redis.sentinel.master"], "true", rule);
    rules.require(
        !redis.cluster || redis.db == 0,
        &["redis.db", cluster],
        redis.db,
        "must be 0 with Redis Cluster",
    );
    let database = redis.url.expose().split_once("://").and_then(|(_, rest)| rest.rsplit_once('/'));
    let plain = database.is_none_or(|(_, database)| database.is_empty() || database == "0");
    let rule = "must not name a database with Redis Cluster";
    rules.require(!redis.cluster || plain, &["redis.url", cluster], quoted(redis.url.expose()), rule);
    rules.require(
        redis.url.is_empty() || master.is_empty(),
        &["redis.url", "redis.sentinel.master"],
        quoted(redis.url.expose()),
        "must be empty when redis.sentinel.master is set",
    );
    let sidekiq = config.protocol == Protocol::Sidekiq;
    let rule = "cannot be combined with protocol sidekiq: Sidekiq's own client cannot use Redis Cluster";
    rules.require(!redis.cluster || !sidekiq, &[cluster, "protocol"], "true", rule);
    let shards = config.worker.shards;
    let rule = "must be 1 with protocol sidekiq: Sidekiq's own client pushes to one key a queue";
    rules.require(shards == 1 || !sidekiq, &["worker.shards", "protocol"], shards, rule);
}

/// Whether this is a host, a colon and a port; an IPv6 host stands in brackets.
fn is_address(text: &str) -> bool {
    text.rsplit_once(':').is_some_and(|(host, port)| {
        let bracketed = host.starts_with('[') && host.ends_with(']');
        !host.is_empty()
            && !host.contains(|c: char| c.is_whitespace() || c == '/' || c == '@')
            && (bracketed || !host.contains(':'))
            && port.parse::<u16>().is_ok_and(|port| port > 0)
    })
}
