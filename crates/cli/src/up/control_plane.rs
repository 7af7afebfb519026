//! The control plane of a server that is alone: the API, the sources of deployments, and the controller.
//!
//! ```text
//! Running ──stop──▶ api and sources end ──▶ control ends
//!    └── any of them fails ──▶ all end, with the failure
//! ```

use std::{io, net::TcpListener, time::Duration};

use berth_control::{
    Control, Handle, api,
    source::{self, Setup},
};
use berth_spec::Epoch;
use tokio::{task::JoinSet, time::timeout};
use tokio_util::sync::CancellationToken;

use crate::{
    control_thread::{ControlThread, give_back},
    failure::Failure,
};

/// Limit for the API and the sources at shutdown, so that a large apply is not cut. The API cuts its own clients
/// earlier.
const DOORS: Duration = Duration::from_secs(10);

/// Parts of the control plane.
pub(super) struct Parts {
    pub(super) control: Control,
    pub(super) handle: Handle,
    pub(super) listener: TcpListener,
    pub(super) api: api::ApiRouter,
    /// The sources of deployments besides the API.
    pub(super) sources: Setup,
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
    let Parts { control, handle, listener, api: router, sources } = parts;
    let deciding = CancellationToken::new();
    let mut doors: JoinSet<Result<(), Failure>> = JoinSet::new();
    let listener = tokio::net::TcpListener::from_std(listener)?;
    doors.spawn({
        let stop = stop.clone();
        async move {
            let served: io::Result<()> = api::serve(listener, router, stop).await;
            served.map_err(|e| Failure::doing("the control API failed", e))
        }
    });
    doors.spawn({
        let stop = stop.clone();
        async move {
            let ran = source::run(sources, handle, Epoch(0), stop).await;
            ran.map_err(|error| Failure::doing("the sources of deployments failed", error))
        }
    });
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
