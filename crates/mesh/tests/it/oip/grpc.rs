//! gRPC messages: raw and typed contents, both ways.

use std::time::Duration;

use berth_mesh::oip::grpc::{decode, effort, encode, message};
use berth_spec::{Datatype, InferError, InferRequest};
use berth_wire::oip::{
    InferParameter, InferTensorContents, ModelInferRequest,
    infer_parameter::ParameterChoice,
    model_infer_request::{InferInputTensor, InferRequestedOutputTensor},
};
use bytes::Bytes;
use prost::Message as _;

use super::{fp32, response, tensor, texts};

fn parameter(choice: ParameterChoice) -> InferParameter {
    InferParameter { parameter_choice: Some(choice) }
}

fn typed(datatype: &str, shape: &[i64], contents: InferTensorContents) -> ModelInferRequest {
    let input = InferInputTensor {
        name: "x".to_owned(),
        datatype: datatype.to_owned(),
        shape: shape.to_vec(),
        contents: Some(contents),
        ..Default::default()
    };
    ModelInferRequest { inputs: vec![input], ..Default::default() }
}

#[test]
fn raw_contents_stay_where_they_are() {
    let data = Bytes::from(vec![0, 0, 128, 63]);
    let mut request = typed("FP32", &[1], InferTensorContents::default());
    request.id = "7".to_owned();
    request.raw_input_contents = vec![data.clone()];
    request.parameters = [
        ("timeout".to_owned(), parameter(ParameterChoice::Int64Param(5))),
        ("priority".to_owned(), parameter(ParameterChoice::Uint64Param(2))),
        ("mine".to_owned(), parameter(ParameterChoice::DoubleParam(0.5))),
        ("empty".to_owned(), InferParameter::default()),
    ]
    .into();
    let decoded = decode(request).expect("a request");
    assert_eq!(decoded.request.id.as_deref(), Some("7"));
    assert_eq!(decoded.request.inputs, [fp32("x", &[1], &[1.0])]);
    assert_eq!(decoded.request.inputs[0].data.as_ptr(), data.as_ptr());
    assert_eq!(decoded.options.timeout, Some(Duration::from_micros(5)));
    assert!(!decoded.request.parameters.contains_key("priority"), "no model has priority levels");
    assert_eq!(decoded.request.parameters.keys().collect::<Vec<_>>(), ["mine"]);
    let answer = encode(response(vec![fp32("y", &[1], &[2.0])]), &decoded.form).expect("an answer");
    assert_eq!(answer.raw_output_contents, [2_f32.to_le_bytes().as_slice()]);
    assert!(answer.outputs[0].contents.is_none());
}

#[test]
fn typed_contents_of_every_datatype() {
    let contents = InferTensorContents::default;
    for (datatype, contents, bytes) in [
        ("BOOL", InferTensorContents { bool_contents: vec![true, false], ..contents() }, vec![1, 0]),
        ("INT8", InferTensorContents { int_contents: vec![-128, 127], ..contents() }, vec![128, 127]),
        ("INT16", InferTensorContents { int_contents: vec![-2, 2], ..contents() }, vec![254, 255, 2, 0]),
        (
            "INT32",
            InferTensorContents { int_contents: vec![-2, 2], ..contents() },
            vec![254, 255, 255, 255, 2, 0, 0, 0],
        ),
        (
            "INT64",
            InferTensorContents { int64_contents: vec![1, 2], ..contents() },
            [1_i64, 2].map(i64::to_le_bytes).concat(),
        ),
        ("UINT8", InferTensorContents { uint_contents: vec![0, 255], ..contents() }, vec![0, 255]),
        ("UINT16", InferTensorContents { uint_contents: vec![1, 65535], ..contents() }, vec![1, 0, 255, 255]),
        ("UINT32", InferTensorContents { uint_contents: vec![1, 2], ..contents() }, vec![1, 0, 0, 0, 2, 0, 0, 0]),
        (
            "UINT64",
            InferTensorContents { uint64_contents: vec![1, 2], ..contents() },
            [1_u64, 2].map(u64::to_le_bytes).concat(),
        ),
        (
            "FP32",
            InferTensorContents { fp32_contents: vec![1.0, 2.0], ..contents() },
            [1_f32, 2.0].map(f32::to_le_bytes).concat(),
        ),
        (
            "FP64",
            InferTensorContents { fp64_contents: vec![1.0, 2.0], ..contents() },
            [1_f64, 2.0].map(f64::to_le_bytes).concat(),
        ),
        (
            "BYTES",
            InferTensorContents { bytes_contents: vec![Bytes::from_static(b"ab"), Bytes::new()], ..contents() },
            texts(&[b"ab", b""]),
        ),
    ] {
        let decoded =
            decode(typed(datatype, &[2], contents.clone())).unwrap_or_else(|error| panic!("{datatype}: {error}"));
        let input = decoded.request.inputs[0].clone();
        assert_eq!(input.data, bytes, "{datatype}");
        let answer = encode(response(vec![input]), &decoded.form).expect("an answer");
        assert_eq!(answer.outputs[0].contents.as_ref(), Some(&contents), "an answer goes the way its request came");
        assert!(answer.raw_output_contents.is_empty());
    }
}

