//! A job's request, sent to the model server as a client's would be: through the breaker, counted, with its time-outs.

use std::{net::IpAddr, sync::Arc};

use bytes::Bytes;
use futures::{FutureExt as _, TryFutureExt as _, future::BoxFuture};
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
        let body = collected(body, most).await.map_err(|error| {
            if error.is::<LengthLimitError>() {
                return format!("the answer has more than {most} bytes, which is the most for a job (async.maxBody)");
            }
            match error.downcast::<Silent>() {
                Ok(silent) => format!("{silent} (idleTimeout, or timeout)"),
                Err(_) => "the model server broke off its answer".to_owned(),
            }
        })?;
        // A copy: what was read may be a part of a buffer that is much larger, and answers are kept for a day.
        Ok(Answer::new(head.status, &head.headers, Bytes::copy_from_slice(&body)))
    }
}

/// A whole body. Boxed, because the compiler cannot prove otherwise that the future may change threads.
fn collected(body: Body, most: usize) -> BoxFuture<'static, Result<Bytes, BoxError>> {
    Limited::new(body, most).collect().map_ok(|body| body.to_bytes()).boxed()
}
