//! The gRPC face of the Open Inference Protocol: Triton's superset of the service.

pub(crate) mod message;
mod refused;
mod stream;
pub(super) mod unary;

use std::{sync::Arc, time::Duration};

use berth_spec::{Class, InferError};
use berth_wire::oip::{self as wire, grpc_inference_service_server::GrpcInferenceService};
use http::HeaderMap;
use tonic::{Request, Response, Status, Streaming};

use crate::{
    body::upload::Upload,
    endpoint::target::NextTarget,
    forward::{
        admitted::{Call, LocalOutcome},
        buffered::{BufferedResponse, Failure},
        describe::Described,
        head::Head,
        retry_state::RetryState,
    },
    ingress::{EXTENSIONS, SERVER, fault::Fault, rest},
    metrics::Protocol,
    offload,
    oip::{
        self, Decoded,
        describe::{ModelConfig, ModelMetadata, ModelStatistics, ModelStats, RepositoryParameters, ServerMetadata},
        grpc::{effort, frame::framed},
    },
    repository,
    stack::Stack,
    statistics,
};

/// The methods that describe a model, for other nodes.
pub(super) const METADATA: &str = "/inference.GRPCInferenceService/ModelMetadata";
pub(super) const CONFIG: &str = "/inference.GRPCInferenceService/ModelConfig";
pub(crate) const STATISTICS: &str = "/inference.GRPCInferenceService/ModelStatistics";

/// The most entries of the index in its one gRPC message; REST streams any number.
/// Doubled: messages beyond the 4 MiB that most clients take.
const INDEX: usize = 32_768;

/// The gRPC face.
pub(super) struct GrpcFace {
    stack: Arc<Stack>,
    version: Arc<str>,
}

impl GrpcFace {
    pub(super) fn new(stack: Arc<Stack>, version: Arc<str>) -> Self {
        Self { stack, version }
    }
}

fn status(error: impl Into<Fault>) -> Status {
    Status::from(error.into())
}

/// An empty version is none.
fn version(version: &str) -> Option<&str> {
    Some(version).filter(|version| !version.is_empty())
}

/// Whether a call changes what is loaded: not for web pages of other sites.
pub(super) fn changes(path: &str) -> bool {
    path.ends_with("/RepositoryModelLoad") || path.ends_with("/RepositoryModelUnload")
}

/// How long the caller waits: `grpc-timeout` as the gRPC protocol writes it, or the header that REST has.
fn timeout(headers: &HeaderMap) -> Result<Option<Duration>, InferError> {
    match whole_call(headers)? {
        Some(timeout) => Ok(Some(timeout)),
        None => rest::timeout(headers),
    }
}

/// `grpc-timeout`: how long the call may take, however many messages it has.
fn whole_call(headers: &HeaderMap) -> Result<Option<Duration>, InferError> {
    let Some(value) = headers.get("grpc-timeout") else { return Ok(None) };
    value.to_str().ok().and_then(grpc_timeout).map(Some).ok_or_else(|| {
        InferError::Invalid(format!("grpc-timeout is {value:?}: it must be up to 8 digits and a unit of HMSmun"))
    })
}

fn grpc_timeout(value: &str) -> Option<Duration> {
    let (digits, unit) = value.split_at_checked(value.len().checked_sub(1)?)?;
    let count: u64 = Some(digits).filter(|digits| (1..=8).contains(&digits.len()))?.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(count * 3_600),
        "M" => Duration::from_secs(count * 60),
        "S" => Duration::from_secs(count),
        "m" => Duration::from_millis(count),
        "u" => Duration::from_micros(count),
        "n" => Duration::from_nanos(count),
        _ => return None,
    })
}

/// Why there is no answer to an inference.
pub(super) enum NoAnswer {
    /// As this process says it.
    Failed(Failure),
    /// As another node says it.
    Told(Status),
}

impl From<InferError> for NoAnswer {
    fn from(error: InferError) -> Self {
        Self::Failed(error.into())
    }
}

impl From<NoAnswer> for Status {
    fn from(no: NoAnswer) -> Self {
        match no {
            NoAnswer::Failed(failure) => status(failure),
            NoAnswer::Told(status) => status,
        }
    }
}

