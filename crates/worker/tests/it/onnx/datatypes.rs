//! Every datatype goes in and comes out as it should.

use berth_spec::{Datatype, InferError};
use bytes::{BufMut, Bytes, BytesMut};

use super::{engine, floats, infer, load, tensor};

#[test]
fn numbers_come_back_as_they_went_in() {
    let Some(engine) = engine() else { return };
    let cases = [
        ("uint8", Datatype::Uint8),
        ("uint16", Datatype::Uint16),
        ("uint32", Datatype::Uint32),
        ("uint64", Datatype::Uint64),
        ("int8", Datatype::Int8),
        ("int16", Datatype::Int16),
        ("int32", Datatype::Int32),
        ("int64", Datatype::Int64),
        ("double", Datatype::Fp64),
    ];
    for (name, datatype) in cases {
        let loaded = load(engine, &format!("same_{name}")).expect(name);
        assert_eq!(loaded.model.signature().inputs[0].datatype, datatype, "{name}");
        let size = datatype.size().expect("a fixed size");
        // One byte off, so that most of these lie badly in memory and are copied.
        let bytes = Bytes::from((0..=3 * size as u8).collect::<Vec<u8>>()).slice(1..);
        let outputs = infer(&loaded, vec![tensor("x", datatype, &[3], bytes.clone())]).expect(name);
        assert_eq!((outputs[0].datatype, &outputs[0].data), (datatype, &bytes), "{name}");
    }
}

#[test]
fn halves_and_booleans() {
    let Some(engine) = engine() else { return };
    let one = half::f16::from_f32(1.5).to_le_bytes();
    let outputs =
        infer(&load(engine, "half").expect("half"), vec![tensor("x", Datatype::Fp16, &[1, 2], [one, one].concat())]);
    assert_eq!(outputs.expect("it runs")[0].data, [half::f16::from_f32(3.0).to_le_bytes(); 2].concat());

    let outputs = infer(&load(engine, "bfloat").expect("bfloat"), vec![floats("x", &[1, 2], &[1.0, -2.5])]);
    let expected = [half::bf16::from_f32(1.0), half::bf16::from_f32(-2.5)].map(half::bf16::to_le_bytes).concat();
    let output = outputs.expect("it runs").remove(0);
    assert_eq!((output.datatype, output.data), (Datatype::Bf16, Bytes::from(expected)));

    let flip = load(engine, "flip").expect("flip");
    let outputs = infer(&flip, vec![tensor("b", Datatype::Bool, &[3], &[1, 0, 1][..])]);
    assert_eq!(outputs.expect("it runs")[0].data, [0, 1, 0][..]);
    let error = infer(&flip, vec![tensor("b", Datatype::Bool, &[1], &[2][..])]).expect_err("2 is no boolean");
    assert!(matches!(error, InferError::Invalid(_)), "{error}");
}

#[test]
fn texts_may_be_empty_and_contain_anything_that_is_utf8() {
    let Some(engine) = engine() else { return };
    let loaded = load(engine, "strings").expect("it loads");
    let wire = |texts: &[&[u8]]| {
        let mut data = BytesMut::new();
        for text in texts {
            data.put_u32_le(u32::try_from(text.len()).expect("short"));
            data.put_slice(text);
        }
        data.freeze()
    };
    let texts = wire(&[b"", "h\u{e9}llo \u{1f980}".as_bytes(), b"a\0b", b"z"]);
    let outputs = infer(&loaded, vec![tensor("s", Datatype::Bytes, &[2, 2], texts.clone())]).expect("it runs");
    assert_eq!((outputs[0].datatype, &outputs[0].data), (Datatype::Bytes, &texts));

    let bad = wire(&[b"ok", b"\xff"]);
    let error = infer(&loaded, vec![tensor("s", Datatype::Bytes, &[1, 2], bad)]).expect_err("not UTF-8");
    assert!(matches!(&error, InferError::Invalid(message) if message.contains("UTF-8")), "{error}");
}

#[test]
fn no_rows_at_all() {
    let Some(engine) = engine() else { return };
    let outputs = infer(&load(engine, "add").expect("add"), vec![floats("x", &[0, 3], &[]), floats("y", &[0, 3], &[])]);
    let output = outputs.expect("it runs").remove(0);
    assert_eq!((output.shape, output.data), (vec![0, 3], Bytes::new()));
    let outputs = infer(&load(engine, "strings").expect("strings"), vec![tensor("s", Datatype::Bytes, &[0, 2], "")]);
    assert_eq!(outputs.expect("it runs")[0].shape, [0, 2]);
}
