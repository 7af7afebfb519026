//! Join tokens: made, listed, used and revoked in the store.

use super::{Error, Handle};
use crate::store::{
    Compare, Op, Outcome, Rev, StoreError, Txn,
    join_tokens::{JOIN_TOKENS, JoinTokenRecord, StoredJoinToken, join_token_key},
};

impl Handle {
    /// Every join token.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn join_tokens(&self) -> Result<Vec<JoinTokenRecord>, Error> {
        let (_, entries) = self.listed(JOIN_TOKENS).await?;
        let read = |entry| match StoredJoinToken::read(entry) {
            Ok(stored) => Some(stored.record),
            Err(error) => {
                tracing::error!(event = "join_token_unreadable", %error, "a stored join token cannot be read");
                None
            }
        };
        Ok(entries.iter().filter_map(read).collect())
    }

    /// One join token, and the revision of its last change.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn join_token(&self, id: &str) -> Result<Option<(JoinTokenRecord, Rev)>, Error> {
        let Some(entry) = self.store.get(&join_token_key(id)).await? else { return Ok(None) };
        let stored = StoredJoinToken::read(&entry)?;
        Ok(Some((stored.record, entry.modified)))
    }

    /// Stores a join token in place of the one of this revision; [`Rev::NONE`]: a new one. False if it has changed meanwhile.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn put_join_token(&self, record: JoinTokenRecord, rev: Rev) -> Result<bool, Error> {
        let key = join_token_key(&record.id);
        let value = StoredJoinToken::of(record).bytes();
        let compare = vec![Compare::Modified { key: key.clone(), rev }];
        let outcome = self.store.commit(Txn { compare, ops: vec![Op::Put { key, value }] }).await?;
        Ok(matches!(outcome, Outcome::Committed(_)))
    }

    /// Removes join tokens.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn remove_join_tokens(&self, ids: impl IntoIterator<Item = &str>) -> Result<(), StoreError> {
        let ops: Vec<_> = ids.into_iter().map(|id| Op::Delete { key: join_token_key(id) }).collect();
        if !ops.is_empty() {
            self.store.commit(Txn { compare: Vec::new(), ops }).await?;
        }
        Ok(())
    }
}
