//! Certificate, key and trusted CAs of this node, read from its folder.
//!
//! ```text
//! load ─→ current ──a file changed, all still good──→ current: handshakes from now on use it
//!            └──a file changed, something is wrong──→ as it was, and a warning
//! ```

use std::{
    fmt,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::SystemTime,
};

use arc_swap::ArcSwap;
use aws_lc_rs::digest::{SHA256, digest};
use berth_spec::{Roles, WorkerId};
use fs_err as fs;
use rcgen::KeyPair;
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    sign::CertifiedKey,
};
use tokio_util::sync::CancellationToken;

use super::{
    CA, DOMAIN, GOSSIP_KEY, Keyring, NODE, NODE_KEY, NodeCertificate, OpenConnection, OwnRevocation, PUBLIC, PkiError,
    RevocationList, Revocations, SECRET, Seal, certificate, trust, write,
};
use crate::{
    joining::{self, Issued},
    tls::{self, Caller},
};

/// A node's certificate, key, trusted CAs and gossip keys. Clones are the same one. `Debug` shows no secret.
#[derive(Clone)]
pub struct Identity(Arc<Inner>);

struct Inner {
    folder: PathBuf,
    name: WorkerId,
    roles: Roles,
    current: ArcSwap<Current>,
    revocations: Arc<RevocationList>,
    /// Name of this process in what it seals, and the number of the last datagram.
    sealed: (u64, AtomicU64),
}

/// All that follows from the files as they are now.
pub(crate) struct Current {
    pub(crate) client: Arc<ClientConfig>,
    pub(crate) server: Arc<ServerConfig>,
    /// For nodes that have no certificate yet.
    pub(crate) joining: Arc<ServerConfig>,
    pub(crate) keyring: Arc<Keyring>,
    certificate: Arc<NodeCertificate>,
    ends: Option<SystemTime>,
    trust: String,
    /// To tell whether the files changed.
    digest: Vec<u8>,
}

/// The bytes of ca.pem, node.pem, node.key and gossip.key, in this order.
struct IdentityFiles([Vec<u8>; 4]);

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").field("name", &self.0.name).field("folder", &self.0.folder).finish_non_exhaustive()
    }
}

impl Identity {
    /// Reads ca.pem, node.pem, node.key and gossip.key from `folder` and checks that they belong together and hold now.
    ///
    /// # Errors
    /// What is wrong, with the file and the remedy.
    pub fn load(folder: impl Into<PathBuf>) -> Result<Self, PkiError> {
        let folder = folder.into();
        let revocations = Arc::default();
        let (name, roles, current) = Current::of(&folder, IdentityFiles::read(&folder)?, &revocations)?;
        let mut sender = [0; 8];
        aws_lc_rs::rand::fill(&mut sender).expect("the system gives random bytes");
        let sealed = (u64::from_le_bytes(sender), AtomicU64::new(0));
        Ok(Self(Arc::new(Inner { folder, name, roles, current: ArcSwap::from_pointee(current), revocations, sealed })))
    }

    /// The name in the certificate. Which nodes may show it, [`certifies`](super::certifies) says.
    #[must_use]
    pub fn name(&self) -> &WorkerId {
        &self.0.name
    }

    /// The roles in the certificate that was there when it was loaded: what a node does it decides when it starts.
    #[must_use]
    pub fn roles(&self) -> Roles {
        self.0.roles
    }

