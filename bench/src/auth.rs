//! The cost of knowing who asks: one server without authentication, one with tokens, one with tokens over TLS, in turn.

use std::{
    net::SocketAddr,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use tokio_rustls::{
    TlsConnector,
    rustls::{
        ClientConfig, RootCertStore,
        pki_types::{CertificateDer, ServerName, pem::PemObject as _},
    },
};

use crate::{
    Arguments,
    load::{self, Figures, Request, Tls},
    payload::TABULAR,
    server::Server,
};

/// Nobody is asked.
pub(crate) const OFF: &str = "no authentication";
/// Requests have a token.
pub(crate) const TOKENS: &str = "tokens";
/// The same over TLS 1.3.
pub(crate) const TLS: &str = "tokens over TLS";

/// Callers of the first table line, and of the second.
const FEW: usize = 1;
/// See [`FEW`].
pub(crate) const MOST: usize = 64;

/// The time in which a server is up.
const START: Duration = Duration::from_secs(60);

/// Each is measured so often, in turn.
const ROUNDS: usize = 3;

/// One line of the table.
pub(crate) struct Row {
    pub(crate) callers: usize,
    pub(crate) mode: &'static str,
    pub(crate) per_second: f64,
    pub(crate) p50: Duration,
    /// Processor time of the server per request: the load generator's is not in it.
    pub(crate) processor: Duration,
}

/// A server, and how it is asked.
struct Way {
    mode: &'static str,
    address: SocketAddr,
    request: Bytes,
    tls: Option<Tls>,
    server: Server,
}

/// Measures all of them in one run.
pub(crate) async fn measure(arguments: &Arguments) -> Result<Vec<Row>> {
    let mut ways = Vec::new();
    for (mode, more) in
        [(OFF, &[][..]), (TOKENS, &["--auth", "tokens"][..]), (TLS, &["--auth", "tokens", "--tls", "self"][..])]
    {
        let server = Server::berth(&arguments.berth, &[&TABULAR], more).await?;
        let data = server.files().join("data");
        let (ca, token) = (data.join("tls/ca.pem"), data.join("admin.token"));
        let tls = if mode == TLS { Some(tls(&file(&ca).await?)?) } else { None };
        let token = if mode == OFF { None } else { Some(file(&token).await?) };
        let address = server.http.context("an HTTP port")?;
        let way = Way { mode, address, request: request(token.as_deref())?, tls, server };
        way.answers().await?;
        ways.push(way);
    }
    let mut rows = Vec::new();
    for callers in [FEW, MOST] {
        let mut rounds: Vec<Vec<(Figures, Duration)>> = ways.iter().map(|_| Vec::new()).collect();
        for _ in 0..ROUNDS {
            for (way, seen) in ways.iter().zip(&mut rounds) {
                let request = Request::Http(way.request.clone());
                let (began, before) = (Instant::now(), way.server.processor()?);
                let figures =
                    load::run_over((way.address, way.tls.clone()), &request, callers, arguments.seconds).await;
                let figures = figures.with_context(|| way.mode)?;
                let taken = (way.server.processor()? - before).as_secs_f64();
                let processor = taken / (figures.per_second * began.elapsed().as_secs_f64());
                eprintln!("{:18} c={callers:<2} {figures}  {:.1} µs of the server", way.mode, processor * 1e6);
                seen.push((figures, Duration::from_secs_f64(processor)));
            }
        }
        for (way, mut seen) in ways.iter().zip(rounds) {
            let middle = seen.len() / 2;
            seen.sort_by_key(|(_, processor)| *processor);
            let processor = seen[middle].1;
            seen.sort_by(|(a, _), (b, _)| a.per_second.total_cmp(&b.per_second));
            let (Figures { per_second, p50, .. }, _) = seen.swap_remove(middle);
            rows.push(Row { callers, mode: way.mode, per_second, p50, processor });
        }
    }
    Ok(rows)
}

impl Way {
    /// Waits until the model answers and the token is known.
    async fn answers(&self) -> Result<()> {
        let end = Instant::now() + START;
        loop {
            let answer = load::once((self.address, self.tls.clone()), &self.request).await;
            match answer {
                Ok((200, _)) => return Ok(()),
                answer => ensure!(Instant::now() < end, "{}: {answer:?}", self.mode),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// The text of a file that the server writes when it starts.
async fn file(path: &Path) -> Result<String> {
    let end = Instant::now() + START;
    loop {
        match fs_err::read_to_string(path) {
            Ok(text) if !text.is_empty() => return Ok(text),
            read => ensure!(Instant::now() < end, "{read:?}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The request of the benchmark, with a token among its headers.
fn request(token: Option<&str>) -> Result<Bytes> {
    let Request::Http(plain) = TABULAR.json() else { anyhow::bail!("it is HTTP") };
    let Some(token) = token else { return Ok(plain) };
    let text = std::str::from_utf8(&plain)?;
    let (first, rest) = text.split_once("\r\n").context("a first line")?;
    Ok(format!("{first}\r\nauthorization: Bearer {}\r\n{rest}", token.trim()).into())
}

/// Trusts what `--tls self` made.
fn tls(ca: &str) -> Result<Tls> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(ca.as_bytes()) {
        roots.add(certificate?)?;
    }
    ensure!(!roots.is_empty(), "the CA's file has no certificate");
    let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    Ok(Tls { connector: TlsConnector::from(Arc::new(config)), name: ServerName::try_from("localhost")? })
}
