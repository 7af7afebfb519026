//! The same model in JSON and in tensors.

use std::time::{Duration, Instant};

use berth_spec::{Datatype, InferError, InferRequest, Tensor, TensorSpec, inference::RequestedOutput};
use bytes::{BufMut as _, Bytes, BytesMut};
use serde_json::json;

use super::card::{Card, Running};

/// Texts and numbers in, texts and numbers out.
const SOURCE: &str = "
def load(path): return lambda x: x
def pre(request):
    assert isinstance(request['text'], str) and isinstance(request['count'], int), request
    assert isinstance(request['points'], list) and isinstance(request['points'][0], list), request
    return request
def post(output):
    return {
        'label': output['text'] * output['count'],
        'sum': sum(sum(row) for row in output['points']),
        'loud': output.get('loud', False),
        'points': [row[0] for row in output['points']],
    }
";

fn card() -> Card {
    let rows = |kind: &str| json!({"type": "array", "items": {"type": kind}});
    let input = json!({
        "type": "object",
        "required": ["text", "count", "points"],
        "properties": {
            "text": {"type": "string", "minLength": 1},
            "count": {"type": "integer"},
            "loud": {"type": "boolean"},
            "points": {"type": "array", "items": rows("number")},
        },
    });
    let output = json!({
        "type": "object",
        "required": ["label", "sum", "loud", "points"],
        "properties": {
            "label": {"type": "string"},
            "sum": {"type": "number"},
            "loud": {"type": "boolean"},
            "points": rows("number"),
        },
    });
    Card::new(SOURCE).with("/interface/input_schema", input).with("/interface/output_schema", output)
}

fn texts(texts: &[&str]) -> Bytes {
    let mut data = BytesMut::new();
    for text in texts {
        data.put_u32_le(text.len() as u32);
        data.put_slice(text.as_bytes());
    }
    data.freeze()
}

fn numbers(values: &[f64]) -> Bytes {
    values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>().into()
}

fn tensor(name: &str, datatype: Datatype, shape: &[i64], data: impl Into<Bytes>) -> Tensor {
    Tensor::new(name.to_owned(), datatype, shape.to_vec(), data.into()).expect("a tensor")
}

fn inputs() -> Vec<Tensor> {
    let counts: Vec<u8> = [1_i64, 2].iter().flat_map(|count| count.to_le_bytes()).collect();
    vec![
        tensor("points", Datatype::Fp64, &[2, 2, 2], numbers(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])),
        tensor("text", Datatype::Bytes, &[2], texts(&["ab", "cd"])),
        tensor("count", Datatype::Int64, &[2], counts),
    ]
}

