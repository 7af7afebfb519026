//! One tensor is the same whichever way it travels, and numbers mean what their text says.

use berth_mesh::oip::{AnswerForm, Layout, decode, encode, grpc};
use berth_spec::{Datatype, InferRequest, Signature, Tensor, tensor::element_count};
use berth_wire::oip::{ModelInferRequest, model_infer_request::InferInputTensor};
use bytes::Bytes;
use proptest::{collection::vec, prelude::*, sample::select};

use super::{decode_input, response, texts};

/// A tensor of any datatype and small shape. Floats that are not finite are left to the tables: NaN is not equal to itself.
fn tensors() -> impl Strategy<Value = Tensor> {
    (select(Datatype::ALL.to_vec()), vec(0_i64..4, 0..4), any::<u64>()).prop_flat_map(|(datatype, shape, _)| {
        let elements = element_count(&shape).expect("small");
        let data = match datatype.size() {
            None => vec(".{0,6}", elements)
                .prop_map(|strings| texts(&strings.iter().map(String::as_bytes).collect::<Vec<_>>()))
                .boxed(),
            Some(size) => vec(any::<u8>(), elements * size).boxed(),
        };
        data.prop_map(move |data| {
            Tensor::new("x".to_owned(), datatype, shape.clone(), tame(datatype, data).into()).expect("a tensor")
        })
    })
}

/// Makes any bytes those of a datatype: BOOL is 0 or 1, the exponents of floats are not all ones.
fn tame(datatype: Datatype, mut data: Vec<u8>) -> Vec<u8> {
    match datatype {
        Datatype::Bool => data.iter_mut().for_each(|byte| *byte &= 1),
        Datatype::Fp16 | Datatype::Bf16 | Datatype::Fp32 | Datatype::Fp64 => {
            let size = datatype.size().expect("floats have one");
            data.iter_mut().skip(size - 1).step_by(size).for_each(|byte| *byte &= !0x40);
        }
        _ => {}
    }
    data
}

/// The outputs of an answer, read as inputs.
fn again(answer: &[u8], json: Option<usize>) -> Tensor {
    let head = br#"{"model_name":"iris","model_version":"7","outputs":"#;
    let body: Bytes = [br#"{"inputs":"#, answer.strip_prefix(head).expect("how an answer begins")].concat().into();
    let shorter = answer.len() - body.len();
    let layout = json.map_or(Layout::Json, |json| Layout::Binary { json: json - shorter });
    decode(&body, layout, &Signature::default()).expect("a request").request.inputs.remove(0)
}

proptest! {
    #[test]
    fn json_there_and_back(tensor in tensors()) {
        let answer = encode(&response(vec![tensor.clone()]), &AnswerForm::default()).expect("an answer");
        let body = answer.into_bytes();
        if serde_json::from_slice::<serde_json::Value>(&body).is_err() {
            // Doubles near the end of their range are beyond serde_json without float_roundtrip, nothing else.
            prop_assert_eq!(tensor.datatype, Datatype::Fp64);
        }
        prop_assert_eq!(again(&body, None), tensor);
    }

    #[test]
    fn binary_there_and_back(tensor in tensors()) {
        let request = br#"{"inputs":[],"parameters":{"binary_data_output":true}}"#;
        let form = decode(&Bytes::from_static(request), Layout::Json, &Signature::default()).expect("a request").form;
        let answer = encode(&response(vec![tensor.clone()]), &form).expect("an answer");
        let json = answer.json.len();
        prop_assert_eq!(again(&answer.into_bytes(), Some(json)), tensor);
    }

    #[test]
    fn raw_and_typed_are_equal(tensor in tensors()) {
        let request = InferRequest { inputs: vec![tensor.clone()], ..InferRequest::default() };
        let raw = grpc::decode(grpc::message("m", "", request)).expect("a request");
        prop_assert_eq!(&raw.request.inputs[0], &tensor);
        let output = grpc::encode(response(vec![tensor.clone()]), &AnswerForm::default()).expect("an answer");
        let typed = ModelInferRequest {
            inputs: output.outputs.into_iter().map(|output| InferInputTensor {
                name: output.name,
                datatype: output.datatype,
                shape: output.shape,
                contents: output.contents,
                ..Default::default()
            }).collect(),
            raw_input_contents: output.raw_output_contents,
            ..Default::default()
        };
        prop_assert_eq!(&grpc::decode(typed).expect("a request").request.inputs[0], &tensor);
    }

    /// Every text of JSON's grammar becomes the nearest float, as the standard library has it.
    #[test]
    fn floats_are_correctly_rounded(text in "-?(0|[1-9][0-9]{0,24})(\\.[0-9]{1,24})?([eE][+-]?[0-9]{1,3})?") {
        let read = |datatype: &str| {
            decode_input(&format!(r#"{{"name":"x","datatype":"{datatype}","shape":[1],"data":[{text}]}}"#))
        };
        let double: f64 = text.parse().expect("a double");
        match read("FP64") {
            Ok(tensor) => prop_assert_eq!(tensor.data.as_ref(), double.to_le_bytes()),
            Err(_) => prop_assert!(double.is_infinite()),
        }
        let single: f32 = text.parse().expect("a single");
        match read("FP32") {
            Ok(tensor) => prop_assert_eq!(tensor.data.as_ref(), single.to_le_bytes()),
            Err(_) => prop_assert!(single.is_infinite()),
        }
    }

    /// Texts in the middle between two singles, and next to it: where rounding twice goes wrong.
    #[test]
    fn floats_near_the_middle(bits in 0x0080_0000_u32..0x7f00_0000, digits in 15_usize..19) {
        let (low, high) = (f32::from_bits(bits), f32::from_bits(bits + 1));
        let middle = f64::midpoint(low.into(), high.into());
        for text in [format!("{middle:.digits$e}"), format!("{middle:?}"), format!("{:?}", middle.next_up())] {
            let input = format!(r#"{{"name":"x","datatype":"FP32","shape":[1],"data":[{text}]}}"#);
            let single: f32 = text.parse().expect("a single");
            let tensor = decode_input(&input).expect("a request");
            prop_assert_eq!(tensor.data.as_ref(), single.to_le_bytes());
        }
    }

    /// Integers are exact however they are written, and never wrapped.
    #[test]
    fn integers_are_exact(value in any::<i128>(), zeros in 0_usize..4, shift in 0_u32..127) {
        let value = value >> shift;
        let tail = "0".repeat(if value == 0 { 0 } else { zeros });
        for text in [value.to_string(), format!("{value}.0{tail}"), format!("{value}{tail}e-{}", tail.len())] {
            let input = format!(r#"{{"name":"x","datatype":"INT64","shape":[1],"data":[{text}]}}"#);
            match (decode_input(&input), i64::try_from(value)) {
                (Ok(tensor), Ok(value)) => prop_assert_eq!(tensor.data.as_ref(), value.to_le_bytes()),
                (Err(_), Err(_)) => {}
                (read, _) => prop_assert!(false, "{}: {:?}", text, read),
            }
        }
    }
}
