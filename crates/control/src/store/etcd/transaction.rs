//! Transactions: one of ours is one of etcd's. It is sent once; where the answer is lost,
//!
//! ```text
//!            answer ──────────────────────────────▶ Committed | Conflict
//! send ──┤
//!            lost ──┬─ sending it twice is harmless ─▶ send again ──▶ Committed
//!                   │  (it compares what it writes)              └──▶ Conflict: with another's write, or our own? ──▶ resolve
//!                   └─ it is not ──────────────────────────────────────────────────────────────────────────────▶ resolve
//! ```

use std::time::Duration;

use berth_wire::etcd::{
    Compare as Comparison, DeleteRangeRequest, PutRequest, RequestOp, TxnRequest,
    compare::{CompareResult, CompareTarget, TargetUnion},
    request_op::Request,
};
use prost::Message as _;
use tokio::time::Instant;

use super::{
    EtcdStore,
    cluster::{EtcdChannel, Repeat},
    error::EtcdError,
    keys::{self, Keys, revision},
    read,
};
use crate::store::{Compare, MAX_BYTES, Op, Outcome, Rev, StoreError, Txn};

/// Overhead that etcd adds to a transaction before it checks the size.
const ENVELOPE: usize = 1 << 10;

/// Pause before a transaction is sent again; short compared with an election of etcd.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

impl EtcdStore {
    pub(super) async fn transact(&self, txn: Txn) -> Result<Outcome, StoreError> {
        txn.check()?;
        let request = request(&self.keys, &txn);
        let bytes = request.encoded_len() + ENVELOPE;
        if bytes > MAX_BYTES {
            return Err(StoreError::TooLarge { ops: txn.ops.len(), bytes });
        }
        let seen = self.cluster.seen();
        let deadline = Instant::now() + self.patience.whole;
        let mut lost = None;
        loop {
            match self.send(&request, repeat_of(&txn), deadline).await {
                Ok((true, rev)) => return Ok(Outcome::Committed(rev)),
                Ok((false, _)) if lost.is_none() => return Ok(Outcome::Conflict),
                Ok((false, _)) => return self.resolve(&txn, seen, lost.unwrap_or_default()).await,
                Err(EtcdError::Lost(reason)) if guard(&txn).is_some() && Instant::now() + RETRY_PAUSE < deadline => {
                    tracing::debug!(event = "store_answer_lost", reason, again = true);
                    lost = Some(reason);
                    tokio::time::sleep(RETRY_PAUSE).await;
                }
                Err(EtcdError::Lost(reason)) => return self.resolve(&txn, seen, reason).await,
                // Only the first attempt is in doubt, and this one says nothing of it.
                Err(fault) => {
                    return Err(match lost {
                        Some(reason) => StoreError::Uncertain { reason },
                        None => self.error(fault),
                    });
                }
            }
        }
    }

    /// Sends it until something may have received it: whether the comparisons held, and the rev.
    async fn send(&self, request: &TxnRequest, repeat: Repeat, deadline: Instant) -> Result<(bool, Rev), EtcdError> {
        let mut patience = self.patience;
        patience.whole = deadline.saturating_duration_since(Instant::now());
        let ask = |line: EtcdChannel| {
            let request = request.clone();
            async move { read::client(line).txn(request).await }
        };
        let answer = self.cluster.call(patience, repeat, ask).await?;
        Ok((answer.succeeded, answer.header.map_or(Rev::NONE, |header| keys::rev(header.revision))))
    }
}

/// One that writes nothing can be asked again.
fn repeat_of(txn: &Txn) -> Repeat {
    if txn.ops.is_empty() { Repeat::Always } else { Repeat::Unsent }
}

/// A key that the transaction writes and compares, so that it cannot be done twice: with the rev that it has to have.
pub(super) fn guard(txn: &Txn) -> Option<(&str, Rev)> {
    txn.compare.iter().find_map(|compare| {
        let op = txn.ops.iter().find(|op| op.key() == compare.key())?;
        match (compare, op) {
            (Compare::Modified { key, rev }, Op::Put { .. }) => Some((key.as_str(), *rev)),
            (Compare::Modified { key, rev }, Op::Delete { .. }) if *rev != Rev::NONE => Some((key.as_str(), *rev)),
            (Compare::Created { key, rev }, Op::Put { .. }) if *rev == Rev::NONE => Some((key.as_str(), *rev)),
            (Compare::Created { key, rev }, Op::Delete { .. }) if *rev != Rev::NONE => Some((key.as_str(), *rev)),
            _ => None,
        }
    })
}

fn request(keys: &Keys, txn: &Txn) -> TxnRequest {
    TxnRequest {
        compare: txn.compare.iter().map(|compare| comparison(keys, compare)).collect(),
        success: txn.ops.iter().map(|op| operation(keys, op)).collect(),
        failure: Vec::new(),
    }
}

fn operation(keys: &Keys, op: &Op) -> RequestOp {
    let request = match op {
        Op::Put { key, value } => {
            Request::RequestPut(PutRequest { key: keys.full(key), value: value.clone(), lease: 0 })
        }
        Op::Delete { key } => {
            Request::RequestDeleteRange(DeleteRangeRequest { key: keys.full(key), ..DeleteRangeRequest::default() })
        }
    };
    RequestOp { request: Some(request) }
}

/// A condition as etcd has it: of a key that does not exist, both revisions are 0.
pub(super) fn comparison(keys: &Keys, compare: &Compare) -> Comparison {
    let (target, rev) = match compare {
        Compare::Modified { rev, .. } => (CompareTarget::Mod, TargetUnion::ModRevision(revision(*rev))),
        Compare::Created { rev, .. } => (CompareTarget::Create, TargetUnion::CreateRevision(revision(*rev))),
    };
    Comparison {
        result: CompareResult::Equal.into(),
        target: target.into(),
        key: keys.full(compare.key()),
        target_union: Some(rev),
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn what_compares_what_it_writes_cannot_be_done_twice() {
        let put = |key: &str| Op::Put { key: key.to_owned(), value: Bytes::new() };
        let delete = |key: &str| Op::Delete { key: key.to_owned() };
        let modified = |key: &str, rev| Compare::Modified { key: key.to_owned(), rev: Rev(rev) };
        let created = |key: &str, rev| Compare::Created { key: key.to_owned(), rev: Rev(rev) };
        for (compare, op, wanted) in [
            (modified("/a", 3), put("/a"), Some(3)),
            (modified("/a", 0), put("/a"), Some(0)),
            (modified("/a", 3), delete("/a"), Some(3)),
            (modified("/a", 0), delete("/a"), None),
            (created("/a", 0), put("/a"), Some(0)),
            (created("/a", 3), put("/a"), None),
            (created("/a", 3), delete("/a"), Some(3)),
            (modified("/b", 3), put("/a"), None),
        ] {
            let txn = Txn { compare: vec![compare], ops: vec![op] };
            assert_eq!(guard(&txn).map(|(_, rev)| rev.0), wanted, "{txn:?}");
        }
    }
}
