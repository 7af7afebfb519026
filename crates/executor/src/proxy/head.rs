//! Heads of requests and answers: what belongs to one connection stays on it (RFC 9110 §7.6.1).

use std::net::IpAddr;

use berth_wire::request_id::REQUEST_ID;
use http::{
    HeaderMap, HeaderName, HeaderValue, Request, Uri, Version,
    header::{
        CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, COOKIE, EXPECT, HOST, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE,
        TRANSFER_ENCODING, UPGRADE,
    },
    request,
    uri::{PathAndQuery, Scheme},
};

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// Headers of one connection.
const OF_A_CONNECTION: [HeaderName; 7] =
    [CONNECTION, KEEP_ALIVE, PROXY_CONNECTION, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TRANSFER_ENCODING, UPGRADE];

/// The origin and destination of a request.
pub(super) struct Origin<'a> {
    pub(super) from: Option<IpAddr>,
    /// The server's address, and the scheme that it is reached by.
    pub(super) authority: &'a str,
    pub(super) scheme: Scheme,
    /// The protocol that the client asks for.
    pub(super) upgrades: Option<HeaderValue>,
    pub(super) version: Version,
    /// True if the client came over TLS.
    pub(super) secure: bool,
}

/// True for a call of gRPC.
pub(super) fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

/// The protocol that a client wants to change to, as WebSocket does.
pub(super) fn upgrade<B>(request: &Request<B>) -> Option<HeaderValue> {
    let asks = request.headers().get_all(CONNECTION).iter().any(|value| {
        value.to_str().is_ok_and(|text| text.split(',').any(|word| word.trim().eq_ignore_ascii_case("upgrade")))
    });
    let wanted = request.headers().get(UPGRADE)?;
    // A change to HTTP/2 concerns the connection to the executor, which takes HTTP/2 from the start.
    let cleartext = wanted.as_bytes().eq_ignore_ascii_case(b"h2c");
    (asks && !cleartext && request.version() == Version::HTTP_11).then(|| wanted.clone())
}

/// Takes out what belongs to the connection.
pub(super) fn strip(headers: &mut HeaderMap) {
    // Beside an encoding a length does not count (RFC 9112, 6.3). Passed on without the encoding, it would.
    if headers.contains_key(TRANSFER_ENCODING) {
        headers.remove(CONTENT_LENGTH);
    }
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|text| text.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named.iter().chain(&OF_A_CONNECTION) {
        headers.remove(name);
    }
}

/// Makes the head of a request the head of the same request to the server.
pub(super) fn rewrite(head: &mut request::Parts, origin: &Origin<'_>) {
    let trailers = head.headers.get(TE).is_some_and(|te| te.as_bytes().eq_ignore_ascii_case(b"trailers"));
    // The port has settled it: no client takes it away by naming it in `connection`.
    let id = head.headers.get(REQUEST_ID).cloned();
    strip(&mut head.headers);
    if let Some(id) = id {
        head.headers.insert(REQUEST_ID, id);
    }
    for name in [TE, EXPECT] {
        head.headers.remove(name);
    }
    if trailers {
        head.headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    if let Some(protocol) = &origin.upgrades {
        head.headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        head.headers.insert(UPGRADE, protocol.clone());
    }
    forwarded(&mut head.headers, origin);
    let path = head.uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    let host = head
        .headers
        .get(HOST)
        .cloned()
        .or_else(|| head.uri.authority().and_then(|authority| HeaderValue::from_str(authority.as_str()).ok()));
    let mut parts = http::uri::Parts::default();
    parts.path_and_query = Some(path);
    if origin.version == Version::HTTP_2 {
        parts.scheme = Some(origin.scheme.clone());
        let name = host.as_ref().and_then(|host| host.to_str().ok()).unwrap_or(origin.authority);
        parts.authority = name.parse().ok().or_else(|| origin.authority.parse().ok());
        head.headers.remove(HOST);
    } else {
        let host = host.or_else(|| HeaderValue::from_str(origin.authority).ok());
        head.headers.extend(host.filter(|_| !head.headers.contains_key(HOST)).map(|host| (HOST, host)));
        join_cookies(&mut head.headers);
    }
    // The parts are those of a request that was read, so they fit together.
    head.uri = Uri::from_parts(parts).unwrap_or_default();
    head.version = origin.version;
    head.extensions.clear();
}

/// HTTP/2 may send cookies one by one, HTTP/1.1 may not (RFC 9113 §8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    let all: Vec<&[u8]> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if all.len() > 1
        && let Ok(joined) = HeaderValue::from_bytes(&all.join(&b"; "[..]))
    {
        headers.insert(COOKIE, joined);
    }
}

