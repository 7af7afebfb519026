//! Revocations: made, listed and removed in the store. Nodes learn of them by [`crate::api`], not by the driver.

use berth_peer::pki::{Revocation, Revocations};

use super::{Error, Handle};
use crate::store::{
    Compare, Op, Outcome, Rev, StoreError, Txn, Watch,
    revocations::{REVOCATIONS, StoredRevocation, revocation_key},
};

impl Handle {
    /// Every revocation.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn revocations(&self) -> Result<Revocations, Error> {
        let (at, entries) = self.listed(REVOCATIONS).await?;
        let mut all = Revocations { revision: at.0, items: Vec::with_capacity(entries.len()) };
        for entry in &entries {
            match StoredRevocation::read(entry) {
                Ok(stored) => all.items.push(stored.revocation),
                Err(error) => {
                    tracing::error!(event = "revocation_unreadable", %error, "a stored revocation cannot be read: what it is about is taken");
                }
            }
        }
        Ok(all)
    }

    /// Stores a new revocation.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn add_revocation(&self, revocation: Revocation) -> Result<(), Error> {
        let key = revocation_key(&revocation.id);
        let value = StoredRevocation::of(revocation).bytes();
        let compare = vec![Compare::Modified { key: key.clone(), rev: Rev::NONE }];
        match self.store.commit(Txn { compare, ops: vec![Op::Put { key: key.clone(), value }] }).await? {
            Outcome::Committed(_) => Ok(()),
            Outcome::Conflict => Err(StoreError::DuplicateKey(key).into()),
        }
    }

    /// Removes revocations.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn remove_revocations(&self, ids: impl IntoIterator<Item = &str>) -> Result<(), Error> {
        let ops: Vec<_> = ids.into_iter().map(|id| Op::Delete { key: revocation_key(id) }).collect();
        if !ops.is_empty() {
            self.store.commit(Txn { compare: Vec::new(), ops }).await?;
        }
        Ok(())
    }

    /// Changes of revocations after those of this revision.
    pub(crate) async fn watch_revocations(&self, revision: u64) -> Result<Watch, StoreError> {
        self.store.watch(REVOCATIONS, Rev(revision).next()).await
    }
}
