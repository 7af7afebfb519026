//! Tokens: made, listed and revoked in the store. Nodes learn of them by [`crate::api`], not by the driver.

use berth_wire::access::{Snapshot, TokenRecord};

use super::{Error, Handle};
use crate::store::{
    Compare, Entry, Op, Outcome, Page, Rev, StoreError, Txn, Watch,
    tokens::{StoredToken, TOKENS, token_key},
};

impl Handle {
    /// Every token that is not revoked.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn tokens(&self) -> Result<Snapshot, Error> {
        let (at, entries) = self.listed(TOKENS).await?;
        let mut snapshot = Snapshot { revision: at.0, ..Snapshot::default() };
        for entry in &entries {
            match StoredToken::read(entry) {
                Ok(stored) => snapshot.tokens.push(stored.record),
                // It opens nothing, and the others still do.
                Err(error) => tracing::error!(event = "token_unreadable", %error, "a stored token cannot be read"),
            }
        }
        Ok(snapshot)
    }

    /// All entries under a prefix, and the revision at which the listing began: what happens meanwhile comes with a watch
    /// from there.
    pub(super) async fn listed(&self, prefix: &str) -> Result<(Rev, Vec<Entry>), StoreError> {
        let (mut page, mut at, mut entries) = (Page::default(), None, Vec::new());
        loop {
            let listing = self.store.list(prefix, page.clone()).await?;
            let began = *at.get_or_insert(listing.at);
            let more = listing.more;
            entries.extend(listing.entries);
            match entries.last().filter(|_| more) {
                Some(last) => page.after = Some(last.key.clone()),
                None => return Ok((began, entries)),
            }
        }
    }

    /// Stores a new token.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn add_token(&self, record: TokenRecord) -> Result<(), Error> {
        let key = token_key(&record.id);
        let value = StoredToken::of(record).bytes();
        let compare = vec![Compare::Modified { key: key.clone(), rev: Rev::NONE }];
        match self.store.commit(Txn { compare, ops: vec![Op::Put { key: key.clone(), value }] }).await? {
            Outcome::Committed(_) => Ok(()),
            // Fifty random bits came twice.
            Outcome::Conflict => Err(StoreError::DuplicateKey(key).into()),
        }
    }

    /// Removes a token; false if there is none of this id.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn revoke_token(&self, id: &str) -> Result<bool, Error> {
        let key = token_key(id);
        if self.store.get(&key).await?.is_none() {
            return Ok(false);
        }
        self.store.commit(Txn { compare: Vec::new(), ops: vec![Op::Delete { key }] }).await?;
        Ok(true)
    }

    /// Changes of tokens after a snapshot of this revision.
    pub(crate) async fn watch_tokens(&self, revision: u64) -> Result<Watch, StoreError> {
        self.store.watch(TOKENS, Rev(revision).next()).await
    }
}
