//! The settings and credentials that sources give workers.

use std::{collections::BTreeMap, sync::Arc};

use berth_spec::{CredentialSet, UnknownWorkers, WorkerId, WorkerTerms};

use super::{DriverRequest, Error, Handle};
use crate::{
    source::{Problem, SourceName, WorkerSettings},
    store::{
        Entry, MAX_OPS, Op, Outcome, Page, Rev, Txn, layout,
        terms::{named_in, read_terms, terms_bytes, terms_key, terms_source, unknown_by_source, unknown_bytes},
    },
};

impl Handle {
    /// Stores all settings that a source gives workers, and returns once the controller goes by them. What is as it was
    /// is not written. A worker belongs to the source that named it first: the result says which were left alone. It
    /// survives the leader.
    ///
    /// # Errors
    /// [`Error::Store`]: perhaps only a part of it is stored; say it again.
    pub async fn set_worker_settings(
        &self,
        source: &SourceName,
        settings: &WorkerSettings,
    ) -> Result<Vec<Problem>, Error> {
        let (mut ops, problems) = self.term_changes(source, settings.terms.clone()).await?;
        let unknown = self.unknown_change(source, Some(settings.unknown)).await?;
        // In between nobody may be turned away whom neither state turns away.
        let at = if settings.unknown == UnknownWorkers::Allow { 0 } else { ops.len() };
        ops.splice(at..at, unknown);
        self.write_settings(ops).await?;
        Ok(problems)
    }

    /// Takes back all settings that a source gave workers.
    ///
    /// # Errors
    /// [`Error::Store`]: perhaps only a part of it is done; say it again.
    pub(crate) async fn clear_worker_settings(&self, source: &SourceName) -> Result<(), Error> {
        let mut ops: Vec<Op> = self.unknown_change(source, None).await?.into_iter().collect();
        ops.extend(self.term_changes(source, BTreeMap::new()).await?.0);
        self.write_settings(ops).await
    }

    /// Gives a source the settings that an earlier version stored, which had one source.
    pub(crate) async fn adopt_worker_settings(&self, source: &SourceName) -> Result<(), Error> {
        let mut ops = Vec::new();
        for entry in self.stored_terms().await? {
            if let (Ok(None), Ok(terms)) = (terms_source(&entry), read_terms(&entry)) {
                ops.push(Op::Put { key: entry.key, value: terms_bytes(source, &terms) });
            }
        }
        if let Some(entry) = self.store.get(layout::UNKNOWN_WORKERS).await?
            && let Ok(sources) = unknown_by_source(&entry, source)
        {
            ops.push(Op::Put { key: entry.key, value: unknown_bytes(&sources) });
        }
        self.write_settings(ops).await
    }

    async fn write_settings(&self, ops: Vec<Op>) -> Result<(), Error> {
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

    /// The write for the treatment of unknown workers, if it differs from what is stored.
    async fn unknown_change(&self, source: &SourceName, unknown: Option<UnknownWorkers>) -> Result<Option<Op>, Error> {
        let key = layout::UNKNOWN_WORKERS;
        let entry = self.store.get(key).await?;
        let before = entry.as_ref().and_then(|entry| unknown_by_source(entry, source).ok()).unwrap_or_default();
        let mut after = before.clone();
        match unknown {
            Some(unknown) => after.insert(source.clone(), unknown),
            None => after.remove(source),
        };
        let value = unknown_bytes(&after);
        let same = match &entry {
            Some(entry) => entry.value == value,
            None => after.is_empty(),
        };
        Ok((!same).then(|| Op::Put { key: key.to_owned(), value }))
    }

    /// The writes where these terms of a source differ from those that are stored, and the workers of other sources.
    async fn term_changes(
        &self,
        source: &SourceName,
        mut terms: BTreeMap<WorkerId, WorkerTerms>,
    ) -> Result<(Vec<Op>, Vec<Problem>), Error> {
        let (mut ops, mut problems) = (Vec::new(), Vec::new());
        for entry in self.stored_terms().await? {
            let wanted = named_in(&entry.key).and_then(|worker| terms.remove_entry(&worker));
            if let Ok(Some(other)) = terms_source(&entry)
                && other != *source
            {
                problems.extend(wanted.map(|(worker, _)| Problem {
                    deployment: None,
                    reason: "WorkerOwnedElsewhere",
                    message: format!(
                        "worker {worker} gets its settings from the source {other}: remove it from one of them"
                    ),
                }));
                continue;
            }
            let value = wanted.as_ref().map(|(_, wanted)| terms_bytes(source, wanted));
            match value {
                Some(value) if value == entry.value => {}
                Some(value) => ops.push(Op::Put { key: entry.key, value }),
                None => ops.push(Op::Delete { key: entry.key }),
            }
        }
        ops.extend(terms.iter().map(|(id, terms)| Op::Put { key: terms_key(id), value: terms_bytes(source, terms) }));
        Ok((ops, problems))
    }

    /// The source of each worker's settings.
    pub(super) async fn sources_of_terms(&self) -> Result<BTreeMap<WorkerId, SourceName>, Error> {
        let source = |entry: &Entry| Some((named_in(&entry.key)?, terms_source(entry).ok()??));
        Ok(self.stored_terms().await?.iter().filter_map(source).collect())
    }

    async fn stored_terms(&self) -> Result<Vec<Entry>, Error> {
        self.entries(layout::TERMS).await
    }

    /// All entries below a prefix.
    pub(crate) async fn entries(&self, prefix: &str) -> Result<Vec<Entry>, Error> {
        let (mut entries, mut page) = (Vec::new(), Page::default());
        loop {
            let listing = self.store.list(prefix, page).await?;
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
        self.ask(|reply| DriverRequest::SetCredentials { sets, reply }).await
    }

    /// Pauses a source, or resumes it; false: there is none of this name. It survives a restart and the leader.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn pause_source(&self, name: &SourceName, pause: bool) -> Result<bool, Error> {
        if self.sources.get(name).is_none() {
            return Ok(false);
        }
        let key = layout::source_key(name, layout::PAUSED);
        let (op, request) = if pause {
            (Op::Put { key, value: layout::pause_bytes(self.now()) }, crate::source::Request::Pause)
        } else {
            (Op::Delete { key }, crate::source::Request::Resume)
        };
        self.store.commit(Txn { compare: Vec::new(), ops: vec![op] }).await?;
        tracing::info!(event = if pause { "source_paused" } else { "source_resumed" }, source = %name);
        // It may be between two attempts: then it reads the key when it begins again.
        let _begun = self.sources.request(name, request);
        Ok(true)
    }
}
