//! What only the `async` protocol reads: which handler runs which type of job.
use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::{Command, Http, Simulate};

/// The name of the handler of all types that have none of their own.
const DEFAULT: &str = "default";

/// What only the `async` protocol reads.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AsyncJobs {
    /// What runs the jobs of each `type`; `default` runs those of every other one. A handler is `simulate`, `http` or
    /// `command`: the word alone takes the settings of `worker.handler`, a section has its own, with the same keys:
    /// `{email: {http: {url: "http://mailer:3000"}}, resize: {command: {argv: [resize]}}, default: simulate}`.
    /// Without a `default`, a job of another type is refused, and fails if it is queued all the same. Empty:
    /// `worker.handler` runs all jobs. The variable holds YAML or JSON.
    #[schemars(schema_with = "handlers")]
    pub handlers: BTreeMap<String, TypeHandler>,
}

fn handlers(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "format": "handlers" })
}

/// What runs the jobs of one type.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TypeHandler {
    /// Pretends to work.
    Simulate(Simulate),
    /// Posts each job to an application.
    Http(Http),
    /// Runs a program per job.
    Command(Command),
}

impl AsyncJobs {
    /// The handler of a type, or of all that have none of their own; `None` when it has none, or all have one.
    pub fn handler(&self, kind: &str) -> Option<&TypeHandler> {
        self.handlers.get(kind).or_else(|| self.handlers.get(DEFAULT))
    }

    /// Whether somebody runs jobs of this type.
    pub fn runs(&self, kind: &str) -> bool {
        self.handlers.is_empty() || self.handler(kind).is_some()
    }
}
