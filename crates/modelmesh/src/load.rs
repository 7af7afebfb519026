//! The state of models, having them loaded, and waiting for that.

use std::time::Duration;

use berth_control::{
    Handle,
    handle::{Error, WatchEvent, WatchRequest},
};
use berth_spec::{DeploymentName, Time};
use berth_wire::mmesh::model_status_info::ModelStatus;
use futures::StreamExt as _;
use tokio::time::{Instant, timeout, timeout_at};
use tonic::Status;

use crate::{code::status, failover::term_ended, status::ModelState};

/// The longest that a synchronous call waits for a load: ModelMesh's.
pub(crate) const LOAD_WITHIN: Duration = Duration::from_secs(600);

/// The time in which a new attempt follows on a failure that was there before: planning takes milliseconds.
const SETTLED: Duration = Duration::from_secs(1);

/// The state of a model now, read from the store; `UNKNOWN` with the error if that fails.
pub(crate) async fn state(handle: &Handle, model: &DeploymentName) -> ModelState {
    stored(handle, model).await.unwrap_or_else(|error| ModelState::unknown(&error))
}

/// The state of a model now, as the controller knows it, which needs no store. The store is asked for one that the controller
/// does not know: it may have been declared in this moment.
pub(crate) async fn known(handle: &Handle, model: &DeploymentName) -> Result<ModelState, Error> {
    match handle.known(model).await? {
        Some(known) => Ok(ModelState::of(&known.deployment, known.status.as_ref())),
        None => stored(handle, model).await,
    }
}

async fn stored(handle: &Handle, model: &DeploymentName) -> Result<ModelState, Error> {
    match handle.get(model).await {
        Ok(view) => Ok(ModelState::of(&view.deployment, view.status.as_ref())),
        Err(Error::NotFound(_)) => Ok(ModelState::not_found()),
        Err(error) => Err(error),
    }
}

/// Has a model loaded as a request would, without waiting for it. `last_used` counts for who has to leave.
pub(crate) async fn start(handle: &Handle, model: &DeploymentName, last_used: Option<Time>) -> Result<(), Status> {
    handle.want(model, last_used.unwrap_or_else(|| handle.now())).await.map_err(status)
}

/// Waits until the model is loaded, or has failed since `began`, or the time is over; then tells its state.
pub(crate) async fn finished(handle: &Handle, model: &DeploymentName, began: Time) -> Result<ModelState, Status> {
    let deadline = Instant::now() + LOAD_WITHIN;
    let request = WatchRequest { name: Some(model.clone()), ..WatchRequest::default() };
    let mut changes = handle.watch(request).await.map_err(status)?;
    let mut failed = false;
    loop {
        let next = async { if failed { timeout(SETTLED, changes.next()).await } else { Ok(changes.next().await) } };
        let Ok(next) = timeout_at(deadline, next).await else { return Ok(state(handle, model).await) };
        let found = match next {
            // Nothing followed on the failure.
            Err(_) => return Ok(state(handle, model).await),
            Ok(Some(Ok(WatchEvent::Added(view) | WatchEvent::Modified(view)))) => {
                ModelState::of(&view.deployment, view.status.as_ref())
            }
            Ok(Some(Ok(WatchEvent::Bookmark(_)))) => continue,
            Ok(Some(Ok(WatchEvent::Deleted { .. }))) => return Ok(ModelState::not_found()),
            Ok(Some(Err(error))) => return Err(status(error)),
            Ok(None) => return Err(term_ended("the controller is stopping: try again".to_owned())),
        };
        match found.status() {
            ModelStatus::Loaded | ModelStatus::NotFound => return Ok(found),
            // Its worker has tried, and keeps it for a later attempt.
            ModelStatus::LoadingFailed if found.held_since.is_some_and(|at| at >= began) => return Ok(found),
            told => failed = told == ModelStatus::LoadingFailed,
        }
    }
}

/// A time in milliseconds since the Unix epoch; 0: not given.
pub(crate) fn time(millis: u64) -> Option<Time> {
    (millis > 0).then(|| Time(millis.saturating_mul(1_000_000)))
}
