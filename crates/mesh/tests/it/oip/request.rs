//! JSON requests: what is accepted, as what, and what is refused with which words.

use std::time::Duration;

use berth_spec::{Datatype, InferError, inference::Parameter};
use half::{bf16, f16};

use super::{decode_input, decode_json, fp32, texts};

const IRIS: &str = r#"{"id":"7","inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":[5.1,3.5,1.4,0.2]}]}"#;

#[test]
fn a_request_as_clients_send_it() {
    let decoded = decode_json(IRIS).expect("a request");
    assert_eq!(decoded.request.id.as_deref(), Some("7"));
    assert_eq!(decoded.request.inputs, [fp32("x", &[1, 4], &[5.1, 3.5, 1.4, 0.2])]);
    assert!(decoded.request.outputs.is_empty() && decoded.request.parameters.is_empty() && !decoded.form.binary);
}

#[test]
fn keys_come_in_any_order_and_unknown_ones_are_skipped() {
    let decoded = decode_json(
        r#" { "later" : [ {"a": [null, true, -1.5e3, "\u00e9\""]} ], "outputs":null, "parameters":null,
              "inputs":[{"data":[[1,2],[3,4.5]],"extra":{},"parameters":null,"shape":[2,2],"datatype":"FP32","name":"x"}],
              "id":null } "#,
    )
    .expect("a request");
    assert_eq!(decoded.request.inputs, [fp32("x", &[2, 2], &[1.0, 2.0, 3.0, 4.5])]);
    assert_eq!(decoded.request.id, None);
}

