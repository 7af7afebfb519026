//! One peer: what is known of it, and the lines to it.

mod channel;
mod dial;
mod line;
mod pool;
pub(crate) mod window;

use std::{sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use berth_spec::{Class, Health, Member, WorkerId};
use http::{Request, Response};
use hyper::body::Incoming;
use tokio::sync::watch;

pub use self::channel::PeerChannel;
pub(crate) use self::dial::Dialer;
use self::pool::LinePool;
use crate::{BoxError, PeerBody, http2::Unsent, members::Members};

/// The pause before an unreachable peer is worth another attempt: long enough for a lost packet to be sent again,
/// short beside the seconds in which the members notice that a node is dead.
const RETRY_IN: Duration = Duration::from_millis(500);

/// Reason why a peer did not answer.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// The peer has received nothing of it: it is safe to send the same elsewhere.
    #[error("nothing was sent to {peer}: {source}")]
    NotSent {
        /// Name of the peer that was asked.
        peer: WorkerId,
        /// Error of dialling, or of the line before it took the request.
        source: BoxError,
    },
    /// The peer may have received it, and may have acted on it.
    #[error("the line to {peer} broke: {source}")]
    Broken {
        /// Name of the peer that was asked.
        peer: WorkerId,
        /// Error of the line, with the request on it.
        source: BoxError,
    },
}

impl SendError {
    /// Class of the error, which decides what to do next.
    #[must_use]
    pub const fn class(&self) -> Class {
        Class::Waiting { retry_in: RETRY_IN }
    }

    /// True if the peer has certainly received nothing.
    #[must_use]
    pub const fn is_not_sent(&self) -> bool {
        matches!(self, Self::NotSent { .. })
    }
}

/// A node other than this one, from one start of its process to the next.
pub struct Peer {
    name: WorkerId,
    member: ArcSwap<Member>,
    health: watch::Sender<Health>,
    pool: LinePool,
    members: Option<Members>,
}

impl std::fmt::Debug for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Peer").field("name", &self.name).field("health", &self.health()).finish_non_exhaustive()
    }
}

impl Peer {
    pub(crate) fn new(member: Arc<Member>, health: Health, dialer: Arc<Dialer>, members: Option<Members>) -> Self {
        let (name, pool) = (member.name.clone(), LinePool::new(Arc::clone(&member), dialer));
        Self { name, member: ArcSwap::new(member), health: watch::Sender::new(health), pool, members }
    }

    /// Name, which the peer's certificate allows.
    #[must_use]
    pub fn name(&self) -> &WorkerId {
        &self.name
    }

    /// The peer's description of itself, as membership has it now.
    #[must_use]
    pub fn member(&self) -> Arc<Member> {
        self.member.load_full()
    }

    /// Health of the peer as membership sees it.
    #[must_use]
    pub fn health(&self) -> Health {
        *self.health.borrow()
    }

    /// Resolves when membership reports Failed or Left, or a new start of the node, so that callers go elsewhere. At
    /// once if that has happened already.
    pub async fn lost(&self) {
        // The sender lives as long as `self`: there is no error.
        let _ = self.health.subscribe().wait_for(|health| !health.is_there()).await;
    }

    /// Sends one request over one of the lines, dialling where there is none. Returns when the head of the answer is
    /// here. A request that a line gave back unsent goes over another one, once.
    ///
    /// Only the path counts of the URI. Drop the future to cancel; deadlines are the caller's, except the one for
    /// dialling ([`crate::LinePolicy::dial`]).
    ///
    /// # Errors
    /// [`SendError::NotSent`] when it is certain that nothing arrived, otherwise [`SendError::Broken`].
    pub async fn send(&self, mut request: Request<PeerBody>) -> Result<Response<Incoming>, SendError> {
        let not_sent = |source| SendError::NotSent { peer: self.name.clone(), source };
        for last in [false, true] {
            let line = self.pool.pick().await.map_err(|error| not_sent(error.into()))?;
            match line.send(request).await {
                Ok(response) => return Ok(response),
                Err(Unsent::Returned { request: again, error }) => {
                    if last {
                        return Err(not_sent(error));
                    }
                    request = *again;
                }
                Err(Unsent::Refused(error)) => return Err(not_sent(error.into())),
                Err(Unsent::Unknown(error)) => {
                    return Err(SendError::Broken { peer: self.name.clone(), source: error.into() });
                }
            }
        }
        Err(not_sent("no line took it".into()))
    }

    /// Time to it and back, smoothed: by gossip where there is membership, else by the last connection made.
    #[must_use]
    pub fn rtt(&self) -> Option<Duration> {
        self.members.as_ref().and_then(|members| members.rtt(&self.name)).or_else(|| self.pool.rtt())
    }

    /// True if there is no connection and the last attempt to make one failed.
    #[must_use]
    pub fn failing(&self) -> bool {
        self.pool.failing()
    }

    pub(crate) fn is_same_start(&self, member: &Member) -> bool {
        let mine = self.member.load();
        mine.incarnation == member.incarnation && mine.peer == member.peer
    }

    pub(crate) fn update(&self, member: &Arc<Member>, health: Health) {
        self.member.store(Arc::clone(member));
        let before = self.health.send_replace(health);
        match (before.is_there(), health.is_there()) {
            (true, false) => self.pool.cut(),
            // What was learned about reaching it is of no use any more.
            (false, true) => self.pool.wake(),
            _ => {}
        }
    }

    /// Closes the connections, because the name now belongs to another process.
    pub(crate) fn forget(&self) {
        self.health.send_if_modified(|now| now.is_there().then(|| *now = Health::Failed).is_some());
        self.pool.cut();
    }
}
