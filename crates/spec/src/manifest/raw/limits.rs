//! Fields of the limits on a model's use.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Size, Span, Whole};

/// Limits on the use by all callers together. Each gateway counts for itself.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RawLimits {
    /// Requests per second in the long run. Not given: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<Whole<1, { u32::MAX }>>,
    /// Requests that may come at one moment after a pause. Not given: as many as `rate`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst: Option<Whole<1, { u32::MAX }>>,
    /// Requests at once, those that wait for the model included. Not given: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<Whole<1, { u32::MAX }>>,
    /// Bytes of request bodies per second in the long run. Not given: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_per_second: Option<Size>,
    /// The longest time that a request may wait in the model's queue; one that would wait longer is refused at once with 503
    /// `overloaded`. Not given: only a queue that has filled up is kept short.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_wait: Option<Span>,
}

impl RawLimits {
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
