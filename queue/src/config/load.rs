//! From a YAML file and the environment to a resolved [`Config`].
//!
//! The steps work on a tree of what was *set*, so that a default never looks like a decision: read, check
//! every key, lay the variables over it, translate accepted keys, fill in what depends on the protocol and
//! the prefix, and only then make the typed value and check the rules between keys.
use super::keys::{self, Kind, env_name, get, join, known, set, shown_unknown, take};
use super::problem::{Note, Problem, Problems};
use super::{Config, Protocol, accepted, validate};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

/// Larger files are not configurations.
const LARGEST_FILE: u64 = 1024 * 1024;

/// The variable of the `async` service's older worker.
const SIMULATION: &str = "JOB_SIMULATION_DURATION";

/// Which handler is used: a key whose default depends on what else is set.
const KIND: &str = "worker.handler.kind";

/// The one key whose entries are sections.
const HANDLERS: &str = "async.handlers";

/// A valid configuration and what its owner should know about it.
#[derive(Debug, Clone, PartialEq)]
pub struct Loaded {
    /// The resolved configuration.
    pub config: Config,
    /// Ignored and translated keys, for the log.
    pub notes: Vec<Note>,
}

/// The variables of this process that are text; `std::env::vars` would panic at one that is not.
pub fn environment() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
}

impl Config {
    /// Reads the file (a missing one gives the defaults), lays the environment over it and resolves it.
    /// Every problem is reported, not only the first.
    pub fn load(
        path: Option<&Path>,
        env: impl Iterator<Item = (String, String)>,
    ) -> Result<Loaded, Problems> {
        Loading::default().load(path, env)
    }

    /// The same for who runs no jobs, such as the admin commands: nothing has to be said about the handler.
    pub fn load_to_look(
        path: Option<&Path>,
        env: impl Iterator<Item = (String, String)>,
    ) -> Result<Loaded, Problems> {
        Loading { only_looks: true, ..Loading::default() }.load(path, env)
    }

    /// Resolves a tree as it would stand in a file, without any environment.
    pub fn from_value(tree: Value) -> Result<Loaded, Problems> {
        Loading::default().finish(tree, std::iter::empty())
    }
}

/// The file as a tree; `None` when there is no file.
fn read(path: &Path) -> Result<Option<Value>, String> {
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(format!("cannot be read: {error}")),
    };
    let mut text = String::new();
    // One byte more than allowed tells a large file from one that just fits, whatever its metadata say.
    file.take(LARGEST_FILE + 1)
        .read_to_string(&mut text)
        .map_err(|error| format!("cannot be read: {error}"))?;
    if text.len() as u64 > LARGEST_FILE {
        return Err("is larger than 1 MiB".into());
    }
    parse(&text).map(Some)
}

/// YAML as a tree. Nothing of the text is quoted in an error, because it may be a secret.
fn parse(text: &str) -> Result<Value, String> {
    let options = serde_saphyr::options! {
        with_snippet: false,
        // Else a queue named `on` or `y` would be a boolean.
        strict_booleans: true,
        // As text they fail the check of their key, which can name it.
        non_finite_float_policy: serde_saphyr::NonFiniteFloatPolicy::AsString,
        budget: serde_saphyr::budget! {
            max_depth: 32,
            max_documents: 1,
        },
    };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        let place = error.location().map(|at| format!(" at line {} column {}", at.line(), at.column()));
        format!("is not valid YAML{}", place.unwrap_or_default())
    })
}

/// The work in progress.
#[derive(Default)]
struct Loading {
    problems: Vec<Problem>,
    notes: Vec<Note>,
    /// The variable or accepted key that set a key, so that a violated rule can name what was written.
    set_by: BTreeMap<String, String>,
    /// Whoever reads this runs no jobs.
    only_looks: bool,
}

impl Loading {
    fn load(
        mut self,
        path: Option<&Path>,
        env: impl Iterator<Item = (String, String)>,
    ) -> Result<Loaded, Problems> {
        let tree = match path.map(|path| (path, read(path))) {
            None => Value::Null,
            Some((path, Ok(None))) => {
                self.notes.push(Note::new(path.display().to_string(), "does not exist: defaults are used"));
                Value::Null
            }
            Some((_, Ok(Some(tree)))) => tree,
            Some((path, Err(rule))) => {
                let value = path.display().to_string();
                return Err(Problems(vec![Problem { key: "--config".into(), value, rule }]));
            }
        };
        self.finish(tree, env)
    }

