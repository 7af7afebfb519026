//! Measures the codec beside serde_json with typed structs on the same bodies: one JSON line per case.
//!
//! `cargo run --release -p berth-mesh --example codec_bench`

#![expect(clippy::print_stdout, reason = "printing is what it is for")]

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use berth_mesh::oip::{AnswerForm, Layout, decode, encode};
use berth_spec::{Datatype, InferResponse, Signature, Tensor};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// Each figure is the best of this many runs: the machine's noise only ever adds.
const RUNS: u32 = 15;

/// A plain implementation for comparison: structs, and the data as numbers.
#[derive(Serialize, Deserialize)]
struct TypedRequest {
    id: Option<String>,
    inputs: Vec<TypedTensor>,
}

#[derive(Serialize, Deserialize)]
struct TypedResponse {
    model_name: String,
    model_version: String,
    outputs: Vec<TypedTensor>,
}

#[derive(Serialize, Deserialize)]
struct TypedTensor {
    name: String,
    shape: Vec<i64>,
    datatype: String,
    data: Vec<f32>,
}

fn main() {
    for (inputs, outputs) in [(4, 3), (256, 8), (12_288, 1000)] {
        // As Python writes what was a double (17 digits), and as it writes what was a single (up to 9).
        let doubles: Vec<String> = numbers(inputs).map(|value| value.to_string()).collect();
        let singles: Vec<String> = numbers(inputs).map(|value| (value as f32).to_string()).collect();
        for (digits, texts) in [(17, doubles), (9, singles)] {
            let body = format!(
                r#"{{"id":"42","inputs":[{{"name":"x","shape":[1,{inputs}],"datatype":"FP32","data":[{}]}}]}}"#,
                texts.join(",")
            );
            compare(&body.into(), inputs, digits, outputs);
        }
    }
}

/// The same numbers every time, spread over 0 to 10.
fn numbers(count: usize) -> impl Iterator<Item = f64> {
    (1..=count as u64).map(|n| (n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 11) as f64 / (1_u64 << 53) as f64 * 10.0)
}

fn compare(body: &Bytes, inputs: usize, digits: u32, outputs: usize) {
    let values: Vec<f32> = numbers(outputs).map(|value| value as f32).collect();
    let data: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let shape = vec![1, outputs as i64];
    let output = Tensor::new("y".to_owned(), Datatype::Fp32, shape.clone(), data.into()).expect("a tensor");
    let response = InferResponse {
        model_name: "iris".into(),
        model_version: "1".into(),
        id: None,
        parameters: Default::default(),
        outputs: vec![output],
    };
    let signature = Signature::default();
    let form = AnswerForm::default();
    let ours_in = time(|| decode(black_box(body), Layout::Json, &signature).expect("a request"));
    let ours_out = time(|| encode(black_box(&response), &form).expect("an answer"));
    let typed = TypedResponse {
        model_name: "iris".to_owned(),
        model_version: "1".to_owned(),
        outputs: vec![TypedTensor { name: "y".to_owned(), shape, datatype: "FP32".to_owned(), data: values }],
    };
    let serde_in = time(|| serde_json::from_slice::<TypedRequest>(black_box(body)).expect("a request"));
    let serde_out = time(|| serde_json::to_vec(black_box(&typed)).expect("an answer"));
    let nanos = |time: Duration| time.as_nanos();
    println!(
        r#"{{"inputs":{inputs},"digits":{digits},"body_bytes":{},"outputs":{outputs},"decode_ns":{},"serde_decode_ns":{},"encode_ns":{},"serde_encode_ns":{}}}"#,
        body.len(),
        nanos(ours_in),
        nanos(serde_in),
        nanos(ours_out),
        nanos(serde_out),
    );
}

/// The time of one call, the best of [`RUNS`] runs of about 10 ms.
fn time<T>(mut call: impl FnMut() -> T) -> Duration {
    let begin = Instant::now();
    black_box(call());
    let calls = (10_000_000 / begin.elapsed().as_nanos().max(100)).max(1) as u32;
    let run = || {
        let begin = Instant::now();
        for _ in 0..calls {
            black_box(call());
        }
        begin.elapsed() / calls
    };
    std::iter::repeat_with(run).take(RUNS as usize).min().unwrap_or_default()
}
