//! How long a request waits for one endpoint before it goes to another one, where it may.
//!
//! A node may hang and still be seen: it takes requests, answers pings, and answers nothing else. Who waits for it to the
//! end of his time has none left for anybody else, so an endpoint gets a part of that time: many times what the model takes,
//! and never more than half. Where a model takes so long that half is not many times as much, it gets all of it.

use std::time::Duration;

/// How many times as long as it takes otherwise. Halved: a model whose requests differ much is run twice for the long
/// ones. Doubled: what hangs holds requests for longer.
const TIMES: u32 = 32;

/// What every endpoint gets where there is time. Halved: a short stall of a busy node sends its requests to the others, which
/// are busy as well. Doubled: what hangs is found out later.
const ENOUGH: Duration = Duration::from_secs(1);

/// Who has less than this for one endpoint waits for it to the end. Halved: stalls of a scheduler look like hanging endpoints.
/// Doubled: clients in a hurry are not helped.
const LEAST: Duration = Duration::from_millis(50);

/// How long an endpoint gets of what is `left`, where the model is `expected` to take so long; `None`: all of it.
pub(crate) fn of(expected: Option<Duration>, left: Duration) -> Option<Duration> {
    let (slow, half) = (expected?.saturating_mul(TIMES), left / 2);
    (slow <= half && half >= LEAST).then(|| slow.max(ENOUGH).min(half))
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
