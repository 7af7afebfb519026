//! Statuses by which a runtime says that it has a model no more, in the words of the servers that are known.

use http::{HeaderMap, Response};
use tonic::{Code, Status};

/// The reason, if the status means that the model is not there.
pub(super) fn reason(status: &Status) -> Option<String> {
    let text = status.message();
    let lost = match status.code() {
        Code::NotFound => true,
        // Triton.
        Code::Unavailable => {
            text.starts_with("Request for unknown model")
                && (text.contains("is not found") || text.contains("has no available versions"))
        }
        // MLServer.
        Code::InvalidArgument => text.starts_with("Model ") && text.ends_with("not found"),
        _ => false,
    };
    let said = || if text.is_empty() { "the model is not there".to_owned() } else { text.to_owned() };
    lost.then(said)
}

/// The status of an answer that has no messages.
pub(super) fn at_once<B>(response: &Response<B>) -> Option<Status> {
    of(response.headers())
}

/// The status in a head or in trailers.
pub(super) fn of(headers: &HeaderMap) -> Option<Status> {
    Status::from_header_map(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_say_it_in_their_own_words() {
        for (status, lost) in [
            (Status::not_found(""), true),
            (Status::unavailable("Request for unknown model: 'm' is not found"), true),
            (Status::unavailable("Request for unknown model: 'm' has no available versions"), true),
            (Status::unavailable("the server is busy"), false),
            (Status::invalid_argument("Model m with version  not found"), true),
            (Status::invalid_argument("Model m has no input x"), false),
            (Status::internal("not found"), false),
        ] {
            assert_eq!(reason(&status).is_some(), lost, "{status}");
        }
    }
}
