//! The gRPC service, and the router that it is mounted as.

use std::sync::Arc;

use axum::{
    Router,
    body::Body,
    extract,
    middleware::{self, Next},
    response,
};
use berth_control::{Handle, api::Notes};
use berth_spec::DeploymentName;
use berth_wire::{
    bounded_status,
    mmesh::{
        DeleteVModelRequest, DeleteVModelResponse, EnsureLoadedRequest, GetStatusRequest, GetVModelStatusRequest,
        ModelInfo, ModelStatusInfo, RegisterModelRequest, SetVModelRequest, UnregisterModelRequest,
        UnregisterModelResponse, VModelStatusInfo,
        model_mesh_server::{ModelMesh, ModelMeshServer},
    },
};
use tokio::sync::Semaphore;
use tonic::{Extensions, Request, Response, Status};

use crate::{
    code::status,
    ids::{name, namespace},
    load,
    models::{self, LoadWhen},
    transition::Transitions,
    vmodels::{self, Change},
    whole,
};

/// The path below which the service answers.
const PATH: &str = "/mmesh.ModelMesh/";

/// Settings of the service. All controllers of a cluster must have the same.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    /// The owner of virtual models that are created without one; empty: none.
    pub default_owner: String,
    /// Nothing may be registered, removed or switched.
    pub read_only: bool,
}

/// The largest request: attributes of a model, far below it.
pub(crate) const MAX_REQUEST: usize = 1 << 20;

/// Calls at once, each of at most [`MAX_REQUEST`]. Some wait for a model to be loaded: enough for a ModelMesh controller and its
/// users, and a bound on memory.
const CALLS: usize = 512;

/// The service of one term of leadership.
struct Service {
    handle: Handle,
    transitions: Arc<Transitions>,
    options: Options,
}

impl Service {
    /// Refuses a change where nothing may be changed.
    fn writable(&self) -> Result<(), Status> {
        let refused = || Status::unavailable("nothing can be registered or removed now: KV_READ_ONLY is set");
        if self.options.read_only { Err(refused()) } else { Ok(()) }
    }
}

/// The service over a control plane, to be mounted beside the control API. Changes of virtual models that were under way go
/// on; they end with the router.
pub fn router(handle: Handle, options: Options) -> Router {
    let transitions = Transitions::new(handle.clone());
    transitions.resume();
    if !options.read_only {
        transitions.release_left();
    }
    let service = ModelMeshServer::new(Service { handle, transitions, options }).max_decoding_message_size(MAX_REQUEST);
    let places = Arc::new(Semaphore::new(CALLS));
    let bounds = middleware::from_fn(move |request, next| bounded(Arc::clone(&places), request, next));
    Router::new().route_service(&format!("{PATH}{{method}}"), service).layer(bounds)
}

/// Has the service answer a request that is there whole, and not too many at once.
async fn bounded(places: Arc<Semaphore>, request: extract::Request, next: Next) -> response::Response {
    let Ok(_place) = places.try_acquire() else {
        return Status::unavailable(format!("{CALLS} calls are being answered: try again in a second")).into_http();
    };
    let (head, body) = request.into_parts();
    match whole::read(body).await {
        Ok(body) => {
            let mut response = next.run(extract::Request::from_parts(head, Body::from(body))).await;
            // An error may repeat an id.
            bounded_status::bound(response.headers_mut());
            response
        }
        Err(status) => status.into_http(),
    }
}

fn when(load: bool, sync: bool) -> LoadWhen {
    match (load, sync) {
        (false, _) => LoadWhen::Asked,
        (true, false) => LoadWhen::Now,
        (true, true) => LoadWhen::Awaited,
    }
}

/// Notes for the audit log what a call changes.
fn note(extensions: &Extensions, kind: &str, name: &DeploymentName) {
    if let Some(notes) = extensions.get::<Notes>() {
        notes.about(kind, name);
    }
}

