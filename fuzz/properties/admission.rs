//! Properties that hold for anything that the API server, or somebody in its place, asks the operator's webhooks.

use berth_operator::{
    admission::{Request, Verdict},
    conversion::Review,
    render::SHIPPED,
};
use serde_json::Value;

/// Refusals have words; a model that is accepted is rendered, the same each time, and reads the same again.
pub(crate) fn admission(data: &[u8]) {
    let Ok(review) = serde_json::from_slice::<Value>(data) else { return };
    let Ok(request) = Request::read(data) else { return };
    let _ = request.needs_review();
    let verdict = match request.model() {
        Err(message) => Verdict::Denied(message),
        Ok(model) => {
            let record = SHIPPED.record(&"berth:1".into(), model.metadata.generation.unwrap_or_default());
            assert_eq!(SHIPPED.render(&model, &record), SHIPPED.render(&model, &record));
            let written = serde_json::to_value(&model.spec).expect("JSON");
            assert_eq!(serde_json::from_value(written).ok(), Some(model.spec));
            Verdict::Allowed
        }
    };
    let answer = request.answer(&verdict);
    assert_eq!(answer["response"]["allowed"], Value::Bool(verdict == Verdict::Allowed));
    assert_eq!(answer["response"]["uid"], review["request"]["uid"]);
    if let Verdict::Denied(message) = verdict {
        assert!(!message.is_empty());
    }
}

/// Objects come back in their order and in the version that was asked for, all or none; a refusal has words.
pub(crate) fn conversion(data: &[u8]) {
    let Ok(review) = Review::read(data) else { return };
    let Ok((answer, count)) = review.answer() else { return };
    let answer: Value = serde_json::from_str(&answer).expect("JSON");
    // What is not looked at may be more than a number or a text can be.
    let Ok(asked) = serde_json::from_slice::<Value>(data) else { return };
    let (response, asked) = (&answer["response"], &asked["request"]);
    if !asked.is_object() {
        return;
    }
    assert_eq!(response["uid"], asked["uid"]);
    let converted = response["convertedObjects"].as_array().expect("a list");
    let Some(count) = count else {
        assert!(response["result"]["status"] == "Failure" && converted.is_empty(), "{answer}");
        assert!(response["result"]["message"].as_str().is_some_and(|message| !message.is_empty()), "{answer}");
        return;
    };
    assert_eq!(response["result"]["status"], "Success");
    let objects = asked["objects"].as_array().expect("a list");
    assert_eq!((converted.len(), count), (objects.len(), objects.len()));
    for (object, converted) in objects.iter().zip(converted) {
        assert_eq!(converted["apiVersion"], asked["desiredAPIVersion"]);
        assert_eq!(
            (&converted["kind"], &converted["metadata"]["name"]),
            (&object["kind"], &object["metadata"]["name"])
        );
    }
}
