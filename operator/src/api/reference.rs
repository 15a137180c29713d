//! The reference of the custom resource, made from its schema: `docs/crd.md` is its output.
use std::fmt::Write as _;

use kube::CustomResourceExt;
use serde_json::{Map, Value};

use super::v1alpha1::JobQueue;

/// The command that makes the file, named in it.
const HEADER: &str = "# The JobQueue resource\n\nMade from the schema by `scripts/generate`; do not edit. The same text is shown by \
`kubectl explain jobqueue.spec`.\n";

/// The whole reference as Markdown.
pub fn markdown() -> String {
    let crd = serde_json::to_value(JobQueue::crd()).unwrap_or_default();
    let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    let mut text = HEADER.to_owned();
    let _ = writeln!(text, "\n{}", description(schema));
    for part in ["spec", "status"] {
        section(&mut text, part, &schema["properties"][part]);
    }
    text
}

/// A table of the fields of one object, then a section for each object among them.
fn section(text: &mut String, path: &str, schema: &Value) {
    let Some(fields) = schema["properties"].as_object() else { return };
    let _ = writeln!(text, "\n## {path}\n\n| field | type | default | |\n|---|---|---|---|");
    for (name, field) in fields {
        let default = field.get("default").filter(|value| !value.is_object());
        let default =
            default.map_or(String::new(), |value| format!("`{}`", value.to_string().trim_matches('"')));
        let required = schema["required"].as_array().is_some_and(|names| names.iter().any(|one| one == name));
        let _ = writeln!(
            text,
            "| `{name}`{} | {} | {default} | {} |",
            if required { " (required)" } else { "" },
            kind(field),
            description(field)
        );
    }
    for (rule, message) in rules(schema) {
        let _ = writeln!(text, "\nRule: {}", if message.is_empty() { rule } else { message });
    }
    for (name, field) in fields {
        let (path, inner) = match field["type"].as_str() {
            Some("array") => (format!("{path}.{name}[]"), &field["items"]),
            _ => (format!("{path}.{name}"), field),
        };
        if name != "conditions" {
            section(text, &path, inner);
        }
    }
}

fn rules(schema: &Value) -> impl Iterator<Item = (&str, &str)> {
    let rules = schema["x-kubernetes-validations"].as_array();
    rules
        .into_iter()
        .flatten()
        .map(|rule| (rule["rule"].as_str().unwrap_or_default(), rule["message"].as_str().unwrap_or_default()))
}

fn description(schema: &Value) -> String {
    schema["description"]
        .as_str()
        .unwrap_or_default()
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
        .replace('|', "\\|")
}

fn kind(schema: &Value) -> String {
    let empty = Map::new();
    let schema = schema.as_object().unwrap_or(&empty);
    if let Some(words) = schema.get("enum").and_then(Value::as_array) {
        let words: Vec<_> = words.iter().filter_map(Value::as_str).map(|word| format!("`{word}`")).collect();
        return words.join(", ");
    }
    let name = schema.get("type").and_then(Value::as_str).unwrap_or("any");
    let bound = |key: &str| {
        schema.get(key).map(|bound| bound.as_f64().map_or(String::new(), |bound| bound.to_string()))
    };
    match (bound("minimum"), bound("maximum")) {
        (Some(low), Some(high)) => format!("{name}, {low} to {high}"),
        (Some(low), None) => format!("{name}, at least {low}"),
        _ => name.to_owned(),
    }
}
