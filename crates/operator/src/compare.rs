//! Comparison of what is wanted with what the API server holds, which fills in defaults and writes quantities its own way.

use serde_json::Value;

/// True if applying `wanted` would change nothing of `live`: each wanted field is there with that value. What else is there
/// belongs to the API server or to others.
#[must_use]
pub fn holds(live: &Value, wanted: &Value) -> bool {
    match (live, wanted) {
        (Value::Object(live), Value::Object(wanted)) => wanted.iter().all(|(name, wanted)| match live.get(name) {
            Some(live) => holds(live, wanted),
            // The API server keeps no empty values.
            None => empty(wanted),
        }),
        (Value::Array(live), Value::Array(wanted)) => lists(live, wanted),
        (live, wanted) => live == wanted || quantity(live).is_some_and(|amount| quantity(wanted) == Some(amount)),
    }
}

fn empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(fields) => fields.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

/// Lists of named things may have more in them, from others; in all other lists each place counts.
fn lists(live: &[Value], wanted: &[Value]) -> bool {
    let named = |item: &Value| item.get("name").and_then(Value::as_str).map(str::to_owned);
    if wanted.is_empty() || !wanted.iter().all(|item| named(item).is_some()) || repeats(wanted) {
        return live.len() == wanted.len() && live.iter().zip(wanted).all(|(live, wanted)| holds(live, wanted));
    }
    let find = |name: Option<String>| live.iter().find(|item| named(item) == name);
    wanted.iter().all(|wanted| find(named(wanted)).is_some_and(|live| holds(live, wanted)))
}

/// True if a name comes twice: mounts of one volume do.
fn repeats(items: &[Value]) -> bool {
    let mut seen = std::collections::BTreeSet::new();
    !items.iter().filter_map(|item| item["name"].as_str()).all(|name| seen.insert(name))
}

/// A quantity of Kubernetes in thousandths: `1`, `"1000m"` and `1.0` are one amount.
fn quantity(value: &Value) -> Option<i128> {
    let text = match value {
        Value::Number(number) => number.to_string(),
        Value::String(text) => text.clone(),
        _ => return None,
    };
    let split = text.find(|letter: char| letter.is_ascii_alphabetic()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(split);
    let scale: i128 = match unit {
        "m" => 1,
        "" => 1_000,
        "k" => 1_000_000,
        "M" => 1_000_000_000,
        "G" => 1_000_000_000_000,
        "T" => 1_000_000_000_000_000,
        "Ki" => 1_000 << 10,
        "Mi" => 1_000 << 20,
        "Gi" => 1_000 << 30,
        "Ti" => 1_000 << 40,
        _ => return None,
    };
    let (whole, part) = digits.split_once('.').unwrap_or((digits, ""));
    if part.len() > 9 || whole.len() > 15 {
        return None;
    }
    let amount: i128 = format!("{whole}{part}").parse().ok()?;
    let tens = 10_i128.pow(u32::try_from(part.len()).ok()?);
    (amount * scale % tens == 0).then(|| amount * scale / tens)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn defaults_of_the_api_server_are_no_difference() {
        let cases = [
            (json!({"a": 1, "b": 2}), json!({"a": 1}), true),
            (json!({"a": 2}), json!({"a": 1}), false),
            (json!({}), json!({"a": 1}), false),
            (json!({}), json!({"annotations": {}}), true),
            (json!({"cpu": "1"}), json!({"cpu": "1000m"}), true),
            (json!({"cpu": "1500m"}), json!({"cpu": 1.5}), true),
            (json!({"memory": "1Gi"}), json!({"memory": "1024Mi"}), true),
            (json!({"memory": "1G"}), json!({"memory": "1Gi"}), false),
            (
                json!([{"name": "model", "image": "a"}, {"name": "injected"}]),
                json!([{"name": "model", "image": "a"}]),
                true,
            ),
            (json!([{"name": "model", "image": "b"}]), json!([{"name": "model", "image": "a"}]), false),
            (json!(["--a", "--b"]), json!(["--a"]), false),
            (
                json!([{"name": "v", "mountPath": "/a"}, {"name": "v", "mountPath": "/b"}]),
                json!([{"name": "v", "mountPath": "/a"}, {"name": "v", "mountPath": "/b"}]),
                true,
            ),
            (
                json!([{"name": "v", "mountPath": "/a"}]),
                json!([{"name": "v", "mountPath": "/a"}, {"name": "v", "mountPath": "/b"}]),
                false,
            ),
        ];
        for (live, wanted, expected) in cases {
            assert_eq!(holds(&live, &wanted), expected, "{live} holds {wanted}");
        }
    }
}
