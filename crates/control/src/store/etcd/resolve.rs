//! Determines the outcome of a transaction whose answer was lost.
//!
//! * Everything that it would have written is there, written by one commit that is later than anything seen before it was
//!   sent: it was done.
//! * The key that it compares and writes has not changed: it was not done.
//! * Something else is there: the key's past is walked, commit by commit, back to what was compared. If ours is on the
//!   way, it was done and then overwritten; if not, another was faster.
//! * Anything else, and a past that is compacted: nobody knows, and the caller is told so.

use berth_wire::etcd::{RangeRequest, RequestOp, TxnRequest, request_op::Request, response_op};

use super::{
    EtcdStore,
    cluster::{EtcdChannel, Repeat},
    error::EtcdError,
    keys::revision,
    read,
    transaction::guard,
};
use crate::store::{Entry, Op, Outcome, Rev, StoreError, Txn};

/// Commits of a key that are examined. More are only needed if that many other writers were faster.
const STEPS: usize = 16;

impl EtcdStore {
    /// `seen` is the highest rev that was seen before it was sent, `lost` why the answer is missing.
    pub(super) async fn resolve(&self, txn: &Txn, seen: Rev, lost: String) -> Result<Outcome, StoreError> {
        let outcome = self.look(txn, seen).await.ok().flatten();
        tracing::info!(event = "store_outcome_resolved", outcome = ?outcome, reason = lost);
        outcome.ok_or(StoreError::Uncertain { reason: lost })
    }

    async fn look(&self, txn: &Txn, seen: Rev) -> Result<Option<Outcome>, EtcdError> {
        let found = self.held(txn, Rev::NONE).await?;
        if let Some(rev) = landed(txn, &found).filter(|rev| *rev > seen) {
            return Ok(Some(Outcome::Committed(rev)));
        }
        let Some((key, rev)) = guard(txn) else { return Ok(None) };
        let of_guard = |found: &[Option<Entry>]| {
            txn.ops.iter().zip(found).find(|(op, _)| op.key() == key).and_then(|(_, entry)| entry.clone())
        };
        let mut held = of_guard(&found);
        for _ in 0..STEPS {
            match held {
                // A rev is never reached twice, so nothing has been written. Absence can come again.
                Some(entry) if entry.modified <= rev => return Ok(Some(Outcome::Conflict)),
                Some(entry) => {
                    let then = self.held(txn, entry.modified).await?;
                    if let Some(rev) = landed(txn, &then).filter(|rev| *rev > seen) {
                        return Ok(Some(Outcome::Committed(rev)));
                    }
                    held = self.read_past(key, Rev(entry.modified.0 - 1)).await?;
                }
                // What was there before it was removed is out of sight.
                None => return Ok(None),
            }
        }
        Ok(None)
    }

    /// Values of the written keys, all at one revision.
    async fn held(&self, txn: &Txn, at: Rev) -> Result<Vec<Option<Entry>>, EtcdError> {
        let read = |op: &Op| {
            let range =
                RangeRequest { key: self.keys.full(op.key()), revision: revision(at), ..RangeRequest::default() };
            RequestOp { request: Some(Request::RequestRange(range)) }
        };
        let request = TxnRequest { success: txn.ops.iter().map(read).collect(), ..TxnRequest::default() };
        let ask = |line: EtcdChannel| {
            let request = request.clone();
            async move { read::client(line).txn(request).await }
        };
        let answer = self.cluster.call(self.patience, Repeat::Always, ask).await?;
        let entries = answer.responses.into_iter().map(|response| match response.response {
            Some(response_op::Response::ResponseRange(range)) => {
                range.kvs.into_iter().next().and_then(|found| self.keys.entry(found))
            }
            _ => None,
        });
        Ok(entries.collect())
    }
}

/// Revision of the one commit that wrote all values of the transaction, if that is the current content.
fn landed(txn: &Txn, found: &[Option<Entry>]) -> Option<Rev> {
    let mut rev = None;
    for (op, entry) in txn.ops.iter().zip(found) {
        match (op, entry) {
            (Op::Put { value, .. }, Some(entry)) if entry.value == *value => {
                if *rev.get_or_insert(entry.modified) != entry.modified {
                    return None;
                }
            }
            (Op::Delete { .. }, None) => {}
            _ => return None,
        }
    }
    rev
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn all_of_it_by_one_commit_is_ours() {
        let put = |key: &str, value: &'static str| Op::Put {
            key: key.to_owned(),
            value: Bytes::from_static(value.as_bytes()),
        };
        let txn =
            Txn { compare: vec![], ops: vec![put("/a", "1"), Op::Delete { key: "/b".to_owned() }, put("/c", "2")] };
        let entry = |value: &'static str, rev| {
            let value = Bytes::from_static(value.as_bytes());
            Some(Entry { key: String::new(), value, created: Rev(1), modified: Rev(rev), version: 1 })
        };
        assert_eq!(landed(&txn, &[entry("1", 7), None, entry("2", 7)]), Some(Rev(7)));
        for not in [
            [entry("1", 7), None, entry("2", 8)],
            [entry("1", 7), entry("0", 7), entry("2", 7)],
            [entry("1", 7), None, entry("0", 7)],
            [None, None, entry("2", 7)],
        ] {
            assert_eq!(landed(&txn, &not), None, "{not:?}");
        }
        let gone = Txn { compare: vec![], ops: vec![Op::Delete { key: "/b".to_owned() }] };
        assert_eq!(landed(&gone, &[None]), None, "anybody could have removed it");
    }
}
