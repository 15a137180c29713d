//! The description of the API (`OpenAPI` 3.1): routes and bodies from the types that serve them; what holds for all
//! routes, and what this configuration allows, is added here.
use serde_json::{Value, json};
use utoipa::openapi::OpenApi;

use super::body::Types;
use super::problem::Problem;

/// The errors of an operation, beside those that every one has.
fn errors(method: &str, path: &str) -> &'static [(&'static str, &'static str)] {
    match (method, path) {
        ("post", _) => &[
            ("400", "The body, the query or the key is wrong: `code` says how"),
            ("408", "The body did not arrive in time"),
            ("409", "The idempotency key was used with another body"),
            ("413", "The body is too large"),
            ("415", "The body is not said to be JSON"),
        ],
        ("get", "/jobs") => &[("400", "A parameter of the query is wrong")],
        ("get", "/jobs/{id}") => {
            &[("400", "A parameter of the query is wrong"), ("404", "There is no such job (any more)")]
        }
        ("delete", _) => &[("404", "There is no such job (any more)"), ("409", "The job has ended before")],
        _ => &[],
    }
}

/// Where to go from an answer: operation, its parameter, and where its value stands in the answer.
fn links(method: &str, path: &str) -> &'static [(&'static str, &'static str, &'static str, &'static str)] {
    match (method, path) {
        ("post", "/jobs") => &[
            ("look", "getJob", "id", "$response.body#/id"),
            ("cancel", "cancelJob", "id", "$response.body#/id"),
        ],
        ("post", _) => &[
            ("look", "getJob", "id", "$response.body#/jobs/0/id"),
            ("cancel", "cancelJob", "id", "$response.body#/jobs/0/id"),
        ],
        ("get", "/jobs") => &[
            ("look", "getJob", "id", "$response.body#/jobs/0/id"),
            ("next", "listJobs", "cursor", "$response.body#/next_cursor"),
        ],
        ("get", "/jobs/{id}") => &[("cancel", "cancelJob", "id", "$response.body#/id")],
        _ => &[],
    }
}

/// The document as it is served.
pub(super) fn document(mut api: OpenApi, types: &Types, with_tokens: bool) -> String {
    // Not that of the crate which makes it.
    api.info = utoipa::openapi::Info::new("jobqueue", jobqueue::VERSION);
    api.info.description = Some("Background jobs over HTTP: create them, look at them, cancel them.".into());
    let mut document = serde_json::to_value(&api).unwrap_or_default();
    document["components"]["schemas"]["Problem"] = schema();
    document["components"]["schemas"]["NewJob"]["additionalProperties"] = json!(false);
    document["components"]["schemas"]["NewJobs"]["additionalProperties"] = json!(false);
    if let Some(types) = &types.0 {
        document["components"]["schemas"]["NewJob"]["properties"]["type"] =
            json!({ "type": "string", "enum": types, "description": "Which handler runs it." });
    }
    let problem = |description: &str| {
        json!({
            "description": description,
            "content": { "application/problem+json": { "schema": { "$ref": "#/components/schemas/Problem" } } },
        })
    };
    let paths = document["paths"].as_object_mut().into_iter().flatten();
    for (path, methods) in paths {
        for (method, operation) in methods.as_object_mut().into_iter().flatten() {
            let parameters = operation.get_mut("parameters").and_then(Value::as_array_mut);
            for parameter in parameters.into_iter().flatten() {
                never_null(&mut parameter["schema"]);
            }
            let responses = &mut operation["responses"];
            for success in ["200", "201"] {
                if responses.get(success).is_none() {
                    continue;
                }
                for (name, operation, parameter, value) in links(method, path) {
                    responses[success]["links"][*name] =
                        json!({ "operationId": operation, "parameters": { (*parameter): value } });
                }
            }
            for (code, description) in errors(method, path) {
                responses[*code] = problem(description);
            }
            if path.starts_with("/jobs") {
                responses["500"] = problem("What is stored is no job");
                responses["503"] = problem("Redis cannot be used now, or too much is under way: ask again");
                responses["503"]["headers"] =
                    json!({ "Retry-After": { "schema": { "type": "integer" }, "description": "Seconds" } });
                if with_tokens {
                    responses["401"] = problem("A bearer token is needed");
                    operation["security"] = json!([{ "bearer": [] }]);
                }
            }
        }
    }
    if with_tokens {
        document["components"]["securitySchemes"]["bearer"] = json!({ "type": "http", "scheme": "bearer" });
    }
    document.to_string()
}

/// A parameter is there or not; it is never null, whatever an `Option` says.
fn never_null(schema: &mut Value) {
    let null = json!("null");
    let kinds = |name: &str| schema.get(name).and_then(Value::as_array).cloned().unwrap_or_default();
    let (types, choices) = (kinds("type"), kinds("oneOf"));
    if let Some(kind) = types.into_iter().find(|kind| *kind != null) {
        schema["type"] = kind;
    }
    if let Some(kind) = choices.into_iter().find(|kind| kind["type"] != null) {
        *schema = kind;
    }
}

fn schema() -> Value {
    use utoipa::PartialSchema as _;
    let mut schema = serde_json::to_value(Problem::schema()).unwrap_or_default();
    schema["properties"]["code"] = serde_json::to_value(super::problem::Code::schema()).unwrap_or_default();
    schema
}
