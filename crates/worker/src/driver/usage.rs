//! Use of the replicas: counted by whoever leases them, read now and then, reported more rarely.

use std::collections::BTreeMap;

use berth_spec::{RevisionId, Time, Usage};

use super::effects::EffectRunner;

/// The looks between two reports: `berth describe` is ten seconds behind at most, and only people read these figures.
const LOOKS: u32 = 5;

impl EffectRunner {
    /// The counts of each replica that can be called.
    pub(super) fn counts(&self) -> impl Iterator<Item = Count<'_>> {
        let callable = self.slots.iter().filter_map(|(revision, slot)| Some((revision, slot.callable.as_ref()?)));
        callable.map(|(revision, callable)| Count {
            revision,
            requests: callable.requests(),
            in_flight: callable.in_flight(),
        })
    }
}

/// The counters of one replica at one look.
pub(super) struct Count<'a> {
    pub(super) revision: &'a RevisionId,
    /// Since it became callable.
    pub(super) requests: u64,
    pub(super) in_flight: u32,
}

/// Looks and remembers what was told.
#[derive(Debug, Default)]
pub(super) struct UsageWatch {
    seen: BTreeMap<RevisionId, Usage>,
    told: BTreeMap<RevisionId, Usage>,
    looks: u32,
}

impl UsageWatch {
    /// Looks; gives what is worth telling: what changed since it was told, and what was never told.
    pub(super) fn look<'a>(
        &mut self,
        counts: impl Iterator<Item = Count<'a>>,
        now: Time,
    ) -> Option<Vec<(RevisionId, Usage)>> {
        let mut seen = BTreeMap::new();
        for Count { revision, requests, in_flight } in counts {
            let before = self.seen.get(revision).copied().unwrap_or_default();
            // Fewer than before: it was loaded anew.
            let moved = requests != before.requests && requests > 0;
            let last = if moved || in_flight > 0 { Some(now) } else { before.last.filter(|_| requests > 0) };
            seen.insert(revision.clone(), Usage { requests, last });
        }
        self.seen = seen;
        self.looks += 1;
        if self.looks < LOOKS {
            return None;
        }
        self.looks = 0;
        let news = |(id, usage): &(&RevisionId, &Usage)| self.told.get(*id) != Some(*usage);
        let news: Vec<_> = self.seen.iter().filter(news).map(|(id, usage)| (id.clone(), *usage)).collect();
        self.told.clone_from(&self.seen);
        (!news.is_empty()).then_some(news)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changed_is_told_every_fifth_look() {
        let id = |name: &str| -> RevisionId { format!("{name}@000000000000").parse().expect("a revision") };
        let (a, b) = (id("a"), id("b"));
        let mut watch = UsageWatch::default();
        let mut looks = |at: u64, counts: &[(&RevisionId, u64, u32)]| {
            let mut told = None;
            for look in 0..5 {
                let counts = counts.iter().map(|(revision, requests, in_flight)| Count {
                    revision,
                    requests: *requests,
                    in_flight: *in_flight,
                });
                let word = watch.look(counts, Time(at + look));
                assert!(look == 4 || word.is_none(), "not request by request");
                told = word;
            }
            told
        };
        let used = |requests, last: Option<u64>| Usage { requests, last: last.map(Time) };
        let first = looks(10, &[(&a, 0, 0), (&b, 7, 0)]);
        assert_eq!(first, Some(vec![(a.clone(), used(0, None)), (b.clone(), used(7, Some(10)))]));
        assert_eq!(looks(20, &[(&a, 0, 0), (&b, 7, 0)]), None);
        assert_eq!(looks(30, &[(&a, 1, 1), (&b, 7, 0)]), Some(vec![(a.clone(), used(1, Some(34)))]));
        assert_eq!(looks(40, &[(&a, 1, 0)]), None, "what is gone is not spoken of");
        let anew = looks(50, &[(&a, 1, 0), (&b, 0, 0)]);
        assert_eq!(anew, Some(vec![(b, used(0, None))]), "it was loaded anew");
    }
}
