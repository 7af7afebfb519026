//! Parsers of single values: sizes, times, addresses, labels, GPUs. Each error shows the right form.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    num::NonZeroUsize,
    time::Duration,
};

use berth_spec::{ByteSize, Gpu, InvalidSize, WorkerId};

/// A size of memory or disk, not nothing.
pub(crate) fn size(text: &str) -> Result<ByteSize, String> {
    match ByteSize::given(text) {
        Ok(ByteSize::ZERO) => Err("give at least 1 byte".to_owned()),
        Ok(size) => Ok(size),
        Err(error @ InvalidSize::NoUnit(..)) => Err(error.to_string()),
        Err(InvalidSize::Unreadable(_)) => Err("write for example 512MiB, 1.5GiB or 200MB".to_owned()),
    }
}

/// A length of time: `30s`, `500ms`, `1h30m`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    berth_spec::manifest::parse_duration(text)
}

/// A number of things, not 0.
pub(super) fn count(text: &str) -> Result<NonZeroUsize, String> {
    text.parse().map_err(|_| "write a number from 1".to_owned())
}

pub(super) fn worker_id(text: &str) -> Result<WorkerId, String> {
    WorkerId::new(text).map_err(|e| e.to_string())
}

pub(super) fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => Ok((key.trim().to_owned(), value.trim().to_owned())),
        _ => Err("write KEY=VALUE".to_owned()),
    }
}

/// `127.0.0.1:8080`, `[::1]:8080`, `localhost:8080`, `:8080`; with or without `http://`.
pub(crate) fn socket(text: &str) -> Result<SocketAddr, String> {
    let bare = text.strip_prefix("http://").unwrap_or(text).trim_end_matches('/');
    let (host, port) = bare.rsplit_once(':').unwrap_or((bare, ""));
    match (host, port.parse()) {
        ("" | "localhost", Ok(port)) => Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, port))),
        _ => bare.parse().map_err(|_| "write IP:PORT, for example 127.0.0.1:8080".to_owned()),
    }
}

/// A machine by its address or its name, as others reach it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Host(String);

impl Host {
    /// Reads `10.0.0.2`, `::1`, `[::1]` or a DNS name, without a port.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
        let named = |text: &str| {
            let label = |label: &str| {
                !label.is_empty() && label.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
            };
            text.trim_end_matches('.').split('.').all(label)
        };
        if bare.parse::<IpAddr>().is_ok() || named(bare) {
            return Ok(Self(bare.to_owned()));
        }
        Err("write an IP address or a DNS name without a port, for example 10.0.0.2".to_owned())
    }

    /// The address that it is, or that its name has now. Asks the resolver, so it may block.
    ///
    /// # Errors
    /// For people: the name is not known.
    pub(crate) fn resolve(&self) -> Result<IpAddr, String> {
        use std::net::ToSocketAddrs;
        let mut found = (self.0.as_str(), 0).to_socket_addrs().map_err(|e| format!("{self} is not known: {e}"))?;
        found.next().map(|address| address.ip()).ok_or_else(|| format!("{self} has no address"))
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// `HOST:PORT` of another machine, the port being [`GOSSIP_PORT`] where it is not said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HostPort {
    /// DNS name or IP address, without brackets.
    pub(crate) host: Host,
    pub(crate) port: u16,
}

/// Default port of gossip: that of other programs with SWIM membership (memberlist).
pub(crate) const GOSSIP_PORT: u16 = 7946;