#[test]
fn elements_of_every_datatype() {
    let two = |bytes: [[u8; 2]; 2]| bytes.concat();
    for (datatype, data, bytes) in [
        ("BOOL", "true,false", vec![1, 0]),
        ("BOOL", "1,0", vec![1, 0]),
        ("UINT8", "0,255", vec![0, 255]),
        ("UINT8", "-0,2.550e2", vec![0, 255]),
        ("INT8", "-128,127", vec![0x80, 0x7f]),
        ("UINT16", "1,65535", two([1_u16.to_le_bytes(), u16::MAX.to_le_bytes()])),
        ("INT16", "-32768,32767", two([i16::MIN.to_le_bytes(), i16::MAX.to_le_bytes()])),
        ("UINT32", "1,4294967295", [1_u32, u32::MAX].map(u32::to_le_bytes).concat()),
        ("INT32", "-2147483648,7.0", [i32::MIN, 7].map(i32::to_le_bytes).concat()),
        ("UINT64", "18446744073709551615,1e19", [u64::MAX, 10_u64.pow(19)].map(u64::to_le_bytes).concat()),
        ("INT64", "-9223372036854775808,9223372036854775807", [i64::MIN, i64::MAX].map(i64::to_le_bytes).concat()),
        ("INT64", "30.00000000000000000000000,0e999999", [30_i64, 0].map(i64::to_le_bytes).concat()),
        ("FP16", "1.5,-65504", two([f16::from_f32(1.5).to_le_bytes(), f16::MIN.to_le_bytes()])),
        ("BF16", "1.5,-3", two([bf16::from_f32(1.5).to_le_bytes(), bf16::from_f32(-3.0).to_le_bytes()])),
        ("FP32", "3,-0.1", [3_f32, -0.1].map(f32::to_le_bytes).concat()),
        ("FP32", "1e-50,16777217", [0_f32, 16_777_216.0].map(f32::to_le_bytes).concat()),
        ("FP32", "NaN,-Infinity", [f32::NAN, f32::NEG_INFINITY].map(f32::to_le_bytes).concat()),
        ("FP64", "0.1,1.7976931348623157e308", [0.1, f64::MAX].map(f64::to_le_bytes).concat()),
        ("FP64", "Infinity,-0.0", [f64::INFINITY, -0.0].map(f64::to_le_bytes).concat()),
        ("BYTES", r#""é\n\ud83d\ude00","""#, texts(&["é\n😀".as_bytes(), b""])),
    ] {
        for data in [format!("[{data}]"), format!("[[{data}]]"), format!(" [ [ {} ] ] ", data.replace("],", "] ,"))] {
            // After and before what it depends on.
            for input in [
                format!(r#"{{"name":"x","datatype":"{datatype}","shape":[2],"data":{data}}}"#),
                format!(r#"{{"data":{data},"name":"x","datatype":"{datatype}","shape":[2]}}"#),
            ] {
                let tensor = decode_input(&input).unwrap_or_else(|error| panic!("{input}: {error}"));
                assert_eq!(tensor.data, bytes, "{input}");
            }
        }
    }
}

#[test]
fn elements_that_do_not_fit() {
    for (datatype, data, words) in [
        ("BOOL", "2", "element 0 must be true, false, 0 or 1"),
        ("BOOL", r#""true""#, "must be true"),
        ("UINT8", "256", "element 0 does not fit UINT8, which holds 0 to 255"),
        ("UINT8", "-1", "does not fit UINT8"),
        ("INT8", "128", "does not fit INT8"),
        ("INT32", "1.5", "element 0 has a fraction, which INT32 cannot hold"),
        ("INT32", "1e400000000000", "does not fit INT32"),
        ("INT64", "9223372036854775808", "does not fit INT64"),
        ("UINT64", "18446744073709551616", "does not fit UINT64"),
        ("INT32", "true", "must be a number"),
        ("INT32", "null", "must be a number"),
        ("INT32", "NaN", "must be a number"),
        ("FP16", "65520", "does not fit FP16"),
        ("BF16", "3.4e38", "does not fit BF16"),
        ("FP32", "1e39", "does not fit FP32"),
        ("FP64", "1e309", "does not fit FP64"),
        ("FP32", "null", "must be a number"),
        ("FP32", r#""1.0""#, "must be a number"),
        ("FP32", "{}", "must be a number"),
        ("BYTES", "1", "must be a string"),
        ("FP32", "true,[2]", "element 0 must be a number"),
        ("FP32", "[1],2", "not rectangular"),
        ("FP32", "[],[[2]]", "not rectangular"),
        ("FP32", "[1],[]", "not rectangular"),
        ("FP32", "1,2", "more than the 1 elements of its shape"),
        ("FP32", "", "has 0 elements, but its shape has 1"),
    ] {
        let input = format!(r#"{{"name":"x","datatype":"{datatype}","shape":[1],"data":[{data}]}}"#);
        let error = decode_input(&input).expect_err(&input);
        assert!(matches!(error, InferError::Invalid(_)), "{input}");
        assert!(error.to_string().starts_with(r#"input "x": "#), "{input}: {error}");
        assert!(error.to_string().contains(words), "{input}: {error}");
    }
}

#[test]
fn inputs_that_are_wrong() {
    for (input, words) in [
        (r#"{"datatype":"FP32","shape":[1],"data":[1]}"#, r#"input number 0: it has no "name""#),
        (r#"{"name":"x","shape":[1],"data":[1]}"#, r#"input "x": it has no "datatype""#),
        (r#"{"name":"x","datatype":"FP32","data":[1]}"#, r#"it has no "shape""#),
        (r#"{"name":"x","datatype":"FP32","shape":[1]}"#, r#"it has no "data""#),
        (r#"{"name":"x","datatype":"FP31","shape":[1],"data":[1]}"#, r#""FP31" is not a datatype"#),
        (r#"{"name":"x","datatype":"FP32","shape":[-1],"data":[1]}"#, "has -1: dimensions must not be negative"),
        (r#"{"name":"x","datatype":"FP32","shape":[1.5],"data":[1]}"#, "not a whole number"),
        (r#"{"name":"x","datatype":"FP32","shape":["1"],"data":[1]}"#, "array of whole numbers"),
        (r#"{"name":"x","datatype":"FP32","shape":[9223372036854775808],"data":[1]}"#, "below 2^63"),
        (r#"{"name":"x","datatype":"FP32","shape":[4294967296,4294967296],"data":[1]}"#, "overflows"),
        (r#"{"name":"x","datatype":"FP32","shape":[4611686018427387904],"data":[1]}"#, "overflows"),
        (r#"{"name":"x","datatype":"FP32","shape":[1000000000000],"data":[1]}"#, "has 1 elements, but its shape has"),
        (r#"{"name":"x","datatype":"FP32","shape":1,"data":[1]}"#, "expected an array"),
        (r#"{"name":"x","datatype":"FP32","shape":[1],"data":1}"#, "expected an array as data"),
        (r#"{"name":"x","name":"y","datatype":"FP32","shape":[1],"data":[1]}"#, r#""name" is given twice"#),
        (r#"{"name":7,"datatype":"FP32","shape":[1],"data":[1]}"#, "expected a string"),
        (
            r#"{"name":"x","datatype":"FP32","shape":[1],"parameters":{"binary_data_size":4}}"#,
            "has no header Inference-Header-Content-Length",
        ),
        (
            r#"{"name":"x","datatype":"FP32","shape":[1],"parameters":{"binary_data_size":-4}}"#,
            "must be a whole number of bytes",
        ),
        ("7", "expected an object"),
    ] {
        let error = decode_input(input).expect_err(input);
        assert!(matches!(error, InferError::Invalid(_)), "{input}");
        assert!(error.to_string().contains(words), "{input}: {error}");
    }
    let shared = r#"{"name":"x","datatype":"FP32","shape":[1],"parameters":{"shared_memory_region":"r"}}"#;
    assert!(decode_input(shared).expect_err("no size").to_string().contains("shared_memory_byte_size"));
}

#[test]
fn bodies_that_are_wrong() {
    let input = r#"{"name":"x","datatype":"FP32","shape":[1],"data":[1]}"#;
    for (body, words) in [
        (String::new(), "expected an object at byte 0"),
        ("[]".to_owned(), "expected an object"),
        ("{}".to_owned(), r#"no "inputs""#),
        (format!(r#"{{"inputs":[{input}]}} x"#), "nothing after the request"),
        (format!(r#"{{"inputs":[{input},{input}]}}"#), r#"input "x" is given twice"#),
        (format!(r#"{{"inputs":[{input}],"inputs":[]}}"#), r#""inputs" is given twice"#),
        (
            format!(r#"{{"inputs":[{input}],"outputs":[{{"name":"y"}},{{"name":"y"}}]}}"#),
            r#"output "y" is given twice"#,
        ),
        (format!(r#"{{"inputs":[{input}],"outputs":[{{}}]}}"#), r#"requested output has no "name""#),
        (format!(r#"{{"inputs":[{input}],"id":7}}"#), "expected a string"),
        (format!(r#"{{"inputs":[{input}],"parameters":{{"a":[1]}}}}"#), r#"parameter "a" must be a string"#),
        (format!(r#"{{"inputs":[{input}],"parameters":{{"a":1,"a":2}}}}"#), r#""a" is given twice"#),
        (format!(r#"{{"inputs":[{input}],"parameters":{{"timeout":-1}}}}"#), "whole microseconds"),
        (format!(r#"{{"inputs":[{input}],"parameters":{{"priority":"high"}}}}"#), "whole number from 0"),
        (format!(r#"{{"inputs":[{input}],"x":{}{}}}"#, "[".repeat(200), "]".repeat(200)), "deeper than 100"),
        (format!(r#"{{"inputs":{}"#, "[".repeat(100_000)), "expected an object"),
    ] {
        let error = decode_json(&body).expect_err(&body);
        assert!(matches!(error, InferError::Invalid(_)), "{body}");
        assert!(error.to_string().contains(words), "{body}: {error}");
    }
    let deep = |levels: usize| {
        let data = format!("{}1{}", "[".repeat(levels), "]".repeat(levels));
        decode_input(&format!(r#"{{"name":"x","datatype":"FP32","shape":[1],"data":{data}}}"#))
    };
    assert!(deep(97).is_ok(), "the request, inputs and the input are three levels");
    assert!(deep(98).is_err() && deep(100_000).is_err());
}

#[test]
fn json_by_its_grammar() {
    for (value, valid) in [
        ("1", true),
        ("-0.5E+10", true),
        ("01", false),
        ("+1", false),
        (".5", false),
        ("1.", false),
        ("1e", false),
        ("-", false),
        ("0x1", false),
        ("1 2", false),
        (r#""a\/b\u0041""#, true),
        (r#""\x41""#, false),
        (r#""\u12g4""#, false),
        (r#""\ud800""#, false),
        (r#""\ud800\u0041""#, false),
        (r#""\udc00""#, false),
        ("\"a\tb\"", false),
        ("\"open", false),
        ("tru", false),
        ("[1,]", false),
        ("[,1]", false),
        (r#"{"a" 1}"#, false),
        (r#"{"a":1,}"#, false),
        (r#"{a:1}"#, false),
        ("{]", false),
        ("\u{a0}1", false),
    ] {
        let body = format!(r#"{{"inputs":[],"skipped":{value}}}"#);
        assert_eq!(decode_json(&body).is_ok(), valid, "{body}");
        let strict = serde_json::from_str::<serde_json::Value>(&body).is_ok();
        assert_eq!(strict, valid, "the table is wrong about {value}");
    }
}

#[test]
fn parameters_of_the_protocol_are_taken_out() {
    let decoded = decode_json(
        r#"{"parameters":{"timeout":1500,"priority":3,"binary_data_output":true,"sequence_id":0,"sequence_start":false,
            "headers":{"a":["b"]},"triton_enable_empty_final_response":true,
            "b":true,"i":-7,"u":18446744073709551615,"f":0.5,"whole":2.0,"t":"é","n":null},"inputs":[]}"#,
    )
    .expect("a request");
    assert_eq!(decoded.options.timeout, Some(Duration::from_micros(1500)));
    assert!(decoded.options.final_response && decoded.form.binary);
    assert!(!decoded.request.parameters.contains_key("priority"), "no model has priority levels");
    let expected = [
        ("b", Parameter::Bool(true)),
        ("f", Parameter::Float(0.5)),
        ("i", Parameter::Int(-7)),
        ("t", Parameter::Text("é".to_owned())),
        ("u", Parameter::Uint(u64::MAX)),
        ("whole", Parameter::Float(2.0)),
    ];
    assert_eq!(decoded.request.parameters, expected.map(|(name, value)| (name.to_owned(), value)).into());
    for sequence in [r#""sequence_id":7"#, r#""sequence_id":"a""#, r#""sequence_start":true"#] {
        let body = format!(r#"{{"parameters":{{{sequence}}},"inputs":[]}}"#);
        assert!(matches!(decode_json(&body), Err(InferError::Unsupported(_))), "{body}");
    }
}

#[test]
fn outputs_that_are_asked_for() {
    let decoded = decode_json(
        r#"{"inputs":[],"outputs":[{"name":"a"},{"name":"b","parameters":{"classification":3,"binary_data":true,"x":1}}]}"#,
    )
    .expect("a request");
    let outputs: Vec<_> =
        decoded.request.outputs.iter().map(|output| (output.name.as_str(), output.classification)).collect();
    assert_eq!(outputs, [("a", None), ("b", Some(3))]);
    for wrong in [r#""classification":0"#, r#""classification":"1""#, r#""binary_data":1"#] {
        let body = format!(r#"{{"inputs":[],"outputs":[{{"name":"a","parameters":{{{wrong}}}}}]}}"#);
        assert!(matches!(decode_json(&body), Err(InferError::Invalid(_))), "{body}");
    }
}

#[test]
fn text_is_checked_to_be_utf8() {
    for body in [
        b"{\"inputs\":[],\"id\":\"\xff\"}".as_slice(),
        b"{\"inputs\":[],\"\xff\":1}",
        b"{\"inputs\":[{\"name\":\"x\",\"datatype\":\"BYTES\",\"shape\":[1],\"data\":[\"\xff\"]}]}",
    ] {
        let body = bytes::Bytes::from_static(body);
        let decoded = berth_mesh::oip::decode(&body, berth_mesh::oip::Layout::Json, &Default::default());
        assert!(matches!(decoded, Err(InferError::Invalid(_))), "{}", body.escape_ascii());
    }
}

#[test]
fn a_scalar_and_an_empty_tensor() {
    let scalar = decode_input(r#"{"name":"x","datatype":"INT32","shape":[],"data":[7]}"#).expect("a scalar");
    assert_eq!((scalar.datatype, scalar.elements()), (Datatype::Int32, 1));
    let empty = decode_input(r#"{"name":"x","datatype":"INT32","shape":[0,4],"data":[]}"#).expect("an empty tensor");
    assert_eq!(empty.elements(), 0);
}
