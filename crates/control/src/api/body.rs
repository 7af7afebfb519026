//! Bodies of requests as they arrive: manifests, which are a bounded body of YAML or JSON and the place that relative URIs start
//! from, and small bodies. All of them are bounded in bytes, in time and in their number.

use std::{sync::Arc, time::Duration};

use axum::{
    body::{Body, HttpBody as _},
    extract::{FromRequest, Request},
    http::{HeaderMap, header},
};
use berth_peer::port::AddressPlace;
use berth_spec::{ByteSize, Class, manifest::ParseContext};
use berth_wire::{
    access::Arrival,
    api::{BASE_URI_HEADER, MAX_BODY},
};
use http_body_util::BodyExt as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{
    error::ApiError,
    service::{BODIES, SMALL_BODIES, Service, WEBHOOKS},
};

/// Text of a request's body, and the location that it claims.
#[derive(Debug)]
pub(crate) struct Manifests {
    pub(crate) text: String,
    pub(crate) context: ParseContext,
    /// Held until the request is answered: see [`BODIES`].
    pub(crate) permit: OwnedSemaphorePermit,
}

/// Limit for receiving a body. Allows for large folders over slow links.
const ARRIVES_WITHIN: Duration = Duration::from_secs(30);

/// Limit for receiving a small body. Allows for bad links.
const SMALL_ARRIVES_WITHIN: Duration = Duration::from_secs(10);

/// Largest small body in bytes: a token with all its rules is far below it.
const SMALL_BODY: usize = 64 << 10;

/// Largest webhook in bytes. Git hosts list commits in it, and cut long lists.
const WEBHOOK_BODY: usize = 4 << 20;

/// Names the text in errors; `berth apply` puts its own file names there.
const FILE_HEADER: &str = "x-berth-file";

/// Media types that are read as manifests. JSON is YAML, so one reader takes all of them.
const ACCEPTED: [&str; 7] = [
    "application/yaml",
    "application/x-yaml",
    "text/yaml",
    "text/x-yaml",
    "application/json",
    "text/plain",
    "application/octet-stream",
];

impl FromRequest<Arc<Service>> for Manifests {
    type Rejection = ApiError;

    async fn from_request(request: Request, service: &Arc<Service>) -> Result<Self, ApiError> {
        check_media_type(request.headers())?;
        let context = context(request.headers())?;
        let permit = permit(service)?;
        let arrival = tokio::time::timeout(ARRIVES_WITHIN, whole(request.into_body(), MAX_BODY));
        let body = match arrival.await {
            Ok(Ok(body)) => body,
            Ok(Err(BodyError::TooLarge)) => return Err(too_large()),
            Ok(Err(BodyError::BrokenOff)) => {
                return Err(ApiError::invalid("body", "the body did not arrive whole", "send it again"));
            }
            Err(_) => {
                let message = format!("the body did not arrive within {} s", ARRIVES_WITHIN.as_secs());
                return Err(ApiError::invalid("body", message, "send the manifests in several requests"));
            }
        };
        let text = String::from_utf8(body).map_err(|error| {
            let at = error.utf8_error().valid_up_to();
            ApiError::invalid("body", format!("the body is not UTF-8: byte {at} is wrong"), "send UTF-8 text")
        })?;
        Ok(Self { text, context, permit })
    }
}

/// A body of a few lines. Its place is held until this is dropped, which is when the request is answered.
#[derive(Debug)]
pub(crate) struct SmallBody {
    bytes: Vec<u8>,
    _permit: OwnedSemaphorePermit,
    /// Of webhooks: one address leaves places to others.
    _place: Option<AddressPlace>,
}

impl SmallBody {
    /// The body.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Reads a webhook, which anybody may send.
    pub(crate) async fn of_webhook(request: Request, service: &Service) -> Result<Self, ApiError> {
        let permit = small_permit(&service.webhooks, WEBHOOKS)?;
        let address = request.extensions().get::<Arrival>().and_then(|arrival| arrival.address);
        let place = match address {
            None => None,
            Some(address) => Some(service.webhook_addresses.place(address).ok_or_else(|| busy(WEBHOOKS / 2))?),
        };
        let bytes = arrived(request.into_body(), WEBHOOK_BODY).await?;
        Ok(Self { bytes, _permit: permit, _place: place })
    }
}

