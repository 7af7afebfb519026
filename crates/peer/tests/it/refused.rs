use std::{
    net::SocketAddr,
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime},
};

use fs_err as fs;
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use tokio_rustls::TlsConnector;

use crate::node::{Ca, Log, Node, PATIENCE, ask, name, until};

/// Connects as a program would that has these files and checks nothing of its own.
async fn knock(at: SocketAddr, own: Option<&Path>, trusted: &Path) -> std::io::Result<usize> {
    let pem =
        |path: &Path| CertificateDer::pem_slice_iter(&fs::read(path).expect("read")).collect::<Result<Vec<_>, _>>();
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(pem(trusted).expect("PEM"));
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("TLS 1.3")
        .with_root_certificates(roots);
    let mut config = match own {
        None => config.with_no_client_auth(),
        Some(folder) => {
            let key = PrivateKeyDer::from_pem_slice(&fs::read(folder.join("node.key")).expect("read")).expect("a key");
            config.with_client_auth_cert(pem(&folder.join("node.pem")).expect("PEM"), key).expect("a pair")
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    let server = ServerName::try_from("b.node.berth").expect("a name");
    let greeted = async {
        let stream = TcpStream::connect(at).await?;
        let mut stream = TlsConnector::from(Arc::new(config)).connect(server, stream).await?;
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await?;
        stream.read(&mut [0; 64]).await
    };
    tokio::time::timeout(PATIENCE, greeted).await.expect("it takes them in or not")
}

async fn logged(log: &Log, says: &str) {
    until(says, || log.text().contains(says)).await;
}

#[tokio::test]
async fn strangers_get_no_further_than_the_handshake_and_the_log_says_why() {
    let (log, _guard) = Log::capture();
    let (ca, other) = (Ca::new(), Ca::new());
    let node = Node::start_here(ca.identity("b"));
    let trusted = ca.folder.path().join("ca.pem");

    assert!(knock(node.at, Some(&ca.folder("a")), &trusted).await.expect("a member") > 0);

    assert!(knock(node.at, None, &trusted).await.is_err());
    logged(&log, "it shows no certificate").await;

    assert!(knock(node.at, Some(&other.folder("a")), &trusted).await.is_err());
    logged(&log, "of another CA than those in ca.pem").await;

    let long_ago = SystemTime::now() - Duration::from_secs(10_000);
    let expired = ca.authority.issue_for(&name("old"), &[], long_ago, Duration::from_secs(5_000)).expect("issued");
    assert!(knock(node.at, Some(&expired), &trusted).await.is_err());
    logged(&log, "its certificate expired").await;

    let mut plain = TcpStream::connect(node.at).await.expect("a connection");
    plain.write_all(b"GET / HTTP/1.1\r\nhost: b\r\n\r\n").await.expect("written");
    let mut answer = Vec::new();
    let _ = tokio::time::timeout(PATIENCE, plain.read_to_end(&mut answer)).await.expect("it is closed");
    assert!(!answer.starts_with(b"HTTP"));
    logged(&log, "it does not speak TLS").await;
    assert_eq!(node.echo.served.load(std::sync::atomic::Ordering::SeqCst), 0);
}

#[tokio::test]
async fn lines_go_only_to_who_was_meant() {
    let (ca, other) = (Ca::new(), Ca::new());
    let node = Node::start_here(ca.identity("b"));

    // The address is b's, the name is not.
    let peers = ca.lines("a", "c", node.at);
    let error = ask(&peers.get(&name("c")).expect("known"), "/echo").await.expect_err("not c").to_string();
    assert!(error.contains("c.node.berth"), "{error}");

    // A node of another cluster: refused here already, by its certificate.
    let peers = other.lines("a", "b", node.at);
    let error = ask(&peers.get(&name("b")).expect("known"), "/echo").await.expect_err("another CA").to_string();
    assert!(error.contains("UnknownIssuer") || error.contains("BadSignature"), "{error}");

    // Refused there: this node trusts both CAs, the other only its own. Nothing was sent.
    let folder = other.folder("a");
    let both = [fs::read(folder.join("ca.pem")), fs::read(ca.folder.path().join("ca.pem"))];
    fs::write(folder.join("ca.pem"), both.map(|text| text.expect("read")).concat()).expect("written");
    let identity = berth_peer::Identity::load(&folder).expect("two CAs");
    let peers = berth_peer::Peers::fixed(identity, [(name("b"), node.at)]);
    let error = ask(&peers.get(&name("b")).expect("known"), "/echo").await.expect_err("refused there");
    assert!(error.is_not_sent() && error.to_string().contains("refused this node's certificate"), "{error}");
    assert_eq!(node.echo.served.load(std::sync::atomic::Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_certificate_called_node_x_is_good_for_x_and_for_nobody_else() {
    let ca = Ca::new();
    let node = Node::start_here(ca.identity("node-b"));
    // Both ends have such certificates: the caller is named by its own.
    for (dialled, reached) in [("b", true), ("node-b", true), ("c", false), ("node-node-b", false)] {
        let peers = ca.lines("node-a", dialled, node.at);
        let answer = ask(&peers.get(&name(dialled)).expect("known"), "/echo").await;
        match answer {
            Ok(answer) => assert!(reached && answer.headers()["caller"] == "node-a", "{dialled}"),
            Err(error) => assert!(!reached && error.is_not_sent(), "{dialled}: {error}"),
        }
    }
    // Not the other way round: who has the certificate of `b` is not `node-b`.
    let plain = Node::start_here(ca.identity("b"));
    let peers = ca.lines("a", "node-b", plain.at);
    let error = ask(&peers.get(&name("node-b")).expect("known"), "/echo").await.expect_err("another").to_string();
    assert!(error.contains("node-b.node.berth"), "{error}");
    // Nor of another cluster, however it is called.
    let peers = Ca::new().lines("a", "b", node.at);
    let error = ask(&peers.get(&name("b")).expect("known"), "/echo").await.expect_err("another CA").to_string();
    assert!(error.contains("UnknownIssuer") || error.contains("BadSignature"), "{error}");
    // Neither of its names is another node to itself.
    let peers = ca.lines("node-a", "a", node.at);
    assert!(peers.get(&name("a")).is_none() && ca.lines("node-a", "node-a", node.at).all().is_empty());
}

#[tokio::test]
async fn one_ca_replaces_another_without_dropping_a_line() {
    let (old, new) = (Ca::new(), Ca::new());
    let (folder_a, folder_b) = (old.folder("a"), old.folder("b"));
    let [a, b] = [&folder_a, &folder_b].map(|folder| berth_peer::Identity::load(folder).expect("an identity"));
    let node = Node::start_here(b.clone());
    let peers = berth_peer::Peers::fixed(a.clone(), [(name("b"), node.at)]);
    let peer = peers.get(&name("b")).expect("known");
    ask(&peer, "/echo").await.expect("an answer");

    let cas = [&old, &new].map(|ca| fs::read(ca.folder.path().join("ca.pem")).expect("read")).concat();
    for folder in [&folder_a, &folder_b] {
        fs::write(folder.join("ca.pem"), &cas).expect("written");
    }
    assert!(a.reload().expect("both CAs") && b.reload().expect("both CAs"));
    // `b` goes first: new certificate of the new CA, old lines and new lines both work.
    let issued = new.folder("b");
    for file in ["node.pem", "node.key"] {
        fs::copy(issued.join(file), folder_b.join(file)).expect("copied");
    }
    assert!(b.reload().expect("of the new CA"));
    ask(&peer, "/echo").await.expect("the old line");
    let fresh = berth_peer::Peers::fixed(a, [(name("b"), node.at)]);
    ask(&fresh.get(&name("b")).expect("known"), "/echo").await.expect("a new line");
}
