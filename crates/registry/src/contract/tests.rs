use proptest::prelude::*;
use serde_json::json;

use super::*;

fn interface(input: Value, output: Value) -> Interface {
    Interface { input_schema: input, output_schema: output, batch_size: None }
}

fn said(old: (Value, Value), new: (Value, Value)) -> Vec<String> {
    breaks(&interface(old.0, old.1), &interface(new.0, new.1)).iter().map(ToString::to_string).collect()
}

fn text(extra: Value) -> Value {
    let mut schema = json!({"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}});
    schema.as_object_mut().expect("it is one").extend(extra.as_object().expect("one").clone());
    schema
}

#[test]
fn what_clients_of_the_old_version_would_notice() {
    let plain = || text(json!({}));
    let cases: [(&str, Value, Value, &[&str]); 9] = [
        ("nothing", plain(), plain(), &[]),
        (
            "a new field that may be left out",
            plain(),
            text(json!({"properties": {"text": {"type": "string"}, "lang": {}}})),
            &[],
        ),
        (
            "a field that must be given",
            plain(),
            text(json!({"required": ["text", "lang"]})),
            &["input/lang: it must be given now"],
        ),
        (
            "a shorter text",
            plain(),
            text(json!({"properties": {"text": {"type": "string", "maxLength": 10}}})),
            &["input/text: maxLength was not bounded and is 10"],
        ),
        (
            "a longer text",
            text(json!({"properties": {"text": {"type": "string", "maxLength": 10}}})),
            text(json!({"properties": {"text": {"type": "string", "maxLength": 20}}})),
            &[],
        ),
        (
            "another type",
            plain(),
            text(json!({"properties": {"text": {"type": "array"}}})),
            &["input/text: string is not taken any more, only array"],
        ),
        (
            "whole numbers are numbers",
            text(json!({"properties": {"text": {"type": "integer"}}})),
            text(json!({"properties": {"text": {"type": "number"}}})),
            &[],
        ),
        (
            "closed",
            plain(),
            text(json!({"additionalProperties": false})),
            &["input: properties that are not listed are not taken any more"],
        ),
        ("it takes nothing", plain(), json!(false), &["input: nothing is allowed here any more"]),
    ];
    for (what, old, new, expected) in cases {
        assert_eq!(said((old, json!({})), (new, json!({}))), expected, "{what}");
    }
}

#[test]
fn references_are_followed() {
    let with = |max: u32| {
        json!({"type": "object", "properties": {"rows": {"type": "array", "items": {"$ref": "#/$defs/Row"}}},
               "$defs": {"Row": {"type": "object", "properties": {"text": {"maxLength": max}, "next": {"$ref": "#/$defs/Row"}}}}})
    };
    let any = || (json!(true), json!(true));
    assert!(said((with(10), any().1), (with(10), any().1)).is_empty());
    assert!(said((with(10), any().1), (with(20), any().1)).is_empty());
    let found = said((with(20), any().1), (with(10), any().1));
    assert_eq!(found.first().map(String::as_str), Some("input/rows/*/text: maxLength was 20 and is 10"));
    // One that refers to nothing but itself ends.
    let round = || json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}});
    assert!(said((round(), round()), (round(), round())).is_empty());
    // What is inside others is compared with them.
    let open = json!({"type": "object", "additionalProperties": {"type": "number"}});
    let said_of = said(
        (open.clone(), any().1),
        (json!({"type": "object", "additionalProperties": {"type": "integer"}}), any().1),
    );
    assert_eq!(said_of, ["input/*: number is not taken any more, only integer"]);
    assert_eq!(said((json!(false), any().1), (open, any().1)), Vec::<String>::new(), "nothing was taken before");
}

#[test]
fn answers_are_looked_at_the_other_way_round() {
    let label = |words: Value, required: Value| json!({"type": "object", "required": required, "properties": {"label": {"enum": words}}});
    let old = label(json!(["a", "b"]), json!(["label"]));
    let same = || json!(true);
    assert!(said((same(), old.clone()), (same(), label(json!(["a"]), json!(["label"])))).is_empty(), "fewer words");
    assert_eq!(
        said((same(), old.clone()), (same(), label(json!(["a", "c"]), json!([])))),
        ["output/label: it may be missing now", "output/label: \"c\" may come, which is new"]
    );
}

fn schema() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        any::<bool>().prop_map(Value::Bool),
        proptest::sample::select(vec!["string", "number", "integer", "object"]).prop_map(|kind| json!({"type": kind})),
        (0..5, 0..5).prop_map(|(low, high)| json!({"minimum": low, "maxLength": high})),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        (proptest::collection::btree_map("[a-c/~]", inner, 0..3), any::<bool>()).prop_map(|(properties, open)| {
            let required: Vec<_> = properties.keys().take(1).cloned().collect();
            json!({"type": "object", "required": required, "properties": properties, "additionalProperties": open})
        })
    })
}

proptest! {
    #[test]
    fn a_contract_keeps_itself_and_what_takes_anything_breaks_nothing(input in schema(), output in schema()) {
        let same = (input.clone(), output.clone());
        prop_assert!(said(same.clone(), same).is_empty());
        prop_assert!(said((input, Value::Bool(true)), (Value::Bool(true), output)).is_empty());
    }
}
