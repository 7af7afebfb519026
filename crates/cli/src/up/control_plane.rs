//! The control plane on a thread of its own.
//!
//! ```text
//! Running ──stop──▶ api and folder end ──▶ control ends ──▶ thread ends
//!    └── any of them fails ──▶ ended() tells the failure
//! ```

use std::{io, net::TcpListener, thread, time::Duration};

use berth_control::{Control, Handle, api, source::directory::Directory};
use tokio::{sync::oneshot, task::JoinSet, time::timeout};
use tokio_util::sync::CancellationToken;

use crate::{allocator, failure::Failure};

/// How long the API and the folder have to finish at a stop; the API cuts its own clients earlier. Halved, a large apply
/// is cut; doubled, a stuck disk holds up the end of the process.
const DOORS: Duration = Duration::from_secs(10);

/// Threads for what blocks: reads of the store and hashing of local artifacts. Halved, a large artifact holds up the
/// applies of others; doubled, twice as many allocators keep pages back after an apply of many models.
const BLOCKING: usize = 4;

/// How long such a thread waits for more to do. Halved or doubled, memory of a burst is free that much earlier or later.
const BLOCKING_IDLE: Duration = Duration::from_secs(1);

/// How often memory that is free is given back. Halved, the thread that decides looks through its heap twice as often
/// (100 µs with 100,000 deployments); doubled, what a large apply took for a moment stays twice as long.
const GIVE_BACK_EVERY: Duration = Duration::from_secs(1);

/// How long reads and hashes that are under way may hold up the end. Halved, more often one of them still holds the store
/// open when the process leaves; doubled, a hanging disk holds the process up for longer.
pub(crate) const BLOCKED: Duration = Duration::from_secs(5);

/// The runtime of a control plane: one thread, and a few for what blocks.
pub(crate) fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING)
        .thread_keep_alive(BLOCKING_IDLE)
        .build()
}

/// What it is made of.
pub(super) struct Parts {
    pub(super) control: Control,
    pub(super) handle: Handle,
    pub(super) listener: TcpListener,
    pub(super) seams: api::Seams,
    pub(super) folder: Option<Directory>,
}

/// A running control plane.
pub(super) struct ControlPlane {
    pub(super) handle: Handle,
    stop: CancellationToken,
    /// `None` once it has been told.
    outcome: Option<oneshot::Receiver<Result<(), Failure>>>,
}

impl ControlPlane {
    /// Starts the thread.
    pub(super) fn start(parts: Parts) -> Result<Self, Failure> {
        let (handle, stop) = (parts.handle.clone(), CancellationToken::new());
        let (tell, outcome) = oneshot::channel();
        let runtime = runtime()?;
        let stopping = stop.clone();
        let run = move || {
            let done = runtime.block_on(run(parts, stopping));
            // The store is closed when the runtime has dropped what still held it. A read that hangs in the disk is left
            // behind: it ends with the process.
            runtime.shutdown_timeout(BLOCKED);
            // Nobody listens any more when the process is leaving at once.
            let _ = tell.send(done);
        };
        thread::Builder::new().name("berth-control".to_owned()).spawn(run)?;
        Ok(Self { handle, stop, outcome: Some(outcome) })
    }

    /// Resolves when it ends without being told to, with the reason.
    pub(super) async fn ended(&mut self) -> Failure {
        let Some(outcome) = &mut self.outcome else { return std::future::pending().await };
        let ended = outcome.await;
        self.outcome = None;
        match ended {
            Ok(Err(failure)) => failure,
            Ok(Ok(())) => Failure::Failed("the control plane ended without being told to".to_owned()),
            Err(_) => Failure::Failed("the control plane broke, please report it".to_owned()),
        }
    }

    /// Lets it finish.
    pub(super) async fn stop(self) {
        self.stop.cancel();
        drop(self.handle);
        let Some(outcome) = self.outcome else { return };
        match outcome.await {
            Ok(Ok(())) => {}
            Ok(Err(failure)) => tracing::warn!(error = %failure, "the control plane stopped badly"),
            Err(_) => tracing::error!("the control plane broke while it stopped"),
        }
    }
}

async fn run(parts: Parts, stop: CancellationToken) -> Result<(), Failure> {
    let Parts { control, handle, listener, seams, folder } = parts;
    let deciding = CancellationToken::new();
    let mut doors: JoinSet<Result<(), Failure>> = JoinSet::new();
    let listener = tokio::net::TcpListener::from_std(listener)?;
    doors.spawn({
        let (handle, stop) = (handle.clone(), stop.clone());
        async move {
            let served: io::Result<()> = api::serve(listener, api::Front::alone(handle, seams), stop).await;
            served.map_err(|e| Failure::doing("the control API failed", e))
        }
    });
    if let Some(folder) = folder {
        let stop = stop.clone();
        doors.spawn(async move { folder.run(handle, stop).await.map_err(|e| Failure::Failed(e.to_string())) });
    }
    let mut deciding_task = JoinSet::new();
    deciding_task.spawn(control.run(deciding.clone()));
    let failed = tokio::select! {
        () = give_back() => Ok(()),
        ended = deciding_task.join_next() => match ended {
            Some(Ok(Err(error))) => Err(Failure::doing("the control plane failed", error)),
            _ => Err(Failure::Failed("the control plane ended by itself, please report it".to_owned())),
        },
        failure = first_failure(&mut doors), if !stop.is_cancelled() => failure,
    };
    stop.cancel();
    let closed = timeout(DOORS, async { while doors.join_next().await.is_some() {} }).await;
    if closed.is_err() {
        tracing::warn!(left = doors.len(), "parts of the control plane did not stop in time and were cut");
        doors.shutdown().await;
    }
    deciding.cancel();
    while deciding_task.join_next().await.is_some() {}
    failed
}

/// Never ends. Here, because what is declared, and is most of what is held, is allocated by this thread.
pub(crate) async fn give_back() {
    let mut every = tokio::time::interval(GIVE_BACK_EVERY);
    loop {
        every.tick().await;
        allocator::give_back();
    }
}

/// Waits until every door is closed or one failed.
async fn first_failure(doors: &mut JoinSet<Result<(), Failure>>) -> Result<(), Failure> {
    while let Some(ended) = doors.join_next().await {
        ended.map_err(|e| Failure::doing("a part of the control plane broke, please report it", e))??;
    }
    Ok(())
}
