//! An answer as JSON for people: indented like any other, but an array of plain values stays on one line. A tensor of a
//! hundred numbers is then one line instead of a hundred.

use serde_json::Value;

/// The text, without an end of line.
pub(super) fn text(answer: &Value) -> String {
    let mut out = String::new();
    write(answer, 0, &mut out);
    out
}

fn write(value: &Value, depth: usize, out: &mut String) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            let entries = fields.iter().map(|(name, value)| (Some(name.as_str()), value));
            block(entries, '{', '}', depth, out);
        }
        Value::Array(items) if items.iter().any(|item| item.is_object() || item.is_array()) => {
            block(items.iter().map(|item| (None, item)), '[', ']', depth, out);
        }
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(Value::to_string).collect();
            out.push_str(&format!("[{}]", items.join(", ")));
        }
        plain => out.push_str(&plain.to_string()),
    }
}

fn block<'a>(
    entries: impl Iterator<Item = (Option<&'a str>, &'a Value)>,
    open: char,
    close: char,
    depth: usize,
    out: &mut String,
) {
    out.push(open);
    for (nth, (name, value)) in entries.enumerate() {
        out.push_str(if nth > 0 { ",\n" } else { "\n" });
        out.push_str(&"  ".repeat(depth + 1));
        if let Some(name) = name {
            out.push_str(&format!("{}: ", Value::from(name)));
        }
        write(value, depth + 1, out);
    }
    out.push('\n');
    out.push_str(&"  ".repeat(depth));
    out.push(close);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_share_a_line_and_everything_reads_back() {
        let answer =
            json!({"id": "a\"b", "outputs": [{"data": [0.5, -1, "x"], "shape": [3]}], "parameters": {}, "n": []});
        let shown = text(&answer);
        assert!(shown.contains("\"data\": [0.5, -1, \"x\"]"), "{shown}");
        assert_eq!(serde_json::from_str::<Value>(&shown).expect("JSON"), answer);
    }
}
