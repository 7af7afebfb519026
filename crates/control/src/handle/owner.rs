//! The right to write: the source that owns a thing, and the version that the writer has read.

use berth_spec::{DeploymentName, Origin};

use super::{Error, Ownership};
use crate::store::Rev;

/// Refuses another source, unless it takes over.
pub(super) fn check_owner(
    name: &DeploymentName,
    owner: &Origin,
    by: &Origin,
    ownership: Ownership,
) -> Result<(), Error> {
    if owner == by || ownership == Ownership::TakeOver {
        return Ok(());
    }
    Err(Error::Owned { name: name.clone(), owner: owner.clone(), by: by.clone() })
}

/// Refuses a writer who has read another version.
pub(super) fn check_expected(name: &DeploymentName, expect: Option<Rev>, found: Rev) -> Result<(), Error> {
    match expect {
        Some(expected) if expected != found => Err(Error::Stale { name: name.clone(), expected, found }),
        _ => Ok(()),
    }
}
