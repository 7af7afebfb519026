//! A payload in the JSON that ModelMesh's HTTP processor posts.

use std::collections::BTreeMap;

use base64::{
    Engine as _,
    alphabet::STANDARD,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig, general_purpose},
};
use serde::Serialize;

use super::Payload;
use crate::watch::name_of;

/// Reads base64 as gRPC's clients write it: with padding or without.
pub(super) const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

#[derive(Serialize)]
struct Document<'p> {
    id: &'p str,
    modelid: &'p str,
    #[serde(rename = "vModelId")]
    alias: Option<&'p str>,
    data: String,
    kind: &'static str,
    status: &'static str,
    metadata: BTreeMap<&'p str, String>,
}

/// The JSON document that is posted for a payload; its data is in base64.
pub(super) fn document(payload: &Payload) -> Vec<u8> {
    let mut metadata = BTreeMap::new();
    for (name, value) in &payload.metadata {
        let bytes = value.as_bytes();
        let value = match name.as_str().ends_with("-bin").then(|| LENIENT.decode(bytes)) {
            Some(Ok(bytes)) => general_purpose::STANDARD.encode(bytes),
            _ => String::from_utf8_lossy(bytes).into_owned(),
        };
        // Of several values the last, as there.
        metadata.insert(name.as_str(), value);
    }
    let document = Document {
        id: payload.id.as_str(),
        modelid: &payload.model,
        alias: payload.alias.as_deref(),
        data: match &payload.data[..] {
            [one] => general_purpose::STANDARD.encode(one),
            several => general_purpose::STANDARD.encode(several.concat()),
        },
        kind: if payload.code.is_some() { "response" } else { "request" },
        status: payload.code.map_or("", name_of),
        metadata,
    };
    serde_json::to_vec(&document).expect("a struct of strings")
}

#[cfg(test)]
mod tests {
    use berth_wire::request_id::RequestId;
    use bytes::Bytes;
    use http::{HeaderMap, HeaderValue};
    use serde_json::{Value, json};
    use tonic::Code;

    use super::*;

    #[test]
    fn the_document_is_modelmeshs() {
        let mut metadata = HeaderMap::new();
        metadata.insert("mm-model-id", HeaderValue::from_static("myModel"));
        metadata.insert("mm-model-id-bin", HeaderValue::from_static("bXlNb2RlbA"));
        let payload = |code| Payload {
            id: RequestId::generate(),
            model: "myModel".into(),
            alias: None,
            method: "mmesh.ExamplePredictor/predict".into(),
            metadata: metadata.clone(),
            data: vec![Bytes::from_static(b"a"), Bytes::from_static(b"b")],
            code,
        };
        let request = payload(None);
        let read: Value = serde_json::from_slice(&document(&request)).expect("JSON");
        let expected = json!({
            "id": request.id.as_str(), "modelid": "myModel", "vModelId": null, "data": "YWI=", "kind": "request", "status": "",
            "metadata": {"mm-model-id": "myModel", "mm-model-id-bin": "bXlNb2RlbA=="},
        });
        assert_eq!(read, expected);
        let read: Value = serde_json::from_slice(&document(&payload(Some(Code::NotFound)))).expect("JSON");
        assert_eq!((&read["kind"], &read["status"]), (&json!("response"), &json!("NOT_FOUND")));
    }
}
