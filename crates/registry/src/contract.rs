//! Whether a new version of a model keeps the contract of the old one: what clients may send and what they get.
//!
//! ```text
//! requests: all that the old input schema took, the new one must take
//! answers:  all that the new output schema allows, the old one must have allowed
//! ```
//! Both are the same question, `takes less(from, to)`, asked in the two directions. It is answered for the keywords that people
//! write (types, required and known properties, enumerations, bounds, items, patterns); where schemas are made of `anyOf`,
//! `$ref` and the like and differ, it says that it cannot tell, which people should look at, too.

use std::collections::BTreeSet;
use std::fmt;

use berth_spec::card::Interface;
use serde_json::{Map, Value};

/// A way in which clients of the old version may fail with the new one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Break {
    /// Which side of the model.
    pub side: Side,
    /// The place in the document, as a JSON pointer; empty: the document itself.
    pub path: String,
    /// What differs, for people.
    pub message: String,
}

/// A side of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// What clients send.
    Input,
    /// What they get.
    Output,
}

impl fmt::Display for Break {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = match self.side {
            Side::Input => "input",
            Side::Output => "output",
        };
        write!(f, "{side}{}: {}", self.path, self.message)
    }
}

/// Bounds that get tighter upwards, and downwards.
const LOWER: [&str; 5] = ["minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"];
const UPPER: [&str; 5] = ["maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"];

/// Keywords that are compared as a whole: a difference may be a break.
const WHOLE: [&str; 11] = [
    "pattern",
    "const",
    "format",
    "multipleOf",
    "anyOf",
    "oneOf",
    "allOf",
    "not",
    "$ref",
    "patternProperties",
    "prefixItems",
];

/// Deeper than this nothing is compared. Halved, schemas of nested documents are looked at half; doubled, one made to be deep
/// costs more time than it is worth.
const DEPTH: usize = 32;

/// The ways in which clients of `old` may fail with `new`.
#[must_use]
pub fn breaks(old: &Interface, new: &Interface) -> Vec<Break> {
    let mut found = Vec::new();
    Comparison { side: Side::Input, found: &mut found }.takes_less(&old.input_schema, &new.input_schema, "", 0);
    Comparison { side: Side::Output, found: &mut found }.takes_less(&new.output_schema, &old.output_schema, "", 0);
    found
}

struct Comparison<'a> {
    side: Side,
    found: &'a mut Vec<Break>,
}

