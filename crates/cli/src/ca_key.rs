//! The CA's key in an HSM: its signer, as certificates ask for one.

use std::sync::Arc;

use berth_peer::pki::{CaKey, RemoteKey};
use berth_secrets::keys::{HsmSigner, KeyEnvironment, KeyError, Pkcs11Uri};

#[derive(Debug)]
struct HsmKey(HsmSigner);

impl RemoteKey for HsmKey {
    fn public(&self) -> &[u8] {
        self.0.public()
    }

    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, String> {
        self.0.sign(message).map_err(|error| error.to_string())
    }
}

/// Opens the key that `--ca-key` names, and has it sign once: one that cannot is found now. Blocks.
///
/// # Errors
/// The HSM, the key or the PIN is not there or not the right one; with the remedy.
pub(crate) fn open(uri: &Pkcs11Uri) -> Result<CaKey, KeyError> {
    let pin = uri.pin_source.as_deref().and_then(|source| source.strip_prefix("env:"));
    let pin = pin.and_then(|name| Some((name.to_owned(), std::env::var_os(name)?.into_string().ok()?)));
    let signer = HsmSigner::open(uri, &KeyEnvironment { environment: pin.into_iter().collect() })?;
    signer.sign(b"berth")?;
    Ok(CaKey::Remote(Arc::new(HsmKey(signer))))
}

/// Reads `--ca-key`.
///
/// # Errors
/// It is no `pkcs11:` URI.
pub(crate) fn parse(text: &str) -> Result<Pkcs11Uri, String> {
    if !text.starts_with("pkcs11:") {
        return Err("it begins with pkcs11: leave it out for a key in the file ca.key".to_owned());
    }
    text.parse().map_err(|error: KeyError| error.to_string())
}
