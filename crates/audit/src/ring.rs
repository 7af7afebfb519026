//! The last records in memory, with numbers that grow, also over a restart: they are times in nanoseconds.

use std::collections::VecDeque;

use berth_wire::api::AuditRecord;

/// Records that are kept, some 2 MiB.
const MAX_RECORDS: usize = 4_096;

/// Ring of recent records.
#[derive(Default)]
pub(crate) struct Ring {
    records: VecDeque<(u64, AuditRecord)>,
    last: u64,
}

impl Ring {
    pub(crate) fn push(&mut self, record: AuditRecord) {
        if self.records.len() == MAX_RECORDS {
            self.records.pop_front();
        }
        self.last = record.at.0.0.max(self.last + 1);
        self.records.push_back((self.last, record));
    }

    /// The records after a number, the latest first.
    pub(crate) fn after(&self, number: u64) -> impl Iterator<Item = &AuditRecord> {
        self.records.iter().rev().take_while(move |(own, _)| *own > number).map(|(_, record)| record)
    }

    /// The number of the last record.
    pub(crate) const fn last(&self) -> u64 {
        self.last
    }
}
