//! Contract check between two versions of a model: the requests that clients may send and the answers that they get.
//!
//! ```text
//! requests: all that the old input schema took, the new one must take
//! answers:  all that the new output schema allows, the old one must have allowed
//! ```
//! Both are the same question, `takes less(from, to)`, asked in the two directions. It is answered for the keywords that people
//! write (types, required and known properties, enumerations, bounds, items, patterns); references inside of a document are
//! followed. Where schemas are made of `anyOf` and the like and differ, it says so, and people should look.

use std::collections::BTreeSet;
use std::fmt;

use berth_spec::card::Interface;
use serde_json::{Map, Value};

/// A way in which clients of the old version may fail with the new one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Break {
    /// Side on which clients may fail: their requests, or the answers that they get.
    pub side: Side,
    /// The place in the document, as a JSON pointer; empty: the document itself.
    pub path: String,
    /// Description of the difference for people.
    pub message: String,
}

/// A side of the model that its card has a schema for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// Requests, by the input schema.
    Input,
    /// Answers, by the output schema.
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
const WHOLE: [&str; 23] = [
    "pattern",
    "const",
    "format",
    "multipleOf",
    "anyOf",
    "oneOf",
    "allOf",
    "not",
    "$ref",
    "$dynamicRef",
    "patternProperties",
    "prefixItems",
    "propertyNames",
    "contains",
    "minContains",
    "maxContains",
    "uniqueItems",
    "dependentRequired",
    "dependentSchemas",
    "if",
    "then",
    "else",
    "unevaluatedProperties",
];

/// Keywords that hold schemas for reference. Their contents matter only where something refers to them.
const DEFINITION_KEYWORDS: [&str; 2] = ["$defs", "definitions"];

/// Depth at which the comparison stops. Deeper than the nesting of real documents, and bounds hostile ones.
const DEPTH: usize = 32;

/// The ways in which clients of `old` may fail with `new`.
#[must_use]
pub fn breaks(old: &Interface, new: &Interface) -> Vec<Break> {
    let mut found = Vec::new();
    for (side, from, to) in
        [(Side::Input, &old.input_schema, &new.input_schema), (Side::Output, &new.output_schema, &old.output_schema)]
    {
        Comparison { side, from, to, followed: BTreeSet::new(), found: &mut found }.takes_less(from, to, "", 0);
    }
    found
}

struct Comparison<'a> {
    side: Side,
    /// The documents, which references are looked up in.
    from: &'a Value,
    to: &'a Value,
    /// Pairs of schemas reached by references, by address: shared ones are reported once, and recursion ends.
    followed: BTreeSet<(usize, usize)>,
    found: &'a mut Vec<Break>,
}

impl Comparison<'_> {
    /// Reports what `from` takes and `to` does not. For inputs `from` is the old one, for outputs the new one.
    fn takes_less(&mut self, from: &Value, to: &Value, path: &str, depth: usize) {
        // What took nothing cannot take less.
        if depth > DEPTH || *to == Value::Bool(true) || *from == Value::Bool(false) {
            return;
        }
        let (target_from, target_to) = (target(self.from, from), target(self.to, to));
        if target_from.is_some() || target_to.is_some() {
            let (from, to) = (target_from.unwrap_or(from), target_to.unwrap_or(to));
            if self.followed.insert((std::ptr::from_ref(from).addr(), std::ptr::from_ref(to).addr())) {
                self.takes_less(from, to, path, depth + 1);
            }
            return;
        }
        if from == to && !refers(from) {
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
        if let Some(to_rest) = to.get("additionalProperties").filter(|rest| rest.is_object()) {
            let from_rest = from.get("additionalProperties").unwrap_or(&Value::Bool(true));
            self.takes_less(from_rest, to_rest, &format!("{path}/*"), depth + 1);
        }
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

/// Resolves a schema that consists of a reference into its own document.
fn target<'v>(document: &'v Value, schema: &Value) -> Option<&'v Value> {
    /// Keywords that say nothing of what is taken.
    const ANNOTATION_KEYWORDS: [&str; 6] = ["title", "description", "default", "examples", "deprecated", "$comment"];
    let fields = schema.as_object()?;
    let pointer = fields.get("$ref")?.as_str()?.strip_prefix('#')?;
    let alone = fields.keys().all(|key| {
        key == "$ref" || ANNOTATION_KEYWORDS.contains(&key.as_str()) || DEFINITION_KEYWORDS.contains(&key.as_str())
    });
    if alone { document.pointer(pointer) } else { None }
}

/// True if a schema contains references. Equal texts may then mean different things.
fn refers(schema: &Value) -> bool {
    match schema {
        Value::Object(fields) => {
            let parts = fields.iter().filter(|(key, _)| !DEFINITION_KEYWORDS.contains(&key.as_str()));
            fields.contains_key("$ref") || parts.into_iter().any(|(_, part)| refers(part))
        }
        Value::Array(items) => items.iter().any(refers),
        _ => false,
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
mod tests;
