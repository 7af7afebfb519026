//! What the Git source says of workers: the terms that the registry sets, and the credentials that they are given.

use std::{collections::BTreeMap, sync::Arc};

use berth_spec::{CredentialSet, UnknownWorkers, WorkerId, WorkerTerms};

use super::{Error, Handle, Request};
use crate::store::{
    Entry, MAX_OPS, Op, Outcome, Page, Rev, Txn, layout,
    terms::{named_in, read_terms, read_unknown, terms_bytes, terms_key, unknown_bytes},
};

impl Handle {
    /// Says what the registry says of workers, all of it, and what becomes of those that it does not name; returns once the
    /// controller goes by it. What is as it was is not written. Without a registry: none, and [`UnknownWorkers::Allow`].
    ///
    /// The Git source alone may call it. It survives the leader.
    ///
    /// # Errors
    /// [`Error::Store`]: perhaps only a part of it is stored; say it again.
    pub async fn set_worker_terms(
        &self,
        terms: BTreeMap<WorkerId, WorkerTerms>,
        unknown: UnknownWorkers,
    ) -> Result<(), Error> {
        let mut ops = self.term_changes(terms).await?;
        let before = self.store.get(layout::UNKNOWN_WORKERS).await?;
        if before.as_ref().map(read_unknown).transpose().ok() != Some(Some(unknown)) {
            let op = Op::Put { key: layout::UNKNOWN_WORKERS.to_owned(), value: unknown_bytes(unknown) };
            // In between nobody may be turned away whom neither state turns away.
            let at = if unknown == UnknownWorkers::Allow { 0 } else { ops.len() };
            ops.insert(at, op);
        }
        let mut last = Rev::NONE;
        for ops in ops.chunks(MAX_OPS) {
            let txn = Txn { compare: Vec::new(), ops: ops.to_vec() };
            if let Outcome::Committed(rev) = self.store.commit(txn).await? {
                last = rev;
            }
        }
        if last > Rev::NONE {
            self.until_seen(last).await;
        }
        Ok(())
    }

    /// What to write where these terms differ from those that are stored.
    async fn term_changes(&self, mut terms: BTreeMap<WorkerId, WorkerTerms>) -> Result<Vec<Op>, Error> {
        let mut ops = Vec::new();
        for entry in self.stored_terms().await? {
            let worker = named_in(&entry.key);
            let wanted = worker.and_then(|worker| terms.remove(&worker));
            let same = |wanted: &WorkerTerms| read_terms(&entry).is_ok_and(|stored| *stored == *wanted);
            match wanted {
                Some(wanted) if same(&wanted) => {}
                Some(wanted) => ops.push(Op::Put { key: entry.key, value: terms_bytes(&wanted) }),
                None => ops.push(Op::Delete { key: entry.key }),
            }
        }
        ops.extend(terms.iter().map(|(id, terms)| Op::Put { key: terms_key(id), value: terms_bytes(terms) }));
        Ok(ops)
    }

    async fn stored_terms(&self) -> Result<Vec<Entry>, Error> {
        let (mut entries, mut page) = (Vec::new(), Page::default());
        loop {
            let listing = self.store.list(layout::TERMS, page).await?;
            let last = listing.entries.last().filter(|_| listing.more).map(|entry| entry.key.clone());
            entries.extend(listing.entries);
            match last {
                Some(last) => page = Page { after: Some(last), ..Page::default() },
                None => return Ok(entries),
            }
        }
    }

    /// Gives workers their credentials, each its own and all of them: at once where they are attached, else when they
    /// attach. A worker that is not named any more is given none. They are kept in memory for as long as this controller
    /// decides, and never stored or logged.
    ///
    /// # Errors
    /// [`Error::Stopped`], [`Error::Busy`].
    pub async fn set_credentials(&self, sets: BTreeMap<WorkerId, Arc<CredentialSet>>) -> Result<(), Error> {
        self.ask(|reply| Request::SetCredentials { sets, reply }).await
    }
}
