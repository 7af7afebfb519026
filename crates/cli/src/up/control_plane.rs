//! The control plane of a server that is alone: the API, a folder or registry that it may follow, and the controller.
//!
//! ```text
//! Running ──stop──▶ api and folder end ──▶ control ends
//!    └── any of them fails ──▶ all end, with the failure
//! ```

use std::{io, net::TcpListener, time::Duration};

use berth_control::{
    Control, Handle, api,
    source::{
        directory::Directory,
        git::{self, GitSource},
    },
};
use berth_spec::Epoch;
use tokio::{task::JoinSet, time::timeout};
use tokio_util::sync::CancellationToken;

use crate::{
    control_thread::{ControlThread, give_back},
    failure::Failure,
};

/// Limit for the API and the folder at shutdown. The API cuts its own clients earlier.
const DOORS: Duration = Duration::from_secs(10);

/// Parts of the control plane.
pub(super) struct Parts {
    pub(super) control: Control,
    pub(super) handle: Handle,
    pub(super) listener: TcpListener,
    pub(super) seams: api::Seams,
    pub(super) followed: Followed,
}

/// Source that is followed besides the API.
pub(super) enum Followed {
    Nothing,
    Folder(Directory),
    Registry(GitSource),
}

impl Followed {
    async fn run(self, handle: Handle, stop: CancellationToken) -> Result<(), Failure> {
        let failed = |error: &dyn std::fmt::Display| Failure::Failed(error.to_string());
        if !matches!(self, Self::Registry(_)) {
            git::forget(&handle).await.map_err(|e| failed(&e))?;
        }
        match self {
            Self::Nothing => Ok(()),
            Self::Folder(folder) => folder.run(handle, stop).await.map_err(|e| failed(&e)),
            Self::Registry(registry) => registry.run(handle, Epoch(0), stop).await.map_err(|e| failed(&e)),
        }
    }
}

/// A running control plane.
pub(super) struct ControlPlane {
    pub(super) handle: Handle,
    thread: ControlThread,
}

impl ControlPlane {
    /// Starts the thread.
    pub(super) fn start(parts: Parts) -> Result<Self, Failure> {
        let handle = parts.handle.clone();
        Ok(Self { handle, thread: ControlThread::start(|stop| run(parts, stop))? })
    }

    /// Resolves when it ends without being told to, with the reason.
    pub(super) async fn ended(&mut self) -> Failure {
        self.thread.ended().await
    }

    /// Waits until it has ended.
    pub(super) async fn stop(self) {
        drop(self.handle);
        self.thread.stop().await;
    }
}

async fn run(parts: Parts, stop: CancellationToken) -> Result<(), Failure> {
    let Parts { control, handle, listener, seams, followed } = parts;
    let deciding = CancellationToken::new();
    let mut doors: JoinSet<Result<(), Failure>> = JoinSet::new();
    let listener = tokio::net::TcpListener::from_std(listener)?;
    doors.spawn({
        let (handle, stop) = (handle.clone(), stop.clone());
        async move {
            let served: io::Result<()> = api::serve(listener, api::ApiRouter::alone(handle, seams), stop).await;
            served.map_err(|e| Failure::doing("the control API failed", e))
        }
    });
    doors.spawn(followed.run(handle, stop.clone()));
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
        tracing::warn!(
            event = "control_parts_cut",
            left = doors.len(),
            "parts of the control plane did not stop in time and were cut"
        );
        doors.shutdown().await;
    }
    deciding.cancel();
    while deciding_task.join_next().await.is_some() {}
    failed
}

/// Waits until every door is closed or one failed.
async fn first_failure(doors: &mut JoinSet<Result<(), Failure>>) -> Result<(), Failure> {
    while let Some(ended) = doors.join_next().await {
        ended.map_err(|e| Failure::doing("a part of the control plane failed, please report it", e))??;
    }
    Ok(())
}
