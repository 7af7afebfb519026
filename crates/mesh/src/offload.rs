//! Work that grows with what a client sent or is sent: small amounts at once, large ones where they hold up nobody else.
//!
//! All requests of an HTTP/2 connection share one task: what is done in it, the others wait for.

use std::future::ready;

use berth_spec::InferError;
use futures::{FutureExt as _, future::Either};

/// Bytes that are looked at one by one (numbers written or read, text compressed) from which work is handed over: a
/// connection is held for a millisecond at most, and a hand-over costs some 10 µs.
pub const MIN_BYTES: usize = 256 << 10;

/// Starts `work` on `weight` bytes at once, before the future is polled. Called inside the runtime.
///
/// # Errors
/// Those of `work`, and [`InferError::Internal`] where it panics.
pub fn run<T: Send + 'static>(
    weight: usize,
    work: impl FnOnce() -> Result<T, InferError> + Send + 'static,
) -> impl Future<Output = Result<T, InferError>> + Send {
    if weight < MIN_BYTES {
        return Either::Left(ready(work()));
    }
    let done = tokio::task::spawn_blocking(work);
    let failed = |_| Err(InferError::Internal("the server failed on this request".to_owned()));
    Either::Right(done.map(move |done| done.unwrap_or_else(failed)))
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[tokio::test]
    async fn much_is_done_elsewhere_and_little_here() {
        let here = thread::current().id();
        for (weight, elsewhere) in [(MIN_BYTES - 1, false), (MIN_BYTES, true)] {
            let there = run(weight, || Ok(thread::current().id())).await.expect("done");
            assert_eq!(there != here, elsewhere, "{weight}");
        }
        let panicked = run(MIN_BYTES, || -> Result<(), _> { panic!("asked to") }).await;
        assert!(matches!(panicked, Err(InferError::Internal(_))));
    }
}
