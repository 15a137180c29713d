//! `spec.async`: what only the async protocol reads.
use std::collections::BTreeMap;

use jobqueue::config::Duration;
use kube::KubeSchema;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};

use super::{Command, Simulate, duration};

/// What only the async protocol reads.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct AsyncJobs {
    /// What runs the jobs of each type; `default` runs those of every other one. Without a `default`, a job of another
    /// type is refused by the API. Not set: `worker.handler` runs all jobs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "handlers")]
    pub handlers: BTreeMap<String, TypeHandler>,
}

/// At most as many as a rule of the schema may be asked for.
fn handlers(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = generator.subschema_for::<BTreeMap<String, TypeHandler>>();
    schema.insert("maxProperties".into(), 50.into());
    schema
}

/// What runs the jobs of one type: exactly one of these.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("[has(self.simulate), has(self.http), has(self.command)].filter(set, set).size() == 1")
        .message("set exactly one of simulate, http and command")
)]
pub struct TypeHandler {
    /// Pretends to work, for trying things out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub simulate: Option<Simulate>,
    /// Posts each job to your application.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<TypeHttp>,
    /// Runs a program of your image per job: the image of the container `worker` in `worker.template`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Command>,
}

/// Posts each job to your application.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct TypeHttp {
    /// Where the application listens, such as `http://mailer.default:3000`. Not set: where `worker.handler.http` posts,
    /// with its Secret, and with its path and timeout unless they are set here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512), regex(pattern = "^https?://"))]
    pub url: Option<String>,
    /// The path that jobs are posted to. Not set: /jobs/execute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512), regex(pattern = "^/"))]
    pub path: Option<String>,
    /// How long one job may take; then it has failed. Not set: 60s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "duration")]
    pub timeout: Option<Duration>,
}
