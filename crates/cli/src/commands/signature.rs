//! The tensors of a loaded model, for `berth describe`: its inputs, its outputs, and a request to paste.

use std::time::Duration;

use berth_spec::{
    DeploymentName,
    card::signature::{Column, Form},
    manifest::endpoint_path,
};
use berth_wire::api::DeploymentView;
use berth_worker::runtime::python::example;
use reqwest::Method;
use serde_json::{Value, json};

use super::{describe::section, namespace::path_of};
use crate::{client::Client, serve::announce::zeros, terminal::Rows};

/// Limit for the answer of a model that is loaded: somebody waits for the text around it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Longest request that is printed: it has to fit a screen.
const MAX_REQUEST_BYTES: usize = 2_000;

/// The platform of models that a Python process runs: cards and estimators.
const PYTHON: &str = "berth_python";

/// Adds the sections. A model that does not answer now, or has no tensors, gets none. A request is shown where its form is known.
pub(super) async fn describe(client: &Client, name: &DeploymentName, view: &DeploymentView, text: &mut String) {
    let path = [path_of(name), vec!["try"]].concat();
    let asked = client.request(Method::GET, &path, &[]).timeout(ANSWER_TIMEOUT);
    let Ok(metadata) = client.json::<Value>(asked).await else { return };
    for (heading, field) in [("Inputs", "inputs"), ("Outputs", "outputs")] {
        if let Some(table) = tensors(&metadata[field]) {
            section(text, heading, &table);
        }
    }
    let request = match view.spec.pointer("/model/card/card/interface/input_schema") {
        Some(schema) => carded(name, schema, view.spec["endpoint"].as_str()),
        None => zeros_of(name, &metadata),
    };
    if let Some(request) = request.filter(|request| request.len() <= MAX_REQUEST_BYTES) {
        section(text, "Request", &format!("{request}\n"));
    }
}

/// A request by the schema of a model card: in JSON at its endpoint, else as tensors.
fn carded(name: &DeploymentName, schema: &Value, endpoint: Option<&str>) -> Option<String> {
    let document = example(schema)?;
    if let Some(path) = endpoint.and_then(|written| endpoint_path(written).ok()) {
        return Some(to_paste(&document, &path));
    }
    let tensors = match Form::of_input(schema) {
        Form::Documents(input) => {
            vec![json!({"name": input, "datatype": "BYTES", "shape": [1], "data": [document.to_string()]})]
        }
        Form::Columns(columns) => {
            let given = columns.iter().filter_map(|column| Some((column, document.get(&column.name)?)));
            given.map(|(column, value)| row(column, value)).collect::<Option<_>>()?
        }
    };
    Some(to_paste(&json!({"inputs": tensors}), &quoted(name)))
}

/// One row of a column.
fn row(column: &Column, value: &Value) -> Option<Value> {
    let (mut shape, mut data) = (vec![1], vec![value.clone()]);
    for _ in &column.shape {
        let inner: Option<Vec<&Vec<Value>>> = data.iter().map(Value::as_array).collect();
        let inner = inner?;
        let length = inner.first()?.len();
        if inner.iter().any(|list| list.len() != length) {
            return None;
        }
        shape.push(length);
        data = inner.into_iter().flatten().cloned().collect();
    }
    Some(json!({"name": column.name, "datatype": column.datatype.as_str(), "shape": shape, "data": data}))
}

/// Zeros for every input; dimensions that vary are 1. `None` for rows of a length that only the code in Python knows.
fn zeros_of(name: &DeploymentName, metadata: &Value) -> Option<String> {
    let inputs = metadata["inputs"].as_array().filter(|inputs| !inputs.is_empty())?;
    let varies = |input: &Value| {
        let dimensions = input["shape"].as_array().into_iter().flatten().skip(1);
        dimensions.filter_map(Value::as_i64).any(|dimension| dimension < 0)
    };
    if metadata["platform"] == PYTHON && inputs.iter().any(varies) {
        return None;
    }
    let tensors = inputs.iter().map(zeros).collect::<Option<Vec<Value>>>()?;
    Some(to_paste(&json!({ "inputs": tensors }), &quoted(name)))
}