#[test]
fn contents_that_do_not_fit() {
    let one = InferTensorContents { fp32_contents: vec![1.0], ..Default::default() };
    let mut both = typed("FP32", &[1], one.clone());
    both.raw_input_contents = vec![Bytes::from_static(&[0; 4])];
    let mut more = typed("FP32", &[1], InferTensorContents::default());
    more.raw_input_contents = vec![Bytes::from_static(&[0; 4]); 2];
    let mut twice = typed("FP32", &[1], one.clone());
    twice.inputs.push(twice.inputs[0].clone());
    for (request, words) in [
        (both, "one or the other"),
        (more, "1 inputs, but 2 raw_input_contents"),
        (twice, "given twice"),
        (typed("FP32", &[2], one.clone()), "fp32_contents has 1 elements, but its shape has 2"),
        (typed("INT32", &[1], one.clone()), "belong in int_contents, 1 are elsewhere"),
        (typed("FP32", &[-1], one.clone()), "must not be negative"),
        (typed("FP32", &[i64::MAX, 2], one.clone()), "overflows"),
        (typed("FP33", &[1], one), "not a datatype"),
        (typed("FP16", &[1], InferTensorContents::default()), "has no typed form"),
        (
            typed("INT8", &[2], InferTensorContents { int_contents: vec![1, 128], ..Default::default() }),
            "element 1 of int_contents does not fit INT8",
        ),
        (
            typed("UINT16", &[1], InferTensorContents { uint_contents: vec![65536], ..Default::default() }),
            "does not fit UINT16",
        ),
    ] {
        let error = decode(request).expect_err(words);
        assert!(matches!(&error, InferError::Invalid(message) if message.contains(words)), "{words}: {error}");
    }
    let mut shared = typed("FP32", &[1], InferTensorContents::default());
    let region = parameter(ParameterChoice::StringParam("r".to_owned()));
    shared.inputs[0].parameters.insert("shared_memory_region".to_owned(), region);
    assert!(decode(shared.clone()).expect_err("no size").to_string().contains("shared_memory_byte_size"));
    let size = parameter(ParameterChoice::Int64Param(4));
    shared.inputs[0].parameters.insert("shared_memory_byte_size".to_owned(), size);
    let decoded = decode(shared).expect("a request");
    assert_eq!((decoded.shared[0].0, decoded.shared[0].1.size, decoded.request.inputs[0].data.len()), (0, 4, 0));
}

#[test]
fn half_floats_only_travel_raw() {
    let one = InferTensorContents { fp32_contents: vec![1.0], ..Default::default() };
    let form = decode(typed("FP32", &[1], one)).expect("a request").form;
    let outputs = vec![fp32("a", &[1], &[1.0]), tensor("b", Datatype::Bf16, &[1], &[128, 63])];
    let answer = encode(response(outputs), &form).expect("an answer");
    assert_eq!(answer.raw_output_contents.len(), 2);
    assert!(answer.outputs.iter().all(|output| output.contents.is_none()));
}

#[test]
fn classes_instead_of_numbers() {
    let mut request = message("iris", "", InferRequest { inputs: vec![fp32("x", &[1], &[1.0])], ..Default::default() });
    request.outputs = vec![InferRequestedOutputTensor {
        name: "y".to_owned(),
        parameters: [("classification".to_owned(), parameter(ParameterChoice::Int64Param(1)))].into(),
    }];
    let decoded = decode(request).expect("a request");
    let answer = encode(response(vec![fp32("y", &[2], &[0.0, 4.0])]), &decoded.form).expect("an answer");
    assert_eq!((answer.outputs[0].datatype.as_str(), answer.outputs[0].shape.as_slice()), ("BYTES", [1].as_slice()));
    assert_eq!(answer.raw_output_contents, [texts(&[b"4.000000:1"])]);
}

/// Passing bytes on is no effort; looking at each element is.
#[test]
fn effort_is_what_is_not_passed_on() {
    const MANY: usize = 100_000;
    let floats = InferTensorContents { fp32_contents: vec![1.0; MANY], ..Default::default() };
    let typed = typed("FP32", &[MANY as i64], floats);
    let raw = |datatype: &str| ModelInferRequest {
        inputs: vec![InferInputTensor {
            name: "x".to_owned(),
            datatype: datatype.to_owned(),
            shape: vec![MANY as i64],
            ..Default::default()
        }],
        raw_input_contents: vec![vec![0; 4 * MANY].into()],
        ..Default::default()
    };
    for (message, read, decoded) in
        [(&typed, true, true), (&raw("FP32"), false, false), (&raw("BYTES"), false, true), (&raw("BOOL"), false, true)]
    {
        let bytes = message.encode_to_vec();
        assert_eq!(effort::to_read(&bytes, usize::MAX) >= 4 * MANY, read, "{}", bytes.len());
        assert!(read || effort::to_read(&bytes, usize::MAX) < 100);
        assert_eq!(effort::to_decode(message), if decoded { 4 * MANY } else { 0 });
        for end in [0, 1, 2, 10, bytes.len() - 1] {
            assert!(effort::to_read(&bytes[..end], usize::MAX) <= end);
        }
    }
    // Many fields with nothing in them are looked at no longer than any others.
    assert_eq!(effort::to_read(&[0x3a, 0].repeat(MANY), 1_000), 1_000);
    let answer = response(vec![fp32("y", &[2], &[1.0, 2.0])]);
    let form = |message| decode(message).expect("a request").form;
    assert_eq!(effort::to_encode(&answer, &form(typed)), 8);
    assert_eq!(effort::to_encode(&answer, &form(raw("FP32"))), 0);
}
