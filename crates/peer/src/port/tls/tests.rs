use std::path::Path;

use fs_err as fs;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::{ClientConfig, pki_types::ServerName};
use tokio::{io::AsyncReadExt as _, io::AsyncWriteExt as _, net::TcpListener, net::TcpStream};
use tokio_rustls::TlsConnector;

use super::*;
use crate::port::{Bounds, ClientStream, Greeted, Patience, Port};

const PATIENCE: Patience =
    Patience { first: std::time::Duration::from_secs(5), idle: std::time::Duration::from_secs(5) };

/// A CA that issues into a folder.
struct Issuer(CertifiedIssuer<'static, KeyPair>);

impl Issuer {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("a CA"))
    }

    /// Writes NAME.pem and NAME.key.
    fn issue(&self, folder: &Path, name: &str) -> (CertificateDer, KeyPair) {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new([name.to_owned()]).expect("a name");
        let certificate = params.signed_by(&key, &self.0).expect("a certificate");
        fs::write(folder.join(format!("{name}.pem")), certificate.pem()).expect("written");
        fs::write(folder.join(format!("{name}.key")), key.serialize_pem()).expect("written");
        (certificate.der().clone(), key)
    }

    fn client(
        &self,
        shows: Option<(CertificateDer, KeyPair)>,
        versions: &[&'static SupportedProtocolVersion],
    ) -> ClientConfig {
        self.client_of(suites(), shows, versions)
    }

    fn client_of(
        &self,
        provider: Arc<CryptoProvider>,
        shows: Option<(CertificateDer, KeyPair)>,
        versions: &[&'static SupportedProtocolVersion],
    ) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).expect("a CA");
        let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(versions).expect("versions");
        let builder = builder.with_root_certificates(roots);
        match shows {
            Some((certificate, key)) => builder
                .with_client_auth_cert(vec![certificate], key.serialize_der().try_into().expect("a key"))
                .expect("they belong together"),
            None => builder.with_no_client_auth(),
        }
    }
}

type CertificateDer = rustls::pki_types::CertificateDer<'static>;

fn settings(folder: &Path, clients: ClientAuth, oldest: TlsVersion) -> TlsSettings {
    TlsSettings { certificate: folder.join("server.pem"), key: folder.join("server.key"), clients, oldest }
}

/// One connection of this client, as the port takes it.
async fn greeted(tls: &PortTls, client: ClientConfig) -> Option<Greeted> {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let port = Port::new("test", listener, Bounds { connections: 8, per_address: 8 }).with_tls(Some(tls.clone()));
    let connects = async {
        let stream = TcpStream::connect(address).await.expect("it listens");
        let name = ServerName::try_from("server").expect("a name");
        let mut stream = TlsConnector::from(Arc::new(client)).connect(name, stream).await.ok()?;
        // With TLS 1.3 the client learns only now that it was refused.
        let _ = stream.write_all(b"?").await;
        Some(stream)
    };
    let accepts = async {
        let (stream, ..) = port.accept().await;
        let mut greeted = port.greeter().greet(stream, PATIENCE).await?;
        let mut byte = [0];
        greeted.stream.read_exact(&mut byte).await.expect("it was sent");
        Some(greeted)
    };
    let (_client, greeted) = tokio::join!(connects, accepts);
    greeted
}

#[tokio::test]
async fn clients_are_let_in_by_version_and_certificate() {
    let folder = tempfile::tempdir().expect("a folder");
    let (ours, others) = (Issuer::new(), Issuer::new());
    ours.issue(folder.path(), "server");
    let ca = folder.path().join("ca.pem");
    fs::write(&ca, ours.0.pem()).expect("written");
    let shown = |issuer: &Issuer| Some(issuer.issue(folder.path(), "ada"));
    for (clients, oldest, shows, versions, enters) in [
        (ClientAuth::Off, TlsVersion::V1_3, None, &TLS13, true),
        (ClientAuth::Off, TlsVersion::V1_3, None, &TLS12, false),
        (ClientAuth::Off, TlsVersion::V1_2, None, &TLS12, true),
        (ClientAuth::Optional(ca.clone()), TlsVersion::V1_3, None, &TLS13, true),
        (ClientAuth::Optional(ca.clone()), TlsVersion::V1_3, shown(&ours), &TLS13, true),
        (ClientAuth::Optional(ca.clone()), TlsVersion::V1_3, shown(&others), &TLS13, false),
        (ClientAuth::Required(ca.clone()), TlsVersion::V1_3, None, &TLS13, false),
        (ClientAuth::Required(ca.clone()), TlsVersion::V1_2, shown(&ours), &TLS12, true),
    ] {
        let case = format!("{clients:?} {oldest:?} {versions:?}, shows one: {}", shows.is_some());
        let named = shows.is_some() && enters;
        let tls = PortTls::load(settings(folder.path(), clients, oldest)).expect("files");
        let greeted = greeted(&tls, ours.client(shows, &[versions])).await;
        assert_eq!(greeted.is_some(), enters, "{case}");
        let names = greeted.and_then(|greeted| greeted.certificate).map(|certificate| certificate.sans[0].to_string());
        assert_eq!(names, named.then(|| "DNS:ada".to_owned()), "{case}");
    }
}