async fn infer(running: &Running, inputs: Vec<Tensor>, outputs: &[&str]) -> Result<Vec<Tensor>, InferError> {
    let outputs = outputs.iter().map(|&name| RequestedOutput { name: name.to_owned(), classification: None }).collect();
    let request = InferRequest { inputs, outputs, ..InferRequest::default() };
    running.model.infer(request, Instant::now() + Duration::from_secs(120)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_tensors_are_requests() {
    let running = card().start().expect("it loads");
    let spec =
        |name: &str, datatype, shape: &[i64]| TensorSpec { name: name.to_owned(), datatype, shape: shape.to_vec() };
    assert_eq!(
        running.model.signature().inputs,
        [
            spec("count", Datatype::Int64, &[-1]),
            spec("loud", Datatype::Bool, &[-1]),
            spec("points", Datatype::Fp64, &[-1, -1, -1]),
            spec("text", Datatype::Bytes, &[-1]),
        ]
    );
    let outputs = infer(&running, inputs(), &[]).await.expect("an answer");
    assert_eq!(
        outputs,
        [
            tensor("label", Datatype::Bytes, &[2], texts(&["ab", "cdcd"])),
            tensor("loud", Datatype::Bool, &[2], vec![0, 0]),
            tensor("points", Datatype::Fp64, &[2, 2], numbers(&[1.0, 3.0, 5.0, 7.0])),
            tensor("sum", Datatype::Fp64, &[2], numbers(&[10.0, 26.0])),
        ]
    );
    let outputs = infer(&running, inputs(), &["sum"]).await.expect("an answer");
    assert_eq!(outputs, [tensor("sum", Datatype::Fp64, &[2], numbers(&[10.0, 26.0]))]);
    let statistics = running.model.statistics();
    assert_eq!((statistics.success.count, statistics.inference_count), (2, 5), "the validation's row counts as a run");
}

#[tokio::test(flavor = "multi_thread")]
async fn tensors_that_do_not_fit_are_refused_before_python() {
    let running = card().start().expect("it loads");
    let before = running.model.statistics().execution_count;
    let changed = |name: &str, other: Tensor| -> Vec<Tensor> {
        inputs().into_iter().map(|input| if input.name == name { other.clone() } else { input }).collect()
    };
    let counts = |count: usize| vec![0; 8 * count];
    let cases: Vec<(Vec<Tensor>, &str)> = vec![
        (Vec::new(), "input \"count\" is missing"),
        (
            changed("text", tensor("other", Datatype::Bytes, &[2], texts(&["a", "b"]))),
            "\"other\" is given twice or is not",
        ),
        (
            changed("count", tensor("count", Datatype::Int32, &[2], vec![0; 8])),
            "is INT32 [2], the model takes INT64 [-1]",
        ),
        (changed("count", tensor("count", Datatype::Int64, &[2, 1], counts(2))), "[2, 1]"),
        (changed("count", tensor("count", Datatype::Int64, &[3], counts(3))), "different numbers of rows"),
        (changed("text", tensor("text", Datatype::Bytes, &[2], texts(&["a", ""]))), "/1/text: \"\" is shorter than 1"),
        (changed("points", tensor("points", Datatype::Fp64, &[2, 1, 1], numbers(&[1.0, f64::NAN]))), "NaN"),
    ];
    for (inputs, why) in cases {
        let error = infer(&running, inputs, &[]).await.expect_err(why);
        assert!(error.to_string().contains(why), "{error} / {why}");
    }
    let many = tensor("request", Datatype::Bytes, &[100_000], vec![0; 400_000]);
    let documents = Card::new(SOURCE).with("/interface/input_schema", json!({"type": "object"}));
    let documents = documents.with_warmup(berth_spec::deployment::Warmup::Off).start().expect("it loads");
    let error = infer(&documents, vec![many], &[]).await.expect_err("too many");
    assert!(error.to_string().contains("100000 rows: send at most 65536"), "{error}");
    assert!(infer(&running, inputs(), &["nothing"]).await.expect_err("no such output").to_string().contains("nothing"));
    let error = running.call(json!({"text": 5, "count": 1.5, "points": []})).await.expect_err("it does not fit");
    let InferError::Unprocessable { violations, .. } = &error else { panic!("{error:?}") };
    let paths: Vec<&str> = violations.iter().map(|violation| violation.path.as_str()).collect();
    assert_eq!(paths, ["/count", "/text"]);
    let broken = running.model.call(Bytes::from_static(b"{\"text\":"), Instant::now() + Duration::from_secs(120)).await;
    assert!(matches!(broken, Err(InferError::Invalid(_))), "{broken:?}");
    assert_eq!(running.model.statistics().execution_count, before, "nothing reached the model");
}

#[tokio::test(flavor = "multi_thread")]
async fn other_schemas_are_documents_in_one_tensor() {
    let source = "
def load(path): return lambda x: x
def pre(request): return request
def post(output): return {'scores': {'first': output['nested']['n'], 'text': 'é'}}
";
    let nested = json!({"type": "object", "required": ["n"], "properties": {"n": {"type": "number"}}});
    let input = json!({"type": "object", "required": ["nested"], "properties": {"nested": nested}});
    let card = Card::new(source);
    let card = card.with("/interface/input_schema", input).with("/interface/output_schema", json!({"type": "object"}));
    let running = card.start().expect("it loads");
    let documents = ["{\"nested\": {\"n\": 1}}", "{\"nested\": {\"n\": 2.5}}"];
    let answer = infer(&running, vec![tensor("request", Datatype::Bytes, &[2], texts(&documents))], &[]).await;
    let expected = texts(&["{\"scores\":{\"first\":1,\"text\":\"é\"}}", "{\"scores\":{\"first\":2.5,\"text\":\"é\"}}"]);
    assert_eq!(answer.expect("an answer"), [tensor("response", Datatype::Bytes, &[2], expected)]);
    let error = infer(&running, vec![tensor("request", Datatype::Bytes, &[1], texts(&["{}"]))], &[]).await;
    assert!(matches!(error, Err(InferError::Unprocessable { violations, .. }) if violations[0].path == "/0"));
}

#[tokio::test(flavor = "multi_thread")]
async fn more_rows_than_a_batch_are_split() {
    let source = "
import berth
sizes = []
@berth.batched
def predict(items):
    assert len(items) <= 4, len(items)
    return items
def load(path): return predict
def pre(request): return request['x']
def post(output): return {'y': output + 1}
";
    let running = Card::new(source).with("/interface/batch_size", json!(4)).start().expect("it loads");
    let values: Vec<f64> = (0..300).map(f64::from).collect();
    let answer = infer(&running, vec![tensor("x", Datatype::Fp64, &[300], numbers(&values))], &[]).await;
    let expected: Vec<f64> = values.iter().map(|value| value + 1.0).collect();
    assert_eq!(answer.expect("an answer"), [tensor("y", Datatype::Fp64, &[300], numbers(&expected))]);
    assert_eq!(running.model.batching().max_rows, 4);
}
