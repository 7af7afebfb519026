//! The control of a runtime: the five methods of `mmesh.ModelRuntime`, each with a time limit, or what does the same in the
//! Open Inference Protocol or by a list of models.

use std::{
    error::Error as _,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use berth_spec::{FailureCategory, Signature};
use berth_wire::mmesh::{
    LoadModelRequest, LoadModelResponse, ModelSizeRequest, PredictModelSizeRequest, RuntimeStatusRequest,
    RuntimeStatusResponse, UnloadModelRequest, model_runtime_client::ModelRuntimeClient,
};
use tonic::{Code, Request, Status, transport::Channel};

use super::{
    called::Called,
    listed::Listed,
    reach::{LoadClock, is_late, is_unreached, when_reached},
    v2::V2,
};
use crate::runtime::LoadError;

/// A guess that takes longer is none: the runtime must answer at once.
const PREDICT: Duration = Duration::from_millis(500);
/// The time limit of measuring a model: ModelMesh's figure.
const MEASURE: Duration = Duration::from_secs(30);
/// The time limit of a question whether a model is there: it is asked while a request waits.
const PRESENCE_TIMEOUT: Duration = Duration::from_secs(2);
/// The time limit of one answer about its state: a server that starts may be busy with imports for some seconds, and
/// it is asked again anyway.
const STATUS: Duration = Duration::from_secs(10);
/// The time limit of one attempt to unload: freeing tens of gigabytes passes, and one lost answer does not keep a
/// model's room for long.
const UNLOAD: Duration = Duration::from_secs(60);

/// The way to tell a runtime what to hold.
pub(super) enum Control {
    /// `mmesh.ModelRuntime`.
    Spi(Spi),
    /// The model repository of the Open Inference Protocol.
    V2(V2),
    /// The whole list of its models.
    Listed(Listed),
}

impl Control {
    pub(super) async fn status(&self) -> Result<RuntimeStatusResponse, Status> {
        match self {
            Self::Spi(spi) => spi.status().await,
            Self::V2(v2) => v2.status().await,
            Self::Listed(listed) => listed.status().await,
        }
    }

    /// A guess in bytes; `None`: there is none.
    pub(super) async fn predicted(&self, of: &LoadModelRequest) -> Option<u64> {
        match self {
            Self::Spi(spi) => spi.predicted(of).await,
            Self::V2(_) | Self::Listed(_) => V2::predicted(of),
        }
    }

    /// Loads. Without an end of its own: dropping the future cancels it.
    pub(super) async fn load(
        &self,
        request: LoadModelRequest,
        clock: &LoadClock,
    ) -> Result<LoadModelResponse, LoadError> {
        match self {
            Self::Spi(spi) => spi.load(request, clock).await,
            Self::V2(v2) => v2.load(&request, clock).await,
            Self::Listed(listed) => listed.load(&request, clock).await,
        }
    }

    /// The size of a loaded model in bytes; `None`: the runtime does not say.
    pub(super) async fn size(&self, id: &str) -> Option<u64> {
        match self {
            Self::Spi(spi) => spi.size(id).await,
            Self::V2(_) | Self::Listed(_) => None,
        }
    }

    /// True if the runtime says that it does not hold a model. One that does not tell sizes says nothing.
    pub(super) async fn lacks(&self, id: &str) -> bool {
        match self {
            Self::Spi(spi) => spi.lacks(id).await,
            Self::V2(v2) => v2.lacks(id).await,
            Self::Listed(listed) => listed.lacks(id).await,
        }
    }

    /// Unloads; a model that is not there is unloaded.
    pub(super) async fn unload(&self, id: &str) -> Result<(), Status> {
        match self {
            Self::Spi(spi) => spi.unload(id).await,
            Self::V2(v2) => v2.unload(id).await,
            Self::Listed(listed) => listed.unload(id).await,
        }
    }

    /// The inputs and outputs of a loaded model, where the runtime tells them.
    pub(super) async fn signature(&self, id: &str) -> Option<Signature> {
        match self {
            Self::Spi(_) => None,
            Self::V2(v2) => v2.signature(id).await,
            Self::Listed(listed) => listed.signature(id).await,
        }
    }
}

/// The client of `mmesh.ModelRuntime`.
pub(super) struct Spi {
    client: ModelRuntimeClient<Called>,
    called: Called,
    /// True once the runtime has said that it guesses no sizes.
    predicts_not: AtomicBool,
}

impl Spi {
    pub(super) fn new(channel: Channel) -> Self {
        let called = Called::new(channel);
        Self { client: ModelRuntimeClient::new(called.clone()), called, predicts_not: AtomicBool::new(false) }
    }

    pub(super) async fn status(&self) -> Result<RuntimeStatusResponse, Status> {
        loop {
            match self.client.clone().runtime_status(within(RuntimeStatusRequest {}, STATUS)).await {
                Err(status) if status.code() == Code::Unimplemented && self.called.by_old_name() => {}
                answer => return answer.map(tonic::Response::into_inner),
            }
        }
    }

    /// A guess in bytes; `None`: there is none.
    pub(super) async fn predicted(&self, of: &LoadModelRequest) -> Option<u64> {
        if self.predicts_not.load(Ordering::Relaxed) {
            return None;
        }
        let LoadModelRequest { model_id, model_type, model_path, model_key } = of.clone();
        let request = PredictModelSizeRequest { model_id, model_type, model_path, model_key };
        match self.client.clone().predict_model_size(within(request, PREDICT)).await {
            Ok(answer) => Some(answer.into_inner().size_in_bytes).filter(|size| *size > 0),
            Err(status) => {
                self.predicts_not.fetch_or(status.code() == Code::Unimplemented, Ordering::Relaxed);
                None
            }
        }
    }

    /// Loads. Without an end of its own: dropping the future cancels it.
    pub(super) async fn load(
        &self,
        request: LoadModelRequest,
        clock: &LoadClock,
    ) -> Result<LoadModelResponse, LoadError> {
        let load = || {
            let (mut client, request) = (self.client.clone(), request.clone());
            async move { client.load_model(request).await }
        };
        when_reached(clock, load).await.map(tonic::Response::into_inner).map_err(|status| refused(&status))
    }

    /// The size of a loaded model in bytes; `None`: the runtime does not say.
    pub(super) async fn size(&self, id: &str) -> Option<u64> {
        let request = ModelSizeRequest { model_id: id.to_owned() };
        let answer = self.client.clone().model_size(within(request, MEASURE)).await.ok()?;
        Some(answer.into_inner().size_in_bytes).filter(|size| *size > 0)
    }

    /// True if the runtime says that it does not hold a model. One that does not tell sizes says nothing.
    pub(super) async fn lacks(&self, id: &str) -> bool {
        let request = ModelSizeRequest { model_id: id.to_owned() };
        let answer = self.client.clone().model_size(within(request, PRESENCE_TIMEOUT)).await;
        answer.is_err_and(|status| status.code() == Code::NotFound)
    }

    /// Unloads; a model that is not there is unloaded.
    pub(super) async fn unload(&self, id: &str) -> Result<(), Status> {
        let request = UnloadModelRequest { model_id: id.to_owned() };
        match self.client.clone().unload_model(within(request, UNLOAD)).await {
            Err(status) if status.code() != Code::NotFound => Err(status),
            _ => Ok(()),
        }
    }
}

pub(super) fn within<T>(message: T, time: Duration) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(time);
    request
}

