//! An object as the controller keeps it: small, for there are many, and few have a turn at a time.

use std::sync::Arc;

use berth_control::store::Rev;

use crate::{
    deployment::{Declared, FunctionSpec, Identity, ObjectMeta, Platform},
    status::{Revision, Status},
};

/// An object without its parsed spec, which takes more memory than its text: each turn reads that again.
#[derive(Debug)]
pub(super) struct CompactObject {
    pub(super) identity: Identity,
    pub(super) location: RunLocation,
    /// The spec as JSON text; the history of the status shares it.
    pub(super) text: Arc<str>,
    pub(super) metadata: ObjectMeta,
    /// The status in the object.
    pub(super) status: Arc<Status>,
    pub(super) writable: bool,
    pub(super) rev: Rev,
}

/// Place where a function runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RunLocation {
    /// None: the spec is invalid.
    Nowhere,
    /// This machine.
    Local,
    /// A cloud or workers, where somebody else may change it.
    Remote,
}

impl CompactObject {
    /// Takes over an object that was found; texts that are the same are held once. Also returns the unknown fields of its spec, or its mistakes.
    pub(super) fn of(declared: Declared) -> (Self, Result<Vec<String>, String>) {
        let Declared { identity, spec, unknown, text, metadata, mut status, writable, rev } = declared;
        if status.observed_digest == identity.digest {
            status.observed_digest = Arc::clone(&identity.digest);
        }
        share(&text, &mut status.history);
        let location = match &spec {
            Err(_) => RunLocation::Nowhere,
            Ok(spec) if matches!(spec.platform, Platform::Local) => RunLocation::Local,
            Ok(_) => RunLocation::Remote,
        };
        let remembered = Self { identity, location, text, metadata, status: Arc::new(status), writable, rev };
        (remembered, spec.map(|_| unknown))
    }

    /// The spec, or everything that is wrong with it.
    pub(super) fn spec(&self, key: &str) -> Result<FunctionSpec, String> {
        FunctionSpec::reread(key, &self.text)
    }
}

/// Has the revisions with this very spec hold `text`, not a copy of it.
pub(super) fn share(text: &Arc<str>, history: &mut [Revision]) {
    for past in history {
        if past.spec.0 == *text {
            past.spec.0 = Arc::clone(text);
        }
    }
}