fn forwarded(headers: &mut HeaderMap, origin: &Origin<'_>) {
    if let Some(from) = origin.from {
        let before: Vec<&str> = headers.get_all(FORWARDED_FOR).iter().filter_map(|value| value.to_str().ok()).collect();
        let all = before.into_iter().map(str::to_owned).chain([from.to_string()]).collect::<Vec<_>>().join(", ");
        if let Ok(all) = HeaderValue::from_str(&all) {
            headers.insert(FORWARDED_FOR, all);
        }
    }
    if !headers.contains_key(FORWARDED_PROTO) {
        headers.insert(FORWARDED_PROTO, HeaderValue::from_static(if origin.secure { "https" } else { "http" }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewritten(request: Request<()>, version: Version) -> request::Parts {
        let upgrades = upgrade(&request);
        let (mut head, ()) = request.into_parts();
        let from = Some("10.0.0.7".parse().expect("an address"));
        rewrite(
            &mut head,
            &Origin { from, authority: "127.0.0.1:8080", scheme: Scheme::HTTP, upgrades, version, secure: false },
        );
        head
    }

    #[test]
    fn what_belongs_to_a_connection_stays_on_it() {
        let request = Request::post("/predict?a=b")
            .header("host", "iris.example.org")
            .header("connection", "keep-alive, x-mine")
            .header("x-mine", "1")
            .header("keep-alive", "timeout=5")
            .header("te", "trailers")
            .header("x-forwarded-for", "192.0.2.1")
            .header("x-other", "2");
        let head = rewritten(request.body(()).expect("a request"), Version::HTTP_11);
        let of = |name: &str| head.headers.get(name).and_then(|value| value.to_str().ok());
        assert_eq!((of("connection"), of("x-mine"), of("keep-alive")), (None, None, None));
        assert_eq!((of("te"), of("x-other"), of("host")), (Some("trailers"), Some("2"), Some("iris.example.org")));
        assert_eq!((of("x-forwarded-for"), of("x-forwarded-proto")), (Some("192.0.2.1, 10.0.0.7"), Some("http")));
        assert_eq!(head.uri.to_string(), "/predict?a=b");
    }

    #[test]
    fn the_id_of_a_request_stays_with_it() {
        let request = Request::get("/a").header("connection", "X-Request-Id").header("x-request-id", "7");
        let head = rewritten(request.body(()).expect("a request"), Version::HTTP_11);
        assert_eq!(head.headers.get(REQUEST_ID).map(HeaderValue::as_bytes), Some(&b"7"[..]));
    }

    #[test]
    fn a_length_beside_an_encoding_is_not_passed_on() {
        let length = |name: HeaderName| {
            let mut headers = HeaderMap::from_iter([(CONTENT_LENGTH, HeaderValue::from_static("5"))]);
            headers.insert(name, HeaderValue::from_static("chunked"));
            strip(&mut headers);
            headers.contains_key(CONTENT_LENGTH)
        };
        assert_eq!((length(TRANSFER_ENCODING), length(CONTENT_TYPE)), (false, true));
    }

    #[test]
    fn versions_meet() {
        let request = Request::get("http://iris.example.org/a").version(Version::HTTP_2);
        let request = request.header("cookie", "a=1").header("cookie", "b=2").body(()).expect("a request");
        let head = rewritten(request, Version::HTTP_11);
        assert_eq!((head.uri.to_string(), head.version), ("/a".to_owned(), Version::HTTP_11));
        assert_eq!(
            (head.headers[HOST].as_bytes(), head.headers[COOKIE].as_bytes()),
            (&b"iris.example.org"[..], &b"a=1; b=2"[..])
        );

        let request = Request::get("/a").header("host", "iris.example.org").body(()).expect("a request");
        let head = rewritten(request, Version::HTTP_2);
        assert_eq!((head.uri.to_string(), head.headers.get(HOST)), ("http://iris.example.org/a".to_owned(), None));
    }

    #[test]
    fn a_change_of_protocol_is_passed_on() {
        let asks = |connection: &str, upgrade: &str| {
            let request = Request::get("/chat").header("connection", connection).header("upgrade", upgrade);
            rewritten(request.body(()).expect("a request"), Version::HTTP_11).headers.get(UPGRADE).is_some()
        };
        assert!(asks("Upgrade", "websocket") && asks("keep-alive, upgrade", "websocket"));
        assert!(!asks("close", "websocket") && !asks("Upgrade, HTTP2-Settings", "h2c"));
    }
}