#[tokio::test]
async fn a_client_that_names_another_cipher_first_gets_the_fastest() {
    let folder = tempfile::tempdir().expect("a folder");
    let ours = Issuer::new();
    ours.issue(folder.path(), "server");
    let tls = PortTls::load(settings(folder.path(), ClientAuth::Off, TlsVersion::V1_2)).expect("files");
    for (version, suite) in [(&TLS13, "TLS13_AES_128_GCM_SHA256"), (&TLS12, "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256")]
    {
        let client = ours.client_of(Arc::new(aws_lc_rs::default_provider()), None, &[version]);
        let greeted = greeted(&tls, client).await.expect("it is let in");
        let ClientStream::Tls(stream) = greeted.stream else { panic!("{suite}: without TLS") };
        let chosen = stream.get_ref().1.negotiated_cipher_suite().map(|chosen| format!("{:?}", chosen.suite()));
        assert_eq!(chosen.as_deref(), Some(suite));
    }
}

#[tokio::test]
async fn a_client_whose_certificate_is_in_the_file_itself_is_let_in() {
    let folder = tempfile::tempdir().expect("a folder");
    let (ours, client, stranger) = (Issuer::new(), Issuer::new(), Issuer::new());
    ours.issue(folder.path(), "server");
    let file = folder.path().join("clients.pem");
    fs::write(&file, client.0.pem()).expect("written");
    for (shows, versions, enters) in
        [(&client, &TLS13, true), (&client, &TLS12, true), (&stranger, &TLS13, false), (&stranger, &TLS12, false)]
    {
        let tls = PortTls::load(settings(folder.path(), ClientAuth::Required(file.clone()), TlsVersion::V1_2));
        let key = KeyPair::from_pem(&shows.0.key().serialize_pem()).expect("a key");
        let config = ours.client(Some((shows.0.der().clone(), key)), &[versions]);
        assert_eq!(greeted(&tls.expect("files"), config).await.is_some(), enters, "{versions:?}");
    }
}

#[tokio::test]
async fn changed_files_are_used_and_broken_ones_are_not() {
    let folder = tempfile::tempdir().expect("a folder");
    let (first, second) = (Issuer::new(), Issuer::new());
    first.issue(folder.path(), "server");
    let tls = PortTls::load(settings(folder.path(), ClientAuth::Off, TlsVersion::V1_3)).expect("files");
    assert!(matches!(tls.reload(), Ok(false)));
    let trusts = |issuer: &Issuer| issuer.client(None, &[&TLS13]);
    second.issue(folder.path(), "server");
    assert!(greeted(&tls, trusts(&first)).await.is_some(), "as long as nobody looks");
    assert!(matches!(tls.reload(), Ok(true)));
    assert!(greeted(&tls, trusts(&first)).await.is_none());
    assert!(greeted(&tls, trusts(&second)).await.is_some());
    let key = folder.path().join("server.key");
    for (broken, says) in
        [("", "is not PEM"), (KeyPair::generate().expect("a key").serialize_pem().as_str(), "is not the key of")]
    {
        fs::write(&key, broken).expect("written");
        let error = tls.reload().expect_err("broken").to_string();
        assert!(error.contains("server.key") && error.contains(says), "{error}");
        assert!(greeted(&tls, trusts(&second)).await.is_some(), "the old files serve");
    }
}
