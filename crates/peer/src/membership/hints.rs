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

/// How many replicas are remembered, to tell new from old. Halved: an old hint may be believed again in a cluster that
/// loads thousands of models a minute. Doubled: memory, some 200 bytes each.
const REMEMBERED: usize = 16_384;

/// A hint on the wire.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct WireHint {
    pub(super) worker: WorkerId,
    pub(super) start: u64,
    /// Grows with each hint of one start of a worker.
    pub(super) number: u64,
    pub(super) revision: RevisionId,
    pub(super) ready: bool,
}

/// What a hint is about: a newer one takes the place of an older in the queue.
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

/// What foca's handler and the brain share: foca owns its handler and does not give it back.
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

    /// What others said since the last time.
    pub(super) fn take(&self) -> Vec<Hint> {
        std::mem::take(&mut self.lock().received)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// Whether it is newer than what is known of its subject; then it is what is known.
    fn learn(&mut self, subject: &Subject, number: (u64, u64)) -> bool {
        if let Some(known) = self.newest.get_mut(subject) {
            let newer = number > *known;
            *known = number.max(*known);
            return newer;
        }
        if self.order.len() >= REMEMBERED
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