impl Comparison<'_> {
    /// Reports what `from` takes and `to` does not. For inputs `from` is the old one, for outputs the new one.
    fn takes_less(&mut self, from: &Value, to: &Value, path: &str, depth: usize) {
        if from == to || depth > DEPTH || *to == Value::Bool(true) {
            return;
        }
        let empty = Map::new();
        let (Some(from), Some(to)) = (object(from, &empty), object(to, &empty)) else {
            return self.tell(
                path,
                "nothing is allowed here any more",
                "anything may be here, where nothing was allowed",
            );
        };
        self.types(from, to, path);
        self.words(from, to, path);
        self.bounds(from, to, path);
        self.properties(from, to, path, depth);
        if let Some(to_items) = to.get("items") {
            let from_items = from.get("items").unwrap_or(&Value::Bool(true));
            self.takes_less(from_items, to_items, &format!("{path}/*"), depth + 1);
        }
        for keyword in WHOLE {
            if let Some(value) = to.get(keyword).filter(|value| from.get(keyword) != Some(value)) {
                let shown = shortened(value);
                self.tell(path, &format!("{keyword} is now {shown}"), &format!("{keyword} was {shown} and is no more"));
            }
        }
    }

    /// One difference, in the words of the side: for inputs `to` is what is new, for outputs what was.
    fn tell(&mut self, path: &str, input: &str, output: &str) {
        let message = match self.side {
            Side::Input => input,
            Side::Output => output,
        };
        self.found.push(Break { side: self.side, path: path.to_owned(), message: message.to_owned() });
    }

    fn types(&mut self, from: &Map<String, Value>, to: &Map<String, Value>, path: &str) {
        let Some(to_types) = types(to) else { return };
        let from_types = types(from);
        let lost: Vec<&str> = match &from_types {
            Some(from) => from.iter().copied().filter(|kind| !takes(&to_types, kind)).collect(),
            None => vec!["anything else"],
        };
        if !lost.is_empty() {
            let (lost, kept) = (lost.join(", "), to_types.iter().copied().collect::<Vec<_>>().join(", "));
            self.tell(
                path,
                &format!("{lost} is not taken any more, only {kept}"),
                &format!("{lost} may come where {kept} came"),
            );
        }
    }

    fn words(&mut self, from: &Map<String, Value>, to: &Map<String, Value>, path: &str) {
        let Some(to_words) = to.get("enum").and_then(Value::as_array) else { return };
        let only = || to_words.iter().map(shortened).collect::<Vec<_>>().join(", ");
        match from.get("enum").and_then(Value::as_array) {
            None => self.tell(path, &format!("only {} are taken", only()), &format!("more than {} may come", only())),
            Some(from_words) => {
                for word in from_words.iter().filter(|word| !to_words.contains(word)).map(shortened) {
                    self.tell(
                        path,
                        &format!("{word} is not taken any more"),
                        &format!("{word} may come, which is new"),
                    );
                }
            }
        }
    }

    fn bounds(&mut self, from: &Map<String, Value>, to: &Map<String, Value>, path: &str) {
        let number = |schema: &Map<String, Value>, key: &str| schema.get(key).and_then(Value::as_f64);
        for (keys, tighter) in [(LOWER, 1.0), (UPPER, -1.0)] {
            for key in keys {
                let Some(bound) = number(to, key) else { continue };
                let before = number(from, key);
                if before.is_some_and(|before| (bound - before) * tighter <= 0.0) {
                    continue;
                }
                let before = before.map_or_else(|| "not bounded".to_owned(), |before| before.to_string());
                let input = format!("{key} was {before} and is {bound}");
                self.tell(path, &input, &format!("{key} was {bound} and is {before}"));
            }
        }
    }

    fn properties(&mut self, from: &Map<String, Value>, to: &Map<String, Value>, path: &str, depth: usize) {
        let (from_required, to_required) = (required(from), required(to));
        for name in to_required.difference(&from_required) {
            let at = format!("{path}/{}", escaped(name));
            self.tell(&at, "it must be given now", "it may be missing now");
        }
        let closed = |schema: &Map<String, Value>| schema.get("additionalProperties") == Some(&Value::Bool(false));
        let (from_known, to_known) = (known(from), known(to));
        if closed(to) && !closed(from) {
            self.tell(
                path,
                "properties that are not listed are not taken any more",
                "there may be properties that were not listed",
            );
        }
        let anything = Value::Bool(true);
        for (name, to_schema) in &to_known {
            let from_schema = from_known.iter().find(|(known, _)| known == name).map(|(_, schema)| *schema);
            let at = format!("{path}/{}", escaped(name));
            match from_schema {
                Some(from_schema) => self.takes_less(from_schema, to_schema, &at, depth + 1),
                // Whoever sent it before was not bound to anything; a closed one never let it through.
                None if closed(from) => {}
                None => self.takes_less(&anything, to_schema, &at, depth + 1),
            }
        }
        if closed(to) && closed(from) {
            for (name, _) in from_known.iter().filter(|(name, _)| to_known.iter().all(|(known, _)| known != name)) {
                let at = format!("{path}/{}", escaped(name));
                self.tell(&at, "it is not taken any more", "it may be there, which is new");
            }
        }
    }
}

/// A schema as an object: `true` says nothing, `false` is none.
fn object<'v>(schema: &'v Value, empty: &'v Map<String, Value>) -> Option<&'v Map<String, Value>> {
    match schema {
        Value::Object(map) => Some(map),
        Value::Bool(true) => Some(empty),
        _ => None,
    }
}

fn types(schema: &Map<String, Value>) -> Option<BTreeSet<&str>> {
    match schema.get("type")? {
        Value::String(kind) => Some(BTreeSet::from([kind.as_str()])),
        Value::Array(kinds) => Some(kinds.iter().filter_map(Value::as_str).collect()),
        _ => None,
    }
}

fn takes(kinds: &BTreeSet<&str>, kind: &str) -> bool {
    kinds.contains(kind) || (kind == "integer" && kinds.contains("number"))
}

fn required(schema: &Map<String, Value>) -> BTreeSet<&str> {
    schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect()
}

