//! The worker's clock: the machine's at the start, and from then on only forwards.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use berth_spec::Time;
use tokio::time::Instant;

/// Tells the time. A clock that is set while the process runs does not turn a back-off into an hour.
pub(super) struct Clock {
    started: Instant,
    epoch: Time,
}

impl Clock {
    pub(super) fn start() -> Self {
        let epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { started: Instant::now(), epoch: Time::ZERO + epoch }
    }

    pub(super) fn now(&self) -> Time {
        self.epoch + self.started.elapsed()
    }

    /// When the timer must ring. One nanosecond late, so that what is due at `at` is due then.
    pub(super) fn instant(&self, at: Time) -> Instant {
        self.started + at.since(self.epoch) + Duration::from_nanos(1)
    }
}