impl FromRequest<Arc<Service>> for SmallBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, service: &Arc<Service>) -> Result<Self, ApiError> {
        let permit = small_permit(&service.small_bodies, SMALL_BODIES)?;
        let bytes = arrived(request.into_body(), SMALL_BODY).await?;
        Ok(Self { bytes, _permit: permit, _place: None })
    }
}

/// Reason why a body was not read.
#[derive(Debug)]
pub(crate) enum BodyError {
    TooLarge,
    BrokenOff,
}

/// All of a body. It is copied as it comes: a piece keeps all of the buffer that the connection has read into, and the pieces of a body
/// that comes byte by byte a thousand times of what they count as.
pub(crate) async fn whole(mut body: Body, limit: usize) -> Result<Vec<u8>, BodyError> {
    let mut whole = Vec::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|_| BodyError::BrokenOff)?.into_data() else { continue };
        if data.len() > limit - whole.len() {
            return Err(BodyError::TooLarge);
        }
        whole.extend_from_slice(&data);
    }
    Ok(whole)
}

/// A place among the small bodies that are read at once.
fn small_permit(places: &Arc<Semaphore>, most: usize) -> Result<OwnedSemaphorePermit, ApiError> {
    Arc::clone(places).try_acquire_owned().map_err(|_| busy(most))
}

fn busy(most: usize) -> ApiError {
    let class = Class::Waiting { retry_in: Duration::from_secs(1) };
    ApiError::new(class, format!("{most} such requests are being read: try again in a second"))
}

/// All of a small body.
async fn arrived(body: Body, limit: usize) -> Result<Vec<u8>, ApiError> {
    let too_large = || ApiError::new(Class::TooLarge, format!("the body is larger than {}", ByteSize(limit as u64)));
    // One that says so itself is not read.
    if body.size_hint().lower() > limit as u64 {
        return Err(too_large());
    }
    match tokio::time::timeout(SMALL_ARRIVES_WITHIN, whole(body, limit)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(BodyError::TooLarge)) => Err(too_large()),
        Ok(Err(BodyError::BrokenOff)) => {
            Err(ApiError::invalid("body", "the body did not arrive whole", "send it again"))
        }
        Err(_) => {
            let message = format!("the body did not arrive within {} s", SMALL_ARRIVES_WITHIN.as_secs());
            Err(ApiError::invalid("body", message, "send it again"))
        }
    }
}

/// A place among the bodies that are worked on at once.
fn permit(service: &Service) -> Result<OwnedSemaphorePermit, ApiError> {
    Arc::clone(&service.bodies).try_acquire_owned().map_err(|_| {
        let class = Class::Waiting { retry_in: Duration::from_secs(1) };
        ApiError::new(class, format!("{BODIES} requests with manifests are being worked on: try again in a second"))
    })
}

/// Context for parsing manifests; `base_uri` may be empty.
fn context_of(file: &str, base_uri: &str) -> Result<ParseContext, ApiError> {
    let base = match base_uri {
        "" => None,
        base if base.starts_with("file:///") => {
            Some(if base.ends_with('/') { base.to_owned() } else { format!("{base}/") })
        }
        other => {
            let message = format!("{other:?} is not the URI of a folder");
            return Err(ApiError::invalid(BASE_URI_HEADER, message, "write it as file:///path/to/folder/"));
        }
    };
    Ok(ParseContext { file: file.to_owned(), base, ..ParseContext::default() })
}

fn context(headers: &HeaderMap) -> Result<ParseContext, ApiError> {
    let text = |name: &str| match headers.get(name).map(|value| value.to_str()) {
        None => Ok(""),
        Some(Ok(value)) => Ok(value),
        Some(Err(_)) => {
            Err(ApiError::invalid(name, format!("the header {name} is not plain text"), "percent-encode it"))
        }
    };
    context_of(text(FILE_HEADER)?, text(BASE_URI_HEADER)?)
}