impl HostPort {
    /// Reads it; `port` is meant where none is written.
    pub(crate) fn parse(text: &str, port: u16) -> Result<Self, String> {
        let text = text.trim();
        if text.parse::<IpAddr>().is_ok() {
            return Ok(Self { host: Host(text.to_owned()), port });
        }
        let (host, port) = match text.rsplit_once(':') {
            Some((host, number)) if !host.ends_with(':') => (
                host,
                number.parse().map_err(|_| format!("{number:?} is not a port: write for example 10.0.0.2:{port}"))?,
            ),
            _ => (text, port),
        };
        Ok(Self { host: Host::parse(host)?, port })
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.0.contains(':') {
            return write!(f, "[{}]:{}", self.host, self.port);
        }
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// Parses the gossip address of a member.
pub(crate) fn join(text: &str) -> Result<HostPort, String> {
    HostPort::parse(text, GOSSIP_PORT)
}

/// GPUs of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Gpus {
    gpu: Gpu,
    count: usize,
}

impl Gpus {
    /// Reads `nvidia-h200=141GiB`, `nvidia-l4=24GiBx4`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        /// More than any machine has: a typing error must not fill memory.
        const MOST: usize = 64;
        let how = || "write KIND=MEMORY or KIND=MEMORYxCOUNT, for example nvidia-l4=24GiBx4".to_owned();
        let (kind, rest) = text.split_once('=').ok_or_else(how)?;
        let (memory, count) = match rest.rsplit_once('x') {
            Some((memory, count)) => (memory, count.parse().map_err(|_| how())?),
            None => (rest, 1),
        };
        let kind = kind.trim();
        let fine = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.' | '_');
        if kind.is_empty() || !kind.chars().all(fine) {
            return Err(format!("{kind:?} is not a kind of GPU: lower case with dashes, for example nvidia-l4"));
        }
        if !(1..=MOST).contains(&count) {
            return Err(format!("{count} GPUs are not from 1 to {MOST}"));
        }
        Ok(Self { gpu: Gpu { id: String::new(), kind: kind.to_owned(), memory: size(memory)? }, count })
    }

    /// Each GPU.
    pub(crate) fn each(&self) -> impl Iterator<Item = Gpu> {
        std::iter::repeat_n(self.gpu.clone(), self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for (text, address) in [
            ("127.0.0.1:80", "127.0.0.1:80"),
            (":8080", "127.0.0.1:8080"),
            ("localhost:1", "127.0.0.1:1"),
            ("[::1]:2", "[::1]:2"),
            ("http://0.0.0.0:3/", "0.0.0.0:3"),
        ] {
            assert_eq!(socket(text).map(|address| address.to_string()).as_deref(), Ok(address));
        }
        for bad in ["", "8080", "example.org:80", "127.0.0.1", "127.0.0.1:99999"] {
            assert!(socket(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn other_machines() {
        for (text, shown) in [
            ("10.0.0.2", "10.0.0.2:7946"),
            ("10.0.0.2:9", "10.0.0.2:9"),
            ("node-b.example.org", "node-b.example.org:7946"),
            ("node-b:7", "node-b:7"),
            ("::1", "[::1]:7946"),
            ("[::1]:9", "[::1]:9"),
        ] {
            assert_eq!(join(text).map(|at| at.to_string()).as_deref(), Ok(shown), "{text}");
        }
        for bad in ["", "a b", "http://a:1", "a:b", "a:99999", ":7946", "a/b"] {
            assert!(join(bad).is_err(), "{bad}");
        }
        assert!(Host::parse("10.0.0.2:7946").is_err() && Host::parse("[::1]").is_ok());
        assert_eq!(Host::parse("127.0.0.1").and_then(|host| host.resolve()), Ok(Ipv4Addr::LOCALHOST.into()));
    }

    #[test]
    fn graphics() {
        assert_eq!(Gpus::parse("nvidia-l4=24GiBx4").map(|gpus| gpus.each().count()), Ok(4));
        let one = Gpus {
            gpu: Gpu { id: String::new(), kind: "nvidia-h200".to_owned(), memory: ByteSize::gib(141) },
            count: 1,
        };
        assert_eq!(Gpus::parse("nvidia-h200=141GiB"), Ok(one));
        for bad in ["", "l4", "l4=", "l4=24GiBx", "l4=24GiBx0", "l4=24GiBx999", "L4=1GiB", "=1GiB", "l4=muchx2"] {
            assert!(Gpus::parse(bad).is_err(), "{bad}");
        }
    }
}
