//! A request that fits an input schema, for the validation inference: always the same one.
//!
//! Author's words come first (`const`, `examples`, `default`, `enum`), then the least that the type and its bounds
//! allow. What comes out is checked against the schema: what this does not understand ends as an error, not as a request
//! that the model refuses.

use regex_syntax::hir::{Class, Hir, HirKind};
use serde_json::{Map, Value, json};

use super::schema::{Schema, told};

/// The deepest value. Recursive schemas end here.
const MAX_DEPTH: usize = 24;

/// The most values and characters: images as nested lists of numbers fit, and a schema cannot make the worker allocate
/// more.
const MAX_PARTS: usize = 4 << 20;

/// A text where nothing is said about it.
const TEXT: &str = "example";

/// Tests for a request that the schema's author wrote as a whole.
pub(super) fn is_given(schema: &Schema) -> bool {
    schema.json().as_object().is_some_and(|object| given(object, 0).is_some())
}

/// Makes a request that fits.
pub(super) fn request(schema: &Schema) -> Result<Value, String> {
    let mut maker = Maker { root: schema.json(), left: MAX_PARTS };
    let remedy = "give one in the schema's `examples`, or in the deployment's warmup";
    let made = maker.of(schema.json(), 0, 0).map_err(|why| format!("no test request can be made: {why}; {remedy}"))?;
    let violations = schema.violations(&made);
    if violations.is_empty() {
        return Ok(made);
    }
    Err(format!("no test request can be made from the input schema ({}); {remedy}", told(&violations)))
}

struct Maker<'a> {
    root: &'a Value,
    left: usize,
}

impl<'a> Maker<'a> {
    /// The `nth` value of a schema: others only where there are others.
    fn of(&mut self, schema: &'a Value, nth: usize, depth: usize) -> Result<Value, String> {
        self.spend(1)?;
        if depth > MAX_DEPTH {
            return Err("the schema is nested too deeply".to_owned());
        }
        let Some(object) = schema.as_object() else {
            return if schema == &Value::Bool(false) { Err("a schema is `false`".to_owned()) } else { Ok(Value::Null) };
        };
        if let Some(given) = given(object, nth) {
            return Ok(given);
        }
        if let Some(target) = object.get("$ref").and_then(Value::as_str) {
            let place = target.strip_prefix('#').and_then(|pointer| self.root.pointer(pointer));
            let place = place.ok_or_else(|| format!("{target:?} is not a place in the schema"))?;
            return self.of(place, nth, depth + 1);
        }
        for key in ["anyOf", "oneOf"] {
            if let Some(first) = object.get(key).and_then(Value::as_array).and_then(|options| options.first()) {
                let base = self.typed(object, nth, depth)?;
                let option = self.of(first, nth, depth + 1)?;
                return Ok(merged(base, option));
            }
        }
        let mut made = self.typed(object, nth, depth)?;
        for part in object.get("allOf").and_then(Value::as_array).into_iter().flatten() {
            let part = self.of(part, nth, depth + 1)?;
            made = merged(made, part);
        }
        Ok(made)
    }

    fn typed(&mut self, schema: &'a Map<String, Value>, nth: usize, depth: usize) -> Result<Value, String> {
        let kind = match schema.get("type") {
            Some(Value::String(kind)) => kind.as_str(),
            Some(Value::Array(kinds)) => kinds.iter().find_map(Value::as_str).unwrap_or("null"),
            _ if schema.contains_key("properties") => "object",
            _ if schema.contains_key("items") => "array",
            _ if schema.contains_key("pattern") || schema.contains_key("minLength") => "string",
            _ if schema.contains_key("minimum") => "number",
            _ => "null",
        };
        match kind {
            "object" => self.object(schema, depth),
            "array" => self.array(schema, depth),
            "string" => self.text(schema, nth).map(Value::String),
            "integer" => Ok(json!(number(schema, true, nth).floor() as i64)),
            "number" => Ok(json!(number(schema, false, nth))),
            "boolean" => Ok(Value::Bool(nth % 2 == 1)),
            _ => Ok(Value::Null),
        }
    }

    /// A sample of an object: its required properties, or all if none is required.
    fn object(&mut self, schema: &'a Map<String, Value>, depth: usize) -> Result<Value, String> {
        let empty = Map::new();
        let properties = schema.get("properties").and_then(Value::as_object);
        let required: Vec<&str> =
            schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
        let all: Vec<&str> = properties.unwrap_or(&empty).keys().map(String::as_str).collect();
        let names = if required.is_empty() { all } else { required };
        let mut made = Map::new();
        for name in names {
            let value = match properties.and_then(|properties| properties.get(name)) {
                Some(schema) => self.of(schema, 0, depth + 1).map_err(|why| format!("{name:?}: {why}"))?,
                None => Value::Null,
            };
            made.insert(name.to_owned(), value);
        }
        Ok(Value::Object(made))
    }

