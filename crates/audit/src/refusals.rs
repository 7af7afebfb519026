//! Damps refused requests: whoever may do nothing must not be able to fill the disk.
//!
//! The first refusal of its kind is recorded at once. Others of the kind within [`WINDOW`] are counted, and recorded as one when
//! it is over. Of a kind are those with one principal, action and status. Senders without a valid token are one principal, whatever
//! their addresses.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use berth_wire::api::AuditRecord;

/// Time in which those of a kind are counted: one line a minute stands for a flood, and is written while it lasts.
pub(crate) const WINDOW: Duration = Duration::from_secs(60);

/// Kinds at a time. Beyond it all are of one kind: some thousand lines a minute would hide the rest.
const MAX_KINDS: usize = 256;

/// Principal of what is counted beyond [`MAX_KINDS`].
const OTHERS: &str = "others";

/// Refusals of the current window, one record for each kind with a count.
#[derive(Default)]
pub(crate) struct Refusals {
    windows: HashMap<Kind, Window>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Kind {
    principal: String,
    action: String,
    status: u16,
}

struct Window {
    ends: Instant,
    /// Not recorded yet.
    counted: u64,
    /// The latest of them.
    last: Option<AuditRecord>,
}

impl Refusals {
    /// Takes a refusal; gives the record to write now, if there is one.
    pub(crate) fn take(&mut self, record: AuditRecord, now: Instant) -> Option<AuditRecord> {
        let record = self.of_others(record);
        let window = match self.windows.get_mut(&Kind::of(&record)) {
            Some(window) if now < window.ends => window,
            Some(window) => {
                // Nobody has come for what it counted yet.
                let told = Window { ends: now + WINDOW, counted: 0, last: None };
                let before = std::mem::replace(window, told);
                let Some(last) = before.last else { return Some(record) };
                (window.counted, window.last) = (1, Some(record));
                return Some(AuditRecord { count: before.counted, ..last });
            }
            None => {
                let window = Window { ends: now + WINDOW, counted: 0, last: None };
                self.windows.insert(Kind::of(&record), window);
                return Some(record);
            }
        };
        window.counted += record.count;
        window.last = Some(record);
        None
    }

    /// Records of what was counted in windows that are over.
    pub(crate) fn due(&mut self, now: Instant) -> Vec<AuditRecord> {
        self.end(|window| window.ends <= now)
    }

    /// All that was counted: nobody asks any more.
    pub(crate) fn all(&mut self) -> Vec<AuditRecord> {
        self.end(|_| true)
    }

    /// True while there is something that [`Refusals::due`] may give later.
    pub(crate) fn is_counting(&self) -> bool {
        !self.windows.is_empty()
    }

    fn end(&mut self, is_over: impl Fn(&Window) -> bool) -> Vec<AuditRecord> {
        let over = self.windows.extract_if(|_, window| is_over(window));
        over.filter_map(|(_, window)| Some(AuditRecord { count: window.counted, ..window.last? })).collect()
    }

    fn of_others(&self, record: AuditRecord) -> AuditRecord {
        if self.windows.len() < MAX_KINDS || self.windows.contains_key(&Kind::of(&record)) {
            return record;
        }
        AuditRecord { principal: OTHERS.to_owned(), ..record }
    }
}

impl Kind {
    fn of(record: &AuditRecord) -> Self {
        Self { principal: record.principal.clone(), action: record.action.clone(), status: record.outcome.status }
    }
}

#[cfg(test)]
mod tests {
    use berth_spec::Time;
    use berth_wire::api::{AuditOutcome, AuditPort, Timestamp};

    use super::*;

    fn refused(principal: &str, action: &str) -> AuditRecord {
        AuditRecord {
            at: Timestamp(Time(0)),
            node: "a".to_owned(),
            port: AuditPort::Api,
            request_id: None,
            principal: principal.to_owned(),
            address: None,
            action: action.to_owned(),
            operation: "GET /v1/nodes".to_owned(),
            resources: Vec::new(),
            more_resources: 0,
            outcome: AuditOutcome { status: 403, reason: "Forbidden".to_owned() },
            count: 1,
        }
    }

    #[test]
    fn the_first_is_told_and_the_rest_is_counted() {
        let (mut refusals, start) = (Refusals::default(), Instant::now());
        assert_eq!(refusals.take(refused("x", "infer"), start).map(|record| record.count), Some(1));
        for _ in 0..1_000_000 {
            assert_eq!(refusals.take(refused("x", "infer"), start + WINDOW / 2), None);
        }
        assert!(
            refusals.take(refused("y", "infer"), start).is_some()
                && refusals.take(refused("x", "declare"), start).is_some()
        );
        assert_eq!(refusals.due(start + WINDOW / 2), []);
        let due = refusals.due(start + WINDOW);
        assert_eq!(
            due.iter().map(|record| (record.principal.as_str(), record.count)).collect::<Vec<_>>(),
            [("x", 1_000_000)]
        );
        assert!(!refusals.is_counting());
    }

    #[test]
    fn nothing_is_lost_where_nobody_comes_for_what_was_counted() {
        let (mut refusals, start) = (Refusals::default(), Instant::now());
        let mut told = 0;
        for second in 0..1_000 {
            told += refusals
                .take(refused("x", "infer"), start + Duration::from_secs(second))
                .map_or(0, |record| record.count);
        }
        told += refusals.all().iter().map(|record| record.count).sum::<u64>();
        assert_eq!(told, 1_000);
    }

    #[test]
    fn a_million_principals_are_few_lines() {
        let (mut refusals, start) = (Refusals::default(), Instant::now());
        let told =
            (0..1_000_000).filter(|at| refusals.take(refused(&at.to_string(), "infer"), start).is_some()).count();
        assert!(told <= MAX_KINDS + 1, "{told}");
        let counted: u64 = refusals.due(start + WINDOW).iter().map(|record| record.count).sum();
        assert_eq!(counted + told as u64, 1_000_000);
    }
}
