//! The same request over gRPC: JSON in, typed contents on the wire, JSON out.

use std::time::Duration;

use berth_spec::DeploymentName;
use berth_wire::oip::{
    InferTensorContents, ModelInferRequest, ModelInferResponse,
    grpc_inference_service_client::GrpcInferenceServiceClient,
    infer_parameter::ParameterChoice,
    model_infer_request::{InferInputTensor, InferRequestedOutputTensor},
};
use serde_json::{Map, Value, json};
use tonic::{
    Code, Request, Status,
    metadata::{Ascii, MetadataValue},
    transport::Channel,
};
use url::Url;

use super::{InferArgs, WHO, nobody, too_late};
use crate::{client::tls_trouble, failure::Failure};

/// A request, ready to be sent any number of times.
#[derive(Debug)]
pub(super) struct Call {
    base: Url,
    client: GrpcInferenceServiceClient<Channel>,
    request: ModelInferRequest,
    namespace: MetadataValue<Ascii>,
    authorization: Option<MetadataValue<Ascii>>,
    timeout: Duration,
}

impl Call {
    pub(super) fn new(base: &Url, name: &DeploymentName, args: &InferArgs, request: &Value) -> Result<Self, Failure> {
        let endpoint = args.connect.endpoint(base)?;
        let authorization = args.connect.authorization()?.map(|value| MetadataValue::try_from(value.as_bytes()));
        let authorization = authorization.transpose().map_err(|e| Failure::doing("the token cannot be sent", e))?;
        // The server bounds what it takes; a large answer is for the caller to see.
        let client = GrpcInferenceServiceClient::new(endpoint.connect_lazy()).max_decoding_message_size(usize::MAX);
        let mut message = message(request).map_err(Failure::Invalid)?;
        name.name().clone_into(&mut message.model_name);
        message.model_version.clone_from(&args.model_version);
        let namespace =
            MetadataValue::try_from(name.namespace()).map_err(|e| Failure::doing("the namespace cannot be sent", e))?;
        Ok(Self { base: base.clone(), client, request: message, namespace, authorization, timeout: args.timeout })
    }

    /// Sends the request.
    pub(super) async fn send(&self) -> Result<ModelInferResponse, Failure> {
        let mut request = Request::new(self.request.clone());
        request.set_timeout(self.timeout);
        request.metadata_mut().insert("berth-namespace", self.namespace.clone());
        if let Some(authorization) = &self.authorization {
            request.metadata_mut().insert("authorization", authorization.clone());
        }
        let sent = self.client.clone().model_infer(request).await;
        sent.map(tonic::Response::into_inner).map_err(|status| self.refused(&status))
    }

    fn refused(&self, status: &Status) -> Failure {
        let reason = status.metadata().get("berth-reason").and_then(|reason| reason.to_str().ok());
        let message = status.message();
        if let (None, Some(remedy)) = (reason, tls_trouble(status)) {
            return Failure::Failed(format!("{}: {remedy}", self.base.as_str().trim_end_matches('/')));
        }
        match (reason, status.code()) {
            (Some(reason), _) => super::refused(message, reason),
            // Without a reason it was not our gateway that spoke: this side gave up, or something between the two.
            (None, Code::DeadlineExceeded | Code::Cancelled) => too_late(),
            (None, Code::Unavailable) => nobody(&self.base),
            (None, Code::Unauthenticated) => Failure::Failed(format!("{message}\n  {WHO}")),
            (None, Code::NotFound) => Failure::NotFound(message.to_owned()),
            (None, Code::InvalidArgument | Code::OutOfRange) => Failure::Invalid(message.to_owned()),
            (None, code) => Failure::Failed(format!("{code:?}: {message}")),
        }
    }
}

/// The message for a request in JSON.
fn message(request: &Value) -> Result<ModelInferRequest, String> {
    let list = |field: &str| request.get(field).and_then(Value::as_array).cloned().unwrap_or_default();
    let outputs = list("outputs");
    let outputs = outputs.iter().map(|output| {
        let name = text(output, "name", "an output")?;
        Ok(InferRequestedOutputTensor { name, ..Default::default() })
    });
    Ok(ModelInferRequest {
        id: request.get("id").and_then(Value::as_str).unwrap_or_default().to_owned(),
        inputs: list("inputs").iter().map(input).collect::<Result<_, String>>()?,
        outputs: outputs.collect::<Result<_, String>>()?,
        ..Default::default()
    })
}