    /// As many as there must be, and at least one if one may be.
    fn array(&mut self, schema: &'a Map<String, Value>, depth: usize) -> Result<Value, String> {
        let bound = |key: &str| schema.get(key).and_then(Value::as_u64).map(|bound| bound as usize);
        let first: Vec<&Value> = schema.get("prefixItems").and_then(Value::as_array).into_iter().flatten().collect();
        let count = bound("minItems").unwrap_or(0).max(1).max(first.len()).min(bound("maxItems").unwrap_or(usize::MAX));
        self.spend(count)?;
        let distinct = schema.get("uniqueItems") == Some(&Value::Bool(true));
        let mut made = Vec::new();
        for index in 0..count {
            let nth = if distinct { index } else { 0 };
            made.push(match first.get(index).copied().or_else(|| schema.get("items")) {
                Some(items) => self.of(items, nth, depth + 1)?,
                None => json!(index),
            });
        }
        Ok(Value::Array(made))
    }

    fn text(&mut self, schema: &Map<String, Value>, nth: usize) -> Result<String, String> {
        let bound = |key: &str| schema.get(key).and_then(Value::as_u64).map(|bound| bound as usize);
        if let Some(pattern) = schema.get("pattern").and_then(Value::as_str) {
            let hir = regex_syntax::parse(pattern).map_err(|_| format!("the pattern {pattern:?} is not understood"))?;
            let mut text = String::new();
            self.matching(&hir, &mut text)?;
            return Ok(text);
        }
        if let Some(text) = schema.get("format").and_then(Value::as_str).and_then(formatted) {
            return Ok(text.to_owned());
        }
        let (least, most) = (bound("minLength").unwrap_or(0), bound("maxLength").unwrap_or(usize::MAX));
        let text = if nth == 0 { TEXT.to_owned() } else { format!("{nth} {TEXT}") };
        let count = text.chars().count().max(least).min(most);
        self.spend(count)?;
        Ok(text.chars().chain([' ']).cycle().take(count).collect())
    }

    /// The shortest text that matches, more or less.
    fn matching(&mut self, hir: &Hir, into: &mut String) -> Result<(), String> {
        self.spend(1)?;
        match hir.kind() {
            HirKind::Empty | HirKind::Look(_) => {}
            HirKind::Literal(literal) => into.push_str(&String::from_utf8_lossy(&literal.0)),
            HirKind::Class(class) => into.push(one_of(class).ok_or("a pattern's class of characters is empty")?),
            HirKind::Repetition(repetition) => {
                // Once where it may be left out altogether: `.*` says little, but an empty text less.
                let times = repetition.min.max(1).min(repetition.max.unwrap_or(u32::MAX));
                for _ in 0..times {
                    self.matching(&repetition.sub, into)?;
                }
            }
            HirKind::Capture(capture) => self.matching(&capture.sub, into)?,
            HirKind::Concat(parts) => parts.iter().try_for_each(|part| self.matching(part, into))?,
            HirKind::Alternation(options) => {
                if let Some(first) = options.first() {
                    self.matching(first, into)?;
                }
            }
        }
        Ok(())
    }

    fn spend(&mut self, parts: usize) -> Result<(), String> {
        self.left = self.left.checked_sub(parts).ok_or("the least that fits is too large")?;
        Ok(())
    }
}

/// The author's own example.
fn given(schema: &Map<String, Value>, nth: usize) -> Option<Value> {
    let listed = |key: &str| schema.get(key).and_then(Value::as_array).and_then(|list| list.get(nth).or(list.first()));
    let one = schema.get("const").or_else(|| listed("examples"));
    one.or_else(|| schema.get("example")).or_else(|| schema.get("default")).or_else(|| listed("enum")).cloned()
}

/// Objects together; else the one that says something.
fn merged(base: Value, more: Value) -> Value {
    match (base, more) {
        (Value::Object(mut base), Value::Object(more)) => {
            base.extend(more);
            Value::Object(base)
        }
        (base, Value::Null) => base,
        (_, more) => more,
    }
}

/// The number nearest to zero within the bounds, counted on from there.
fn number(schema: &Map<String, Value>, whole: bool, nth: usize) -> f64 {
    let bound = |key: &str| schema.get(key).and_then(Value::as_f64);
    let step = bound("multipleOf").filter(|step| *step > 0.0).unwrap_or(if whole { 1.0 } else { 0.0 });
    let (mut least, mut most) = (f64::NEG_INFINITY, f64::INFINITY);
    for (key, exclusive) in [("minimum", false), ("exclusiveMinimum", true)] {
        if let Some(bound) = bound(key) {
            least = least.max(if exclusive { above(bound, step, schema) } else { bound });
        }
    }
    for key in ["maximum", "exclusiveMaximum"] {
        most = most.min(bound(key).unwrap_or(f64::INFINITY));
    }
    if bound("exclusiveMaximum").is_some_and(|bound| bound <= 0.0 && bound == most) {
        most -= if step > 0.0 { step } else { (most - least).min(2.0) / 2.0 };
    }
    let nearest = 0.0_f64.max(least).min(most) + nth as f64;
    if step > 0.0 { (nearest / step).ceil() * step } else { nearest }
}

