//! Decides when a request leaves one endpoint for another one, where it may.
//!
//! A node may hang and still be seen: it takes requests, answers pings, and answers nothing else. Who waits for it to the
//! end of his time has none left for anybody else, so an endpoint gets a part of that time: many times what the model takes,
//! and never more than half. Where a model takes so long that half is not many times as much, it gets all of it.

use std::time::Duration;

/// The patience as a multiple of the expected time: models whose requests differ by this much are rare.
const PATIENCE_FACTOR: u32 = 32;

/// The least patience where there is time: a short stall of a busy node must not send its requests to the others,
/// which are busy as well.
const MIN_PATIENCE: Duration = Duration::from_secs(1);

/// A request with less than this for one endpoint waits for it to the end: the stalls of a scheduler are as long.
const MIN_TIME_LEFT: Duration = Duration::from_millis(50);

/// The part of the time `left` that an endpoint gets, where the model is `expected` to take so long; `None`: all of
/// it.
pub(crate) fn of(expected: Option<Duration>, left: Duration) -> Option<Duration> {
    let (slow, half) = (expected?.saturating_mul(PATIENCE_FACTOR), left / 2);
    (slow <= half && half >= MIN_TIME_LEFT).then(|| slow.max(MIN_PATIENCE).min(half))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_times_what_it_takes_and_never_more_than_half() {
        let millis = Duration::from_millis;
        for (expected, left, patience) in [
            (None, 10_000, None),
            (Some(1), 10_000, Some(1_000)),
            (Some(100), 10_000, Some(3_200)),
            // The model itself may need the time.
            (Some(200), 10_000, None),
            (Some(1), 600, Some(300)),
            (Some(1), 80, None),
            (Some(20), 600, None),
        ] {
            assert_eq!(of(expected.map(millis), millis(left)), patience.map(millis), "{expected:?} of {left}");
        }
    }
}
