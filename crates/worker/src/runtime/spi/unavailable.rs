//! A runtime that says UNAVAILABLE, as ModelMesh tells its clients: UNAVAILABLE is a word of connections, and who hears it from
//! a gateway goes to another one, which asks the same runtime.

use http::HeaderMap;
use tonic::{Code, Status};

/// Turns UNAVAILABLE in a head or in trailers into INTERNAL, with ModelMesh's text.
pub(super) fn wrap(headers: &mut HeaderMap, method: &str) {
    let Some(status) = Status::from_header_map(headers).filter(|status| status.code() == Code::Unavailable) else {
        return;
    };
    let said = if status.message().is_empty() { String::new() } else { format!(": {}", status.message()) };
    let wrapped = Status::internal(format!("ModelRuntime UNAVAILABLE: {method}: UNAVAILABLE{said}"));
    for name in ["grpc-status", "grpc-message", "grpc-status-details-bin"] {
        headers.remove(name);
    }
    // Its text is encoded for headers.
    let _ = wrapped.add_header(headers);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_codes_stay() {
        let wrapped = |status: Status| {
            let mut headers = HeaderMap::new();
            status.add_header(&mut headers).expect("it fits");
            wrap(&mut headers, "a.B/c");
            let status = Status::from_header_map(&headers).expect("a status");
            (status.code(), status.message().to_owned())
        };
        let said = "ModelRuntime UNAVAILABLE: a.B/c: UNAVAILABLE: not now".to_owned();
        assert_eq!(wrapped(Status::unavailable("not now")), (Code::Internal, said));
        assert_eq!(wrapped(Status::not_found("x")), (Code::NotFound, "x".to_owned()));
    }
}
