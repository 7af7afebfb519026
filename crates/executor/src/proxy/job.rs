//! A job's request, sent to the model server as a client's would be: through the breaker, counted, with its time-outs.

use std::{net::IpAddr, sync::Arc};

use berth_wire::byte_budget::ByteCharge;
use bytes::Bytes;
use futures::{FutureExt as _, future::BoxFuture};
use http::request;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};

use super::{Exchange, Origin, Proxy, head, version};
use crate::{
    BoxError,
    body::{Body, Repeatable, Silent, full},
    jobs::Answer,
};

impl Proxy {
    /// Sends it. `most`: the largest body of an answer.
    ///
    /// # Errors
    /// The reason why there is no answer.
    pub(crate) async fn run_job(
        self: &Arc<Self>,
        mut head: request::Parts,
        body: Bytes,
        most: usize,
    ) -> Result<Answer, String> {
        let settings = self.settings.load_full();
        let mut exchange = Exchange::begin(Arc::clone(self), settings.label(head.uri.path()), &head.method);
        exchange.record(settings.logger.as_ref(), &head.method, head.uri.path(), &head.headers);
        let sent = Arc::clone(&exchange.sent);
        sent.data(&body);
        // A job that runs is not refused for want of memory: requests are.
        let mut charge = self.memory.charge();
        charge.force(body.len());
        let (from, authority) = (None::<IpAddr>, settings.upstream.address());
        let scheme = settings.upstream.scheme();
        let version = version(&settings, &head);
        head::rewrite(&mut head, &Origin { from, authority, scheme, upgrades: None, version, secure: false });
        let (response, lease) =
            self.repeat(&settings, &head, &Repeatable::new(full(body)), &sent).await.map_err(|refusal| {
                self.metrics.refused(&self.name, refusal.reason());
                refusal.message()
            })?;
        // Nobody waits for this answer who could give up: a server that stops in the middle would keep a place among those that run.
        let idle = settings.config.idle_timeout.unwrap_or(settings.config.timeout);
        let (head, body) = self.pass_on(response, lease, exchange, Some(idle)).into_parts();
        let body = collected(body, most, charge).await.map_err(|error| {
            if error.is::<LengthLimitError>() {
                return format!("the answer has more than {most} bytes, which is the most for a job (async.maxBody)");
            }
            match error.downcast::<Silent>() {
                Ok(silent) => format!("{silent} (idleTimeout, or timeout)"),
                Err(_) => "the model server broke off its answer".to_owned(),
            }
        })?;
        // Answers are kept for a day: without the room that a vector has left.
        Ok(Answer::new(head.status, &head.headers, body.into_boxed_slice().into()))
    }
}

/// A whole body, copied as it comes, and counted until it is whole: each piece is a part of a buffer that is much larger, and keeps it. A
/// server that sends its answer word by word would fill memory with them. Boxed, because the compiler cannot prove otherwise that the
/// future may change threads.
fn collected(body: Body, most: usize, mut charge: ByteCharge) -> BoxFuture<'static, Result<Vec<u8>, BoxError>> {
    let mut body = Limited::new(body, most);
    let read = async move {
        let mut whole = Vec::new();
        while let Some(frame) = body.frame().await {
            // Nobody reads trailers.
            if let Ok(data) = frame?.into_data() {
                charge.force(data.len());
                whole.extend_from_slice(&data);
            }
        }
        Ok(whole)
    };
    read.boxed()
}

#[cfg(test)]
mod tests {
    use berth_wire::byte_budget::ByteBudget;
    use futures::{StreamExt as _, stream};
    use http_body::Frame;
    use http_body_util::StreamBody;

    use super::*;

    #[tokio::test]
    async fn an_answer_in_small_pieces_does_not_keep_what_they_were_read_into() {
        let buffers: Vec<Bytes> = (0..100).map(|_| Bytes::from(vec![b'x'; 8 << 10])).collect();
        let pieces = stream::iter(0..buffers.len()).map(move |number| {
            assert!(buffers[..number].iter().all(Bytes::is_unique), "a piece before the {number}th is kept");
            Ok::<_, BoxError>(Frame::data(buffers[number].slice(..2)))
        });
        let (body, budget) = (StreamBody::new(pieces).boxed_unsync(), ByteBudget::new(200));
        assert_eq!(collected(body, 200, budget.charge()).await.expect("whole"), [b'x'; 200]);
        let long = StreamBody::new(stream::iter([Ok::<_, BoxError>(Frame::data(Bytes::from_static(b"long")))]));
        let refused = collected(long.boxed_unsync(), 3, budget.charge()).await.expect_err("too long");
        assert!(refused.is::<LengthLimitError>());
        let half = stream::iter([Ok::<_, BoxError>(Frame::data(Bytes::from_static(b"half")))]).chain(stream::pending());
        let mut half = collected(StreamBody::new(half).boxed_unsync(), 10, budget.charge());
        assert!((&mut half).now_or_never().is_none());
        assert_eq!(budget.used(), 4, "it counts while it comes");
        drop(half);
        assert_eq!(budget.used(), 0);
    }
}
