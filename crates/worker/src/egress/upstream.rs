//! A proxy of the operator that stands between this machine and the hosts: asked by CONNECT, and for `http://` by whole URLs.

use std::io;

use berth_spec::network::Destination;
use tokio::{io::AsyncWriteExt as _, net::TcpStream};

use super::request;

/// An HTTP proxy of the operator, behind which hosts are reached.
#[derive(Clone, PartialEq, Eq)]
pub struct Upstream {
    /// Its name or address, without brackets.
    pub host: String,
    /// TCP port on which the proxy takes requests, not that of a host behind it.
    pub port: u16,
    /// The value of `Proxy-Authorization`, where it asks for one.
    pub authorization: Option<String>,
}

impl Upstream {
    /// A connection to the proxy itself.
    pub(super) async fn connect(&self) -> io::Result<TcpStream> {
        TcpStream::connect((self.host.as_str(), self.port)).await
    }

    /// A connection through it, and the bytes that have come from the host already.
    pub(super) async fn tunnel(&self, wanted: &Destination) -> io::Result<(TcpStream, Vec<u8>)> {
        let mut stream = self.connect().await?;
        let asked = format!("CONNECT {wanted} HTTP/1.1\r\nHost: {wanted}\r\n{}\r\n", self.field());
        stream.write_all(asked.as_bytes()).await?;
        let (head, first) = request::head(&mut stream, Vec::new()).await?;
        if !is_success(&head) {
            return Err(io::Error::other("the proxy of this machine refuses"));
        }
        Ok((stream, first))
    }

    /// A request for a host, as the proxy takes it: with the whole URL.
    pub(super) fn forwarded(&self, wanted: &Destination, request: &[u8]) -> Vec<u8> {
        let end = |text: &[u8], of: &[u8]| text.windows(of.len()).position(|part| part == of);
        let (Some(method), Some(line)) = (end(request, b" "), end(request, b"\r\n")) else { return request.to_vec() };
        let (url, field) = (format!(" http://{wanted}"), self.field());
        let parts: [&[u8]; 5] = [
            &request[..method],
            url.as_bytes(),
            request[method..line + 2].trim_ascii_start(),
            field.as_bytes(),
            &request[line + 2..],
        ];
        parts.concat()
    }

    /// The field that it asks for.
    fn field(&self) -> String {
        let value = self.authorization.as_ref();
        value.map(|value| format!("Proxy-Authorization: {value}\r\n")).unwrap_or_default()
    }
}

/// True for the head of an answer that opens a tunnel.
fn is_success(head: &str) -> bool {
    let mut words = head.split(' ');
    let is_http = words.next().is_some_and(|version| version.starts_with("HTTP/1."));
    is_http && words.next().is_some_and(|status| status.len() == 3 && status.starts_with('2'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_goes_on_with_its_whole_url() {
        let proxy = |authorization: Option<&str>| Upstream {
            host: "proxy".to_owned(),
            port: 8080,
            authorization: authorization.map(str::to_owned),
        };
        let wanted: Destination = "a.com:80".parse().expect("a host");
        let request = b"GET /x?y HTTP/1.1\r\nHost: a.com\r\nConnection: close\r\n\r\nmore";
        let passed = |authorization| String::from_utf8(proxy(authorization).forwarded(&wanted, request)).expect("text");
        let rest = "Host: a.com\r\nConnection: close\r\n\r\nmore";
        assert_eq!(passed(None), format!("GET http://a.com:80/x?y HTTP/1.1\r\n{rest}"));
        let field = "Proxy-Authorization: Basic eA==\r\n";
        assert_eq!(passed(Some("Basic eA==")), format!("GET http://a.com:80/x?y HTTP/1.1\r\n{field}{rest}"));
    }

    #[test]
    fn only_success_opens_a_tunnel() {
        for (head, opens) in [
            ("HTTP/1.1 200 Connection established\r\n\r\n", true),
            ("HTTP/1.0 200 OK\r\n\r\n", true),
            ("HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", false),
            ("HTTP/1.1 2\r\n\r\n", false),
            ("SSH-2.0-x 200 y\r\n\r\n", false),
            ("", false),
        ] {
            assert_eq!(is_success(head), opens, "{head}");
        }
    }
}
