//! gRPC messages to and from requests and answers.
//!
//! Tensors travel raw (`raw_*_contents`: slices of the message, no copy) or typed (`contents`), one way for a whole
//! message. An answer goes the way its request came. FP16 and BF16 have no typed form: an answer that has one goes raw.

mod contents;
pub mod effort;
pub(crate) mod frame;
pub(crate) mod methods;
pub(crate) mod model_name;
pub mod raw_message;

use std::collections::HashMap;

use berth_spec::{
    Datatype, InferError, InferRequest, InferResponse, Tensor,
    inference::{Parameter, Parameters},
};
use berth_wire::oip::{
    InferParameter, ModelInferRequest, ModelInferResponse,
    infer_parameter::ParameterChoice,
    model_infer_request::{InferInputTensor, InferRequestedOutputTensor},
    model_infer_response::InferOutputTensor,
};
use bytes::Bytes;

use super::{
    AnswerForm, Decoded,
    classification::classify,
    decoded::OutputForm,
    parameter::{self, classes},
    raw,
    shared::{Range, RangeParameters},
};

/// Decodes an inference. Raw contents stay slices of the message's buffer. `model_name` and `model_version` are the
/// caller's to read before.
pub fn decode(message: ModelInferRequest) -> Result<Decoded, InferError> {
    let mut decoded = Decoded::default();
    decoded.request.id = Some(message.id).filter(|id| !id.is_empty());
    for (name, value) in message.parameters {
        if let Some(value) = from_message(value) {
            parameter::take(&mut decoded, &name, value)?;
        }
    }
    let is_shared = |input: &InferInputTensor| input.parameters.contains_key("shared_memory_region");
    let inputs = message.inputs.iter().filter(|input| !is_shared(input)).count();
    decoded.request.inputs.reserve_exact(message.inputs.len());
    let raw = !message.raw_input_contents.is_empty();
    if raw && message.raw_input_contents.len() != inputs {
        return Err(InferError::Invalid(format!(
            "the request has {inputs} inputs, but {} raw_input_contents",
            message.raw_input_contents.len()
        )));
    }
    let mut blobs = message.raw_input_contents.into_iter();
    for (index, input) in message.inputs.into_iter().enumerate() {
        if is_shared(&input) {
            let (input, range) = read_shared(input)?;
            decoded.request.inputs.push(input);
            decoded.shared.extend(range.map(|range| (index, range)));
        } else {
            decoded.request.inputs.push(read_input(input, blobs.next())?);
        }
    }
    for output in message.outputs {
        decoded.want(read_output(output)?);
    }
    // Without inputs nothing says which way the caller speaks; raw is what tritonclient reads.
    decoded.form.binary = raw || inputs == 0 || !decoded.shared.is_empty();
    decoded.check_names()
}

fn read_input(input: InferInputTensor, blob: Option<Bytes>) -> Result<Tensor, InferError> {
    let InferInputTensor { name, datatype, shape, contents, .. } = input;
    let datatype = datatype.parse().map_err(|error| InferError::Invalid(format!("input {name:?}: {error}")))?;
    match (blob, contents) {
        (Some(_), Some(contents)) if contents::count(&contents) > 0 => Err(InferError::Invalid(format!(
            "input {name:?} has contents, but the request has raw_input_contents: a request has one or the other"
        ))),
        (Some(blob), _) => raw::tensor(name, datatype, shape, blob),
        (None, contents) => contents::read(name, datatype, shape, contents.unwrap_or_default()),
    }
}

/// An input in shared memory: without data yet.
fn read_shared(input: InferInputTensor) -> Result<(Tensor, Option<Range>), InferError> {
    let InferInputTensor { name, datatype, shape, parameters, contents } = input;
    let invalid = |why: &dyn std::fmt::Display| InferError::Invalid(format!("input {name:?}: {why}"));
    if contents.is_some_and(|contents| contents::count(&contents) > 0) {
        return Err(invalid(&"it has contents, and is in shared memory"));
    }
    let datatype: Datatype = datatype.parse().map_err(|error| invalid(&error))?;
    let range = read_range(&parameters).map_err(|error| invalid(&error))?;
    Ok((Tensor { name, datatype, shape, data: Bytes::new() }, range))
}

fn read_range(parameters: &HashMap<String, InferParameter>) -> Result<Option<Range>, InferError> {
    let mut range = RangeParameters::default();
    for (name, value) in parameters {
        if let Some(value) = from_message(value.clone()) {
            range.take(name, &value)?;
        }
    }
    range.range()
}

fn read_output(output: InferRequestedOutputTensor) -> Result<OutputForm, InferError> {
    let shared = read_range(&output.parameters)?;
    let mut form = OutputForm { name: output.name, shared, ..OutputForm::default() };
    for (name, value) in output.parameters {
        if let ("classification", Some(value)) = (name.as_str(), from_message(value)) {
            form.classification = Some(classes(&value)?);
        }
    }
    Ok(form)
}

