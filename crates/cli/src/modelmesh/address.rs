//! Addresses of this machine: by which other instances reach it, and at which its ports listen.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
};

/// The address of this machine towards the store, by which other instances reach it, too.
pub(super) fn own(endpoints: &[String]) -> Option<IpAddr> {
    // Nothing is sent: the kernel only chooses the way. A socket of one family finds none to the other's addresses.
    let towards = |endpoint: &str, from: IpAddr| {
        let socket = UdpSocket::bind((from, 0)).ok()?;
        socket.connect(endpoint).ok()?;
        socket.local_addr().ok().map(|address| address.ip()).filter(|ip| !ip.is_unspecified())
    };
    endpoints.iter().find_map(|endpoint| {
        towards(endpoint, Ipv4Addr::UNSPECIFIED.into()).or_else(|| towards(endpoint, Ipv6Addr::UNSPECIFIED.into()))
    })
}

/// A port for gossip that is free now.
pub(super) fn free_udp(ip: IpAddr) -> io::Result<SocketAddr> {
    UdpSocket::bind((ip, 0))?.local_addr()
}

/// The address of ports that everybody may reach: of both families where this machine has IPv6, else of IPv4.
pub(super) fn of_everybody() -> IpAddr {
    if takes_both_families().is_ok() { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() }
}

/// Tries if a port at all addresses of IPv6 takes those of IPv4 as well: `net.ipv6.bindv6only` may say otherwise.
fn takes_both_families() -> io::Result<()> {
    // Without addresses of IPv6 it could be bound all the same.
    drop(TcpListener::bind((Ipv6Addr::LOCALHOST, 0))?);
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0))?;
    TcpStream::connect((Ipv4Addr::LOCALHOST, listener.local_addr()?.port())).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_for_everybody_take_ipv4_too() {
        let listener = TcpListener::bind((of_everybody(), 0)).expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("it takes IPv4");
    }

    #[test]
    fn the_way_to_a_store_of_either_family_has_an_address() {
        let told = |endpoint: &str| own(&[endpoint.to_owned()]);
        assert_eq!(told("127.0.0.1:2379"), Some(Ipv4Addr::LOCALHOST.into()));
        // Where this machine has it.
        if TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok() {
            assert_eq!(told("[::1]:2379"), Some(Ipv6Addr::LOCALHOST.into()));
        }
    }
}
