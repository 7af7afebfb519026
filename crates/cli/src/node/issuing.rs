//! Opens the CA of a node that gives certificates to nodes.

use std::sync::Arc;

use berth_control::api::Issuing;
use berth_peer::pki::Authority;

use super::settings::AuthoritySettings;
use crate::{ca_key, failure::Failure};

/// Opens the CA.
///
/// # Errors
/// It cannot be used, with the file and the remedy.
pub(super) fn open(settings: &AuthoritySettings) -> Result<Arc<Issuing>, Failure> {
    let authority = match &settings.key {
        None => Authority::open(&settings.folder),
        Some(uri) => {
            let key = ca_key::open(uri).map_err(|error| Failure::Failed(format!("--ca-key: {error}")))?;
            Authority::open_with(&settings.folder, key)
        }
    };
    let authority = authority.map_err(|error| Failure::Usage(format!("--authority: {error}")))?;
    let issuing = Issuing::new(authority, settings.life);
    Ok(Arc::new(match settings.pods.clone() {
        Some(pods) => issuing.with_attestation(berth_kubernetes::attestation(pods)),
        None => issuing,
    }))
}
