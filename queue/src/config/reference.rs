//! The reference of the configuration, generated from the doc comments of its types.
use super::Config;
use super::accepted::{self, Fate};
use super::keys::{Key, Kind, get, known};
use serde_json::Value;
use std::fmt::Write;

const HEAD: &str = "\
# Configuration

<!-- Generated from the configuration types by `UPDATE=1 cargo test configuration_reference`; do not edit. -->

The worker reads a YAML file (`--config=PATH`; a missing file means defaults) and then environment variables,
which win. `worker config check` prints the result with secrets masked. An unknown key, a wrong type or a
violated rule ends the process with one line per problem, all problems at once:

```text
worker.count = 0: must be at least 1
worker.cuont = 3: unknown key, did you mean worker.count?
worker.heartbeat_ttl = \"abc\": must be a duration such as 500ms, 30s or 1m
```

**Variables.** Every key has one: its path in upper case with underscores for dots. Lists are separated by
commas; an entry of a map has its name at the end (`WORKER_QUEUES_HIGH`), for names that are in
`worker.priorities`. An empty variable counts as unset. A value that starts with `tcp://` is ignored with a
warning: Kubernetes sets such variables for Services (`API_PORT=tcp://...`).

**Durations** are numbers with units: `500ms`, `30s`, `1m30s`, `24h`.

**Key names.** The defaults below are those of `protocol: files` without a `key_prefix`. With
`key_prefix: P` every default key name begins with `P:` instead of `jobqueue:`; a key that is set stays as it
is set.
";

const SHARDING: &str = "
## Sharding

With `worker.shards` above 1, or with `redis.cluster`, shard n keeps the key `P:name` as `{P:n}:name`, where P
is the prefix, so that everything one job touches is on one node. Every key that is set must therefore begin
with the prefix and a colon. Nobody serves the plain keys then: clients that push by themselves choose a shard, or use
the producer, the API or `enqueue`.

There must be at least as many slots (`worker.count`) as shards. Each shard with jobs gets its share of them; those that
a shard does not need the others may use.

After the number was lowered, workers serve the shards above it until they are empty. What still pushes to them must be
restarted with the new number before the workers are: shards that fill up again later are seen by nobody.
";

/// The text of `docs/configuration.md`.
pub fn reference_markdown() -> String {
    let defaults = serde_json::to_value(Config::default()).unwrap_or_default();
    let mut text = HEAD.to_owned();
    for (section, meaning) in &known().sections {
        let title = if section.is_empty() { "Top level".into() } else { format!("`{section}`") };
        let meaning = if section.is_empty() { "" } else { meaning };
        let rows: Vec<&Key> = known().leaves.iter().filter(|key| parent(&key.path) == section).collect();
        if rows.is_empty() {
            continue;
        }
        write_line(&mut text, format_args!("\n## {title}\n"));
        if !meaning.is_empty() {
            write_line(&mut text, format_args!("{meaning}\n"));
        }
        text.push_str("| key | variable | type | default | meaning |\n|---|---|---|---|---|\n");
        for key in rows {
            let variable = match key.kind {
                Kind::TextMap | Kind::IntegerMap(..) => format!("{}_<NAME>", key.env()),
                _ => key.env(),
            };
            let default = shown_default(get(&defaults, &key.path).unwrap_or(&Value::Null));
            let meaning = key.meaning.replace('|', "\\|");
            let row =
                format_args!("| `{}` | `{variable}` | {} | {default} | {meaning} |", key.path, key.kind);
            write_line(&mut text, row);
        }
    }
    text.push_str(SHARDING);
    text.push_str(
        "\n## Keys of other configuration files\n\nAccepted, with a note in the log. The key they are read as wins \
         when both are set. Any `retry.*` selects `sidekiq.retry: exponential`.\n\n| key | what becomes of it |\n|---|---|\n",
    );
    for accepted in accepted::all() {
        let fate = match accepted.fate {
            Fate::ReadAs("worker.max_retries") => {
                "read as `worker.max_retries`, less one: the first attempt is not a retry".to_owned()
            }
            Fate::ReadAs("worker.handler.http.url") => {
                "read as `worker.handler.http.url`; selects `worker.handler.kind: http`".to_owned()
            }
            Fate::ReadAs(ours) => format!("read as `{ours}`"),
            Fate::NoEffect(why) => format!("no effect: {why}"),
        };
        write_line(&mut text, format_args!("| `{}` | {fate} |", accepted.key.path));
    }
    text.push_str(
        "| a list in `worker.queues`, the variable `WORKER_QUEUES` | read as `worker.priorities` |\n",
    );
    text.push_str("| the variable `JOB_SIMULATION_DURATION` | read as `worker.handler.simulate.base` |\n");
    text
}

fn write_line(text: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{line}");
}

fn parent(path: &str) -> &str {
    path.rsplit_once('.').map_or("", |(section, _)| section)
}

fn shown_default(value: &Value) -> String {
    match value {
        Value::String(text) if text.is_empty() => "empty".into(),
        Value::String(text) => format!("`{text}`"),
        Value::Array(items) if items.is_empty() => "empty".into(),
        Value::Array(items) => items.iter().map(shown_default).collect::<Vec<_>>().join(", "),
        Value::Object(entries) if entries.is_empty() => "empty".into(),
        Value::Object(entries) => {
            let shown = |(name, value): (&String, &Value)| format!("{name}: {}", shown_default(value));
            entries.iter().map(shown).collect::<Vec<_>>().join(", ")
        }
        other => format!("`{other}`"),
    }
}
