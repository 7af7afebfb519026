//! The gRPC face of a picker: external processing, and the health checks that Gateways and probes ask.

use std::{
    convert::Infallible,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use berth_wire::{
    byte_budget::ByteBudget,
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
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};
use tonic::{
    Request, Response, Status, Streaming,
    codegen::{Body, BoxFuture, Bytes, Service, StdError, http},
};

use super::{
    Pool,
    part_memory::{MEMORY, PartBody, StreamMemory},
    session::Session,
};

/// Largest part of a request in bytes. Headers are small; of a body, Envoy buffers 1 MiB by default, and passes on a little more at once.
const PART: usize = 2 << 20;

/// Largest health check in bytes: it has the name of a service.
const CHECK: usize = 4 << 10;

/// Requests under way at once, of all connections: each takes some KiB of the pod's 256 MiB.
const STREAMS: usize = 8_192;

/// Time in which the first part of a request has to come: a Gateway opens a stream to send it.
const FIRST_WITHIN: Duration = Duration::from_secs(10);

/// The path of health checks.
const HEALTH: &str = "/grpc.health.v1.Health/";

/// Answers for a pool, as a service of HTTP/2.
#[derive(Clone)]
pub struct PickerServer {
    processor: ExternalProcessorServer<Processor>,
    health: HealthServer<PoolHealth>,
    pool: Pool,
    /// Memory for the parts of all requests.
    memory: Arc<ByteBudget>,
}

impl PickerServer {
    /// Answers for this pool.
    #[must_use]
    pub fn new(pool: Pool) -> Self {
        let processor = Processor { pool: pool.clone(), streams: Arc::new(Semaphore::new(STREAMS)) };
        Self {
            processor: ExternalProcessorServer::new(processor).max_decoding_message_size(PART),
            health: HealthServer::new(PoolHealth(pool.clone())).max_decoding_message_size(CHECK),
            pool,
            memory: ByteBudget::new(MEMORY),
        }
    }
}

impl<B> Service<http::Request<B>> for PickerServer
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
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
            false => {
                let memory = StreamMemory::new(&self.memory);
                let mut request = request.map(|body| PartBody::new(body, memory.clone(), self.pool.clone()));
                request.extensions_mut().insert(memory);
                self.processor.call(request)
            }
        }
    }
}

struct Processor {
    pool: Pool,
    streams: Arc<Semaphore>,
}

#[tonic::async_trait]
impl ExternalProcessor for Processor {
    type ProcessStream = BoxStream<'static, Result<ProcessingResponse, Status>>;

    /// Nothing runs but what the Gateway reads: when its stream goes, so does the session with its place.
    async fn process(
        &self,
        request: Request<Streaming<ProcessingRequest>>,
    ) -> Result<Response<Self::ProcessStream>, Status> {
        let Ok(place) = Arc::clone(&self.streams).try_acquire_owned() else {
            let message = format!("{STREAMS} requests are under way, which is the most: try again later");
            return Err(Status::unavailable(message));
        };
        let memory = request.extensions().get::<StreamMemory>().cloned();
        let (parts, session) = (request.into_inner(), Session::new(self.pool.clone()));
        let conversation = Conversation { parts, session, memory, within: Some(FIRST_WITHIN), _place: place };
        let answers = stream::try_unfold(conversation, |mut conversation| async move {
            let answer = conversation.answer().await?;
            Ok::<_, Status>(answer.map(|answer| (answer, conversation)))
        });
        Ok(Response::new(answers.boxed()))
    }
}

/// One stream: the parts of a request, and their answers.
struct Conversation {
    parts: Streaming<ProcessingRequest>,
    session: Session,
    memory: Option<StreamMemory>,
    /// The time for the first part, until it has come.
    within: Option<Duration>,
    _place: OwnedSemaphorePermit,
}

impl Conversation {
    /// The next answer, once the one before has been taken; `None` at the end.
    async fn answer(&mut self) -> Result<Option<ProcessingResponse>, Status> {
        loop {
            if let Some(memory) = &self.memory {
                memory.answered();
            }
            let Some(part) = next(&mut self.parts, self.within.take()).await? else { return Ok(None) };
            if let Some(answer) = self.session.on(part) {
                return Ok(Some(answer));
            }
        }
    }
}

/// The next part of a request; `None` at the end. Only the first one has a time: the others come when the client and the model send more.
async fn next(
    parts: &mut Streaming<ProcessingRequest>,
    within: Option<Duration>,
) -> Result<Option<ProcessingRequest>, Status> {
    let Some(within) = within else { return parts.message().await };
    timeout(within, parts.message()).await.unwrap_or_else(|_| {
        let seconds = within.as_secs();
        Err(Status::deadline_exceeded(format!("nothing came within {seconds} s: open a stream to send a request")))
    })
}

struct PoolHealth(Pool);

#[tonic::async_trait]
impl Health for PoolHealth {
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
