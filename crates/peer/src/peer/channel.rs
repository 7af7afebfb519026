//! Lets tonic's clients ride on a peer's lines.

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use futures::{FutureExt as _, future::BoxFuture};
use http::{Request, Response, Version};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tower_service::Service;

use super::{Peer, SendError};

/// A gRPC channel to a peer: `FleetClient::new(PeerChannel(peer))`. Always ready; a peer that cannot be reached is an
/// error of the call. Clones share the lines.
#[derive(Debug, Clone)]
pub struct PeerChannel(pub Arc<Peer>);

impl Service<Request<tonic::body::Body>> for PeerChannel {
    type Response = Response<Incoming>;
    type Error = SendError;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<tonic::body::Body>) -> Self::Future {
        let peer = Arc::clone(&self.0);
        // tonic's requests say HTTP/2 and name no host, which h2 refuses; of other versions it takes the path alone.
        *request.version_mut() = Version::HTTP_11;
        async move { peer.send(request.map(|body| body.map_err(Into::into).boxed_unsync())).await }.boxed()
    }
}
