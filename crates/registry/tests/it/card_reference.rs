//! `docs/model-card.md`, made from the newest schema of model cards and so from its descriptions.

use std::fmt::Write as _;

use berth_git::Protocols;
use berth_registry::{
    CardRules, Matrix, check_card,
    schema::{NEWEST, SchemaKind, VERSIONS, schema_json, schema_text},
};
use berth_spec::manifest::node::{Node, Value};

const INTRODUCTION: &str = "# Model card reference

<!-- Generated from crates/registry/schema: `UPDATE=1 cargo test -p berth-registry card_reference` rewrites it. -->

A model card describes one version of a [model in Python](models.md): its code, packages and weights, and the form of its requests and answers. It is
the file `model-card.yaml` in the model's repository.

```yaml
schemaVersion: \"3.1.0\"
metadata:
  name: iris
  version: 1.2.3
  description: Tells the kind of an iris by its measures
  owner: ml-team@example.com
runtime:
  framework: sklearn
  framework_version: 1.7.2
  python_version: \"3.11\"
  dependencies: [scikit-learn==1.7.2, joblib==1.5.2, numpy==2.3.4]
artifacts:
  storage_type: s3
  model_path: s3://models/iris/v1.2.3/model.joblib
  checksum: 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
code:
  repository: https://git.example.com/ml-team/iris-model.git
  path: src/
  ref: v1.2.3
  entrypoint: src.model
preprocessing: {module: src.preprocessing, function: to_features}
postprocessing: {module: src.postprocessing, function: to_answer}
interface:
  input_schema: {type: object, required: [features]}
  output_schema: {type: object, required: [prediction]}
```

`berth card new FOLDER` writes a card with its code, `berth card check` checks it, and `berth schema model-card` prints the JSON schema that editors
understand. A required field of an optional object, such as `resources.cpu`, is required only if that object is given. A field that is not listed here has no
effect, and `berth card check` warns of it; in `network` it is an error.

| field | type | required | meaning |
|---|---|---|---|
";

/// The reference in Markdown.
fn markdown() -> String {
    let text = schema_text(SchemaKind::ModelCard, NEWEST).expect("it is published");
    let schema = Node::documents(text).expect("YAML").remove(0);
    let mut out = INTRODUCTION.to_owned();
    fields(&schema, "", &mut out);
    out
}

/// A row for each field of an object, in the order of the schema.
fn fields(object: &Node, path: &str, out: &mut String) {
    let Some(properties) = object.get("properties") else { return };
    for name in properties.names() {
        let (full, field) = (format!("{path}{name}"), properties.get(name).expect("it is there"));
        let required = if words(object, "required").iter().any(|word| word == name) { "yes" } else { "–" };
        let mut meaning = field.get("description").and_then(Node::text).unwrap_or_default().to_owned();
        assert!(!meaning.is_empty(), "{full} has no description");
        if !meaning.ends_with('.') {
            meaning.push('.');
        }
        let one_of: Vec<String> = words(field, "enum").iter().map(|word| format!("`{word}`")).collect();
        if !one_of.is_empty() {
            write!(meaning, " One of {}.", one_of.join(", ")).expect("text");
        }
        if let Some(version) = since(&full) {
            write!(meaning, " Since {version}.").expect("text");
        }
        writeln!(out, "| `{full}` | {} | {required} | {meaning} |", kind(field)).expect("text");
        fields(field, &format!("{full}."), out);
    }
}

/// The first version of the schema that has the field; `None`: all have it.
fn since(path: &str) -> Option<&'static str> {
    let pointer: String = path.split('.').map(|name| format!("/properties/{name}")).collect();
    let has = |version: &&str| {
        let schema = schema_json(SchemaKind::ModelCard, version).expect("it is published");
        schema.pointer(&pointer).is_some()
    };
    VERSIONS.into_iter().find(has).filter(|version| *version != VERSIONS[0])
}

/// The type of a field, with its bounds.
fn kind(field: &Node) -> String {
    let text = |of: &Node, key: &str| of.get(key).and_then(Node::text).unwrap_or_default().to_owned();
    let kind = match (text(field, "type").as_str(), text(field, "format").as_str()) {
        ("string", "email") => "e-mail address",
        ("string", "uri") => "URL",
        ("string", "date-time") => "date and time",
        ("string", _) => "text",
        ("integer", _) => "whole number",
        ("number", _) => "number",
        ("array", _) => "list of texts",
        ("object", _) => "mapping",
        (other, _) => panic!("a name for {other}"),
    };
    let bound = |key: &str| match field.get(key).map(|bound| &bound.value) {
        Some(Value::Number(number)) => Some(number.to_string()),
        _ => None,
    };
    match (bound("minimum"), bound("maximum")) {
        (Some(least), Some(most)) => format!("{kind} {least}–{most}"),
        (Some(least), None) => format!("{kind} from {least}"),
        _ => kind.to_owned(),
    }
}

/// The words of a list.
fn words(of: &Node, key: &str) -> Vec<String> {
    match of.get(key).map(|list| &list.value) {
        Some(Value::List(items)) => items.iter().filter_map(|item| item.text().map(str::to_owned)).collect(),
        _ => Vec::new(),
    }
}

#[test]
fn the_card_reference_is_up_to_date() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/model-card.md");
    let made = markdown();
    if std::env::var_os("UPDATE").is_some() {
        fs_err::write(&path, &made).expect("docs/model-card.md is written");
    }
    let kept = fs_err::read_to_string(&path).unwrap_or_default();
    assert!(kept == made, "docs/model-card.md is out of date: UPDATE=1 cargo test -p berth-registry card_reference");
}

#[test]
fn the_card_of_the_reference_is_right() {
    let (_, rest) = INTRODUCTION.split_once("```yaml\n").expect("a card");
    let (card, _) = rest.split_once("```").expect("its end");
    let matrix = Matrix::embedded();
    let rules = CardRules { matrix: &matrix, today: "2026-11-22", protocols: Protocols::default() };
    let checked = check_card(card, "model-card.yaml", &rules);
    let told: Vec<String> = checked.problems.iter().map(ToString::to_string).collect();
    assert!(told.is_empty(), "{told:?}");
}
