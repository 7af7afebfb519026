//! Decides what a program may connect to. Pure but for one question to the kernel, which is an argument.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use berth_spec::network::{Destination, Host};

/// Addresses at which clouds tell machines their credentials, beside the link-local address.
const METADATA: [IpAddr; 3] = [
    IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254)),
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
];

/// The reason why a connection is not made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The host and port are not on the list.
    Undeclared,
    /// The name stands for addresses that only a declaration of the address opens.
    Private,
    /// An address that no declaration opens: link-local, where clouds tell their credentials, or nobody's.
    Forbidden,
    /// A port of the node itself, which no declaration opens.
    OwnPort,
}

impl Refusal {
    /// The word for it in metrics, one of [`Outcome::WORDS`](super::Outcome::WORDS).
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Undeclared => "undeclared",
            Self::Private => "private",
            Self::Forbidden => "forbidden",
            Self::OwnPort => "own_port",
        }
    }
}

/// The hosts and ports that one program may connect to.
#[derive(Debug)]
pub struct Allowed {
    hosts: Vec<Destination>,
    own_ports: Vec<u16>,
    /// True if a name may stand for a private address.
    names_are_trusted: bool,
}

impl Allowed {
    /// Hosts that the author of a model declares. A private address counts only if it is declared itself: the author does not decide
    /// what is on the network of the node, nor get to its own ports.
    #[must_use]
    pub fn declared(hosts: Vec<Destination>, own_ports: Vec<u16>) -> Self {
        Self { hosts, own_ports, names_are_trusted: false }
    }

    /// Hosts that the operator names, who knows what a name stands for on this network.
    #[must_use]
    pub fn by_operator(hosts: Vec<Destination>) -> Self {
        Self { hosts, own_ports: Vec::new(), names_are_trusted: true }
    }

    /// Before the name is resolved: only names that are declared are asked for.
    pub(super) fn named(&self, wanted: &Destination) -> Result<(), Refusal> {
        if self.hosts.contains(wanted) { Ok(()) } else { Err(Refusal::Undeclared) }
    }

    /// The addresses of `wanted` that may be connected to; `is_here` tells the addresses of this machine.
    pub(super) fn addresses(
        &self,
        wanted: &Destination,
        found: impl IntoIterator<Item = IpAddr>,
        is_here: impl Fn(IpAddr) -> bool,
    ) -> Result<Vec<SocketAddr>, Refusal> {
        let (mut open, mut refusal) = (Vec::new(), Refusal::Private);
        for address in found.into_iter().map(|address| address.to_canonical()) {
            match self.address(wanted, address, &is_here) {
                Ok(()) => open.push(SocketAddr::new(address, wanted.port)),
                Err(why) => refusal = why,
            }
        }
        if open.is_empty() { Err(refusal) } else { Ok(open) }
    }

    fn address(&self, wanted: &Destination, address: IpAddr, is_here: impl Fn(IpAddr) -> bool) -> Result<(), Refusal> {
        if is_forbidden(address) {
            return Err(Refusal::Forbidden);
        }
        if self.own_ports.contains(&wanted.port) && (address.is_loopback() || is_here(address)) {
            return Err(Refusal::OwnPort);
        }
        let declared = || self.hosts.contains(&Destination { host: Host::Address(address), port: wanted.port });
        if is_private(address) && !self.names_are_trusted && !declared() { Err(Refusal::Private) } else { Ok(()) }
    }
}

/// Addresses that mean nobody, everybody, or whoever is on the same wire.
fn is_forbidden(address: IpAddr) -> bool {
    METADATA.contains(&address)
        || address.is_unspecified()
        || address.is_multicast()
        || match address {
            IpAddr::V4(address) => address.is_link_local() || address.is_broadcast() || address.octets()[0] == 0,
            IpAddr::V6(address) => address.is_unicast_link_local(),
        }
}

