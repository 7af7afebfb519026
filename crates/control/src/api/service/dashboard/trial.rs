//! Trials of models.

use std::sync::Arc;

use axum::body::Bytes;
use berth_spec::{Class, DeploymentName};
use tokio::sync::OwnedSemaphorePermit;

use super::Service;
use crate::api::{
    error::ApiError,
    trial::{Trial, TrialAnswer},
};

/// Trials at a time. Each may wait for a model to be loaded.
pub(super) const TRIALS: usize = 8;

impl Service {
    /// A place among the trials. It is taken before the request is read, so that bodies have a bound together.
    pub(crate) fn trial_place(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        let busy = |_| retry(format!("{TRIALS} models are being tried: try again in a second"));
        Arc::clone(&self.kept.trials).try_acquire_owned().map_err(busy)
    }

    /// Asks a model; `None`: for its inputs and outputs.
    pub(crate) async fn trial(
        &self,
        deployment: DeploymentName,
        request: Option<Bytes>,
        _place: OwnedSemaphorePermit,
    ) -> Result<TrialAnswer, ApiError> {
        let Some(source) = &self.trial else {
            let message =
                "the node that decides has no gateway, so nothing can be tried here: send the request to a gateway";
            return Err(ApiError::new(Class::Unsupported, message));
        };
        source(Trial { deployment, request }).await.map_err(retry)
    }
}

fn retry(message: String) -> ApiError {
    ApiError::new(Class::Waiting { retry_in: std::time::Duration::from_secs(1) }, message)
}
