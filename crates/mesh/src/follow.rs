//! Changes the routes of a gateway, one after the other: by the controller's word, the hints of workers, replicas that
//! come back, and members that come and go.

use std::sync::Arc;

use berth_peer::{Hint, MemberTable, Members};
use berth_spec::{GatewayEvent, RouteChange};
use tokio::{
    sync::{broadcast, mpsc, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use crate::{
    local::ReplicaChange,
    route_cache::RouteCache,
    routes::{Applier, MissingChanges},
    stack::Stack,
};

/// Applies route changes, hints and members as they arrive.
pub(crate) struct RouteFollower {
    pub(crate) applier: Applier,
    pub(crate) cache: RouteCache,
    pub(crate) stack: Arc<Stack>,
    /// Hear no more.
    pub(crate) told: CancellationToken,
}

/// Messages of other nodes: hints, and changes of membership.
pub(crate) struct PeerMessages(Option<(broadcast::Receiver<Hint>, watch::Receiver<Arc<MemberTable>>)>);

enum PeerMessage {
    Hint(Hint),
    /// Hints were missed: routes say it all, a little later.
    Missed(u64),
    Members,
}

impl PeerMessages {
    pub(crate) fn of(members: Option<Members>) -> Self {
        Self(members.map(|members| (members.hints(), members.changed())))
    }

    async fn next(&mut self) -> PeerMessage {
        let Some((hints, members)) = &mut self.0 else { return std::future::pending().await };
        let message = tokio::select! {
            hint = hints.recv() => match hint {
                Ok(hint) => PeerMessage::Hint(hint),
                Err(broadcast::error::RecvError::Lagged(missed)) => PeerMessage::Missed(missed),
                Err(broadcast::error::RecvError::Closed) => PeerMessage::Missed(0),
            },
            changed = members.changed() => match changed {
                Ok(()) => PeerMessage::Members,
                Err(_) => PeerMessage::Missed(0),
            },
        };
        if let PeerMessage::Missed(0) = message {
            // Membership has ended: nothing more will be heard.
            self.0 = None;
        }
        message
    }
}

impl RouteFollower {
    /// Follows until it is told to end. Every change is acknowledged; a change that is missing is asked for once.
    pub(crate) async fn run(
        mut self,
        mut routes: mpsc::Receiver<RouteChange>,
        events: mpsc::Sender<GatewayEvent>,
        mut messages: PeerMessages,
    ) {
        let mut open = true;
        // What the controller has not been told yet; the latest word counts.
        let mut word = None;
        // Changes are missing, and the whole has been asked for.
        let mut asked = false;
        loop {
            tokio::select! {
                change = routes.recv(), if open => match change {
                    Some(change) => {
                        let seq = change.seq;
                        match self.applier.apply(change) {
                            Ok(()) => {
                                (asked, word) = (false, Some(GatewayEvent::Applied(seq)));
                                self.cache.changed(Instant::now());
                            }
                            Err(MissingChanges { have, base }) if !asked => {
                                tracing::warn!(have, base, "routes: changes are missing; asking for everything");
                                (asked, word) = (true, Some(GatewayEvent::Resync));
                            }
                            // The whole is on its way.
                            Err(_) => {}
                        }
                    }
                    // Without a controller the last routes stay in force.
                    None => open = false,
                },
                room = events.reserve(), if word.is_some() => {
                    if let (Ok(room), Some(word)) = (room, word.take()) {
                        room.send(word);
                    }
                }
                () = self.stack.parking.replicas.inserted() => self.applier.refresh(&self.stack.demand.listed()),
                said = messages.next() => match said {
                    PeerMessage::Hint(hint) => {
                        let change = if hint.ready { ReplicaChange::Ready } else { ReplicaChange::Gone };
                        self.applier.hint(&hint.worker, &hint.revision, change);
                    }
                    PeerMessage::Missed(missed) => tracing::debug!(missed, "hints were missed"),
                    // Who waits may have somewhere to go now. Where lines follow later, they look again by themselves.
                    PeerMessage::Members => {
                        let waiting = self.stack.demand.listed();
                        waiting.iter().filter_map(|entry| entry.used()).for_each(|hot| hot.queue.wake());
                    }
                },
                () = self.cache.due() => self.cache.write(&self.stack.routes),
                () = self.told.cancelled() => break,
            }
        }
        self.cache.close(&self.stack.routes).await;
    }
}
