//! Holds a document against the schema made from the raw structs and reports everything that is wrong at once, each
//! with its place, instead of the first thing as a deserializer would.

use serde_json::{Map, Value as Json};

use super::{
    MOST_ERRORS,
    lines::Lines,
    node::{Key, Node, Position, Value},
    scalar::{self, Problem},
    schema::{Kinds, branches, find_field},
    suggest::closest,
};

/// A problem, with the place and the path of the field.
#[derive(Debug)]
pub(super) struct Finding {
    pub(super) at: Position,
    pub(super) path: String,
    pub(super) problem: Problem,
}

/// Everything about `document`, which was read from the text of `lines`, that does not fit `schema`; of more than [`MOST_ERRORS`]
/// one more.
pub(super) fn check(document: &Node, lines: &Lines<'_>, schema: &Json) -> Vec<Finding> {
    let mut checker = Checker { lines, root: schema, findings: Vec::new() };
    checker.node(document, schema, &mut String::new());
    checker.findings
}

struct Checker<'s> {
    lines: &'s Lines<'s>,
    root: &'s Json,
    findings: Vec<Finding>,
}

impl Checker<'_> {
    fn found(&mut self, at: Position, path: &str, message: impl Into<String>, remedy: impl Into<String>) {
        self.note(at, path, Problem::new(message, remedy));
    }

    fn note(&mut self, at: Position, path: &str, problem: Problem) {
        if !self.is_full() {
            self.findings.push(Finding { at, path: path.to_owned(), problem });
        }
    }

    /// A text of megabytes may be wrong a million times, and nobody reads so many errors.
    fn is_full(&self) -> bool {
        self.findings.len() > MOST_ERRORS
    }

    fn node(&mut self, node: &Node, schema: &Json, path: &mut String) {
        let branches = branches(schema);
        if branches.is_empty() {
            return; // anything goes
        }
        let fitting: Vec<_> = branches.iter().copied().filter(|branch| Kinds::of(branch).take(&node.value)).collect();
        if fitting.is_empty() {
            return self.wrong_kind(node, &branches, path);
        }
        let words: Vec<&str> = fitting.iter().flat_map(|branch| words(branch)).collect();
        if let (Value::Text(text), false) = (&node.value, words.is_empty()) {
            return self.word(node, text, &words, path);
        }
        let Some(Json::Object(schema)) = fitting.first().copied() else { return };
        match &node.value {
            Value::Text(text) => self.text(node, text, schema, path),
            Value::Number(number) => self.number(node, number, schema, path),
            Value::List(items) => self.list(node, items, schema, path),
            Value::Map(fields) => self.map(node, fields, schema, path),
            Value::Null | Value::Bool(_) => {}
        }
    }

    fn wrong_kind(&mut self, node: &Node, branches: &[&Json], path: &str) {
        let wanted = Kinds::names(branches);
        let example = branches.iter().find_map(|branch| branch.pointer("/examples/0"));
        let wanted_here = match example.and_then(Json::as_str) {
            Some(example) => format!("{wanted}, for example {example}"),
            None => wanted.clone(),
        };
        let quoted = wanted == "text";
        let (message, remedy) = match &node.value {
            Value::Null => ("nothing is given here".to_owned(), format!("write {wanted_here}, or remove the line")),
            Value::Number(n) if quoted => match node.at.word(self.lines) {
                Some(written) => (format!("{written} is a number"), format!("put it in quotes: \"{written}\"")),
                // 1.10 became 1.1 before it came here.
                None => (format!("{n} is a number"), "put it in quotes, with the digits that are meant".to_owned()),
            },
            Value::Bool(b) if quoted => (format!("{b} is not text"), format!("put it in quotes: \"{b}\"")),
            Value::Number(n) => (format!("{n} where {wanted} is expected"), format!("write {wanted_here}")),
            _ => (format!("{} where {wanted} is expected", node.kind()), format!("write {wanted_here}")),
        };
        self.found(node.at, path, message, remedy);
    }

    fn word(&mut self, node: &Node, text: &str, words: &[&str], path: &str) {
        if words.contains(&text) {
            return;
        }
        let remedy = match closest(text, words.iter().copied()) {
            Some(near) => format!("did you mean {near}?"),
            None if words.len() == 1 => format!("write {}", words[0]),
            None => format!("use one of {}", words.join(", ")),
        };
        self.found(node.at, path, format!("{:?} is not known here", shortened(text)), remedy);
    }

    fn text(&mut self, node: &Node, text: &str, schema: &Map<String, Json>, path: &str) {
        let format = schema.get("format").and_then(Json::as_str).unwrap_or_default();
        if let Err(problem) = scalar::check(format, text) {
            self.note(node.at, path, problem);
        }
    }

    fn number(&mut self, node: &Node, number: &serde_json::Number, schema: &Map<String, Json>, path: &str) {
        let (min, max) = (schema.get("minimum"), schema.get("maximum"));
        let value = number.as_f64().unwrap_or(f64::NAN);
        let low = min.and_then(Json::as_f64).is_some_and(|min| value < min);
        let high = max.and_then(Json::as_f64).is_some_and(|max| value > max);
        if low || high {
            let remedy = match (min, max) {
                (Some(min), Some(max)) => format!("give {min} to {max}"),
                (Some(min), None) => format!("give at least {min}"),
                (_, max) => format!("give at most {}", max.unwrap_or(&Json::Null)),
            };
            self.found(node.at, path, format!("{number} is too {}", if low { "low" } else { "high" }), remedy);
        } else if schema.get("type").is_some_and(Json::is_array) {
            // A number that may also be written as text is checked as that is: a size needs a unit.
            let format = schema.get("format").and_then(Json::as_str).unwrap_or_default();
            if let Err(problem) = scalar::check(format, &number.to_string()) {
                self.found(node.at, path, problem.message, problem.remedy);
            }
        }
    }

    fn list(&mut self, node: &Node, items: &[Node], schema: &Map<String, Json>, path: &mut String) {
        if schema.get("minItems").and_then(Json::as_u64).is_some_and(|min| (items.len() as u64) < min) {
            self.found(node.at, path, "the list is empty", "give at least one entry");
        }
        let Some(item_schema) = schema.get("items") else { return };
        for (i, item) in items.iter().enumerate() {
            self.below(path, &format!("[{i}]"), |checker, path| checker.node(item, item_schema, path));
        }
    }

    fn map(&mut self, node: &Node, fields: &[(Key, Node)], schema: &Map<String, Json>, path: &mut String) {
        let empty = Map::new();
        let known = schema.get("properties").and_then(Json::as_object).unwrap_or(&empty);
        for (key, value) in fields {
            let field_schema = known.get(&key.name).or_else(|| match schema.get("additionalProperties") {
                Some(Json::Bool(false)) => None,
                other => Some(other.unwrap_or(&Json::Bool(true))),
            });
            let dot = if path.is_empty() { "" } else { "." };
            self.below(path, &format!("{dot}{}", key.name), |checker, path| match field_schema {
                Some(field_schema) => checker.node(value, field_schema, path),
                None => checker.unknown_field(key, known, path),
            });
        }
        for name in schema.get("required").and_then(Json::as_array).into_iter().flatten().filter_map(Json::as_str) {
            if !fields.iter().any(|(key, _)| key.name == name) {
                let dot = if path.is_empty() { "" } else { "." };
                let message = format!("the field {name:?} is missing");
                let remedy = format!("add {}", known.get(name).map_or_else(String::new, |field| example(name, field)));
                let missing = format!("{path}{dot}{name}");
                self.found(node.at, &missing, message, remedy);
            }
        }
    }

    fn unknown_field(&mut self, key: &Key, known: &Map<String, Json>, path: &str) {
        let names = known.keys().map(String::as_str);
        let remedy = match closest(&key.name, names.clone()) {
            Some(near) => format!("did you mean {near:?}?"),
            None => match find_field(self.root, &key.name) {
                Some(place) => format!("it belongs into {place}"),
                None => format!("fields here: {}", names.collect::<Vec<_>>().join(", ")),
            },
        };
        self.found(key.at, path, format!("the field {:?} is not known here", shortened(&key.name)), remedy);
    }

    /// Runs `then` with `path` one step deeper, unless enough is wrong already.
    fn below(&mut self, path: &mut String, step: &str, then: impl FnOnce(&mut Self, &mut String)) {
        if self.is_full() {
            return;
        }
        let length = path.len();
        path.push_str(step);
        then(self, path);
        path.truncate(length);
    }
}

/// The words that a schema of `enum` or `const` takes, other spellings included.
fn words(schema: &Json) -> Vec<&str> {
    let list = |key| schema.get(key).and_then(Json::as_array).into_iter().flatten();
    schema.get("const").into_iter().chain(list("enum")).chain(list("x-aliases")).filter_map(Json::as_str).collect()
}

/// An example of the field: `name: …` with a word, an example or the kind of value that its schema takes.
fn example(name: &str, schema: &Json) -> String {
    let branches = branches(schema);
    let words: Vec<&str> = branches.iter().flat_map(|branch| words(branch)).collect();
    match (words.as_slice(), schema.pointer("/examples/0").and_then(Json::as_str)) {
        ([word, ..], _) => format!("`{name}: {word}`"),
        (_, Some(example)) => format!("`{name}: {example}`"),
        _ => format!("{name:?}, {}", Kinds::names(&branches)),
    }
}

/// Enough of a text from outside to recognise it.
pub(super) fn shortened(text: &str) -> String {
    const MOST: usize = 40;
    if text.chars().count() <= MOST { text.to_owned() } else { text.chars().take(MOST).chain(['…']).collect() }
}