/// One inference that comes decoded, as those of streams do: each goes its own way. `headers` are those of its call.
pub(super) async fn infer(
    stack: &Stack,
    mut message: wire::ModelInferRequest,
    timeout: Option<Duration>,
    headers: &HeaderMap,
) -> Result<wire::ModelInferResponse, NoAnswer> {
    // Elsewhere it is needed as it came; here its names are not.
    let mut there_as = None;
    let (model, wanted) = (message.model_name.clone(), message.model_version.clone());
    let call = Call { model: &model, version: version(&wanted), protocol: Protocol::Grpc, timeout };
    let mut admitted = stack.admit(call)?;
    admitted.received(message.raw_input_contents.iter().map(bytes::Bytes::len).sum());
    let mut retries = RetryState::default();
    loop {
        match admitted.next(&mut retries).await? {
            NextTarget::Local(here) => {
                let again = stack.forwarding.is_some().then(|| message.clone());
                let effort = effort::to_decode(&message);
                let decoded = offload::run(effort, move || oip::grpc::decode(message)).await;
                let Decoded { request, form, options } = decoded.map_err(|error| admitted.failed(error))?;
                admitted.shorten(options.timeout);
                if let LocalOutcome::Answered(response) = admitted.infer(request, here.as_ref()).await? {
                    let weight = effort::to_encode(&response, &form);
                    let encoded = offload::run(weight, move || oip::grpc::encode(response, &form)).await;
                    let encoded = encoded.map_err(|error| admitted.failed(error))?;
                    admitted.sent(encoded.raw_output_contents.iter().map(bytes::Bytes::len).sum());
                    return Ok(encoded);
                }
                message = again.unwrap_or_default();
            }
            NextTarget::Remote(there) => {
                let (head, upload) = there_as.get_or_insert_with(|| {
                    let head = Head::grpc(unary::METHOD, headers, stack.propagate());
                    (head, Upload::whole(framed(&message), stack.bounds()))
                });
                let sent = admitted.forward(&mut retries, there, head, upload).await;
                if let Some(passed) = sent.map_err(NoAnswer::Failed)? {
                    return passed.held.message().await.map_err(NoAnswer::Told);
                }
            }
        }
    }
}

/// The answer of another node to what was asked of it.
async fn told<M: prost::Message + Default>(held: Box<BufferedResponse>) -> Result<Response<M>, Status> {
    held.message().await.map(Response::new)
}

#[tonic::async_trait]
impl GrpcInferenceService for GrpcFace {
    async fn server_live(
        &self,
        _: Request<wire::ServerLiveRequest>,
    ) -> Result<Response<wire::ServerLiveResponse>, Status> {
        Ok(Response::new(wire::ServerLiveResponse { live: true }))
    }

    async fn server_ready(
        &self,
        _: Request<wire::ServerReadyRequest>,
    ) -> Result<Response<wire::ServerReadyResponse>, Status> {
        Ok(Response::new(wire::ServerReadyResponse { ready: self.stack.ready() }))
    }

    async fn model_ready(
        &self,
        request: Request<wire::ModelReadyRequest>,
    ) -> Result<Response<wire::ModelReadyResponse>, Status> {
        let asked = request.into_inner();
        // As Triton answers: what is not there is not ready, and asking is no error.
        let ready = self.stack.is_ready(&asked.name, version(&asked.version)).unwrap_or(false);
        Ok(Response::new(wire::ModelReadyResponse { ready }))
    }

    async fn server_metadata(
        &self,
        _: Request<wire::ServerMetadataRequest>,
    ) -> Result<Response<wire::ServerMetadataResponse>, Status> {
        let metadata = ServerMetadata { name: SERVER, version: &self.version, extensions: EXTENSIONS };
        Ok(Response::new(metadata.to_proto()))
    }

    async fn model_metadata(
        &self,
        request: Request<wire::ModelMetadataRequest>,
    ) -> Result<Response<wire::ModelMetadataResponse>, Status> {
        let headers = request.metadata().as_ref().clone();
        let wait = timeout(&headers).map_err(status)?;
        let asked = request.into_inner();
        let ask = || (Head::grpc(METADATA, &headers, self.stack.propagate()), framed(&asked));
        let found = self.stack.describe((&asked.name, version(&asked.version)), wait, ask).await;
        let (entry, replica) = match found.map_err(status)? {
            Described::Local { entry, replica } => (entry, replica),
            Described::Remote(held) => return told(held).await,
        };
        let (route, model) = (entry.route(), replica.model());
        let versions = route.targets.iter().map(|target| &*target.version).collect();
        let metadata = ModelMetadata::new(&asked.name, versions, model.platform(), model.signature());
        Ok(Response::new(metadata.to_proto()))
    }

    async fn model_infer(
        &self,
        request: Request<wire::ModelInferRequest>,
    ) -> Result<Response<wire::ModelInferResponse>, Status> {
        let headers = request.metadata().as_ref().clone();
        let wait = timeout(&headers).map_err(status)?;
        infer(&self.stack, request.into_inner(), wait, &headers).await.map(Response::new).map_err(Status::from)
    }

