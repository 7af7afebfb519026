//! Trials of models.

use std::sync::Arc;

use axum::body::Bytes;
use berth_spec::{Class, DeploymentName};

use super::Service;
use crate::api::{
    error::ApiError,
    trial::{Trial, TrialAnswer},
};

/// Trials at a time. Each may wait for a model to be loaded.
pub(super) const TRIALS: usize = 8;

impl Service {
    /// Asks a model; `None`: for its inputs and outputs.
    pub(crate) async fn trial(
        &self,
        deployment: DeploymentName,
        request: Option<Bytes>,
    ) -> Result<TrialAnswer, ApiError> {
        let Some(source) = &self.trial else {
            let message =
                "the node that decides has no gateway, so nothing can be tried here: send the request to a gateway";
            return Err(ApiError::new(Class::Unsupported, message));
        };
        let retry = |message: String| {
            let class = Class::Waiting { retry_in: std::time::Duration::from_secs(1) };
            ApiError::new(class, message)
        };
        let busy = |_| retry(format!("{TRIALS} models are being tried: try again in a second"));
        let _place = Arc::clone(&self.kept.trials).try_acquire_owned().map_err(busy)?;
        source(Trial { deployment, request }).await.map_err(retry)
    }
}
