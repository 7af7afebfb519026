//! Threads that hash files, and nothing else: a slow disk or a file without end must not keep the store waiting.
//!
//! ```text
//! hash(path) ──a place──▶ queue ──▶ thread: one slice ─┬▶ done: reply
//!                           ▲                          ├▶ nobody waits any more: dropped
//!                           └────── there is more ─────┘
//! ```
//! Files take turns by slices, so that a small one is not behind a large one. A request that is gone takes its file out of the
//! queue at its next turn.

use std::{
    collections::VecDeque,
    fmt, io,
    path::PathBuf,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use tokio::sync::{Semaphore, oneshot};

use super::hashing::{Hashed, Hashing, KnownDigests};

/// Threads that hash. One may hang on a disk that does not answer; more would take the processors from requests.
const THREADS: usize = 2;

/// Files in turns at once; further ones wait for a place. Each holds an open file. All requests with manifests that are
/// worked on at once have fewer.
const PLACES: usize = 256;

/// The longest that a file takes its turns: a terabyte from a fast disk.
const HASHING_TIMEOUT: Duration = Duration::from_secs(900);

/// Threads that hash files. They start with the first files and end with the pool.
#[derive(Debug)]
pub(super) struct Pool {
    shared: Arc<Shared>,
    places: Semaphore,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    work: Condvar,
    known: KnownDigests,
}

#[derive(Debug, Default)]
struct Queue {
    jobs: VecDeque<Job>,
    threads: usize,
    closed: bool,
}

struct Job {
    hashing: Hashing,
    until: Instant,
    reply: oneshot::Sender<io::Result<Hashed>>,
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job").field("until", &self.until).finish_non_exhaustive()
    }
}

impl Default for Pool {
    fn default() -> Self {
        Self { shared: Arc::default(), places: Semaphore::new(PLACES) }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.work.notify_all();
    }
}

impl Pool {
    /// Hashes a file. Dropping the future ends the work on it.
    ///
    /// # Errors
    /// The file cannot be read, or not in time.
    pub(super) async fn hash(&self, path: PathBuf) -> io::Result<Hashed> {
        let ended = || io::Error::other("the server is stopping");
        let _place = self.places.acquire().await.map_err(|_| ended())?;
        let (reply, answer) = oneshot::channel();
        self.shared.take(Job { hashing: Hashing::of(path), until: Instant::now() + HASHING_TIMEOUT, reply })?;
        answer.await.map_err(|_| ended())?
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a file, and starts a thread for it while there are few.
    fn take(self: &Arc<Self>, job: Job) -> io::Result<()> {
        let mut queue = self.lock();
        if queue.threads < THREADS {
            let shared = Arc::clone(self);
            thread::Builder::new().name("berth-hash".to_owned()).spawn(move || shared.work())?;
            queue.threads += 1;
        }
        queue.jobs.push_back(job);
        drop(queue);
        self.work.notify_one();
        Ok(())
    }

    /// Life of a thread.
    fn work(&self) {
        while let Some(mut job) = self.next() {
            let outcome = match job.hashing.slice(&self.known, || !job.reply.is_closed()) {
                Ok(None) if job.reply.is_closed() => continue,
                Ok(None) if Instant::now() >= job.until => Err(io::ErrorKind::TimedOut.into()),
                Ok(None) => {
                    self.lock().jobs.push_back(job);
                    continue;
                }
                Ok(Some(hashed)) => Ok(hashed),
                Err(error) => Err(error),
            };
            // Nobody waits where it fails.
            let _ = job.reply.send(outcome);
        }
    }

    /// The file whose turn it is; `None`: the pool is gone.
    fn next(&self) -> Option<Job> {
        let mut queue = self.lock();
        while !queue.closed {
            if let Some(job) = queue.jobs.pop_front() {
                return Some(job);
            }
            queue = self.work.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file of far more than can be hashed while a test runs.
    fn endless(folder: &std::path::Path, name: &str) -> PathBuf {
        let path = folder.join(name);
        fs_err::File::create(&path).expect("a file").set_len(1 << 41).expect("sparse");
        path
    }

    #[tokio::test]
    async fn a_small_file_does_not_wait_for_endless_ones_and_these_end_with_who_asked() {
        let folder = tempfile::tempdir().expect("a folder");
        let pool = Arc::new(Pool::default());
        let mut asking = tokio::task::JoinSet::new();
        for name in ["a", "b", "c", "d"] {
            let (pool, path) = (Arc::clone(&pool), endless(folder.path(), name));
            asking.spawn(async move { pool.hash(path).await });
        }
        let small = folder.path().join("small");
        fs_err::write(&small, b"weights").expect("written");
        let (_, size) = pool.hash(small).await.expect("it is read").expect("a file");
        assert_eq!(size.0, 7);
        asking.shutdown().await;
        while !pool.shared.lock().jobs.is_empty() {
            tokio::task::yield_now().await;
        }
        assert_eq!(pool.places.available_permits(), PLACES);
    }
}