    type ModelStreamInferStream = stream::Answers;

    async fn model_stream_infer(
        &self,
        request: Request<Streaming<wire::ModelInferRequest>>,
    ) -> Result<Response<Self::ModelStreamInferStream>, Status> {
        let headers = request.metadata().as_ref();
        let patience =
            stream::Patience::new(rest::timeout(headers).map_err(status)?, whole_call(headers).map_err(status)?);
        let errors = stream::Errors::of(request.metadata());
        let manner = Arc::new(stream::Manner { errors, patience, headers: headers.clone() });
        Ok(Response::new(stream::answers(Arc::clone(&self.stack), request.into_inner(), manner)))
    }

    async fn model_config(
        &self,
        request: Request<wire::ModelConfigRequest>,
    ) -> Result<Response<wire::ModelConfigResponse>, Status> {
        let headers = request.metadata().as_ref().clone();
        let wait = timeout(&headers).map_err(status)?;
        let asked = request.into_inner();
        let ask = || (Head::grpc(CONFIG, &headers, self.stack.propagate()), framed(&asked));
        let found = self.stack.describe((&asked.name, version(&asked.version)), wait, ask).await;
        let replica = match found.map_err(status)? {
            Described::Local { replica, .. } => replica,
            Described::Remote(held) => return told(held).await,
        };
        let model = replica.model();
        let config = ModelConfig::new(&asked.name, model.platform(), model.signature(), model.batching());
        Ok(Response::new(config.to_proto()))
    }

    async fn model_statistics(
        &self,
        request: Request<wire::ModelStatisticsRequest>,
    ) -> Result<Response<wire::ModelStatisticsResponse>, Status> {
        let headers = request.metadata().as_ref().clone();
        let asked = request.into_inner();
        let wanted = version(&asked.version);
        let loaded = if asked.name.is_empty() {
            statistics::here(&self.stack)
        } else {
            let entry = self.stack.find(&asked.name).map_err(status)?;
            entry.knows(wanted).map_err(|no| status(crate::parking::refusal(&entry, wanted, no)))?;
            statistics::everywhere(&self.stack, &entry, wanted, &headers).await
        };
        let stats = loaded.iter().map(|one| ModelStats::new(one.name.as_str(), &one.version, &one.statistics));
        Ok(Response::new(ModelStatistics { model_stats: stats.collect() }.to_proto()))
    }

    async fn repository_index(
        &self,
        request: Request<wire::RepositoryIndexRequest>,
    ) -> Result<Response<wire::RepositoryIndexResponse>, Status> {
        let ready_only = request.into_inner().ready;
        self.stack.told().map_err(status)?;
        let mut models = Vec::new();
        for entry in repository::entries(&self.stack) {
            repository::index(&entry, ready_only, |row| models.push(row.to_proto()));
            if models.len() > INDEX {
                let message = format!("the index has more than {INDEX} models: ask for it over REST, which streams it");
                return Err(status(Fault::new(Class::TooLarge, "too_large", message)));
            }
        }
        Ok(Response::new(wire::RepositoryIndexResponse { models }))
    }

    async fn repository_model_load(
        &self,
        request: Request<wire::RepositoryModelLoadRequest>,
    ) -> Result<Response<wire::RepositoryModelLoadResponse>, Status> {
        let wait = timeout(request.metadata().as_ref()).map_err(status)?;
        let asked = request.into_inner();
        let parameters = RepositoryParameters::from_proto(&asked.parameters);
        repository::load(&self.stack, &asked.model_name, parameters, wait).await.map_err(status)?;
        Ok(Response::new(wire::RepositoryModelLoadResponse {}))
    }

    async fn repository_model_unload(
        &self,
        request: Request<wire::RepositoryModelUnloadRequest>,
    ) -> Result<Response<wire::RepositoryModelUnloadResponse>, Status> {
        let wait = timeout(request.metadata().as_ref()).map_err(status)?;
        let asked = request.into_inner();
        repository::unload(&self.stack, &asked.model_name, wait).await.map_err(status)?;
        Ok(Response::new(wire::RepositoryModelUnloadResponse {}))
    }

    refused::methods!();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts() {
        for (text, expected) in [
            ("5S", Some(Duration::from_secs(5))),
            ("250m", Some(Duration::from_millis(250))),
            ("99999999H", Some(Duration::from_secs(99_999_999 * 3_600))),
            ("1n", Some(Duration::from_nanos(1))),
            ("", None),
            ("S", None),
            ("123456789S", None),
            ("5", None),
            ("-5S", None),
            ("5é", None),
        ] {
            assert_eq!(grpc_timeout(text), expected, "{text}");
        }
    }
}
