//! Event loops: threads that each serve the connections they were given, and share nothing with each other.
//!
//! ```text
//!  accepted ──▶ the loop with the fewest ──▶ served there to its end
//!                                              │ a request goes on to another node
//!                                              └──▶ over a line of the same loop
//! ```
//!
//! In a runtime that shares its work among threads every packet wakes one thread, which wakes another to look for more:
//! one request that was passed on cost four such wake-ups, which is more than all that was done for it. Here the bytes
//! that come, the request, the line that it goes over and the answer are seen by one thread. The price: a connection is
//! never moved, so what computes for long belongs elsewhere.

mod core_sharing;

use std::{
    cell::Cell,
    future::Future,
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
};

use tokio::{net::TcpStream, runtime};
use tokio_util::sync::{CancellationToken, DropGuard};

/// Threads beside each loop for long computations. 32 large bodies can be decoded at once, which is enough to use all
/// cores.
const BLOCKING_THREADS: usize = 32;

thread_local! {
    /// Index of the event loop that runs on this thread.
    static HERE: Cell<Option<usize>> = const { Cell::new(None) };
}

/// The loop that this thread is; `None` on all other threads.
pub(crate) fn here() -> Option<usize> {
    HERE.get()
}

/// Some event loops. Clones are the same ones; they end with the last clone, and with them what still runs there.
#[derive(Clone)]
pub struct EventLoops(Arc<Inner>);

struct Inner {
    loops: Box<[EventLoop]>,
    _ends: DropGuard,
}

struct EventLoop {
    runtime: runtime::Handle,
    /// Number of connections that it serves: the next goes to the loop with the fewest.
    serves: Arc<AtomicUsize>,
}

impl std::fmt::Debug for EventLoops {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.loops.iter().map(|one| one.serves.load(Relaxed))).finish()
    }
}

impl EventLoops {
    /// Starts this many, at least one; `None`: one per core.
    ///
    /// # Errors
    /// The system gives no more threads or file descriptors.
    pub fn start(count: Option<usize>) -> io::Result<Self> {
        Self::start_with(count, || {})
    }

    /// The same; each thread calls `prepare` first.
    ///
    /// # Errors
    /// As of [`start`](Self::start).
    pub fn start_with(count: Option<usize>, prepare: fn()) -> io::Result<Self> {
        let count = count.or_else(|| thread::available_parallelism().ok().map(usize::from)).unwrap_or(1).max(1);
        let ends = CancellationToken::new();
        let guard = ends.clone().drop_guard();
        let loops =
            (0..count).map(|index| EventLoop::start(index, prepare, ends.clone())).collect::<io::Result<_>>()?;
        Ok(Self(Arc::new(Inner { loops, _ends: guard })))
    }

    /// Gives a connection to the loop that has the fewest. `serve` is called there, and runs until it ends.
    ///
    /// # Errors
    /// The connection cannot be taken from the runtime that it is in.
    pub fn adopt<F>(&self, stream: TcpStream, serve: impl FnOnce(TcpStream) -> F + Send + 'static) -> io::Result<()>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let stream = stream.into_std()?;
        let Some(least) = self.0.loops.iter().min_by_key(|one| one.serves.load(Relaxed)) else { return Ok(()) };
        let serves = ConnectionCount::one_more(&least.serves);
        // It is awaited by who gave it, if by anybody: `serve` knows its tracker.
        let _detached = least.runtime.spawn(async move {
            let _serves = serves;
            match TcpStream::from_std(stream) {
                Ok(stream) => serve(stream).await,
                Err(error) => tracing::warn!(%error, "a connection cannot be served"),
            }
        });
        Ok(())
    }
}

impl EventLoop {
    fn start(index: usize, prepare: fn(), ends: CancellationToken) -> io::Result<Self> {
        let mut runtime = runtime::Builder::new_current_thread();
        runtime.on_thread_park(core_sharing::before_wait).on_thread_unpark(core_sharing::after_wait);
        let runtime = runtime.enable_all().max_blocking_threads(BLOCKING_THREADS).build()?;
        let handle = runtime.handle().clone();
        thread::Builder::new().name(format!("berth-loop-{index}")).spawn(move || {
            HERE.set(Some(index));
            prepare();
            runtime.block_on(ends.cancelled());
            runtime.shutdown_background();
        })?;
        Ok(Self { runtime: handle, serves: Arc::default() })
    }
}

/// Guard that counts one open connection.
struct ConnectionCount(Arc<AtomicUsize>);

impl ConnectionCount {
    fn one_more(of: &Arc<AtomicUsize>) -> Self {
        of.fetch_add(1, Relaxed);
        Self(Arc::clone(of))
    }
}

impl Drop for ConnectionCount {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use tokio::{net::TcpListener, sync::mpsc};

    use super::*;

    /// Two connections are served by two loops, a third by either, and one that ended makes room.
    #[tokio::test]
    async fn connections_go_where_there_are_fewest() {
        let loops = EventLoops::start(Some(2)).expect("threads");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let (told, mut heard) = mpsc::channel(4);
        let end = CancellationToken::new();
        let mut seen = Vec::new();
        for ends in [CancellationToken::new(), end.clone(), CancellationToken::new()] {
            let _client = TcpStream::connect(address).await.expect("it listens");
            let (stream, _) = listener.accept().await.expect("one comes");
            let told = told.clone();
            let serve = move |_stream| async move {
                told.send(here()).await.expect("it listens");
                ends.cancelled().await;
            };
            loops.adopt(stream, serve).expect("taken");
            seen.push(heard.recv().await.expect("it is served"));
            if seen.len() == 2 {
                end.cancel();
                let until = std::time::Instant::now() + std::time::Duration::from_secs(120);
                while loops.0.loops.iter().map(|one| one.serves.load(Relaxed)).sum::<usize>() > 1 {
                    assert!(std::time::Instant::now() < until, "it is not seen that one has ended");
                    tokio::task::yield_now().await;
                }
            }
        }
        assert_eq!(seen, [Some(0), Some(1), Some(1)]);
        assert_eq!(here(), None);
    }
}
