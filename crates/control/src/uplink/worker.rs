//! What is particular to a worker's way to the controller.
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
    Road,
    drive::End,
    line::{Broken, Dialling, Line, client, heard, speech, welcome},
    search::Whom,
};

/// The worker's side.
pub(super) struct WorkerEnd {
    road: Road,
    info: WorkerInfo,
    /// The controller that is connected has had the whole.
    reported: bool,
}

impl WorkerEnd {
    pub(super) fn new(road: Road, info: WorkerInfo) -> Self {
        Self { road, info, reported: false }
    }
}

type WorkerLine = Line<InventoryChange, FromController>;

impl End for WorkerEnd {
    const OF: &'static str = "worker";
    type Word = InventoryChange;
    type Heard = FromController;

    fn dial(&self, whom: &Whom) -> Dialling<InventoryChange, FromController> {
        let (road, info) = (self.road.clone(), self.info.clone());
        match whom {
            Whom::Here => here(road, info).boxed(),
            Whom::Node(name) => there(road, name.clone(), info).boxed(),
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

    fn down(&mut self, heard: FromController) -> FromController {
        heard
    }
}

async fn here(road: Road, info: WorkerInfo) -> Result<WorkerLine, Broken> {
    let (handle, epoch) = road.here()?;
    let (speak, orders) = handle.attach_worker(info).await?;
    let hear = ReceiverStream::new(orders).map(Ok).boxed();
    Ok(Line { epoch, far: false, speak, hear })
}

async fn there(road: Road, name: berth_spec::WorkerId, info: WorkerInfo) -> Result<WorkerLine, Broken> {
    let peer = road.peer(&name)?;
    let hello = v1::Hello { worker: Some((&info).into()), ..road.hello() };
    let hello = v1::WorkerWord { word: Some(worker_word::Word::Hello(hello)) };
    let (speak, said) = speech(hello, |report: InventoryChange| {
        report.in_parts().map(|part| v1::WorkerWord { word: Some(worker_word::Word::Inventory(part)) })
    });
    let mut words = client(&peer).work(road.request(said)).await?.into_inner();
    let epoch = welcome(&mut words, |word: v1::WorkerOrder| match word.order {
        Some(worker_order::Order::Welcome(welcome)) => Some(welcome),
        _ => None,
    })
    .await?;
    let mut assembly = Assembly::new(());
    let orders = heard(peer, words, move |word: v1::WorkerOrder| {
        let part = match word.order {
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
    let hear = stream::iter([Ok(FromController::Attached)]).chain(orders).boxed();
    Ok(Line { epoch, far: true, speak, hear })
}

/// Credentials that this version cannot read are none: what it has stays. The error says nothing of what is in them.
fn credentials(bytes: &[u8]) -> Option<FromController> {
    match CredentialSet::from_wire(bytes) {
        Ok(set) => Some(FromController::Credentials(Arc::new(set))),
        Err(error) => {
            tracing::error!(event = "credentials_unreadable", %error, "going on with those of before");
            None
        }
    }
}
