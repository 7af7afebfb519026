//! Properties that hold for anything that the API server, or somebody in its place, asks the operator's webhook.

use berth_operator::{
    admission::{Request, Verdict},
    render::SHIPPED,
};
use serde_json::Value;

/// Refusals have words; a model that is accepted is rendered, the same each time, and reads the same again.
pub(crate) fn admission(data: &[u8]) {
    let Ok(review) = serde_json::from_slice::<Value>(data) else { return };
    let Ok(request) = Request::read(&review) else { return };
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
