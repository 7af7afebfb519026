//! The CA: makes itself, and certificates for nodes.

use std::{
    fmt,
    fs::OpenOptions,
    io::{self, Write as _},
    net::IpAddr,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use berth_spec::{Roles, WorkerId};
use fs_err as fs;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PublicKeyData as _,
    SanType, SerialNumber,
};
use rustls::pki_types::{CertificateDer, DnsName, pem::PemObject as _};
use x509_parser::parse_x509_certificate;

use super::{
    CA, CA_KEY, CaKey, DOMAIN, GOSSIP_KEY, Identity, Keyring, NODE, NODE_KEY, PkiError, ROLE_DOMAIN, fingerprint,
    join_token::fingerprints, trust,
};

/// Default validity of a node's certificate. One year limits the use of a stolen key and allows for yearly renewal.
pub const DEFAULT_VALIDITY: Duration = Duration::from_secs(365 * 24 * 3600);

/// Validity of the CA. Ten years, because a change means two CAs on every node for a while.
const CA_VALIDITY: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Clock difference tolerated between nodes and the machine that issues: clocks that nobody sets drift less in years.
const SKEW: Duration = Duration::from_secs(600);

/// The subject of CAs made here. All have it: what tells them apart is their key.
const SUBJECT: &str = "berth cluster CA";

/// A CA: its certificate on disk, and its private key there or in a token. `Debug` shows no secret.
pub struct Authority {
    folder: PathBuf,
    /// The CAs that nodes trust, in PEM; the first one issues.
    authorities: String,
    issuer: Issuer<'static, CaKey>,
    fingerprint: String,
    /// The fingerprints of all that nodes trust.
    trusted: Vec<String>,
    /// The text of gossip.key, and its keys.
    gossip: (String, Keyring),
}

/// The subject of a node's certificate, and the other names and roles in it.
#[derive(Debug, Clone, Copy)]
pub struct NodeSubject<'a> {
    /// The node.
    pub name: &'a WorkerId,
    /// Roles that the node may have.
    pub roles: Roles,
    /// DNS names and addresses for which the certificate is also good.
    pub hosts: &'a [String],
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority")
            .field("folder", &self.folder)
            .field("fingerprint", &self.fingerprint)
            .finish_non_exhaustive()
    }
}

impl Authority {
    /// Makes a CA (ECDSA P-256, ten years) and a gossip key in `folder`, which is created if it is not there.
    ///
    /// # Errors
    /// A CA is there already, or files cannot be written.
    pub fn create(folder: impl Into<PathBuf>) -> Result<Self, PkiError> {
        Self::create_with(folder, CaKey::generate()?)
    }

    /// As [`Authority::create`], with a key that is there already. One in a token stays there: no ca.key is written.
    ///
    /// # Errors
    /// As [`Authority::create`], or the token does not sign.
    pub fn create_with(folder: impl Into<PathBuf>, key: CaKey) -> Result<Self, PkiError> {
        let folder = folder.into();
        private(&folder)?;
        for file in [CA, CA_KEY] {
            if folder.join(file).exists() {
                return Err(PkiError::Exists(folder.join(file)));
            }
        }
        let mut params = ca_params();
        params.not_before = since_epoch(SystemTime::now() - SKEW);
        params.not_after = since_epoch(SystemTime::now() + CA_VALIDITY);
        let certificate = params.self_signed(&key)?.pem();
        if let Some(pem) = key.pem() {
            write(&folder.join(CA_KEY), pem.as_bytes(), SECRET)?;
        }
        write(&folder.join(CA), certificate.as_bytes(), PUBLIC)?;
        if !folder.join(GOSSIP_KEY).exists() {
            write(&folder.join(GOSSIP_KEY), Keyring::generate_text().as_bytes(), SECRET)?;
        }
        Self::with(folder, key)
    }

    /// Opens the CA that [`Authority::create`] made, or one that somebody put there.
    ///
    /// # Errors
    /// A file is missing or is not what it should be.
    pub fn open(folder: impl Into<PathBuf>) -> Result<Self, PkiError> {
        let folder = folder.into();
        Self::check_files(&folder, &[CA, CA_KEY, GOSSIP_KEY])?;
        let key = CaKey::read(&folder.join(CA_KEY))?;
        Self::with(folder, key)
    }

