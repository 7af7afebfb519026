//! The service on the port of the gateway: the calls go to whoever leads, as those of the control API do.

use axum::{
    BoxError,
    body::{Body, Bytes},
};
use berth_control::api::ApiRouter;
use http::{Request, Response, StatusCode, Uri, header, uri::PathAndQuery};
use http_body_util::{BodyExt as _, Limited, combinators::UnsyncBoxBody};
use tonic::Status;

/// The paths below which the service answers: its own, and the one that it had before it was called ModelMesh.
pub const PATHS: &[&str] = &[PATH, OLD_PATH];

const PATH: &str = "/mmesh.ModelMesh/";
const OLD_PATH: &str = "/com.ibm.watson.tas.proto.TasRuntime/";

/// Methods that had another name.
const OLD_METHODS: [(&str, &str); 2] = [("addModel", "registerModel"), ("deleteModel", "unregisterModel")];

/// The most bytes that an error of the control API has: its text is a few lines.
const MAX_ERROR: usize = 64 << 10;

/// Answers one call, here or by the leader. Errors on the way have a gRPC status, too.
pub async fn answer<B>(api: ApiRouter, mut request: Request<B>) -> Response<UnsyncBoxBody<Bytes, BoxError>>
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    if let Some(path) = renamed(request.uri().path()) {
        *request.uri_mut() = Uri::from(path);
    }
    answered(api.answer(request.map(Body::new)).await).await.map(|body| body.map_err(Into::into).boxed_unsync())
}

/// The path of a method by its name of today, where it was called by an old one.
fn renamed(path: &str) -> Option<PathAndQuery> {
    let (old, method) = match path.strip_prefix(PATH) {
        Some(method) => (false, method),
        None => (true, path.strip_prefix(OLD_PATH)?),
    };
    let today = OLD_METHODS.iter().find(|(name, _)| *name == method).map(|(_, today)| *today);
    if !old && today.is_none() {
        return None;
    }
    format!("{PATH}{}", today.unwrap_or(method)).parse().ok()
}

async fn answered(response: Response<Body>) -> Response<Body> {
    let kind = response.headers().get(header::CONTENT_TYPE).map(|kind| kind.as_bytes().to_vec()).unwrap_or_default();
    if kind.starts_with(b"application/grpc") {
        return response;
    }
    let status = response.status();
    let text = Limited::new(response.into_body(), MAX_ERROR).collect().await;
    let text = text.map(|body| String::from_utf8_lossy(&body.to_bytes()).into_owned()).unwrap_or_default();
    let told = serde_json::from_str::<berth_wire::api::ErrorBody>(&text).map(|body| body.error.message);
    let message = told.unwrap_or(text);
    let status = match status {
        StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => Status::unimplemented(message),
        StatusCode::FORBIDDEN => Status::permission_denied(message),
        StatusCode::UNAUTHORIZED => Status::unauthenticated(message),
        status if status.is_client_error() => Status::invalid_argument(message),
        _ => Status::unavailable(message),
    };
    status.into_http()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_names_mean_what_they_meant() {
        for (called, today) in [
            ("/mmesh.ModelMesh/registerModel", None),
            ("/mmesh.ModelMesh/addModel", Some("/mmesh.ModelMesh/registerModel")),
            ("/com.ibm.watson.tas.proto.TasRuntime/deleteModel", Some("/mmesh.ModelMesh/unregisterModel")),
            ("/com.ibm.watson.tas.proto.TasRuntime/ensureLoaded", Some("/mmesh.ModelMesh/ensureLoaded")),
            ("/other.Service/addModel", None),
        ] {
            assert_eq!(renamed(called).map(|path| path.to_string()).as_deref(), today, "{called}");
        }
    }
}