#[tonic::async_trait]
impl ModelMesh for Service {
    async fn register_model(
        &self,
        request: Request<RegisterModelRequest>,
    ) -> Result<Response<ModelStatusInfo>, Status> {
        self.writable()?;
        let (metadata, extensions, asked) = request.into_parts();
        let model = name(&namespace(&metadata)?, "modelId", &asked.model_id)?;
        note(&extensions, "ModelDeployment", &model);
        let info = asked.model_info.ok_or_else(|| Status::invalid_argument("modelInfo is missing"))?;
        let (when, last_used) = (when(asked.load_now, asked.sync), asked.last_used_time);
        models::register(&self.handle, &model, &info, when, last_used).await.map(|state| Response::new(state.info))
    }

    async fn unregister_model(
        &self,
        request: Request<UnregisterModelRequest>,
    ) -> Result<Response<UnregisterModelResponse>, Status> {
        self.writable()?;
        let (metadata, extensions, asked) = request.into_parts();
        let model = name(&namespace(&metadata)?, "modelId", &asked.model_id)?;
        note(&extensions, "ModelDeployment", &model);
        models::unregister(&self.handle, &model).await.map(|()| Response::new(UnregisterModelResponse {}))
    }

    async fn get_model_status(&self, request: Request<GetStatusRequest>) -> Result<Response<ModelStatusInfo>, Status> {
        let (metadata, _, asked) = request.into_parts();
        let model = name(&namespace(&metadata)?, "modelId", &asked.model_id)?;
        load::known(&self.handle, &model).await.map(|state| Response::new(state.info)).map_err(status)
    }

    async fn ensure_loaded(&self, request: Request<EnsureLoadedRequest>) -> Result<Response<ModelStatusInfo>, Status> {
        let (metadata, extensions, asked) = request.into_parts();
        let model = name(&namespace(&metadata)?, "modelId", &asked.model_id)?;
        note(&extensions, "ModelDeployment", &model);
        let (when, last_used) = (when(true, asked.sync), asked.last_used_time);
        models::ensure_loaded(&self.handle, &model, when, last_used).await.map(|state| Response::new(state.info))
    }

    async fn set_v_model(&self, request: Request<SetVModelRequest>) -> Result<Response<VModelStatusInfo>, Status> {
        self.writable()?;
        let (metadata, extensions, asked) = request.into_parts();
        let inside = namespace(&metadata)?;
        let expected = Some(asked.expected_target_model_id).filter(|expected| !expected.is_empty());
        let change = Change {
            vmodel: name(&inside, "vModelId", &asked.v_model_id)?,
            target: name(&inside, "targetModelId", &asked.target_model_id)?,
            expected: expected.map(|id| name(&inside, "expectedTargetModelId", &id)).transpose()?,
            owner: asked.owner,
            default_owner: self.options.default_owner.clone(),
            // ModelMesh takes an empty one for none.
            info: asked.model_info.filter(|info| *info != ModelInfo::default()),
            update_only: asked.update_only,
            auto_delete: asked.auto_delete_target_model,
            load_now: asked.load_now,
            force: asked.force,
            sync: asked.sync,
        };
        note(&extensions, "Alias", &change.vmodel);
        vmodels::set(&self.handle, &self.transitions, change).await.map(Response::new)
    }

    async fn delete_v_model(
        &self,
        request: Request<DeleteVModelRequest>,
    ) -> Result<Response<DeleteVModelResponse>, Status> {
        self.writable()?;
        let (metadata, extensions, asked) = request.into_parts();
        let vmodel = name(&namespace(&metadata)?, "vModelId", &asked.v_model_id)?;
        note(&extensions, "Alias", &vmodel);
        vmodels::remove(&self.handle, &self.transitions, vmodel, asked.owner).await?;
        Ok(Response::new(DeleteVModelResponse {}))
    }

    async fn get_v_model_status(
        &self,
        request: Request<GetVModelStatusRequest>,
    ) -> Result<Response<VModelStatusInfo>, Status> {
        let (metadata, _, asked) = request.into_parts();
        let vmodel = name(&namespace(&metadata)?, "vModelId", &asked.v_model_id)?;
        let owner = Some(asked.owner.as_str()).filter(|owner| !owner.is_empty());
        vmodels::tell(&self.handle, &vmodel, owner).await.map(Response::new)
    }
}
