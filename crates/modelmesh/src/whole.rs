//! Requests, read whole before anybody looks at them. gRPC servers wait for the end of a message without a limit of time, and
//! anybody who reaches the port may hold one back.

use std::time::Duration;

use axum::{BoxError, body::Bytes};
use http_body_util::{BodyExt as _, Limited};
use tokio::time::timeout;
use tonic::Status;

use crate::service::MAX_REQUEST;

/// Limit for receiving a request, which has a few KiB. Allows for bad links.
const ARRIVES_WITHIN: Duration = Duration::from_secs(20);

/// Bytes before a gRPC message: compression and length.
pub(crate) const PREFIX: usize = 5;

/// All of a request, framed as it came.
pub(crate) async fn read<B>(body: B) -> Result<Bytes, Status>
where
    B: http_body::Body<Data = Bytes> + Send,
    B::Error: Into<BoxError>,
{
    match timeout(ARRIVES_WITHIN, Limited::new(body, MAX_REQUEST + PREFIX).collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) => Err(Status::resource_exhausted(format!("the request cannot be read: {error}"))),
        Err(_) => {
            let message = format!("the request did not arrive within {} s", ARRIVES_WITHIN.as_secs());
            Err(Status::deadline_exceeded(message))
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use futures::{StreamExt as _, stream};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_request_that_never_ends_is_given_up() {
        let piece = || stream::iter([Ok::<_, std::convert::Infallible>(Bytes::from_static(b"ab"))]);
        assert_eq!(read(Body::from_stream(piece())).await.expect("it is whole"), "ab");
        let held_back = read(Body::from_stream(piece().chain(stream::pending()))).await;
        assert_eq!(held_back.expect_err("it never ends").code(), tonic::Code::DeadlineExceeded);
        let large = read(Body::from(vec![0_u8; MAX_REQUEST + PREFIX + 1])).await;
        assert_eq!(large.expect_err("it is too large").code(), tonic::Code::ResourceExhausted);
    }
}