    /// Opens a CA whose private key is in a token.
    ///
    /// # Errors
    /// A file is missing or is not what it should be, or the key is another one's.
    pub fn open_with(folder: impl Into<PathBuf>, key: CaKey) -> Result<Self, PkiError> {
        let folder = folder.into();
        Self::check_files(&folder, &[CA, GOSSIP_KEY])?;
        Self::with(folder, key)
    }

    fn check_files(folder: &Path, files: &[&str]) -> Result<(), PkiError> {
        match files.iter().map(|file| folder.join(file)).find(|file| !file.exists()) {
            Some(file) => {
                let reason = "is not there: make a CA with `berth pki init`, or name the folder that has one; a key in an HSM is \
                              named by --ca-key";
                Err(PkiError::unusable(file, reason))
            }
            None => Ok(()),
        }
    }

    fn with(folder: PathBuf, key: CaKey) -> Result<Self, PkiError> {
        let file = folder.join(CA);
        let authorities = fs::read_to_string(&file)?;
        let wrong = |error: &dyn std::fmt::Display| PkiError::unusable(&file, format!("holds no usable CA ({error})"));
        let first = CertificateDer::from_pem_slice(authorities.as_bytes()).map_err(|error| wrong(&error))?;
        let trusted = fingerprints(authorities.as_bytes()).map_err(|error| wrong(&error))?;
        let (_, parsed) = parse_x509_certificate(&first).map_err(|error| wrong(&error))?;
        if parsed.public_key().subject_public_key.data.as_ref() != key.der_bytes() {
            let reason = "its first certificate is not that of the private key: the CA that issues comes first";
            return Err(PkiError::unusable(&file, reason));
        }
        let fingerprint = fingerprint(&first);
        let issuer = Issuer::from_ca_cert_der(&first, key).map_err(|error| wrong(&error))?;
        let file = folder.join(GOSSIP_KEY);
        let gossip = fs::read_to_string(&file)?;
        let keyring = Keyring::parse(&gossip, &file)?;
        Ok(Self { folder, authorities, issuer, fingerprint, trusted, gossip: (gossip, keyring) })
    }

    /// Reads the files again. `None`: they are as they were. Blocks.
    ///
    /// # Errors
    /// What is wrong with the new files; this CA is still good. Nodes follow a change one after the other, so those that have and those
    /// that have not must take each other's certificates, and open each other's gossip: other changes are refused.
    pub fn reread(&self) -> Result<Option<Self>, PkiError> {
        let key = match self.issuer.key() {
            CaKey::File(_) => CaKey::read(&self.folder.join(CA_KEY))?,
            CaKey::Remote(key) => CaKey::Remote(Arc::clone(key)),
        };
        let read = Self::with(self.folder.clone(), key)?;
        if (&read.authorities, &read.gossip.0) == (&self.authorities, &self.gossip.0) {
            return Ok(None);
        }
        if !read.trusted.contains(&self.fingerprint) || !self.trusted.contains(&read.fingerprint) {
            let reason = "replaces the CA that issues at once: add the new one first, then put it in front, then take the old one out";
            return Err(PkiError::unusable(self.folder.join(CA), reason));
        }
        if !read.gossip.1.joins(&self.gossip.1) {
            let reason = "replaces the key that seals at once: add the new one first, then put it in front, then take the old one out";
            return Err(PkiError::unusable(self.folder.join(GOSSIP_KEY), reason));
        }
        Ok(Some(read))
    }