    /// Folder that the files were loaded from.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.0.folder
    }

    /// The keys that seal gossip now.
    #[must_use]
    pub fn keyring(&self) -> Arc<Keyring> {
        Arc::clone(&self.0.current.load().keyring)
    }

    /// Seals a datagram of this process into `out`.
    pub(crate) fn seal(&self, plain: &[u8], out: &mut Vec<u8>) {
        let (sender, last) = &self.0.sealed;
        let seal = Seal { sender: *sender, number: last.fetch_add(1, Ordering::Relaxed) };
        self.keyring().seal(plain, seal, out);
    }

    /// End of the certificate's validity. A node that has not renewed it by then is unreachable.
    #[must_use]
    pub fn ends(&self) -> Option<SystemTime> {
        self.0.current.load().ends
    }

    /// Facts of the certificate that is in use now.
    #[must_use]
    pub fn certificate(&self) -> Arc<NodeCertificate> {
        Arc::clone(&self.0.current.load().certificate)
    }

    /// Digest of the CAs that are trusted and of the keys of gossip, to compare with that of another node.
    #[must_use]
    pub fn trust(&self) -> String {
        self.0.current.load().trust.clone()
    }

    /// Refuses the certificates that are revoked from now on, and cuts the connections with nodes that showed one.
    pub fn learn_revocations(&self, revocations: Revocations) {
        self.0.revocations.learn(revocations);
    }

    /// Revocations that this process knows.
    #[must_use]
    pub fn revocations(&self) -> Arc<Revocations> {
        self.0.revocations.known()
    }

    /// Waits until this node's own certificate is revoked. Other nodes talk to it no more.
    pub async fn revoked(&self) -> OwnRevocation {
        let mut changed = self.0.revocations.changed();
        loop {
            let certificate = self.certificate();
            if let Some(revocation) = self.0.revocations.known().of(&certificate) {
                return OwnRevocation::Known(revocation.clone());
            }
            if let Some(by) = self.0.revocations.told(&certificate) {
                return OwnRevocation::Told(by);
            }
            // The list lives as long as this.
            let _ = changed.changed().await;
        }
    }

    /// Notes that a controller has refused this node's certificate as a revoked one. Controllers cut a revoked node off before it
    /// can ask them for the list.
    pub(crate) fn told_revoked(&self, certificate: &NodeCertificate, by: &WorkerId) {
        self.0.revocations.tell(certificate, by);
    }

    /// A request (PKCS#10, PEM) for the next certificate of this node's key.
    ///
    /// # Errors
    /// The key cannot be read, or is of a kind that signs no requests.
    pub fn request(&self) -> Result<String, PkiError> {
        let file = self.0.folder.join(NODE_KEY);
        let key = KeyPair::from_pem(&fs::read_to_string(&file)?);
        let key = key.map_err(|error| PkiError::unusable(&file, format!("signs no request ({error})")))?;
        super::request(&key)
    }

    /// Takes the next certificate of this node's key into use, and the CAs and keys of gossip that came with it. Connections stay.
    ///
    /// # Errors
    /// The certificate is not for this node, or files cannot be written.
    pub fn renewed(&self, issued: &Issued) -> Result<(), PkiError> {
        let folder = &self.0.folder;
        write(&folder.join(CA), issued.authorities.as_bytes(), PUBLIC)?;
        if let Some(gossip) = &issued.gossip {
            write(&folder.join(GOSSIP_KEY), gossip.as_bytes(), SECRET)?;
        }
        write(&folder.join(NODE), issued.certificate.as_bytes(), PUBLIC)?;
        self.reload().map(drop)
    }

    /// Notes an open connection, so that it is cut when the certificate of its other end is revoked.
    pub(crate) fn opened(&self, caller: &Caller, cut: &CancellationToken) -> OpenConnection {
        self.0.revocations.opened(&caller.certificate, cut)
    }

    pub(crate) fn current(&self) -> Arc<Current> {
        self.0.current.load_full()
    }

    /// Reads the files again and uses them from now on, if they changed. Says whether they did. Connections stay.
    ///
    /// # Errors
    /// What is wrong with the new files; the old ones stay in use.
    pub fn reload(&self) -> Result<bool, PkiError> {
        let files = IdentityFiles::read(&self.0.folder)?;
        if files.digest() == self.0.current.load().digest {
            return Ok(false);
        }
        let (name, roles, current) = Current::of(&self.0.folder, files, &self.0.revocations)?;
        if name != self.0.name {
            let reason = format!("is for {name}, and the one before it for {}", self.0.name);
            return Err(PkiError::unusable(self.0.folder.join(NODE), reason));
        }
        if !roles.contain(self.0.roles) {
            let reason = format!("is for the roles {roles}, and the one before it for {}", self.0.roles);
            return Err(PkiError::unusable(self.0.folder.join(NODE), reason));
        }
        self.0.current.store(Arc::new(current));
        Ok(true)
    }

    /// True if one of these CAs, in PEM, signed the certificate in its folder.
    pub(super) fn is_issued_by(&self, authorities: &[u8]) -> Result<bool, PkiError> {
        let (folder, IdentityFiles([_, node, key, gossip])) = (&self.0.folder, IdentityFiles::read(&self.0.folder)?);
        let parts = Parts::of(folder, &IdentityFiles([authorities.to_vec(), node, key, gossip]))?;
        let algorithms = tls::provider().signature_verification_algorithms;
        Ok(certificate::check(&folder.join(NODE), &parts.chain, &parts.roots.roots, algorithms).is_ok())
    }

    /// Checks what was issued, whenever it becomes valid: an authority may issue for later.
    pub(super) fn check_chain(folder: &Path) -> Result<(), PkiError> {
        let parts = Parts::of(folder, &IdentityFiles::read(folder)?)?;
        parts.certified()?;
        parts.certificate().map(drop)
    }
}

impl IdentityFiles {
    fn read(folder: &Path) -> Result<Self, PkiError> {
        let read = |file: &str| -> Result<Vec<u8>, PkiError> {
            let path = folder.join(file);
            fs::read(&path).map_err(|error| match error.kind() {
                std::io::ErrorKind::NotFound => {
                    PkiError::unusable(path, "is not there: make it with `berth pki issue`, or name the right folder")
                }
                _ => error.into(),
            })
        };
        for secret in [NODE_KEY, GOSSIP_KEY] {
            let path = folder.join(secret);
            if let Ok(found) = fs::metadata(&path)
                && found.permissions().mode() & 0o077 != 0
            {
                let mode = found.permissions().mode() & 0o777;
                let reason = format!("may be read by others (mode {mode:03o}): run chmod 600 {}", path.display());
                return Err(PkiError::unusable(&path, reason));
            }
        }
        Ok(Self([read(CA)?, read(NODE)?, read(NODE_KEY)?, read(GOSSIP_KEY)?]))
    }

