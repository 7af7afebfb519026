//! Checkpoint of a source for the next leader: bytes of the source's own, in named slots.

use bytes::Bytes;

use super::SourceName;
use crate::{
    Handle,
    handle::Error,
    store::{Compare, Op, Outcome, Txn, layout},
};

/// The checkpoint of a source in the store. A source of a term is its only writer.
#[derive(Clone)]
pub struct Checkpoint {
    handle: Handle,
    name: SourceName,
}

impl Checkpoint {
    pub(super) const fn new(handle: Handle, name: SourceName) -> Self {
        Self { handle, name }
    }

    /// The bytes in a slot, as they were stored last.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn load(&self, slot: &str) -> Result<Option<Bytes>, Error> {
        let entry = self.handle.store.get(&layout::source_key(&self.name, slot)).await?;
        Ok(entry.map(|entry| entry.value))
    }

    /// Replaces the bytes in a slot; what is there already is not written again.
    ///
    /// # Errors
    /// [`Error::Store`]; [`Error::Stopped`] where another writer was faster: its term has begun.
    pub async fn save(&self, slot: &str, value: Bytes) -> Result<(), Error> {
        let key = layout::source_key(&self.name, slot);
        let before = self.handle.store.get(&key).await?;
        if before.as_ref().is_some_and(|entry| entry.value == value) {
            return Ok(());
        }
        let rev = before.map(|entry| entry.modified).unwrap_or_default();
        let txn = Txn { compare: vec![Compare::Modified { key: key.clone(), rev }], ops: vec![Op::Put { key, value }] };
        match self.handle.store.commit(txn).await? {
            Outcome::Committed(_) => Ok(()),
            Outcome::Conflict => Err(Error::Stopped),
        }
    }
}
