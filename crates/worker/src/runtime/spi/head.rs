//! The head of a call as the runtime gets it: the caller's metadata, with the model's id and without what names a model or
//! concerns another connection.

use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, Version, header, request::Parts};

/// The id of the model.
const ID: HeaderName = HeaderName::from_static("mm-model-id");
/// The id of the model, in base64 of UTF-8.
const ID_BINARY: HeaderName = HeaderName::from_static("mm-model-id-bin");
/// The names that ModelMesh's ancestor had for it.
const ID_OLD: [&str; 2] = ["tas-model-id", "tas-model-id-bin"];

/// Metadata that begin so are between clients, Berth and its nodes.
const OURS: [&str; 2] = ["mm-", "berth-"];

/// Other headers that are not passed on: of one connection only, or set anew.
static STRIPPED: [HeaderName; 8] = [
    header::CONNECTION,
    header::HOST,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::USER_AGENT,
    header::CONTENT_LENGTH,
];

/// The one who calls: Berth, and not its client.
const USER_AGENT: HeaderValue = HeaderValue::from_static(concat!("grpc-berth/", env!("CARGO_PKG_VERSION")));

/// The metadata of a model's id, made once per model.
#[derive(Debug, Clone)]
pub(super) struct IdHeaders {
    /// `None`: it has characters that a header does not take.
    plain: Option<HeaderValue>,
    binary: HeaderValue,
}

impl IdHeaders {
    pub(super) fn of(id: &str) -> Self {
        let printable = id.bytes().all(|byte| (b' '..=b'~').contains(&byte));
        let binary = HeaderValue::from_str(&STANDARD_NO_PAD.encode(id));
        Self {
            plain: printable.then(|| HeaderValue::from_str(id).ok()).flatten(),
            binary: binary.unwrap_or(HeaderValue::from_static("")),
        }
    }
}

/// The request to the runtime. `parts` is as the gateway gives it, with the time that is left in `grpc-timeout`.
pub(super) fn request<B>(parts: &Parts, id: &IdHeaders, body: B) -> http::Request<B> {
    let mut headers = HeaderMap::with_capacity(parts.headers.len() + 4);
    for (name, value) in &parts.headers {
        let text = name.as_str();
        if OURS.iter().any(|ours| text.starts_with(ours)) || ID_OLD.contains(&text) || STRIPPED.contains(name) {
            continue;
        }
        headers.append(name.clone(), value.clone());
    }
    headers.insert(header::CONTENT_TYPE, content_type(&parts.headers));
    headers.insert(header::TE, HeaderValue::from_static("trailers"));
    headers.insert(header::USER_AGENT, USER_AGENT);
    headers.insert(ID_BINARY, id.binary.clone());
    if let Some(plain) = &id.plain {
        headers.insert(ID, plain.clone());
    }
    let mut request = http::Request::new(body);
    *request.method_mut() = Method::POST;
    *request.version_mut() = Version::HTTP_2;
    // The connection adds scheme and host.
    *request.uri_mut() = Uri::builder().path_and_query(parts.uri.path()).build().unwrap_or_default();
    *request.headers_mut() = headers;
    request
}

/// A health check, which every server of gRPC answers, be it that it does not know the method. The runtime's own
/// `runtimeStatus` would have it unload all models.
pub(super) fn health<B>(body: B) -> http::Request<B> {
    let mut request = http::Request::new(body);
    *request.method_mut() = Method::POST;
    *request.version_mut() = Version::HTTP_2;
    *request.uri_mut() = Uri::from_static("/grpc.health.v1.Health/Check");
    let headers = request.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(header::TE, HeaderValue::from_static("trailers"));
    headers.insert(header::USER_AGENT, USER_AGENT);
    request
}

fn content_type(headers: &HeaderMap) -> HeaderValue {
    let own = headers.get(header::CONTENT_TYPE).filter(|kind| kind.as_bytes().starts_with(b"application/grpc"));
    own.cloned().unwrap_or(HeaderValue::from_static("application/grpc"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_goes_on_and_names_do_not() {
        let request_of = |id: &str| {
            let came = http::Request::post("http://gateway/a.B/c")
                .header("mm-vmodel-id", "alias")
                .header("berth-revision", "x")
                .header("tas-model-id", "old")
                .header("tas-model-id-bin", "b2xk")
                .header("user-agent", "grpc-java")
                .header("grpc-timeout", "1S")
                .header("x-mine", "1")
                .header("x-mine", "2")
                .header("content-type", "application/grpc+proto");
            let (parts, ()) = came.body(()).expect("a request").into_parts();
            request(&parts, &IdHeaders::of(id), ())
        };
        let sent = request_of("myModel");
        let mut names: Vec<&str> = sent.headers().keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(
            names,
            ["content-type", "grpc-timeout", "mm-model-id", "mm-model-id-bin", "te", "user-agent", "x-mine"]
        );
        assert_eq!(
            (&sent.headers()["mm-model-id"], sent.uri().path()),
            (&HeaderValue::from_static("myModel"), "/a.B/c")
        );
        assert_eq!(sent.headers()["mm-model-id-bin"], "bXlNb2RlbA");
        assert_eq!(sent.headers().get_all("x-mine").iter().count(), 2);
        assert!(!request_of("modèle").headers().contains_key("mm-model-id"), "no ASCII");
    }
}