fn text(object: &Value, field: &str, what: &str) -> Result<String, String> {
    let text = object.get(field).and_then(Value::as_str).map(str::to_owned);
    text.ok_or_else(|| format!("{what} has no {field:?}"))
}

fn input(tensor: &Value) -> Result<InferInputTensor, String> {
    let name = text(tensor, "name", "an input")?;
    let datatype = text(tensor, "datatype", &format!("input {name:?}"))?;
    let shape =
        tensor.get("shape").and_then(Value::as_array).ok_or_else(|| format!("input {name:?} has no \"shape\""))?;
    let shape = shape.iter().map(|dim| dim.as_i64().ok_or_else(|| format!("input {name:?}: {dim} is not a dimension")));
    let shape = shape.collect::<Result<_, String>>()?;
    let mut elements = Vec::new();
    flatten(tensor.get("data").unwrap_or(&Value::Null), &mut elements);
    let contents = contents(&datatype, &elements).map_err(|wrong| format!("input {name:?}: {wrong}"))?;
    Ok(InferInputTensor { name, datatype, shape, contents: Some(contents), ..Default::default() })
}

/// Nested lists laid flat.
fn flatten<'a>(data: &'a Value, into: &mut Vec<&'a Value>) {
    match data {
        Value::Array(items) => items.iter().for_each(|item| flatten(item, into)),
        element => into.push(element),
    }
}

fn contents(datatype: &str, elements: &[&Value]) -> Result<InferTensorContents, String> {
    fn all<T>(elements: &[&Value], datatype: &str, read: impl Fn(&Value) -> Option<T>) -> Result<Vec<T>, String> {
        elements.iter().map(|e| read(e).ok_or_else(|| format!("{e} is not of {datatype}"))).collect()
    }
    let mut contents = InferTensorContents::default();
    match datatype {
        "BOOL" => contents.bool_contents = all(elements, datatype, Value::as_bool)?,
        "INT8" | "INT16" | "INT32" => {
            contents.int_contents = all(elements, datatype, |e| e.as_i64().and_then(|n| i32::try_from(n).ok()))?;
        }
        "INT64" => contents.int64_contents = all(elements, datatype, Value::as_i64)?,
        "UINT8" | "UINT16" | "UINT32" => {
            contents.uint_contents = all(elements, datatype, |e| e.as_u64().and_then(|n| u32::try_from(n).ok()))?;
        }
        "UINT64" => contents.uint64_contents = all(elements, datatype, Value::as_u64)?,
        "FP32" => contents.fp32_contents = all(elements, datatype, |e| e.as_f64().map(|n| n as f32))?,
        "FP64" => contents.fp64_contents = all(elements, datatype, Value::as_f64)?,
        "BYTES" => {
            contents.bytes_contents = all(elements, datatype, |e| e.as_str().map(|s| s.as_bytes().to_vec().into()))?
        }
        other => return Err(format!("{other} has no typed form in gRPC: send it over REST")),
    }
    Ok(contents)
}

/// An answer in the JSON form of the protocol.
pub(super) fn answer(response: ModelInferResponse) -> Value {
    let mut raw = response.raw_output_contents.iter();
    let outputs = response.outputs.iter().map(|output| {
        let data = match (&output.contents, raw.next()) {
            (_, Some(raw)) => berth_spec::tensor::Tensor::new(
                output.name.clone(),
                output.datatype.parse().unwrap_or(berth_spec::Datatype::Uint8),
                output.shape.clone(),
                raw.clone(),
            )
            .map_or(Value::Null, |tensor| elements(&tensor)),
            (Some(contents), None) => typed(contents),
            (None, None) => Value::Array(Vec::new()),
        };
        json!({"name": output.name, "datatype": output.datatype, "shape": output.shape, "data": data})
    });
    let mut answer = json!({
        "model_name": response.model_name,
        "model_version": response.model_version,
        "outputs": outputs.collect::<Vec<_>>(),
    });
    if !response.id.is_empty() {
        answer["id"] = response.id.into();
    }
    let parameters = response.parameters.into_iter().filter_map(|(name, parameter)| {
        Some((
            name,
            match parameter.parameter_choice? {
                ParameterChoice::BoolParam(v) => v.into(),
                ParameterChoice::Int64Param(v) => v.into(),
                ParameterChoice::StringParam(v) => v.into(),
                ParameterChoice::DoubleParam(v) => v.into(),
                ParameterChoice::Uint64Param(v) => v.into(),
            },
        ))
    });
    let parameters: Map<String, Value> = parameters.collect();
    if !parameters.is_empty() {
        answer["parameters"] = parameters.into();
    }
    answer
}

