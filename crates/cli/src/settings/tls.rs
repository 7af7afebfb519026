//! TLS of the ports for clients: inference and the control API.
//!
//! ```text
//! loopback ──▶ as told; no TLS unless told
//! other addresses ──▶ --tls-cert and --tls-key, or --tls self ──▶ TLS
//!                 └── neither ──▶ refused, or served with a warning (--insecure)
//! ```

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket},
    path::{Path, PathBuf},
};

use berth_peer::port::{ClientAuth, PortTls, SelfMade, TlsError, TlsSettings, TlsVersion};
use clap::{Args, ValueEnum};

use crate::failure::Failure;

/// Folder below the data folder with the certificate of `--tls self`.
const SELF_MADE: &str = "tls";

/// Settings of TLS.
#[derive(Debug, Args)]
#[command(next_help_heading = "TLS of the ports for clients")]
pub(crate) struct TlsArgs {
    /// Certificate for inference and the control API: self creates one in the data folder, for a first day; off serves
    /// without TLS [default: off, unless --tls-cert is given]
    #[arg(long, value_enum, value_name = "WHAT", env = "BERTH_TLS")]
    tls: Option<Source>,
    /// Serve inference and the control API over TLS with this certificate chain (PEM); reread when it changes
    #[arg(long, value_name = "FILE", env = "BERTH_TLS_CERT")]
    tls_cert: Option<PathBuf>,
    /// Key of the certificate (PEM)
    #[arg(long, value_name = "FILE", env = "BERTH_TLS_KEY")]
    tls_key: Option<PathBuf>,
    /// Oldest version of TLS
    #[arg(long, value_enum, value_name = "VERSION", env = "BERTH_TLS_MIN", default_value_t)]
    tls_min: Oldest,
    /// CA certificates that clients' certificates come from (PEM)
    #[arg(long, value_name = "FILE", env = "BERTH_TLS_CLIENT_CA")]
    tls_client_ca: Option<PathBuf>,
    /// Handling of client certificates [default: required with --tls-client-ca, off without]
    #[arg(long, value_enum, value_name = "HOW", env = "BERTH_TLS_CLIENTS")]
    tls_clients: Option<Clients>,
}

/// Origin of the certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Source {
    /// No TLS
    Off,
    /// Created in the data folder
    #[value(name = "self")]
    SelfMade,
}

/// Oldest version.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Oldest {
    /// For old clients
    #[value(name = "1.2")]
    V1_2,
    #[default]
    #[value(name = "1.3")]
    V1_3,
}

/// Handling of client certificates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Clients {
    /// Clients are not asked
    Off,
    /// Clients may show one
    Optional,
    /// Clients must show one
    Required,
}

/// TLS of the ports for clients, validated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClientTls {
    certificate: Certificate,
    clients: ClientAuth,
    oldest: TlsVersion,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Certificate {
    Files { certificate: PathBuf, key: PathBuf },
    SelfMade { names: Vec<String> },
}

/// TLS of the ports for clients, with its files.
#[derive(Debug, Clone)]
pub(crate) struct LoadedTls {
    pub(crate) port: PortTls,
    /// Certificate that clients must be told to trust, where the server made its own.
    pub(crate) ca: Option<PathBuf>,
}

