//! Reports that wait for the controller, as one: a slow controller gets the latest word, not a backlog.
//!
//! ```text
//! Empty ──something that the controller decides by──▶ Due ──────────────▶ sent
//!   └──steps of loads alone──▶ Waiting{due} ──the same, or it is time──────▲
//! ```
//! The controller plans whenever it hears something. The steps of a short load come together with its end, so that they cost one
//! plan and not four, on cores that the load needs.

use std::{collections::BTreeMap, time::Duration};

use berth_spec::{InventoryChange, Residency, RevisionId, Usage};
use tokio::time::Instant;

/// The wait of a report of nothing but steps of loads: a small model is loaded within this, and people who watch a larger one
/// see no delay.
const STEPS_WAIT: Duration = Duration::from_millis(10);

/// The report that waits for the controller; later ones are joined into it.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    waiting: Option<InventoryChange>,
    /// The time from which it may be sent; `None`: now.
    due: Option<Instant>,
}

impl Outbox {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_none()
    }

    /// True if a report is to be sent now.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        !self.is_empty() && self.due.is_none_or(|due| due <= now)
    }

    /// The time at which a report that waits is due; `None`: nothing waits for a time.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due.filter(|_| !self.is_empty())
    }

    pub(super) fn take(&mut self) -> Option<InventoryChange> {
        self.waiting.take()
    }

    /// Adds a report to the one that waits: later words replace earlier ones.
    pub(super) fn put(&mut self, change: InventoryChange, now: Instant) {
        let wait = says_steps_alone(&change).then(|| now + STEPS_WAIT);
        self.due = match self.waiting {
            Some(_) => self.due.zip(wait).map(|(one, other)| one.min(other)),
            None => wait,
        };
        self.join(change);
    }

    fn join(&mut self, change: InventoryChange) {
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

/// True if a report says nothing but how far replicas are on the way that the controller has sent them.
fn says_steps_alone(change: &InventoryChange) -> bool {
    let is_step = |residency: &Option<Residency>| match residency {
        Some(
            Residency::Queued
            | Residency::Preparing(_)
            | Residency::Fetching { .. }
            | Residency::Loading
            | Residency::Validating
            | Residency::Draining { .. },
        ) => true,
        Some(Residency::Ready(_) | Residency::Failed(_)) | None => false,
    };
    let news = change.whole || change.load.is_some() || change.breakers.is_some() || !change.usage.is_empty();
    !news && !change.replicas.is_empty() && change.replicas.iter().all(|(_, residency)| is_step(residency))
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

    fn put(outbox: &mut Outbox, change: InventoryChange) {
        outbox.put(change, Instant::now());
    }

    #[test]
    fn the_latest_word_is_sent() {
        let fetching = Some(Residency::Fetching { done: ByteSize(1), total: None });
        let mut outbox = Outbox::default();
        put(&mut outbox, report(1, true, &[("a", Some(Residency::Queued)), ("b", Some(Residency::Queued))]));
        put(&mut outbox, report(2, false, &[("a", fetching.clone()), ("b", None)]));
        assert_eq!(outbox.take(), Some(report(2, true, &[("a", fetching)])));
        assert!(outbox.is_empty());
        put(&mut outbox, report(3, false, &[("a", None)]));
        put(&mut outbox, report(4, false, &[("c", Some(Residency::Loading))]));
        assert_eq!(outbox.take(), Some(report(4, false, &[("a", None), ("c", Some(Residency::Loading))])));
        let used = |requests| {
            let usage = Usage { requests, last: None };
            InventoryChange {
                usage: vec![("c@000000000000".parse().expect("a revision"), usage)],
                ..report(4, false, &[])
            }
        };
        put(&mut outbox, used(3));
        put(&mut outbox, used(5));
        put(&mut outbox, report(4, false, &[]));
        assert_eq!(outbox.take(), Some(used(5)), "the last count");
        put(&mut outbox, report(5, false, &[("a", None)]));
        put(&mut outbox, report(5, true, &[]));
        assert_eq!(outbox.take(), Some(report(5, true, &[])));
    }

    #[tokio::test(start_paused = true)]
    async fn steps_wait_for_the_end_of_a_short_load() {
        let (mut outbox, now) = (Outbox::default(), Instant::now());
        let step = |residency| report(1, false, &[("a", Some(residency))]);
        outbox.put(step(Residency::Loading), now);
        outbox.put(step(Residency::Validating), now + STEPS_WAIT / 2);
        assert_eq!((outbox.is_due(now), outbox.due()), (false, Some(now + STEPS_WAIT)), "the first one counts");
        assert!(outbox.is_due(now + STEPS_WAIT));
        outbox.put(report(1, false, &[("b", None)]), now);
        assert!(outbox.is_due(now), "room was made");
        outbox.take();
        assert!(!outbox.is_due(now) && outbox.due().is_none());
        outbox.put(report(2, false, &[]), now);
        assert!(outbox.is_due(now), "an assignment was taken in");
        outbox.put(step(Residency::Queued), now);
        assert!(outbox.is_due(now), "it takes others along");
    }
}
