//! The cost of knowing who asks: one server without authentication, one with tokens, one with tokens over TLS, in turn. A bare echo
//! server beside them, without and with TLS, tells what TLS takes from a server of the same libraries that does nothing else.

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
    load::{self, Request, Tls},
    payload::TABULAR,
    server::Server,
};

/// Nobody is asked.
const OFF: &str = "no authentication";
/// Requests have a token.
const TOKENS: &str = "tokens";
/// The same over TLS 1.3.
const TLS: &str = "tokens over TLS";
/// Bare axum, which parses the request and answers with its inputs.
const ECHO: &str = "axum echo";
/// The same over TLS 1.3.
const ECHO_TLS: &str = "axum echo over TLS";

/// Callers of the first table line, and of the second.
const FEW_CALLERS: usize = 1;
/// See [`FEW_CALLERS`].
pub(crate) const MANY_CALLERS: usize = 64;

/// The time in which a server is up.
const START: Duration = Duration::from_secs(60);

/// Each is measured so often, in turn. The machine's own speed changes from one second to the next: what is compared is compared within a
/// round, and the median of rounds is told.
const ROUNDS: usize = 9;

/// Rows of the table, and what they cost.
pub(crate) struct Auth {
    pub(crate) rows: Vec<Row>,
    pub(crate) costs: Costs,
}

/// Costs at [`MANY_CALLERS`] callers: medians of the differences within a round.
pub(crate) struct Costs {
    /// Microseconds of the server's processor that a token takes per request.
    pub(crate) token: f64,
    /// Percent of requests per second that TLS takes from a server that has the machine for itself.
    pub(crate) tls: f64,
    /// The same where the load generator has its half of TLS on the same cores.
    pub(crate) tls_both: f64,
    /// Percent that TLS takes from the bare echo, counted as `tls`.
    pub(crate) tls_echo: f64,
}

/// One line of the table.
pub(crate) struct Row {
    pub(crate) callers: usize,
    pub(crate) mode: &'static str,
    pub(crate) per_second: f64,
    pub(crate) p50: Duration,
    /// Processor time of the server per request: the load generator's is not in it.
    pub(crate) processor: Duration,
}

/// A server, and the way to ask it.
struct Scenario {
    mode: &'static str,
    address: SocketAddr,
    request: Bytes,
    tls: Option<Tls>,
    server: Server,
}

/// Measures all of them in one run.
pub(crate) async fn measure(arguments: &Arguments) -> Result<Auth> {
    let mut scenarios = Vec::new();
    for (mode, more) in
        [(OFF, &[][..]), (TOKENS, &["--auth", "tokens"][..]), (TLS, &["--auth", "tokens", "--tls", "self"][..])]
    {
        let server = Server::berth(&arguments.berth, &[&TABULAR], more).await?;
        let data = server.files().join("data");
        let (ca, token) = (data.join("tls/ca.pem"), data.join("admin.token"));
        let tls = if mode == TLS { Some(tls(&file(&ca).await?)?) } else { None };
        let token = if mode == OFF { None } else { Some(file(&token).await?) };
        let address = server.http.context("an HTTP port")?;
        let scenario = Scenario { mode, address, request: request(token.as_deref())?, tls, server };
        scenario.answers().await?;
        scenarios.push(scenario);
    }
    let bare = echoes(&scenarios).await?;
    scenarios.extend(bare);
    let scenarios: [Scenario; 5] = scenarios.try_into().ok().context("five scenarios")?;
    let mut rows = Vec::new();
    let mut rounds = Vec::new();
    for callers in [FEW_CALLERS, MANY_CALLERS] {
        rounds.clear();
        for _ in 0..ROUNDS {
            let mut round = Vec::with_capacity(scenarios.len());
            for scenario in &scenarios {
                round.push(scenario.round(callers, arguments.seconds).await?);
            }
            rounds.push(round);
        }
        for (index, scenario) in scenarios.iter().enumerate() {
            let seen = |figure: fn(&Seen) -> f64| median(rounds.iter().map(|round| figure(&round[index])));
            rows.push(Row {
                callers,
                mode: scenario.mode,
                per_second: seen(|seen| seen.per_second),
                p50: Duration::from_secs_f64(seen(|seen| seen.p50)),
                processor: Duration::from_secs_f64(seen(|seen| seen.processor)),
            });
        }
    }
    let cost = |of: fn(&[Seen]) -> f64| median(rounds.iter().map(|round| of(round)));
    let costs = Costs {
        token: cost(|round| (round[1].processor - round[0].processor) * 1e6),
        tls: cost(|round| (1.0 - round[1].processor / round[2].processor) * 100.0),
        tls_both: cost(|round| (1.0 - round[2].per_second / round[1].per_second) * 100.0),
        tls_echo: cost(|round| (1.0 - round[3].processor / round[4].processor) * 100.0),
    };
    Ok(Auth { rows, costs })
}

/// The bare server in both scenarios, the second with the certificate and the client's trust of [`TLS`].
async fn echoes(scenarios: &[Scenario]) -> Result<[Scenario; 2]> {
    let over_tls = scenarios.iter().find(|scenario| scenario.mode == TLS).context("a scenario over TLS")?;
    let plain = Server::echo("echo-http").await?;
    let encrypted = Server::echo_over_tls(&over_tls.server.files().join("data/tls")).await?;
    let scenario = |mode, server: Server, tls| -> Result<Scenario> {
        let address = server.http.context("an HTTP port")?;
        Ok(Scenario { mode, address, request: request(None)?, tls, server })
    };
    Ok([scenario(ECHO, plain, None)?, scenario(ECHO_TLS, encrypted, over_tls.tls.clone())?])
}

/// A server under load.
struct Seen {
    per_second: f64,
    /// Seconds.
    p50: f64,
    /// Seconds of the server's processor per request.
    processor: f64,
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

impl Scenario {
    /// Its connections are kept: the processor's time counts once all are open.
    async fn round(&self, callers: usize, seconds: u64) -> Result<Seen> {
        let request = Request::Http(self.request.clone());
        let load = load::run_over(self.address, self.tls.clone(), &request, callers, seconds);
        let before = async {
            tokio::time::sleep(load::WARM_UP).await;
            self.server.processor()
        };
        let (figures, before) = tokio::join!(load, before);
        let (figures, taken) = (figures.with_context(|| self.mode)?, self.server.processor()? - before?);
        let processor = taken.as_secs_f64() / (figures.per_second * seconds as f64);
        eprintln!("{:18} c={callers:<2} {figures}  {:.1} µs of the server", self.mode, processor * 1e6);
        Ok(Seen { per_second: figures.per_second, p50: figures.p50.as_secs_f64(), processor })
    }

    /// Waits until the model answers and the token is known.
    async fn answers(&self) -> Result<()> {
        let end = Instant::now() + START;
        loop {
            let answer = load::once(self.address, self.tls.clone(), &self.request).await;
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
