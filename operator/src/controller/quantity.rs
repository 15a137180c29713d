//! Amounts of CPU, memory and storage. Kubernetes writes them in a form of its own: `1024Mi` comes back as `1Gi`.
use serde_json::Value;

/// What the suffixes stand for, in thousandths.
const SUFFIXES: &[(&str, f64)] = &[
    ("Ki", 1024e3),
    ("Mi", 1_048_576e3),
    ("Gi", 1_073_741_824e3),
    ("Ti", 1_099_511_627_776e3),
    ("Pi", 1_125_899_906_842_624e3),
    ("m", 1.0),
    ("k", 1e6),
    ("M", 1e9),
    ("G", 1e12),
    ("T", 1e15),
    ("P", 1e18),
    ("", 1e3),
];

/// Whether the live amounts, by resource, are those that are desired; what else is there is not ours.
pub fn are_satisfied(desired: &Value, live: &Value) -> bool {
    let (Value::Object(desired), Value::Object(live)) = (desired, live) else { return desired == live };
    desired.iter().all(|(resource, amount)| live.get(resource).is_some_and(|live| is_same(amount, live)))
}

/// An amount of memory in bytes; `None` for what is none, and for more than any machine has.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "its bounds are looked at")]
pub fn bytes(value: &Value) -> Option<u64> {
    let bytes = amount(value)? / 1e3;
    (1.0..1e15).contains(&bytes).then_some(bytes as u64)
}

fn is_same(one: &Value, other: &Value) -> bool {
    // What cannot be read is compared as it stands.
    one == other || amount(one).zip(amount(other)).is_some_and(|(one, other)| close(one, other))
}

/// Both came from short decimal texts: what differs by less than their last digit is the same.
fn close(one: f64, other: f64) -> bool {
    (one - other).abs() <= one.abs().max(other.abs()) * 1e-12
}

/// In thousandths.
fn amount(value: &Value) -> Option<f64> {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        _ => return None,
    };
    let (number, thousandths) = SUFFIXES.iter().find_map(|(suffix, worth)| {
        let number = text.strip_suffix(suffix)?;
        Some((number.parse::<f64>().ok()?, worth))
    })?;
    Some(number * thousandths)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_same_amount_has_many_forms() {
        for (one, other) in [
            (json!("1024Mi"), json!("1Gi")),
            (json!("0.5"), json!("500m")),
            (json!(1), json!("1000m")),
            (json!("1.5Gi"), json!("1536Mi")),
            (json!("1000k"), json!("1M")),
            (json!("2e3"), json!("2k")),
        ] {
            assert!(is_same(&one, &other) && is_same(&other, &one), "{one} {other}");
        }
    }

    #[test]
    fn an_amount_of_memory_has_bytes() {
        assert_eq!(bytes(&json!("256Mi")), Some(256 << 20));
        assert_eq!(bytes(&json!("1G")), Some(1_000_000_000));
        assert_eq!(bytes(&json!(1024)), Some(1024));
        for none in [json!("much"), json!("0"), json!("-1Gi"), json!("1000P"), json!(null)] {
            assert_eq!(bytes(&none), None, "{none}");
        }
    }

    #[test]
    fn different_amounts_are_different() {
        for (one, other) in [
            (json!("1Gi"), json!("1G")),
            (json!("1"), json!("1m")),
            (json!("1023Mi"), json!("1Gi")),
            (json!("much"), json!("1")),
        ] {
            assert!(!is_same(&one, &other), "{one} {other}");
        }
    }

    #[test]
    fn an_amount_that_is_not_there_is_a_difference_and_one_that_others_add_is_not() {
        assert!(!are_satisfied(&json!({ "cpu": 1 }), &json!({})));
        assert!(are_satisfied(&json!({ "cpu": 1 }), &json!({ "cpu": "1", "memory": "1Gi" })));
    }
}