/// A setting and the address that it names.
pub(crate) type Listens = (&'static str, SocketAddr);

impl TlsArgs {
    /// TLS of the ports for clients; `None`: they have none.
    ///
    /// # Errors
    /// [`Failure::Usage`]: settings that contradict each other, or an address that others can reach without TLS.
    pub(crate) fn settings(self, listens: &[Listens], insecure: bool) -> Result<Option<ClientTls>, Failure> {
        let refuse = |words: &str| Err(Failure::Usage(words.to_owned()));
        let clients = self.clients()?;
        let certificate = match (self.tls, self.tls_cert, self.tls_key) {
            (Some(Source::SelfMade), None, None) => Certificate::SelfMade { names: names(listens) },
            (Some(Source::SelfMade), ..) => {
                return refuse("--tls self makes a certificate: leave --tls-cert and --tls-key out, or --tls self");
            }
            (None, Some(certificate), Some(key)) => Certificate::Files { certificate, key },
            (None, Some(_), None) | (None, None, Some(_)) => {
                return refuse("--tls-cert and --tls-key belong together: give both, or none");
            }
            (Some(Source::Off), ..) | (None, None, None) => {
                if clients != ClientAuth::Off {
                    return refuse("client certificates need TLS: give --tls-cert and --tls-key, or --tls self");
                }
                return open(listens, insecure).map(|()| None);
            }
        };
        let oldest = match self.tls_min {
            Oldest::V1_2 => TlsVersion::V1_2,
            Oldest::V1_3 => TlsVersion::V1_3,
        };
        Ok(Some(ClientTls { certificate, clients, oldest }))
    }

    fn clients(&self) -> Result<ClientAuth, Failure> {
        let how = self.tls_clients;
        match (how, self.tls_client_ca.clone()) {
            (Some(Clients::Off), _) | (None, None) => Ok(ClientAuth::Off),
            (Some(Clients::Optional), Some(ca)) => Ok(ClientAuth::Optional(ca)),
            (Some(Clients::Required) | None, Some(ca)) => Ok(ClientAuth::Required(ca)),
            (Some(_), None) => {
                let words = "--tls-clients needs the CA that clients' certificates come from: --tls-client-ca FILE";
                Err(Failure::Usage(words.to_owned()))
            }
        }
    }
}

impl ClientTls {
    /// Reads the files, or makes them below `data`. Blocking.
    ///
    /// # Errors
    /// [`Failure::Usage`]: a file that cannot be used.
    pub(crate) fn load(&self, data: &Path) -> Result<LoadedTls, Failure> {
        let told = |error: TlsError| Failure::Usage(error.to_string());
        let (certificate, key, ca) = match &self.certificate {
            Certificate::Files { certificate, key } => (certificate.clone(), key.clone(), None),
            Certificate::SelfMade { names } => {
                let made = SelfMade::in_folder(&data.join(SELF_MADE), names).map_err(told)?;
                (made.certificate, made.key, Some(made.ca))
            }
        };
        let settings = TlsSettings { certificate, key, clients: self.clients.clone(), oldest: self.oldest };
        Ok(LoadedTls { port: PortTls::load(settings).map_err(told)?, ca })
    }

    /// The same certificate for a port that asks clients for none.
    pub(crate) fn without_clients(&self) -> Self {
        Self { clients: ClientAuth::Off, ..self.clone() }
    }

    /// True if clients without a certificate are let in.
    pub(crate) fn admits_all(&self) -> bool {
        !matches!(self.clients, ClientAuth::Required(_))
    }
}

/// Scheme of addresses with TLS or without.
pub(crate) fn scheme(has_tls: bool) -> &'static str {
    if has_tls { "https" } else { "http" }
}

/// Refuses addresses that others can reach, for ports that ask nobody for a token or a certificate.
///
/// # Errors
/// [`Failure::Usage`] with the remedies.
pub(crate) fn authenticated(
    listens: &[Listens],
    tls: Option<&ClientTls>,
    tokens: bool,
    insecure: bool,
) -> Result<(), Failure> {
    let asks = tokens || tls.is_some_and(|tls| !tls.admits_all());
    match reachable(listens).next() {
        Some((flag, address)) if !asks && !insecure => Err(Failure::Usage(format!(
            "{flag} {address} can be reached by others, and whoever reaches it may do everything: give --auth tokens, or \
             --tls-client-ca FILE for clients with certificates; --insecure does without"
        ))),
        _ => Ok(()),
    }
}

/// Warning for ports that others can reach; `tokens`: they ask for one.
pub(crate) fn warning(listens: &[Listens], tls: Option<&ClientTls>, tokens: bool) -> Option<String> {
    let open: Vec<String> = reachable(listens).map(|(flag, address)| format!("{flag} {address}")).collect();
    let open = open.join(" and ");
    match tls {
        _ if open.is_empty() => None,
        None => Some(format!(
            "--insecure: {open} can be reached by others without TLS: whoever reads the network reads and changes everything"
        )),
        Some(tls) if tls.admits_all() && !tokens => Some(format!(
            "--insecure: {open} can be reached by others, and whoever reaches it may do everything: --auth tokens asks who they are"
        )),
        Some(_) => None,
    }
}

fn reachable(listens: &[Listens]) -> impl Iterator<Item = &Listens> {
    listens.iter().filter(|(_, address)| !address.ip().is_loopback())
}

/// Refuses addresses that others can reach, for ports without TLS.
fn open(listens: &[Listens], insecure: bool) -> Result<(), Failure> {
    match reachable(listens).next() {
        Some((flag, address)) if !insecure => Err(Failure::Usage(format!(
            "{flag} {address} can be reached by others and has no TLS: give --tls-cert and --tls-key, or --tls self for a \
             first certificate; behind a proxy that has TLS, --insecure does without"
        ))),
        _ => Ok(()),
    }
}

