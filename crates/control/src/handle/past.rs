//! Earlier generations of a deployment: kept when a write replaces them, for `berth rollout history` and `undo`.
//!
//! One entry of the store per deployment, written in the transaction that replaces the generation, and removed with the
//! deployment. A deployment that never changed has none.

use berth_spec::{Deployment, DeploymentName, Time};

use super::{Error, Handle};
use crate::store::{
    Op,
    layout::{self, StoredDeployment, StoredHistory},
};

pub use crate::store::layout::Replaced;

/// Generations that are kept. Enough to go back over a bad afternoon.
const MAX_GENERATIONS: usize = 10;

/// Bytes of manifests that are kept per deployment, the last one in any case: a fleet of 100,000 stays below what the store
/// holds.
const KEPT_BYTES: usize = 64 << 10;

impl Replaced {
    pub(super) fn of(stored: &StoredDeployment, deployment: &Deployment, now: Time) -> Self {
        Self {
            generation: deployment.generation.0,
            revision: deployment.revision_id().to_string(),
            origin: stored.origin().to_string(),
            at: now.0,
            manifest: stored.manifest.clone(),
            base: stored.base.clone(),
        }
    }
}

impl Handle {
    /// The generations of a deployment that were replaced, the latest first.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Store`].
    pub async fn history(&self, name: &DeploymentName) -> Result<Vec<Replaced>, Error> {
        if self.store.get(&layout::deployment_key(name)).await?.is_none() {
            return Err(Error::NotFound(name.clone()));
        }
        Ok(self.kept(name).await?.items)
    }

    /// The write that keeps one generation more.
    pub(super) async fn remember(&self, name: &DeploymentName, replaced: Replaced) -> Result<Op, Error> {
        let mut history = self.kept(name).await?;
        history.items.insert(0, replaced);
        history.items.truncate(MAX_GENERATIONS);
        let mut bytes = 0;
        let mut fits = |past: &Replaced| {
            bytes += past.manifest.to_string().len();
            bytes <= KEPT_BYTES
        };
        let fitting = history.items.iter().take_while(|past| fits(past)).count();
        history.items.truncate(fitting.max(1));
        Ok(Op::Put { key: layout::history_key(name), value: history.bytes() })
    }

    /// One that cannot be read is as good as none: it is overwritten by the next change.
    async fn kept(&self, name: &DeploymentName) -> Result<StoredHistory, Error> {
        let entry = self.store.get(&layout::history_key(name)).await?;
        Ok(entry.and_then(|entry| StoredHistory::read(&entry).ok()).unwrap_or_default())
    }
}
