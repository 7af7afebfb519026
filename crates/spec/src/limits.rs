//! Limits on use: of one model by all its callers, or of all models by one principal. Each gateway process counts for itself.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ByteSize;

/// Limits on use. A field that is not set does not limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct UseLimits {
    /// Requests per second in the long run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<u32>,
    /// Requests that may come at one moment after a pause. `None`: as many as `rate` allows in a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst: Option<u32>,
    /// Requests at once, those that wait included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<u32>,
    /// Bytes of request bodies per second in the long run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_per_second: Option<ByteSize>,
    /// Longest expected wait in a model's queue; requests that would wait longer are refused at once. Models only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_wait: Option<Duration>,
}

impl UseLimits {
    /// True if requests are counted against one of the limits.
    #[must_use]
    pub const fn counts(&self) -> bool {
        self.rate.is_some() || self.in_flight.is_some() || self.bytes_per_second.is_some()
    }

    /// True if nothing is limited.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        !self.counts() && self.max_wait.is_none()
    }

    /// Finds the field that makes no sense, with the reason.
    ///
    /// # Errors
    /// The name of the field, and a message for people.
    pub const fn check(&self) -> Result<(), (&'static str, &'static str)> {
        match self {
            Self { rate: Some(0), .. } => Err(("rate", "a rate of 0 lets nobody in: give at least 1")),
            Self { burst: Some(0), .. } => Err(("burst", "a burst of 0 lets nobody in: give at least 1")),
            Self { burst: Some(_), rate: None, .. } => Err(("burst", "a burst needs a rate: give both")),
            Self { in_flight: Some(0), .. } => Err(("inFlight", "0 requests at once are none: give at least 1")),
            Self { bytes_per_second: Some(ByteSize(0)), .. } => {
                Err(("bytesPerSecond", "0 bytes per second are none: give at least 1B"))
            }
            Self { .. } => Ok(()),
        }
    }
}

/// The limit that a request met.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum UseLimit {
    /// Requests per second.
    Rate,
    /// Requests at once.
    InFlight,
    /// Bytes per second.
    Bytes,
}

impl UseLimit {
    /// All limits, in the order of their counters.
    pub const ALL: [Self; 3] = [Self::Rate, Self::InFlight, Self::Bytes];

    /// The word in errors and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Rate => "rate_limit",
            Self::InFlight => "in_flight_limit",
            Self::Bytes => "bytes_limit",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_makes_no_sense_is_named() {
        let (rate, none) = (Some(1), UseLimits::default());
        assert_eq!(none.check(), Ok(()));
        assert_eq!(UseLimits { rate, burst: Some(9), ..none }.check(), Ok(()));
        for (limits, field) in [
            (UseLimits { rate: Some(0), ..none }, "rate"),
            (UseLimits { rate, burst: Some(0), ..none }, "burst"),
            (UseLimits { burst: Some(3), ..none }, "burst"),
            (UseLimits { in_flight: Some(0), ..none }, "inFlight"),
            (UseLimits { bytes_per_second: Some(ByteSize(0)), ..none }, "bytesPerSecond"),
        ] {
            assert_eq!(limits.check().expect_err("no sense").0, field);
        }
    }
}