    fn finish(
        mut self,
        tree: Value,
        env: impl Iterator<Item = (String, String)>,
    ) -> Result<Loaded, Problems> {
        let mut tree = self.checked("", tree).unwrap_or_else(|| json!({}));
        let variables = self.variables(env);
        self.overlay(&mut tree, &variables);
        self.set_by.extend(accepted::apply(&mut tree, &mut self.notes));
        self.choose_handler(&mut tree);
        resolve(&mut tree);
        self.overlay_entries(&mut tree, &variables);
        match serde_json::from_value::<Config>(tree) {
            Ok(config) => {
                let named = self.problems.len();
                validate::rules(&config, &mut self.problems, &mut self.notes);
                for problem in &mut self.problems[named..] {
                    if let Some(setter) = self.set_by.get(&problem.key) {
                        problem.rule = format!("{} (set by {setter})", problem.rule);
                    }
                }
                if self.problems.is_empty() {
                    return Ok(Loaded { config, notes: self.notes });
                }
            }
            // The tree was checked key by key, so this is a gap in those checks and not in the message.
            Err(error) => self.problems.push(Problem {
                key: "configuration".into(),
                value: "{...}".into(),
                rule: format!("cannot be read: {error}"),
            }),
        }
        Err(Problems(self.problems))
    }

    /// Which handler runs the jobs when its kind is not written: the one that has somewhere to run them. If its settings were
    /// ignored, jobs would be done without being run; so would those of Sidekiq's clients, who mean them, if none were set.
    fn choose_handler(&mut self, tree: &mut Value) {
        let text = |path: &str| get(tree, path).and_then(Value::as_str).filter(|text| !text.is_empty());
        let protocol = text("protocol");
        let by_type = get(tree, HANDLERS).and_then(Value::as_object).is_some_and(|map| !map.is_empty());
        let written = get(tree, KIND).is_some() || self.problems.iter().any(|problem| problem.key == KIND);
        if written || (protocol == Some("async") && by_type) {
            return;
        }
        let posts =
            ["url", "unix_socket"].iter().any(|key| text(&format!("worker.handler.http.{key}")).is_some());
        let argv = get(tree, "worker.handler.command.argv").and_then(Value::as_array);
        let runs = argv.is_some_and(|argv| !argv.is_empty());
        let rule = match (posts, runs) {
            (true, false) => return set(tree, KIND, "http".into()),
            (false, true) => return set(tree, KIND, "command".into()),
            (true, true) => "must be set when both worker.handler.http and worker.handler.command are",
            (false, false) if protocol == Some("sidekiq") => {
                "must be set with protocol sidekiq, or jobs would be done without being run: http with \
                 worker.handler.http.url, command, or simulate to try things out"
            }
            (false, false) => return,
        };
        if !self.only_looks {
            self.reject(KIND, "\"\"".into(), rule.into());
        }
    }

    /// The tree without what is wrong in it, which is reported. A key without a value counts as not set.
    fn checked(&mut self, path: &str, value: Value) -> Option<Value> {
        if value.is_null() {
            return None;
        }
        if known().is_section(path) {
            return self.checked_section(path, value);
        }
        if path == HANDLERS {
            return self.checked_handlers(value, "");
        }
        if let Some(key) = known().leaf(path) {
            // A list of queues in the place of their keys (an older form) is their order.
            let kind = if path == "worker.queues" && value.is_array() { &Kind::List } else { &key.kind };
            let shown = key.shown(&value);
            return match kind.check(value) {
                Ok(value) => Some(value),
                Err(rule) => self.reject(path, shown, rule),
            };
        }
        let meant = known().nearest(path);
        let rule = match meant {
            Some(meant) => format!("unknown key, did you mean {meant}?"),
            None => "unknown key".into(),
        };
        self.reject(path, shown_unknown(path, meant, &value), rule)
    }

