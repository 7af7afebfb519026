//! The cost of the frameworks with nothing behind them: the ceilings of DESIGN's bars.

use std::{
    convert::Infallible,
    future::{Future, Ready, ready},
    io,
    net::SocketAddr,
    path::Path,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use anyhow::Result;
use axum::{
    Json, Router,
    routing::post,
    serve::{Listener, ListenerExt as _},
};
use berth_wire::oip::{ModelInferRequest, ModelInferResponse, model_infer_response::InferOutputTensor};
use serde::{Deserialize, Serialize};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    },
    server::TlsStream,
};
use tonic::{
    Request, Response, Status,
    body::Body,
    codegen::Service,
    server::{Grpc, NamedService, UnaryService},
    transport::Server,
};
use tonic_prost::ProstCodec;

#[derive(Deserialize)]
struct JsonRequest {
    #[serde(default)]
    id: Option<String>,
    inputs: Vec<JsonTensor>,
}

#[derive(Serialize)]
struct JsonResponse {
    model_name: &'static str,
    id: Option<String>,
    outputs: Vec<JsonTensor>,
}

#[derive(Serialize, Deserialize)]
struct JsonTensor {
    name: String,
    datatype: String,
    shape: Vec<i64>,
    data: Vec<f32>,
}

async fn infer(Json(request): Json<JsonRequest>) -> Json<JsonResponse> {
    Json(JsonResponse { model_name: "echo", id: request.id, outputs: request.inputs })
}

/// Serves over TLS where `tls` is a folder with `server.pem` and `server.key`.
pub(crate) async fn http(address: SocketAddr, tls: Option<&Path>) -> Result<()> {
    let router = Router::new().route("/v2/models/{model}/infer", post(infer));
    let listener = TcpListener::bind(address).await?;
    let Some(folder) = tls else {
        let listener = listener.tap_io(|stream| {
            stream.set_nodelay(true).ok();
        });
        return Ok(axum::serve(listener, router).await?);
    };
    let chain = CertificateDer::pem_file_iter(folder.join("server.pem"))?.collect::<Result<_, _>>()?;
    let key = PrivateKeyDer::from_pem_file(folder.join("server.key"))?;
    let config = ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key)?;
    Ok(axum::serve(Encrypted { listener, acceptor: TlsAcceptor::from(Arc::new(config)) }, router).await?)
}

/// Connections over TLS, one handshake after the other: few are opened, and all are kept.
struct Encrypted {
    listener: TcpListener,
    acceptor: TlsAcceptor,
}

impl Listener for Encrypted {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let (stream, from) = Listener::accept(&mut self.listener).await;
            stream.set_nodelay(true).ok();
            if let Ok(stream) = self.acceptor.accept(stream).await {
                return (stream, from);
            }
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}

/// A tonic server with the one method, as it would be generated.
#[derive(Clone)]
struct Echo;

impl NamedService for Echo {
    const NAME: &'static str = "inference.GRPCInferenceService";
}

impl UnaryService<ModelInferRequest> for Echo {
    type Response = ModelInferResponse;
    type Future = Ready<Result<Response<ModelInferResponse>, Status>>;

    fn call(&mut self, request: Request<ModelInferRequest>) -> Self::Future {
        let request = request.into_inner();
        let outputs = request.inputs.into_iter().map(|input| InferOutputTensor {
            name: input.name,
            datatype: input.datatype,
            shape: input.shape,
            ..Default::default()
        });
        ready(Ok(Response::new(ModelInferResponse {
            model_name: request.model_name,
            id: request.id,
            outputs: outputs.collect(),
            raw_output_contents: request.raw_input_contents,
            ..Default::default()
        })))
    }
}

impl Service<http::Request<Body>> for Echo {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(async move { Ok(Grpc::new(ProstCodec::default()).unary(Echo, request).await) })
    }
}

pub(crate) async fn grpc(address: SocketAddr) -> Result<()> {
    Ok(Server::builder().tcp_nodelay(true).add_service(Echo).serve(address).await?)
}
