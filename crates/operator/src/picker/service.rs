//! The gRPC face of a picker: external processing, and the health checks that Gateways and probes ask.

use std::{
    convert::Infallible,
    task::{Context, Poll},
};

use berth_wire::{
    external_processor::{
        ProcessingRequest, ProcessingResponse,
        external_processor_server::{ExternalProcessor, ExternalProcessorServer, SERVICE_NAME},
    },
    health::{
        HealthCheckRequest, HealthCheckResponse,
        health_check_response::ServingStatus,
        health_server::{Health, HealthServer},
    },
};
use futures::{
    StreamExt,
    stream::{self, BoxStream, Empty},
};
use tonic::{
    Request, Response, Status, Streaming,
    codegen::{Body, BoxFuture, Service, StdError, http},
};

use super::{Pool, session::Session};

/// The path of health checks.
const HEALTH: &str = "/grpc.health.v1.Health/";

/// Answers for a pool, as a service of HTTP/2.
#[derive(Clone)]
pub struct PickerServer {
    processor: ExternalProcessorServer<Face>,
    health: HealthServer<Face>,
}

impl PickerServer {
    /// Answers for this pool.
    #[must_use]
    pub fn new(pool: Pool) -> Self {
        let processor = ExternalProcessorServer::new(Face(pool.clone()));
        Self { processor, health: HealthServer::new(Face(pool)) }
    }
}

impl<B> Service<http::Request<B>> for PickerServer
where
    B: Body + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        match request.uri().path().starts_with(HEALTH) {
            true => self.health.call(request),
            false => self.processor.call(request),
        }
    }
}

struct Face(Pool);

#[tonic::async_trait]
impl ExternalProcessor for Face {
    type ProcessStream = BoxStream<'static, Result<ProcessingResponse, Status>>;

    /// Nothing runs but what the Gateway reads: when its stream goes, so does the session with its place.
    async fn process(
        &self,
        request: Request<Streaming<ProcessingRequest>>,
    ) -> Result<Response<Self::ProcessStream>, Status> {
        let conversation = (request.into_inner(), Session::new(self.0.clone()));
        let answers = stream::try_unfold(conversation, |(mut parts, mut session)| async move {
            while let Some(part) = parts.message().await? {
                if let Some(answer) = session.on(part) {
                    return Ok(Some((answer, (parts, session))));
                }
            }
            Ok::<_, Status>(None)
        });
        Ok(Response::new(answers.boxed()))
    }
}

#[tonic::async_trait]
impl Health for Face {
    type WatchStream = Empty<Result<HealthCheckResponse, Status>>;

    /// Names of services are those of the protocol of pickers.
    async fn check(&self, request: Request<HealthCheckRequest>) -> Result<Response<HealthCheckResponse>, Status> {
        let service = request.into_inner().service;
        let serves = match service.as_str() {
            "liveness" => true,
            "" | "readiness" | SERVICE_NAME => self.0.is_known(),
            _ => return Err(Status::not_found(format!("there is no service {service:?}: ask for {SERVICE_NAME}"))),
        };
        let status = if serves { ServingStatus::Serving } else { ServingStatus::NotServing };
        Ok(Response::new(HealthCheckResponse { status: status.into() }))
    }

    async fn watch(&self, _: Request<HealthCheckRequest>) -> Result<Response<Self::WatchStream>, Status> {
        Err(Status::unimplemented("health cannot be watched here: call Check"))
    }
}
