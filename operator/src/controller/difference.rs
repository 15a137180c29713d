//! Whether an object is as it should be.
use serde_json::Value;

use super::quantity;

/// Whether the live object says everything that is desired; what else it says is not ours.
pub fn is_satisfied(desired: &Value, live: &Value) -> bool {
    match (desired, live) {
        (Value::Object(desired), Value::Object(live)) => {
            desired.iter().all(|(name, value)| match (name.as_str(), live.get(name)) {
                (_, None) => is_nothing(value),
                ("requests" | "limits", Some(live)) => quantity::are_satisfied(value, live),
                (_, Some(live)) => is_satisfied(value, live),
            })
        }
        (Value::Array(desired), Value::Array(live)) => {
            let by_name = |entry: &Value| entry.get("name").cloned();
            desired.len() == live.len()
                && desired.iter().zip(live).all(|(desired, at)| match by_name(desired) {
                    Some(name) => live
                        .iter()
                        .any(|live| by_name(live) == Some(name.clone()) && is_satisfied(desired, live)),
                    None => is_satisfied(desired, at),
                })
        }
        _ => desired == live,
    }
}

/// Kubernetes drops empty objects and lists.
fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(fields) => fields.is_empty(),
        Value::Array(entries) => entries.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_others_add_is_no_difference() {
        let desired = json!({ "spec": { "replicas": 1, "containers": [{ "name": "worker", "env": [] }] } });
        let live = json!({ "spec": { "replicas": 1, "more": true, "containers": [{ "name": "worker", "image": "x" }] } });
        assert!(is_satisfied(&desired, &live));
    }

    #[test]
    fn a_changed_or_missing_field_is_a_difference() {
        let desired = json!({ "spec": { "containers": [{ "name": "worker", "image": "x" }] } });
        for live in [
            json!({ "spec": { "containers": [{ "name": "worker", "image": "y" }] } }),
            json!({ "spec": { "containers": [{ "name": "other", "image": "x" }] } }),
            json!({ "spec": { "containers": [{ "name": "worker", "image": "x" }, { "name": "extra" }] } }),
            json!({ "spec": {} }),
        ] {
            assert!(!is_satisfied(&desired, &live), "{live}");
        }
    }

    #[test]
    fn amounts_are_compared_by_what_they_are() {
        let claim = |size: &str| json!({ "spec": { "resources": { "requests": { "storage": size } } } });
        assert!(is_satisfied(&claim("1024Mi"), &claim("1Gi")));
        assert!(!is_satisfied(&claim("1G"), &claim("1Gi")));
        // What is no amount is text.
        let value = |text: &str| json!({ "env": [{ "name": "SIZE", "value": text }] });
        assert!(!is_satisfied(&value("1024Mi"), &value("1Gi")));
    }

    #[test]
    fn lists_of_named_things_have_no_order() {
        let desired = json!([{ "name": "a", "v": 1 }, { "name": "b", "v": 2 }]);
        assert!(is_satisfied(&desired, &json!([{ "name": "b", "v": 2 }, { "name": "a", "v": 1 }])));
    }
}
