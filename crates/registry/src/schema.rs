//! The published schemas, in every version that this Berth knows, and what is said of a document that does not follow
//! its own.

use std::{collections::BTreeMap, sync::LazyLock};

use berth_spec::manifest::{
    Lines, closest,
    node::{Node, Position, Value as NodeValue},
};
use jsonschema::{ValidationError, Validator, error::ValidationErrorKind as Kind};
use serde_json::Value;

use crate::{
    document::Document,
    problem::{Problem, Step},
};

/// Document that has a published schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SchemaKind {
    /// `model-card.yaml` of a model repository.
    ModelCard,
    /// A manifest below `models/`.
    Deployment,
    /// A worker configuration below `workers/`.
    WorkerConfig,
    /// File `registry.yaml`.
    Settings,
}

/// The newest version: of manifests and worker configurations, which do not say one.
pub const NEWEST: &str = "3.1.0";

/// The versions of schemas, oldest first.
pub const VERSIONS: [&str; 2] = ["3.0.0", NEWEST];

/// The compatibility matrix that this Berth comes with.
pub const MATRIX: &str = include_str!("../schema/compatibility-matrix.yaml");

const SETTINGS: &str = include_str!("../schema/settings.schema.yaml");

/// The text of a schema, as it is published; `None` for a version that has none.
#[must_use]
pub fn schema_text(kind: SchemaKind, version: &str) -> Option<&'static str> {
    Some(match (kind, version) {
        (SchemaKind::ModelCard, "3.0.0") => include_str!("../schema/3.0.0/model-card.schema.yaml"),
        (SchemaKind::ModelCard, "3.1.0") => include_str!("../schema/3.1.0/model-card.schema.yaml"),
        (SchemaKind::Deployment, "3.0.0") => include_str!("../schema/3.0.0/registry.schema.yaml"),
        (SchemaKind::Deployment, "3.1.0") => include_str!("../schema/3.1.0/registry.schema.yaml"),
        (SchemaKind::WorkerConfig, "3.0.0") => include_str!("../schema/3.0.0/worker-config.schema.yaml"),
        (SchemaKind::WorkerConfig, "3.1.0") => include_str!("../schema/3.1.0/worker-config.schema.yaml"),
        (SchemaKind::Settings, _) => SETTINGS,
        _ => return None,
    })
}

/// A schema as JSON; `None` for a version that has none.
#[must_use]
pub fn schema_json(kind: SchemaKind, version: &str) -> Option<Value> {
    compiled(kind, version).map(|schema| schema.json.clone())
}

struct Schema {
    json: Value,
    validator: Validator,
}

fn compiled(kind: SchemaKind, version: &str) -> Option<&'static Schema> {
    static ALL: LazyLock<BTreeMap<(SchemaKind, &'static str), Schema>> = LazyLock::new(|| {
        let kinds = [SchemaKind::ModelCard, SchemaKind::Deployment, SchemaKind::WorkerConfig, SchemaKind::Settings];
        let each = kinds.into_iter().flat_map(|kind| VERSIONS.map(|version| (kind, version)));
        each.filter_map(|(kind, version)| Some(((kind, version), compile(schema_text(kind, version)?)))).collect()
    });
    let version = if kind == SchemaKind::Settings { NEWEST } else { version };
    ALL.iter().find(|((k, v), _)| *k == kind && *v == version).map(|(_, schema)| schema)
}

fn compile(text: &str) -> Schema {
    let node = Node::documents(text).ok().and_then(|mut found| found.pop()).expect("embedded schemas are YAML");
    let json = node.to_json();
    let validator = jsonschema::draft202012::options()
        .should_validate_formats(true)
        .build(&json)
        .expect("embedded schemas are right");
    Schema { json, validator }
}

/// Deviation of a document from its schema.
#[derive(Debug)]
pub(crate) struct Finding {
    /// Position as a JSON pointer.
    pub(crate) pointer: String,
    /// True if a value does not match a pattern.
    pub(crate) is_pattern: bool,
    pub(crate) problem: Problem,
}

