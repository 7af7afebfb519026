//! The reference of the custom resources, docs/kubernetes-api.md, from their definitions. `UPDATE=1` writes it.

use std::collections::BTreeSet;

use berth_operator::{api::spokes::SPOKES, install::custom_resources};
use berth_spec::dialect::custom_resources::DIALECT;
use serde_json::Value;

const HEAD: &str = "# Custom resources

<!-- generated: UPDATE=1 cargo test -p berth-operator -->

All fields of the objects of [Kubernetes](kubernetes.md), from their schemas; `kubectl explain` shows the same. `[]` stands for the entries of a
list, `map` for names with values. *As in a pod* means that Kubernetes' own field is passed on as it is written.
";

const SAME: &str = "\nIts `spec` has the fields of `spec.model` of a CLOpsDeployment.\n";

const VERSIONS: &str = "
## Older versions

`berth.dev/v1` is stored. The older versions of CLOpsDeployment and ModelDeployment are served beside it, and each of these objects can be read and
written in all of them ([Versions](kubernetes.md#versions)). They differ in these fields, whose places are those in the spec of a ModelDeployment, and in `spec.model` of a
CLOpsDeployment:

";

fn rows(schema: &Value, path: &str, table: &mut String) {
    let required = |name: &str| schema["required"].as_array().is_some_and(|names| names.iter().any(|one| one == name));
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let list = field["type"] == "array";
        let path = format!("{path}{name}{}", if list { "[]" } else { "" });
        let inner = if list { &field["items"] } else { field };
        let kind = match inner["type"].as_str() {
            Some("object") if inner["additionalProperties"].is_object() => "map",
            Some(kind) => kind,
            None => "any",
        };
        let bounds = match (inner["minimum"].as_f64(), inner["maximum"].as_f64()) {
            (Some(least), Some(most)) => format!(", {least} to {most}"),
            _ => String::new(),
        };
        let must = if required(name) { ", required" } else { "" };
        let text = field["description"].as_str().unwrap_or_default();
        table.push_str(&format!("| `{path}` | {kind}{bounds}{must} | {text} |\n"));
        rows(inner, &format!("{path}."), table);
    }
}

fn definition(definition: &Value, text: &mut String) {
    let names = &definition["spec"]["names"];
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let list = |values: &Value| values.as_array().into_iter().flatten().map(word).collect::<Vec<_>>().join(", ");
    let kind = word(&names["kind"]);
    let versions = definition["spec"]["versions"].as_array().expect("versions");
    let said: Vec<String> = versions.iter().map(|version| word(&version["name"])).collect();
    let schema = &versions[0]["schema"]["openAPIV3Schema"];
    let about = word(&schema["description"]);
    let (group, short) = (word(&definition["spec"]["group"]), list(&names["shortNames"]));
    text.push_str(&format!(
        "\n## {kind}\n\n{about}\n\nGroup `{group}`; versions {}; short name `{short}`.\n",
        said.join(", ")
    ));
    for part in ["spec", "status"] {
        match (kind.as_str(), part) {
            ("ModelDeployment", "spec") => text.push_str(SAME),
            ("CLOpsDeployment", "status") => {
                text.push_str("\nIts `status` has the fields of that of a ModelDeployment, but `render`.\n")
            }
            _ => {
                text.push_str("\n| field | form | meaning |\n|---|---|---|\n");
                rows(&schema["properties"][part], &format!("{part}."), text);
            }
        }
    }
}

fn older_versions(text: &mut String) {
    text.push_str(VERSIONS);
    text.push_str("| v1 | version | there |\n|---|---|---|\n");
    for spoke in &SPOKES {
        for (stored, here) in spoke.differences() {
            let here = match here {
                Some((place, "")) => format!("`{place}`"),
                Some((place, form)) => format!("`{place}`, {form}"),
                None => "none".to_owned(),
            };
            text.push_str(&format!("| `{stored}` | {} | {here} |\n", spoke.version));
        }
    }
}

#[test]
fn the_page_lists_every_field() {
    let mut text = HEAD.to_owned();
    for one in custom_resources("berth") {
        definition(&one, &mut text);
    }
    older_versions(&mut text);
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/kubernetes-api.md");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::File::create(path)
            .and_then(|mut file| std::io::Write::write_all(&mut file, text.as_bytes()))
            .expect("written");
    }
    let page = std::fs::read_to_string(path).unwrap_or_default();
    assert!(page == text, "the page is old: UPDATE=1 cargo test -p berth-operator");
}

#[test]
fn docs_dialects_has_every_field_of_a_model() {
    let definitions = custom_resources("berth");
    let of_model = |one: &&Value| one["spec"]["names"]["kind"] == "ModelDeployment";
    let model = definitions.iter().find(of_model).expect("a definition");
    let spec = &model["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    let fields = spec["properties"].as_object().expect("fields").keys();
    let fields: BTreeSet<String> = fields.map(|name| format!("spec.{name}")).collect();
    let rows = DIALECT.fields.iter().map(|field| field.path.to_owned());
    let rows: BTreeSet<String> = rows.filter(|path| path.starts_with("spec.")).collect();
    assert_eq!(rows, fields);
}
