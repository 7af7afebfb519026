//! The service of a runtime by the name that it knows: `mmesh.ModelRuntime`, or the one that it had before.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

use http::{Request, Uri, uri::PathAndQuery};
use tonic::{body::Body, transport::Channel};
use tower_service::Service;

const PATH: &str = "/mmesh.ModelRuntime/";
const OLD_PATH: &str = "/com.ibm.watson.tas.internal.proto.ModelServer/";

/// A connection on which the service has the name that the runtime knows.
#[derive(Clone)]
pub(super) struct Called {
    channel: Channel,
    /// The runtime knows the old name only.
    old: Arc<AtomicBool>,
}

impl Called {
    pub(super) fn new(channel: Channel) -> Self {
        Self { channel, old: Arc::default() }
    }

    /// Uses the old name from now on. False: it was used already.
    pub(super) fn by_old_name(&self) -> bool {
        !self.old.swap(true, Ordering::AcqRel)
    }
}

impl Service<Request<Body>> for Called {
    type Response = <Channel as Service<Request<Body>>>::Response;
    type Error = <Channel as Service<Request<Body>>>::Error;
    type Future = <Channel as Service<Request<Body>>>::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.channel.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        if self.old.load(Ordering::Acquire)
            && let Some(uri) = renamed(request.uri())
        {
            *request.uri_mut() = uri;
        }
        self.channel.call(request)
    }
}

/// The address of a method by its old name.
fn renamed(uri: &Uri) -> Option<Uri> {
    let method = uri.path().strip_prefix(PATH)?;
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(format!("{OLD_PATH}{method}").parse::<PathAndQuery>().ok()?);
    Uri::from_parts(parts).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_have_the_old_name_at_the_same_address() {
        let uri = "http://127.0.0.1:8085/mmesh.ModelRuntime/loadModel".parse().expect("an address");
        let old = "http://127.0.0.1:8085/com.ibm.watson.tas.internal.proto.ModelServer/loadModel";
        assert_eq!(renamed(&uri).map(|uri| uri.to_string()).as_deref(), Some(old));
    }
}
