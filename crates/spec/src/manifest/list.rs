//! Lists of manifests, as `berth get -o json` prints them: `{"kind": "ModelDeploymentList", "items": […]}`, with `items` alone,
//! or a list as the whole document.

use super::{
    ManifestError,
    check::{self, Finding},
    node::{Node, Value},
    scalar::Problem,
};
use crate::DeploymentName;

/// Manifests of one text, as many as documents.
const MAX_MANIFESTS: usize = 100_000;

/// A manifest, and its place in the document.
#[derive(Debug)]
pub(super) struct Item<'a> {
    /// Path of the manifest: `items[3]`; empty for one that is the whole document.
    step: String,
    pub(super) node: &'a Node,
}

impl Item<'_> {
    /// Path of a field from the document's root: `items[3].spec`.
    pub(super) fn path(&self, field: &str) -> String {
        let dot = if self.step.is_empty() || field.is_empty() { "" } else { "." };
        format!("{}{dot}{field}", self.step)
    }

    /// The place of the manifest, for people: `in line 3`, and of a list, which may be one line, `as items[3] in line 1`.
    pub(super) fn place(&self) -> String {
        let line = self.node.at.line;
        if self.step.is_empty() { format!("in line {line}") } else { format!("as {} in line {line}", self.step) }
    }

    /// An error in the manifest, with its name, if it has a valid one, and place in the list.
    pub(super) fn error(&self, mut error: ManifestError) -> ManifestError {
        if self.step.is_empty() {
            return error;
        }
        error.path = self.path(&error.path);
        let name = self.node.get("metadata").and_then(|metadata| metadata.get("name")).and_then(Node::text);
        if let Some(name) = name.filter(|name| DeploymentName::new(name).is_ok()) {
            error.message = format!("{}: {}", check::shortened(name), error.message);
        }
        error
    }
}

/// The manifests of all documents, in reading order.
///
/// # Errors
/// There are more than [`MAX_MANIFESTS`].
pub(super) fn items(documents: &[Node]) -> Result<Vec<Item<'_>>, Finding> {
    let mut found = Vec::with_capacity(documents.len());
    documents.iter().for_each(|document| unfold(document, String::new(), &mut found));
    match found.get(MAX_MANIFESTS) {
        None => Ok(found),
        Some(more) => {
            let problem =
                Problem::new(format!("there are more than {MAX_MANIFESTS} manifests"), "give them in several files");
            Err(Finding { at: more.node.at, path: String::new(), problem })
        }
    }
}

/// True of a document that is a list of manifests, also of one or none.
#[must_use]
pub fn is_list(document: &Node) -> bool {
    matches!(document.value, Value::List(_)) || held(document).is_some()
}

/// Lists may hold lists, as deep as a text may be nested.
fn unfold<'a>(node: &'a Node, step: String, found: &mut Vec<Item<'a>>) {
    let (items, step) = match (&node.value, held(node)) {
        (Value::List(items), _) => (items, step),
        (_, Some(items)) if step.is_empty() => (items, "items".to_owned()),
        (_, Some(items)) => (items, format!("{step}.items")),
        (_, None) => return found.push(Item { step, node }),
    };
    for (at, item) in items.iter().enumerate() {
        if found.len() > MAX_MANIFESTS {
            return;
        }
        unfold(item, format!("{step}[{at}]"), found);
    }
}

