//! JSON answers and error bodies.

use berth_mesh::oip::{AnswerForm, effort, encode, error_body};
use berth_spec::{Datatype, InferError, inference::Parameter};
use half::{bf16, f16};
use serde_json::{Value, json};

use super::{decode_json, fp32, response, tensor, texts};

fn encoded(response: &berth_spec::InferResponse) -> String {
    let encoded = encode(response, &AnswerForm::default()).expect("an answer");
    assert!(!encoded.binary && encoded.blobs.is_empty() && encoded.content_type() == "application/json");
    String::from_utf8(encoded.into_bytes().to_vec()).expect("UTF-8")
}

#[test]
fn the_whole_of_an_answer() {
    let mut response = response(vec![fp32("probabilities", &[1, 3], &[0.1, 1.0, 3e-9])]);
    assert_eq!(
        encoded(&response),
        r#"{"model_name":"iris","model_version":"7","outputs":[{"name":"probabilities","datatype":"FP32","shape":[1,3],"data":[0.1,1.0,3e-9]}]}"#
    );
    response.id = Some("a\"\n".to_owned());
    response.outputs.clear();
    for (name, value) in [
        ("b", Parameter::Bool(false)),
        ("f", Parameter::Float(0.5)),
        ("i", Parameter::Int(-1)),
        ("n", Parameter::Float(f64::NAN)),
        ("t", Parameter::Text("é".to_owned())),
        ("u", Parameter::Uint(u64::MAX)),
    ] {
        response.parameters.insert(name.to_owned(), value);
    }
    assert_eq!(
        encoded(&response),
        r#"{"model_name":"iris","model_version":"7","id":"a\"\n","parameters":{"b":false,"f":0.5,"i":-1,"n":null,"t":"é","u":18446744073709551615},"outputs":[]}"#
    );
}

#[test]
fn elements_of_every_datatype() {
    for (datatype, bytes, data) in [
        (Datatype::Bool, vec![1, 0], "[true,false]"),
        (Datatype::Uint8, vec![0, 255], "[0,255]"),
        (Datatype::Int8, vec![0x80, 0x7f], "[-128,127]"),
        (Datatype::Uint16, [1_u16, u16::MAX].map(u16::to_le_bytes).concat(), "[1,65535]"),
        (Datatype::Int16, [i16::MIN, 1].map(i16::to_le_bytes).concat(), "[-32768,1]"),
        (Datatype::Uint32, [1_u32, u32::MAX].map(u32::to_le_bytes).concat(), "[1,4294967295]"),
        (Datatype::Int32, [i32::MIN, 1].map(i32::to_le_bytes).concat(), "[-2147483648,1]"),
        (Datatype::Uint64, [1_u64, u64::MAX].map(u64::to_le_bytes).concat(), "[1,18446744073709551615]"),
        (Datatype::Int64, [i64::MIN, 1].map(i64::to_le_bytes).concat(), "[-9223372036854775808,1]"),
        (Datatype::Fp16, [f16::from_f32(0.1), f16::MAX].map(f16::to_le_bytes).concat(), "[0.099975586,65504.0]"),
        (Datatype::Bf16, [bf16::from_f32(1.5), bf16::NAN].map(bf16::to_le_bytes).concat(), "[1.5,NaN]"),
        (Datatype::Fp32, [0.1_f32, f32::INFINITY].map(f32::to_le_bytes).concat(), "[0.1,Infinity]"),
        (Datatype::Fp64, [0.1, f64::NEG_INFINITY].map(f64::to_le_bytes).concat(), "[0.1,-Infinity]"),
        (Datatype::Bytes, texts(&["é\"".as_bytes(), b""]), r#"["é\"",""]"#),
    ] {
        let answer = encoded(&response(vec![tensor("y", datatype, &[2], &bytes)]));
        assert!(answer.contains(&format!(r#""datatype":"{datatype}","shape":[2],"data":{data}}}"#)), "{answer}");
    }
}

#[test]
fn bytes_that_are_not_text_must_be_asked_for_as_binary() {
    let output = tensor("y", Datatype::Bytes, &[2], &texts(&[b"a", b"\xff"]));
    let error = encode(&response(vec![output]), &AnswerForm::default()).expect_err("not UTF-8");
    assert!(matches!(&error, InferError::Invalid(message) if message.contains("element 1 of output \"y\"")), "{error}");
}

#[test]
fn classes_instead_of_numbers() {
    let form = decode_json(r#"{"inputs":[],"outputs":[{"name":"y","parameters":{"classification":2}}]}"#)
        .expect("a request")
        .form;
    let encoded = encode(&response(vec![fp32("y", &[1, 3], &[0.25, 0.5, 0.125])]), &form).expect("an answer");
    let answer: Value = serde_json::from_slice(&encoded.json).expect("JSON");
    let output = json!({"name": "y", "datatype": "BYTES", "shape": [1, 2], "data": ["0.500000:1", "0.250000:0"]});
    assert_eq!(answer["outputs"][0], output);
}

#[test]
fn error_bodies() {
    let body: Value = serde_json::from_slice(&error_body("no \"x\"", "not_found", &[])).expect("JSON");
    assert_eq!(body, json!({"error": "no \"x\"", "reason": "not_found"}));
}

#[test]
fn binary_outputs_are_no_effort() {
    let answer = response(vec![fp32("y", &[1000], &[0.5; 1000])]);
    let mut form = AnswerForm::default();
    assert!(effort(&answer, &form) > 4 * 1000);
    form.binary = true;
    assert_eq!(effort(&answer, &form), 0);
}
