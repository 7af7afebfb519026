//! Properties that hold for any bytes at all that come in as the Open Inference Protocol: for `cargo fuzz`, and for the short run in the
//! tests of `mesh`. A property panics where it does not hold.

#![allow(dead_code, reason = "each target uses one of them")]

use berth_mesh::oip::{
    AnswerForm, Decoded, Layout, decode, encode, grpc,
    plain::{
        generate::{self, Answer},
        predict,
    },
};
use berth_spec::{Class, Datatype, InferError, InferResponse, Signature, Tensor, TensorSpec};
use berth_wire::oip::{ModelInferRequest, ModelInferResponse, model_infer_request::InferInputTensor};
use bytes::Bytes;
use prost::Message as _;

/// A JSON body. What is accepted is JSON, and survives being written and read again.
pub(crate) fn oip_json(data: &[u8]) {
    let body = Bytes::copy_from_slice(data);
    let decoded = match decode(&body, Layout::Json, &Signature::default()).and_then(Decoded::with_data) {
        Ok(decoded) => decoded,
        Err(error) => return check_error(&error),
    };
    check_json(data);
    let tensors = check(decoded).request.inputs;
    let answer = encode(&answer(tensors.clone()), &AnswerForm::default()).expect("strings of JSON are UTF-8");
    assert_eq!(again(&answer.into_bytes(), None), tensors);
}

