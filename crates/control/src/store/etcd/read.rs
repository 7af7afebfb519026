//! Reading: one key, pages of many, the revision; and forgetting the past.

use berth_wire::etcd::{CompactionRequest, RangeRequest, RangeResponse, kv_client::KvClient};

use super::{
    EtcdStore,
    cluster::{EtcdChannel, Repeat},
    error::EtcdError,
    keys::{self, revision},
};
use crate::store::{Entry, Listing, Page, Rev, StoreError};

/// Largest answer in bytes. etcd has no limit of its own; a page that exceeds this is requested again with fewer
/// entries.
const ANSWER: usize = 32 << 20;

/// Asks an endpoint for a range of keys.
pub(super) fn client(line: EtcdChannel) -> KvClient<EtcdChannel> {
    KvClient::new(line).max_decoding_message_size(ANSWER)
}

impl EtcdStore {
    async fn range(&self, request: RangeRequest) -> Result<RangeResponse, EtcdError> {
        let ask = |line: EtcdChannel| {
            let request = request.clone();
            async move { client(line).range(request).await }
        };
        self.cluster.call(self.patience, Repeat::Always, ask).await
    }

    pub(super) fn error(&self, fault: EtcdError) -> StoreError {
        fault.into_error(&self.cluster.addresses())
    }

    pub(super) async fn read_one(&self, key: &str) -> Result<Option<Entry>, StoreError> {
        let found = self.range(RangeRequest { key: self.keys.full(key), ..RangeRequest::default() }).await;
        let found = found.map_err(|fault| self.error(fault))?;
        Ok(found.kvs.into_iter().next().and_then(|found| self.keys.entry(found)))
    }

    /// Value of the key at a revision; `Err(EtcdError::Compacted)` if it is no longer available.
    pub(super) async fn read_past(&self, key: &str, at: Rev) -> Result<Option<Entry>, EtcdError> {
        let request = RangeRequest { key: self.keys.full(key), revision: revision(at), ..RangeRequest::default() };
        Ok(self.range(request).await?.kvs.into_iter().next().and_then(|found| self.keys.entry(found)))
    }

    pub(super) async fn read_page(&self, prefix: &str, page: Page) -> Result<Listing, StoreError> {
        let mut key = match page.after.as_deref() {
            Some(after) if after >= prefix => self.keys.after(after),
            _ => self.keys.full(prefix),
        };
        let (mut limit, mut at) = (page.size(), page.at);
        loop {
            let request = RangeRequest {
                key: key.clone(),
                range_end: self.keys.end(prefix),
                limit: i64::try_from(limit).unwrap_or(i64::MAX),
                revision: revision(at),
                ..RangeRequest::default()
            };
            match self.range(request).await {
                Ok(found) => {
                    let last = found.kvs.last().map(|last| last.key.clone());
                    let listing = self.listing(found, at);
                    match last {
                        // Keys that are no text are left out, and a page of nothing else names no key for the next to begin after.
                        Some(last) if listing.entries.is_empty() && listing.more => {
                            key = keys::next(&last);
                            at = listing.at;
                        }
                        _ => return Ok(listing),
                    }
                }
                Err(EtcdError::TooMuch) if limit > 1 => limit = limit.div_ceil(4),
                // Which is the oldest is not said; whoever lists starts anew anyway.
                Err(EtcdError::Compacted) => return Err(StoreError::Compacted { oldest: page.at.next() }),
                Err(fault) => return Err(self.error(fault)),
            }
        }
    }

    fn listing(&self, found: RangeResponse, at: Rev) -> Listing {
        let now = found.header.map_or(Rev::NONE, |header| keys::rev(header.revision));
        let entries = found.kvs.into_iter().filter_map(|found| self.keys.entry(found)).collect();
        Listing { entries, at: if at == Rev::NONE { now } else { at }, more: found.more }
    }

    pub(super) async fn read_rev(&self) -> Result<Rev, StoreError> {
        let request = RangeRequest { key: self.keys.full("/"), count_only: true, ..RangeRequest::default() };
        let found = self.range(request).await.map_err(|fault| self.error(fault))?;
        Ok(found.header.map_or(Rev::NONE, |header| keys::rev(header.revision)))
    }

    pub(super) async fn forget(&self, before: Rev) -> Result<(), StoreError> {
        let before = before.min(self.read_rev().await?);
        let request = CompactionRequest { revision: revision(before) };
        let ask = move |line: EtcdChannel| async move { client(line).compact(request).await };
        match self.cluster.call(self.patience, Repeat::Always, ask).await {
            // Somebody has forgotten as much already.
            Ok(_) | Err(EtcdError::Compacted) => Ok(()),
            Err(fault) => Err(self.error(fault)),
        }
    }
}