/// The error of a load that the runtime refused. Codes that blame the model are final; others may pass, as it may that the runtime
/// died.
pub(super) fn refused(status: &Status) -> LoadError {
    if status.source().is_some() {
        let (category, what) = if is_unreached(status) {
            (FailureCategory::Network, "cannot be reached")
        } else if is_late(status) {
            (FailureCategory::Timeout, "did not answer in time")
        } else {
            (FailureCategory::Network, "went away while it loaded the model")
        };
        return LoadError::new(category, format!("the runtime {what}: {}", status.message()));
    }
    let category = match status.code() {
        Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange | Code::Unimplemented => {
            FailureCategory::InvalidModel
        }
        Code::NotFound => FailureCategory::NotFound,
        Code::PermissionDenied | Code::Unauthenticated => FailureCategory::Auth,
        Code::ResourceExhausted => FailureCategory::Memory,
        Code::DeadlineExceeded => FailureCategory::Timeout,
        _ => FailureCategory::Runtime,
    };
    let message = match status.message() {
        "" => format!("the runtime could not load it: {}", status.code()),
        message => message.to_owned(),
    };
    LoadError::new(category, message)
}

#[cfg(test)]
mod tests {
    use std::{
        io,
        path::PathBuf,
        sync::{Arc, atomic::AtomicUsize},
        task::{Context, Poll},
    };