/// The items of a mapping that is a list. A manifest of one thing has a `spec`, and another kind.
fn held(node: &Node) -> Option<&Vec<Node>> {
    let is_list = node.get("kind").is_none_or(|kind| kind.text().is_some_and(|kind| kind.ends_with("List")));
    match node.get("items").filter(|_| is_list && node.get("spec").is_none()).map(|items| &items.value) {
        Some(Value::List(items)) => Some(items),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::{Manifest, ParseContext, parse_all};

    fn read(text: &str) -> Result<Vec<Manifest>, Vec<String>> {
        let context = ParseContext { file: "-".to_owned(), ..ParseContext::default() };
        parse_all(text, &context).map_err(|errors| errors.iter().map(ToString::to_string).collect())
    }

    fn names(text: &str) -> Vec<String> {
        read(text).expect("right").iter().map(|manifest| manifest.name().as_str().to_owned()).collect()
    }

    fn model(name: &str) -> Value {
        json!({
            "apiVersion": "berth.dev/v1", "kind": "ModelDeployment", "metadata": {"name": name, "generation": 3},
            "spec": {"model": {"format": "onnx", "uri": "s3://models/a.onnx"}}, "status": {"phase": "Available"},
        })
    }

    fn alias(name: &str) -> Value {
        json!({
            "apiVersion": "berth.dev/v1", "kind": "Alias", "metadata": {"name": name, "namespace": "team"},
            "spec": {"targets": [{"deployment": "iris"}]}, "status": {"targets": []},
        })
    }

    #[test]
    fn every_form_of_a_list_is_read() {
        let items = json!([model("a"), model("b"), alias("live")]);
        let expected = ["a", "b", "team/live"];
        for list in [
            items.clone(),
            json!({"items": items}),
            json!({"apiVersion": "berth.dev/v1", "kind": "ModelDeploymentList", "items": items, "metadata": {}}),
            json!({"apiVersion": "v1", "kind": "List", "items": items}),
            json!([[model("a")], {"items": [model("b")]}, alias("live")]),
        ] {
            assert_eq!(names(&list.to_string()), expected, "{list}");
            assert_eq!(names(&serde_json::to_string_pretty(&list).expect("JSON")), expected);
            let documents = format!("---\n{list}\n---\n{}\n", model("c"));
            assert_eq!(names(&documents), ["a", "b", "team/live", "c"]);
        }
        assert_eq!(
            names(
                "- apiVersion: berth.dev/v1\n  kind: Alias\n  metadata: {name: x}\n  spec: {targets: [{deployment: a}]}\n"
            ),
            ["x"]
        );
        assert!(names(r#"{"kind": "ModelDeploymentList", "items": []}"#).is_empty());
    }

    #[test]
    fn an_error_names_the_item() {
        let mut wrong = model("b");
        wrong["spec"]["replicas"] = json!({"mim": 1});
        let errors = read(&json!({"items": [model("a"), wrong]}).to_string()).expect_err("wrong");
        assert!(errors[0].contains("items[1].spec.replicas.mim: b: the field \"mim\""), "{errors:#?}");
        let errors = read(&json!([model("a"), 7]).to_string()).expect_err("no manifest");
        assert!(errors.iter().any(|error| error.contains(": [1]: ")), "{errors:#?}");
        let errors = read(&json!([model("a"), model("b"), model("a")]).to_string()).expect_err("twice");
        assert!(errors[0].contains("[2].metadata.name: a is declared twice, first as [0] in line 1"), "{errors:#?}");
    }

    #[test]
    fn only_a_valid_name_stands_before_an_error() {
        let list = |name: &str| read(&json!({"items": [{"metadata": {"name": name}}]}).to_string()).expect_err("wrong");
        let long = "n".repeat(60);
        assert!(list(&long).iter().all(|error| error.contains(&format!("{}…: ", &long[..40]))), "{:#?}", list(&long));
        for bad in ["a\u{1b}[2Jb", &"n".repeat(1 << 20)] {
            let errors = list(bad);
            assert!(errors.iter().all(|error| !error.contains('\u{1b}') && error.len() < 1_000), "{errors:#?}");
        }
    }

    #[test]
    fn a_hostile_text_has_a_bounded_number_of_errors_of_bounded_size() {
        let zeros = vec!["0"; 20_000].join(",");
        let alias = r#"{"apiVersion":"berth.dev/v1","kind":"Alias","metadata":{"name":"a"},"spec":{"targets":"#;
        let far = format!("[\"{}\",{zeros}]", "é".repeat(10_000));
        for text in [format!("[{zeros}]"), format!("{{\"items\":[{zeros}]}}"), format!("{alias}[{zeros}]}}}}"), far] {
            let errors = parse_all(&text, &ParseContext::default()).expect_err("nothing of it is a manifest");
            assert_eq!(errors.len(), 101);
            assert_eq!(errors[100].to_string(), "and more, after the first 100");
            let held: usize = errors.iter().map(|error| format!("{error:?}").len()).sum();
            assert!(held < 200_000, "{held} bytes");
            // The caret is still under the wrong value.
            let shown = errors[99].render();
            let mut lines = shown.lines().skip_while(|line| !line.starts_with("1 | "));
            let (line, caret) = (lines.next().expect("the line"), lines.next().expect("the caret"));
            assert_eq!(line.chars().nth(caret.chars().count() - 1), Some('0'), "{shown}");
        }
        let many = format!("[{}]", vec!["0"; 100_001].join(","));
        let errors = read(&many).expect_err("too many");
        assert_eq!(errors.len(), 1);
        assert!(errors[0].contains("there are more than 100000 manifests; give them in several files"), "{errors:#?}");
    }

    #[test]
    fn a_manifest_with_items_is_none() {
        let mut wrong = model("a");
        wrong["items"] = json!([]);
        let errors = read(&wrong.to_string()).expect_err("an unknown field");
        assert!(errors[0].contains("the field \"items\" is not known here"), "{errors:#?}");
        assert!(read(r#"{"kind": "Gadget", "items": []}"#).is_err());
    }
}
