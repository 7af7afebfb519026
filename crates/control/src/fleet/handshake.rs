//! First message of a stream: identifies the sender, and checks that this node may accept it.

use std::{sync::LazyLock, time::Duration};

use berth_peer::{Caller, PROTOCOL, Peers, common_protocol, pki::certifies, port::Damped};
use berth_spec::{Epoch, Roles, WorkerId};
use berth_wire::fleet::{
    EPOCH, LEADER, LEADER_PEER,
    v1::{Hello, Welcome},
};
use tokio::{sync::watch, time::Instant};
use tonic::{
    Request, Status, Streaming,
    metadata::{Ascii, MetadataMap, MetadataValue},
};

use crate::{
    Handle,
    handle::Error,
    leadership::{self, LeadershipView},
};

/// A node that wants to speak for more than its certificate is for tries again and again.
static ROLES_REFUSED: LazyLock<Damped> = LazyLock::new(Damped::default);

/// Limit for the first message. Allows for one lost packet on a long link.
const HELLO_WITHIN: Duration = Duration::from_secs(5);

/// Sender of a request, by its certificate, which must have the role that speaks here.
pub(super) fn caller<T>(request: &Request<T>, role: &str, has: fn(Roles) -> bool) -> Result<WorkerId, Status> {
    let caller = request.extensions().get::<Caller>();
    let caller =
        caller.ok_or_else(|| Status::unauthenticated("only nodes of the cluster may call this, on the peer port"))?;
    if has(caller.roles) {
        return Ok(caller.name.clone());
    }
    let (name, roles) = (&caller.name, caller.roles);
    if let Some(times) = ROLES_REFUSED.tell(Instant::now()) {
        tracing::warn!(event = "node_role_refused", node = %name, role, certified = %roles, times);
    }
    Err(Status::permission_denied(format!(
        "the certificate of {name} is for {roles}, not for {role}: `berth pki issue DIR {name} --roles …` makes another"
    )))
}

/// Reads the first message of a stream. DEADLINE_EXCEEDED if it is late, INVALID_ARGUMENT if there is none.
pub(super) async fn first<W>(incoming: &mut Streaming<W>) -> Result<W, Status> {
    let first = tokio::time::timeout(HELLO_WITHIN, incoming.message()).await;
    first.map_err(|_| Status::deadline_exceeded("the first message did not arrive in time"))??.ok_or_else(missing)
}

pub(super) fn missing() -> Status {
    Status::invalid_argument("the first message of a stream must be Hello")
}

/// Lets streams in while this node leads.
pub(super) struct Acceptor {
    pub(super) leadership: watch::Receiver<LeadershipView>,
    pub(super) peers: Option<Peers>,
}

/// The node behind a stream, and the controller and term that it was let in to.
pub(super) struct Admitted {
    pub(super) handle: Handle,
    /// The node that speaks, by its certificate.
    pub(super) node: WorkerId,
    pub(super) epoch: Epoch,
    pub(super) welcome: Welcome,
}

impl Acceptor {
    /// Checks who speaks and whether this node leads.
    pub(super) fn admit(&self, caller: &WorkerId, handshake: &Hello) -> Result<Admitted, Status> {
        let node =
            WorkerId::new(handshake.node.as_str()).ok().filter(|node| certifies(caller, node)).ok_or_else(|| {
                Status::permission_denied(format!(
                    "{caller} speaks as {:?}: a node speaks for itself, by a name that its certificate is good for",
                    handshake.node
                ))
            })?;
        let version = |version: u32| u16::try_from(version).unwrap_or(u16::MAX);
        let theirs = (version(handshake.oldest), version(handshake.newest));
        let protocol = common_protocol(PROTOCOL, theirs).ok_or_else(|| {
            Status::unimplemented(format!(
                "{node} speaks the protocols {} to {}, this node {} to {}: upgrade one version at a time",
                theirs.0, theirs.1, PROTOCOL.0, PROTOCOL.1
            ))
        })?;
        match &*self.leadership.borrow() {
            LeadershipView::Leading { handle, epoch } => Ok(Admitted {
                handle: handle.clone(),
                node,
                epoch: *epoch,
                welcome: Welcome { epoch: epoch.0, protocol: protocol.into() },
            }),
            LeadershipView::Following { leader } => Err(self.elsewhere(leader.as_ref())),
        }
    }

    /// Status for an admitted node that the controller refused.
    pub(super) fn not_attached(&self, error: &Error) -> Status {
        match error {
            Error::Stopped => self.not_leading(),
            error @ Error::NameTaken(_) => Status::already_exists(error.to_string()),
            error @ Error::Unlisted(_) => Status::permission_denied(error.to_string()),
            error => Status::unavailable(error.to_string()),
        }
    }

    /// Status for a node whose stream the controller ended.
    pub(super) fn not_leading(&self) -> Status {
        match &*self.leadership.borrow() {
            LeadershipView::Following { leader } => self.elsewhere(leader.as_ref()),
            LeadershipView::Leading { .. } => Status::aborted("the controller ended the stream: connect again"),
        }
    }

    fn elsewhere(&self, leader: Option<&(WorkerId, Epoch)>) -> Status {
        let mut metadata = MetadataMap::new();
        let Some((name, epoch)) = leader else {
            return Status::failed_precondition("this node does not lead and knows no leader");
        };
        let peer =
            self.peers.as_ref().and_then(|peers| peers.leader_peer(name)).map(|peer| peer.member().peer.to_string());
        let entries = [(LEADER, Some(name.to_string())), (EPOCH, Some(epoch.to_string())), (LEADER_PEER, peer)];
        for (key, value) in entries {
            if let Some(value) = value.and_then(|value| value.parse::<MetadataValue<Ascii>>().ok()) {
                metadata.insert(key, value);
            }
        }
        Status::with_metadata(
            tonic::Code::FailedPrecondition,
            format!("this node does not lead, {name} does"),
            metadata,
        )
    }
}

/// Waits until this node does not lead in this term.
pub(super) async fn until_over(leadership: &mut watch::Receiver<LeadershipView>, epoch: Epoch) {
    while leadership.borrow_and_update().leads() == Some(epoch) {
        leadership::changed(leadership).await;
    }
}
