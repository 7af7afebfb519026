//! A line of the log: JSON, without what must not be in it.

use ::http::{HeaderMap, header};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::{Map, Value, json};

use super::{
    recording::{RecordedMessage, Recording},
    settings::Redaction,
};

/// Stands in the place of what is not logged.
const REDACTED: &str = "[redacted]";

/// Headers that hold secrets, whatever is configured.
const SECRET: [&str; 6] =
    ["authorization", "proxy-authorization", "cookie", "set-cookie", "x-api-key", "x-amz-security-token"];

/// The line of an exchange at a port.
pub(super) fn line(port: &str, recording: &Recording, redaction: &Redaction) -> String {
    let Recording { at, id, method, path, principal, request, response, millis, status, grpc, .. } = recording;
    let mut line = json!({
        "timeMs": at, "id": id, "port": port, "method": method.as_str(), "path": path, "status": status,
        "durationMs": (millis * 1_000.0).round() / 1_000.0,
        "request": side(request, redaction), "response": side(response, redaction),
    });
    if !grpc.is_empty() {
        line["grpc"] = json!(&**grpc);
    }
    if let Some(principal) = principal {
        line["principal"] = json!(&**principal);
    }
    line.to_string()
}

fn side(side: &RecordedMessage, redaction: &Redaction) -> Value {
    let mut view = json!({ "headers": headers(&side.headers, redaction), "bytes": side.bytes });
    if side.body.is_empty() {
        return view;
    }
    let is_whole = side.bytes == side.body.len() as u64;
    if !is_whole {
        view["truncated"] = json!(true);
    }
    let kind = side.headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let parsed =
        (is_whole && kind.contains("json")).then(|| serde_json::from_slice::<Value>(&side.body).ok()).flatten();
    match (parsed, std::str::from_utf8(&side.body)) {
        (Some(mut body), _) => {
            redact(&mut body, redaction);
            view["body"] = body;
        }
        // A field that is to be redacted may be in it.
        _ if !redaction.fields.is_empty() => {
            view["leftOut"] = json!("the body is no JSON, or was not kept whole: its fields cannot be redacted");
        }
        (None, Ok(text)) => view["text"] = json!(text),
        (None, Err(_)) => view["base64"] = json!(BASE64_STANDARD.encode(&side.body)),
    }
    view
}

fn headers(headers: &HeaderMap, redaction: &Redaction) -> Value {
    let mut view = Map::new();
    for (name, value) in headers {
        let secret = SECRET.contains(&name.as_str()) || redaction.headers.contains(name.as_str());
        let text = if secret { REDACTED.into() } else { String::from_utf8_lossy(value.as_bytes()) };
        match view.get_mut(name.as_str()) {
            Some(Value::String(all)) => {
                all.push_str(", ");
                all.push_str(&text);
            }
            _ => drop(view.insert(name.as_str().to_owned(), json!(text))),
        }
    }
    Value::Object(view)
}

/// Replaces the fields of these names, whatever they hold.
fn redact(value: &mut Value, redaction: &Redaction) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match redaction.fields.contains(name) {
                    true => *value = json!(REDACTED),
                    false => redact(value, redaction),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| redact(item, redaction)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(kind: &str, body: &str, bytes: u64) -> RecordedMessage {
        let headers =
            [("content-type", kind), ("authorization", "Bearer s3cret"), ("x-mine", "s3cret"), ("accept", "a")];
        let headers = headers
            .iter()
            .map(|(name, value)| (::http::HeaderName::from_static(name), value.parse().expect("a value")));
        RecordedMessage { headers: headers.collect(), body: body.as_bytes().to_vec(), bytes }
    }

    fn redaction(fields: &[&str]) -> Redaction {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Redaction { headers: owned(&["x-mine"]), fields: owned(fields) }
    }

    #[test]
    fn secrets_are_left_out() {
        let body = r#"{"a":[{"pin":"s3cret","b":1}],"pin":{"c":"s3cret"}}"#;
        let view = side(&with("application/json", body, body.len() as u64), &redaction(&["pin"]));
        assert!(!view.to_string().contains("s3cret"), "{view}");
        assert_eq!(view["body"], json!({"a": [{"pin": REDACTED, "b": 1}], "pin": REDACTED}));
        assert_eq!(
            (view["headers"]["accept"].as_str(), view["headers"]["x-mine"].as_str()),
            (Some("a"), Some(REDACTED))
        );
    }

    #[test]
    fn what_cannot_be_redacted_is_left_out() {
        for (kind, body, bytes) in [
            ("application/json", r#"{"pin":"s3cret""#, 15),
            ("application/json", r#"{"pin":"s3cret"}"#, 99),
            ("text/plain", r#"{"pin":"s3cret"}"#, 16),
            ("application/grpc", "\0pin", 4),
        ] {
            let view = side(&with(kind, body, bytes), &redaction(&["pin"]));
            assert!(view["leftOut"].is_string() && !view.to_string().contains("s3cret"), "{view}");
        }
    }

    #[test]
    fn bodies_are_text_where_they_can_be() {
        let none = Redaction::default();
        assert_eq!(side(&with("text/plain", "hello", 9), &none)["text"], "hello");
        assert_eq!(side(&with("text/plain", "hello", 9), &none)["truncated"], true);
        let binary = RecordedMessage { body: vec![0, 255], bytes: 2, ..RecordedMessage::default() };
        assert_eq!(side(&binary, &none)["base64"], "AP8=");
        assert_eq!(side(&RecordedMessage::default(), &none), json!({ "headers": {}, "bytes": 0 }));
    }
}
