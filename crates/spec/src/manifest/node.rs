//! A YAML or JSON document as a tree whose every key and value knows its place in the text.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, SeqAccess, Visitor},
};
use serde_saphyr::{Location, Spanned};

use super::lines::Lines;

/// A place in the text: line and column from 1, both 0 where it is not known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The line, from 1.
    pub line: u32,
    /// In characters, from 1.
    pub column: u32,
}

impl Position {
    /// The number or word that stands here in a text, as it is written: YAML reads 3.10 as 3.1, and whoever follows
    /// advice that says so has another version. `None` where none does, for example at an alias.
    #[must_use]
    pub fn word<'t>(self, lines: &Lines<'t>) -> Option<&'t str> {
        let mut rest = lines.line(self.line)?.chars();
        // Skipping characters is fast, and the line may be as long as the text.
        let before = (self.column as usize).checked_sub(1)?;
        if before > 0 {
            rest.nth(before - 1)?;
        }
        let rest = rest.as_str();
        let first = rest.chars().next()?;
        let word = rest.split(|c: char| c.is_whitespace() || matches!(c, ',' | ']' | '}')).next()?;
        (first.is_ascii_alphanumeric() || matches!(first, '+' | '-' | '.')).then_some(word)
    }
}

impl From<Location> for Position {
    fn from(at: Location) -> Self {
        let known = |n: u64| u32::try_from(n).ok().filter(|&n| n < u32::MAX).unwrap_or(0);
        match (known(at.line()), known(at.column())) {
            (0, _) | (_, 0) => Self::default(),
            (line, column) => Self { line, column },
        }
    }
}

/// A value and its place.
#[derive(Debug, Clone)]
pub struct Node {
    /// The place where it begins.
    pub at: Position,
    /// The content, with the places of what is in it.
    pub value: Value,
}

/// The content of a node.
#[derive(Debug, Clone)]
pub enum Value {
    /// `null`, or nothing.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A finite number.
    Number(serde_json::Number),
    /// Text; also `yes`, `on` and the like.
    Text(String),
    /// A list.
    List(Vec<Node>),
    /// A mapping, in reading order; no key twice.
    Map(Vec<(Key, Node)>),
}

/// A key of a map and its place.
#[derive(Debug, Clone)]
pub struct Key {
    /// The place where the key begins.
    pub at: Position,
    /// The key as text.
    pub name: String,
}

impl Node {
    /// The documents of `text`, empty ones left out.
    ///
    /// # Errors
    /// The first error of syntax, or that it is larger or deeper than a file of Berth may be.
    pub fn documents(text: &str) -> Result<Vec<Self>, serde_saphyr::Error> {
        serde_saphyr::from_multiple_with_options(text, options())
    }

    /// A tree without places.
    pub fn of(json: &serde_json::Value) -> Self {
        let value = match json {
            serde_json::Value::Null => Value::Null,
            serde_json::Value::Bool(b) => Value::Bool(*b),
            serde_json::Value::Number(n) => Value::Number(n.clone()),
            serde_json::Value::String(s) => Value::Text(s.clone()),
            serde_json::Value::Array(items) => Value::List(items.iter().map(Self::of).collect()),
            serde_json::Value::Object(fields) => Value::Map(
                fields.iter().map(|(k, v)| (Key { at: Position::default(), name: k.clone() }, Self::of(v))).collect(),
            ),
        };
        Self { at: Position::default(), value }
    }

    /// The same as plain JSON.
    pub fn to_json(&self) -> serde_json::Value {
        match &self.value {
            Value::Null => serde_json::Value::Null,
            Value::Bool(b) => (*b).into(),
            Value::Number(n) => n.clone().into(),
            Value::Text(s) => s.as_str().into(),
            Value::List(items) => items.iter().map(Self::to_json).collect(),
            Value::Map(fields) => fields.iter().map(|(k, v)| (k.name.clone(), v.to_json())).collect(),
        }
    }

    /// The field of that name, where this is a map that has it.
    pub fn get(&self, name: &str) -> Option<&Self> {
        match &self.value {
            Value::Map(fields) => fields.iter().find(|(k, _)| k.name == name).map(|(_, v)| v),
            _ => None,
        }
    }

