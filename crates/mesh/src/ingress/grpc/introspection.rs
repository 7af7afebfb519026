//! Services by which tools learn of a gRPC server: `grpc.health.v1.Health`, and server reflection in its two versions, which
//! `grpcurl` and its kin ask.
//!
//! A call that names a model is the model's, whatever its method: that model's server may have these services, too.

use std::{convert::Infallible, sync::Arc};

use berth_wire::{
    DESCRIPTORS,
    access::Action,
    health::{
        HealthCheckRequest, HealthCheckResponse,
        health_check_response::ServingStatus,
        health_server::{Health, HealthServer},
    },
};
use futures::stream::Empty;
use http::{HeaderMap, Request, Response};
use tonic::{Status, body::Body};
use tonic_reflection::server::Builder;
use tower::util::BoxCloneSyncService;
use tower_service::Service as _;

use crate::{body::timeout::BodyTimeout, ingress::model_name, oip::grpc::methods::SERVICE, stack::Stack};

const HEALTH: &str = "/grpc.health.v1.Health/";
const REFLECTION: &str = "/grpc.reflection.v1.ServerReflection/";
const REFLECTION_ALPHA: &str = "/grpc.reflection.v1alpha.ServerReflection/";

/// The most bytes of a question: the name of a service, a symbol or a file. Health needs no token.
const MAX_QUESTION_BYTES: usize = 4 << 10;

/// Server reflection in one of its versions.
type Reflection = BoxCloneSyncService<Request<BodyTimeout>, Response<Body>, Infallible>;

/// The services, one of each per gateway.
pub(in crate::ingress) struct Introspection {
    health: HealthServer<HealthFace>,
    /// `None`: the descriptors cannot be read, which a test rules out.
    reflection: Option<(Reflection, Reflection)>,
}

/// The action of a call of one of these services; `None`: it is none.
pub(in crate::ingress) fn action(path: &str, headers: &HeaderMap) -> Option<Action> {
    let action = match path {
        _ if path.starts_with(HEALTH) => Action::Probe,
        _ if path.starts_with(REFLECTION) || path.starts_with(REFLECTION_ALPHA) => Action::ReadServer,
        _ => return None,
    };
    let names_no_model = model_name::all_of_metadata(headers).is_ok_and(|models| models.is_empty());
    names_no_model.then_some(action)
}

impl Introspection {
    pub(in crate::ingress) fn new(stack: Arc<Stack>) -> Self {
        let builder = || Builder::configure().register_encoded_file_descriptor_set(DESCRIPTORS);
        let v1 = builder().build_v1().ok();
        let v1 = v1.map(|service| Reflection::new(service.max_decoding_message_size(MAX_QUESTION_BYTES)));
        let alpha = builder().build_v1alpha().ok();
        let alpha = alpha.map(|service| Reflection::new(service.max_decoding_message_size(MAX_QUESTION_BYTES)));
        let health = HealthServer::new(HealthFace { stack }).max_decoding_message_size(MAX_QUESTION_BYTES);
        Self { health, reflection: v1.zip(alpha) }
    }

    /// Answers a call for which [`action`] has a right.
    pub(in crate::ingress) async fn call(&self, request: Request<BodyTimeout>) -> Response<Body> {
        let path = request.uri().path();
        let answered = match &self.reflection {
            _ if path.starts_with(HEALTH) => self.health.clone().call(request).await,
            Some((reflection, _)) if path.starts_with(REFLECTION) => reflection.clone().call(request).await,
            Some((_, reflection)) => reflection.clone().call(request).await,
            None => Ok(Status::unimplemented("there are no descriptors").into_http()),
        };
        let Ok(response) = answered;
        response
    }
}

/// Health of the gateway: serving while the gateway is ready, as `/v2/health/ready` tells it.
struct HealthFace {
    stack: Arc<Stack>,
}

#[tonic::async_trait]
impl Health for HealthFace {
    async fn check(
        &self,
        request: tonic::Request<HealthCheckRequest>,
    ) -> Result<tonic::Response<HealthCheckResponse>, Status> {
        let service = request.into_inner().service;
        if !service.is_empty() && service != SERVICE.trim_matches('/') {
            return Err(Status::not_found(format!(
                "there is no service {service:?}: ask for the server with an empty name"
            )));
        }
        let status = if self.stack.ready() { ServingStatus::Serving } else { ServingStatus::NotServing };
        Ok(tonic::Response::new(HealthCheckResponse { status: status.into() }))
    }

    type WatchStream = Empty<Result<HealthCheckResponse, Status>>;

    /// Clients take a server that cannot be watched for healthy. Streams that anybody may open and that never end are none of
    /// this port.
    async fn watch(&self, _: tonic::Request<HealthCheckRequest>) -> Result<tonic::Response<Self::WatchStream>, Status> {
        Err(Status::unimplemented("health cannot be watched here: call Check"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_descriptors_can_be_read() {
        let builder = || Builder::configure().register_encoded_file_descriptor_set(DESCRIPTORS);
        assert!(builder().build_v1().is_ok() && builder().build_v1alpha().is_ok());
    }

    #[test]
    fn a_call_that_names_a_model_is_the_models() {
        let mut headers = HeaderMap::new();
        assert_eq!(action("/grpc.health.v1.Health/Check", &headers), Some(Action::Probe));
        assert_eq!(action("/grpc.reflection.v1.ServerReflection/X", &headers), Some(Action::ReadServer));
        assert_eq!(action("/grpc.health.v2.Health/Check", &headers), None);
        headers.insert("berth-model", "a".parse().expect("a value"));
        assert_eq!(action("/grpc.health.v1.Health/Check", &headers), None);
    }
}
