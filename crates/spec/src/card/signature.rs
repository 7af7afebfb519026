//! A card's interface as tensors, so that clients of the Open Inference Protocol can call it.
//!
//! | a property of the schema's object | tensor |
//! |---|---|
//! | `string` | BYTES `[-1]` |
//! | `number` | FP64 `[-1]` |
//! | `integer` | INT64 `[-1]` |
//! | `boolean` | BOOL `[-1]` |
//! | arrays of these, nested to any depth | `[-1, -1, …]`; an array of one length everywhere has that length |
//! | a schema with anything else | one BYTES tensor `[-1]`, `request` or `response`, whose elements are JSON documents |
//!
//! The first dimension is the row: one row is one request.

use serde_json::{Map, Value};

use crate::{Datatype, Signature, TensorSpec};

/// The tensor of a whole request where its schema is not one of columns.
pub const REQUEST: &str = "request";
/// The tensor of a whole answer where its schema is not one of columns.
pub const RESPONSE: &str = "response";

/// The deepest array. Deeper ones are documents: nobody has tensors of more dimensions.
const MAX_RANK: usize = 8;

/// Documents as tensors.
#[derive(Debug, Clone, PartialEq)]
pub enum Form {
    /// One tensor per property.
    Columns(Vec<Column>),
    /// One tensor of JSON documents, of this name.
    Documents(&'static str),
}

/// A property that is a tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct Column {
    /// The property, and the tensor.
    pub name: String,
    /// The type of its elements.
    pub datatype: Datatype,
    /// Dimensions of one row's value: none for a scalar; -1 where any size goes.
    pub shape: Vec<i64>,
    /// True if every document has it.
    pub required: bool,
    /// True if its schema says nothing beyond type and shape: a tensor that fits needs no further check.
    pub plain: bool,
}

impl Form {
    /// Maps the schema of a request: columns where each property is a tensor, else documents named [`REQUEST`].
    #[must_use]
    pub fn of_input(schema: &Value) -> Self {
        Self::of(schema, REQUEST)
    }

    /// The form of an output schema. An answer without one of its properties could not be told from one with an empty
    /// value, so all of them have to be required.
    #[must_use]
    pub fn of_output(schema: &Value) -> Self {
        match Self::of(schema, RESPONSE) {
            Self::Columns(columns) if columns.iter().all(|column| column.required) => Self::Columns(columns),
            _ => Self::Documents(RESPONSE),
        }
    }

    fn of(schema: &Value, whole: &'static str) -> Self {
        columns(schema).map_or(Self::Documents(whole), Self::Columns)
    }

    /// One tensor per column, or the one of documents.
    #[must_use]
    pub fn tensors(&self) -> Vec<TensorSpec> {
        match self {
            Self::Columns(columns) => columns.iter().map(Column::spec).collect(),
            Self::Documents(name) => {
                vec![TensorSpec { name: (*name).to_owned(), datatype: Datatype::Bytes, shape: vec![-1] }]
            }
        }
    }
}

impl Column {
    /// The tensor's signature: a row dimension of -1 before the shape of one row.
    #[must_use]
    pub fn spec(&self) -> TensorSpec {
        let shape = std::iter::once(-1).chain(self.shape.iter().copied()).collect();
        TensorSpec { name: self.name.clone(), datatype: self.datatype, shape }
    }
}

/// The signature of a card with these schemas.
#[must_use]
pub fn signature(input: &Value, output: &Value) -> Signature {
    Signature {
        inputs: Form::of_input(input).tensors(),
        outputs: Form::of_output(output).tensors(),
        ..Signature::default()
    }
}

fn columns(schema: &Value) -> Option<Vec<Column>> {
    let schema = schema.as_object()?;
    // What relates properties to each other cannot be seen in columns, but is still checked: it makes them not plain.
    let known = ["type", "properties", "required", "additionalProperties", "$schema", "$id", "$comment"];
    let related = schema.keys().any(|key| !known.contains(&key.as_str()) && !is_note(key));
    if schema.get("type")?.as_str()? != "object" || schema.contains_key("$ref") {
        return None;
    }
    let required = schema.get("required").and_then(Value::as_array);
    let required = |name: &str| required.is_some_and(|list| list.iter().any(|one| one.as_str() == Some(name)));
    let properties = schema.get("properties")?.as_object()?;
    let of = |(name, schema): (&String, &Value)| {
        let element = element(schema.as_object()?, 0)?;
        let Element { datatype, shape, plain } = element;
        Some(Column { name: name.clone(), datatype, shape, required: required(name), plain: plain && !related })
    };
    let columns: Option<Vec<Column>> = properties.iter().map(of).collect();
    columns.filter(|columns| !columns.is_empty())
}

struct Element {
    datatype: Datatype,
    shape: Vec<i64>,
    plain: bool,
}

