//! The name of the model that a request is for, where it is not in a path or a message: in the metadata of a gRPC call.

use std::borrow::Cow;

use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use berth_spec::InferError;
use http::{HeaderMap, HeaderName, HeaderValue};

/// Keys whose value names a model, the first that is there counts. Those of ModelMesh are understood as they are.
static KEYS: [HeaderName; 3] = [
    HeaderName::from_static("berth-model"),
    HeaderName::from_static("mm-vmodel-id"),
    HeaderName::from_static("mm-model-id"),
];

/// The same keys with binary values, which gRPC writes as base64.
static BINARY_KEYS: [HeaderName; 3] = [
    HeaderName::from_static("berth-model-bin"),
    HeaderName::from_static("mm-vmodel-id-bin"),
    HeaderName::from_static("mm-model-id-bin"),
];

/// The version to ask for.
const VERSION: HeaderName = HeaderName::from_static("berth-model-version");

/// The model that a call's metadata names; `None`: no model is named.
pub(super) fn of_metadata(headers: &HeaderMap) -> Result<Option<Cow<'_, str>>, InferError> {
    for (plain, binary) in KEYS.iter().zip(&BINARY_KEYS) {
        if let Some(value) = headers.get(plain) {
            return text(plain, value).map(|name| Some(Cow::Borrowed(name)));
        }
        if let Some(value) = headers.get(binary) {
            return decoded(binary, value).map(|name| Some(Cow::Owned(name)));
        }
    }
    Ok(None)
}

/// The version that a call's metadata names.
pub(super) fn version_of_metadata(headers: &HeaderMap) -> Result<Option<&str>, InferError> {
    headers.get(VERSION).map(|value| text(&VERSION, value)).transpose()
}

fn text<'a>(key: &HeaderName, value: &'a HeaderValue) -> Result<&'a str, InferError> {
    str::from_utf8(value.as_bytes()).map_err(|_| InferError::Invalid(format!("metadata {key} is not UTF-8")))
}

fn decoded(key: &HeaderName, value: &HeaderValue) -> Result<String, InferError> {
    let unpadded = value.as_bytes().trim_ascii_end();
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
            ("other", "iris", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(HeaderName::from_static(key), HeaderValue::from_static(value));
            assert_eq!(of_metadata(&headers).expect("readable").as_deref(), expected, "{key}: {value}");
        }
        let mut headers = HeaderMap::new();
        headers.insert("mm-model-id-bin", HeaderValue::from_static("!"));
        assert!(of_metadata(&headers).is_err());
    }
}
