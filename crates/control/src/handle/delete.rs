//! Deleting deployments: optimistic writes to the store, as for declarations.

use berth_spec::{DeploymentName, Origin};

use super::{
    Error, Handle, Ownership, SEEN_WITHIN,
    declare::ATTEMPTS,
    owner::{check_expected, check_owner},
};
use crate::store::{Compare, Op, Outcome, Rev, Txn, aliases, layout};

/// Attempts to delete what aliases may lead to: every alias that gains a target in between fails one, whatever it leads to.
const UNLED_ATTEMPTS: usize = 64;

/// The conditions of a deletion, and who asks for it.
#[derive(Debug, Clone)]
pub struct DeleteRequest {
    /// Source that asks; refused with [`Error::Owned`] if another owns the deployment and `ownership` respects that.
    pub origin: Origin,
    /// Only if the stored one still has this resource version.
    pub expect: Option<Rev>,
    /// Treatment of a deployment of another source.
    pub ownership: Ownership,
}

/// A deletion was accepted: replicas drain, then the deployment is forgotten.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deleted {
    /// Name of the deployment, which is free once its replicas are gone.
    pub name: DeploymentName,
    /// The resource version of the deletion.
    pub rev: Rev,
}

impl Handle {
    /// Asks for a deployment to go. Asking again changes nothing.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Owned`], [`Error::Stale`], [`Error::Contended`], [`Error::Store`].
    pub async fn delete(&self, name: &DeploymentName, request: DeleteRequest) -> Result<Deleted, Error> {
        let deleted = self.start_delete(name, request).await?;
        self.until_in_force(deleted.rev).await;
        Ok(deleted)
    }

    /// The same, without waiting for anything to come of it: for those who delete many.
    pub(crate) async fn start_delete(&self, name: &DeploymentName, request: DeleteRequest) -> Result<Deleted, Error> {
        for _ in 0..ATTEMPTS {
            if let Some(deleted) = self.try_delete(name, &request, None).await? {
                return Ok(deleted);
            }
        }
        Err(Error::Contended(name.clone()))
    }

    /// Asks for it once, under one more condition. `None`: somebody was faster.
    async fn try_delete(
        &self,
        name: &DeploymentName,
        request: &DeleteRequest,
        condition: Option<Compare>,
    ) -> Result<Option<Deleted>, Error> {
        let existing = self.existing(name).await?.ok_or_else(|| Error::NotFound(name.clone()))?;
        if let Some(owner) = existing.owner() {
            check_owner(name, &owner, &request.origin, request.ownership)?;
        }
        check_expected(name, request.expect, existing.rev)?;
        let key = layout::deployment_key(name);
        let mut compare = vec![Compare::Modified { key: key.clone(), rev: existing.rev }];
        compare.extend(condition);
        let ops = match (existing.deployment, existing.stored) {
            (Ok(deployment), _) if deployment.deleting => {
                return Ok(Some(Deleted { name: name.clone(), rev: existing.rev }));
            }
            (Ok(_), Some(mut stored)) => {
                stored.deleting = true;
                vec![Op::Put { key, value: stored.bytes() }]
            }
            // The controller does not know it, and has nothing to drain.
            _ => {
                let others = [layout::record_key(name), layout::history_key(name)];
                std::iter::once(key).chain(others).map(|key| Op::Delete { key }).collect()
            }
        };
        Ok(match self.store.commit(Txn { compare, ops }).await? {
            Outcome::Committed(rev) => Some(Deleted { name: name.clone(), rev }),
            Outcome::Conflict => None,
        })
    }

    /// Asks for a deployment to go, unless aliases lead to it, which are given then. None that gains it as a target in this
    /// moment is overlooked.
    ///
    /// # Errors
    /// As [`Handle::delete`]; [`Error::Stopped`], [`Error::Busy`].
    pub async fn delete_unless_led_to(
        &self,
        name: &DeploymentName,
        request: &DeleteRequest,
    ) -> Result<Vec<DeploymentName>, Error> {
        for _ in 0..UNLED_ATTEMPTS {
            let last = self.store.get(aliases::TARGETS_MARK).await?.map_or(Rev::NONE, |entry| entry.modified);
            self.until_seen(last).await;
            let seen = *self.seen.borrow();
            if seen < last {
                return Err(Error::Busy { retry_in: SEEN_WITHIN });
            }
            let leading = self.aliases_of(name).await?;
            if !leading.is_empty() {
                return Ok(leading);
            }
            let none_later = Compare::Modified { key: aliases::TARGETS_MARK.to_owned(), rev: last };
            if let Some(deleted) = self.try_delete(name, request, Some(none_later)).await? {
                self.until_in_force(deleted.rev).await;
                return Ok(Vec::new());
            }
        }
        Err(Error::Contended(name.clone()))
    }
}
