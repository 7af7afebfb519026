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
mod waits;

use std::{
    cell::Cell,
    future::Future,
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use tokio::{net::TcpStream, runtime};
use tokio_util::sync::{CancellationToken, DropGuard};

use self::waits::Waits;

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

/// Preparation of the threads of event loops.
#[derive(Debug, Clone, Copy)]
pub struct LoopThreads {
    /// Called on the thread of each loop before it serves.
    pub prepare_loop: fn(),
    /// Called on each thread that computes for a loop. It begins with the attributes of the loop's thread.
    pub prepare_pool: fn(),
    /// Period of the tick of the kernel's scheduler.
    pub tick: Duration,
}

impl Default for LoopThreads {
    fn default() -> Self {
        Self { prepare_loop: || {}, prepare_pool: || {}, tick: Duration::from_millis(4) }
    }
}

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
        Self::start_with(count, LoopThreads::default())
    }

    /// [`start`](Self::start), with threads that are prepared.
    ///
    /// # Errors
    /// The system gives no more threads or file descriptors.
    pub fn start_with(count: Option<usize>, threads: LoopThreads) -> io::Result<Self> {
        let count = count.or_else(|| thread::available_parallelism().ok().map(usize::from)).unwrap_or(1).max(1);
        let ends = CancellationToken::new();
        let guard = ends.clone().drop_guard();
        let waits = Arc::new(Waits::of(count));
        let start = |index| EventLoop::start(index, threads, Arc::clone(&waits), ends.clone());
        let loops = (0..count).map(start).collect::<io::Result<_>>()?;
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
    fn start(index: usize, threads: LoopThreads, waits: Arc<Waits>, ends: CancellationToken) -> io::Result<Self> {
        let mut runtime = runtime::Builder::new_current_thread();
        runtime.on_thread_start(threads.prepare_pool).max_blocking_threads(BLOCKING_THREADS);
        runtime.on_thread_park(core_sharing::before_wait).on_thread_unpark(core_sharing::after_wait);
        let runtime = runtime.enable_all().build()?;
        let handle = runtime.handle().clone();
        thread::Builder::new().name(format!("berth-loop-{index}")).spawn(move || {
            HERE.set(Some(index));
            (threads.prepare_loop)();
            core_sharing::begin(index, waits, threads.tick);
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

    thread_local! {
        static PREPARED: Cell<&'static str> = const { Cell::new("no") };
    }

    #[tokio::test]
    async fn threads_are_prepared_for_what_they_do() {
        let threads = LoopThreads {
            prepare_loop: || PREPARED.set("loop"),
            prepare_pool: || PREPARED.set("pool"),
            ..LoopThreads::default()
        };
        let loops = EventLoops::start_with(Some(1), threads).expect("threads");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let _client = TcpStream::connect(listener.local_addr().expect("bound")).await.expect("it listens");
        let (stream, _) = listener.accept().await.expect("one comes");
        let (told, mut heard) = mpsc::channel(1);
        let serve = move |_stream| async move {
            let pool = tokio::task::spawn_blocking(|| PREPARED.get()).await.expect("no panic");
            told.send([PREPARED.get(), pool]).await.expect("it listens");
        };
        loops.adopt(stream, serve).expect("taken");
        assert_eq!(heard.recv().await, Some(["loop", "pool"]));
    }
}