    fn checked_section(&mut self, path: &str, value: Value) -> Option<Value> {
        let Value::Object(entries) = value else {
            let key = if path.is_empty() { "configuration" } else { path };
            return self.reject(key, shown_unknown(path, None, &value), "must be a section with keys".into());
        };
        let mut section = Map::new();
        for (name, value) in entries {
            if name.contains('.') {
                let key = join(path, &name);
                let meant = known().leaf(&key).map(|key| key.path.as_str());
                let rule = "unknown key: write each part before a dot as a section".into();
                self.reject(&key, shown_unknown(&key, meant, &value), rule);
            } else if let Some(value) = self.checked(&join(path, &name), value) {
                section.insert(name, value);
            }
        }
        Some(Value::Object(section))
    }

    /// Handlers by the type of job: a word, or one section with the keys of `worker.handler`.
    fn checked_handlers(&mut self, value: Value, setter: &str) -> Option<Value> {
        const KINDS: [&str; 3] = ["simulate", "http", "command"];
        let Value::Object(entries) = value else {
            let shown = shown_unknown(HANDLERS, None, &value);
            return self.reject(HANDLERS, shown, format!("must map types of jobs to handlers{setter}"));
        };
        let mut handlers = Map::new();
        for (name, entry) in entries {
            let path = join(HANDLERS, &name);
            let (kind, section) = match entry {
                Value::String(kind) => (kind, Value::Null),
                Value::Object(fields) if fields.len() == 1 => match fields.into_iter().next() {
                    Some(only) => only,
                    None => continue,
                },
                other => (String::new(), other),
            };
            if !KINDS.contains(&kind.as_str()) {
                let shown = if kind.is_empty() { "{...}".to_owned() } else { format!("{kind:?}") };
                let rule = format!("must be simulate, http or command, or a section of one of them{setter}");
                self.reject(&path, shown, rule);
                continue;
            }
            let path = join(&path, &kind);
            let fields = match section {
                Value::Null => {
                    handlers.insert(name, kind.into());
                    continue;
                }
                Value::Object(fields) => fields,
                other => {
                    let shown = shown_unknown(&path, None, &other);
                    self.reject(&path, shown, format!("must be a section with keys{setter}"));
                    continue;
                }
            };
            let mut checked = Map::new();
            for (field, value) in fields {
                let path = join(&path, &field);
                let Some(key) = known().leaf(&format!("worker.handler.{kind}.{field}")) else {
                    self.reject(&path, shown_unknown(&path, None, &value), format!("unknown key{setter}"));
                    continue;
                };
                let shown = key.shown(&value);
                match key.kind.check(value) {
                    Ok(value) => drop(checked.insert(field, value)),
                    Err(rule) => drop(self.reject(&path, shown, format!("{rule}{setter}"))),
                }
            }
            handlers.insert(name, json!({ kind: checked }));
        }
        Some(Value::Object(handlers))
    }

    fn reject(&mut self, key: &str, value: String, rule: String) -> Option<Value> {
        self.problems.push(Problem { key: key.to_owned(), value, rule });
        None
    }

    /// The variables that could be ours. An empty one counts as unset, as in Compose files that pass on what
    /// they do not have. Kubernetes' service links look like ours (`API_PORT=tcp://...`) but never are.
    fn variables(&mut self, env: impl Iterator<Item = (String, String)>) -> Vec<(String, String)> {
        let mut variables: Vec<_> = env.filter(|(_, value)| !value.trim().is_empty()).collect();
        variables.sort();
        variables.retain(|(name, value)| {
            let link = value.trim_start().starts_with("tcp://");
            if link && targets(name) {
                self.notes
                    .push(Note::new(name, "is ignored: a value with tcp:// is a Kubernetes service link"));
            }
            !link
        });
        variables
    }

