//! `docs/manifest.md`, made from the schema and so from the doc comments of the raw structs.

use std::fmt::Write as _;

use serde_json::Value as Json;

use super::schema::{Kinds, alias_json_schema, branches, function_json_schema, json_schema};

const INTRODUCTION: &str = "# Manifest reference

<!-- Generated from crates/spec/src/manifest/raw: `UPDATE=1 cargo test -p berth-spec reference` rewrites it. -->

A manifest declares a model (`kind: ModelDeployment`), another name for models (`kind: Alias`) or code beside them (`kind: Function`). It is YAML or JSON, with any number of documents in one file; a document may be a list of them, as `berth get -o json` prints it. Unknown fields are errors.

```yaml
apiVersion: berth.dev/v1
kind: ModelDeployment
metadata:
  name: iris
spec:
  model: {format: onnx, uri: file:iris.onnx}
```

Durations are written `500ms`, `30s`, `10m`, `1h30m`, `2d`; sizes `512MiB`, `1.5GiB`, `200MB`, `64B`. A size
without a unit is in bytes, and below 1 MiB an error.
`berth validate -f FILE` checks a manifest without a server; `berth schema manifest`, `berth schema alias` and `berth schema
function` print the JSON schemas that editors understand. Your text is kept and returned as you wrote it; `berth describe` shows the spec with all defaults.

## ModelDeployment

| field | type | default | meaning |
|---|---|---|---|
";

const ALIAS: &str = "
## Alias

An alias is a name that leads to deployments of its namespace, by weight ([serving.md](serving.md)). Deployments and aliases share their names.

```yaml
apiVersion: berth.dev/v1
kind: Alias
metadata:
  name: iris
spec:
  targets:
  - {deployment: iris-v1, weight: 90}
  - {deployment: iris-v2, weight: 10}
  sticky: {header: x-user}
```

| field | type | default | meaning |
|---|---|---|---|
";

const FUNCTION: &str = "
## Function

Code that Berth builds and runs beside models ([functions.md](functions.md)). A function may have the name of a model.

```yaml
apiVersion: berth.dev/v1
kind: Function
metadata:
  name: words
spec:
  type: python
  sourceUri: file:words
  entrypoint: handler.predict
  target: {platform: local}
```

| field | type | default | meaning |
|---|---|---|---|
";

/// Writes docs/manifest.md: every kind with its fields, types, defaults and meanings.
#[must_use]
pub fn reference_markdown() -> String {
    let mut out = INTRODUCTION.to_owned();
    fields(json_schema(), "", &mut out);
    out.push_str(ALIAS);
    fields(alias_json_schema(), "", &mut out);
    out.push_str(FUNCTION);
    fields(function_json_schema(), "", &mut out);
    out
}

fn fields(schema: &Json, path: &str, out: &mut String) {
    for branch in branches(schema) {
        if let Some(items) = branch.get("items") {
            fields(items, &format!("{path}[]"), out);
        }
        if let Some(each) = branch.get("additionalProperties").filter(|each| each.is_object()) {
            fields(each, &format!("{path}.*"), out);
        }
        let Some(properties) = branch.get("properties").and_then(Json::as_object) else { continue };
        let required = |name: &str| {
            branch.get("required").and_then(Json::as_array).is_some_and(|names| names.iter().any(|n| n == name))
        };
        let mut ordered: Vec<_> = properties.iter().collect();
        ordered.sort_by_key(|(name, _)| !required(name));
        for (name, field) in ordered {
            let full = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            row(&full, field, required(name), out);
            fields(field, &full, out);
        }
    }
}

fn row(path: &str, field: &Json, required: bool, out: &mut String) {
    let default = match field.get("default") {
        _ if required => "**required**".to_owned(),
        None | Some(Json::Null | Json::Object(_) | Json::Array(_)) => "–".to_owned(),
        Some(Json::String(text)) => format!("`{text}`"),
        Some(other) => format!("`{other}`"),
    };
    let meaning = field.get("description").and_then(Json::as_str).unwrap_or_default().replace('\n', " ");
    let words = words(field);
    // Formatting into a string cannot fail.
    let _ = writeln!(out, "| `{path}` | {} | {default} | {meaning}{words} |", kind(field));
}

fn kind(field: &Json) -> String {
    let branches = branches(field);
    if branches.is_empty() {
        return "anything".to_owned();
    }
    let kinds = branches.iter().map(|branch| {
        let bounds = branch.get("maximum").map(|max| {
            let min = branch.get("minimum").map_or_else(|| "0".to_owned(), Json::to_string);
            format!(" {}–{}", min.trim_end_matches(".0"), max.to_string().trim_end_matches(".0"))
        });
        Kinds::names(&[branch]).trim_start_matches("a ").to_owned() + &bounds.unwrap_or_default()
    });
    let mut kinds: Vec<String> = kinds.filter(|kind| !kind.is_empty()).collect();
    kinds.dedup();
    kinds.join(" or ")
}

/// The words of an enumeration with their meaning.
fn words(field: &Json) -> String {
    let mut out = String::new();
    for branch in branches(field) {
        if let Some(word) = branch.get("const").and_then(Json::as_str) {
            let meaning = branch.get("description").and_then(Json::as_str).unwrap_or_default().replace('\n', " ");
            let _ = write!(out, " `{word}`{}{meaning}", if meaning.is_empty() { "" } else { ": " });
        } else if let Some(words) = branch.get("enum").and_then(Json::as_array) {
            let list: Vec<String> = words.iter().filter_map(Json::as_str).map(|word| format!("`{word}`")).collect();
            let _ = write!(out, " One of {}.", list.join(", "));
        }
    }
    out
}
