//! A certificate for the first day, so that a port has TLS before somebody has set up a CA.
//!
//! A CA is made, issues one certificate, and its key is forgotten: what clients trust is good for this server alone.

use std::{
    fs::Permissions,
    net::IpAddr,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use fs_err as fs;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, SanType,
};
use rustls::{
    pki_types::{CertificateDer, DnsName, PrivateKeyDer, pem::PemObject as _},
    sign::CertifiedKey,
};
use x509_parser::{extensions::GeneralName, parse_x509_certificate};

use super::{TlsError, files};
use crate::pki::{PUBLIC, SECRET, since_epoch, write};

/// Validity of what is made here: a year, long enough to replace it by certificates of an own CA.
const VALIDITY: Duration = Duration::from_secs(365 * 24 * 3600);

/// The rest of the validity below which a start makes a new certificate: whoever restarts once a month never meets
/// one that has run out.
const RENEW: Duration = Duration::from_secs(30 * 24 * 3600);

/// Rights of the folder: its owner's alone.
const FOLDER: u32 = 0o700;

/// Clock difference tolerated between client and server: clocks that nobody sets drift less in years.
const SKEW: Duration = Duration::from_secs(600);

/// A certificate that the server made for itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SelfMade {
    /// Certificate of the CA, for clients to trust.
    pub ca: PathBuf,
    /// Path of the server's certificate, in PEM.
    pub certificate: PathBuf,
    /// Key of the server's certificate.
    pub key: PathBuf,
}

impl SelfMade {
    /// The certificate in `folder`, valid for all of `names` (DNS names and addresses). One that is there is kept while it is
    /// valid for all of them, so that clients need not be told again. Names that cannot be in a certificate are left out.
    /// Blocking.
    ///
    /// # Errors
    /// The folder cannot be written, or no certificate can be made.
    pub fn in_folder(folder: &Path, names: &[String]) -> Result<Self, TlsError> {
        let file = |name: &str| folder.join(name);
        let made = Self { ca: file("ca.pem"), certificate: file("server.pem"), key: file("server.key") };
        let names: Vec<SanType> = names.iter().filter_map(|name| san(name)).collect();
        if made.holds(&names) {
            return Ok(made);
        }
        fs::create_dir_all(folder)?;
        fs::set_permissions(folder, Permissions::from_mode(FOLDER))?;
        made.make(names)
            .map_err(|error| TlsError::unusable(&made.certificate, format!("cannot be made ({error})")))??;
        Ok(made)
    }

    /// True if what is there is good for these names for some time.
    fn holds(&self, names: &[SanType]) -> bool {
        let Ok(certificate) = CertificateDer::from_pem_file(&self.certificate) else { return false };
        let Ok(key) = PrivateKeyDer::from_pem_file(&self.key) else { return false };
        // A start that was cut off left the new key beside the old certificate.
        if !self.ca.exists() || CertifiedKey::from_der(vec![certificate.clone()], key, &super::suites()).is_err() {
            return false;
        }
        let lasts = files::ends(&certificate).is_some_and(|end| end > SystemTime::now() + RENEW);
        lasts && names.iter().all(|name| is_for(&certificate, name))
    }

    fn make(&self, names: Vec<SanType>) -> Result<std::io::Result<()>, rcgen::Error> {
        let (from, until) = (SystemTime::now() - SKEW, SystemTime::now() + VALIDITY);
        let ca_key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let mut ca = params("berth first-day CA", from, until);
        ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let ca_pem = ca.self_signed(&ca_key)?.pem();
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let mut server = params("berth", from, until);
        server.use_authority_key_identifier_extension = true;
        server.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        server.subject_alt_names = names;
        let certificate = server.signed_by(&key, &Issuer::new(ca, ca_key))?;
        // The certificate last: a start that was cut off before it begins anew.
        Ok(write(&self.key, key.serialize_pem().as_bytes(), SECRET)
            .and_then(|()| write(&self.ca, ca_pem.as_bytes(), PUBLIC))
            .and_then(|()| write(&self.certificate, certificate.pem().as_bytes(), PUBLIC)))
    }
}

fn params(subject: &str, from: SystemTime, until: SystemTime) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, subject);
    (params.not_before, params.not_after) = (since_epoch(from), since_epoch(until));
    params
}

fn san(name: &str) -> Option<SanType> {
    match name.parse::<IpAddr>() {
        Ok(address) => Some(SanType::IpAddress(address)),
        Err(_) => DnsName::try_from(name).ok().and_then(|_| Some(SanType::DnsName(name.try_into().ok()?))),
    }
}

fn is_for(certificate: &CertificateDer<'_>, name: &SanType) -> bool {
    let Ok((_, parsed)) = parse_x509_certificate(certificate) else { return false };
    let Ok(Some(names)) = parsed.subject_alternative_name() else { return false };
    names.value.general_names.iter().any(|has| match (has, name) {
        (GeneralName::DNSName(has), SanType::DnsName(name)) => *has == name.as_str(),
        (GeneralName::IPAddress(has), SanType::IpAddress(IpAddr::V4(name))) => **has == name.octets(),
        (GeneralName::IPAddress(has), SanType::IpAddress(IpAddr::V6(name))) => **has == name.octets(),
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_kept_until_it_is_wanted_for_another_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let make = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
            let made = SelfMade::in_folder(&folder.path().join("tls"), &names).expect("made");
            (fs::read(&made.ca).expect("there"), made)
        };
        let (first, made) = make(&["localhost", "127.0.0.1", "::1", "not a name"]);
        assert_eq!(fs::metadata(&made.key).expect("there").permissions().mode() & 0o777, SECRET);
        assert_eq!(make(&["127.0.0.1", "localhost"]).0, first);
        assert_ne!(make(&["127.0.0.1", "localhost", "10.0.0.7"]).0, first);
        assert_eq!(fs::metadata(folder.path().join("tls")).expect("there").permissions().mode() & 0o777, FOLDER);
        let (before, made) = make(&["localhost"]);
        fs::write(&made.key, KeyPair::generate().expect("a key").serialize_pem()).expect("written");
        assert_ne!(make(&["localhost"]).0, before, "a start that was cut off between the two files");
        fs::remove_file(&made.key).expect("removed");
        let before = fs::read(&made.ca).expect("there");
        assert_ne!(make(&["localhost"]).0, before);
    }
}
