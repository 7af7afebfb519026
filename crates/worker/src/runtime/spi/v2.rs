//! Model servers with a model repository in the Open Inference Protocol: MLServer, Triton.
//!
//! ```text
//! load:   a folder in the repository (`layout`) ─▶ RepositoryModelLoad ─▶ ModelMetadata
//! unload: RepositoryModelUnload ─▶ the folder goes
//! ```
//! A server that is started with its model is only waited for.
//!
//! The server must see the same files at the same paths. Sizes are not told: what is declared counts, else a guess from the
//! artifact.

use std::{path::Path, time::Duration};

use berth_spec::{Datatype, FailureCategory, Signature, TensorSpec};
use berth_wire::{
    mmesh::{
        LoadModelRequest, LoadModelResponse, RuntimeStatusResponse,
        runtime_status_response::{MethodInfo, Status as State},
    },
    oip::{
        ModelMetadataRequest, ModelReadyRequest, RepositoryModelLoadRequest, RepositoryModelUnloadRequest,
        ServerReadyRequest, grpc_inference_service_client::GrpcInferenceServiceClient,
        model_metadata_response::TensorMetadata,
    },
};
use tokio::time::sleep;
use tonic::{Code, Status, transport::Channel};

use super::{
    control::{refused, within},
    layout::{Layout, Repository},
    lost,
    reach::{LoadClock, is_late, when_reached},
};
use crate::runtime::LoadError;

/// The time limit of a short question: servers answer within milliseconds, and slower while they load.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// The time limit of unloading: a server that frees gigabytes of memory takes seconds.
const UNLOAD: Duration = Duration::from_secs(60);

/// Memory of a model per byte of its artifact, in percent: the figure of ModelMesh's adapters.
const PER_BYTE: u64 = 125;

/// The least that a model takes: an interpreter's objects around it.
const MIN_MODEL_BYTES: u64 = 1 << 20;

/// The pause between looks at a model that the server was started with.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Loads at once: servers of this kind load one after the other inside, and one more may wait.
const LOADS: u32 = 2;

/// Client of a server that speaks the Open Inference Protocol: its repository extension loads and unloads models.
pub(super) struct V2 {
    client: GrpcInferenceServiceClient<Channel>,
    repository: Repository,
}

impl V2 {
    pub(super) fn new(channel: Channel, repository: Repository) -> Self {
        Self { client: GrpcInferenceServiceClient::new(channel), repository }
    }

    /// Its state in the words of the other protocol, with the methods that callers may use.
    pub(super) async fn status(&self) -> Result<RuntimeStatusResponse, Status> {
        let ready =
            self.client.clone().server_ready(within(ServerReadyRequest {}, ANSWER_TIMEOUT)).await?.into_inner().ready;
        let mut methods = vec!["ModelInfer", "ModelMetadata", "ModelReady", "ModelConfig", "ModelStatistics"];
        // MLServer's stream has other messages than Triton's, which Berth speaks.
        methods.extend((self.repository.layout == Layout::Triton).then_some("ModelStreamInfer"));
        let named = |method: &str| {
            (format!("inference.GRPCInferenceService/{method}"), MethodInfo { id_injection_path: vec![1] })
        };
        Ok(RuntimeStatusResponse {
            status: if ready { State::Ready } else { State::Starting }.into(),
            max_loading_concurrency: LOADS,
            method_infos: methods.into_iter().map(named).collect(),
            ..RuntimeStatusResponse::default()
        })
    }

    /// A guess from the size of the artifact.
    pub(super) fn predicted(of: &LoadModelRequest) -> Option<u64> {
        let size = super::location::disk_size(Path::new(&of.model_path)).ok()?;
        Some((size.saturating_mul(PER_BYTE) / 100).max(MIN_MODEL_BYTES))
    }

    pub(super) async fn load(
        &self,
        request: &LoadModelRequest,
        clock: &LoadClock,
    ) -> Result<LoadModelResponse, LoadError> {
        if self.repository.given.is_some() {
            return self.awaited(&request.model_id, clock).await;
        }
        let (repository, asked) = (self.repository.clone(), request.clone());
        let laid = tokio::task::spawn_blocking(move || repository.lay(&asked)).await;
        match laid {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                return Err(LoadError::new(FailureCategory::Disk, format!("the model's folder: {error}")));
            }
            Err(error) => return Err(LoadError::new(FailureCategory::Internal, error.to_string())),
        }
        let load = RepositoryModelLoadRequest { model_name: request.model_id.clone(), ..Default::default() };
        let call = || {
            let (mut client, load) = (self.client.clone(), load.clone());
            async move { client.repository_model_load(load).await }
        };
        when_reached(clock, call).await.map_err(|status| refused(&status))?;
        if self.lacks(&request.model_id).await {
            let message = "the server has loaded it, and says that it is not ready: see the server's log";
            return Err(LoadError::new(FailureCategory::Runtime, message));
        }
        Ok(LoadModelResponse::default())
    }

    /// Waits until the model that the server was started with is ready. One that it does not know yet may come.
    async fn awaited(&self, id: &str, clock: &LoadClock) -> Result<LoadModelResponse, LoadError> {
        let asked = || {
            let request = ModelReadyRequest { name: id.to_owned(), ..Default::default() };
            let mut client = self.client.clone();
            async move { client.model_ready(within(request, ANSWER_TIMEOUT)).await }
        };
        loop {
            match when_reached(clock, asked).await {
                Ok(answer) if answer.get_ref().ready => return Ok(LoadModelResponse::default()),
                Err(status) if lost::reason(&status).is_none() && !is_late(&status) => return Err(refused(&status)),
                // Its work may keep it from answering. The load has a time limit of its own.
                _ => sleep(POLL_INTERVAL).await,
            }
        }
    }

    pub(super) async fn lacks(&self, id: &str) -> bool {
        let request = ModelReadyRequest { name: id.to_owned(), ..Default::default() };
        match self.client.clone().model_ready(within(request, ANSWER_TIMEOUT)).await {
            Ok(answer) => !answer.into_inner().ready,
            Err(status) => lost::reason(&status).is_some(),
        }
    }

    pub(super) async fn unload(&self, id: &str) -> Result<(), Status> {
        if self.repository.given.is_some() {
            return Ok(()); // It ends with its server.
        }
        let request = RepositoryModelUnloadRequest { model_name: id.to_owned(), ..Default::default() };
        match self.client.clone().repository_model_unload(within(request, UNLOAD)).await {
            Err(status) if lost::reason(&status).is_none() => return Err(status),
            _ => {}
        }
        self.repository.clear(id).map_err(|error| Status::new(Code::Internal, error.to_string()))
    }

    pub(super) async fn signature(&self, id: &str) -> Option<Signature> {
        let request = ModelMetadataRequest { name: id.to_owned(), ..Default::default() };
        let told = self.client.clone().model_metadata(within(request, ANSWER_TIMEOUT)).await.ok()?.into_inner();
        let specs = |list: &[TensorMetadata]| list.iter().map(spec).collect::<Option<Vec<_>>>();
        let (inputs, outputs) = (specs(&told.inputs)?, specs(&told.outputs)?);
        (!inputs.is_empty()).then_some(Signature { inputs, outputs, ..Signature::default() })
    }
}

fn spec(of: &TensorMetadata) -> Option<TensorSpec> {
    let datatype: Datatype = of.datatype.parse().ok()?;
    Some(TensorSpec { name: of.name.clone(), datatype, shape: of.shape.clone() })
}
