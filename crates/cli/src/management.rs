//! ModelMesh's management API on the port of the gateway. The gateway is made before the control API that answers there.

use std::sync::{Arc, OnceLock};

use berth_control::api::{ApiRouter, Beside};
use berth_mesh::BesideService;
use berth_modelmesh::Options;
use berth_spec::DeploymentName;
use futures::FutureExt as _;
use tonic::Status;

/// The way from the gateway to the control API, and what the gateway knows by itself, once both are there.
#[derive(Clone, Default)]
pub(crate) struct Management(Arc<OnceLock<(ApiRouter, berth_mesh::Handle)>>);

impl Management {
    /// The hook of the gateway.
    pub(crate) fn hook(&self) -> BesideService {
        let both = Arc::clone(&self.0);
        let answer = move |request: http::Request<bytes::Bytes>| {
            let both = both.get().cloned();
            let answer = async move {
                match both {
                    Some((api, gateway)) => {
                        let answering = move |model: &DeploymentName| gateway.answering(model);
                        berth_modelmesh::answer(api, request.map(http_body_util::Full::new), &answering).await
                    }
                    None => {
                        let starting = Status::unavailable("the server is starting: try again");
                        starting.into_http().map(|(): ()| berth_peer::full(""))
                    }
                }
            };
            answer.boxed()
        };
        BesideService { prefixes: berth_modelmesh::PATHS, hook: Arc::new(answer) }
    }

    /// Names the control API, and the gateway.
    pub(crate) fn connect(&self, api: &ApiRouter, gateway: &berth_mesh::Handle) {
        let _connected_before = self.0.set((api.clone(), gateway.clone())).is_err();
    }

    /// The service beside the control API.
    pub(crate) fn beside(options: Options) -> Beside {
        Arc::new(move |handle| berth_modelmesh::router(handle, options.clone()))
    }
}
