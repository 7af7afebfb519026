//! The configuration file: its form, and what is wrong with one.
//!
//! In Kubernetes it is a ConfigMap that is mounted as a file. docs/executor.md has every field.

mod access;
mod broker;
mod jobs;
mod log;

use std::{
    collections::BTreeSet,
    fmt, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use berth_peer::port::TlsSettings;
use berth_spec::{ByteSize, circuit, manifest::parse_duration};
use serde::{Deserialize, Deserializer, de::Error as _};
use serde_saphyr::{Location, Spanned};

pub use self::jobs::JOBS_PREFIX;
use crate::{
    access::AccessSettings, jobs::JobSettings, log::LogSettings, template::PathTemplate, upstream::UpstreamTls,
};

/// Largest file. More is none of a person's.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Most templates of one port: each is a label of metrics.
const MOST_PATHS: usize = 100;

/// Configuration of an executor, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    pub(crate) ports: Vec<PortConfig>,
    pub(crate) admin: SocketAddr,
    pub(crate) drain: DrainConfig,
    /// Connections of one address, at all ports together; `None`: half of all.
    pub(crate) max_connections_per_address: Option<usize>,
    /// Access rules; `None`: everybody may ask.
    pub(crate) access: Option<AccessSettings>,
}

/// A port and what is behind it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PortConfig {
    pub(crate) name: String,
    pub(crate) listen: SocketAddr,
    pub(crate) upstream: String,
    /// TLS towards the model server; `None`: there is none.
    pub(crate) upstream_tls: Option<UpstreamTls>,
    pub(crate) tls: Option<TlsSettings>,
    pub(crate) protocol: Protocol,
    pub(crate) paths: Vec<PathTemplate>,
    /// Until an answer begins.
    pub(crate) timeout: Duration,
    /// Until the server takes a connection.
    pub(crate) connect_timeout: Duration,
    /// Longest silence within an answer; `None`: it may last.
    pub(crate) idle_timeout: Option<Duration>,
    pub(crate) max_in_flight: usize,
    pub(crate) max_body: u64,
    pub(crate) retry: RetryConfig,
    pub(crate) breaker: Option<circuit::Limits>,
    pub(crate) health: HealthConfig,
    /// Asynchronous serving; `None`: no request is queued.
    pub(crate) jobs: Option<JobSettings>,
    /// The log of requests and answers; `None`: nothing is logged.
    pub(crate) log: Option<LogSettings>,
}

/// Protocol towards the model server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Protocol {
    /// HTTP/2 for gRPC, else HTTP/1.1.
    Auto,
    Http1,
    Http2,
}

/// Requests that are sent again when the server breaks the connection before it answers.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RetryConfig {
    /// Attempts in all; 1: nothing is sent again.
    pub(crate) attempts: u32,
    /// Paths whose requests may be run twice, beside those of methods that say so.
    pub(crate) paths: Vec<PathTemplate>,
}

/// Form of the question to the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum HealthCheck {
    /// A connection is enough.
    Connect,
    /// A GET of this path.
    Path(String),
    /// gRPC's own protocol for it (`grpc.health.v1`), with the name of the service; empty: the whole server.
    Grpc(String),
}

/// The question that tells if the server can answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct HealthConfig {
    pub(crate) check: HealthCheck,
    pub(crate) every: Duration,
    pub(crate) timeout: Duration,
    /// Failures in a row that make it unready.
    pub(crate) failures: u32,
}

/// The end of the process.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct DrainConfig {
    /// Until no new connection is taken: others still send requests here.
    pub(crate) delay: Duration,
    /// For requests in flight after that.
    pub(crate) timeout: Duration,
}

/// Reason why a configuration cannot be used, with its place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct ConfigError {
    file: PathBuf,
    at: Option<(u64, u64)>,
    message: String,
}

