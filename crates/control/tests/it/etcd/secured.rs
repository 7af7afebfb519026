//! TLS, certificates of clients, users and passwords.

use std::time::Duration;

use berth_control::store::{
    Store, StoreError,
    etcd::{EtcdConfig, EtcdCredentials, EtcdStore, EtcdTls, Timeouts},
};
use futures::StreamExt;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tempfile::TempDir;

use super::Etcd;
use crate::fixture::put_all;

fn hasty() -> Timeouts {
    Timeouts { whole: Duration::from_secs(2), ..Timeouts::default() }
}

/// An authority, and a certificate and key of it, in a folder as etcd wants them.
struct Certificates {
    authority: String,
    certificate: String,
    key: String,
}

impl Certificates {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::<String>::new()).expect("names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("an authority");
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec!["127.0.0.1".to_owned(), "localhost".to_owned()]).expect("names");
        let certificate = params.signed_by(&key, &issuer).expect("a certificate");
        Self { authority: issuer.pem(), certificate: certificate.pem(), key: key.serialize_pem() }
    }

    fn folder(&self) -> TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, text) in [("ca.pem", &self.authority), ("node.pem", &self.certificate), ("node.key", &self.key)] {
            fs_err::write(folder.path().join(name), text).expect("it is written");
        }
        folder
    }
}

#[tokio::test]
async fn tls_with_certificates_on_both_sides() {
    let certificates = Certificates::new();
    let arguments = [
        "--cert-file={folder}/node.pem",
        "--key-file={folder}/node.key",
        "--trusted-ca-file={folder}/ca.pem",
        "--client-cert-auth",
    ];
    let Some(etcd) = Etcd::within(certificates.folder(), "https", 1, &arguments) else { return };
    let file = |name: &str| etcd.folder().join(name);
    let (authority, certificate, key) = (file("ca.pem"), file("node.pem"), file("node.key"));
    let with = |tls: EtcdTls| EtcdConfig { tls: Some(tls), patience: hasty(), ..etcd.config() };
    let read = |authority: Option<&std::path::Path>, identity: Option<(&std::path::Path, &std::path::Path)>| {
        EtcdTls::read(authority, identity).expect("the files are there")
    };

    let trusted = with(read(Some(&authority), Some((&certificate, &key))));
    let store = etcd.open(EtcdConfig { patience: Timeouts::default(), ..trusted }).await;
    let mut watch = store.watch("/", store.rev().await.expect("a rev").next()).await.expect("a watch");
    put_all(&store, &["/a"]).await;
    assert_eq!(watch.next().await.expect("open").expect("a commit").changes.len(), 1);

    let stranger = Certificates::new();
    let other = EtcdTls { authorities: Some(stranger.authority.into_bytes()), ..EtcdTls::default() };
    let until = std::time::Instant::now() + Duration::from_secs(120);
    loop {
        let error = EtcdStore::connect(with(other.clone())).await.err().expect("it is not trusted");
        assert!(matches!(error, StoreError::Unreachable { .. }), "{error}");
        if error.to_string().contains("certificate") {
            break;
        }
        // On a busy machine the last of several answers may be late, and then that is what is told.
        assert!(std::time::Instant::now() < until, "{error}");
    }
    let nameless = EtcdStore::connect(with(read(Some(&authority), None))).await.err().expect("it wants a certificate");
    assert!(matches!(nameless, StoreError::Unreachable { .. }), "{nameless}");
    let plain = EtcdStore::connect(EtcdConfig { tls: None, patience: hasty(), ..etcd.config() }).await;
    assert!(matches!(plain, Err(StoreError::Unreachable { .. })));
}

/// An etcd where `root` may do everything and `berth` may do what it wants below `/berth`.
fn guarded(extra: &[&str]) -> Option<Etcd> {
    let etcd = Etcd::with(1, extra)?;
    for command in [
        &["user", "add", "root:secret"][..],
        &["user", "grant-role", "root", "root"],
        &["role", "add", "berth"],
        &["role", "grant-permission", "--prefix=true", "berth", "readwrite", "/berth"],
        &["user", "add", "berth:word"],
        &["user", "grant-role", "berth", "berth"],
        &["auth", "enable"],
    ] {
        etcd.etcdctl(command);
    }
    Some(etcd)
}

fn as_user(etcd: &Etcd, user: &str, password: &str) -> EtcdConfig {
    let credentials = EtcdCredentials { user: user.to_owned(), password: password.to_owned() };
    EtcdConfig { credentials: Some(credentials), ..etcd.config() }
}

#[tokio::test]
async fn users_and_passwords() {
    let Some(etcd) = guarded(&[]) else { return };
    let store = etcd.open(as_user(&etcd, "berth", "word")).await;
    let mut watch = store.watch("/", store.rev().await.expect("a rev").next()).await.expect("a watch");
    put_all(&store, &["/a"]).await;
    assert_eq!(watch.next().await.expect("open").expect("a commit").changes.len(), 1);

    let refused = |result: Result<EtcdStore, StoreError>| match result.err() {
        Some(StoreError::Refused { remedy, .. }) => remedy,
        other => panic!("it is refused: {other:?}"),
    };
    assert!(refused(EtcdStore::connect(as_user(&etcd, "berth", "wrong")).await).contains("password"));
    assert!(refused(EtcdStore::connect(etcd.config()).await).contains("give a user"));
    let elsewhere = EtcdConfig { prefix: "/other".to_owned(), ..as_user(&etcd, "berth", "word") };
    assert!(refused(EtcdStore::connect(elsewhere).await).contains("grant-permission"));
}

#[tokio::test]
async fn a_token_that_has_expired_is_renewed() {
    let Some(etcd) = guarded(&["--auth-token-ttl=1"]) else { return };
    let store = etcd.open(as_user(&etcd, "berth", "word")).await;
    put_all(&store, &["/a"]).await;
    // etcd counts this time, and nothing but time passes.
    tokio::time::sleep(Duration::from_secs(3)).await;
    put_all(&store, &["/b"]).await;
    let mut watch = store.watch("/b", store.rev().await.expect("a rev")).await.expect("a watch");
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(watch.next().await.expect("open").expect("a commit").changes.len(), 1);
}
