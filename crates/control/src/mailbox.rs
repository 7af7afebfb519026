//! A queue of one towards a slow reader: what cannot be delivered now is joined with what comes later, so the reader
//! gets the latest state, and the writer neither waits nor piles up.
//!
//! ```text
//! Flowing ──channel full──▶ Holding(change) ──more──▶ Holding(both in one)
//!    ▲                            │
//!    └───────room (permit)────────┘
//! ```

use berth_spec::{AssignmentChange, RouteChange};
use tokio::sync::mpsc::{self, OwnedPermit, error::TrySendError};

/// A change of a numbered state that can be joined with the next one.
pub(crate) trait Join {
    /// Makes this change and the next one into one change with the effect of both.
    fn join(&mut self, later: Self);
}

/// One end of a connection, which carries changes `C` as messages `M`.
#[derive(Debug)]
pub(crate) struct Mailbox<C, M = C> {
    sender: mpsc::Sender<M>,
    held: Option<C>,
}

/// Next step after a [`Mailbox::post`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Posted {
    /// Nothing: it is on its way, joined with what waits already, or the reader has gone.
    Done,
    /// Wait for room, then call [`Mailbox::deliver`].
    AwaitRoom,
}

impl<C: Join, M: From<C>> Mailbox<C, M> {
    pub(crate) fn new(sender: mpsc::Sender<M>) -> Self {
        Self { sender, held: None }
    }

    pub(crate) fn sender(&self) -> mpsc::Sender<M> {
        self.sender.clone()
    }

    pub(crate) fn post(&mut self, change: C) -> Posted {
        if let Some(held) = &mut self.held {
            held.join(change);
            return Posted::Done;
        }
        match self.sender.try_reserve() {
            Ok(room) => room.send(change.into()),
            // A reader that has gone is noticed where its connection is watched.
            Err(TrySendError::Closed(())) => {}
            Err(TrySendError::Full(())) => {
                self.held = Some(change);
                return Posted::AwaitRoom;
            }
        }
        Posted::Done
    }

    /// Delivers the latest message, now that there is room.
    pub(crate) fn deliver(&mut self, permit: OwnedPermit<M>) {
        if let Some(change) = self.held.take() {
            permit.send(change.into());
        }
    }
}

impl Join for AssignmentChange {
    fn join(&mut self, later: Self) {
        if later.base.is_none() {
            *self = later;
            return;
        }
        (self.generation, self.limits) = (later.generation, later.limits);
        let named = |revision: &berth_spec::RevisionId| {
            later.unset.contains(revision) || later.set.iter().any(|placed| placed.revision.id == *revision)
        };
        self.set.retain(|placed| !named(&placed.revision.id));
        self.unset.retain(|revision| !named(revision));
        self.set.extend(later.set);
        if self.base.is_some() {
            self.unset.extend(later.unset);
        }
    }
}

impl Join for RouteChange {
    fn join(&mut self, later: Self) {
        if later.base.is_none() {
            *self = later;
            return;
        }
        self.seq = later.seq;
        self.readiness = later.readiness;
        let aliases = later.aliases.iter().map(|alias| &alias.name);
        let set = later.set.iter().map(|route| &route.deployment);
        let named: std::collections::BTreeSet<_> = set.chain(aliases).chain(&later.unset).cloned().collect();
        self.set.retain(|route| !named.contains(&route.deployment));
        self.unset.retain(|name| !named.contains(name));
        self.aliases.retain(|alias| !named.contains(&alias.name));
        self.set.extend(later.set);
        self.aliases.extend(later.aliases);
        if self.base.is_some() {
            self.unset.extend(later.unset);
        }
    }
}

#[cfg(test)]
mod tests {
    use berth_spec::{DeploymentName, Generation, WorkerLimits};

    use super::*;

    fn change(seq: u64, unset: &[&str]) -> RouteChange {
        let unset = unset.iter().filter_map(|name| DeploymentName::new(name).ok()).collect();
        RouteChange { seq, base: Some(seq - 1), unset, ..RouteChange::default() }
    }

    #[tokio::test]
    async fn a_slow_reader_gets_one_change_for_many() {
        let (sender, mut reader) = mpsc::channel(1);
        let mut mailbox: Mailbox<RouteChange> = Mailbox::new(sender);
        assert_eq!(mailbox.post(change(1, &["a"])), Posted::Done);
        assert_eq!(mailbox.post(change(2, &["b"])), Posted::AwaitRoom);
        assert_eq!(mailbox.post(change(3, &["c", "b"])), Posted::Done);
        assert_eq!(reader.recv().await, Some(change(1, &["a"])));
        let permit = mailbox.sender().reserve_owned().await.expect("the reader is there");
        mailbox.deliver(permit);
        assert_eq!(reader.recv().await, Some(RouteChange { base: Some(1), ..change(3, &["c", "b"]) }));
        assert_eq!(mailbox.post(change(4, &[])), Posted::Done);
    }

    #[test]
    fn a_whole_change_stays_whole_and_forgets_what_goes() {
        let mut whole = RouteChange { base: None, ..change(1, &[]) };
        whole.join(change(2, &["a"]));
        assert_eq!(whole, RouteChange { base: None, ..change(2, &[]) });
    }

    #[test]
    fn the_latest_limits_count() {
        let change = |generation, models| AssignmentChange {
            generation: Generation(generation),
            base: Some(Generation(generation - 1)),
            limits: WorkerLimits { memory: None, models },
            set: Vec::new(),
            unset: Vec::new(),
        };
        let mut held = change(2, Some(5));
        held.join(change(3, None));
        assert_eq!(held, AssignmentChange { base: Some(Generation(1)), ..change(3, None) });
    }
}