/// Checks a document against a schema. Returns all errors in reading order, then warnings for fields without effect;
/// `None` for a version without a schema.
pub(crate) fn check(
    kind: SchemaKind,
    version: &str,
    document: &Document,
    step: Step,
    file: &str,
    text: &str,
) -> Option<Vec<Finding>> {
    let schema = compiled(kind, version)?;
    let lines = Lines::of(text);
    let mut findings: Vec<Finding> = Vec::new();
    let mut tell = |pointer: String, is_pattern, (message, remedy): (String, String)| {
        let (place, path) = document.place(&pointer);
        let problem = Problem::new(step, "schema", file, message).at(place, &path, text).remedy(remedy);
        findings.push(Finding { pointer, is_pattern, problem });
    };
    for error in schema.validator.iter_errors(&document.json).take(MAX_FINDINGS) {
        let pointer = error.instance_path().as_str();
        match error.kind() {
            // At the fields themselves, not at what is around them.
            Kind::AdditionalProperties { unexpected } => {
                let known = known_beside(&schema.json, error.schema_path().as_str());
                for name in unexpected.iter().take(MAX_FINDINGS) {
                    let remedy = match closest(name, known.iter().copied()) {
                        Some(near) => format!("did you mean {near}?"),
                        None => format!("remove it; there are {}", known.join(", ")),
                    };
                    tell(below(pointer, name), false, (format!("{name} is no field here"), remedy));
                }
            }
            Kind::Type { kind } => {
                let (place, _) = document.place(pointer);
                let written = as_written(error.instance(), place, &lines);
                tell(pointer.to_owned(), false, wrong_type(&written, error.instance(), &type_words(kind)));
            }
            kind => tell(pointer.to_owned(), matches!(kind, Kind::Pattern { .. }), words(&error)),
        }
    }
    let mut unknown = Vec::new();
    find_unknown(&document.node, &schema.json, "", &mut unknown);
    for (parent, name, near) in unknown.into_iter().take(MAX_FINDINGS) {
        let pointer = below(&parent, &name);
        let (place, path) = document.place(&pointer);
        let remedy = near.map_or_else(|| "remove it".to_owned(), |near| format!("did you mean {near}?"));
        let message = format!("{name} is not a field of the schema and has no effect");
        let problem = Problem::new(step, "unknown-field", file, message).at(place, &path, text).remedy(remedy);
        findings.push(Finding { pointer, is_pattern: false, problem: problem.warning() });
    }
    findings.sort_by_key(|finding| (finding.problem.line, finding.problem.column));
    Some(findings)
}

/// The pointer to a field of what a pointer names.
fn below(parent: &str, name: &str) -> String {
    format!("{parent}/{}", name.replace('~', "~0").replace('/', "~1"))
}

/// The fields that a schema names where `path` says that no others are allowed.
fn known_beside<'s>(schema: &'s Value, path: &str) -> Vec<&'s str> {
    let around = path.rsplit_once('/').and_then(|(parent, _)| schema.pointer(parent));
    let known = around.and_then(|around| around.get("properties")).and_then(Value::as_object);
    known.into_iter().flat_map(|known| known.keys().map(String::as_str)).collect()
}

/// Findings of one kind reported per document. Keeps one wrong file from filling the report.
const MAX_FINDINGS: usize = 50;

/// A number or a word as it stands in the text, anything else in words.
fn as_written(value: &Value, place: Position, lines: &Lines<'_>) -> String {
    let word = matches!(value, Value::Number(_) | Value::Bool(_)).then(|| place.word(lines)).flatten();
    word.map_or_else(|| shown(value), str::to_owned)
}

/// Something is of another type than it should be.
fn wrong_type(written: &str, value: &Value, wanted: &str) -> (String, String) {
    let remedy = match value {
        Value::Number(_) | Value::Bool(_) if wanted == "text" => format!("put it in quotes: \"{written}\""),
        _ => format!("write {wanted}"),
    };
    (format!("{written} is not {wanted}"), remedy)
}

/// Description and remedy of a schema error.
fn words(error: &ValidationError<'_>) -> (String, String) {
    let given = shown(error.instance());
    match error.kind() {
        Kind::Required { property } => {
            let name = property.as_str().unwrap_or_default();
            (format!("{name} is missing"), format!("add {name}"))
        }
        Kind::Enum { options } => {
            let known: Vec<&str> = options.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            let near = error.instance().as_str().and_then(|word| closest(word, known.iter().copied()));
            let remedy = match near {
                Some(near) => format!("did you mean {near}?"),
                None => format!("write one of {}", known.join(", ")),
            };
            (format!("{given} is not one of {}", known.join(", ")), remedy)
        }
        Kind::Pattern { pattern } if is_endpoint(pattern) => (
            format!("{given} is neither a path nor the URL of an HTTP endpoint"),
            "write for example https://api.example.com/v1/sentiment, or /v1/sentiment".to_owned(),
        ),
        Kind::Pattern { pattern } if is_pin(pattern) => {
            (format!("{given} is no package with one version"), example(pattern).unwrap_or_default())
        }
        Kind::Pattern { pattern } => {
            (format!("{given} does not have the form {pattern}"), example(pattern).unwrap_or_default())
        }
        Kind::Format { format } => match format.as_str() {
            "email" => (format!("{given} is no e-mail address"), "write name@example.com".to_owned()),
            "uri" => (format!("{given} is no URL"), "write it with its scheme: https://host/path".to_owned()),
            "date-time" => (format!("{given} is no date and time"), "write \"2025-10-28T10:30:00Z\"".to_owned()),
            other => (format!("{given} is no {other}"), String::new()),
        },
        Kind::Minimum { limit } | Kind::ExclusiveMinimum { limit } => {
            (format!("{given} is too small"), format!("write at least {limit}"))
        }
        Kind::Maximum { limit } | Kind::ExclusiveMaximum { limit } => {
            (format!("{given} is too large"), format!("write at most {limit}"))
        }
        Kind::MinLength { limit } => (format!("{given} is too short"), format!("write at least {limit} letters")),
        Kind::MinItems { limit } => ("the list is too short".to_owned(), format!("name at least {limit}")),
        _ => (error.to_string(), String::new()),
    }
}