/// The elements of a tensor as JSON, flat.
fn elements(tensor: &berth_spec::Tensor) -> Value {
    use berth_spec::Datatype as D;
    fn each<const N: usize>(data: &[u8], read: impl Fn([u8; N]) -> Value) -> Value {
        let (chunks, _) = data.as_chunks::<N>();
        chunks.iter().map(|chunk| read(*chunk)).collect()
    }
    let data = &tensor.data[..];
    match tensor.datatype {
        D::Bool => data.iter().map(|&b| Value::from(b != 0)).collect(),
        D::Uint8 => data.iter().map(|&b| Value::from(b)).collect(),
        D::Int8 => each(data, |b| i8::from_le_bytes(b).into()),
        D::Uint16 => each(data, |b| u16::from_le_bytes(b).into()),
        D::Int16 => each(data, |b| i16::from_le_bytes(b).into()),
        D::Uint32 => each(data, |b| u32::from_le_bytes(b).into()),
        D::Int32 => each(data, |b| i32::from_le_bytes(b).into()),
        D::Uint64 => each(data, |b| u64::from_le_bytes(b).into()),
        D::Int64 => each(data, |b| i64::from_le_bytes(b).into()),
        D::Fp16 => each(data, |b| half::f16::from_le_bytes(b).to_f32().into()),
        D::Bf16 => each(data, |b| half::bf16::from_le_bytes(b).to_f32().into()),
        D::Fp32 => each(data, |b| f32::from_le_bytes(b).into()),
        D::Fp64 => each(data, |b| f64::from_le_bytes(b).into()),
        D::Bytes => berth_spec::tensor::BytesElements::new(data)
            .flatten()
            .map(|element| Value::from(String::from_utf8_lossy(element)))
            .collect(),
    }
}

fn typed(contents: &InferTensorContents) -> Value {
    let mut all: Vec<Value> = Vec::new();
    all.extend(contents.bool_contents.iter().map(|&v| v.into()));
    all.extend(contents.int_contents.iter().map(|&v| v.into()));
    all.extend(contents.int64_contents.iter().map(|&v| v.into()));
    all.extend(contents.uint_contents.iter().map(|&v| v.into()));
    all.extend(contents.uint64_contents.iter().map(|&v| v.into()));
    all.extend(contents.fp32_contents.iter().map(|&v| v.into()));
    all.extend(contents.fp64_contents.iter().map(|&v| v.into()));
    all.extend(contents.bytes_contents.iter().map(|v| String::from_utf8_lossy(v).into()));
    all.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_become_messages_and_wrong_ones_say_what_is_wrong() {
        let request = json!({"id": "7", "inputs": [
            {"name": "x", "datatype": "FP32", "shape": [2, 2], "data": [[1, 2], [3, 4.5]]},
            {"name": "s", "datatype": "BYTES", "shape": [1], "data": ["hällo"]}
        ]});
        let message = message(&request).expect("a message");
        assert_eq!(message.inputs[0].contents.as_ref().expect("contents").fp32_contents, [1.0, 2.0, 3.0, 4.5]);
        assert_eq!(message.inputs[1].contents.as_ref().expect("contents").bytes_contents[0], "hällo".as_bytes());
        for (input, says) in [
            (json!({"name": "x", "shape": [1], "data": [1]}), "has no \"datatype\""),
            (json!({"name": "x", "datatype": "INT32", "shape": [1], "data": [1.5]}), "1.5 is not of INT32"),
            (json!({"name": "x", "datatype": "FP16", "shape": [1], "data": [1]}), "over REST"),
        ] {
            let error = super::message(&json!({"inputs": [input]})).expect_err(says);
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn raw_answers_become_json() {
        let response = ModelInferResponse {
            model_name: "m".to_owned(),
            outputs: vec![berth_wire::oip::model_infer_response::InferOutputTensor {
                name: "y".to_owned(),
                datatype: "INT16".to_owned(),
                shape: vec![2],
                ..Default::default()
            }],
            raw_output_contents: vec![vec![1, 0, 255, 255].into()],
            ..Default::default()
        };
        assert_eq!(answer(response)["outputs"][0]["data"], json!([1, -1]));
    }
}