/// The request for a shell. `echo` of some shells would read the backslashes of JSON as its own.
fn to_paste(request: &Value, target: &str) -> String {
    format!("printf '%s\\n' '{}' | berth infer {target}", request.to_string().replace('\'', "'\\''"))
}

fn tensors(list: &Value) -> Option<String> {
    let list = list.as_array().filter(|list| !list.is_empty())?;
    let mut rows = Rows::new(&["NAME", "DATATYPE", "SHAPE"]);
    for tensor in list {
        let text = |field: &str| tensor[field].as_str().unwrap_or("-").to_owned();
        rows.add([text("name"), text("datatype"), tensor["shape"].to_string()]);
    }
    Some(rows.render())
}

/// The name as a shell takes it.
fn quoted(name: &DeploymentName) -> String {
    let name = name.as_str();
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
    if name.chars().all(plain) { name.to_owned() } else { format!("'{}'", name.replace('\'', "'\\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> DeploymentName {
        DeploymentName::new(text).expect("a name")
    }

    #[test]
    fn a_request_can_be_pasted() {
        let metadata = json!({"inputs": [{"name": "it's", "datatype": "FP32", "shape": [-1, 2]}]});
        let request = r#"{"inputs":[{"data":[0,0],"datatype":"FP32","name":"it'\''s","shape":[1,2]}]}"#;
        let expected = format!("printf '%s\\n' '{request}' | berth infer iris");
        assert_eq!(zeros_of(&name("iris"), &metadata), Some(expected));
        assert_eq!(zeros_of(&name("iris"), &json!({"inputs": []})), None);
        assert_eq!(quoted(&name("default/a b")), "'default/a b'".replace("default/", ""));
    }

    #[test]
    fn rows_of_an_unknown_length_are_left_out() {
        let metadata = |platform: &str, shape: Value| {
            let input = json!({"name": "features", "datatype": "FP64", "shape": shape});
            json!({"platform": platform, "inputs": [input]})
        };
        let shown = |metadata: &Value| zeros_of(&name("iris"), metadata).is_some();
        assert!(!shown(&metadata(PYTHON, json!([-1, -1]))), "an estimator knows by itself how many");
        assert!(shown(&metadata(PYTHON, json!([-1, 4]))));
        assert!(shown(&metadata("onnxruntime_onnx", json!([-1, -1]))), "texts of one token are right");
    }

    #[test]
    fn a_card_shows_its_example() {
        let property = |schema: Value| json!({"type": "object", "required": ["x"], "properties": {"x": schema}});
        let numbers = property(json!({"type": "array", "items": {"type": "number"}, "examples": [[5.5, 3.5]]}));
        let at = |endpoint| carded(&name("iris"), &numbers, endpoint).expect("a request");
        let pasted = r#"printf '%s\n' '{"x":[5.5,3.5]}' | berth infer /v1/iris"#;
        assert_eq!(at(Some("https://api.example.com/v1/iris")), pasted);
        let tensors = r#"{"inputs":[{"data":[5.5,3.5],"datatype":"FP64","name":"x","shape":[1,2]}]}"#;
        assert_eq!(at(None), format!("printf '%s\\n' '{tensors}' | berth infer iris"));
        let either = property(json!({"type": ["string", "null"], "examples": ["hello"]}));
        let document = r#"{"inputs":[{"data":["{\"x\":\"hello\"}"],"datatype":"BYTES","name":"request","shape":[1]}]}"#;
        let pasted = format!("printf '%s\\n' '{document}' | berth infer iris");
        assert_eq!(carded(&name("iris"), &either, None), Some(pasted));
    }
}
