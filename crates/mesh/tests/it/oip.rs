//! The codec of the Open Inference Protocol, by tables, properties and mutated seeds.

mod answer;
mod binary;
mod describe;
mod grpc;
mod mutations;
mod request;
mod round_trip;

use berth_mesh::oip::{Decoded, Layout, decode};
use berth_spec::{Datatype, InferError, InferResponse, Signature, Tensor, TensorSpec};
use bytes::Bytes;

/// Decodes a JSON body.
fn decode_json(text: &str) -> Result<Decoded, InferError> {
    decode(&Bytes::copy_from_slice(text.as_bytes()), Layout::Json, &Signature::default())
}

/// Decodes one input given as JSON.
fn decode_input(input: &str) -> Result<Tensor, InferError> {
    let mut decoded = decode_json(&format!(r#"{{"inputs":[{input}]}}"#))?;
    Ok(decoded.request.inputs.remove(0))
}

fn tensor(name: &str, datatype: Datatype, shape: &[i64], data: &[u8]) -> Tensor {
    Tensor::new(name.to_owned(), datatype, shape.to_vec(), Bytes::copy_from_slice(data)).expect("a tensor")
}

fn fp32(name: &str, shape: &[i64], values: &[f32]) -> Tensor {
    tensor(name, Datatype::Fp32, shape, &values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>())
}

/// BYTES in their wire form.
fn texts(elements: &[&[u8]]) -> Vec<u8> {
    elements.iter().flat_map(|element| [&(element.len() as u32).to_le_bytes(), *element].concat()).collect()
}

fn spec(name: &str, datatype: Datatype, shape: &[i64]) -> TensorSpec {
    TensorSpec { name: name.to_owned(), datatype, shape: shape.to_vec() }
}

fn response(outputs: Vec<Tensor>) -> InferResponse {
    InferResponse {
        model_name: "iris".into(),
        model_version: "7".into(),
        id: None,
        parameters: Default::default(),
        outputs,
    }
}
