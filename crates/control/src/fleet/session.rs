//! Both directions of one stream, in one loop.
//!
//! ```text
//! incoming ──▶ decode ──▶ pending (one) ──room──▶ events ──▶ controller
//! outgoing ──▶ split ──▶ parts (made one by one) ──▶ the other node
//! ```
//! While a change is being sent its parts come one after the other, and what the node says waits in the connection.

use std::sync::Arc;

use berth_spec::{Epoch, WorkerId};
use futures::{Stream, stream};
use tokio::sync::{mpsc, watch};
use tonic::{Status, Streaming};

use super::handshake::{Acceptor, until_over};
use crate::leadership::LeadershipView;

/// State of one stream of a worker or gateway: what it said, and what it is still to be told.
pub(super) struct Session<W, E, O, H, C, P> {
    pub(super) incoming: Streaming<W>,
    /// Decoder of messages; returns nothing before the last part.
    pub(super) decode: H,
    pub(super) events: mpsc::Sender<E>,
    /// Event that the controller has no room for yet. Reading pauses until it is delivered.
    pub(super) pending: Option<E>,
    pub(super) outgoing: mpsc::Receiver<O>,
    /// Splits a message into its parts; some have none.
    pub(super) split: C,
    pub(super) parts: Option<P>,
    pub(super) term: TermGuard,
}

/// The term that a stream was let in to. The stream ends with it.
pub(super) struct TermGuard {
    acceptor: Arc<Acceptor>,
    leadership: watch::Receiver<LeadershipView>,
    epoch: Epoch,
    node: WorkerId,
    over: bool,
}

impl TermGuard {
    pub(super) fn new(acceptor: Arc<Acceptor>, epoch: Epoch, node: WorkerId) -> Self {
        let leadership = acceptor.leadership.clone();
        Self { acceptor, leadership, epoch, node, over: false }
    }

    fn end(&mut self, why: &'static str) {
        self.over = true;
        tracing::info!(event = "stream_ended", node = %self.node, epoch = %self.epoch, why);
    }
}

impl<W, E, O, H, C, P> Session<W, E, O, H, C, P>
where
    W: Send + 'static,
    E: Send + 'static,
    O: Send + 'static,
    H: FnMut(W) -> Result<Option<E>, Status> + Send + 'static,
    C: Fn(O) -> Option<P> + Send + 'static,
    P: Iterator + Send + 'static,
    P::Item: Send,
{
    /// Streams the parts of messages to the node until the stream ends.
    pub(super) fn run(self) -> impl Stream<Item = Result<P::Item, Status>> + Send + 'static {
        stream::unfold(self, |mut session| async move { session.next().await.map(|part| (part, session)) })
    }

    async fn next(&mut self) -> Option<Result<P::Item, Status>> {
        loop {
            if self.term.over {
                return None;
            }
            if let Some(part) = self.parts.as_mut().and_then(Iterator::next) {
                return Some(Ok(part));
            }
            self.parts = None;
            let idle = self.pending.is_none();
            let over = tokio::select! {
                () = until_over(&mut self.term.leadership, self.term.epoch) => true,
                message = self.outgoing.recv() => match message {
                    Some(message) => {
                        self.parts = (self.split)(message);
                        false
                    }
                    None => true,
                },
                room = self.events.reserve(), if !idle => match (room, self.pending.take()) {
                    (Ok(room), Some(event)) => {
                        room.send(event);
                        false
                    }
                    _ => true,
                },
                message = self.incoming.message(), if idle => {
                    match message.and_then(|message| message.map(&mut self.decode).transpose()) {
                        Ok(Some(event)) => self.pending = event,
                        Ok(None) => self.term.end("the node has nothing more to say"),
                        Err(status) => {
                            tracing::debug!(event = "stream_broke", %status, node = %self.term.node);
                            self.term.end("it broke");
                            return Some(Err(status));
                        }
                    }
                    false
                }
            };
            if over {
                return self.not_leading();
            }
        }
    }

    fn not_leading(&mut self) -> Option<Result<P::Item, Status>> {
        self.term.end("this node does not lead any more");
        Some(Err(self.term.acceptor.not_leading()))
    }
}