/// Something above an exclusive bound.
fn above(bound: f64, step: f64, schema: &Map<String, Value>) -> f64 {
    let most = ["maximum", "exclusiveMaximum"].iter().filter_map(|key| schema.get(*key)?.as_f64()).reduce(f64::min);
    if step > 0.0 { bound + step } else { most.map_or(bound + 1.0, |most| bound + (most - bound) / 2.0) }
}

fn one_of(class: &Class) -> Option<char> {
    let Class::Unicode(class) = class else {
        let Class::Bytes(class) = class else { return None };
        return class.ranges().first().map(|range| char::from(range.start()));
    };
    let within = |wanted: char| class.ranges().iter().any(|range| (range.start()..=range.end()).contains(&wanted));
    ['a', 'A', '1', '0', '-', ' ']
        .into_iter()
        .find(|&wanted| within(wanted))
        .or_else(|| class.ranges().first().map(|range| range.start()))
}

fn formatted(format: &str) -> Option<&'static str> {
    Some(match format {
        "date-time" => "2024-01-01T00:00:00Z",
        "date" => "2024-01-01",
        "time" => "00:00:00Z",
        "duration" => "PT1S",
        "email" | "idn-email" => "someone@example.com",
        "hostname" | "idn-hostname" => "example.com",
        "ipv4" => "192.0.2.1",
        "ipv6" => "2001:db8::1",
        "uri" | "uri-reference" | "iri" | "iri-reference" | "url" => "https://example.com/",
        "uuid" => "00000000-0000-4000-8000-000000000000",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(schema: &Value) -> Result<Value, String> {
        request(&Schema::compile("interface.input_schema", schema).expect("a schema"))
    }

    #[test]
    fn the_author_is_asked_first() {
        for (schema, expected) in [
            (json!({"const": 7}), json!(7)),
            (json!({"type": "string", "examples": ["mine"], "default": "other"}), json!("mine")),
            (json!({"type": "string", "default": "other"}), json!("other")),
            (json!({"enum": ["first", "second"]}), json!("first")),
            (json!({"type": "object", "required": ["a"], "properties": {"a": {"examples": [1.5]}}}), json!({"a": 1.5})),
        ] {
            assert_eq!(made(&schema), Ok(expected), "{schema}");
        }
    }

    #[test]
    fn types_and_bounds_are_met() {
        // `made` has checked each against its schema.
        for schema in [
            json!({"type": "string"}),
            json!({"type": "string", "minLength": 40, "maxLength": 50}),
            json!({"type": "string", "maxLength": 3}),
            json!({"type": "string", "pattern": "^[A-Z]{3}-\\d{4}(x|y)?$"}),
            json!({"type": "string", "format": "email"}),
            json!({"type": "integer", "minimum": 3, "multipleOf": 5}),
            json!({"type": "integer", "exclusiveMinimum": 3}),
            json!({"type": "integer", "maximum": -3}),
            json!({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}),
            json!({"type": "number", "exclusiveMaximum": -1}),
            json!({"type": ["null", "string"]}),
            json!({"type": "array", "items": {"type": "number"}, "minItems": 4, "maxItems": 4}),
            json!({"type": "array", "items": {"type": "integer"}, "uniqueItems": true, "minItems": 5}),
            json!({"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": true, "minItems": 3}),
            json!({"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "items": false}),
            json!({"anyOf": [{"type": "integer", "minimum": 2}, {"type": "string"}]}),
            json!({"type": "object", "required": ["a"], "properties": {"a": {"$ref": "#/$defs/n"}}, "$defs": {"n": {"type": "integer"}}}),
            json!({"allOf": [{"type": "object", "required": ["a"], "properties": {"a": {"type": "string"}}}, {"type": "object", "required": ["b"], "properties": {"b": {"type": "boolean"}}}]}),
        ] {
            assert!(made(&schema).is_ok(), "{schema}: {:?}", made(&schema));
        }
    }

    #[test]
    fn what_cannot_be_made_says_what_to_give() {
        for schema in [
            json!({"type": "string", "pattern": "^(?=.*x)abc$"}),
            json!({"not": {}}),
            json!(false),
            json!({"type": "array", "minItems": 1_000_000_000, "items": {"type": "number"}}),
            json!({"$ref": "#"}),
            json!({"type": "string", "pattern": "^a{1000}$", "maxLength": 2}),
        ] {
            let why = made(&schema).expect_err("nothing fits");
            assert!(why.contains("`examples`") && why.contains("warmup"), "{schema}: {why}");
        }
    }
}