    /// Lays the variables of keys with one value over the tree.
    fn overlay(&mut self, tree: &mut Value, variables: &[(String, String)]) {
        let has = |wanted: &str| variables.iter().any(|(name, _)| name == wanted);
        for (name, text) in variables {
            let path = match name.as_str() {
                SIMULATION if !has("WORKER_HANDLER_SIMULATE_BASE") => Some("worker.handler.simulate.base"),
                "WORKER_QUEUES" if !has("WORKER_PRIORITIES") => Some("worker.priorities"),
                name => plain_path(name),
            };
            let Some(key) = path.and_then(|path| known().leaf(path)) else { continue };
            if key.kind == Kind::Handlers {
                let setter = format!(" (set by {name})");
                match parse(text) {
                    Ok(value) => {
                        if let Some(value) = self.checked_handlers(value, &setter) {
                            set(tree, &key.path, value);
                        }
                    }
                    Err(rule) => drop(self.reject(&key.path, "{...}".into(), format!("{rule}{setter}"))),
                }
                continue;
            }
            match key.kind.check(key.kind.read(text)) {
                Ok(value) => {
                    set(tree, &key.path, value);
                    self.set_by.insert(key.path.clone(), name.clone());
                }
                Err(rule) => {
                    let shown = key.shown(&text.as_str().into());
                    self.reject(&key.path, shown, format!("{rule} (set by {name})"));
                }
            }
        }
        // A list in the place of the queues' keys is their order; see `checked`.
        if get(tree, "worker.queues").is_some_and(Value::is_array)
            && let Some(list) = take(tree, "worker.queues")
        {
            if get(tree, "worker.priorities").is_some() {
                self.notes.push(Note::new(
                    "worker.queues",
                    "is ignored: it is a list, and worker.priorities is set",
                ));
            } else {
                self.notes.push(Note::new("worker.queues", "is a list and is read as worker.priorities"));
                set(tree, "worker.priorities", list);
            }
        }
    }

    /// Lays the variables of map entries over the resolved tree. Only names that exist there are meant:
    /// anything else would turn foreign variables into queues.
    fn overlay_entries(&mut self, tree: &mut Value, variables: &[(String, String)]) {
        let priorities: Vec<String> = get(tree, "worker.priorities")
            .and_then(Value::as_array)
            .map(|names| names.iter().filter_map(Value::as_str).map(String::from).collect())
            .unwrap_or_default();
        for key in &known().leaves {
            let each = match key.kind {
                Kind::TextMap => Kind::Text,
                Kind::IntegerMap(min, max) => Kind::Integer(min, max),
                _ => continue,
            };
            for (variable, text) in variables {
                let Some(suffix) = variable.strip_prefix(&format!("{}_", key.env())) else { continue };
                let present = get(tree, &key.path).and_then(Value::as_object);
                let names: Vec<&String> =
                    present.into_iter().flat_map(Map::keys).chain(&priorities).collect();
                // `a_b` and `a-b` have one variable; it means the name that is spelled like it.
                let spelled = names.iter().find(|name| name.to_uppercase() == *suffix);
                let meant = spelled.or_else(|| names.iter().find(|name| env_name(name) == suffix));
                let Some(name) = meant.map(|name| (*name).clone()) else {
                    let text = format!("is ignored: {} is not in worker.priorities", suffix.to_lowercase());
                    self.notes.push(Note::new(variable, text));
                    continue;
                };
                match each.check(each.read(text)) {
                    Ok(value) => {
                        self.set_by.insert(join(&key.path, &name), variable.clone());
                        // Not by dotted path: the name of a queue may contain dots.
                        match keys::get_mut(tree, &key.path) {
                            Some(Value::Object(entries)) => {
                                entries.insert(name, value);
                            }
                            _ => set(tree, &key.path, json!({ name: value })),
                        }
                    }
                    Err(rule) => {
                        let shown = key.shown(&text.as_str().into());
                        self.reject(&join(&key.path, &name), shown, format!("{rule} (set by {variable})"));
                    }
                }
            }
        }
    }
}

/// The path of the key with one value that this variable overrides.
fn plain_path(name: &str) -> Option<&'static str> {
    let accepted = accepted::all().iter().map(|accepted| &accepted.key);
    known()
        .leaves
        .iter()
        .filter(|key| !matches!(key.kind, Kind::TextMap | Kind::IntegerMap(..)))
        .chain(accepted)
        .find(|key| key.env() == name)
        .map(|key| key.path.as_str())
}