/// Names and addresses by which clients call this machine.
fn names(listens: &[Listens]) -> Vec<String> {
    let mut names: Vec<String> = ["localhost", "127.0.0.1", "::1"].map(str::to_owned).into();
    let host = fs_err::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    names.push(host.trim().to_ascii_lowercase());
    for (_, address) in listens {
        let ip = if address.ip().is_unspecified() { own_address() } else { Some(address.ip()) };
        names.extend(ip.map(|ip| ip.to_string()));
    }
    names.retain(|name| !name.is_empty());
    names.sort();
    names.dedup();
    names
}

/// Address by which this machine reaches others. Nothing is sent.
fn own_address() -> Option<IpAddr> {
    /// An address in the range for documentation: far away, wherever this is.
    const FAR: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    socket.connect((FAR, 9)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct TestArgs {
        #[command(flatten)]
        tls: TlsArgs,
    }

    fn settings(words: &str, address: &str, insecure: bool) -> Result<Option<ClientTls>, String> {
        let words = std::iter::once("up").chain(words.split_whitespace());
        let args = TestArgs::try_parse_from(words).map_err(|error| error.to_string())?;
        let listens = [("--http", address.parse().expect("an address"))];
        args.tls.settings(&listens, insecure).map_err(|error| error.to_string())
    }

    #[test]
    fn addresses_that_others_reach_need_tls() {
        for (words, address, insecure, is_good) in [
            ("", "127.0.0.1:80", false, true),
            ("", "10.0.0.7:80", false, false),
            ("", "10.0.0.7:80", true, true),
            ("--tls off", "0.0.0.0:80", false, false),
            ("--tls self", "0.0.0.0:80", false, true),
            ("--tls-cert c --tls-key k", "[::]:80", false, true),
        ] {
            let found = settings(words, address, insecure);
            assert_eq!(found.is_ok(), is_good, "{words} {address} {insecure}: {found:?}");
            assert!(found.is_ok() || found.is_err_and(|error| error.contains("--tls self")));
        }
    }

    #[test]
    fn contradictions_are_refused_with_the_remedy() {
        for (words, says) in [
            ("--tls-cert c", "belong together"),
            ("--tls self --tls-cert c --tls-key k", "leave --tls-cert"),
            ("--tls-client-ca a", "need TLS"),
            ("--tls self --tls-clients required", "--tls-client-ca FILE"),
            ("--tls-min 1.1", "1.2, 1.3"),
        ] {
            let error = settings(words, "127.0.0.1:80", false).expect_err(words);
            assert!(error.contains(says), "{words}: {error}");
        }
    }

    #[test]
    fn a_ca_for_clients_means_that_they_must_show_a_certificate() {
        let clients = |words: &str| {
            let words = format!("--tls-cert c --tls-key k {words}");
            settings(&words, "127.0.0.1:80", false).expect("settings").expect("TLS").clients
        };
        assert_eq!(clients(""), ClientAuth::Off);
        assert_eq!(clients("--tls-client-ca a"), ClientAuth::Required("a".into()));
        assert_eq!(clients("--tls-client-ca a --tls-clients optional"), ClientAuth::Optional("a".into()));
    }

    #[test]
    fn open_ports_are_warned_of() {
        let listens = |address: &str| [("--api", address.parse().expect("an address"))];
        let warned = |words: &str, address: &str| {
            let tls = settings(words, address, true).expect("settings");
            warning(&listens(address), tls.as_ref(), false)
        };
        assert_eq!(warned("", "127.0.0.1:80"), None);
        assert!(warned("", "10.0.0.7:80").is_some_and(|text| text.contains("without TLS")));
        assert!(warned("--tls self", "10.0.0.7:80").is_some_and(|text| text.contains("--auth tokens")));
        assert_eq!(warned("--tls self --tls-client-ca a", "10.0.0.7:80"), None);
    }

    #[test]
    fn ports_that_others_reach_ask_who_they_are() {
        for (words, address, tokens, insecure, is_good) in [
            ("", "127.0.0.1:80", false, false, true),
            ("--tls self", "127.0.0.1:80", false, false, true),
            ("--tls self", "10.0.0.7:80", false, false, false),
            ("--tls self", "10.0.0.7:80", true, false, true),
            ("--tls self", "10.0.0.7:80", false, true, true),
            ("--tls self --tls-client-ca a", "10.0.0.7:80", false, false, true),
            ("--tls self --tls-client-ca a --tls-clients optional", "10.0.0.7:80", false, false, false),
        ] {
            let tls = settings(words, address, true).expect("settings");
            let listens = [("--http", address.parse().expect("an address"))];
            let found = authenticated(&listens, tls.as_ref(), tokens, insecure);
            assert_eq!(found.is_ok(), is_good, "{words} {address} {tokens} {insecure}");
            assert!(found.is_ok() || found.is_err_and(|error| error.to_string().contains("--auth tokens")));
        }
    }
}
