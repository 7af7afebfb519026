//! A fetch that hardly moves is given up: a server that sends a byte now and then would hold a slot for ever.

use std::{future::Future, pin::pin, time::Duration};

use berth_spec::FailureCategory;
use tokio::time::sleep;

use super::{location::Location, progress::Progress};
use crate::fault::Fault;

/// The interval between checks of the pace: a line that is down for two minutes breaks no fetch, and a stuck one frees
/// its slot after five.
const WINDOW: Duration = Duration::from_secs(300);

/// The bytes that must come in a window, 3.5 kB/s: the worst lines that people do use are faster.
const MIN_WINDOW_BYTES: u64 = 1 << 20;

/// Waits for `fetch` while its progress keeps up.
pub(super) async fn keep<T>(
    fetch: impl Future<Output = Result<T, Fault>>,
    progress: &Progress,
    location: &Location,
) -> Result<T, Fault> {
    let mut fetch = pin!(fetch);
    loop {
        let before = progress.fetched();
        tokio::select! {
            biased;
            result = &mut fetch => return result,
            () = sleep(WINDOW) => {}
        }
        let came = progress.fetched() - before;
        if came < MIN_WINDOW_BYTES {
            let (shown, seconds) = (location.shown(), WINDOW.as_secs());
            let message = format!(
                "could not fetch {shown}: {came} bytes came in {seconds} s: check the server and the line to it"
            );
            return Err(Fault::new(FailureCategory::Timeout, message));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// The result of a fetch of 2 MiB that has `bytes` more every minute.
    async fn fetch(bytes: u64) -> Result<(), Fault> {
        let progress = Progress::new(Arc::new(|_, _| ()));
        let location = Location::parse("https://host/m.onnx").expect("a location");
        let trickle = async {
            while progress.fetched() < 2 << 20 {
                sleep(Duration::from_secs(60)).await;
                progress.add(bytes);
            }
            Ok(())
        };
        keep(trickle, &progress, &location).await
    }

    #[tokio::test(start_paused = true)]
    async fn slow_is_waited_for_and_stuck_is_not() {
        assert_eq!(fetch(300 << 10).await, Ok(()));
        let stuck = fetch(1).await.expect_err("it would take years");
        assert_eq!(stuck.category, FailureCategory::Timeout, "{stuck}");
    }
}
