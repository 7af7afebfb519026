//! The gRPC face of the Open Inference Protocol: Triton's superset of the service.

pub(super) mod infer;
pub(super) mod introspection;
pub(super) mod message;
mod model_call;
pub(super) mod opaque;
mod refused;
mod several;
pub(super) mod stream;

use std::{sync::Arc, time::Duration};

use berth_spec::{Class, InferError, NameKey};
use berth_wire::{
    access::Action,
    grpc_timeout,
    oip::{self as wire, grpc_inference_service_server::GrpcInferenceService},
};
use http::HeaderMap;
use tonic::{Request, Response, Status, Streaming};

use crate::{
    forward::{buffered::BufferedResponse, describe::DescriptionSource, head::Head},
    ingress::{SERVER, access::asker, error_response::ErrorResponse, namespace, rest, settings, trail::Change},
    oip::{
        Region,
        describe::{
            ModelConfig, ModelMetadata, ModelStatistics, ModelStats, RepositoryParameters, ServerMetadata,
            settings as forms,
        },
        grpc::{
            frame::framed,
            methods::{CONFIG, METADATA},
        },
    },
    repository,
    shared_memory::Regions,
    stack::Stack,
    statistics,
};

/// The most entries of the index in its one gRPC message, which stays below the 4 MiB that most clients take; REST
/// streams any number.
const MAX_INDEX_ENTRIES: usize = 32_768;

pub(super) struct GrpcFace {
    stack: Arc<Stack>,
    version: Arc<str>,
}

impl GrpcFace {
    pub(super) fn new(stack: Arc<Stack>, version: Arc<str>) -> Self {
        Self { stack, version }
    }

    fn regions<'a>(&self, extensions: &'a http::Extensions) -> Result<&'a Arc<Regions>, Status> {
        settings::regions(&self.stack, &asker(&self.stack.access, extensions), extensions).map_err(status)
    }
}

fn status(error: impl Into<ErrorResponse>) -> Status {
    Status::from(error.into())
}

/// An empty version is none.
fn version(version: &str) -> Option<&str> {
    Some(version).filter(|version| !version.is_empty())
}

/// True if a call may change more than a request: not for web pages of other sites.
pub(super) fn changes(path: &str) -> bool {
    const CHANGING: [&str; 6] = [
        "/RepositoryModelLoad",
        "/RepositoryModelUnload",
        "/LogSettings",
        "/TraceSetting",
        "/SystemSharedMemoryRegister",
        "/SystemSharedMemoryUnregister",
    ];
    CHANGING.iter().any(|method| path.ends_with(method))
}

/// The longest that the caller waits: `grpc-timeout` as the gRPC protocol writes it, or the header that REST has.
fn timeout(headers: &HeaderMap) -> Result<Option<Duration>, InferError> {
    match whole_call(headers)? {
        Some(timeout) => Ok(Some(timeout)),
        None => rest::timeout(headers),
    }
}

