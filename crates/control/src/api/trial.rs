//! A model tried from the dashboard: what it takes, and one request, by way of this node's gateway.
//!
//! Browsers may not ask the gateway itself, because its port is another site to them. A trial passes everything that a
//! client's request passes: limits, routes, metrics.

use std::{sync::Arc, time::Duration};

use axum::body::Bytes;
use berth_spec::DeploymentName;
use futures::future::BoxFuture;

/// Limit for a trial, the load of a model that is cold included.
pub const TRIAL_TIMEOUT: Duration = Duration::from_secs(60);

/// Largest request of a trial in bytes. People type it.
pub const MOST_BYTES: usize = 1 << 20;

/// Largest answer that is shown, in bytes: more than a browser shows well.
pub const MOST_ANSWER: usize = 4 << 20;

/// One call of a model by the Open Inference Protocol.
#[derive(Debug, Clone)]
pub struct Trial {
    /// Name of the deployment to call.
    pub deployment: DeploymentName,
    /// Body of an inference; `None`: what are its inputs and outputs?
    pub request: Option<Bytes>,
}

/// Answer of this node's gateway to a trial.
#[derive(Debug, Clone)]
pub struct TrialAnswer {
    /// HTTP status, 200 if the model answered.
    pub status: u16,
    /// JSON of the Open Inference Protocol, or the gateway's error.
    pub body: Bytes,
}

/// Sends a call to the gateway of this node; in words where there is no answer. Ends within [`TRIAL_TIMEOUT`], and gives no more than
/// [`MOST_ANSWER`].
pub type TrialSource = Arc<dyn Fn(Trial) -> BoxFuture<'static, Result<TrialAnswer, String>> + Send + Sync>;
