//! One request to the process of a function, and its answer: whole, and within bounds.

use berth_wire::header_list;
use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;

/// The largest answer: it is held in memory until it is whole.
const LARGEST_ANSWER: usize = 64 << 20;

/// Path at which the host programs answer for themselves.
pub(super) const HEALTH: &str = "/.berth/health";

/// Reason why a process gave no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
    #[error("its process is gone ({0})")]
    Gone(String),
    #[error("its answer has more than {LARGEST_ANSWER} bytes")]
    TooLarge,
    #[error("the headers of its answer have {0}")]
    LongHead(#[from] header_list::TooLong),
    #[error("the headers of its answer have more than {} bytes, or are more than 100", header_list::MAX_HEADER_BYTES)]
    EndlessHead,
}

/// Asks over a connection that carries nothing else.
pub(super) async fn exchange(
    stream: UnixStream,
    request: http::Request<Bytes>,
) -> Result<http::Response<Bytes>, CallError> {
    let gone = |error: hyper::Error| CallError::Gone(error.to_string());
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(gone)?;
    let asked = async {
        let answer = sender.send_request(sent(request)).await;
        let answer = answer.map_err(|error| match error.is_parse_too_large() {
            true => CallError::EndlessHead,
            false => gone(error),
        })?;
        header_list::check(answer.headers())?;
        let (mut head, mut body) = answer.into_parts();
        // They are of this connection, not of the client's.
        for name in ["connection", "keep-alive", "transfer-encoding", "upgrade"] {
            head.headers.remove(name);
        }
        let mut whole = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.map_err(gone)?.into_data() else { continue };
            if data.len() > LARGEST_ANSWER - whole.len() {
                return Err(CallError::TooLarge);
            }
            // A copy: a piece keeps all of the buffer that it was read into, and an answer may come byte by byte.
            whole.extend_from_slice(&data);
        }
        Ok(http::Response::from_parts(head, whole.freeze()))
    };
    tokio::pin!(asked);
    tokio::select! {
        answer = &mut asked => answer,
        // The connection may end before its answer is taken.
        _ = connection => asked.await,
    }
}

/// A request as a function sees it.
fn sent(request: http::Request<Bytes>) -> http::Request<Full<Bytes>> {
    let (mut head, body) = request.into_parts();
    let url = head.uri.to_string();
    if let Ok(url) = http::HeaderValue::from_str(&url) {
        head.headers.insert("x-berth-url", url);
    }
    for name in ["connection", "transfer-encoding", "content-length", "expect", "upgrade", "te", "keep-alive"] {
        head.headers.remove(name);
    }
    head.headers.insert(http::header::HOST, http::HeaderValue::from_static("function"));
    let path = if head.uri.path() == HEALTH { HEALTH } else { "/" };
    head.uri = http::Uri::from_static(path);
    head.version = http::Version::HTTP_11;
    http::Request::from_parts(head, Full::new(body))
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// The outcome of a request to a process that answers with these headers.
    async fn answered(headers: &str) -> Result<http::Response<Bytes>, CallError> {
        let (ours, mut theirs) = UnixStream::pair().expect("a pair");
        let request = http::Request::get("/functions/words").body(Bytes::new()).expect("a request");
        let process = async {
            let mut asked = Vec::new();
            while !asked.ends_with(b"\r\n\r\n") {
                asked.push(theirs.read_u8().await.expect("a request"));
            }
            let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n{headers}\r\nok");
            // Nobody reads the rest of a head that is too long.
            let _ = theirs.write_all(answer.as_bytes()).await;
        };
        tokio::join!(exchange(ours, request), process).0
    }

    #[tokio::test]
    async fn an_answer_with_too_many_headers_is_refused() {
        let long = |bytes| format!("x-long: {}\r\n", "x".repeat(bytes));
        let whole = answered(&long(60_000)).await.expect("an answer");
        assert_eq!((whole.headers()["x-long"].len(), whole.body().as_ref()), (60_000, &b"ok"[..]));
        for bytes in [70_000, 300_000] {
            let error = answered(&long(bytes)).await.expect_err("too long");
            assert!(matches!(error, CallError::LongHead(_)), "{bytes}: {error:?}");
            assert!(error.to_string().ends_with("at most 65536 are passed on"), "{error}");
        }
        // Many short ones count as much.
        let many = "x: y\r\n".repeat(99);
        assert_eq!(answered(&many).await.expect("an answer").headers().len(), 100);
        for headers in [long(2 << 20), "x: y\r\n".repeat(100)] {
            let error = answered(&headers).await.expect_err("endless");
            assert!(matches!(error, CallError::EndlessHead), "{error:?}");
        }
    }
}
