//! Connection of a worker to its controller.
//!
//! ```text
//! Attached ──▶ worker reports whole ──▶ passed on ──▶ changes are passed on
//!     └── changes of a report that this controller has not had are left out
//! ```

use std::sync::Arc;

use berth_spec::{CredentialSet, FromController, InventoryChange, WorkerInfo};
use berth_wire::fleet::{
    Assembly, InParts,
    v1::{self, worker_order, worker_word},
};
use futures::{FutureExt, StreamExt, stream};
use tokio_stream::wrappers::ReceiverStream;

use super::{
    ConnectContext,
    connection::Client,
    leader_discovery::Target,
    stream::{Broken, ControllerStream, Dialling, client, incoming, outgoing, welcome},
};

/// A worker's side of its connections: holds reports back until the controller has had a whole one.
pub(super) struct WorkerClient {
    context: ConnectContext,
    info: WorkerInfo,
    /// The controller that is connected has had the whole.
    reported: bool,
}

impl WorkerClient {
    pub(super) fn new(context: ConnectContext, info: WorkerInfo) -> Self {
        Self { context, info, reported: false }
    }
}

type WorkerStream = ControllerStream<InventoryChange, FromController>;

impl Client for WorkerClient {
    const OF: &'static str = "worker";
    type Outgoing = InventoryChange;
    type Incoming = FromController;

    fn dial(&self, whom: &Target) -> Dialling<InventoryChange, FromController> {
        let (context, info) = (self.context.clone(), self.info.clone());
        match whom {
            Target::Here => here(context, info).boxed(),
            Target::Node(name) => there(context, name.clone(), info).boxed(),
        }
    }

    fn attached(&mut self) -> Option<InventoryChange> {
        self.reported = false;
        None
    }

    fn up(&mut self, report: InventoryChange) -> Option<InventoryChange> {
        self.reported |= report.whole;
        Some(report).filter(|_| self.reported)
    }

    fn down(&mut self, message: FromController) -> FromController {
        message
    }
}

async fn here(context: ConnectContext, info: WorkerInfo) -> Result<WorkerStream, Broken> {
    let (handle, epoch) = context.here()?;
    let (outgoing, orders) = handle.attach_worker(info).await?;
    let incoming = ReceiverStream::new(orders).map(Ok).boxed();
    Ok(ControllerStream { epoch, far: false, outgoing, incoming })
}

async fn there(context: ConnectContext, name: berth_spec::WorkerId, info: WorkerInfo) -> Result<WorkerStream, Broken> {
    let peer = context.peer(&name)?;
    let hello = v1::Hello { worker: Some((&info).into()), ..context.hello() };
    let hello = v1::WorkerWord { word: Some(worker_word::Word::Hello(hello)) };
    let (outgoing, body) = outgoing(hello, |report: InventoryChange| {
        report.in_parts().map(|part| v1::WorkerWord { word: Some(worker_word::Word::Inventory(part)) })
    });
    let mut messages = client(&peer).work(context.request(body)).await?.into_inner();
    let epoch = welcome(&mut messages, |message: v1::WorkerOrder| match message.order {
        Some(worker_order::Order::Welcome(welcome)) => Some(welcome),
        _ => None,
    })
    .await?;
    let mut assembly = Assembly::new(());
    let orders = incoming(peer, messages, move |message: v1::WorkerOrder| {
        let part = match message.order {
            Some(worker_order::Order::Assignment(part)) => part,
            Some(worker_order::Order::Credentials(bytes)) => return Ok(credentials(&bytes)),
            Some(worker_order::Order::Welcome(_)) | None => return Ok(None),
        };
        let change = assembly.push(part).map_err(|error| Broken::Failed(error.to_string()))?;
        let left_out = assembly.left_out();
        if left_out > 0 {
            tracing::warn!(
                event = "assignments_unknown",
                left_out,
                "replicas are assigned here that this version cannot understand"
            );
        }
        Ok(change.map(FromController::Assigned))
    });
    let incoming = stream::iter([Ok(FromController::Attached)]).chain(orders).boxed();
    Ok(ControllerStream { epoch, far: true, outgoing, incoming })
}

/// Credentials that this version cannot read are none: what it has stays. The error says nothing of what is in them.
fn credentials(bytes: &[u8]) -> Option<FromController> {
    match CredentialSet::from_wire(bytes) {
        Ok(set) => Some(FromController::Credentials(Arc::new(set))),
        Err(error) => {
            tracing::error!(event = "credentials_unreadable", %error, "keeping the previous credentials");
            None
        }
    }
}
