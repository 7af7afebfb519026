//! Finds out who sends a request, before anything of its body is read, and if a role of the sender allows such requests at
//! all. Whether it holds for the model is asked where the model's name is known: [`Stack::may`](crate::stack::Stack::may).
//!
//! Only the port for clients asks. A request that goes on to another node carries neither the token nor its sender: the peer
//! port trusts the nodes of the cluster to have asked.

use std::sync::Arc;

use berth_spec::{Class, client_certificate::ClientCertificate};
use berth_wire::access::{Access, Action, Asker, Denied, Resource as Place, Unauthenticated};
use http::{Method, Request, header};

use super::{
    fault::Fault,
    path::{Resource, split_namespace},
    rest::{
        METRICS,
        openapi::{DOCS, OPENAPI},
    },
};
use crate::{config::FUNCTIONS, oip::grpc::methods::SERVICE};

/// The action of a request, and where the role must hold as far as the path says it.
type Need = (Action, Place<'static>);

/// Puts the sender among the extensions of a request, or says why it is refused.
pub(super) fn admit<B>(access: &Access, request: &mut Request<B>, need: Need) -> Result<(), Fault> {
    let (action, place) = need;
    if !access.is_required() || action.is_public() {
        return Ok(());
    }
    let certificate = request.extensions().get::<Arc<ClientCertificate>>().cloned();
    let asker = access.asker(request.headers(), certificate.as_deref()).map_err(unauthenticated)?;
    let denied = asker.may(action, place).map_err(|denied| Fault::denied(&denied));
    // Models and their servers must not learn it. Functions do: they ask models in the name of their caller.
    if !request.uri().path().starts_with(FUNCTIONS) {
        request.headers_mut().remove(header::AUTHORIZATION);
    }
    request.extensions_mut().insert(asker);
    denied
}

/// Right that a REST request needs.
pub(super) fn of_rest(method: &Method, path: &str) -> Need {
    let Some(resource) = Resource::of(split_namespace(path).1) else {
        return match *method {
            // Functions are in no namespace.
            _ if path.starts_with(FUNCTIONS) => (Action::Infer, Place::Server),
            Method::GET | Method::HEAD if path == DOCS => (Action::LoadDashboard, Place::Server),
            Method::GET | Method::HEAD if path == "/" => (Action::Probe, Place::Server),
            Method::GET | Method::HEAD if path == METRICS => (Action::ReadMetrics, Place::Server),
            Method::GET | Method::HEAD if path == OPENAPI => (Action::ReadServer, Place::Somewhere),
            // Where models answer at paths of their own.
            Method::GET | Method::HEAD => (Action::ReadModels, Place::Somewhere),
            _ => (Action::Infer, Place::Somewhere),
        };
    };
    let action = match resource {
        Resource::Live | Resource::Ready => Action::Probe,
        // What may be changed there is asked for where it is known.
        Resource::Server | Resource::Unsupported(_) | Resource::Log | Resource::Traces(_) => Action::ReadServer,
        Resource::Regions(_) | Resource::Register(_) | Resource::Unregister(_) => {
            return (Action::OperateFleet, Place::Server);
        }
        Resource::Model { operation, .. } if operation.runs() => Action::Infer,
        Resource::List | Resource::Index | Resource::AllStatistics | Resource::Model { .. } => Action::ReadModels,
        Resource::Load(_) | Resource::Unload(_) => Action::LoadModels,
    };
    (action, Place::Somewhere)
}

/// Right that a gRPC call needs; `beside` are the paths of services that are not the gateway's.
pub(super) fn of_grpc(path: &str, beside: &[&str]) -> Need {
    if let Some(method) = path.strip_prefix(SERVICE) {
        let action = match method {
            "ServerLive" | "ServerReady" => Action::Probe,
            "ModelInfer" | "ModelStreamInfer" => Action::Infer,
            "ModelReady" | "ModelMetadata" | "ModelConfig" | "ModelStatistics" | "RepositoryIndex" => {
                Action::ReadModels
            }
            "RepositoryModelLoad" | "RepositoryModelUnload" => Action::LoadModels,
            _ if method.starts_with("SystemSharedMemory") => return (Action::OperateFleet, Place::Server),
            // Its metadata, and what there is not.
            _ => Action::ReadServer,
        };
        return (action, Place::Somewhere);
    }
    match beside.iter().find_map(|prefix| path.strip_prefix(prefix)) {
        Some(method) => (Action::of_management(method), Place::Server),
        None => (Action::Infer, Place::Somewhere),
    }
}

fn unauthenticated(why: Unauthenticated) -> Fault {
    match why.retry_in() {
        Some(retry_in) => Fault::new(Class::Waiting { retry_in }, "unavailable", why.to_string()),
        None => Fault::unauthenticated(why.to_string()),
    }
}

impl Fault {
    /// A role is missing.
    fn denied(denied: &Denied) -> Self {
        Self::forbidden(denied.to_string())
    }
}

/// The sender of a request, among its extensions. A request that came by a way that asked nobody has none: on a server that
/// asks for tokens, it may do nothing.
pub(crate) fn asker(access: &Access, extensions: &http::Extensions) -> Asker {
    extensions.get().cloned().unwrap_or_else(|| access.stranger())
}

#[cfg(test)]
mod tests {
    use berth_wire::access::{Role, Secret, Snapshot, TokenRecord};

    use super::*;

    fn access(role: Role) -> (Access, Secret) {
        let (access, secret) = (Access::required(), Secret::generate());
        let record = TokenRecord {
            id: secret.id().to_owned(),
            hash: secret.hash(),
            grant: berth_wire::access::Grant::everywhere(role),
            description: String::new(),
            created_by: String::new(),
            created: 1,
            expires: None,
            limits: None,
        };
        access.learn(&Snapshot { revision: 1, tokens: vec![record] });
        (access, secret)
    }

    #[test]
    fn what_each_path_needs() {
        for (method, path, action) in [
            (Method::GET, "/v2/health/live", Action::Probe),
            (Method::GET, "/namespaces/a/v2/health/ready", Action::Probe),
            (Method::GET, "/v2", Action::ReadServer),
            (Method::GET, "/openapi.json", Action::ReadServer),
            (Method::GET, "/docs", Action::LoadDashboard),
            (Method::GET, "/metrics", Action::ReadMetrics),
            (Method::GET, "/", Action::Probe),
            (Method::POST, "/v2/systemsharedmemory/unregister", Action::OperateFleet),
            (Method::POST, "/v2/logging", Action::ReadServer),
            (Method::POST, "/docs", Action::Infer),
            (Method::GET, "/v2/models", Action::ReadModels),
            (Method::GET, "/v2/models/health/ready", Action::ReadModels),
            (Method::POST, "/v2/repository/index", Action::ReadModels),
            (Method::POST, "/v2/repository/models/a/load", Action::LoadModels),
            (Method::POST, "/namespaces/a/v2/repository/models/a/unload", Action::LoadModels),
            (Method::POST, "/v2/models/a/infer", Action::Infer),
            (Method::POST, "/v1/models/a:predict", Action::Infer),
            (Method::GET, "/v1/models/a", Action::ReadModels),
            (Method::POST, "/v2/models/a/generate", Action::Infer),
            (Method::GET, "/v2/models/a/infer", Action::Infer),
            (Method::POST, "/v1/sentiment", Action::Infer),
            (Method::GET, "/v1/sentiment", Action::ReadModels),
            (Method::GET, "/functions/f", Action::Infer),
        ] {
            assert_eq!(of_rest(&method, path).0, action, "{method} {path}");
        }
        let beside: &[&str] = &["/mmesh.ModelMesh/"];
        for (path, action) in [
            ("/inference.GRPCInferenceService/ServerLive", Action::Probe),
            ("/inference.GRPCInferenceService/ModelInfer", Action::Infer),
            ("/inference.GRPCInferenceService/RepositoryModelUnload", Action::LoadModels),
            ("/inference.GRPCInferenceService/Anything", Action::ReadServer),
            ("/mmesh.ModelMesh/registerModel", Action::Declare),
            ("/mmesh.ModelMesh/getModelStatus", Action::ReadDeployments),
            ("/tensorflow.serving.PredictionService/Predict", Action::Infer),
        ] {
            assert_eq!(of_grpc(path, beside).0, action, "{path}");
        }
    }

    #[test]
    fn a_token_is_taken_off_and_its_holder_is_known() {
        let (access, secret) = access(Role::Caller);
        let sent = |path: &str| {
            let mut request = Request::new(());
            *request.uri_mut() = path.parse().expect("a path");
            let bearer = format!("Bearer {}", secret.reveal()).parse().expect("a value");
            request.headers_mut().insert(header::AUTHORIZATION, bearer);
            let need = of_rest(&Method::POST, path);
            admit(&access, &mut request, need).map(|()| request)
        };
        let request = sent("/v2/models/a/infer").expect("a caller infers");
        assert!(!request.headers().contains_key(header::AUTHORIZATION));
        assert!(!asker(&access, request.extensions()).is_open());
        assert!(sent("/functions/f").expect("and calls functions").headers().contains_key(header::AUTHORIZATION));
        assert!(sent("/v2/repository/models/a/load").is_err());
        let mut bare = Request::new(());
        assert!(admit(&access, &mut bare, (Action::Infer, Place::Somewhere)).is_err());
        assert!(asker(&access, bare.extensions()).may(Action::Infer, Place::Somewhere).is_err(), "nobody was asked");
        assert!(asker(&Access::open(), bare.extensions()).is_open());
        assert!(admit(&access, &mut bare, (Action::Probe, Place::Somewhere)).is_ok());
    }
}