    /// Checks that this CA is the one that a node follows, or one step of a change ahead: that the node takes what this CA signs, and
    /// whoever trusts this CA takes the node. The same as [`Authority::reread`] checks, for a process that did not see the step before.
    ///
    /// # Errors
    /// The files skip a step, or are those of another cluster; with the remedy.
    pub fn check_followed_by(&self, node: &Identity) -> Result<(), PkiError> {
        let (at, own) = (self.folder.join(CA), node.folder());
        let trusted = fingerprints(&fs::read(own.join(CA))?)
            .map_err(|error| PkiError::unusable(own.join(CA), format!("is not PEM with certificates ({error})")))?;
        let remedy = format!(
            "put the files of the step before back, and go on from there: add the new one first, then put it in front, then take the old one \
             out; if all other nodes have followed already, `berth pki issue {} {}` and start with the files that it makes",
            self.folder.display(),
            node.name()
        );
        if !trusted.contains(&self.fingerprint) {
            let reason = format!(
                "its first CA is not in {}, so that nodes refuse what it signs: {remedy}",
                own.join(CA).display()
            );
            return Err(PkiError::unusable(at, reason));
        }
        if !node.is_issued_by(self.authorities.as_bytes())? {
            let reason = format!(
                "none of its CAs signed {}, so that nodes which follow it refuse this one: {remedy}",
                own.join(NODE).display()
            );
            return Err(PkiError::unusable(at, reason));
        }
        if !self.gossip.1.joins(&node.keyring()) {
            let reason = format!(
                "the keys that seal here and in {} do not open each other's: {remedy}",
                own.join(GOSSIP_KEY).display()
            );
            return Err(PkiError::unusable(self.folder.join(GOSSIP_KEY), reason));
        }
        Ok(())
    }

    /// The CAs that nodes trust, in PEM.
    #[must_use]
    pub fn authorities(&self) -> &str {
        &self.authorities
    }

    /// Fingerprint of the CA that issues.
    #[must_use]
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// The text of gossip.key.
    #[must_use]
    pub fn gossip(&self) -> &str {
        &self.gossip.0
    }

    /// Digest of the CAs and keys of gossip that nodes are to have ([`Identity::trust`]).
    #[must_use]
    pub fn trust(&self) -> String {
        trust(self.authorities.as_bytes(), self.gossip().as_bytes())
    }

    /// Signs the key in a node's request (PKCS#10, PEM), valid for `validity` from now and no earlier than `earliest`
    /// (seconds since the Unix epoch). Names in the request do not count. Gives the certificate in PEM. Blocks where the
    /// key is in a token.
    ///
    /// # Errors
    /// The request is not one, a name cannot be in a certificate, or the token does not sign.
    pub fn sign(
        &self,
        request: &str,
        subject: NodeSubject<'_>,
        validity: Duration,
        earliest: u64,
    ) -> Result<String, PkiError> {
        let asked = CertificateSigningRequestParams::from_pem(request).map_err(|error| PkiError::Name {
            name: subject.name.to_string(),
            reason: format!("its request cannot be read, or is not signed with its own key ({error})"),
        })?;
        let mut params = node_params(subject)?;
        // Certificates of minutes are not dated back by more than a part of them.
        let from = SystemTime::now() - SKEW.min(validity / 10);
        params.not_before = since_epoch(from.max(SystemTime::UNIX_EPOCH + Duration::from_secs(earliest)));
        params.not_after = since_epoch(SystemTime::now() + validity);
        Ok(params.signed_by(&asked.public_key, &self.issuer)?.pem())
    }

    /// Issues a certificate for the node `name` with all roles, good for [`DEFAULT_VALIDITY`] and also for `hosts` (DNS names and
    /// addresses), and puts it with all that the node needs into the folder `name` beside the CA. Issuing again
    /// renews: running nodes take up new files by themselves.
    ///
    /// # Errors
    /// The name cannot be in a certificate, a host is neither name nor address, or files cannot be read or written.
    pub fn issue(&self, name: &WorkerId, hosts: &[String]) -> Result<PathBuf, PkiError> {
        self.issue_with(name, Roles::ALL, hosts, DEFAULT_VALIDITY)
    }

    /// As [`Authority::issue`], with these roles and valid for `validity` from now.
    ///
    /// # Errors
    /// As [`Authority::issue`].
    pub fn issue_with(
        &self,
        name: &WorkerId,
        roles: Roles,
        hosts: &[String],
        validity: Duration,
    ) -> Result<PathBuf, PkiError> {
        self.make(NodeSubject { name, roles, hosts }, SystemTime::now() - SKEW, validity + SKEW)
    }

