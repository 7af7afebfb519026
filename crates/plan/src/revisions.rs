//! The revisions that a record names, by id. Nearly always one, and rarely more than two: a sorted list takes a fraction
//! of a tree's memory and time, and there is one for each deployment that has replicas. Stored as a map.

use std::{collections::BTreeMap, sync::Arc};

use berth_spec::{Revision, RevisionId};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Revisions, ordered by id.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Revisions(Vec<Arc<Revision>>);

impl Revisions {
    /// The revision of this id; `None`: it is not among them.
    #[must_use]
    pub fn get(&self, id: &RevisionId) -> Option<&Arc<Revision>> {
        self.0.iter().find(|revision| revision.id == *id)
    }

    /// Adds a revision, in place of another one of the same id.
    pub fn insert(&mut self, revision: Arc<Revision>) {
        match self.0.binary_search_by(|other| other.id.cmp(&revision.id)) {
            Ok(at) => self.0[at] = revision,
            Err(at) => {
                self.0.reserve_exact(1);
                self.0.insert(at, revision);
            }
        }
    }

    /// Forgets the revisions that `keep` says no to.
    pub(crate) fn retain(&mut self, keep: impl Fn(&RevisionId) -> bool) {
        self.0.retain(|revision| keep(&revision.id));
    }

    /// Every revision, by id.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Revision>> {
        self.0.iter()
    }

    /// The number of revisions: one or two, as a rule.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True if there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<Arc<Revision>> for Revisions {
    fn from_iter<I: IntoIterator<Item = Arc<Revision>>>(all: I) -> Self {
        let mut revisions = Self(Vec::with_capacity(1));
        all.into_iter().for_each(|revision| revisions.insert(revision));
        revisions
    }
}

impl Serialize for Revisions {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|revision| (&revision.id, revision)))
    }
}

impl<'de> Deserialize<'de> for Revisions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let all = BTreeMap::<RevisionId, Arc<Revision>>::deserialize(deserializer)?;
        Ok(Self(all.into_values().collect()))
    }
}