/// Short form of a value.
fn shown(value: &Value) -> String {
    /// Characters: enough to find it.
    const LONGEST: usize = 60;
    match value {
        Value::Object(_) => "a mapping".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::Null => "nothing".to_owned(),
        other => {
            let text = other.to_string();
            if text.chars().count() > LONGEST {
                text.chars().take(LONGEST).chain("…".chars()).collect()
            } else {
                text
            }
        }
    }
}

fn type_words(kind: &jsonschema::error::TypeKind) -> String {
    let one = |name: &str| {
        match name {
            "string" => "text",
            "object" => "a mapping",
            "array" => "a list",
            "boolean" => "true or false",
            "integer" => "a whole number",
            "number" => "a number",
            other => other,
        }
        .to_owned()
    };
    match kind {
        jsonschema::error::TypeKind::Single(kind) => one(&kind.to_string()),
        jsonschema::error::TypeKind::Multiple(kinds) => {
            kinds.iter().map(|kind| one(&kind.to_string())).collect::<Vec<_>>().join(" or ")
        }
    }
}

/// True for the pattern of a package with its version, which is too long to be shown.
fn is_pin(pattern: &str) -> bool {
    pattern.contains(")?==([0-9]+!)?")
}

/// True for the pattern of the address that a model answers at: a path, or a URL that has one.
fn is_endpoint(pattern: &str) -> bool {
    pattern.starts_with("^([Hh][Tt][Tt][Pp]")
}

/// Example of a value that matches a pattern of the schemas.
fn example(pattern: &str) -> Option<String> {
    let words = match pattern {
        r"^\d+\.\d+\.\d+$" => "write MAJOR.MINOR.PATCH, for example 1.2.3",
        r"^\d+\.\d+$" => "write MAJOR.MINOR in quotes, for example \"3.11\"",
        r"^[a-z0-9-]+$" => "use lower-case letters, digits and dashes",
        r"^worker-[a-z0-9-]+$" => "begin it with worker-, then lower-case letters, digits and dashes",
        r"^\d+(Mi|Gi)$" => "write a whole number with Mi or Gi, for example 4Gi",
        r"^[a-z]{2}-[a-z]+-\d+$" => "write a region, for example us-east-1",
        pin if is_pin(pin) => "pin it as pip freeze does, for example numpy==1.26.4 or torch==2.9.0+cpu",
        r"^(v\d+\.\d+\.\d+|[0-9a-f]{7,40})$" => "pin it to a tag (v1.2.3) or a commit (7 to 40 digits), never a branch",
        r"^[0-9a-f]{64}$" => "write the 64 hexadecimal digits that sha256sum prints",
        _ => return None,
    };
    Some(words.to_owned())
}

/// Fields that the schema does not name, where it names all that are read: parent, name and the name that is near.
fn find_unknown(node: &Node, schema: &Value, parent: &str, found: &mut Vec<(String, String, Option<String>)>) {
    let NodeValue::Map(fields) = &node.value else { return };
    let Some(known) = schema.get("properties").and_then(Value::as_object) else { return };
    let open = schema.get("additionalProperties").is_some();
    for (key, value) in fields {
        match known.get(&key.name) {
            Some(part) => find_unknown(value, part, &format!("{parent}/{}", key.name), found),
            None if open || key.name.starts_with("x-") => {}
            None => {
                let absent = known.keys().map(String::as_str).filter(|name| node.get(name).is_none());
                let near = closest(&key.name, absent).map(str::to_owned);
                found.push((parent.to_owned(), key.name.clone(), near));
            }
        }
    }
}
