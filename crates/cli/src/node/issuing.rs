//! Opens the CA of a node that gives certificates to nodes.

use std::sync::Arc;

use berth_control::api::Issuing;
use berth_peer::pki::Authority;

use super::settings::AuthoritySettings;
use crate::failure::Failure;

/// Opens the CA.
///
/// # Errors
/// It cannot be used, with the file and the remedy.
pub(super) fn open(settings: &AuthoritySettings) -> Result<Arc<Issuing>, Failure> {
    let authority =
        Authority::open(&settings.folder).map_err(|error| Failure::Usage(format!("--authority: {error}")))?;
    Ok(Arc::new(Issuing::new(authority, settings.life)))
}
