//! The files of a node that is on its way to its first certificate.
//!
//! ```text
//! begun: node.key, node.csr ──issued──▶ ca.pem, gossip.key, members ──last──▶ node.pem: the folder is a node's
//! ```
//! Cut off at any moment, the node begins again with the same key and request, which the cluster knows again.

use std::{
    io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use fs_err as fs;
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256};

use super::{CA, GOSSIP_KEY, NODE, NODE_KEY, PUBLIC, PkiError, SECRET, request, write};
use crate::joining::Issued;

/// The file with the request, until there is a certificate.
const REQUEST: &str = "node.csr";

/// The file with gossip addresses of members, one per line.
const MEMBERS: &str = "members";

/// A folder that becomes a node's.
#[derive(Debug)]
pub struct Enrolment {
    folder: PathBuf,
    request: String,
}

impl Enrolment {
    /// Makes the folder, a key (ECDSA P-256) and a request for it, where they are not there yet; `None`: the folder has a
    /// certificate already.
    ///
    /// # Errors
    /// Files cannot be read or written.
    pub fn begin(folder: impl Into<PathBuf>) -> Result<Option<Self>, PkiError> {
        let folder = folder.into();
        if folder.join(NODE).exists() {
            return Ok(None);
        }
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&folder)
            .map_err(|error| io::Error::new(error.kind(), format!("cannot make {}: {error}", folder.display())))?;
        let (key, asked) = (folder.join(NODE_KEY), folder.join(REQUEST));
        if !(key.exists() && asked.exists()) {
            let made = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
            write(&key, made.serialize_pem().as_bytes(), SECRET)?;
            write(&asked, request(&made)?.as_bytes(), PUBLIC)?;
        }
        let request = fs::read_to_string(asked)?;
        Ok(Some(Self { folder, request }))
    }

    /// The request for a certificate (PKCS#10, PEM).
    #[must_use]
    pub fn request(&self) -> &str {
        &self.request
    }

    /// Writes what was issued.
    ///
    /// # Errors
    /// Files cannot be written, or the answer lacks a part.
    pub fn finish(self, issued: &Issued) -> Result<(), PkiError> {
        let file = |name: &str| self.folder.join(name);
        let Some(gossip) = &issued.gossip else {
            return Err(PkiError::unusable(
                file(GOSSIP_KEY),
                "did not come with the certificate: ask another controller",
            ));
        };
        write(&file(GOSSIP_KEY), gossip.as_bytes(), SECRET)?;
        write(&file(CA), issued.authorities.as_bytes(), PUBLIC)?;
        write(&file(MEMBERS), issued.members.join("\n").as_bytes(), PUBLIC)?;
        write(&file(NODE), issued.certificate.as_bytes(), PUBLIC)?;
        // It is of no use any more, and does no harm.
        let _ = fs::remove_file(file(REQUEST));
        Ok(())
    }

    /// Gossip addresses of members that were there when the node in this folder joined.
    #[must_use]
    pub fn members(folder: &Path) -> Vec<String> {
        let text = fs::read_to_string(folder.join(MEMBERS)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use berth_spec::{Roles, WorkerId};

    use super::*;
    use crate::pki::{Authority, Identity, NodeSubject};

    #[test]
    fn a_node_that_is_cut_off_asks_again_with_the_same_request() {
        let folder = tempfile::tempdir().expect("a folder");
        let (ca, pki) = (folder.path().join("ca"), folder.path().join("data/pki"));
        let authority = Authority::create(&ca).expect("a CA");
        let first = Enrolment::begin(&pki).expect("begun").expect("no certificate");
        let again = Enrolment::begin(&pki).expect("begun").expect("no certificate");
        assert_eq!(first.request(), again.request());

        let name = WorkerId::new("gpu-1").expect("a name");
        let subject = NodeSubject { name: &name, roles: Roles { worker: true, ..Roles::NONE }, hosts: &[] };
        let life = Duration::from_secs(600);
        let issued = Issued {
            certificate: authority.sign(again.request(), subject, life, 0).expect("signed"),
            authorities: authority.authorities().to_owned(),
            gossip: Some(authority.gossip().to_owned()),
            members: vec!["10.0.0.1:7946".to_owned()],
        };
        again.finish(&issued).expect("written");
        assert!(Enrolment::begin(&pki).expect("read").is_none());
        let identity = Identity::load(&pki).expect("a node's folder");
        assert_eq!((identity.name(), identity.roles()), (&name, subject.roles));
        assert_eq!(Enrolment::members(&pki), ["10.0.0.1:7946"]);

        // The next certificate is for the same key, and has another serial number.
        let before = identity.certificate();
        let request = identity.request().expect("a request");
        let certificate = authority.sign(&request, subject, life, before.from + 5).expect("signed");
        identity.renewed(&Issued { certificate, gossip: None, ..issued }).expect("in use");
        let after = identity.certificate();
        assert_ne!(before.serial, after.serial);
        assert_eq!(after.from, before.from + 5);
    }
}
