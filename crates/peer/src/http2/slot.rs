//! The place of a line that is made when it is first used, and anew when it has closed.

use std::{
    io,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use super::Line;

/// A place for one line.
pub struct Slot<B> {
    line: Mutex<Option<Line<B>>>,
    /// Held by the one who connects for all that wait: why the last attempt failed.
    connecting: tokio::sync::Mutex<Option<(io::ErrorKind, String)>>,
    /// Attempts that failed.
    failures: AtomicU64,
}

impl<B> Default for Slot<B> {
    fn default() -> Self {
        Self { line: Mutex::new(None), connecting: tokio::sync::Mutex::default(), failures: AtomicU64::new(0) }
    }
}

impl<B> Slot<B> {
    /// The line that is open, or the one that `connect` makes. Whoever comes meanwhile waits for that, and fails with it: the wait is
    /// one attempt at most, however many come.
    ///
    /// # Errors
    /// Those of `connect`.
    pub async fn line(&self, connect: impl Future<Output = io::Result<Line<B>>>) -> io::Result<Line<B>> {
        if let Some(line) = self.open() {
            return Ok(line);
        }
        let before = self.failures.load(Relaxed);
        let mut last = self.connecting.lock().await;
        if let Some(line) = self.open() {
            return Ok(line);
        }
        if let Some((kind, why)) = last.as_ref().filter(|_| self.failures.load(Relaxed) != before) {
            return Err(io::Error::new(*kind, why.clone()));
        }
        match connect.await {
            Ok(line) => {
                *self.lock() = Some(line.clone());
                Ok(line)
            }
            Err(error) => {
                self.failures.fetch_add(1, Relaxed);
                *last = Some((error.kind(), error.to_string()));
                Err(error)
            }
        }
    }

    fn open(&self) -> Option<Line<B>> {
        self.lock().as_ref().filter(|line| line.is_open()).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Line<B>>> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use bytes::Bytes;
    use futures::future::join_all;
    use http_body_util::Full;
    use tokio::io::{AsyncReadExt as _, duplex};

    use super::*;

    #[tokio::test]
    async fn those_who_wait_share_an_attempt_and_its_failure() {
        let (slot, attempts) = (Slot::<Full<Bytes>>::default(), AtomicUsize::new(0));
        let connect = || async {
            attempts.fetch_add(1, Relaxed);
            tokio::task::yield_now().await;
            Err(io::Error::new(io::ErrorKind::TimedOut, "nobody is there"))
        };
        for failed in join_all((0..8).map(|_| slot.line(connect()))).await {
            let error = failed.err().expect("it failed");
            assert_eq!((error.kind(), error.to_string().as_str()), (io::ErrorKind::TimedOut, "nobody is there"));
        }
        assert_eq!(attempts.load(Relaxed), 1);
        // Who comes later tries anew.
        assert!(slot.line(connect()).await.is_err());
        assert_eq!(attempts.load(Relaxed), 2);
    }

    #[tokio::test]
    async fn a_line_that_nobody_has_any_more_is_closed() {
        let (near, mut far) = duplex(1 << 16);
        let (line, runs) = Line::<Full<Bytes>>::open(near, |_| {}).await.expect("nothing is asked yet");
        let again = line.clone();
        assert!(again.is_open());
        drop((line, again));
        let (ended, seen) = tokio::join!(runs, async {
            let mut seen = Vec::new();
            far.read_to_end(&mut seen).await.map(|_| seen)
        });
        ended.expect("it ends well");
        assert!(seen.expect("the end").starts_with(b"PRI * HTTP/2.0"));
    }
}
