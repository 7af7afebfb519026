//! The models of the scripted server, and the service that loads and unloads them.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
};

use berth_wire::mmesh::{
    LoadModelRequest, LoadModelResponse, ModelSizeRequest, ModelSizeResponse, PredictModelSizeRequest,
    PredictModelSizeResponse, RuntimeStatusRequest, RuntimeStatusResponse, UnloadModelRequest, UnloadModelResponse,
    model_runtime_server::ModelRuntime,
    runtime_status_response::{MethodInfo, Status as State},
};
use tonic::{Request, Response, Status};

use super::{
    Settings, StandsFor,
    repository::unknown,
    script::{Outcome, Script},
};

pub(super) struct Models {
    settings: Settings,
    held: Mutex<ModelTable>,
    loads: AtomicU32,
    loading: AtomicU32,
    most: AtomicU32,
    asked: AtomicU32,
    /// Calls that ask for it to be lost.
    losing: AtomicU64,
}

#[derive(Default)]
struct ModelTable {
    loaded: BTreeMap<String, Script>,
    /// Paths of which one load has failed.
    failed: BTreeSet<String>,
    /// Models of a server's list that could not be loaded.
    failures: BTreeMap<String, Status>,
    /// All loads fail so.
    refusal: Option<String>,
}

/// A load under way.
struct Loading<'a>(&'a AtomicU32);

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Models {
    pub(super) fn new(settings: Settings) -> Self {
        Self {
            settings,
            held: Mutex::default(),
            loads: AtomicU32::new(0),
            loading: AtomicU32::new(0),
            most: AtomicU32::new(0),
            asked: AtomicU32::new(0),
            losing: AtomicU64::new(0),
        }
    }

    pub(super) fn has(&self, id: &str) -> bool {
        self.held().loaded.contains_key(id)
    }

    pub(super) fn loaded(&self) -> Vec<String> {
        self.held().loaded.keys().cloned().collect()
    }

    /// Models that are loaded, and those of a list that could not be.
    pub(super) fn known(&self) -> BTreeSet<String> {
        let held = self.held();
        held.loaded.keys().chain(held.failures.keys()).cloned().collect()
    }

    /// Models of a list that could not be loaded.
    pub(super) fn failures(&self) -> BTreeMap<String, Status> {
        self.held().failures.clone()
    }

    /// Notes that a model of a list could not be loaded, or that it could.
    pub(super) fn note(&self, id: &str, failure: Option<Status>) {
        let mut held = self.held();
        match failure {
            Some(status) => drop(held.failures.insert(id.to_owned(), status)),
            None => drop(held.failures.remove(id)),
        }
    }

    /// The server that it stands for.
    pub(super) fn stands_for(&self) -> StandsFor {
        self.settings.stands_for
    }

    pub(super) fn loads(&self) -> u32 {
        self.loads.load(Ordering::Acquire)
    }

    pub(super) fn most_at_once(&self) -> u32 {
        self.most.load(Ordering::Acquire)
    }

    pub(super) fn purge(&self) {
        self.held().loaded.clear();
    }

    /// Forgets all models at so many of such calls in a row; the next one is answered. True: forgotten.
    pub(super) fn loses(&self, times: u64) -> bool {
        let before = self.losing.fetch_add(1, Ordering::AcqRel);
        let forgets = before % times.saturating_add(1) < times;
        if forgets {
            self.purge();
        }
        forgets
    }

    pub(super) fn refuse(&self, text: &str) {
        self.held().refusal = Some(text.to_owned());
    }

    fn held(&self) -> MutexGuard<'_, ModelTable> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Loads a model as its path says, and gives its size.
    pub(super) async fn load(&self, id: String, path: String) -> Result<u64, Status> {
        self.loads.fetch_add(1, Ordering::AcqRel);
        self.most.fetch_max(self.loading.fetch_add(1, Ordering::AcqRel) + 1, Ordering::AcqRel);
        let _loading = Loading(&self.loading);
        let script = Self::script(&path)?;
        if let Some(text) = self.held().refusal.clone() {
            return Err(Status::internal(text));
        }
        tokio::time::sleep(script.load).await;
        match &script.outcome {
            Outcome::Loaded => {}
            Outcome::Hangs => std::future::pending().await,
            Outcome::Refused(text) => return Err(Status::invalid_argument(text)),
            Outcome::Fails(text) => return Err(Status::internal(text)),
            Outcome::FailsOnce(text) => {
                if self.held().failed.insert(path) {
                    return Err(Status::internal(text));
                }
            }
        }
        let size = self.size(&script);
        self.held().loaded.insert(id, script);
        Ok(size)
    }

    /// Unloads a model as its path says.
    pub(super) async fn unload(&self, id: &str) -> Result<(), Status> {
        let unload = match self.held().loaded.get_mut(id) {
            None => return Err(Status::not_found("no such model")),
            Some(script) if script.stays > 0 => {
                script.stays -= 1;
                return Err(Status::internal("it stays"));
            }
            Some(script) => script.unload,
        };
        tokio::time::sleep(unload).await;
        self.held().loaded.remove(id);
        Ok(())
    }

    /// The model repository; `None`: it speaks `mmesh.ModelRuntime`.
    pub(super) fn repository(&self) -> Option<&Path> {
        self.settings.repository.as_deref()
    }

    /// The status of a call for a model that is not loaded.
    pub(super) fn unknown(&self, id: &str) -> Status {
        match self.repository() {
            Some(_) if self.stands_for() == StandsFor::OpenVino => {
                Status::not_found("Model with requested name is not found")
            }
            Some(_) => unknown(id),
            None => Status::not_found(format!("model {id} is not loaded")),
        }
    }

    /// The answer about its state. Counts the questions.
    pub(super) fn is_up(&self) -> bool {
        self.asked.fetch_add(1, Ordering::AcqRel) >= self.settings.starting
    }

    fn script(path: &str) -> Result<Script, Status> {
        Script::of(path).map_err(|error| Status::invalid_argument(error.to_string()))
    }

    fn size(&self, script: &Script) -> u64 {
        script.size.unwrap_or(self.settings.default_size)
    }
}

