//! Certificates for tests.

use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

/// A CA; its certificate is `ca.pem` of a folder.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub(crate) fn new(folder: &Path) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("a CA");
        fs_err::write(folder.join("ca.pem"), ca.pem()).expect("written");
        Self(ca)
    }

    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    /// Certificate and key for a name.
    pub(crate) fn issue(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
        (params.signed_by(&key, &self.0).expect("signed").pem(), key.serialize_pem())
    }

    /// The same in files, `.pem` and `.key`.
    pub(crate) fn files(&self, name: &str, file: &Path) {
        let (certificate, key) = self.issue(name);
        fs_err::write(file.with_extension("pem"), certificate).expect("written");
        fs_err::write(file.with_extension("key"), key).expect("written");
    }
}
