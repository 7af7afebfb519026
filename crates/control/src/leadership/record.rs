//! Value stored under the leader's key.

use berth_spec::{Epoch, WorkerId};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::CandidateInfo;
use crate::store::{Entry, StoreError, etcd::LeaseId};

/// The number of the stored form, `v` in it.
const FORM: u32 = 1;

/// Leader, as the value and the creation of its key describe it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaderRecord {
    /// Name of the leading node.
    pub name: WorkerId,
    /// Address for other nodes, `HOST:PORT`.
    pub peer: String,
    /// Settings that all controllers must share; `None` if the leader does not publish them.
    pub rules: Option<String>,
    /// The lease that the key goes with: tells one candidacy of a node from another.
    pub lease: LeaseId,
    /// Its term: the rev at which the key was created, greater than that of every earlier leader.
    pub epoch: Epoch,
}

#[derive(Serialize, Deserialize)]
struct Stored {
    v: u32,
    name: WorkerId,
    peer: String,
    lease: i64,
    /// Later than the rest: earlier versions do not write it.
    #[serde(default)]
    rules: Option<String>,
}

impl LeaderRecord {
    /// Reads the key's entry.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] if the entry has another format.
    pub fn read(entry: &Entry) -> Result<Self, StoreError> {
        let stored: Stored = serde_json::from_slice(&entry.value)
            .map_err(|error| StoreError::Corrupt { key: entry.key.clone(), reason: error.to_string() })?;
        let Stored { v: _, name, peer, lease, rules } = stored;
        Ok(Self { name, peer, rules, lease: LeaseId(lease), epoch: Epoch(entry.created.0) })
    }

    /// The value of the leader's key for a candidate, JSON.
    pub(super) fn bytes(me: &CandidateInfo, lease: LeaseId) -> Bytes {
        let stored = Stored {
            v: FORM,
            name: me.name.clone(),
            peer: me.peer.clone(),
            lease: lease.0,
            rules: Some(me.rules.clone()),
        };
        Bytes::from(serde_json::to_vec(&stored).expect("text and numbers have a JSON form"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Rev;

    #[test]
    fn the_form_is_kept() {
        let me = CandidateInfo {
            name: WorkerId::new("a").expect("a name"),
            peer: "10.0.0.1:7947".to_owned(),
            rules: "onnx".to_owned(),
        };
        let value = LeaderRecord::bytes(&me, LeaseId(77));
        assert_eq!(value, r#"{"v":1,"name":"a","peer":"10.0.0.1:7947","lease":77,"rules":"onnx"}"#);
        let entry = Entry { key: "/leader".to_owned(), value, created: Rev(9), modified: Rev(9), version: 1 };
        let leader = LeaderRecord::read(&entry).expect("a leader");
        assert_eq!((leader.name, leader.lease, leader.epoch), (me.name, LeaseId(77), Epoch(9)));
        let earlier = Bytes::from_static(br#"{"v":1,"name":"a","peer":"10.0.0.1:7947","lease":77}"#);
        assert_eq!(LeaderRecord::read(&Entry { value: earlier, ..entry.clone() }).expect("a leader").rules, None);
        let strange = Entry { value: Bytes::from_static(b"me"), ..entry };
        assert!(matches!(LeaderRecord::read(&strange), Err(StoreError::Corrupt { .. })));
    }
}
