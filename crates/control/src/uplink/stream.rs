//! One connection to a controller, here or on another node.

use std::{net::SocketAddr, sync::Arc};

use berth_peer::{PROTOCOL, Peer, PeerChannel};
use berth_spec::{Epoch, WorkerId};
use berth_wire::fleet::{EPOCH, LEADER, LEADER_PEER, MESSAGE, PROTOCOL as HEADER, v1};
use futures::{Stream, StreamExt, future::BoxFuture, stream, stream::BoxStream};
use tokio::sync::mpsc;
use tonic::{
    Status, Streaming,
    metadata::{MetadataMap, MetadataValue},
};

use super::ConnectContext;
use crate::{Handle, handle::Error, leadership::LeadershipView};

/// Messages on their way into a connection. One would do; a few keep a quick writer from waiting for a turn of the loop.
const OUTGOING_BUFFER: usize = 4;

/// An open stream to the controller of a term: messages to it, messages from it.
pub(super) struct ControllerStream<W, H> {
    /// The term of the controller at the other end.
    pub(super) epoch: Epoch,
    /// True if the controller is on another node: messages may still be in transit after they were sent.
    pub(super) far: bool,
    /// Sends messages to the controller.
    pub(super) outgoing: mpsc::Sender<W>,
    /// From it; the last item says why it ended.
    pub(super) incoming: BoxStream<'static, Result<H, Broken>>,
}

/// A connection that is being made.
pub(super) type Dialling<W, H> = BoxFuture<'static, Result<ControllerStream<W, H>, Broken>>;

/// Reason why there is no stream.
#[derive(Debug, thiserror::Error)]
pub(super) enum Broken {
    /// The node does not lead.
    #[error("the node does not lead")]
    Elsewhere {
        /// Current leader, if the node knows it.
        leader: Option<(WorkerId, Epoch)>,
        /// Address of the leader, if the node names it.
        at: Option<SocketAddr>,
    },
    /// The node will not have this one, and says what is to be done.
    #[error("{0}")]
    Refused(String),
    /// Any other failure.
    #[error("{0}")]
    Failed(String),
}

impl From<Status> for Broken {
    fn from(status: Status) -> Self {
        if status.code() == tonic::Code::FailedPrecondition {
            let (leader, at) = leader_in(status.metadata());
            return Self::Elsewhere { leader, at };
        }
        if matches!(status.code(), tonic::Code::AlreadyExists | tonic::Code::PermissionDenied) {
            return Self::Refused(status.message().to_owned());
        }
        if status.code() == tonic::Code::Unknown {
            // Nobody has answered with a code: what is said is all there is.
            return Self::Failed(status.message().to_owned());
        }
        Self::Failed(format!("{}: {}", status.code(), status.message()))
    }
}

impl From<Error> for Broken {
    fn from(error: Error) -> Self {
        match error {
            error @ (Error::NameTaken(_) | Error::Unlisted(_)) => Self::Refused(error.to_string()),
            error => Self::Failed(error.to_string()),
        }
    }
}

fn leader_in(metadata: &MetadataMap) -> (Option<(WorkerId, Epoch)>, Option<SocketAddr>) {
    let text = |key: &str| metadata.get(key).and_then(|value| value.to_str().ok());
    let leader = || Some((WorkerId::new(text(LEADER)?).ok()?, Epoch(text(EPOCH)?.parse().ok()?)));
    (leader(), text(LEADER_PEER).and_then(|at| at.parse().ok()))
}

impl ConnectContext {
    /// The controller of this process and its term. [`Broken::Elsewhere`] while this node does not lead.
    pub(super) fn here(&self) -> Result<(Handle, Epoch), Broken> {
        match &*self.leadership.borrow() {
            LeadershipView::Leading { handle, epoch } => Ok((handle.clone(), *epoch)),
            LeadershipView::Following { leader } => Err(Broken::Elsewhere { leader: leader.clone(), at: None }),
        }
    }

    /// The node of this name, which may lead. Its claim is held against its certificate when a line is made.
    pub(super) fn peer(&self, name: &WorkerId) -> Result<Arc<Peer>, Broken> {
        let peer = self.peers.leader_peer(name);
        let peer = peer.ok_or_else(|| Broken::Failed(format!("the members do not know {name}")))?;
        // Another node may have named it.
        if !peer.member().roles.controller {
            return Err(Broken::Failed(format!("{name} is no controller")));
        }
        Ok(peer)
    }

