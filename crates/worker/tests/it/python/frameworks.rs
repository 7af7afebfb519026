//! Models of the usual frameworks without a line of loading code. Needs the environment that `cargo xtask test` makes;
//! without it these tests say so and pass.

use std::process::Command;

use berth_spec::FailureCategory;
use serde_json::{Value, json};

use super::card::{Card, with_packages};

const FUNCTIONS: &str = "
import berth
@berth.arrays
def pre(request):
    import numpy
    assert isinstance(request['x'], numpy.ndarray), type(request['x'])
    return request['x']
def post(output): return {'y': output}
";

/// An artifact that a script of Python's makes; `None` where its packages are missing.
fn made(script: &str) -> Option<Vec<u8>> {
    let python = with_packages()?;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model");
    let made = Command::new(python).arg("-c").arg(script).arg(&path).output().expect("Python runs");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    Some(fs_err::read(path).expect("the artifact"))
}

fn card(framework: &str, name: &'static str, artifact: Vec<u8>) -> Card {
    let numbers = json!({"type": "array", "minItems": 4, "maxItems": 4, "items": {"type": "number"}});
    let input = json!({"type": "object", "required": ["x"], "properties": {"x": numbers}});
    let card = Card::new(FUNCTIONS)
        .with("/runtime/framework", json!(framework))
        .with("/interface/input_schema", input)
        .with("/interface/batch_size", json!(16));
    let mut card = Card { artifact, artifact_name: name, python: with_packages().expect("checked"), ..card };
    card.json["code"].as_object_mut().expect("an object").remove("entrypoint");
    card
}

#[tokio::test(flavor = "multi_thread")]
async fn scikit_learn() {
    let script = "
import joblib, sys
from sklearn.linear_model import LinearRegression
model = LinearRegression().fit([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1], [0, 0, 0, 0]], [1, 2, 3, 4, 0])
joblib.dump(model, sys.argv[1])
";
    let Some(artifact) = made(script) else { return };
    let running = card("sklearn", "model.joblib", artifact).start().expect("it loads");
    let calls = (0..40).map(|n| running.call(json!({"x": [n, 0, 0, 1]})));
    for (n, answer) in futures::future::join_all(calls).await.into_iter().enumerate() {
        let y = answer.expect("an answer")["y"].as_f64().expect("a number");
        assert!((y - (n as f64 + 4.0)).abs() < 1e-9, "{n}: {y}");
    }
    let statistics = running.model.statistics();
    assert!(statistics.execution_count < statistics.inference_count, "requests were joined: {statistics:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn onnx() {
    let Some(_) = with_packages() else { return };
    let fixture = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/same_double.onnx");
    let card = card("onnx", "model.onnx", fs_err::read(fixture).expect("a fixture"));
    let answer = json!({"type": "object", "required": ["y"], "properties": {"y": {}}});
    let running = card.with("/interface/output_schema", answer).start();
    let running = running.unwrap_or_else(|error| panic!("{error:?}"));
    let answer: Value = running.call(json!({"x": [1, 2, 3, 4]})).await.expect("an answer");
    assert!(answer["y"].is_array(), "{answer}");
}

#[test]
fn an_artifact_that_is_not_a_model_is_told() {
    let Some(_) = with_packages() else { return };
    for (framework, name) in [("sklearn", "model.joblib"), ("onnx", "model.onnx")] {
        let error = card(framework, name, b"not a model".to_vec()).fails();
        assert_eq!(error.category, FailureCategory::InvalidModel, "{error}");
        assert!(error.message.contains(&format!("{framework} cannot read the artifact")), "{error}");
    }
    let error = card("custom", "model.bin", Vec::new()).fails();
    assert!(error.category == FailureCategory::Code && error.message.contains("needs a loading function"), "{error}");
}
