//! The fault of a body that cannot be read to its end: the client's mistake, or a client that went away.

use std::{error::Error as _, io};

use berth_spec::InferError;

/// Tells a body with an error in its framing from a client that went away. HTTP/1.1 alone has such framing: over HTTP/2, only
/// clients that end a stream come here.
pub(crate) fn broken(error: &hyper::Error) -> InferError {
    let mut source = error.source();
    while let Some(cause) = source {
        if let Some(cause) = cause.downcast_ref::<io::Error>() {
            return of_reading(cause);
        }
        source = cause.source();
    }
    InferError::Cancelled
}

fn of_reading(error: &io::Error) -> InferError {
    match error.kind() {
        io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData => {
            InferError::Invalid(format!("the body's chunks are malformed: {error}"))
        }
        io::ErrorKind::UnexpectedEof => InferError::Invalid(
            "the body ended before its Content-Length, or before its last chunk: send all of it".to_owned(),
        ),
        _ => InferError::Cancelled,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistake_of_the_client_is_no_cancellation() {
        for kind in [io::ErrorKind::InvalidInput, io::ErrorKind::InvalidData, io::ErrorKind::UnexpectedEof] {
            assert!(matches!(of_reading(&kind.into()), InferError::Invalid(_)), "{kind}");
        }
        for kind in [io::ErrorKind::ConnectionReset, io::ErrorKind::BrokenPipe] {
            assert!(matches!(of_reading(&kind.into()), InferError::Cancelled), "{kind}");
        }
    }
}