    /// Nodes that may lead, those first that answer.
    pub(super) fn controllers(&self) -> Vec<WorkerId> {
        let mut peers = self.peers.all();
        peers.retain(|peer| peer.member().roles.controller && peer.health().is_there());
        peers.sort_by_key(|peer| (peer.health(), peer.failing()));
        peers.iter().map(|peer| peer.name().clone()).collect()
    }

    /// A stream's request, which says in its head which protocol it is in.
    pub(super) fn request<S>(&self, said: S) -> tonic::Request<S> {
        let mut request = tonic::Request::new(said);
        request.metadata_mut().insert(HEADER, MetadataValue::from(u64::from(PROTOCOL.1)));
        request
    }

    /// The first message on a stream: this node, its start, the protocols that it speaks. The caller adds the role's part.
    pub(super) fn hello(&self) -> v1::Hello {
        v1::Hello {
            node: self.me.to_string(),
            incarnation: self.incarnation,
            oldest: PROTOCOL.0.into(),
            newest: PROTOCOL.1.into(),
            worker: None,
            region: None,
        }
    }
}

/// A client for one stream.
pub(super) fn client(peer: &Arc<Peer>) -> v1::fleet_client::FleetClient<PeerChannel> {
    v1::fleet_client::FleetClient::new(PeerChannel(Arc::clone(peer)))
        .max_decoding_message_size(MESSAGE)
        .max_encoding_message_size(MESSAGE)
}

/// Outgoing side of a stream: the greeting, then each message in its parts.
pub(super) fn outgoing<W, M, I>(
    hello: M,
    split: impl Fn(W) -> I + Send + 'static,
) -> (mpsc::Sender<W>, impl Stream<Item = M> + Send + 'static)
where
    W: Send + 'static,
    M: Send + 'static,
    I: Iterator<Item = M> + Send + 'static,
{
    let (sender, messages) = mpsc::channel::<W>(OUTGOING_BUFFER);
    let rest = stream::unfold((messages, split, None::<I>), |(mut messages, split, mut parts)| async move {
        loop {
            if let Some(part) = parts.as_mut().and_then(Iterator::next) {
                return Some((part, (messages, split, parts)));
            }
            let message = messages.recv().await?;
            parts = Some(split(message));
        }
    });
    (sender, stream::iter([hello]).chain(rest))
}

/// The answer to the greeting.
pub(super) async fn welcome<M>(
    messages: &mut Streaming<M>,
    is: impl Fn(M) -> Option<v1::Welcome>,
) -> Result<Epoch, Broken> {
    let first = messages.message().await?;
    let welcome = first.and_then(is).ok_or_else(|| Broken::Failed("the stream began without a welcome".to_owned()))?;
    Ok(Epoch(welcome.epoch))
}

/// Incoming side of a stream, until the stream or its peer is lost.
pub(super) fn incoming<M, H>(
    peer: Arc<Peer>,
    messages: Streaming<M>,
    decode: impl FnMut(M) -> Result<Option<H>, Broken> + Send + 'static,
) -> BoxStream<'static, Result<H, Broken>>
where
    M: Send + 'static,
    H: Send + 'static,
{
    let incoming = Incoming { messages: Some(messages), peer, decode };
    let next = |mut incoming: Incoming<M, _>| async move { incoming.next().await.map(|message| (message, incoming)) };
    stream::unfold(incoming, next).boxed()
}

struct Incoming<M, F> {
    /// `None` once it has ended.
    messages: Option<Streaming<M>>,
    peer: Arc<Peer>,
    decode: F,
}

impl<M, F> Incoming<M, F> {
    async fn next<H>(&mut self) -> Option<Result<H, Broken>>
    where
        F: FnMut(M) -> Result<Option<H>, Broken>,
    {
        let messages = self.messages.as_mut()?;
        let broken = loop {
            let decoded = tokio::select! {
                message = messages.message() => match message {
                    Ok(Some(message)) => (self.decode)(message),
                    Ok(None) => Err(Broken::Failed(format!("{} ended the stream", self.peer.name()))),
                    Err(status) => Err(status.into()),
                },
                () = self.peer.lost() => Err(Broken::Failed(format!("the members have lost {}", self.peer.name()))),
            };
            match decoded {
                Ok(Some(message)) => return Some(Ok(message)),
                Ok(None) => {}
                Err(broken) => break broken,
            }
        };
        self.messages = None;
        Some(Err(broken))
    }
}
