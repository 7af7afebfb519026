//! The name of the model that a request is for, where it is not in a path or a message: in the metadata of a gRPC call.

use std::borrow::Cow;

use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use berth_spec::InferError;
use http::{HeaderMap, HeaderName, HeaderValue};

/// Keys whose value names a model, the first that is there counts. Those of ModelMesh are understood as they are, also the oldest.
static MODEL_KEYS: [HeaderName; 4] = [
    HeaderName::from_static("berth-model"),
    HeaderName::from_static("mm-vmodel-id"),
    HeaderName::from_static("mm-model-id"),
    HeaderName::from_static("tas-model-id"),
];

/// The same keys with binary values, which gRPC writes as base64.
static BINARY_MODEL_KEYS: [HeaderName; 4] = [
    HeaderName::from_static("berth-model-bin"),
    HeaderName::from_static("mm-vmodel-id-bin"),
    HeaderName::from_static("mm-model-id-bin"),
    HeaderName::from_static("tas-model-id-bin"),
];

/// The version to ask for.
const VERSION_KEY: HeaderName = HeaderName::from_static("berth-model-version");

/// The models that a call's metadata names, in their order; none: no model is named.
pub(super) fn all_of_metadata(headers: &HeaderMap) -> Result<Vec<Cow<'_, str>>, InferError> {
    let [_, alias, model, _] = &MODEL_KEYS;
    let [_, alias_binary, model_binary, _] = &BINARY_MODEL_KEYS;
    let has = |plain: &HeaderName, binary: &HeaderName| headers.contains_key(plain) || headers.contains_key(binary);
    if has(alias, alias_binary) && has(model, model_binary) {
        let message = format!("the call has metadata {alias} and {model}: give one of them");
        return Err(InferError::Invalid(message));
    }
    for (plain, binary) in MODEL_KEYS.iter().zip(&BINARY_MODEL_KEYS) {
        let mut names = Vec::new();
        for value in headers.get_all(plain) {
            names.push(Cow::Borrowed(text(plain, value)?));
        }
        // Both forms of one name may be there: the plain one counts.
        if names.is_empty() {
            for value in headers.get_all(binary) {
                // gRPC may join values of one key by commas.
                for part in value.as_bytes().split(|byte| *byte == b',') {
                    names.push(Cow::Owned(decoded(binary, part)?));
                }
            }
        }
        if names.iter().any(|name| name.is_empty()) {
            return Err(InferError::Invalid(format!("metadata {plain} is empty")));
        }
        if !names.is_empty() {
            return Ok(names);
        }
    }
    Ok(Vec::new())
}

/// True if a call's metadata names a model.
pub(super) fn is_in_metadata(headers: &HeaderMap) -> bool {
    MODEL_KEYS.iter().chain(&BINARY_MODEL_KEYS).any(|key| headers.contains_key(key))
}

/// The version that a call's metadata names.
pub(super) fn version_of_metadata(headers: &HeaderMap) -> Result<Option<&str>, InferError> {
    headers.get(VERSION_KEY).map(|value| text(&VERSION_KEY, value)).transpose()
}

fn text<'a>(key: &HeaderName, value: &'a HeaderValue) -> Result<&'a str, InferError> {
    str::from_utf8(value.as_bytes()).map_err(|_| InferError::Invalid(format!("metadata {key} is not UTF-8")))
}

fn decoded(key: &HeaderName, value: &[u8]) -> Result<String, InferError> {
    let unpadded = value.trim_ascii();
    let end = unpadded.iter().rposition(|byte| *byte != b'=').map_or(0, |at| at + 1);
    let bytes = STANDARD_NO_PAD.decode(&unpadded[..end]).ok();
    bytes
        .and_then(|bytes| String::from_utf8(bytes).ok())
        .ok_or_else(|| InferError::Invalid(format!("metadata {key} is not a base64 of UTF-8")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_from_the_keys_of_berth_and_of_modelmesh() {
        for (key, value, expected) in [
            ("berth-model", "iris", Some("iris")),
            ("mm-model-id", "myModel", Some("myModel")),
            ("mm-vmodel-id", "alias/1", Some("alias/1")),
            ("mm-model-id-bin", "aXJpcw==", Some("iris")),
            ("mm-vmodel-id-bin", "aXJpcw", Some("iris")),
            ("berth-model-bin", "w6k=", Some("é")),
            ("tas-model-id", "myModel", Some("myModel")),
            ("other", "iris", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(HeaderName::from_static(key), HeaderValue::from_static(value));
            let names = all_of_metadata(&headers).expect("readable");
            assert_eq!(names.first().map(|name| &**name), expected, "{key}: {value}");
        }
        for (key, wrong) in [("mm-model-id-bin", "!"), ("mm-model-id-bin", ""), ("mm-model-id", "")] {
            let mut headers = HeaderMap::new();
            headers.insert(HeaderName::from_static(key), HeaderValue::from_static(wrong));
            assert!(all_of_metadata(&headers).is_err(), "{key}: {wrong:?}");
        }
    }

    #[test]
    fn several_models_stay_in_their_order() {
        let mut headers = HeaderMap::new();
        for name in ["b", "a", "c"] {
            headers.append("mm-model-id", HeaderValue::from_static(name));
        }
        headers.append("mm-model-id-bin", HeaderValue::from_static("Yg,YQ,Yw"));
        assert_eq!(all_of_metadata(&headers).expect("readable"), ["b", "a", "c"], "said twice, meant once");
        headers.remove("mm-model-id");
        assert_eq!(all_of_metadata(&headers).expect("readable"), ["b", "a", "c"]);
        headers.append("tas-model-id", HeaderValue::from_static("old"));
        assert_eq!(all_of_metadata(&headers).expect("readable"), ["b", "a", "c"], "the oldest key counts last");
        headers.append("mm-vmodel-id", HeaderValue::from_static("alias"));
        assert!(all_of_metadata(&headers).is_err(), "one of both");
    }
}
