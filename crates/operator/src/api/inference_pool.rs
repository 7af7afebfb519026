//! The pool of a model, for Gateways that ask an endpoint picker.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A pool of the model's pods, for Gateways that ask an endpoint picker (Gateway API Inference Extension).
// No field is required: where it is taken out of an applied object, API servers of 1.20 leave an empty one behind.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InferencePool {
    /// The name of the container's port that Gateways send requests to. It cannot be left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
    /// The handling of requests while the picker does not answer: `FailOpen` (the Gateway chooses a pod) or `FailClose` (they are refused). `FailOpen` where it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "^(FailOpen|FailClose)$"))]
    pub failure_mode: Option<String>,
    /// The most requests that a pod has at once. Where all have as many, a request is answered with 429. Any number where it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100000))]
    pub max_in_flight: Option<u32>,
    /// The Gateway, NAMESPACE/NAME, that gets an HTTPRoute to the pool. Where it is left out, write a route of your own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "^[^/]+/[^/]+$"))]
    pub gateway: Option<String>,
    /// The hosts of the HTTPRoute. All of the Gateway's where they are left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub hostnames: Vec<String>,
}

impl InferencePool {
    /// Reads it; an empty one is none.
    pub(super) fn read<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Self>, D::Error> {
        let read = Option::<Self>::deserialize(from)?;
        Ok(read.filter(|read| *read != Self::default()))
    }

    /// Namespace and name of the Gateway.
    #[must_use]
    pub fn gateway(&self) -> Option<(&str, &str)> {
        self.gateway.as_deref()?.split_once('/')
    }
}