    fn digest(&self) -> Vec<u8> {
        self.0.iter().flat_map(|file| digest(&SHA256, file).as_ref().to_vec()).collect()
    }
}

/// The files as they parse, before they are held against each other.
struct Parts<'a> {
    folder: &'a Path,
    roots: RootCertStore,
    /// The CAs, parsed.
    authorities: Vec<CertificateDer<'static>>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    keyring: Keyring,
}

impl<'a> Parts<'a> {
    fn of(folder: &'a Path, IdentityFiles([ca, node, key, gossip]): &IdentityFiles) -> Result<Self, PkiError> {
        let at = |file: &str| folder.join(file);
        let certificates = |file: &str, text: &[u8]| {
            CertificateDer::pem_slice_iter(text)
                .collect::<Result<Vec<_>, _>>()
                .map_err(|error| PkiError::unusable(at(file), format!("is not PEM with certificates ({error})")))
        };
        let mut roots = RootCertStore::empty();
        let authorities = certificates(CA, ca)?;
        for root in &authorities {
            roots
                .add(root.clone())
                .map_err(|error| PkiError::unusable(at(CA), format!("holds no usable CA ({error})")))?;
        }
        if roots.is_empty() {
            return Err(PkiError::unusable(at(CA), "holds no certificate: copy ca.pem from the CA's folder"));
        }
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|error| PkiError::unusable(at(NODE_KEY), format!("is not PEM with a private key ({error})")))?;
        let gossip = std::str::from_utf8(gossip).map_err(|_| PkiError::unusable(at(GOSSIP_KEY), "is not text"))?;
        let keyring = Keyring::parse(gossip, &at(GOSSIP_KEY))?;
        Ok(Self { folder, roots, authorities, chain: certificates(NODE, node)?, key, keyring })
    }

    /// Facts of the node's certificate.
    fn certificate(&self) -> Result<NodeCertificate, PkiError> {
        let certificate = self.chain.first().and_then(NodeCertificate::read).ok_or_else(|| {
            let reason = format!("names no node: it needs the DNS name NAME{DOMAIN}");
            PkiError::unusable(self.folder.join(NODE), reason)
        })?;
        if certificate.roles == Roles::NONE {
            let reason = "names no roles, as those of earlier versions: issue it again with `berth pki issue DIR NAME --roles …`, \
                          before nodes are upgraded (docs/cluster.md, \"Certificates without roles\")";
            return Err(PkiError::unusable(self.folder.join(NODE), reason));
        }
        Ok(certificate)
    }

    fn certified(&self) -> Result<CertifiedKey, PkiError> {
        CertifiedKey::from_der(self.chain.clone(), self.key.clone_key(), &tls::provider()).map_err(|error| {
            let reason = match error {
                rustls::Error::InconsistentKeys(_) => {
                    "is not the key of node.pem: take both from the same `berth pki issue`".to_owned()
                }
                other => format!("is of no use with node.pem ({other})"),
            };
            PkiError::unusable(self.folder.join(NODE_KEY), reason)
        })
    }
}

impl Current {
    fn of(
        folder: &Path,
        files: IdentityFiles,
        revocations: &Arc<RevocationList>,
    ) -> Result<(WorkerId, Roles, Self), PkiError> {
        let parts = Parts::of(folder, &files)?;
        let algorithms = tls::provider().signature_verification_algorithms;
        certificate::check(&folder.join(NODE), &parts.chain, &parts.roots.roots, algorithms)?;
        let ends = certificate::ends(&parts.chain, &parts.roots.roots, algorithms);
        let certificate = Arc::new(parts.certificate()?);
        let (name, roles) = (certificate.name.clone(), certificate.roles);
        let certified = Arc::new(parts.certified()?);
        let joining = joining::server(&parts.chain, &parts.authorities, parts.key.clone_key());
        let joining =
            joining.map_err(|error| PkiError::unusable(folder.join(NODE), format!("cannot be used ({error})")))?;
        let roots = Arc::new(parts.roots);
        let unusable = |error: String| PkiError::unusable(folder.join(CA), format!("cannot be used for TLS ({error})"));
        let client = tls::client(Arc::clone(&roots), Arc::clone(&certified), revocations).map_err(unusable)?;
        let server = tls::server(roots, certified, revocations).map_err(unusable)?;
        Ok((
            name,
            roles,
            Self {
                client: Arc::new(client),
                server: Arc::new(server),
                joining: Arc::new(joining),
                keyring: Arc::new(parts.keyring),
                certificate,
                ends,
                trust: trust(&files.0[0], &files.0[3]),
                digest: files.digest(),
            },
        ))
    }
}