/// `grpc-timeout`: how long the call may take, however many messages it has.
fn whole_call(headers: &HeaderMap) -> Result<Option<Duration>, InferError> {
    grpc_timeout::of(headers).map_err(|malformed| InferError::Invalid(malformed.to_string()))
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
        let (metadata, extensions, asked) = request.into_parts();
        let model = NameKey { namespace: namespace(metadata.as_ref()), name: &asked.name };
        if self.stack.may(metadata.as_ref(), &extensions, Action::ReadModels, model).is_err() {
            return Ok(Response::new(wire::ModelReadyResponse { ready: false }));
        }
        // As Triton answers: what is not there is not ready, and asking is no error.
        let ready = self.stack.is_ready(model, version(&asked.version)).unwrap_or(false);
        Ok(Response::new(wire::ModelReadyResponse { ready }))
    }

    async fn server_metadata(
        &self,
        _: Request<wire::ServerMetadataRequest>,
    ) -> Result<Response<wire::ServerMetadataResponse>, Status> {
        let extensions = &settings::extensions(&self.stack);
        let metadata = ServerMetadata { name: SERVER, version: &self.version, extensions };
        Ok(Response::new(metadata.to_proto()))
    }

    async fn model_metadata(
        &self,
        request: Request<wire::ModelMetadataRequest>,
    ) -> Result<Response<wire::ModelMetadataResponse>, Status> {
        let (metadata, extensions, asked) = request.into_parts();
        let headers = metadata.as_ref();
        let wait = timeout(headers).map_err(status)?;
        let name = NameKey { namespace: namespace(headers), name: &asked.name };
        self.stack.may(headers, &extensions, Action::ReadModels, name).map_err(status)?;
        let ask = || (Head::grpc(METADATA, headers, self.stack.propagate()), framed(&asked));
        let found = self.stack.describe(name, version(&asked.version), wait, ask).await;
        let model = match found.map_err(status)? {
            DescriptionSource::Local { model } => model,
            DescriptionSource::Remote(held) => return told(held).await,
        };
        let versions = self.stack.versions(name);
        let versions = versions.iter().map(|version| &**version).collect();
        let metadata = ModelMetadata::new(&asked.name, versions, model.platform(), model.signature());
        Ok(Response::new(metadata.to_proto()))
    }

    /// Answered before it comes here, unless its compression is unknown.
    async fn model_infer(
        &self,
        _: Request<wire::ModelInferRequest>,
    ) -> Result<Response<wire::ModelInferResponse>, Status> {
        Err(message::unknown_coding())
    }

    type ModelStreamInferStream = futures::stream::Empty<Result<wire::ModelStreamInferResponse, Status>>;

    /// Answered before it comes here, unless its compression is unknown.
    async fn model_stream_infer(
        &self,
        _: Request<Streaming<wire::ModelInferRequest>>,
    ) -> Result<Response<Self::ModelStreamInferStream>, Status> {
        Err(message::unknown_coding())
    }

    async fn model_config(
        &self,
        request: Request<wire::ModelConfigRequest>,
    ) -> Result<Response<wire::ModelConfigResponse>, Status> {
        let (metadata, extensions, asked) = request.into_parts();
        let headers = metadata.as_ref();
        let wait = timeout(headers).map_err(status)?;
        let name = NameKey { namespace: namespace(headers), name: &asked.name };
        self.stack.may(headers, &extensions, Action::ReadModels, name).map_err(status)?;
        let ask = || (Head::grpc(CONFIG, headers, self.stack.propagate()), framed(&asked));
        let found = self.stack.describe(name, version(&asked.version), wait, ask).await;
        let model = match found.map_err(status)? {
            DescriptionSource::Local { model } => model,
            DescriptionSource::Remote(held) => return told(held).await,
        };
        let config = ModelConfig::new(&asked.name, model.platform(), model.signature(), model.batching());
        Ok(Response::new(config.to_proto()))
    }

    async fn model_statistics(
        &self,
        request: Request<wire::ModelStatisticsRequest>,
    ) -> Result<Response<wire::ModelStatisticsResponse>, Status> {
        let (metadata, extensions, asked) = request.into_parts();
        let headers = metadata.as_ref();
        let wanted = version(&asked.version);
        let loaded = if asked.name.is_empty() {
            statistics::here(&self.stack, namespace(headers), &asker(&self.stack.access, &extensions))
        } else {
            let model = NameKey { namespace: namespace(headers), name: &asked.name };
            self.stack.may(headers, &extensions, Action::ReadModels, model).map_err(status)?;
            statistics::of(&self.stack, model, wanted, headers).await.map_err(status)?
        };
        let stats = loaded.iter().map(|one| ModelStats::new(one.name.name(), &one.version, &one.statistics));
        Ok(Response::new(ModelStatistics { model_stats: stats.collect() }.to_proto()))
    }

    async fn repository_index(
        &self,
        request: Request<wire::RepositoryIndexRequest>,
    ) -> Result<Response<wire::RepositoryIndexResponse>, Status> {
        let (metadata, extensions, asked) = request.into_parts();
        let ready_only = asked.ready;
        self.stack.told().map_err(status)?;
        let mut models = Vec::new();
        for entry in
            repository::entries(&self.stack, namespace(metadata.as_ref()), &asker(&self.stack.access, &extensions))
        {
            entry.index(ready_only, |row| models.push(row.to_proto()));
            if models.len() > MAX_INDEX_ENTRIES {
                let message = format!(
                    "the index has more than {MAX_INDEX_ENTRIES} models: ask for it over REST, which streams it"
                );
                return Err(status(ErrorResponse::new(Class::TooLarge, "too_large", message)));
            }
        }
        Ok(Response::new(wire::RepositoryIndexResponse { models }))
    }

    async fn repository_model_load(
        &self,
        request: Request<wire::RepositoryModelLoadRequest>,
    ) -> Result<Response<wire::RepositoryModelLoadResponse>, Status> {
        let wait = timeout(request.metadata().as_ref()).map_err(status)?;
        let (metadata, extensions, asked) = request.into_parts();
        let model = NameKey { namespace: namespace(metadata.as_ref()), name: &asked.model_name };
        self.stack.may(metadata.as_ref(), &extensions, Action::LoadModels, model).map_err(status)?;
        let parameters = RepositoryParameters::from_proto(&asked.parameters);
        let change = Change::begin(&self.stack, metadata.as_ref(), &extensions, "load", model).map_err(status)?;
        let done = repository::load(&self.stack, model, parameters, wait).await.map_err(ErrorResponse::from);
        change.end(&done).await;
        done.map_err(status)?;
        Ok(Response::new(wire::RepositoryModelLoadResponse {}))
    }

    async fn repository_model_unload(
        &self,
        request: Request<wire::RepositoryModelUnloadRequest>,
    ) -> Result<Response<wire::RepositoryModelUnloadResponse>, Status> {
        let wait = timeout(request.metadata().as_ref()).map_err(status)?;
        let (metadata, extensions, asked) = request.into_parts();
        let model = NameKey { namespace: namespace(metadata.as_ref()), name: &asked.model_name };
        self.stack.may(metadata.as_ref(), &extensions, Action::LoadModels, model).map_err(status)?;
        let change = Change::begin(&self.stack, metadata.as_ref(), &extensions, "unload", model).map_err(status)?;
        let done = repository::unload(&self.stack, model, wait).await.map_err(ErrorResponse::from);
        change.end(&done).await;
        done.map_err(status)?;
        Ok(Response::new(wire::RepositoryModelUnloadResponse {}))
    }

    async fn log_settings(
        &self,
        request: Request<wire::LogSettingsRequest>,
    ) -> Result<Response<wire::LogSettingsResponse>, Status> {
        let asker = asker(&self.stack.access, request.extensions());
        let asked = request.into_inner();
        let change = |now| forms::change_log_by_message(now, &asked);
        let now = settings::write_log(&self.stack, &asker, change).map_err(status)?;
        Ok(Response::new(forms::log_message(now)))
    }

    async fn trace_setting(
        &self,
        request: Request<wire::TraceSettingRequest>,
    ) -> Result<Response<wire::TraceSettingResponse>, Status> {
        let asker = asker(&self.stack.access, request.extensions());
        let asked = request.into_inner();
        if !asked.model_name.is_empty() && !asked.settings.is_empty() {
            return Err(status(settings::of_model()));
        }
        let changes = forms::trace_changes_of_message(asked);
        let change = |now| forms::change_trace(now, changes);
        let now = settings::write_traces(&self.stack, &asker, change).map_err(status)?;
        Ok(Response::new(forms::trace_message(now)))
    }

    async fn system_shared_memory_status(
        &self,
        request: Request<wire::SystemSharedMemoryStatusRequest>,
    ) -> Result<Response<wire::SystemSharedMemoryStatusResponse>, Status> {
        let (_, extensions, asked) = request.into_parts();
        let regions = self.regions(&extensions)?.status(version(&asked.name)).map_err(status)?;
        let regions = regions.into_iter().map(|Region { name, key, offset, size: byte_size }| {
            let region = wire::system_shared_memory_status_response::RegionStatus { name, key, offset, byte_size };
            (region.name.clone(), region)
        });
        Ok(Response::new(wire::SystemSharedMemoryStatusResponse { regions: regions.collect() }))
    }

    async fn system_shared_memory_register(
        &self,
        request: Request<wire::SystemSharedMemoryRegisterRequest>,
    ) -> Result<Response<wire::SystemSharedMemoryRegisterResponse>, Status> {
        let (_, extensions, asked) = request.into_parts();
        let wire::SystemSharedMemoryRegisterRequest { name, key, offset, byte_size: size } = asked;
        self.regions(&extensions)?.register(Region { name, key, offset, size }).map_err(status)?;
        Ok(Response::new(wire::SystemSharedMemoryRegisterResponse {}))
    }

    async fn system_shared_memory_unregister(
        &self,
        request: Request<wire::SystemSharedMemoryUnregisterRequest>,
    ) -> Result<Response<wire::SystemSharedMemoryUnregisterResponse>, Status> {
        let (_, extensions, asked) = request.into_parts();
        self.regions(&extensions)?.unregister(version(&asked.name));
        Ok(Response::new(wire::SystemSharedMemoryUnregisterResponse {}))
    }

    refused::methods!();
}
