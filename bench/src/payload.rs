//! The requests that every server gets, byte for byte the same.

use bytes::{BufMut as _, Bytes, BytesMut};
use prost::Message as _;

use berth_wire::oip::{ModelInferRequest, model_infer_request::InferInputTensor};

use crate::load::Request;

/// A model of the benchmark, and one row for it.
pub(crate) struct Model {
    /// Its name everywhere.
    pub(crate) name: &'static str,
    pub(crate) artifact: &'static str,
    /// The input's name.
    pub(crate) input: &'static str,
    /// The shape of one request: one row.
    pub(crate) shape: &'static [i64],
    /// The outputs with their Triton types and dimensions.
    pub(crate) outputs: &'static [(&'static str, &'static str, &'static str)],
}

/// A logistic regression on four numbers: what a server costs when the model costs nothing.
pub(crate) const TABULAR: Model = Model {
    name: "iris",
    artifact: "examples/models/artifacts/iris.onnx",
    input: "X",
    shape: &[1, 4],
    outputs: &[("label", "TYPE_INT64", "1"), ("probabilities", "TYPE_FP32", "3")],
};

/// Four convolutions on 3x64x64: a model that takes a while, with a body of 48 KiB.
pub(crate) const CNN: Model = Model {
    name: "convolutions",
    artifact: "examples/models/artifacts/convolutions.onnx",
    input: "image",
    shape: &[1, 3, 64, 64],
    outputs: &[("scores", "TYPE_FP32", "10")],
};

impl Model {
    /// The elements of the one row.
    pub(crate) fn values(&self) -> Vec<f32> {
        let count = self.shape.iter().product::<i64>();
        (0..count).map(|i| ((i * 37 % 101) as f32) / 10.0).collect()
    }

    fn raw(&self) -> Bytes {
        self.values().iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    /// JSON in, JSON out.
    pub(crate) fn json(&self) -> Request {
        let body = serde_json::json!({
            "inputs": [{"name": self.input, "datatype": "FP32", "shape": self.shape, "data": self.values()}],
        });
        let body = body.to_string();
        let head = format!(
            "POST /v2/models/{}/infer HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            self.name,
            body.len()
        );
        Request::Http((head + &body).into())
    }

    /// The binary tensor extension both ways.
    pub(crate) fn binary(&self) -> Request {
        let raw = self.raw();
        let json = serde_json::json!({
            "inputs": [{"name": self.input, "datatype": "FP32", "shape": self.shape, "parameters": {"binary_data_size": raw.len()}}],
            "parameters": {"binary_data_output": true},
        });
        let json = json.to_string();
        let head = format!(
            "POST /v2/models/{}/infer HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/octet-stream\r\n\
             inference-header-content-length: {}\r\ncontent-length: {}\r\n\r\n",
            self.name,
            json.len(),
            json.len() + raw.len()
        );
        let mut bytes = BytesMut::from(head.as_bytes());
        bytes.put(json.as_bytes());
        bytes.put(raw);
        Request::Http(bytes.freeze())
    }

    /// gRPC with raw contents.
    pub(crate) fn grpc(&self) -> Request {
        let input = InferInputTensor {
            name: self.input.to_owned(),
            datatype: "FP32".to_owned(),
            shape: self.shape.to_vec(),
            ..Default::default()
        };
        let request = ModelInferRequest {
            model_name: self.name.to_owned(),
            inputs: vec![input],
            raw_input_contents: vec![self.raw()],
            ..Default::default()
        };
        let mut message = BytesMut::new();
        message.put_u8(0);
        message.put_u32(u32::try_from(request.encoded_len()).expect("a small message"));
        message.put(request.encode_to_vec().as_slice());
        Request::Grpc { path: "/inference.GRPCInferenceService/ModelInfer", message: message.freeze() }
    }
}
