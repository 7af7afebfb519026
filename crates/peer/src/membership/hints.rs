//! Hints as they travel: news of a few bytes on foca's packets, best effort, the newest of each replica wins.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, PoisonError},
};

use berth_spec::{RevisionId, WorkerId};
use foca::{BroadcastHandler, Invalidates};
use serde::{Deserialize, Serialize};

use super::node::Node;
use crate::members::Hint;

/// Replicas remembered to recognise outdated hints: 200 bytes each, enough for a few minutes in a cluster that loads
/// thousands of models a minute.
const MAX_HINTS: usize = 16_384;

/// A hint in the form of the wire, with the number that orders hints of one worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct WireHint {
    pub(super) worker: WorkerId,
    pub(super) start: u64,
    /// Grows with each hint of one start of a worker.
    pub(super) number: u64,
    pub(super) revision: RevisionId,
    pub(super) ready: bool,
}

/// Replica that a hint is about. A newer hint replaces an older one in the queue.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Subject {
    worker: WorkerId,
    revision: RevisionId,
}

impl Invalidates for Subject {
    fn invalidates(&self, other: &Self) -> bool {
        self == other
    }
}

#[derive(Debug, thiserror::Error)]
#[error("not a hint")]
pub(super) struct NoHint;

/// State shared by foca's handler and the brain, because foca owns its handler.
#[derive(Clone)]
pub(super) struct Hints {
    me: WorkerId,
    shared: Arc<Mutex<Shared>>,
}

#[derive(Default)]
struct Shared {
    newest: HashMap<Subject, (u64, u64)>,
    order: VecDeque<Subject>,
    received: Vec<Hint>,
}

impl Hints {
    pub(super) fn new(me: WorkerId) -> Self {
        Self { me, shared: Arc::default() }
    }

    /// Takes the hints received since the last call.
    pub(super) fn take(&self) -> Vec<Hint> {
        std::mem::take(&mut self.lock().received)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// Records a hint as the newest of its subject. False if a newer one is known.
    fn learn(&mut self, subject: &Subject, number: (u64, u64)) -> bool {
        if let Some(known) = self.newest.get_mut(subject) {
            let newer = number > *known;
            *known = number.max(*known);
            return newer;
        }
        if self.order.len() >= MAX_HINTS
            && let Some(oldest) = self.order.pop_front()
        {
            self.newest.remove(&oldest);
        }
        self.order.push_back(subject.clone());
        self.newest.insert(subject.clone(), number);
        true
    }
}

impl BroadcastHandler<Node> for Hints {
    type Key = Subject;
    type Error = NoHint;

    fn receive_item(&mut self, data: &[u8], _: Option<&Node>) -> Result<Option<Subject>, NoHint> {
        let hint: WireHint = postcard::from_bytes(data).map_err(|_| NoHint)?;
        let subject = Subject { worker: hint.worker.clone(), revision: hint.revision.clone() };
        let mut shared = self.lock();
        if !shared.learn(&subject, (hint.start, hint.number)) {
            return Ok(None);
        }
        if hint.worker != self.me {
            shared.received.push(Hint { worker: hint.worker, revision: hint.revision, ready: hint.ready });
        }
        Ok(Some(subject))
    }
}
