//! A Deployment beside the workers: the worker's binary in another role.
use serde_json::{Map, Value, json};

use super::template::{self, Image};
use super::{Child, DEPLOYMENT, Error, Plan};

/// `replicas`: how many pods; `None` leaves that to whoever scales it.
pub(super) fn part(
    plan: &Plan,
    name: &str,
    replicas: Option<i32>,
    strategy: &Value,
    pod: Value,
    user: Option<&Map<String, Value>>,
) -> Result<Child, Error> {
    if let Some(user) = user {
        template::check(user, &format!("spec.{name}.template"), name, Image::Ours)?;
    }
    let pod = template::merged(Value::Object(user.cloned().unwrap_or_default()), pod);
    let mut object = json!({
        "metadata": plan.names.owned(plan.queue, &plan.names.part(name), name),
        "spec": {
            "selector": { "matchLabels": plan.names.selector(name) },
            "strategy": strategy,
            "revisionHistoryLimit": 2,
            "template": pod,
        },
    });
    if let Some(replicas) = replicas {
        object["spec"]["replicas"] = json!(replicas);
    }
    Ok(Child::new(&DEPLOYMENT, plan.names.part(name), Some(object)))
}
