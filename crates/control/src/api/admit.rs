//! Lets a request in that its sender may make: who sends it is found out, and what it needs is asked of [`needs`].
//!
//! ```text
//! request ─▶ needs::of ─┬ public ─────────────────────────────────────────▶ through
//!                       └ a role ─▶ Access::asker ─▶ Need::check ─▶ Asker among its extensions ─▶ through
//!                                       └ 401           └ 403
//! ```
//! A node asks at its own port, then says to the leader who it was, in [`PRINCIPAL`]; the leader asks again. Over a client's port
//! the header means nothing: [`super::relay`] sets it anew.

use std::sync::Arc;

use axum::{
    extract::Request,
    middleware::Next,
    response::{IntoResponse, Response},
};
use berth_audit::AuditLog;
use berth_spec::client_certificate::ClientCertificate;
use berth_wire::access::{Access, Action, Arrival, Asker, CertificateHolder, Principal, Resource, Unauthenticated};
use http::{HeaderName, HeaderValue, StatusCode};

use super::{error::ApiError, needs, trail, watched::watched};

/// The sender of a relayed request, as JSON. Between nodes only.
const PRINCIPAL: HeaderName = HeaderName::from_static("berth-principal");

/// The way by which a relayed request came, as text. Between nodes only.
const ARRIVAL: HeaderName = HeaderName::from_static("berth-arrival");

/// Lets the request through or refuses it.
pub(super) async fn check(access: Arc<Access>, audit: AuditLog, mut request: Request, next: Next) -> Response {
    if !access.is_required() {
        return next.run(request).await;
    }
    if needs::of(request.method(), request.uri().path()).is_some_and(|need| need.action.is_public()) {
        return next.run(request).await;
    }
    let certificate = request.extensions().get::<Arc<ClientCertificate>>().cloned();
    let asker = match access.asker(request.headers(), certificate.as_deref()) {
        Ok(asker) => asker,
        Err(why) => {
            let error = unauthenticated(why);
            // Who may come back in a second is not refused.
            if why.retry_in().is_none() {
                trail::refused(&audit, &request, StatusCode::UNAUTHORIZED, error.reason());
            }
            return error.into_response();
        }
    };
    // Nobody behind this needs the secret.
    request.headers_mut().remove(http::header::AUTHORIZATION);
    let refused = allowed(&asker, &request).err();
    request.extensions_mut().insert(asker.clone());
    if let Some(refused) = refused {
        trail::refused(&audit, &request, StatusCode::FORBIDDEN, refused.reason());
        return refused.into_response();
    }
    watched(next.run(request).await, access, asker)
}

/// Lets in what another node has relayed, in the name of the sender that it names.
pub(super) fn relayed(access: &Access, request: &mut Request) -> Result<(), ApiError> {
    let named = request.headers_mut().remove(PRINCIPAL);
    let arrival = request.headers_mut().remove(ARRIVAL);
    if let Some(arrival) = arrival.and_then(|value| value.to_str().ok()?.parse::<Arrival>().ok()) {
        request.extensions_mut().insert(arrival);
    }
    let named = named.and_then(|value| serde_json::from_slice::<Principal>(value.as_bytes()).ok());
    if !access.is_required()
        || needs::of(request.method(), request.uri().path()).is_some_and(|need| need.action.is_public())
    {
        if let Some(holder) = named.and_then(|principal| CertificateHolder::relayed(principal.name)) {
            request.extensions_mut().insert(holder);
        }
        return Ok(());
    }
    let Some(principal) = named else {
        let message = "the node that relayed this asks for no tokens: start all nodes with the same --auth";
        return Err(ApiError::unauthorized(message));
    };
    let asker = Asker(Some(Arc::new(principal)));
    allowed(&asker, request)?;
    request.extensions_mut().insert(asker);
    Ok(())
}

/// Names the sender of a request that goes to the leader. What a client wrote there is dropped. The holder of a certificate on a
/// server that asks for no token has a name alone, for the audit log.
pub(super) fn name_sender(request: &mut Request) {
    let sender = request.extensions().get::<Asker>().and_then(|asker| asker.0.clone());
    let sender = sender.or_else(|| {
        let CertificateHolder(name) = CertificateHolder::of(request.extensions())?;
        Some(Arc::new(Principal::of(&name, Vec::new())))
    });
    let arrival = request.extensions().get::<Arrival>().map(ToString::to_string);
    let headers = request.headers_mut();
    headers.remove(PRINCIPAL);
    headers.remove(ARRIVAL);
    if let Some(value) = arrival.and_then(|text| HeaderValue::try_from(text).ok()) {
        headers.insert(ARRIVAL, value);
    }
    let named = sender.and_then(|principal| serde_json::to_vec(&*principal).ok());
    if let Some(value) = named.and_then(|json| HeaderValue::from_bytes(&json).ok()) {
        headers.insert(PRINCIPAL, value);
    }
}

fn allowed(asker: &Asker, request: &Request) -> Result<(), ApiError> {
    match needs::of(request.method(), request.uri().path()) {
        Some(need) => need.check(asker).map_err(|denied| ApiError::forbidden(denied.to_string())),
        // Only who may do everything learns what there is not.
        None if asker.may(Action::ManageTokens, Resource::Server).is_ok() => Ok(()),
        None => Err(ApiError::not_found("there is no such path, or not by this method: GET / lists all of them")),
    }
}

/// The error for a request without valid credentials.
pub(super) fn unauthenticated(why: Unauthenticated) -> ApiError {
    match why.retry_in() {
        Some(retry_in) => ApiError::new(berth_spec::Class::Waiting { retry_in }, why.to_string()),
        None => ApiError::unauthorized(why.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use berth_spec::SubjectName;
    use berth_wire::access::sender_name;

    use super::*;

    #[test]
    fn the_name_in_a_certificate_goes_along_to_the_leader_and_gives_no_right() {
        let sans = vec![SubjectName::Dns("ci.example.org".to_owned())];
        let certificate = ClientCertificate { sans, subject: String::new(), fingerprint: String::new() };
        let sent = |path: &str| {
            let mut request = Request::new(Body::empty());
            *request.uri_mut() = path.parse().expect("a path");
            request.extensions_mut().insert(Arc::new(certificate.clone()));
            name_sender(&mut request);
            request.extensions_mut().clear();
            request
        };
        let mut request = sent("/v1/nodes");
        relayed(&Access::open(), &mut request).expect("no token is asked for");
        assert_eq!(&*sender_name(&Asker::OPEN, request.extensions()), "certificate:DNS:ci.example.org");
        assert!(request.extensions().get::<Asker>().is_none() && request.headers().is_empty());
        assert!(relayed(&Access::required(), &mut sent("/v1/nodes")).is_err());
    }
}
