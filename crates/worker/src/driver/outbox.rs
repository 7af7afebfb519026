//! Reports that wait for the controller, as one: a slow controller gets the latest word, not a backlog.

use std::collections::BTreeMap;

use berth_spec::{InventoryChange, Residency, RevisionId, Usage};

/// The report that waits for the controller; later ones are joined into it.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    waiting: Option<InventoryChange>,
}

impl Outbox {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_none()
    }

    pub(super) fn take(&mut self) -> Option<InventoryChange> {
        self.waiting.take()
    }

    /// Adds a report to the one that waits: later words replace earlier ones.
    pub(super) fn put(&mut self, change: InventoryChange) {
        let Some(before) = self.waiting.take().filter(|_| !change.whole) else {
            self.waiting = Some(change);
            return;
        };
        let mut replicas: BTreeMap<RevisionId, Option<Residency>> = before.replicas.into_iter().collect();
        replicas.extend(change.replicas);
        if before.whole {
            // What a whole report does not name is gone already.
            replicas.retain(|_, residency| residency.is_some());
        }
        let mut usage: BTreeMap<RevisionId, Usage> = before.usage.into_iter().collect();
        usage.extend(change.usage);
        let (replicas, usage) = (replicas.into_iter().collect(), usage.into_iter().collect());
        let load = change.load.or(before.load);
        let breakers = change.breakers.or(before.breakers);
        self.waiting = Some(InventoryChange { whole: before.whole, load, breakers, replicas, usage, ..change });
    }
}

#[cfg(test)]
mod tests {
    use berth_spec::{ByteSize, Generation, WorkerId, WorkerState};

    use super::*;

    fn report(seen: u64, whole: bool, replicas: &[(&str, Option<Residency>)]) -> InventoryChange {
        let id = |name: &str| format!("{name}@000000000000").parse().expect("a revision");
        let replicas = replicas.iter().map(|(name, residency)| (id(name), residency.clone())).collect();
        let worker = WorkerId::new("w").expect("a name");
        InventoryChange {
            worker,
            incarnation: 1,
            seen: Generation(seen),
            whole,
            state: WorkerState::Serving,
            load: None,
            breakers: None,
            credentials: berth_spec::Generation(0),
            overhead: ByteSize::ZERO,
            replicas,
            usage: Vec::new(),
        }
    }

    #[test]
    fn the_latest_word_is_sent() {
        let fetching = Some(Residency::Fetching { done: ByteSize(1), total: None });
        let mut outbox = Outbox::default();
        outbox.put(report(1, true, &[("a", Some(Residency::Queued)), ("b", Some(Residency::Queued))]));
        outbox.put(report(2, false, &[("a", fetching.clone()), ("b", None)]));
        assert_eq!(outbox.take(), Some(report(2, true, &[("a", fetching)])));
        assert!(outbox.is_empty());
        outbox.put(report(3, false, &[("a", None)]));
        outbox.put(report(4, false, &[("c", Some(Residency::Loading))]));
        assert_eq!(outbox.take(), Some(report(4, false, &[("a", None), ("c", Some(Residency::Loading))])));
        let used = |requests| {
            let usage = Usage { requests, last: None };
            InventoryChange {
                usage: vec![("c@000000000000".parse().expect("a revision"), usage)],
                ..report(4, false, &[])
            }
        };
        outbox.put(used(3));
        outbox.put(used(5));
        outbox.put(report(4, false, &[]));
        assert_eq!(outbox.take(), Some(used(5)), "the last count");
        outbox.put(report(5, false, &[("a", None)]));
        outbox.put(report(5, true, &[]));
        assert_eq!(outbox.take(), Some(report(5, true, &[])));
    }
}