/// Addresses that are not of the open internet: also those that carry one of version 4, which could be any.
fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            let [a, b, c, _] = address.octets();
            address.is_private()
                || address.is_loopback()
                || address.is_documentation()
                || (a == 100 && (b & 0xc0) == 64)
                || (a, b, c) == (192, 0, 0)
                || (a == 198 && (b & 0xfe) == 18)
                || a >= 240
        }
        // Global unicast is 2000::/3; in it, 6to4 and Teredo carry others.
        IpAddr::V6(address) => {
            let [a, b, ..] = address.segments();
            (a & 0xe000) != 0x2000 || a == 0x2002 || (a, b) == (0x2001, 0) || (a, b) == (0x2001, 0xdb8)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Declared hosts, the wanted one, its addresses, and the number of them that are open.
    type Case = (&'static [&'static str], &'static str, &'static [&'static str], Result<usize, Refusal>);

    fn decided(hosts: &[&str], wanted: &str, found: &[&str]) -> Result<usize, Refusal> {
        let hosts = hosts.iter().map(|host| host.parse().expect("a host")).collect();
        let allowed = Allowed::declared(hosts, vec![8080, 9090]);
        let wanted: Destination = wanted.parse().expect("a host");
        allowed.named(&wanted)?;
        let found = found.iter().map(|address| address.parse::<IpAddr>().expect("an address"));
        let here: IpAddr = "203.0.114.9".parse().expect("an address");
        allowed.addresses(&wanted, found, |address| address == here).map(|open| open.len())
    }

    #[test]
    fn only_what_is_declared_is_reached() {
        use Refusal::{Forbidden, OwnPort, Private, Undeclared};
        let cases: [Case; 17] = [
            (&[], "a.com:443", &["1.1.1.1"], Err(Undeclared)),
            (&["a.com:443"], "a.com:443", &["1.1.1.1", "2606:4700::1"], Ok(2)),
            (&["a.com:443"], "A.COM.:443", &["1.1.1.1"], Ok(1)),
            (&["a.com:443"], "a.com:80", &["1.1.1.1"], Err(Undeclared)),
            (&["a.com:443"], "b.a.com:443", &["1.1.1.1"], Err(Undeclared)),
            (&["a.com:443"], "1.1.1.1:443", &["1.1.1.1"], Err(Undeclared)),
            (&["a.com:443"], "a.com:443", &["127.0.0.1", "10.1.2.3", "fd00::1", "::1", "64:ff9b::a00:1"], Err(Private)),
            (&["a.com:443"], "a.com:443", &["10.0.0.1", "1.1.1.1"], Ok(1)),
            (&["a.com:443", "10.0.0.1:443"], "a.com:443", &["10.0.0.1"], Ok(1)),
            (&["127.0.0.1:5000"], "127.0.0.1:5000", &["127.0.0.1"], Ok(1)),
            (&["127.0.0.1:5000"], "[::ffff:127.0.0.1]:5000", &["::ffff:127.0.0.1"], Ok(1)),
            (&["127.0.0.1:8080"], "127.0.0.1:8080", &["127.0.0.1"], Err(OwnPort)),
            (&["node.com:9090"], "node.com:9090", &["203.0.114.9"], Err(OwnPort)),
            (&["node.com:443"], "node.com:443", &["203.0.114.9"], Ok(1)),
            (&["169.254.169.254:80"], "169.254.169.254:80", &["169.254.169.254"], Err(Forbidden)),
            (&["meta.com:80"], "meta.com:80", &["169.254.169.254"], Err(Forbidden)),
            (&["0.0.0.0:5000"], "0.0.0.0:5000", &["0.0.0.0"], Err(Forbidden)),
        ];
        for (hosts, wanted, found, expected) in cases {
            assert_eq!(decided(hosts, wanted, found), expected, "{hosts:?} {wanted} {found:?}");
        }
        assert_eq!(decided(&["a.com:1"], "a.com:1", &[]), Err(Private), "a name of nobody");
    }

    #[test]
    fn names_of_the_operator_may_stand_for_private_addresses() {
        let hosts = ["index.corp:443", "127.0.0.1:3141"].map(|host| host.parse().expect("a host")).to_vec();
        let allowed = Allowed::by_operator(hosts);
        for (wanted, found, expected) in [
            ("index.corp:443", "10.0.0.1", Ok(1)),
            ("index.corp:443", "203.0.113.80", Ok(1)),
            ("index.corp:443", "169.254.169.254", Err(Refusal::Forbidden)),
            ("127.0.0.1:3141", "127.0.0.1", Ok(1)),
            ("127.0.0.1:2379", "127.0.0.1", Err(Refusal::Undeclared)),
            ("10.0.0.1:443", "10.0.0.1", Err(Refusal::Undeclared)),
        ] {
            let wanted: Destination = wanted.parse().expect("a host");
            let found: IpAddr = found.parse().expect("an address");
            let open = allowed.named(&wanted).and_then(|()| allowed.addresses(&wanted, [found], |_| true));
            assert_eq!(open.map(|open| open.len()), expected, "{wanted} {found}");
        }
    }
}
