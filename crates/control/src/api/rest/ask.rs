//! Parameters of REST requests, and responses that are not plain JSON.

use std::{collections::BTreeMap, convert::Infallible, sync::Arc};

use axum::{
    Json,
    body::{Body, Bytes},
    extract::{FromRequestParts, Path, RawQuery},
    http::{HeaderMap, HeaderValue, StatusCode, header, request::Parts},
    response::{IntoResponse, Response},
};
use berth_spec::{DeploymentName, Namespace};
use berth_wire::access::{Arrival, Asker, Unauthenticated, sender_name};
use futures::{Stream, StreamExt};
use serde::Serialize;

use crate::{
    api::{
        admit::unauthenticated,
        error::ApiError,
        query::Query,
        service::{Expect, Service, Write, name},
        trail::Notes,
        watch::{WatchReader, version},
    },
    handle::{ApplyMode, Ownership},
    store::Rev,
};

/// Result of a handler.
pub(super) type Answer<T> = Result<Json<T>, ApiError>;

/// The query of a request, not read yet.
pub(super) struct RawParameters(Option<String>);

impl FromRequestParts<Arc<Service>> for RawParameters {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, service: &Arc<Service>) -> Result<Self, Infallible> {
        let RawQuery(raw) = RawQuery::from_request_parts(parts, service).await?;
        Ok(Self(raw))
    }
}

/// Sender of a request. The port has found out who it is; a request without one is refused where tokens are needed.
pub(super) struct Sender(pub(super) Asker);

impl FromRequestParts<Arc<Service>> for Sender {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, service: &Arc<Service>) -> Result<Self, ApiError> {
        match parts.extensions.get::<Asker>() {
            Some(asker) => Ok(Self(asker.clone())),
            None if service.access().is_required() => Err(unauthenticated(Unauthenticated::Missing)),
            None => Ok(Self(Asker::OPEN)),
        }
    }
}

/// Answer with a secret that was made, which no cache keeps.
pub(super) fn created_secret(created: impl Serialize) -> Response {
    let mut response = (StatusCode::CREATED, Json(created)).into_response();
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Name of the sender of a request, as in the audit log: also of whoever showed a certificate where no token is asked for.
pub(super) struct SenderName(pub(super) Arc<str>);

impl FromRequestParts<Arc<Service>> for SenderName {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, service: &Arc<Service>) -> Result<Self, ApiError> {
        let Sender(asker) = Sender::from_request_parts(parts, service).await?;
        Ok(Self(sender_name(&asker, &parts.extensions)))
    }
}

impl FromRequestParts<Arc<Service>> for WatchReader {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<Service>) -> Result<Self, Infallible> {
        let address = parts.extensions.get::<Arrival>().and_then(|arrival| arrival.address);
        let principal = parts.extensions.get::<Asker>().and_then(|asker| asker.0.as_deref());
        Ok(Self { address, principal: principal.map(|principal| Arc::clone(&principal.name)) })
    }
}

impl FromRequestParts<Arc<Service>> for Notes {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<Service>) -> Result<Self, Infallible> {
        Ok(parts.extensions.get().cloned().unwrap_or_default())
    }
}

/// Request about one named object, without parameters.
pub(super) struct NamedRequest {
    pub(super) service: Arc<Service>,
    pub(super) name: String,
}

impl FromRequestParts<Arc<Service>> for NamedRequest {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, service: &Arc<Service>) -> Result<Self, ApiError> {
        let Path(name) = Path::<String>::from_request_parts(parts, service)
            .await
            .map_err(|error| ApiError::invalid("name", error.to_string(), "check the path"))?;
        Query::parse(parts.uri.query(), &[])?;
        Ok(Self { service: Arc::clone(service), name })
    }
}

/// The deployment that the path of a request names: in the namespace of the path, else in the default one.
pub(super) struct Of(pub(super) DeploymentName);

impl FromRequestParts<Arc<Service>> for Of {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, service: &Arc<Service>) -> Result<Self, ApiError> {
        let Path(segments) = Path::<BTreeMap<String, String>>::from_request_parts(parts, service)
            .await
            .map_err(|error| ApiError::invalid("name", error.to_string(), "check the path"))?;
        let namespace = segments.get("namespace").map(|text| read_namespace(text)).transpose()?;
        let text = segments.get("name").map_or("", String::as_str);
        read_name(&namespace.unwrap_or_default(), text).map(Self)
    }
}

/// The namespace in the path of a request, if there is one.
pub(super) struct PathNamespace(pub(super) Option<Namespace>);

impl FromRequestParts<Arc<Service>> for PathNamespace {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, service: &Arc<Service>) -> Result<Self, ApiError> {
        let segments = Path::<BTreeMap<String, String>>::from_request_parts(parts, service).await;
        let segments = segments.map_or_else(|_| BTreeMap::new(), |Path(segments)| segments);
        segments.get("namespace").map(|text| read_namespace(text)).transpose().map(Self)
    }
}