/// Whether a variable would override something.
fn targets(name: &str) -> bool {
    let entry = |key: &keys::Key| {
        matches!(key.kind, Kind::TextMap | Kind::IntegerMap(..))
            && name.starts_with(&format!("{}_", key.env()))
    };
    name == SIMULATION || plain_path(name).is_some() || known().leaves.iter().any(entry)
}

/// Fills in what depends on the protocol and the prefix, where it is not set. An empty key name counts as
/// not set: Redis would accept it, but nobody means it.
fn resolve(tree: &mut Value) {
    let text =
        |tree: &Value, path: &str| get(tree, path).and_then(Value::as_str).unwrap_or_default().to_owned();
    let protocol = match text(tree, "protocol").as_str() {
        "sidekiq" => Protocol::Sidekiq,
        "async" => Protocol::Async,
        _ => Protocol::Files,
    };
    let mut default = |path: &str, value: Value| match get(tree, path) {
        Some(set) if *set != json!("") => set.clone(),
        _ => {
            set(tree, path, value.clone());
            value
        }
    };
    let prefix = default("key_prefix", protocol.default_prefix().into());
    let prefix = prefix.as_str().unwrap_or_default();
    for (path, name) in [
        ("worker.processing_list_pattern", "worker:%s:processing"),
        ("worker.heartbeat_key_pattern", "processing:worker:%s"),
        ("worker.delayed_set_pattern", "delayed:%s"),
        ("worker.completed_list", "completed"),
        ("worker.dead_letter_list", "dead_letter"),
        ("producer.rate_limit_key", "rate_limit:producer"),
    ] {
        default(path, format!("{prefix}:{name}").into());
    }
    let priorities = default(
        "worker.priorities",
        if protocol == Protocol::Files { json!(["high", "low"]) } else { json!(["default"]) },
    );
    let priorities: Vec<&str> =
        priorities.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let fallback = if priorities.contains(&"low") { Some(&"low") } else { priorities.last() };
    default("producer.default_priority", fallback.copied().unwrap_or_default().into());
    if protocol == Protocol::Sidekiq {
        let exponential = default("sidekiq.retry", "sidekiq".into()) == "exponential";
        default("worker.max_retries", if exponential { 24 } else { 25 }.into());
        default("worker.backoff.base", "15s".into());
        default("worker.backoff.max", "24h".into());
        // Sidekiq itself has no limit; this one only keeps a mistake from filling the memory of every worker.
        default("worker.max_payload_bytes", (16 * 1024 * 1024).into());
    }
    if protocol == Protocol::Async {
        // A dead letter only names its job, and the job itself is gone after `api.result_ttl`.
        default("worker.dead_letter_max", 10_000.into());
    }
    let namespace = default("sidekiq.namespace", "".into());
    let namespace = namespace.as_str().unwrap_or_default();
    let queues: Map<String, Value> = priorities
        .iter()
        .filter_map(|name| {
            Some(((*name).to_owned(), default_queue(protocol, prefix, namespace, name)?.into()))
        })
        .collect();
    default("worker.queues", queues.into());
    // A handler that is only a word has the settings of `worker.handler`.
    let settings = get(tree, "worker.handler").cloned().unwrap_or_default();
    if let Some(Value::Object(handlers)) = keys::get_mut(tree, HANDLERS) {
        for handler in handlers.values_mut() {
            if let Value::String(kind) = &*handler {
                let own = settings.get(kind).cloned().unwrap_or_else(|| json!({}));
                *handler = json!({ kind: own });
            }
        }
    }
}

/// The key of a queue that has a default one.
pub(super) fn default_queue(protocol: Protocol, prefix: &str, namespace: &str, name: &str) -> Option<String> {
    match (protocol, name) {
        (Protocol::Files, "high" | "low") => Some(format!("{prefix}:{name}_priority")),
        (Protocol::Async, "default") => Some(format!("{prefix}:queue")),
        (Protocol::Sidekiq, name) if namespace.is_empty() => Some(format!("queue:{name}")),
        (Protocol::Sidekiq, name) => Some(format!("{namespace}:queue:{name}")),
        _ => None,
    }
}
