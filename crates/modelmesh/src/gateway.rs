//! The service on the port of the gateway: the calls go to whoever leads, as those of the control API do.

use std::collections::BTreeSet;

use axum::{BoxError, body::Bytes};
use berth_control::api::ApiRouter;
use berth_spec::{DeploymentName, WorkerId};
use http::{Request, Response, Uri, uri::PathAndQuery};
use http_body_util::{BodyExt as _, combinators::UnsyncBoxBody};

use crate::failover;

/// The paths below which the service answers: its own, and the one that it had before it was called ModelMesh.
pub const PATHS: &[&str] = &[PATH, OLD_PATH];

/// Tells on which workers a model answers now, as far as this node knows.
pub type Answering = dyn Fn(&DeploymentName) -> BTreeSet<WorkerId> + Send + Sync;

const PATH: &str = "/mmesh.ModelMesh/";
const OLD_PATH: &str = "/com.ibm.watson.tas.proto.TasRuntime/";

/// Methods that had another name.
const OLD_METHODS: [(&str, &str); 2] = [("addModel", "registerModel"), ("deleteModel", "unregisterModel")];

/// Answers one call, here or by the leader; the state of a model that answers also without one. Errors on the way have a gRPC status, too.
pub async fn answer<B>(
    api: ApiRouter,
    mut request: Request<B>,
    answering: &Answering,
) -> Response<UnsyncBoxBody<Bytes, BoxError>>
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    if let Some(path) = renamed(request.uri().path()) {
        *request.uri_mut() = Uri::from(path);
    }
    failover::call(&api, request, answering).await.map(|body| body.map_err(Into::into).boxed_unsync())
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