fn element(schema: &Map<String, Value>, depth: usize) -> Option<Element> {
    let kind = schema.get("type")?.as_str()?;
    let bare = |known: &[&str]| schema.keys().all(|key| known.contains(&key.as_str()) || is_note(key));
    let scalar = |datatype| Some(Element { datatype, shape: Vec::new(), plain: bare(&["type"]) });
    match kind {
        "string" => scalar(Datatype::Bytes),
        "number" => scalar(Datatype::Fp64),
        "integer" => scalar(Datatype::Int64),
        "boolean" => scalar(Datatype::Bool),
        "array" if depth < MAX_RANK => {
            let inner = element(schema.get("items")?.as_object()?, depth + 1)?;
            let bound = |key: &str| schema.get(key).and_then(Value::as_i64);
            let length = match (bound("minItems"), bound("maxItems")) {
                (Some(least), Some(most)) if least == most => most,
                _ => -1,
            };
            // Bounds of a length that is not fixed still have to be looked at.
            let plain =
                if length < 0 { bare(&["type", "items"]) } else { bare(&["type", "items", "minItems", "maxItems"]) };
            let shape = std::iter::once(length).chain(inner.shape).collect();
            Some(Element { datatype: inner.datatype, shape, plain: plain && inner.plain })
        }
        _ => None,
    }
}

/// Words of a schema that say nothing about what fits.
fn is_note(key: &str) -> bool {
    ["title", "description", "default", "examples", "deprecated", "$comment", "readOnly", "writeOnly"].contains(&key)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn column(name: &str, datatype: Datatype, shape: &[i64]) -> Column {
        Column { name: name.to_owned(), datatype, shape: shape.to_vec(), required: true, plain: true }
    }

    fn object(property: &Value) -> Value {
        json!({"type": "object", "required": ["a"], "properties": {"a": property}})
    }

    #[test]
    fn scalars_and_arrays_are_columns() {
        let numbers = json!({"type": "array", "items": {"type": "number"}});
        let plain = |datatype, shape: &[i64]| column("a", datatype, shape);
        let cases = [
            (json!({"type": "string", "description": "a text"}), plain(Datatype::Bytes, &[])),
            (json!({"type": "number"}), plain(Datatype::Fp64, &[])),
            (json!({"type": "integer"}), plain(Datatype::Int64, &[])),
            (json!({"type": "boolean"}), plain(Datatype::Bool, &[])),
            (numbers.clone(), plain(Datatype::Fp64, &[-1])),
            (json!({"type": "array", "items": numbers}), plain(Datatype::Fp64, &[-1, -1])),
            (
                json!({"type": "array", "minItems": 4, "maxItems": 4, "items": {"type": "number"}}),
                plain(Datatype::Fp64, &[4]),
            ),
            (
                json!({"type": "array", "minItems": 1, "items": {"type": "integer"}}),
                Column { plain: false, ..column("a", Datatype::Int64, &[-1]) },
            ),
            (json!({"type": "string", "minLength": 1}), Column { plain: false, ..column("a", Datatype::Bytes, &[]) }),
        ];
        for (property, expected) in cases {
            assert_eq!(Form::of_input(&object(&property)), Form::Columns(vec![expected]), "{property}");
        }
    }

    #[test]
    fn anything_else_is_documents() {
        let cases = [
            json!(true),
            json!({"type": "array", "items": {"type": "number"}}),
            json!({"type": "object"}),
            json!({"type": "object", "properties": {}}),
            json!({"$ref": "#/$defs/a"}),
            object(&json!({"type": ["number", "null"]})),
            object(&json!({"type": "object", "properties": {"b": {"type": "number"}}})),
            object(&json!({"enum": ["x"]})),
            object(&json!({"type": "array"})),
        ];
        for schema in cases {
            assert_eq!(Form::of_input(&schema), Form::Documents(REQUEST), "{schema}");
        }
    }

    #[test]
    fn an_answer_has_all_its_columns() {
        let schema = json!({"type": "object", "properties": {"label": {"type": "string"}}});
        assert_eq!(Form::of_output(&schema), Form::Documents(RESPONSE));
        assert!(matches!(Form::of_input(&schema), Form::Columns(columns) if !columns[0].required));
    }

    #[test]
    fn the_signature_of_a_card() {
        let input = json!({"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}});
        let output = json!({"type": "object", "properties": {"scores": {"type": "object"}}});
        let signature = signature(&input, &output);
        let spec = |name: &str| TensorSpec { name: name.to_owned(), datatype: Datatype::Bytes, shape: vec![-1] };
        assert_eq!(
            signature,
            Signature { inputs: vec![spec("text")], outputs: vec![spec("response")], ..Signature::default() }
        );
    }
}