fn known(schema: &Map<String, Value>) -> Vec<(&String, &Value)> {
    schema.get("properties").and_then(Value::as_object).into_iter().flatten().collect()
}

/// A name in a JSON pointer.
fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

fn shortened(value: &Value) -> String {
    const MOST: usize = 60;
    let text = value.to_string();
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn interface(input: Value, output: Value) -> Interface {
        Interface { input_schema: input, output_schema: output, batch_size: None }
    }

    fn said(old: (Value, Value), new: (Value, Value)) -> Vec<String> {
        breaks(&interface(old.0, old.1), &interface(new.0, new.1)).iter().map(ToString::to_string).collect()
    }

    fn text(extra: Value) -> Value {
        let mut schema = json!({"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}});
        schema.as_object_mut().expect("it is one").extend(extra.as_object().expect("one").clone());
        schema
    }

    #[test]
    fn what_clients_of_the_old_version_would_notice() {
        let plain = || text(json!({}));
        let cases: [(&str, Value, Value, &[&str]); 9] = [
            ("nothing", plain(), plain(), &[]),
            (
                "a new field that may be left out",
                plain(),
                text(json!({"properties": {"text": {"type": "string"}, "lang": {}}})),
                &[],
            ),
            (
                "a field that must be given",
                plain(),
                text(json!({"required": ["text", "lang"]})),
                &["input/lang: it must be given now"],
            ),
            (
                "a shorter text",
                plain(),
                text(json!({"properties": {"text": {"type": "string", "maxLength": 10}}})),
                &["input/text: maxLength was not bounded and is 10"],
            ),
            (
                "a longer text",
                text(json!({"properties": {"text": {"type": "string", "maxLength": 10}}})),
                text(json!({"properties": {"text": {"type": "string", "maxLength": 20}}})),
                &[],
            ),
            (
                "another type",
                plain(),
                text(json!({"properties": {"text": {"type": "array"}}})),
                &["input/text: string is not taken any more, only array"],
            ),
            (
                "whole numbers are numbers",
                text(json!({"properties": {"text": {"type": "integer"}}})),
                text(json!({"properties": {"text": {"type": "number"}}})),
                &[],
            ),
            (
                "closed",
                plain(),
                text(json!({"additionalProperties": false})),
                &["input: properties that are not listed are not taken any more"],
            ),
            ("it takes nothing", plain(), json!(false), &["input: nothing is allowed here any more"]),
        ];
        for (what, old, new, expected) in cases {
            assert_eq!(said((old, json!({})), (new, json!({}))), expected, "{what}");
        }
    }

    #[test]
    fn answers_are_looked_at_the_other_way_round() {
        let label = |words: Value, required: Value| json!({"type": "object", "required": required, "properties": {"label": {"enum": words}}});
        let old = label(json!(["a", "b"]), json!(["label"]));
        let same = || json!(true);
        assert!(said((same(), old.clone()), (same(), label(json!(["a"]), json!(["label"])))).is_empty(), "fewer words");
        assert_eq!(
            said((same(), old.clone()), (same(), label(json!(["a", "c"]), json!([])))),
            ["output/label: it may be missing now", "output/label: \"c\" may come, which is new"]
        );
    }

    fn schema() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            any::<bool>().prop_map(Value::Bool),
            proptest::sample::select(vec!["string", "number", "integer", "object"])
                .prop_map(|kind| json!({"type": kind})),
            (0..5, 0..5).prop_map(|(low, high)| json!({"minimum": low, "maxLength": high})),
        ];
        leaf.prop_recursive(3, 12, 3, |inner| {
            (proptest::collection::btree_map("[a-c/~]", inner, 0..3), any::<bool>()).prop_map(|(properties, open)| {
                let required: Vec<_> = properties.keys().take(1).cloned().collect();
                json!({"type": "object", "required": required, "properties": properties, "additionalProperties": open})
            })
        })
    }

    proptest! {
        #[test]
        fn a_contract_keeps_itself_and_what_takes_anything_breaks_nothing(input in schema(), output in schema()) {
            let same = (input.clone(), output.clone());
            prop_assert!(said(same.clone(), same).is_empty());
            prop_assert!(said((input, Value::Bool(true)), (Value::Bool(true), output)).is_empty());
        }
    }
}