impl PathNamespace {
    /// The namespace in the path, else that of the query.
    pub(super) fn or_of(self, query: &Query) -> Result<Option<Namespace>, ApiError> {
        match self.0 {
            Some(namespace) => Ok(Some(namespace)),
            None => namespace(query),
        }
    }
}

/// `namespace` of a query.
pub(super) fn namespace(query: &Query) -> Result<Option<Namespace>, ApiError> {
    query.text("namespace").map(read_namespace).transpose()
}

/// `deployment` of a query: the whole name where a namespace is given, else in the written form.
pub(super) fn deployment(query: &Query, inside: Option<&Namespace>) -> Result<Option<DeploymentName>, ApiError> {
    match (query.text("deployment"), inside) {
        (None, _) => Ok(None),
        (Some(text), Some(namespace)) => read_name(namespace, text).map(Some),
        (Some(text), None) => name(text).map(Some),
    }
}

fn read_namespace(text: &str) -> Result<Namespace, ApiError> {
    Namespace::new(text)
        .map_err(|error| ApiError::invalid("metadata.namespace", format!("{text:?} is not a namespace: {error}"), ""))
}

fn read_name(namespace: &Namespace, text: &str) -> Result<DeploymentName, ApiError> {
    DeploymentName::within(namespace, text)
        .map_err(|error| ApiError::invalid("metadata.name", format!("{text:?} is not a name: {error}"), ""))
}

impl RawParameters {
    /// Reads it, with only the `known` parameters.
    pub(super) fn read(&self, known: &[&str]) -> Result<Query, ApiError> {
        Query::parse(self.0.as_deref(), known)
    }

    /// Checks that there are no parameters.
    pub(super) fn nothing(&self) -> Result<(), ApiError> {
        self.read(&[]).map(|_| ())
    }
}

/// Reads `dryRun` and `force`.
pub(super) fn write(query: &Query) -> Result<Write, ApiError> {
    Ok(Write {
        mode: if query.flag("dryRun")? { ApplyMode::DryRun } else { ApplyMode::Commit },
        ownership: if query.flag("force")? { Ownership::TakeOver } else { Ownership::Respect },
    })
}

/// `If-Match: "7"` (that version), `If-None-Match: *` (nothing yet). RFC 9110 §13.1.
pub(super) fn expect(headers: &HeaderMap) -> Result<Expect, ApiError> {
    let text = |name| headers.get(name).map(|value: &HeaderValue| value.to_str().unwrap_or_default().trim());
    match (text(header::IF_MATCH), text(header::IF_NONE_MATCH)) {
        (None, None) | (Some("*"), None) => Ok(Expect::Anything),
        (Some(tag), None) => version("If-Match", tag.trim_matches('"')).map(Expect::Version),
        (None, Some("*")) => Ok(Expect::Version(Rev::NONE)),
        (None, Some(other)) => {
            let message = format!("the header If-None-Match is {other:?}");
            Err(ApiError::invalid("If-None-Match", message, "only * is understood: create, never change"))
        }
        (Some(_), Some(_)) => {
            let message = "If-Match and If-None-Match contradict each other";
            Err(ApiError::invalid("If-Match", message, "send one of them"))
        }
    }
}

/// An object with its version as an entity tag, for `If-Match`.
pub(super) fn tagged<T: Serialize>(resource_version: &str, object: T) -> Response {
    let mut response = Json(object).into_response();
    if let Ok(tag) = HeaderValue::try_from(format!("\"{resource_version}\"")) {
        response.headers_mut().insert(header::ETAG, tag);
    }
    response
}

/// Newline-delimited JSON, a line per item, as they come.
pub(super) fn lines<T: Serialize + 'static>(items: impl Stream<Item = T> + Send + 'static) -> Response {
    let lines = items.map(|item| {
        let mut line = serde_json::to_vec(&item)?;
        line.push(b'\n');
        Ok::<_, serde_json::Error>(Bytes::from(line))
    });
    let headers = [(header::CONTENT_TYPE, "application/x-ndjson"), (header::CACHE_CONTROL, "no-store")];
    (headers, Body::from_stream(lines)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preconditions() {
        let read = |pairs: &[(&'static str, &'static str)]| {
            let pairs = pairs.iter().map(|(n, v)| (n.parse().expect("a name"), HeaderValue::from_static(v)));
            expect(&pairs.collect())
        };
        assert_eq!(read(&[]), Ok(Expect::Anything));
        assert_eq!(read(&[("if-match", "\"7\"")]), Ok(Expect::Version(Rev(7))));
        assert_eq!(read(&[("if-match", "7")]), Ok(Expect::Version(Rev(7))));
        assert_eq!(read(&[("if-match", "*")]), Ok(Expect::Anything));
        assert_eq!(read(&[("if-none-match", "*")]), Ok(Expect::Version(Rev::NONE)));
        for bad in [
            vec![("if-match", "\"abc\"")],
            vec![("if-none-match", "7")],
            vec![("if-match", "7"), ("if-none-match", "*")],
        ] {
            assert!(read(&bad).is_err(), "{bad:?}");
        }
    }
}