    use futures::{FutureExt as _, future::BoxFuture};
    use http::Uri;
    use hyper_util::rt::TokioIo;
    use tokio::{net::UnixStream, task::JoinSet};
    use tonic::{TimeoutExpired, transport::Endpoint};
    use tower_service::Service;

    use super::*;
    use crate::scripted::{self, Listen, Server};

    #[test]
    fn a_runtime_that_is_gone_may_come_back_and_one_that_refuses_has_spoken() {
        for (code, said) in [(Code::Unavailable, "cannot be reached"), (Code::Unknown, "went away while it loaded")] {
            let mut status = Status::new(code, "connection refused");
            let error = refused(&status);
            assert_eq!((error.category, error.message.as_str()), (FailureCategory::Runtime, "connection refused"));
            status.set_source(Arc::new(io::Error::other("connection refused")));
            let error = refused(&status);
            assert!(error.category.transient() && error.message.contains(said), "{error:?}");
        }
        let mut late = Status::cancelled("Timeout expired");
        late.set_source(Arc::new(TimeoutExpired(())));
        assert_eq!(refused(&late).category, FailureCategory::Timeout);
    }

    /// Connects to a socket; nobody is there the first two times.
    struct Connector {
        socket: PathBuf,
        attempts: Arc<AtomicUsize>,
    }

    impl Service<Uri> for Connector {
        type Response = TokioIo<UnixStream>;
        type Error = io::Error;
        type Future = BoxFuture<'static, io::Result<TokioIo<UnixStream>>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, _: Uri) -> Self::Future {
            let (socket, before) = (self.socket.clone(), self.attempts.fetch_add(1, Ordering::Relaxed));
            let connected = async move {
                if before < 2 {
                    return Err(io::Error::from(io::ErrorKind::ConnectionRefused));
                }
                UnixStream::connect(socket).await.map(TokioIo::new)
            };
            connected.boxed()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_load_waits_for_a_runtime_that_is_started_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("runtime.sock");
        let server = Server::bind(&Listen::Unix(socket.clone()), scripted::Settings::default()).await;
        let mut serving = JoinSet::new();
        serving.spawn(server.expect("it listens").run());
        let attempts = Arc::new(AtomicUsize::new(0));
        let connector = Connector { socket, attempts: Arc::clone(&attempts) };
        let spi = Spi::new(Endpoint::from_static("http://runtime").connect_with_connector_lazy(connector));
        let request = LoadModelRequest {
            model_id: "m".to_owned(),
            model_type: "T".to_owned(),
            model_path: "SIZE_1".to_owned(),
            ..LoadModelRequest::default()
        };
        let loaded = spi.load(request, &LoadClock::start(&Arc::default())).await;
        assert!(loaded.is_ok(), "{:?}", loaded.err());
        assert_eq!(attempts.load(Ordering::Relaxed), 3);
    }
}