/// The number of bytes of the JSON part (two bytes, little-endian), then a body with the binary tensor extension.
/// What is accepted survives being written and read again.
pub(crate) fn binary_body(data: &[u8]) {
    let Some((length, body)) = data.split_first_chunk::<2>() else { return };
    let length = u16::from_le_bytes(*length).to_string();
    let body = Bytes::copy_from_slice(body);
    let signature = Signature {
        inputs: vec![TensorSpec { name: "x".to_owned(), datatype: Datatype::Fp32, shape: vec![-1, -1, 2] }],
        ..Signature::default()
    };
    let decoded = Layout::of(Some(length.as_bytes()), body.len()).and_then(|layout| decode(&body, layout, &signature));
    let decoded = match decoded.and_then(Decoded::with_data) {
        Ok(decoded) => decoded,
        Err(error) => return check_error(&error),
    };
    let tensors = check(decoded).request.inputs;
    let form = decode(
        &Bytes::from_static(br#"{"inputs":[],"parameters":{"binary_data_output":true}}"#),
        Layout::Json,
        &signature,
    );
    let answer = encode(&answer(tensors.clone()), &form.expect("a request").form).expect("bytes carry everything");
    let json = answer.binary.then_some(answer.json.len());
    assert_eq!(again(&answer.into_bytes(), json), tensors);
}

/// A `ModelInferRequest`. Both readers agree on what the one without generated code accepts. What is accepted means the same raw and typed.
pub(crate) fn grpc_contents(data: &[u8]) {
    assert!(grpc::effort::to_read(data, usize::MAX) <= data.len());
    let plain = grpc::raw_message::read(&Bytes::copy_from_slice(data));
    let Ok(message) = ModelInferRequest::decode(data) else { return assert!(plain.is_none(), "{plain:?}") };
    let decoded = grpc::decode(message);
    if let Some(plain) = plain {
        let decoded = decoded.as_ref().expect("the other reader accepts it, too");
        assert_eq!(format!("{plain:?}"), format!("{decoded:?}"));
        assert_eq!(plain.request.inputs, decoded.request.inputs, "the text leaves their data out");
    }
    let decoded = match decoded.and_then(Decoded::with_data) {
        Ok(decoded) => decoded,
        Err(error) => return check_error(&error),
    };
    let request = check(decoded).request;
    let raw = grpc::decode(grpc::message("m", "", request.clone())).expect("it was accepted before");
    assert_eq!(raw.request.inputs, request.inputs);
    let framed = grpc::raw_message::framed(&answer(request.inputs.clone()));
    let written = ModelInferResponse::decode(framed.slice(5..)).expect("an answer");
    let mut form = AnswerForm::default();
    form.binary = true;
    assert_eq!(written, grpc::encode(answer(request.inputs.clone()), &form).expect("raw data is written as it is"));
    let answer = grpc::encode(answer(request.inputs.clone()), &AnswerForm::default()).expect("tensors have a message");
    let inputs = answer.outputs.into_iter().map(|output| InferInputTensor {
        name: output.name,
        datatype: output.datatype,
        shape: output.shape,
        parameters: output.parameters,
        contents: output.contents,
    });
    let typed = ModelInferRequest {
        inputs: inputs.collect(),
        raw_input_contents: answer.raw_output_contents,
        ..ModelInferRequest::default()
    };
    assert_eq!(grpc::decode(typed).expect("it was accepted before").request.inputs, request.inputs);
}

/// One byte chooses the protocol (even: KServe's first, odd: Triton's generate) and the model (of one input, of three), the rest is a
/// body in plain JSON. What is accepted is JSON, and survives being written as an answer and read again.
pub(crate) fn plain(data: &[u8]) {
    let Some((chosen, body)) = data.split_first() else { return };
    let spec =
        |name: &str, datatype, shape: &[i64]| TensorSpec { name: name.to_owned(), datatype, shape: shape.to_vec() };
    let first = spec("x", Datatype::Fp32, &[-1, 2]);
    let signature = match chosen & 2 {
        0 => Signature { inputs: vec![first], ..Signature::default() },
        _ => Signature {
            inputs: vec![first, spec("text", Datatype::Bytes, &[-1])],
            optional: vec![spec("flag", Datatype::Bool, &[1])],
            ..Signature::default()
        },
    };
    let read = if chosen & 1 == 0 { predict::decode } else { generate::decode };
    let request = match read(body, &signature) {
        Ok(request) => request,
        Err(error) => return check_error(&error),
    };
    check_json(body);
    let tensors = check(Decoded { request, ..Decoded::default() }).request.inputs;
    let known = |name: &str| signature.inputs.iter().chain(&signature.optional).any(|spec| spec.name == name);
    for (at, tensor) in tensors.iter().enumerate() {
        assert!(known(&tensor.name) && tensors[..at].iter().all(|other| other.name != tensor.name), "{}", tensor.name);
    }
    if chosen & 1 == 1 {
        let (model_name, model_version, parameters) = ("m", "1", Default::default());
        let answer = Answer { model_name, model_version, id: None, parameters: &parameters, outputs: &tensors };
        let document = generate::encode(answer).expect("strings of JSON are UTF-8");
        assert!(!document.contains(&b'\n'), "an event has one line");
        return check_json(&document);
    }
    let rows = tensors.first().map_or(0, |tensor| tensor.shape[0]);
    let document = match predict::encode(&answer(tensors.clone())) {
        Ok(document) => document,
        Err(error) => return assert!(tensors.iter().any(|tensor| tensor.shape[0] != rows), "{error}"),
    };
    check_json(&document);
    // Rows of a model with several inputs have names only where they are there, and several.
    if signature.inputs.len() == 1 && tensors.len() == 1 || tensors.len() > 1 && rows > 0 {
        let rest = document.strip_prefix(br#"{"predictions":"#).expect("how an answer begins");
        let again = predict::decode(&[br#"{"instances":"#, rest].concat(), &signature);
        assert_eq!(again.expect("an answer reads like a request").inputs, tensors);
    }
}

/// Bytes from outside are never our fault.
fn check_error(error: &InferError) {
    assert!(!matches!(error.class(), Class::Internal), "{error}");
    assert!(!error.to_string().is_empty());
}

/// Checks what `Tensor` promises.
fn check(decoded: Decoded) -> Decoded {
    for Tensor { name, datatype, shape, data } in decoded.request.inputs.iter().cloned() {
        assert!(datatype != Datatype::Bool || data.iter().all(|&byte| byte <= 1), "{name}");
        Tensor::new(name, datatype, shape, data).expect("checked when it was decoded");
    }
    decoded
}

/// The codec takes no more for JSON than serde_json does, but for the words and the ranges of floats.
fn check_json(data: &[u8]) {
    let has = |word: &[u8]| data.windows(word.len()).any(|window| window == word);
    if has(b"NaN") || has(b"Infinity") {
        return;
    }
    if let Err(error) = serde_json::from_slice::<serde_json::Value>(data) {
        assert!(error.to_string().contains("out of range"), "accepted what is not JSON: {error}");
    }
}

fn answer(outputs: Vec<Tensor>) -> InferResponse {
    InferResponse {
        model_name: "m".into(),
        model_version: "1".into(),
        id: None,
        parameters: Default::default(),
        outputs,
    }
}

/// The outputs of an answer, read as the inputs of a request. `json` is the length of the JSON part, if there is another.
fn again(answer: &[u8], json: Option<usize>) -> Vec<Tensor> {
    let head = br#"{"model_name":"m","model_version":"1","outputs":"#;
    let rest = answer.strip_prefix(head).expect("how an answer begins");
    let body: Bytes = [br#"{"inputs":"#, rest].concat().into();
    let shorter = answer.len() - body.len();
    let layout = json.map_or(Layout::Json, |json| Layout::Binary { json: json - shorter });
    decode(&body, layout, &Signature::default()).expect("an answer reads like a request").request.inputs
}
