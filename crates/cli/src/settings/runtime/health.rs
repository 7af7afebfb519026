//! The setting `health` of a runtime: the times by which it is noticed that it cannot be reached, or hangs.

use std::time::Duration;

use berth_worker::runtime::spi::HealthCheck;
use serde::{Deserialize, Serialize};

use super::values;

/// The shortest time: a runtime may pause for less, to collect garbage or on a busy machine.
const MIN_TIME: Duration = Duration::from_secs(1);

/// The longest time: after a day nobody waits any more.
const MAX_TIME: Duration = Duration::from_secs(86_400);

/// The setting. Times that are left out are the usual ones.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawHealth {
    #[serde(skip_serializing_if = "Option::is_none")]
    interval: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lost_after: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    busy_timeout: Option<String>,
}

impl RawHealth {
    /// The times.
    ///
    /// # Errors
    /// The field that is no time, or one that cannot be meant.
    pub(super) fn times(&self) -> Result<HealthCheck, String> {
        let usual = HealthCheck::default();
        let lost_after = time("lostAfter", self.lost_after.as_deref(), usual.lost_after)?;
        let times = HealthCheck {
            interval: time("interval", self.interval.as_deref(), usual.interval)?,
            timeout: time("timeout", self.timeout.as_deref(), usual.timeout.min(lost_after))?,
            lost_after,
            busy_timeout: time("busyTimeout", self.busy_timeout.as_deref(), usual.busy_timeout.max(lost_after))?,
        };
        if times.busy_timeout < lost_after {
            return Err(format!(
                "spec.health.busyTimeout is {:?}, and lostAfter {lost_after:?}: a runtime at work has at least as long as another",
                times.busy_timeout
            ));
        }
        Ok(times)
    }
}

fn time(field: &str, text: Option<&str>, usual: Duration) -> Result<Duration, String> {
    let Some(text) = text else { return Ok(usual) };
    let read = values::duration(text).map_err(|error| format!("spec.health.{field} is {text:?}: {error}"))?;
    match (MIN_TIME..=MAX_TIME).contains(&read) {
        true => Ok(read),
        false => Err(format!("spec.health.{field} is {text:?}: write a time from 1s to 1d")),
    }
}