    /// The names of the fields, where this is a map.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let fields: &[(Key, Self)] = match &self.value {
            Value::Map(fields) => fields,
            _ => &[],
        };
        fields.iter().map(|(key, _)| key.name.as_str())
    }

    /// The text, where this is one. Numbers and booleans are none.
    pub fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The place of the deepest node on the way of `path` (`spec.replicas.min`) that exists.
    pub fn place_of(&self, path: &str) -> Position {
        let mut node = self;
        for name in path.split('.').filter(|name| !name.is_empty()) {
            match node.get(name) {
                Some(next) => node = next,
                None => break,
            }
        }
        node.at
    }

    /// The kind of content, for messages.
    pub const fn kind(&self) -> &'static str {
        match self.value {
            Value::Null => "nothing",
            Value::Bool(_) => "true or false",
            Value::Number(_) => "a number",
            Value::Text(_) => "text",
            Value::List(_) => "a list",
            Value::Map(_) => "a mapping",
        }
    }
}

/// `yes`, `on` and `012` stay text; what a hostile file can cost is bounded.
fn options() -> serde_saphyr::Options {
    serde_saphyr::options! {
        with_snippet: false,
        strict_booleans: true,
        // One file may declare every model of a large installation: 100,000 documents of 40 nodes, at about 100 bytes a node.
        budget: serde_saphyr::budget! {
            max_documents: 100_000,
            max_nodes: 4_000_000,
            max_events: 12_000_000,
            max_aliases: 10_000,
            max_depth: 64,
            flow_nesting_limit: 64,
        },
        // Aliases are a convenience; what they unfold to in sum stays below what people write by hand.
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: 100_000 },
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Value>::deserialize(deserializer)?;
        Ok(Self { at: spanned.referenced.into(), value: spanned.value })
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_bool<E>(self, v: bool) -> Result<Value, E> {
        Ok(Value::Bool(v))
    }

    fn visit_i64<E>(self, v: i64) -> Result<Value, E> {
        Ok(Value::Number(v.into()))
    }

    fn visit_u64<E>(self, v: u64) -> Result<Value, E> {
        Ok(Value::Number(v.into()))
    }

    fn visit_f64<E: serde::de::Error>(self, v: f64) -> Result<Value, E> {
        match serde_json::Number::from_f64(v) {
            Some(number) => Ok(Value::Number(number)),
            None => Err(E::custom("the number is not finite")),
        }
    }

    fn visit_str<E>(self, v: &str) -> Result<Value, E> {
        Ok(Value::Text(v.to_owned()))
    }

    fn visit_string<E>(self, v: String) -> Result<Value, E> {
        Ok(Value::Text(v))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Value::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut map = Vec::new();
        while let Some((key, value)) = fields.next_entry::<Spanned<String>, Node>()? {
            map.push((Key { at: key.referenced.into(), name: key.value }, value));
        }
        Ok(Value::Map(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_and_value_knows_its_place() {
        let text = "a:\n  - b: 1\n    c: [x, {d: off}]\n---\n---\n{\"e\":\n\t{\"f\": 1.5}}\n";
        let docs = Node::documents(text).expect("two documents");
        assert_eq!(docs.len(), 2);
        let Value::List(items) = &docs[0].get("a").expect("a").value else { panic!("a list") };
        let c = items[0].get("c").expect("c");
        assert_eq!((c.at.line, c.at.column), (3, 8));
        let Value::List(items) = &c.value else { panic!("a list") };
        assert_eq!(items[1].get("d").and_then(Node::text), Some("off"));
        let Value::Map(fields) = &docs[1].get("e").expect("e").value else { panic!("a map") };
        assert_eq!((fields[0].0.at.line, fields[0].0.at.column), (7, 3));
        assert_eq!(docs[1].to_json(), serde_json::json!({"e": {"f": 1.5}}));
        assert_eq!(docs[1].place_of("e.f.g"), fields[0].1.at);
    }

    #[test]
    fn a_word_is_given_as_it_is_written() {
        let text = "é: [1.10, {v: 0x1F}]\nw: &a 2.50\nx: *a";
        let lines = Lines::of(text);
        let at = |line, column| Position { line, column }.word(&lines);
        assert_eq!([at(1, 5), at(1, 15), at(2, 7)], [Some("1.10"), Some("0x1F"), Some("2.50")]);
        assert_eq!([at(2, 4), at(3, 4), at(9, 1), at(3, 9), at(0, 0)], [None; 5]);
    }

    #[test]
    fn hostile_documents_are_refused() {
        let deep = format!("a: {}{}", "[".repeat(100), "]".repeat(100));
        let laughs = "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b]\n\
                      d: &d [*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d]\nf: [*e,*e,*e,*e,*e,*e,*e]\n";
        for text in [deep.as_str(), laughs, "a: 1\na: 2\n", "a: [", "a: .nan", "? [1]\n: 2"] {
            assert!(Node::documents(text).is_err(), "{text}");
        }
    }
}