/// Encodes an answer: raw when the request was raw, typed otherwise (raw too where an output has no typed form).
pub fn encode(response: InferResponse, form: &AnswerForm) -> Result<ModelInferResponse, InferError> {
    let mut tensors = response.outputs;
    for tensor in &mut tensors {
        if let Some(classes) = form.classification(&tensor.name) {
            *tensor = classify(tensor, classes, form.labels())?;
        }
    }
    let raw = form.binary || !tensors.iter().all(|tensor| contents::has_typed_form(tensor.datatype));
    let mut outputs = Vec::with_capacity(tensors.len());
    let mut raw_output_contents = Vec::with_capacity(if raw { tensors.len() } else { 0 });
    for tensor in tensors {
        let range = form.shared(&tensor.name);
        let contents = (!raw && range.is_none()).then(|| contents::write(&tensor));
        if raw {
            raw_output_contents.push(tensor.data);
        }
        outputs.push(InferOutputTensor {
            name: tensor.name,
            datatype: tensor.datatype.as_str().to_owned(),
            shape: tensor.shape,
            parameters: range.map(place).unwrap_or_default(),
            contents,
        });
    }
    Ok(ModelInferResponse {
        model_name: response.model_name.as_ref().to_owned(),
        model_version: response.model_version.as_ref().to_owned(),
        id: response.id.unwrap_or_default(),
        parameters: to_messages(response.parameters),
        outputs,
        raw_output_contents,
    })
}

/// The place of an output in shared memory, as parameters.
fn place(range: &Range) -> HashMap<String, InferParameter> {
    let region = ("shared_memory_region".to_owned(), to_message(Parameter::Text(range.region.clone())));
    let number = |name: &str, value: u64| (name.to_owned(), to_message(Parameter::Uint(value)));
    let offset = (range.offset > 0).then(|| number("shared_memory_offset", range.offset));
    [region, number("shared_memory_byte_size", range.size)].into_iter().chain(offset).collect()
}

/// The message of a request, raw: for clients of the protocol.
#[must_use]
pub fn message(model_name: &str, model_version: &str, request: InferRequest) -> ModelInferRequest {
    let mut raw_input_contents = Vec::with_capacity(request.inputs.len());
    let mut inputs = Vec::with_capacity(request.inputs.len());
    for input in request.inputs {
        raw_input_contents.push(input.data);
        inputs.push(InferInputTensor {
            name: input.name,
            datatype: input.datatype.as_str().to_owned(),
            shape: input.shape,
            parameters: HashMap::new(),
            contents: None,
        });
    }
    let outputs = request.outputs.into_iter().map(|output| {
        let classification = output.classification.map(|classes| Parameter::Int(classes.into()));
        let parameters = classification.map(|classes| ("classification".to_owned(), to_message(classes)));
        InferRequestedOutputTensor { name: output.name, parameters: parameters.into_iter().collect() }
    });
    ModelInferRequest {
        model_name: model_name.to_owned(),
        model_version: model_version.to_owned(),
        id: request.id.unwrap_or_default(),
        parameters: to_messages(request.parameters),
        inputs,
        outputs: outputs.collect(),
        raw_input_contents,
    }
}

/// The outputs of an answer, raw or typed: for clients of the protocol.
///
/// # Errors
/// [`InferError::Model`]: the answer is none.
pub fn outputs(response: ModelInferResponse) -> Result<Vec<Tensor>, InferError> {
    let wrong = |why: String| InferError::Model(format!("the model's answer cannot be read: {why}"));
    let mut blobs = response.raw_output_contents.into_iter();
    let tensors = response.outputs.into_iter().map(|output| {
        let InferOutputTensor { name, datatype, shape, contents, .. } = output;
        let datatype: Datatype = datatype.parse().map_err(|error| wrong(format!("output {name:?}: {error}")))?;
        match (blobs.next(), contents) {
            (Some(blob), _) => Tensor::new(name, datatype, shape, blob).map_err(|error| wrong(error.to_string())),
            (None, contents) => contents::read(name, datatype, shape, contents.unwrap_or_default())
                .map_err(|error| wrong(error.to_string())),
        }
    });
    tensors.collect()
}

/// A parameter without a value is left out.
fn from_message(message: InferParameter) -> Option<Parameter> {
    Some(match message.parameter_choice? {
        ParameterChoice::BoolParam(value) => Parameter::Bool(value),
        ParameterChoice::Int64Param(value) => Parameter::Int(value),
        ParameterChoice::StringParam(value) => Parameter::Text(value),
        ParameterChoice::DoubleParam(value) => Parameter::Float(value),
        ParameterChoice::Uint64Param(value) => Parameter::Uint(value),
    })
}

fn to_message(parameter: Parameter) -> InferParameter {
    InferParameter {
        parameter_choice: Some(match parameter {
            Parameter::Bool(value) => ParameterChoice::BoolParam(value),
            Parameter::Int(value) => ParameterChoice::Int64Param(value),
            Parameter::Text(value) => ParameterChoice::StringParam(value),
            Parameter::Float(value) => ParameterChoice::DoubleParam(value),
            Parameter::Uint(value) => ParameterChoice::Uint64Param(value),
        }),
    }
}

fn to_messages(parameters: Parameters) -> HashMap<String, InferParameter> {
    parameters.into_iter().map(|(name, value)| (name, to_message(value))).collect()
}
