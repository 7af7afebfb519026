//! Properties that hold for any bytes as the request of a node that joins: strangers reach this parser before they have proved anything.

use std::{sync::LazyLock, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use berth_peer::{
    joining::JoinRequest,
    pki::{Authority, NodeCertificate, NodeSubject},
};
use berth_spec::{Roles, WorkerId};
use rustls::pki_types::{CertificateDer, pem::PemObject as _};

/// A CA of its own. It reads no file once it is made.
static AUTHORITY: LazyLock<Authority> = LazyLock::new(|| {
    let folder = tempfile::tempdir().expect("a folder");
    Authority::create(folder.path()).expect("a CA")
});

/// Roles of the join token. Those in a request do not count.
const ROLES: Roles = Roles { controller: false, worker: true, gateway: false };

/// Length of a line of PEM.
const LINE: usize = 64;

/// A request is refused with a reason, or gets a certificate for the name and the roles that were decided here, and for nothing
/// else. It is read as JSON, as PEM, and as the DER inside: changed JSON is mostly none any more.
pub(crate) fn join(data: &[u8]) {
    let node = WorkerId::new("gpu-1").expect("a name");
    if let Ok(asked) = serde_json::from_slice::<JoinRequest>(data) {
        signed(&asked.node, &asked.request);
    }
    if let Ok(text) = std::str::from_utf8(data) {
        signed(&node, text);
    }
    let encoded = STANDARD.encode(data);
    let lines: Vec<&str> = encoded.as_bytes().chunks(LINE).filter_map(|line| std::str::from_utf8(line).ok()).collect();
    let (begin, end) = ("-----BEGIN CERTIFICATE REQUEST-----", "-----END CERTIFICATE REQUEST-----");
    signed(&node, &format!("{begin}\n{}\n{end}\n", lines.join("\n")));
}

fn signed(node: &WorkerId, request: &str) {
    let subject = NodeSubject { name: node, roles: ROLES, hosts: &[] };
    match AUTHORITY.sign(request, subject, Duration::from_hours(1), 0) {
        Ok(pem) => {
            let certificate = CertificateDer::from_pem_slice(pem.as_bytes()).expect("PEM");
            let certificate = NodeCertificate::read(&certificate).expect("it names a node");
            assert_eq!((&certificate.name, certificate.roles), (node, ROLES), "{request}");
            assert!(certificate.hosts.is_empty(), "{:?} of {request}", certificate.hosts);
        }
        Err(error) => assert!(!error.to_string().is_empty(), "{request}"),
    }
}
