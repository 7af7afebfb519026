//! Join tokens: what a new node is given so that it can ask for a certificate.
//!
//! The text is `berth-join-1.` and then base64url of JSON: the secret, the fingerprint of the CA by which the node knows the
//! cluster, where controllers can be reached, and the roles that it gives.

use std::{fmt, path::Path, str::FromStr};

use aws_lc_rs::digest::{SHA256, digest};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use berth_spec::Roles;
use fs_err as fs;
use rustls::pki_types::{
    CertificateDer,
    pem::{self, PemObject as _},
};
use serde::{Deserialize, Serialize};

use super::PkiError;

/// Beginning of the text, with the number of its form.
const PREFIX: &str = "berth-join-1.";

/// Longest text, in bytes: room for the addresses of some hundred controllers.
const MAX_TOKEN_BYTES: usize = 8 << 10;

/// A join token. `Debug` shows no secret.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinToken {
    /// Secret that the cluster knows the hash of.
    pub secret: String,
    /// Fingerprint of the CA, as [`fingerprint`] gives it.
    pub ca: String,
    /// Addresses of controllers, of their ports for other nodes: `HOST:PORT`.
    pub at: Vec<String>,
    /// Roles in the certificates that it gives, so that a node asks for no others; `None`: an earlier version made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub roles: Option<Roles>,
}

/// Reason why a text is no join token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("this is no join token ({0}): `berth join-token create` makes one, a single line that begins with {PREFIX}")]
pub struct InvalidJoinToken(&'static str);

/// SHA-256 of a certificate, in hexadecimal digits.
#[must_use]
pub fn fingerprint(certificate: &CertificateDer<'_>) -> String {
    digest(&SHA256, certificate).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Fingerprints of all certificates in a text in PEM.
pub(super) fn fingerprints(pem: &[u8]) -> Result<Vec<String>, pem::Error> {
    CertificateDer::pem_slice_iter(pem).map(|certificate| Ok(fingerprint(&certificate?))).collect()
}

/// Fingerprint of the first certificate in a file: that of the CA which issues, in a ca.pem.
///
/// # Errors
/// The file cannot be read, or holds no certificate in PEM.
pub fn fingerprint_of(file: &Path) -> Result<String, PkiError> {
    let text = fs::read(file)?;
    let first = CertificateDer::from_pem_slice(&text);
    first.map(|first| fingerprint(&first)).map_err(|error| {
        PkiError::unusable(file, format!("holds no certificate ({error}): name the ca.pem that `berth pki init` made"))
    })
}

impl JoinToken {
    /// The text that a node is given.
    #[must_use]
    pub fn text(&self) -> String {
        let json = serde_json::to_vec(self).expect("text and lists of text can be JSON");
        format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(json))
    }
}

impl FromStr for JoinToken {
    type Err = InvalidJoinToken;

    fn from_str(text: &str) -> Result<Self, InvalidJoinToken> {
        let text = text.trim();
        if text.len() > MAX_TOKEN_BYTES {
            return Err(InvalidJoinToken("it is too long"));
        }
        let rest = text.strip_prefix(PREFIX).ok_or(InvalidJoinToken("it begins with something else"))?;
        let json = URL_SAFE_NO_PAD.decode(rest).map_err(|_| InvalidJoinToken("a part of it is missing or changed"))?;
        let token: Self =
            serde_json::from_slice(&json).map_err(|_| InvalidJoinToken("a part of it is missing or changed"))?;
        if token.at.is_empty() {
            return Err(InvalidJoinToken("it names no address"));
        }
        Ok(token)
    }
}

impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinToken").field("ca", &self.ca).field("at", &self.at).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pki::{Authority, CA};

    #[test]
    fn a_ca_is_known_by_the_first_certificate_of_its_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let authority = Authority::create(folder.path()).expect("a CA");
        let file = folder.path().join(CA);
        assert_eq!(fingerprint_of(&file).expect("a fingerprint"), authority.fingerprint());
        fs::write(&file, "nothing").expect("written");
        let error = fingerprint_of(&file).expect_err("it has none").to_string();
        assert!(error.contains("ca.pem") && error.contains("berth pki init"), "{error}");
    }

    #[test]
    fn a_token_comes_back_from_its_text_and_a_broken_one_shows_no_secret() {
        let token = JoinToken {
            secret: "s3cret".to_owned(),
            ca: "ab".to_owned(),
            at: vec!["10.0.0.2:7947".to_owned()],
            roles: Some(Roles { worker: true, ..Roles::NONE }),
        };
        let text = token.text();
        assert_eq!(format!(" {text}\n").parse(), Ok(token.clone()));
        assert!(!format!("{token:?}").contains("s3cret"));
        let nowhere = JoinToken { at: Vec::new(), ..token }.text();
        for broken in
            ["", "berth_abc", &text[..text.len() - 3], "berth-join-1.e30", &nowhere, &"x".repeat(MAX_TOKEN_BYTES + 1)]
        {
            let error = broken.parse::<JoinToken>().expect_err(broken).to_string();
            assert!(error.contains("berth join-token create") && !error.contains("s3cret"), "{error}");
        }
    }
}