#[tonic::async_trait]
impl ModelRuntime for Models {
    async fn load_model(&self, request: Request<LoadModelRequest>) -> Result<Response<LoadModelResponse>, Status> {
        let LoadModelRequest { model_id, model_path, .. } = request.into_inner();
        let size_in_bytes = self.load(model_id, model_path).await?;
        Ok(Response::new(LoadModelResponse { size_in_bytes, max_concurrency: self.settings.concurrency }))
    }

    async fn unload_model(
        &self,
        request: Request<UnloadModelRequest>,
    ) -> Result<Response<UnloadModelResponse>, Status> {
        self.unload(&request.into_inner().model_id).await?;
        Ok(Response::new(UnloadModelResponse {}))
    }

    async fn predict_model_size(
        &self,
        request: Request<PredictModelSizeRequest>,
    ) -> Result<Response<PredictModelSizeResponse>, Status> {
        let size_in_bytes = self.size(&Self::script(&request.into_inner().model_path)?);
        Ok(Response::new(PredictModelSizeResponse { size_in_bytes }))
    }

    async fn model_size(&self, request: Request<ModelSizeRequest>) -> Result<Response<ModelSizeResponse>, Status> {
        let id = request.into_inner().model_id;
        let size = self.held().loaded.get(&id).map(|script| self.size(script));
        let size_in_bytes = size.ok_or_else(|| Status::not_found("no such model"))?;
        Ok(Response::new(ModelSizeResponse { size_in_bytes }))
    }

    async fn runtime_status(
        &self,
        _: Request<RuntimeStatusRequest>,
    ) -> Result<Response<RuntimeStatusResponse>, Status> {
        if !self.is_up() {
            return Ok(Response::new(RuntimeStatusResponse::default()));
        }
        self.purge();
        let settings = &self.settings;
        let info =
            |(method, path): &(String, Vec<u32>)| (method.clone(), MethodInfo { id_injection_path: path.clone() });
        Ok(Response::new(RuntimeStatusResponse {
            status: State::Ready.into(),
            capacity_in_bytes: settings.capacity,
            max_loading_concurrency: settings.parallel_loads,
            model_loading_timeout_ms: settings.load_timeout_ms,
            default_model_size_in_bytes: settings.default_size,
            runtime_version: format!("berth {}", env!("CARGO_PKG_VERSION")),
            method_infos: settings.methods.iter().map(info).collect(),
            limit_model_concurrency: settings.concurrency > 0,
            allow_any_method: settings.any_method,
            ..RuntimeStatusResponse::default()
        }))
    }
}