impl ConfigError {
    /// The reason, without the place.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = self.file.display();
        match self.at {
            Some((line, column)) => write!(f, "{file}:{line}:{column}: {}", self.message),
            None => write!(f, "{file}: {}", self.message),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct RawConfig {
    ports: Vec<Spanned<RawPort>>,
    #[serde(default)]
    admin: RawAdmin,
    #[serde(default)]
    drain: RawDrain,
    max_connections_per_address: Option<usize>,
    access: Option<access::RawAccess>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawAdmin {
    listen: Option<Address>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawDrain {
    delay: Option<Span>,
    timeout: Option<Span>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct RawPort {
    name: String,
    listen: Address,
    upstream: Upstream,
    upstream_tls: Option<broker::RawUpstreamTls>,
    tls: Option<access::RawPortTls>,
    protocol: Option<Protocol>,
    #[serde(default)]
    paths: Vec<Template>,
    timeout: Option<Span>,
    connect_timeout: Option<Span>,
    idle_timeout: Option<Span>,
    max_in_flight: Option<usize>,
    max_body: Option<Size>,
    #[serde(default)]
    retry: RawRetry,
    breaker: Option<RawBreaker>,
    #[serde(default)]
    health: RawHealth,
    #[serde(rename = "async")]
    jobs: Option<jobs::RawJobs>,
    log: Option<log::RawLog>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRetry {
    attempts: Option<u32>,
    #[serde(default)]
    paths: Vec<Template>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct RawBreaker {
    failures: u32,
    open_for: Span,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawHealth {
    path: Option<Template>,
    grpc: Option<String>,
    every: Option<Span>,
    timeout: Option<Span>,
    failures: Option<u32>,
}

/// An address to listen at: `8081` is that port of all addresses.
struct Address(SocketAddr);

/// `8080` is that port of this machine.
struct Upstream(String);

struct Template(PathTemplate);

/// A time, such as `5s`.
struct Span(Duration);

/// A number of bytes, such as `64Mi`.
struct Size(u64);

/// A number or a text.
#[derive(Deserialize)]
#[serde(untagged)]
enum NumberOrText {
    Number(u64),
    Text(String),
}

impl<'de> Deserialize<'de> for Address {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let wrong =
            |text: &str| D::Error::custom(format!("{text:?} is no port (8081) and no address (127.0.0.1:8081)"));
        match NumberOrText::deserialize(deserializer)? {
            NumberOrText::Number(port) => {
                let port = u16::try_from(port).map_err(|_| wrong(&port.to_string()))?;
                Ok(Self((IpAddr::V4(Ipv4Addr::UNSPECIFIED), port).into()))
            }
            NumberOrText::Text(text) => text.parse().map(Self).map_err(|_| wrong(&text)),
        }
    }
}

impl<'de> Deserialize<'de> for Upstream {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let wrong = |text: &str| D::Error::custom(format!("{text:?} is no port (8080) and no HOST:PORT"));
        match NumberOrText::deserialize(deserializer)? {
            NumberOrText::Number(port @ 1..=65_535) => Ok(Self(format!("127.0.0.1:{port}"))),
            NumberOrText::Number(port) => Err(wrong(&port.to_string())),
            NumberOrText::Text(text) => {
                let authority: http::uri::Authority = text.parse().map_err(|_| wrong(&text))?;
                match authority.port_u16() {
                    Some(1..) if !text.contains('@') => Ok(Self(text)),
                    _ => Err(wrong(&text)),
                }
            }
        }
    }
}

impl<'de> Deserialize<'de> for Template {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        PathTemplate::parse(&String::deserialize(deserializer)?).map(Self).map_err(D::Error::custom)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let wrong = |remedy| D::Error::custom(format!("{text:?} is not a duration: {remedy}"));
        parse_duration(&text).map(Self).map_err(wrong)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let size: ByteSize = text.parse().map_err(D::Error::custom)?;
        Ok(Self(size.0))
    }
}

impl Config {
    /// Reads a file. Blocking.
    ///
    /// # Errors
    /// [`ConfigError`] with the place.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let unreadable = |error: io::Error| ConfigError { file: path.to_owned(), at: None, message: error.to_string() };
        let length = std::fs::metadata(path).map_err(unreadable)?.len();
        if length > MAX_FILE_BYTES {
            let message = format!("the file has {length} bytes; a configuration has at most {MAX_FILE_BYTES}");
            return Err(ConfigError { file: path.to_owned(), at: None, message });
        }
        Self::parse(path, &std::fs::read_to_string(path).map_err(unreadable)?)
    }

    /// Reads a text; `path` is what errors call it.
    ///
    /// # Errors
    /// [`ConfigError`] with the place.
    pub fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        let options = serde_saphyr::options! { with_snippet: false, strict_booleans: true };
        let raw: RawConfig = serde_saphyr::from_str_with_options(text, options).map_err(|error| {
            let message = error.without_snippet().to_string();
            // The library ends its messages with the place, which the error has already.
            let message = message.split(" at line ").next().unwrap_or_default().to_owned();
            ConfigError { file: path.to_owned(), at: error.location().and_then(place), message }
        })?;
        let wrong = |at: Option<Location>, message: String| ConfigError {
            file: path.to_owned(),
            at: at.and_then(place),
            message,
        };
        let admin = raw.admin.listen.map_or((Ipv4Addr::UNSPECIFIED, 9901).into(), |address| address.0);
        let (mut ports, mut names, mut taken) = (Vec::new(), BTreeSet::new(), BTreeSet::from([admin.port()]));
        let mut places = Vec::new();
        for Spanned { value, referenced, .. } in raw.ports {
            let port = value.checked().map_err(|message| wrong(Some(referenced), message))?;
            if !names.insert(port.name.clone()) {
                return Err(wrong(Some(referenced), format!("there are two ports of the name {:?}", port.name)));
            }
            if port.listen.port() != 0 && !taken.insert(port.listen.port()) {
                let message = format!("port {} is taken by another entry, or by admin.listen", port.listen.port());
                return Err(wrong(Some(referenced), message));
            }
            ports.push(port);
            places.push(referenced);
        }
        let own: Vec<SocketAddr> = ports.iter().map(|port: &PortConfig| port.listen).chain([admin]).collect();
        for (port, at) in ports.iter().zip(places) {
            if own.iter().any(|own| leads_to(&port.upstream, *own)) {
                let message =
                    format!("upstream {} is a port of this executor: name that of the model server", port.upstream);
                return Err(wrong(Some(at), message));
            }
        }
        if ports.is_empty() {
            return Err(wrong(
                None,
                "ports is empty: name at least one port to listen at, and its upstream".to_owned(),
            ));
        }
        let or = |span: Option<Span>, seconds| span.map_or(Duration::from_secs(seconds), |span| span.0);
        let drain = DrainConfig { delay: or(raw.drain.delay, 5), timeout: or(raw.drain.timeout, 30) };
        let max_connections_per_address = raw.max_connections_per_address;
        if max_connections_per_address == Some(0) {
            return Err(wrong(None, "maxConnectionsPerAddress is zero: nobody could connect".to_owned()));
        }
        let access = raw.access.map(access::RawAccess::checked).transpose();
        let access = access.map_err(|message| wrong(None, message))?;
        Ok(Self { ports, admin, drain, max_connections_per_address, access })
    }
}

impl RawPort {
    fn checked(self) -> Result<PortConfig, String> {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if self.name.is_empty() || self.name.len() > 63 || !self.name.chars().all(plain) {
            return Err(format!("the name {:?} of a port is not 1 to 63 letters, digits, - and _", self.name));
        }
        if self.paths.len().max(self.retry.paths.len()) > MOST_PATHS {
            return Err(format!("a port has at most {MOST_PATHS} paths: each is a label of metrics"));
        }
        let positive = |span: Option<Span>, name: &str, seconds| match span {
            Some(Span(Duration::ZERO)) => Err(format!("{name} is zero: no request could ever pass")),
            span => Ok(span.map_or(Duration::from_secs(seconds), |span| span.0)),
        };
        let attempts = self.retry.attempts.unwrap_or(1);
        if !(1..=10).contains(&attempts) {
            return Err(format!("retry.attempts is {attempts}: it counts the first attempt, and is at most 10"));
        }
        let breaker = self.breaker.map(|RawBreaker { failures, open_for }| match (failures, open_for.0) {
            (0, _) | (_, Duration::ZERO) => Err("a breaker needs failures and openFor above zero".to_owned()),
            (threshold, open_for) => Ok(circuit::Limits { threshold, open_for }),
        });
        let check = match (self.health.path, self.health.grpc) {
            (Some(_), Some(_)) => return Err("health names a path and a gRPC service: give one of them".to_owned()),
            (Some(path), None) => HealthCheck::Path(path.0.as_str().to_owned()),
            (None, Some(service)) if service.len() > 127 => {
                return Err("health.grpc is the name of a service, at most 127 bytes".to_owned());
            }
            (None, Some(service)) => HealthCheck::Grpc(service),
            (None, None) => HealthCheck::Connect,
        };
        let health = HealthConfig {
            check,
            every: positive(self.health.every, "health.every", 5)?,
            timeout: positive(self.health.timeout, "health.timeout", 2)?,
            failures: self.health.failures.unwrap_or(3).max(1),
        };
        let idle_timeout = self.idle_timeout.map(|Span(span)| span);
        if idle_timeout == Some(Duration::ZERO) {
            return Err("idleTimeout is zero: no answer could ever pass".to_owned());
        }
        let max_in_flight = self.max_in_flight.unwrap_or(1_024);
        if max_in_flight == 0 {
            return Err("maxInFlight is zero: no request could ever pass".to_owned());
        }
        Ok(PortConfig {
            name: self.name,
            listen: self.listen.0,
            upstream: self.upstream.0,
            upstream_tls: self.upstream_tls.map(broker::RawUpstreamTls::checked).transpose()?,
            tls: self.tls.map(access::RawPortTls::checked).transpose()?,
            protocol: self.protocol.unwrap_or(Protocol::Auto),
            paths: self.paths.into_iter().map(|path| path.0).collect(),
            timeout: positive(self.timeout, "timeout", 300)?,
            connect_timeout: positive(self.connect_timeout, "connectTimeout", 10)?,
            idle_timeout,
            max_in_flight,
            max_body: self.max_body.map_or(u64::MAX, |size| size.0),
            retry: RetryConfig { attempts, paths: self.retry.paths.into_iter().map(|path| path.0).collect() },
            breaker: breaker.transpose()?,
            health,
            jobs: self.jobs.map(jobs::RawJobs::checked).transpose()?,
            log: self.log.map(log::RawLog::checked).transpose()?,
        })
    }
}

/// True if a connection to `upstream` may reach who listens at `own`: each request would come back until no more are taken.
fn leads_to(upstream: &str, own: SocketAddr) -> bool {
    let Some((host, port)) = upstream.rsplit_once(':') else { return false };
    let listens = own.ip().to_canonical();
    let takes = |asked: &IpAddr| match listens.is_unspecified() {
        // `[::]` takes connections of both families.
        true => asked.is_loopback() && (listens.is_ipv6() || asked.is_ipv4()),
        false => listens == *asked,
    };
    port.parse::<u16>() == Ok(own.port()) && reached(host).iter().any(takes)
}

/// Addresses that a host leads to, as far as that is known without a name server.
fn reached(host: &str) -> Vec<IpAddr> {
    const V4: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
    const V6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);
    let name = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    match &*name {
        // Which of them is asked first differs by machine. All names below it are the same (RFC 6761).
        "localhost" => return vec![V4, V6],
        below if below.ends_with(".localhost") => return vec![V4, V6],
        // The kubelet writes them into each pod's file of hosts.
        "ip6-localhost" | "ip6-loopback" => return vec![V6],
        _ => {}
    }
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    match bare.parse::<IpAddr>().map(|address| address.to_canonical()) {
        // Linux takes the unspecified address as that of the machine itself.
        Ok(address) if address.is_unspecified() => vec![if address.is_ipv4() { V4 } else { V6 }],
        Ok(address) => vec![address],
        Err(_) => Vec::new(),
    }
}

fn place(at: Location) -> Option<(u64, u64)> {
    let known = |n: u64| (1..u64::from(u32::MAX)).contains(&n);
    (known(at.line()) && known(at.column())).then(|| (at.line(), at.column()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Config, String> {
        Config::parse(Path::new("executor.yaml"), text).map_err(|error| error.to_string())
    }

    #[test]
    fn the_example_of_the_docs() {
        let page =
            fs_err::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/executor.md")).expect("the page");
        let example = page
            .split("```yaml title=\"executor.yaml\"\n")
            .nth(1)
            .and_then(|rest| rest.split("```").next())
            .expect("an example");
        let config = read(example).expect("it is right");
        assert_eq!(config.ports.len(), 2);
        assert_eq!(config.ports[0].upstream, "127.0.0.1:8080");
        assert_eq!(config.ports[0].max_body, 64 << 20);
    }

    #[test]
    fn what_is_left_out_has_a_value() {
        let config = read("ports: [{name: http, listen: 8081, upstream: 8080}]").expect("it is right");
        let [port] = &*config.ports else { panic!("one port") };
        assert_eq!((port.listen.to_string(), port.upstream.as_str()), ("0.0.0.0:8081".to_owned(), "127.0.0.1:8080"));
        assert_eq!((port.timeout, port.connect_timeout), (Duration::from_secs(300), Duration::from_secs(10)));
        assert_eq!((port.retry.attempts, port.breaker, &port.health.check), (1, None, &HealthCheck::Connect));
        assert_eq!((config.admin.port(), config.drain.delay), (9901, Duration::from_secs(5)));
    }

    #[test]
    fn a_server_may_have_the_same_number_at_another_address() {
        for text in [
            "ports: [{name: a, listen: '10.0.0.1:8080', upstream: 8080}]",
            "ports: [{name: a, listen: 8080, upstream: 'model:8080'}]",
            "ports: [{name: a, listen: 8080, upstream: '[::1]:8080'}]",
        ] {
            assert!(read(text).is_ok(), "{text}: {:?}", read(text));
        }
    }

    #[test]
    fn an_upstream_may_lead_back_by_each_name_of_the_machine() {
        let addresses = ["127.0.0.1:8081", "[::1]:8081", "0.0.0.0:8081", "[::]:8081", "10.0.0.1:8081"];
        for (upstream, back) in [
            ("127.0.0.1:8081", [true, false, true, true, false]),
            ("127.0.0.2:8081", [false, false, true, true, false]),
            ("[::1]:8081", [false, true, false, true, false]),
            ("[::ffff:127.0.0.1]:8081", [true, false, true, true, false]),
            ("localhost:8081", [true, true, true, true, false]),
            ("LocalHost.:8081", [true, true, true, true, false]),
            ("model.localhost:8081", [true, true, true, true, false]),
            ("ip6-localhost:8081", [false, true, false, true, false]),
            ("0.0.0.0:8081", [true, false, true, true, false]),
            ("[::]:8081", [false, true, false, true, false]),
            ("10.0.0.1:8081", [false, false, false, false, true]),
            ("localhost:8080", [false; 5]),
            ("mylocalhost:8081", [false; 5]),
            ("localhost.example:8081", [false; 5]),
        ] {
            for (own, back) in addresses.into_iter().zip(back) {
                assert_eq!(leads_to(upstream, own.parse().expect("an address")), back, "{upstream} and {own}");
            }
        }
    }

    #[test]
    fn what_is_wrong_is_told_with_its_place() {
        for (text, expected) in [
            ("", "executor.yaml"),
            ("ports: []", "ports is empty"),
            (
                "ports: [{name: a, listen: 8081, upstream: 8080}]\nmaxConnectionsPerAddress: 0",
                "maxConnectionsPerAddress is zero",
            ),
            ("ports: [{name: a, listen: 8081}]", "missing field `upstream`"),
            ("ports: [{name: a, listen: 8081, upstream: 8080, timeuot: 1s}]", "executor.yaml:1:"),
            ("ports: [{name: a, listen: 99999, upstream: 8080}]", "\"99999\" is no port"),
            ("ports: [{name: a, listen: 8081, upstream: 0}]", "\"0\" is no port (8080) and no HOST:PORT"),
            ("ports: [{name: a, listen: 8081, upstream: model}]", "no HOST:PORT"),
            ("ports: [{name: a b, listen: 8081, upstream: 8080}]", "the name \"a b\""),
            ("ports: [{name: a, listen: 8081, upstream: 8080, timeout: 0s}]", "timeout is zero"),
            ("ports: [{name: a, listen: 8081, upstream: 8080, idleTimeout: 0s}]", "idleTimeout is zero"),
            ("ports: [{name: a, listen: 8081, upstream: 8080, paths: [predict]}]", "does not begin with a slash"),
            (
                "ports: [{name: a, listen: 8081, upstream: 8080, breaker: {failures: 0, openFor: 1s}}]",
                "a breaker needs",
            ),
            ("ports: [{name: a, listen: 8081, upstream: 8080, retry: {attempts: 0}}]", "retry.attempts is 0"),
            (
                "ports:\n  - {name: a, listen: 8081, upstream: 8080}\n  - {name: b, listen: 8081, upstream: 8080}",
                "executor.yaml:3:5: port 8081 is taken",
            ),
            ("ports: [{name: a, listen: 9901, upstream: 8080}]", "or by admin.listen"),
            ("ports: [{name: a, listen: 8081, upstream: 8081}]", "upstream 127.0.0.1:8081 is a port of this executor"),
            ("ports: [{name: a, listen: '[::]:8081', upstream: 8081}]", "is a port of this executor"),
            ("ports: [{name: a, listen: '[::]:8081', upstream: '[::1]:8081'}]", "is a port of this executor"),
            ("ports: [{name: a, listen: 8081, upstream: 'localhost:9901'}]", "is a port of this executor"),
            ("ports: [{name: a, listen: '[::1]:8081', upstream: 'localhost:8081'}]", "is a port of this executor"),
            (
                "ports: [{name: a, listen: 8081, upstream: 8080, upstreamTls: {key: /k}}]",
                "upstreamTls: certificate and key belong together",
            ),
            (
                "ports: [{name: a, listen: 8081, upstream: 8080, upstreamTls: {serverName: 'a b'}}]",
                "upstreamTls.serverName is \"a b\"",
            ),
        ] {
            let error = read(text).expect_err(text);
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
