//! Hosts that a model may reach from its sandbox.

use std::{fmt, net::IpAddr, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// The network of a model: nothing but the hosts that are named.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Network {
    /// The hosts; empty: none.
    #[serde(default)]
    pub hosts: Vec<Destination>,
}

impl Network {
    /// The most hosts: a list that people can check.
    pub const MAX_HOSTS: usize = 32;
}

/// A host and a port: `api.example.com:443`, `10.0.0.5:5432`, `[2001:db8::1]:443`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Destination {
    /// The name or the address.
    pub host: Host,
    /// The TCP port, 1 to 65535.
    pub port: u16,
}

/// A name or an address.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Host {
    /// A name in small letters, without a dot at its end.
    Name(String),
    /// An address of IPv4 or IPv6.
    Address(IpAddr),
}

/// A text that is no host and port.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a host and a port: write for example api.example.com:443 or 10.0.0.5:5432")]
pub struct NoDestination(String);

impl Host {
    /// Reads a name or an address; `None`: it is neither.
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
        if let Ok(address) = bare.parse::<IpAddr>() {
            return Some(Self::Address(address.to_canonical()));
        }
        let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let right = |label: &str| !label.is_empty() && label.len() <= 63 && label.chars().all(plain);
        // What looks like an address of numbers and is none would be read as one by some resolvers.
        let numbers = name.rsplit('.').next().is_none_or(|last| last.starts_with(|c: char| c.is_ascii_digit()));
        (name.len() <= 253 && name.split('.').all(right) && !numbers).then_some(Self::Name(name))
    }
}

impl FromStr for Destination {
    type Err = NoDestination;

    fn from_str(text: &str) -> Result<Self, NoDestination> {
        let wrong = || NoDestination(text.to_owned());
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let bracketed = host.starts_with('[');
        let host = Host::read(host).filter(|_| bracketed || !host.contains(':')).ok_or_else(wrong)?;
        let port = port.parse::<u16>().ok().filter(|port| *port > 0).ok_or_else(wrong)?;
        Ok(Self { host, port })
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Address(IpAddr::V4(address)) => address.fmt(f),
            Self::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
        }
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

impl Serialize for Destination {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Destination {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_ports_go_both_ways() {
        for (text, written) in [
            ("api.example.com:443", "api.example.com:443"),
            ("API.Example.com.:443", "api.example.com:443"),
            ("localhost:80", "localhost:80"),
            ("10.0.0.5:5432", "10.0.0.5:5432"),
            ("[::1]:80", "[::1]:80"),
            ("[::ffff:127.0.0.1]:80", "127.0.0.1:80"),
        ] {
            let read: Destination = text.parse().expect(text);
            assert_eq!(read.to_string(), written);
            assert_eq!(written.parse(), Ok(read));
        }
        for bad in [
            "",
            "a",
            "a:",
            ":1",
            "a:0",
            "a:65536",
            "http://a:1",
            "a/b:1",
            "::1:80",
            "*:443",
            "*.a.com:443",
            "127.1:80",
            "0x7f.1:80",
            "2130706433:80",
            "a..b:1",
            "a b:1",
            "[a]:1",
        ] {
            assert!(bad.parse::<Destination>().is_err(), "{bad}");
        }
    }
}
