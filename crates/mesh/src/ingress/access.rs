//! Finds out who sends a request, before anything of its body is read, and if a role of the sender allows such requests at
//! all. Whether it holds for the model is asked where the model's name is known: [`Stack::may`](crate::stack::Stack::may).
//!
//! Only the port for clients asks. A request that goes on to another node carries neither the token nor its sender: the peer
//! port trusts the nodes of the cluster to have asked.

use std::sync::Arc;

use berth_spec::{Class, client_certificate::ClientCertificate};
use berth_wire::access::{self, Access, Action, Asker, Denied, Unauthenticated};
use http::{Method, Request, header};

use super::{
    error_response::ErrorResponse,
    path::{Page, Resource, function_in, split_namespace},
};
use crate::oip::grpc::methods::{METHODS, SERVICE};

/// The action of a request, and where the role must hold as far as the path says it.
type RequiredAction = (Action, access::Resource<'static>);

/// Puts the sender among the extensions of a request, or says why it is refused.
pub(super) fn admit<B>(access: &Access, request: &mut Request<B>, need: RequiredAction) -> Result<(), ErrorResponse> {
    let (action, place) = need;
    if !access.is_required() || action.is_public() {
        return Ok(());
    }
    let certificate = request.extensions().get::<Arc<ClientCertificate>>().cloned();
    let asker = access.asker(request.headers(), certificate.as_deref()).map_err(unauthenticated)?;
    let denied = asker.may(action, place).map_err(|denied| ErrorResponse::denied(&denied));
    // Models and their servers must not learn it. Functions do: they ask models in the name of their caller.
    if function_in(request.uri().path()).is_none() {
        request.headers_mut().remove(header::AUTHORIZATION);
    }
    request.extensions_mut().insert(asker);
    denied
}

/// Right that a REST request needs.
pub(super) fn of_rest(method: &Method, path: &str) -> RequiredAction {
    let Some(resource) = Resource::of(split_namespace(path).1) else {
        return match (Page::of(method, path), method) {
            // The namespace is asked for where the function is called.
            _ if function_in(path).is_some() => (Action::Infer, access::Resource::Somewhere),
            (Some(Page::Docs), _) => (Action::LoadDashboard, access::Resource::Server),
            (Some(Page::Root), _) => (Action::Probe, access::Resource::Server),
            (Some(Page::Metrics), _) => (Action::ReadMetrics, access::Resource::Server),
            (Some(Page::Openapi), _) => (Action::ReadServer, access::Resource::Somewhere),
            // Where models answer at paths of their own.
            (None, &Method::GET | &Method::HEAD) => (Action::ReadModels, access::Resource::Somewhere),
            (None, _) => (Action::Infer, access::Resource::Somewhere),
        };
    };
    let action = match resource {
        Resource::Live | Resource::Ready => Action::Probe,
        // What may be changed there is asked for where it is known.
        Resource::Server | Resource::Unsupported(_) | Resource::Log | Resource::Traces(_) => Action::ReadServer,
        Resource::Regions(_) | Resource::Register(_) | Resource::Unregister(_) => {
            return (Action::OperateFleet, access::Resource::Server);
        }
        Resource::Model { operation, .. } if operation.runs() => Action::Infer,
        Resource::List | Resource::Index | Resource::AllStatistics | Resource::Model { .. } => Action::ReadModels,
        Resource::Load(_) | Resource::Unload(_) => Action::LoadModels,
    };
    (action, access::Resource::Somewhere)
}

/// Right that a gRPC call needs; `beside` are the paths of services that are not the gateway's.
pub(super) fn of_grpc(path: &str, beside: &[&str]) -> RequiredAction {
    if let Some(method) = path.strip_prefix(SERVICE) {
        // Whoever may read the server's description learns what there is not.
        let known = METHODS.iter().find(|(known, _)| *known == method);
        return match known.map_or(Action::ReadServer, |(_, action)| *action) {
            Action::OperateFleet => (Action::OperateFleet, access::Resource::Server),
            action => (action, access::Resource::Somewhere),
        };
    }
    match beside.iter().find_map(|prefix| path.strip_prefix(prefix)) {
        Some(method) => (Action::of_management(method), access::Resource::Server),
        None => (Action::Infer, access::Resource::Somewhere),
    }
}

fn unauthenticated(why: Unauthenticated) -> ErrorResponse {
    match why.retry_in() {
        Some(retry_in) => ErrorResponse::new(Class::Waiting { retry_in }, "unavailable", why.to_string()),
        None => ErrorResponse::unauthenticated(why.to_string()),
    }
}

impl ErrorResponse {
    /// A role is missing.
    pub(super) fn denied(denied: &Denied) -> Self {
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
    use crate::ingress::grpc::introspection;

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
            (Method::GET, "/namespaces/team/functions/f", Action::Infer),
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

    /// Services as a file of descriptors has them, as far as their calls are told from each other.
    mod descriptors {
        #[derive(Clone, PartialEq, prost::Message)]
        pub(super) struct Files {
            #[prost(message, repeated, tag = "1")]
            pub(super) files: Vec<File>,
        }

        #[derive(Clone, PartialEq, prost::Message)]
        pub(super) struct File {
            #[prost(string, tag = "2")]
            pub(super) package: String,
            #[prost(message, repeated, tag = "6")]
            pub(super) services: Vec<Service>,
        }

        #[derive(Clone, PartialEq, prost::Message)]
        pub(super) struct Service {
            #[prost(string, tag = "1")]
            pub(super) name: String,
            #[prost(message, repeated, tag = "2")]
            pub(super) methods: Vec<Method>,
        }

        #[derive(Clone, PartialEq, prost::Message)]
        pub(super) struct Method {
            #[prost(string, tag = "1")]
            pub(super) name: String,
            #[prost(bool, tag = "5")]
            pub(super) client_streams: bool,
            #[prost(bool, tag = "6")]
            pub(super) server_streams: bool,
        }
    }

    /// Paths of every method that clients are told of, and if it is a stream.
    fn methods() -> Vec<(String, bool)> {
        use prost::Message as _;

        let files = descriptors::Files::decode(berth_wire::DESCRIPTORS).expect("descriptors");
        let services = files.files.iter().flat_map(|file| file.services.iter().map(move |service| (file, service)));
        let paths = services.flat_map(|(file, service)| {
            service.methods.iter().map(move |method| {
                let path = format!("/{}.{}/{}", file.package, service.name, method.name);
                (path, method.client_streams || method.server_streams)
            })
        });
        let reflection = ["v1", "v1alpha"]
            .map(|version| (format!("/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"), true));
        paths.chain(reflection).chain([("/a.model.of.its/Own".to_owned(), false)]).collect()
    }

    #[test]
    fn every_method_of_the_protocol_names_its_action() {
        let methods = methods();
        let served: Vec<_> = methods.iter().filter_map(|(path, _)| path.strip_prefix(SERVICE)).collect();
        assert!(served.len() == METHODS.len(), "{served:?}");
        for method in served {
            assert!(METHODS.iter().any(|(known, _)| *known == method), "{method}: name its action in METHODS");
        }
    }

    /// The test of every route and role against a real cluster goes by this file.
    #[test]
    fn the_attack_on_all_routes_knows_them() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/attack/inference.json");
        let rest = crate::ingress::path::patterns().into_iter().flat_map(|pattern| {
            let filled = pattern.replace(['{', '}'], "");
            let resource = Resource::of(split_namespace(&filled).1);
            let answers = |method: &Method| resource.as_ref().is_none_or(|resource| resource.allows(method).is_ok());
            let methods: Vec<_> = [Method::GET, Method::POST].into_iter().filter(answers).collect();
            let line = |method: Method| {
                let action = of_rest(&method, &filled).0;
                serde_json::json!([method.as_str(), pattern, action.as_str()])
            };
            methods.into_iter().map(line).collect::<Vec<_>>()
        });
        let grpc = methods().into_iter().map(|(path, stream)| {
            let introspection = introspection::action(&path, &http::HeaderMap::new());
            let action = introspection.unwrap_or_else(|| of_grpc(&path, &["/mmesh.ModelMesh/"]).0);
            serde_json::json!([path, action.as_str(), stream])
        });
        let about = serde_json::json!({ "grpc": grpc.collect::<Vec<_>>(), "rest": rest.collect::<Vec<_>>() });
        let wanted = serde_json::to_string_pretty(&about).expect("it is JSON") + "\n";
        if std::env::var_os("UPDATE").is_some() {
            fs_err::write(path, &wanted).expect("it can be written");
            return;
        }
        let found = fs_err::read_to_string(path).expect("the file is there");
        assert!(
            found == wanted,
            "tests/attack/inference.json is not up to date: UPDATE=1 cargo test -p berth-mesh attack"
        );
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
        for path in ["/functions/f", "/namespaces/team/functions/f"] {
            assert!(sent(path).expect("and calls functions").headers().contains_key(header::AUTHORIZATION), "{path}");
        }
        assert!(sent("/v2/repository/models/a/load").is_err());
        let mut bare = Request::new(());
        assert!(admit(&access, &mut bare, (Action::Infer, access::Resource::Somewhere)).is_err());
        assert!(
            asker(&access, bare.extensions()).may(Action::Infer, access::Resource::Somewhere).is_err(),
            "nobody was asked"
        );
        assert!(asker(&Access::open(), bare.extensions()).is_open());
        assert!(admit(&access, &mut bare, (Action::Probe, access::Resource::Somewhere)).is_ok());
    }
}