fn check_media_type(headers: &HeaderMap) -> Result<(), ApiError> {
    if let Some(encoding) = headers.get(header::CONTENT_ENCODING).filter(|value| *value != "identity") {
        return Err(ApiError::unsupported_media_type(format!(
            "the content encoding {encoding:?} is not supported: send the manifests as they are"
        )));
    }
    let Some(media_type) = headers.get(header::CONTENT_TYPE) else { return Ok(()) };
    let essence = media_type.to_str().unwrap_or_default().split(';').next().unwrap_or_default().trim();
    if ACCEPTED.iter().any(|accepted| essence.eq_ignore_ascii_case(accepted)) {
        Ok(())
    } else {
        Err(ApiError::unsupported_media_type(format!(
            "the content type {essence:?} is not supported: send application/yaml or application/json \
             (curl: --data-binary @file -H 'content-type: application/yaml')"
        )))
    }
}

fn too_large() -> ApiError {
    let mib = MAX_BODY >> 20;
    ApiError::new(Class::TooLarge, format!("the body is larger than {mib} MiB: send the manifests in several requests"))
}

#[cfg(test)]
mod tests {
    use axum::body::Bytes;
    use futures::StreamExt as _;

    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().expect("a name"), value.parse().expect("a value"))).collect()
    }

    #[test]
    fn media_types() {
        for good in ["application/yaml", "Application/JSON; charset=utf-8", "text/plain"] {
            assert!(check_media_type(&headers(&[("content-type", good)])).is_ok(), "{good}");
        }
        assert!(check_media_type(&HeaderMap::new()).is_ok());
        for bad in [("content-type", "multipart/form-data"), ("content-encoding", "gzip")] {
            assert_eq!(check_media_type(&headers(&[bad])).expect_err(bad.1).info().code, 415);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn small_bodies_are_bounded_in_bytes_and_in_time() {
        let pieces = |pieces: &[&'static str]| {
            futures::stream::iter(pieces.to_vec()).map(|piece| Ok::<_, std::convert::Infallible>(Bytes::from(piece)))
        };
        let code = |error: ApiError| error.info().code;
        let whole = arrived(Body::from_stream(pieces(&["ab", "cd"])), 4).await.expect("it fits");
        assert_eq!(whole, b"abcd");
        let announced = arrived(Body::from("abcde"), 4).await;
        assert_eq!(announced.map_err(code), Err(413));
        let unannounced = arrived(Body::from_stream(pieces(&["abc", "de"])), 4).await;
        assert_eq!(unannounced.map_err(code), Err(413));
        let begun = tokio::time::Instant::now();
        let held_back = pieces(&["ab"]).chain(futures::stream::pending());
        let refused = arrived(Body::from_stream(held_back), 4).await.expect_err("it never ends");
        assert_eq!((refused.info().code, begun.elapsed() >= SMALL_ARRIVES_WITHIN), (400, true));
    }

    #[tokio::test]
    async fn nothing_is_kept_of_what_a_piece_was_read_into() {
        let pieces = futures::stream::unfold((0, None::<Bytes>), |(number, last)| async move {
            assert!(last.is_none_or(|buffer| buffer.is_unique()));
            let buffer = Bytes::from(vec![b'x'; 8 << 10]);
            (number < 3).then(|| (Ok::<_, std::convert::Infallible>(buffer.slice(..1)), (number + 1, Some(buffer))))
        });
        assert_eq!(whole(Body::from_stream(pieces), 3).await.expect("it fits"), b"xxx");
    }

    #[test]
    fn bases() {
        let base = |uri| context(&headers(&[(BASE_URI_HEADER, uri)])).map(|context| context.base);
        assert_eq!(base("file:///models"), Ok(Some("file:///models/".into())));
        assert_eq!(base("file:///models/"), Ok(Some("file:///models/".into())));
        for bad in ["/models", "http://example.com/", "file:models"] {
            assert!(base(bad).is_err(), "{bad}");
        }
        assert_eq!(context(&HeaderMap::new()), Ok(ParseContext::default()));
    }
}
