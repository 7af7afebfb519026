//! The binary tensor extension, in both directions, and bodies without JSON.

use berth_mesh::oip::{Layout, decode, encode};
use berth_spec::{Datatype, InferError, Signature, tensor::BytesElements};
use bytes::Bytes;
use serde_json::{Value, json};

use super::{fp32, response, spec, tensor, texts};

fn body(json: &str, blobs: &[u8]) -> (Bytes, Layout) {
    let body: Bytes = [json.as_bytes(), blobs].concat().into();
    let layout = Layout::of(Some(json.len().to_string().as_bytes()), body.len()).expect("a layout");
    (body, layout)
}

#[test]
fn blobs_follow_in_the_order_of_their_inputs() {
    let strings = texts(&[b"ab", b"\xff"]);
    let json = format!(
        r#"{{"inputs":[
            {{"name":"a","shape":[2],"datatype":"BYTES","parameters":{{"binary_data_size":{}}}}},
            {{"name":"b","shape":[1],"datatype":"FP32","data":[0.5]}},
            {{"name":"c","parameters":{{"binary_data_size":8}},"shape":[2],"datatype":"FP32"}}]}}"#,
        strings.len()
    );
    let numbers: Vec<u8> = [1_f32, f32::NAN].iter().flat_map(|value| value.to_le_bytes()).collect();
    let (body, layout) = body(&json, &[strings.clone(), numbers.clone()].concat());
    let inputs = decode(&body, layout, &Signature::default()).expect("a request").request.inputs;
    assert_eq!(inputs[0], tensor("a", Datatype::Bytes, &[2], &strings));
    assert_eq!(inputs[1], fp32("b", &[1], &[0.5]));
    assert_eq!(inputs[2], tensor("c", Datatype::Fp32, &[2], &numbers));
    assert!(body.as_ptr_range().contains(&inputs[2].data.as_ptr()), "a blob is a slice of the body");
}

#[test]
fn blobs_that_do_not_fit() {
    let request = |input: &str| format!(r#"{{"inputs":[{{"name":"x",{input}}}]}}"#);
    let fp32 =
        |size: &str| request(&format!(r#""shape":[2],"datatype":"FP32","parameters":{{"binary_data_size":{size}}}"#));
    for (json, blobs, words) in [
        (fp32("8"), vec![0; 7], "a binary_data_size of 8, but 7 bytes are left"),
        (fp32("18446744073709551615"), vec![0; 8], "but 8 bytes are left"),
        (fp32("8"), vec![0; 9], "1 bytes of the body are left"),
        (fp32("4"), vec![0; 4], "needs 8 bytes, got 4"),
        (request(r#""shape":[1],"datatype":"FP32","data":[1]"#), vec![0], "1 bytes of the body are left"),
        (
            request(r#""shape":[1],"datatype":"FP32","data":[1],"parameters":{"binary_data_size":4}"#),
            vec![0; 4],
            "both",
        ),
        (request(r#""shape":[1],"datatype":"BOOL","parameters":{"binary_data_size":1}"#), vec![2], "must be 0 or 1"),
        (
            request(r#""shape":[1],"datatype":"BYTES","parameters":{"binary_data_size":5}"#),
            vec![2, 0, 0, 0, b'a'],
            "points past the data",
        ),
        (
            request(r#""shape":[2],"datatype":"BYTES","parameters":{"binary_data_size":5}"#),
            vec![1, 0, 0, 0, b'a'],
            "needs 2 elements, got 1",
        ),
    ] {
        let (body, layout) = body(&json, &blobs);
        let error = decode(&body, layout, &Signature::default()).expect_err(&json);
        assert!(matches!(error, InferError::Invalid(_)), "{json}");
        assert!(error.to_string().contains(words), "{json}: {error}");
    }
    let short = decode(&Bytes::from_static(b"{}"), Layout::Binary { json: 3 }, &Signature::default());
    assert!(matches!(short, Err(InferError::Invalid(_))), "a layout of another body");
}

#[test]
fn a_body_without_json_is_the_one_input() {
    for (shape, bytes, expected) in [
        (&[2, 2][..], 16, Some(vec![2, 2])),
        (&[-1, 2], 24, Some(vec![3, 2])),
        (&[-1, -1, 2], 24, Some(vec![1, 3, 2])),
        (&[1, -1], 0, Some(vec![1, 0])),
        (&[2, 2], 12, None),
        (&[-1, 2], 12, None),
        (&[1, -1, -1], 4, None),
        (&[-1, 0], 0, None),
        (&[-1, i64::MAX, 2], 8, None),
    ] {
        let signature = Signature { inputs: vec![spec("x", Datatype::Fp32, shape)], ..Signature::default() };
        let decoded = decode(&vec![0; bytes].into(), Layout::Raw, &signature);
        let found = decoded.as_ref().ok().map(|decoded| decoded.request.inputs[0].shape.clone());
        assert_eq!(found, expected, "{shape:?} {bytes}");
        if let Ok(decoded) = decoded {
            assert!(decoded.form.binary);
        }
    }
}

#[test]
fn a_body_without_json_is_one_element_of_bytes() {
    let signature =
        |shape: &[i64]| Signature { inputs: vec![spec("x", Datatype::Bytes, shape)], ..Signature::default() };
    let body = Bytes::from_static(b"427");
    let decoded = decode(&body, Layout::Raw, &signature(&[-1, 1])).expect("a request");
    let input = &decoded.request.inputs[0];
    assert_eq!(input.shape, [1, 1]);
    assert_eq!(BytesElements::new(&input.data).collect::<Vec<_>>(), [Some(b"427".as_slice())]);
    assert!(decode(&body, Layout::Raw, &signature(&[2])).is_err());
    let two = Signature { inputs: vec![spec("x", Datatype::Bytes, &[1]); 2], ..Signature::default() };
    assert!(decode(&body, Layout::Raw, &two).is_err());
}

#[test]
fn an_answer_is_binary_where_it_was_asked_for() {
    let outputs = vec![fp32("a", &[1, 2], &[1.0, 2.5]), tensor("b", Datatype::Bytes, &[1], &texts(&[b"\xff"]))];
    for (request, binary) in [
        (r#"{"inputs":[],"parameters":{"binary_data_output":true}}"#, [true, true]),
        (r#"{"inputs":[],"outputs":[{"name":"b","parameters":{"binary_data":true}}]}"#, [false, true]),
        (
            r#"{"inputs":[],"parameters":{"binary_data_output":true},"outputs":[{"name":"a","parameters":{"binary_data":false}},{"name":"b"}]}"#,
            [false, true],
        ),
    ] {
        let form = super::decode_json(request).expect("a request").form;
        let encoded = encode(&response(outputs.clone()), &form).expect("an answer");
        let json: Value = serde_json::from_slice(&encoded.json).expect("JSON");
        let sizes = [0, 1].map(|index| json["outputs"][index]["parameters"]["binary_data_size"].as_u64());
        assert_eq!(sizes, [binary[0].then_some(8), binary[1].then_some(5)], "{request}");
        if !binary[0] {
            assert_eq!(json["outputs"][0]["data"], json!([1.0, 2.5]));
        }
        let wanted = outputs.iter().zip(binary).filter(|(_, binary)| *binary);
        assert_eq!(encoded.blobs, wanted.map(|(output, _)| output.data.clone()).collect::<Vec<_>>());
        assert_eq!((encoded.binary, encoded.content_type()), (true, "application/octet-stream"));
        assert_eq!(encoded.len(), encoded.clone().into_bytes().len());
        assert!(encoded.clone().into_bytes().starts_with(&encoded.json));
    }
}
