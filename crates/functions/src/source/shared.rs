//! Artifacts between controllers: what the leader gives, and what another controller takes.

use std::{io, path::PathBuf, sync::Arc};

use super::Host;
use crate::build::{
    ArtifactStore, Document,
    copies::{Copies, LISTING, Listing, decide, platform},
};

impl Host {
    /// Artifacts in use, for other controllers; `None`: this node does not know yet what there is. Blocks.
    #[must_use]
    pub fn listing(&self) -> Option<Listing> {
        Some(self.artifacts().listing(self.artifacts_in_use()?))
    }

    /// The file that a path below [`LISTING`] stands for; `None`: there is none. Blocks.
    #[must_use]
    pub fn file_at(&self, path: &str) -> Option<PathBuf> {
        let rest = path.strip_prefix(LISTING)?.strip_prefix('/')?;
        let file = match rest.split_once('/') {
            Some((digest, ending)) => self.artifacts().document(digest, Document::of_ending(ending)?)?,
            None => self.artifacts().path(rest)?,
        };
        file.is_file().then_some(file)
    }

    /// Decides about the copies of this node, by the leader's listing. Blocks.
    ///
    /// # Errors
    /// If the folder of artifacts cannot be read.
    pub fn copies(&self, listing: &Listing) -> io::Result<Copies> {
        Ok(decide(listing, &platform(), &self.artifacts().held()?, self.local().used()))
    }

    /// Artifacts of this node.
    #[must_use]
    pub fn artifacts(&self) -> &Arc<ArtifactStore> {
        self.builder().artifacts()
    }
}
