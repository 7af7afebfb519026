//! Models of the usual frameworks without a line of loading code. Needs the environment that `cargo xtask test` makes;
//! without it these tests say so and pass.

use std::process::Command;

use berth_spec::FailureCategory;
use serde_json::{Value, json};

use super::card::{Card, Running, with_packages};

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
pub(super) fn made(script: &str) -> Option<Vec<u8>> {
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

/// A card whose code loads the model; preprocessing makes tables of one row.
fn loading(load: &str, artifact: Vec<u8>) -> Card {
    let code = format!(
        "
def pre(request): return [request['x']]
def post(output): return {{'y': output[0]}}
{load}
"
    );
    let numbers = json!({"type": "array", "minItems": 4, "maxItems": 4, "items": {"type": "number"}});
    let input = json!({"type": "object", "required": ["x"], "properties": {"x": numbers}});
    let card = Card::new(&code).with("/interface/input_schema", input).with("/interface/batch_size", json!(16));
    Card { artifact, artifact_name: "model.joblib", python: with_packages().expect("checked"), ..card }
}

/// The answers to 40 requests at once, in their order.
async fn answers(running: &Running) -> Vec<Value> {
    let calls = (0..40).map(|n| running.call(json!({"x": [n, 0, 0, 1]})));
    futures::future::join_all(calls).await.into_iter().map(|answer| answer.expect("an answer")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_estimator_that_the_card_loads_runs_batches() {
    let script = "
import joblib, sys
from sklearn.linear_model import LinearRegression
model = LinearRegression().fit([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1], [0, 0, 0, 0]], [1, 2, 3, 4, 0])
joblib.dump(model, sys.argv[1])
";
    let Some(artifact) = made(script) else { return };
    let load = "
def load(path):
    import joblib
    return joblib.load(path)
";
    let answer = json!({"type": "object", "required": ["y"], "properties": {"y": {"type": "number"}}});
    let running = loading(load, artifact).with("/interface/output_schema", answer).start().expect("it loads");
    for (n, answer) in answers(&running).await.into_iter().enumerate() {
        let y = answer["y"].as_f64().expect("a number");
        assert!((y - (n as f64 + 4.0)).abs() < 1e-9, "{n}: {y}");
    }
    let statistics = running.model.statistics();
    assert!(statistics.execution_count < statistics.inference_count, "requests were joined: {statistics:?}");
}

/// Of scikit-learn by the name of its module, and of pandas what is used: they tell how many rows came in one call.
#[tokio::test(flavor = "multi_thread")]
async fn data_frames_with_the_same_columns_go_to_an_estimator_together() {
    let Some(_) = with_packages() else { return };
    let pandas = "
import numpy
class DataFrame:
    iloc = None
    def __init__(self, rows, columns):
        self.rows, self.columns, self.dtypes = rows, columns, numpy.array(['f8' for _ in columns])
    def __len__(self): return len(self.rows)
def concat(frames, ignore_index):
    assert ignore_index
    return DataFrame([row for frame in frames for row in frame.rows], frames[0].columns)
";
    let load = "
import pandas
def pre(request):
    x = request['x']
    return pandas.DataFrame([x], ['a', 'b', 'c', 'even' if x[0] % 2 == 0 or x[0] < 20 else 'odd'])
class Model:
    def predict(self, frame): return [[row[0], len(frame), frame.columns[3]] for row in frame.rows]
Model.__module__ = 'sklearn.of_a_test'
def load(path): return Model()
";
    let mut card = loading(load, Vec::new())
        .with("/interface/output_schema", json!({"type": "object", "required": ["y"], "properties": {"y": {}}}));
    card.files.push(("pandas.py".to_owned(), pandas.to_owned()));
    let running = card.start().unwrap_or_else(|error| panic!("{error:?}"));
    let answers = answers(&running).await;
    for (n, answer) in answers.iter().enumerate() {
        let columns = if n % 2 == 0 || n < 20 { "even" } else { "odd" };
        assert_eq!((answer["y"][0].as_f64(), &answer["y"][2]), (Some(n as f64), &json!(columns)), "{n}: {answer}");
    }
    assert!(answers.iter().any(|answer| answer["y"][1].as_u64() > Some(1)), "rows came together: {answers:?}");
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
