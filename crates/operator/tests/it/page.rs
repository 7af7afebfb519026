//! The table of fields in docs/kubernetes.md, from the schemas. `UPDATE=1` writes it.

use berth_operator::install::custom_resources;
use serde_json::Value;

const BEGIN: &str = "<!-- generated: UPDATE=1 cargo test -p berth-operator -->\n";
const END: &str = "<!-- end -->";

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
        let must = if required(name) { ", required" } else { "" };
        let text = field["description"].as_str().unwrap_or_default();
        table.push_str(&format!("| `{path}` | {kind}{must} | {text} |\n"));
        rows(inner, &format!("{path}."), table);
    }
}

#[test]
fn the_page_lists_every_field() {
    let mut text = String::new();
    for definition in custom_resources() {
        let kind = definition["spec"]["names"]["kind"].as_str().expect("a kind").to_owned();
        // The status of both is the same; the spec of a CLOpsDeployment holds that of the other.
        let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"];
        let (part, below) = if kind == "CLOpsDeployment" { ("spec", "spec.") } else { ("status", "status.") };
        text.push_str(&format!("\n`{part}` of a {kind}:\n\n| field | form | meaning |\n|---|---|---|\n"));
        rows(&schema[part], below, &mut text);
    }
    text.push('\n');
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/kubernetes.md");
    let page = std::fs::read_to_string(path).expect("the page");
    let (head, rest) = page.split_once(BEGIN).expect("the begin of the table");
    let (old, tail) = rest.split_once(END).expect("its end");
    if option_env!("UPDATE").is_some() && old != text {
        let page = format!("{head}{BEGIN}{text}{END}{tail}");
        std::fs::File::create(path)
            .and_then(|mut file| std::io::Write::write_all(&mut file, page.as_bytes()))
            .expect("written");
        return;
    }
    assert!(old == text, "the table is old: UPDATE=1 cargo test -p berth-operator");
}
