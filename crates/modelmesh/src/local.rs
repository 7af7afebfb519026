//! The state of a model as this node knows it, while nobody leads: that it answers, and where. What else there is to tell of a model the leader
//! knows alone.

use axum::body::{Body, Bytes};
use berth_wire::mmesh::GetStatusRequest;
use http::{HeaderMap, HeaderValue, Response, header, request::Parts};
use http_body_util::{BodyExt as _, Full};
use prost::Message as _;
use tonic::metadata::MetadataMap;

use crate::{
    gateway::Answering,
    ids::{name, namespace},
    status::ModelState,
    whole::PREFIX,
};

/// The path of the call.
const PATH: &str = "/mmesh.ModelMesh/getModelStatus";

/// The answer to a call for the state of a model that answers; `None`: it is another call, or the model does not answer as far as
/// this node knows.
pub(crate) fn status(parts: &Parts, body: &Bytes, answering: &Answering) -> Option<Response<Body>> {
    if parts.uri.path() != PATH || body.first() != Some(&0) {
        return None;
    }
    let asked = GetStatusRequest::decode(body.get(PREFIX..)?).ok()?;
    let inside = namespace(&MetadataMap::from_headers(parts.headers.clone())).ok()?;
    let workers = answering(&name(&inside, "modelId", &asked.model_id).ok()?);
    (!workers.is_empty()).then(|| unary(&ModelState::answering(workers).info))
}

/// An answer of one message.
fn unary(message: &impl prost::Message) -> Response<Body> {
    let encoded = message.encode_to_vec();
    let mut framed = vec![0];
    framed.extend(u32::try_from(encoded.len()).unwrap_or(u32::MAX).to_be_bytes());
    framed.extend(encoded);
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    let body = Full::new(Bytes::from(framed)).with_trailers(async { Some(Ok(trailers)) });
    let mut response = Response::new(Body::new(body));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use berth_spec::{DeploymentName, WorkerId};
    use berth_wire::mmesh::{ModelStatusInfo, model_status_info::ModelStatus};
    use http::Request;

    use super::*;

    fn call(path: &str, namespace: Option<&'static str>, model: &str) -> (Parts, Bytes) {
        let mut request = Request::post(path);
        if let Some(namespace) = namespace {
            request = request.header("berth-namespace", namespace);
        }
        let mut body = vec![0; PREFIX];
        body.extend(GetStatusRequest { model_id: model.to_owned() }.encode_to_vec());
        (request.body(()).expect("a request").into_parts().0, body.into())
    }

    #[tokio::test]
    async fn a_model_that_answers_is_loaded_and_of_others_nothing_is_told() {
        let at = |names: &[&str]| names.iter().map(|name| WorkerId::new(name).expect("a name")).collect();
        let answering = move |model: &DeploymentName| -> BTreeSet<WorkerId> {
            if model.to_string() == "team/My Model" { at(&["a", "b"]) } else { BTreeSet::new() }
        };
        for (path, namespace, model) in [
            (PATH, None, "My Model"),
            (PATH, Some("team"), "other"),
            (PATH, Some("team"), ""),
            (PATH, Some("Not One"), "My Model"),
            ("/mmesh.ModelMesh/unregisterModel", Some("team"), "My Model"),
        ] {
            let (parts, body) = call(path, namespace, model);
            assert!(status(&parts, &body, &answering).is_none(), "{path} {namespace:?} {model}");
        }
        let (parts, body) = call(PATH, Some("team"), "My Model");
        assert!(status(&parts, &Bytes::new(), &answering).is_none(), "it has no message");
        let told = status(&parts, &body, &answering).expect("it is known here");
        let body = told.into_body().collect().await.expect("all of it");
        assert_eq!(
            body.trailers().and_then(|trailers| trailers.get("grpc-status")),
            Some(&HeaderValue::from_static("0"))
        );
        let info = ModelStatusInfo::decode(&body.to_bytes()[PREFIX..]).expect("a status");
        assert_eq!(info.status(), ModelStatus::Loaded);
        let copies: Vec<_> = info.model_copy_infos.iter().map(|copy| (&*copy.location, copy.copy_status())).collect();
        assert_eq!(copies, [("a", ModelStatus::Loaded), ("b", ModelStatus::Loaded)]);
    }
}
