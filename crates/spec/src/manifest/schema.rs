//! The JSON schema of a manifest, made from the raw structs, and how to read one.

use std::sync::OnceLock;

use schemars::{JsonSchema, generate::SchemaSettings};
use serde_json::Value as Json;

use super::{
    node::Value,
    raw::{RawAlias, RawDeployment, RawFunction},
    scalar::{Location, Size, Span},
};

/// The JSON schema (draft 2020-12, without references) of a `ModelDeployment`.
pub fn json_schema() -> &'static Json {
    static SCHEMA: OnceLock<Json> = OnceLock::new();
    SCHEMA.get_or_init(|| schema_of::<RawDeployment>("ModelDeployment"))
}

/// The JSON schema (draft 2020-12, without references) of an `Alias`.
pub fn alias_json_schema() -> &'static Json {
    static SCHEMA: OnceLock<Json> = OnceLock::new();
    SCHEMA.get_or_init(|| schema_of::<RawAlias>("Alias"))
}

/// The JSON schema (draft 2020-12, without references) of a `Function`.
pub fn function_json_schema() -> &'static Json {
    static SCHEMA: OnceLock<Json> = OnceLock::new();
    SCHEMA.get_or_init(|| schema_of::<RawFunction>("Function"))
}

fn schema_of<T: JsonSchema>(title: &str) -> Json {
    let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    if let Some(object) = schema.as_object_mut() {
        object.insert("title".to_owned(), title.into());
    }
    schema
}

/// The alternatives of a schema, nested ones laid flat. Empty: anything goes.
pub(super) fn branches(schema: &Json) -> Vec<&Json> {
    if schema.get("type").is_some() || schema.get("const").is_some() || schema.get("enum").is_some() {
        return vec![schema];
    }
    let alternatives = schema.get("anyOf").or_else(|| schema.get("oneOf")).and_then(Json::as_array);
    alternatives.into_iter().flatten().flat_map(branches).collect()
}

/// The kinds of value that a schema takes.
#[derive(Debug)]
pub(super) struct Kinds<'s>(Vec<&'s str>);

impl<'s> Kinds<'s> {
    /// Of a schema that is not itself made of alternatives.
    pub(super) fn of(schema: &'s Json) -> Self {
        match schema.get("type") {
            Some(Json::String(kind)) => Self(vec![kind]),
            Some(Json::Array(kinds)) => Self(kinds.iter().filter_map(Json::as_str).collect()),
            _ => Self(vec!["string"]), // a `const` or `enum` of words
        }
    }

    /// True if they include the kind of `value`.
    pub(super) fn take(&self, value: &Value) -> bool {
        self.0.iter().any(|&kind| match value {
            Value::Null => kind == "null",
            Value::Bool(_) => kind == "boolean",
            Value::Number(n) => kind == "number" || (kind == "integer" && (n.is_u64() || n.is_i64())),
            Value::Text(_) => kind == "string",
            Value::List(_) => kind == "array",
            Value::Map(_) => kind == "object",
        })
    }

    /// The names of several alternatives, for people.
    pub(super) fn names(branches: &[&Json]) -> String {
        let mut names: Vec<&str> = Vec::new();
        for (format, kind) in branches.iter().flat_map(|&branch| {
            let format = branch.get("format").and_then(Json::as_str).unwrap_or_default();
            Kinds::of(branch).0.into_iter().map(move |kind| (format, kind))
        }) {
            let name = match kind {
                _ if format == Span::FORMAT => "a duration",
                _ if format == Size::FORMAT => "a size",
                _ if format == Location::FORMAT => "a location",
                "null" => continue,
                "boolean" => "true or false",
                "integer" => "a whole number",
                "number" => "a number",
                "array" => "a list",
                "object" => "a mapping",
                _ => "text",
            };
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names.join(" or ")
    }
}

/// The path of the mapping that has a field of that name, where that is a good guess: the first one found.
pub(super) fn find_field(schema: &Json, name: &str) -> Option<String> {
    fn search(schema: &Json, name: &str, path: &str) -> Option<String> {
        let objects = branches(schema);
        let objects = || objects.iter().filter_map(|branch| branch.get("properties").and_then(Json::as_object));
        if objects().any(|fields| fields.contains_key(name)) {
            return Some(if path.is_empty() { "the top level".to_owned() } else { path.to_owned() });
        }
        let dot = if path.is_empty() { "" } else { "." };
        objects().flatten().find_map(|(field, below)| search(below, name, &format!("{path}{dot}{field}")))
    }
    search(schema, name, "")
}

/// The paths of all fields of a `ModelDeployment`, mappings before what they hold: `spec`, `spec.model`, `spec.model.uri`.
pub(crate) fn field_paths() -> Vec<String> {
    paths_of(json_schema())
}

/// The paths of all fields of a `Function`, likewise.
pub(crate) fn function_field_paths() -> Vec<String> {
    paths_of(function_json_schema())
}

fn paths_of(schema: &Json) -> Vec<String> {
    fn walk(schema: &Json, path: &str, found: &mut Vec<String>) {
        for (name, field) in
            branches(schema).iter().filter_map(|b| b.get("properties").and_then(Json::as_object)).flatten()
        {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            found.push(path.clone());
            walk(field, &path, found);
        }
    }
    let mut found = Vec::new();
    walk(schema, "", &mut found);
    found
}