    /// As [`Authority::issue`], valid for `validity` from `from`.
    ///
    /// # Errors
    /// As [`Authority::issue`].
    pub fn issue_for(
        &self,
        name: &WorkerId,
        hosts: &[String],
        from: SystemTime,
        validity: Duration,
    ) -> Result<PathBuf, PkiError> {
        self.make(NodeSubject { name, roles: Roles::ALL, hosts }, from, validity)
    }

    fn make(&self, subject: NodeSubject<'_>, from: SystemTime, validity: Duration) -> Result<PathBuf, PkiError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let mut params = node_params(subject)?;
        params.not_before = since_epoch(from);
        params.not_after = since_epoch(from + validity);
        let certificate = params.signed_by(&key, &self.issuer)?;

        let folder = self.folder.join(subject.name.as_str());
        private(&folder)?;
        for file in [CA, GOSSIP_KEY] {
            let mode = if file == CA { PUBLIC } else { SECRET };
            write(&folder.join(file), &fs::read(self.folder.join(file))?, mode)?;
        }
        write(&folder.join(NODE), certificate.pem().as_bytes(), PUBLIC)?;
        write(&folder.join(NODE_KEY), key.serialize_pem().as_bytes(), SECRET)?;
        Identity::check_chain(&folder)?;
        Ok(folder)
    }
}

/// Makes a folder, and those that it lies in, for its owner alone.
fn private(folder: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// Parameters of a CA's certificate.
fn ca_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, SUBJECT);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

fn node_params(subject: NodeSubject<'_>) -> Result<CertificateParams, PkiError> {
    let NodeSubject { name, roles, hosts } = subject;
    let wrong = |name: &str, reason: &str| PkiError::Name { name: name.to_owned(), reason: reason.to_owned() };
    let full = format!("{name}{DOMAIN}");
    if DnsName::try_from(full.as_str()).is_err() {
        let reason = "each part between dots must begin and end with a letter or digit";
        return Err(wrong(name.as_str(), reason));
    }
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name.as_str());
    params.serial_number = Some(serial());
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params.subject_alt_names = vec![SanType::DnsName(full.try_into()?)];
    for role in roles.to_string().split(',').filter(|role| !role.is_empty()) {
        params.subject_alt_names.push(SanType::DnsName(format!("{role}{ROLE_DOMAIN}").try_into()?));
    }
    for host in hosts {
        let san = match host.parse::<IpAddr>() {
            Ok(address) => SanType::IpAddress(address),
            // A certificate names one node; an extra name that looks like another's would be it, too.
            Err(_) if host.ends_with(DOMAIN) => return Err(wrong(host, "names of nodes are not given as hosts")),
            Err(_) if host.ends_with(ROLE_DOMAIN) => return Err(wrong(host, "roles are given by --roles")),
            Err(_) if DnsName::try_from(host.as_str()).is_err() => {
                return Err(wrong(host, "a host is a DNS name or an IP address"));
            }
            Err(_) => SanType::DnsName(host.clone().try_into()?),
        };
        params.subject_alt_names.push(san);
    }
    Ok(params)
}

/// A serial number of its own for each certificate, also for those of one key: revocations tell them apart by it.
fn serial() -> SerialNumber {
    let mut bytes = [0; 16];
    aws_lc_rs::rand::fill(&mut bytes).expect("the system gives random bytes");
    // Positive, and of a fixed length (RFC 5280, section 4.1.2.2).
    bytes[0] = bytes[0] & 0x7f | 0x40;
    SerialNumber::from_slice(&bytes)
}

pub(crate) fn since_epoch(time: SystemTime) -> time::OffsetDateTime {
    rcgen::date_time_ymd(1970, 1, 1) + time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

pub(crate) const SECRET: u32 = 0o600;
pub(crate) const PUBLIC: u32 = 0o644;

/// Replaces a file in one step, so that a node that reads it meanwhile sees the old or the new.
pub(crate) fn write(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let beside = path.with_extension("new");
    let named = |error: io::Error| io::Error::new(error.kind(), format!("cannot write {}: {error}", beside.display()));
    if beside.exists() {
        fs::remove_file(&beside)?;
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&beside).map_err(named)?;
    file.write_all(content).map_err(named)?;
    file.sync_all().map_err(named)?;
    fs::rename(&beside, path)
}
