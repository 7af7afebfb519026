//! Reads what a client of the proxy wants: CONNECT and whole URLs of HTTP, and SOCKS5.

use std::io;

use berth_spec::network::{Destination, Host};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

/// The most bytes of a request before its destination is known: as many as servers take for a head.
const MAX_HEAD_BYTES: usize = 16 << 10;

/// A program's request for a connection to a host.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ProxyRequest {
    pub(super) destination: Destination,
    pub(super) method: ProxyMethod,
}

/// The way by which a program asks, and the bytes that have come for the host already.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ProxyMethod {
    /// `CONNECT host:port`, and what came after it.
    Connect(Vec<u8>),
    /// `GET http://host/…`: the same as the host gets it.
    Forward(Vec<u8>),
    /// SOCKS5 (RFC 1928), whose answer is still to be sent.
    Socks,
}

/// Reads a request of either protocol up to its destination. Fails with `InvalidData` if the bytes are none.
pub(super) async fn read(from: &mut TcpStream) -> io::Result<ProxyRequest> {
    let mut first = [0];
    from.read_exact(&mut first).await?;
    if first == [5] { socks(from).await } else { http(from, first[0]).await }
}

fn wrong(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.to_owned())
}

async fn http(from: &mut TcpStream, first: u8) -> io::Result<ProxyRequest> {
    let (head, body) = head(from, vec![first]).await?;
    parsed(&head, body)
}

/// Reads a head to its end, of which `bytes` have come already, and what came after it.
pub(super) async fn head(from: &mut TcpStream, mut bytes: Vec<u8>) -> io::Result<(String, Vec<u8>)> {
    let mut part = [0; 2048];
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break end + 4;
        }
        if bytes.len() > MAX_HEAD_BYTES {
            return Err(wrong("the head is too long"));
        }
        match from.read(&mut part).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => bytes.extend_from_slice(&part[..read]),
        }
    };
    let after = bytes.split_off(end);
    let head = String::from_utf8(bytes).map_err(|_| wrong("the head is no text"))?;
    Ok((head, after))
}

/// The request of a head, and what came after it.
fn parsed(head: &str, body: Vec<u8>) -> io::Result<ProxyRequest> {
    let (line, fields) = head.split_once("\r\n").ok_or_else(|| wrong("no request line"))?;
    let mut words = line.split(' ');
    let (Some(method), Some(target), Some(version), None) = (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(wrong("no request line"));
    };
    if method == "CONNECT" {
        let destination =
            target.parse().map_err(|error: berth_spec::network::NoDestination| wrong(&error.to_string()))?;
        return Ok(ProxyRequest { destination, method: ProxyMethod::Connect(body) });
    }
    let rest = target.strip_prefix("http://").ok_or_else(|| wrong("the proxy takes CONNECT and http:// only"))?;
    let (place, path) = rest.find(['/', '?']).map_or((rest, ""), |at| rest.split_at(at));
    let with_port = if place.rsplit_once(':').is_some_and(|(_, port)| port.bytes().all(|b| b.is_ascii_digit())) {
        place.to_owned()
    } else {
        format!("{place}:80")
    };
    let destination = with_port.parse().map_err(|_| wrong("no host in the URL"))?;
    let slash = if path.starts_with('/') { "" } else { "/" };
    let mut passed = format!("{method} {slash}{path} {version}\r\n");
    // One request for each connection: the next one may be for another host.
    for field in fields.split_terminator("\r\n").filter(|field| !field.is_empty()) {
        let name = field.split(':').next().unwrap_or_default().to_ascii_lowercase();
        if !matches!(name.as_str(), "connection" | "proxy-connection" | "proxy-authorization" | "keep-alive") {
            passed += field;
            passed += "\r\n";
        }
    }
    passed += "Connection: close\r\n\r\n";
    let mut passed = passed.into_bytes();
    passed.extend_from_slice(&body);
    Ok(ProxyRequest { destination, method: ProxyMethod::Forward(passed) })
}

/// RFC 1928, without authentication, CONNECT only.
async fn socks(from: &mut TcpStream) -> io::Result<ProxyRequest> {
    let methods = from.read_u8().await?;
    let mut offered = vec![0; usize::from(methods)];
    from.read_exact(&mut offered).await?;
    if !offered.contains(&0) {
        from.write_all(&[5, 0xff]).await?;
        return Err(wrong("no way of SOCKS without a password"));
    }
    from.write_all(&[5, 0]).await?;
    let mut request = [0; 4];
    from.read_exact(&mut request).await?;
    let [5, 1, _, kind] = request else { return Err(wrong("SOCKS5 with CONNECT only")) };
    let host = match kind {
        1 => Host::Address(std::net::Ipv4Addr::from(from.read_u32().await?).into()),
        4 => Host::Address(std::net::IpAddr::from(std::net::Ipv6Addr::from(from.read_u128().await?)).to_canonical()),
        3 => {
            let length = from.read_u8().await?;
            let mut name = vec![0; usize::from(length)];
            from.read_exact(&mut name).await?;
            let name = String::from_utf8(name).map_err(|_| wrong("the name is no text"))?;
            Host::read(&name).ok_or_else(|| wrong("the name is none"))?
        }
        _ => return Err(wrong("no such kind of address")),
    };
    let port = from.read_u16().await?;
    Ok(ProxyRequest { destination: Destination { host, port }, method: ProxyMethod::Socks })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_of_http_say_where_to() {
        let asked = |head: &str| parsed(head, b"more".to_vec()).ok();
        let connect = asked("CONNECT a.com:443 HTTP/1.1\r\nHost: a.com\r\n\r\n").expect("a request");
        assert_eq!(
            (connect.destination.to_string().as_str(), connect.method),
            ("a.com:443", ProxyMethod::Connect(b"more".to_vec()))
        );
        let get = asked(
            "GET http://a.com/x?y HTTP/1.1\r\nHost: a.com\r\nConnection: keep-alive\r\nProxy-Authorization: z\r\n\r\n",
        );
        let get = get.expect("a request");
        assert_eq!(get.destination.to_string(), "a.com:80");
        let passed = b"GET /x?y HTTP/1.1\r\nHost: a.com\r\nConnection: close\r\n\r\nmore".to_vec();
        assert_eq!(get.method, ProxyMethod::Forward(passed));
        let short = asked("GET http://[::1]:81?q HTTP/1.1\r\n\r\n").expect("a request");
        assert_eq!(short.destination.to_string(), "[::1]:81");
        assert!(matches!(short.method, ProxyMethod::Forward(passed) if passed.starts_with(b"GET /?q HTTP/1.1\r\n")));
        for bad in [
            "GET / HTTP/1.1\r\n\r\n",
            "CONNECT a.com HTTP/1.1\r\n\r\n",
            "x\r\n\r\n",
            "GET ftp://a/ HTTP/1.1\r\n\r\n",
            "GET http:/// HTTP/1.1\r\n\r\n",
        ] {
            assert!(asked(bad).is_none(), "{bad}");
        }
    }
}
