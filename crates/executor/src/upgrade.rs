//! Connections that change to another protocol, such as WebSocket: bytes in both directions until both sides have ended.

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio_util::sync::CancellationToken;

use crate::proxy::Exchange;

/// Joins the two ends until they are done, or `cut`.
pub(crate) async fn join(client: OnUpgrade, server: OnUpgrade, mut exchange: Exchange, cut: CancellationToken) {
    let joined = async {
        // Either side may have gone before it changed; then there is nobody to tell.
        let (Ok(client), Ok(server)) = tokio::join!(client, server) else { return };
        let (mut client, mut server) = (TokioIo::new(client), TokioIo::new(server));
        if let Ok((sent, received)) = tokio::io::copy_bidirectional(&mut client, &mut server).await {
            exchange.copied(sent, received);
        }
    };
    cut.run_until_cancelled(joined).await;
}
