//! Opens the CA of a node that gives certificates to nodes.

use std::{path::Path, sync::Arc};

use berth_control::api::Issuing;
use berth_peer::{Identity, PkiError, pki::Authority};

use super::settings::AuthoritySettings;
use crate::{ca_key, failure::Failure};

/// Opens the CA, for a node with the certificate in the folder `pki`.
///
/// # Errors
/// It cannot be used, or not by this node; with the file and the remedy.
pub(super) fn open(settings: &AuthoritySettings, pki: &Path) -> Result<Arc<Issuing>, Failure> {
    let authority = match &settings.key {
        None => Authority::open(&settings.folder),
        Some(uri) => {
            let key = ca_key::open(uri).map_err(|error| Failure::Failed(format!("--ca-key: {error}")))?;
            Authority::open_with(&settings.folder, key)
        }
    };
    let wrong = |error: PkiError| Failure::Usage(format!("--authority: {error}"));
    let authority = authority.map_err(wrong)?;
    // A node that took the certificates of this CA would be alone with them.
    let node = Identity::load(pki).map_err(|error| Failure::Usage(error.to_string()))?;
    authority.check_followed_by(&node).map_err(wrong)?;
    let issuing = Issuing::new(authority, settings.life);
    Ok(Arc::new(match settings.pods.clone() {
        Some(pods) => issuing.with_attestation(berth_kubernetes::attestation(pods)),
        None => issuing,
    }))
}
