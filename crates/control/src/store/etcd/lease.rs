//! Leases: keys that expire without renewal. Used for leadership; see `crate::leadership`.

use std::{fmt, time::Duration};

use berth_wire::etcd::{
    LeaseGrantRequest, LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseRevokeRequest, PutRequest, RangeRequest,
    RequestOp, ResponseHeader, TxnRequest, lease_client::LeaseClient, request_op::Request, response_op,
};
use bytes::Bytes;
use futures::stream;
use tonic::{Response, Status};

use super::{
    EtcdStore,
    cluster::{EtcdChannel, EtcdReply, Repeat},
    error::EtcdError,
    keys, read, transaction,
};
use crate::store::{Compare, Entry, Rev, StoreError};

/// The number that etcd gave a lease; shown in hexadecimal digits, as `etcdctl` takes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub i64);

impl fmt::Display for LeaseId {
    /// As `etcdctl` writes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

/// A lease that was granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// Number to renew and to release it by.
    pub id: LeaseId,
    /// Duration from the grant: the requested time, or more.
    pub ttl: Duration,
}

/// Result of claiming a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claim {
    /// Won at this revision, for as long as the lease lives.
    Won(Rev),
    /// Held by another, with this entry.
    Taken(Entry),
}

/// The one answer of a stream that is asked once.
struct KeepAliveReply(LeaseKeepAliveResponse);

impl EtcdReply for KeepAliveReply {
    fn header(&self) -> Option<&ResponseHeader> {
        self.0.header.as_ref()
    }
    const ORDERED: bool = false;
}

impl EtcdStore {
    /// Requests a lease of this duration, rounded up to seconds. A lease whose answer is lost expires.
    ///
    /// # Errors
    /// Those of [`Store::commit`](crate::store::Store::commit).
    pub async fn grant(&self, ttl: Duration) -> Result<Lease, StoreError> {
        let seconds = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
        let request = LeaseGrantRequest { ttl: i64::try_from(seconds).unwrap_or(i64::MAX), id: 0 };
        let ask = move |line: EtcdChannel| async move { LeaseClient::new(line).lease_grant(request).await };
        let granted = self.cluster.call(self.patience, Repeat::Always, ask).await.map_err(|fault| self.error(fault))?;
        Ok(Lease { id: LeaseId(granted.id), ttl: seconds_of(granted.ttl) })
    }

    /// Makes a lease last its whole time again, from when etcd hears of it. `None`: it is over, and its keys are gone.
    ///
    /// # Errors
    /// Those of [`Store::commit`](crate::store::Store::commit).
    pub async fn keep_alive(&self, lease: LeaseId) -> Result<Option<Duration>, StoreError> {
        let request = LeaseKeepAliveRequest { id: lease.0 };
        let ask = move |line: EtcdChannel| async move {
            let mut answers = LeaseClient::new(line).lease_keep_alive(stream::iter([request])).await?.into_inner();
            let answer = answers.message().await?;
            answer
                .map(|answer| Response::new(KeepAliveReply(answer)))
                .ok_or_else(|| Status::unavailable("the stream ended"))
        };
        match self.cluster.call(self.patience, Repeat::Always, ask).await {
            Ok(KeepAliveReply(answer)) if answer.ttl > 0 => Ok(Some(seconds_of(answer.ttl))),
            Ok(_) | Err(EtcdError::NoLease) => Ok(None),
            Err(fault) => Err(self.error(fault)),
        }
    }

    /// Ends a lease: its keys go at once. One that is over is no error.
    ///
    /// # Errors
    /// Those of [`Store::commit`](crate::store::Store::commit).
    pub async fn revoke(&self, lease: LeaseId) -> Result<(), StoreError> {
        let request = LeaseRevokeRequest { id: lease.0 };
        let ask = move |line: EtcdChannel| async move { LeaseClient::new(line).lease_revoke(request).await };
        match self.cluster.call(self.patience, Repeat::Always, ask).await {
            Ok(_) | Err(EtcdError::NoLease) => Ok(()),
            Err(fault) => Err(self.error(fault)),
        }
    }

    /// Creates a key that goes with a lease, if it does not exist.
    ///
    /// # Errors
    /// [`StoreError::Uncertain`] where the answer was lost: read the key. [`StoreError::Failed`] where the lease is over.
    pub async fn claim(&self, key: &str, value: Bytes, lease: LeaseId) -> Result<Claim, StoreError> {
        let put = PutRequest { key: self.keys.full(key), value, lease: lease.0 };
        let look = RangeRequest { key: self.keys.full(key), ..RangeRequest::default() };
        let absent = Compare::Created { key: key.to_owned(), rev: Rev::NONE };
        let request = TxnRequest {
            compare: vec![transaction::comparison(&self.keys, &absent)],
            success: vec![RequestOp { request: Some(Request::RequestPut(put)) }],
            failure: vec![RequestOp { request: Some(Request::RequestRange(look)) }],
        };
        let ask = |line: EtcdChannel| {
            let request = request.clone();
            async move { read::client(line).txn(request).await }
        };
        let answer = match self.cluster.call(self.patience, Repeat::Unsent, ask).await {
            Ok(answer) => answer,
            Err(EtcdError::Lost(reason)) => return Err(StoreError::Uncertain { reason }),
            Err(fault) => return Err(self.error(fault)),
        };
        if answer.succeeded {
            return Ok(Claim::Won(answer.header.map_or(Rev::NONE, |header| keys::rev(header.revision))));
        }
        let found = answer.responses.into_iter().find_map(|response| match response.response {
            Some(response_op::Response::ResponseRange(range)) => range.kvs.into_iter().next(),
            _ => None,
        });
        let found = found.and_then(|found| self.keys.entry(found));
        found.map(Claim::Taken).ok_or_else(|| StoreError::Failed(format!("{key} exists and is not shown")))
    }
}

fn seconds_of(ttl: i64) -> Duration {
    Duration::from_secs(u64::try_from(ttl).unwrap_or_default())
}
