//! OpenVINO Model Server: its list is a file, read at `POST /v1/config/reload`; states are at `GET /v1/config`. Inferences are those of
//! the Open Inference Protocol. As ModelMesh's adapter calls it.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use berth_peer::http2::liveness;
use berth_spec::Signature;
use berth_wire::mmesh::{RuntimeStatusResponse, runtime_status_response::MethodInfo};
use reqwest::{Client, StatusCode, redirect::Policy};
use serde::Deserialize;
use serde_json::json;
use tonic::{Code, Status};

use super::{State, shown};
use crate::runtime::spi::v2::V2;

/// The file with the list.
pub(super) const LIST: &str = "model_config_list.json";

/// The time limit of a look at states: servers answer within milliseconds, and slower while they load.
const STATE_TIMEOUT: Duration = Duration::from_secs(10);

/// The most bytes of an answer: ten thousand models have less.
const MAX_ANSWER_BYTES: usize = 16 << 20;

/// Methods that callers may use.
const METHODS: [&str; 4] = ["ModelInfer", "ModelMetadata", "ModelReady", "ModelStreamInfer"];

pub(super) struct OpenVino {
    oip: V2,
    client: Client,
    /// `http://HOST:PORT`.
    rest: String,
}

/// Versions of a model and their states.
#[derive(Debug, Deserialize)]
struct Versions {
    #[serde(default)]
    model_version_status: Vec<Version>,
}

#[derive(Debug, Deserialize)]
struct Version {
    state: String,
    #[serde(default)]
    status: ErrorStatus,
}

#[derive(Debug, Default, Deserialize)]
struct ErrorStatus {
    #[serde(default)]
    error_code: String,
    #[serde(default)]
    error_message: String,
}

impl OpenVino {
    pub(super) fn new(oip: V2, rest: String) -> Result<Self, String> {
        // reqwest also ends connections whose data is not acknowledged for 30 s. Requests are too small to fill the window of a server that
        // reads nothing.
        let client = Client::builder()
            .redirect(Policy::none())
            .no_proxy()
            .tcp_keepalive(liveness::KEEPALIVE_IDLE)
            .tcp_keepalive_interval(liveness::ASK_EVERY)
            .tcp_keepalive_retries(liveness::ASKS)
            .build()
            .map_err(|error| error.to_string())?;
        Ok(Self { oip, client, rest })
    }

    pub(super) async fn status(&self) -> Result<RuntimeStatusResponse, Status> {
        let status = self.oip.status().await?;
        self.states().await?;
        let named = |method: &str| {
            (format!("inference.GRPCInferenceService/{method}"), MethodInfo { id_injection_path: vec![1] })
        };
        Ok(RuntimeStatusResponse {
            max_loading_concurrency: 1,
            method_infos: METHODS.into_iter().map(named).collect(),
            ..status
        })
    }

    /// Has it read the list. The answer comes once all models are loaded or have failed, and says so of all of them: the states
    /// are looked at instead. Without an end of its own, as a load is.
    pub(super) async fn reload(&self) -> Result<(), Status> {
        let (status, text) = self.ask(self.client.post(format!("{}/v1/config/reload", self.rest))).await?;
        if status.is_success() { Ok(()) } else { Err(Status::internal(refusal(status, &text))) }
    }

    pub(super) async fn state(&self, id: &str) -> Result<State, Status> {
        let states = self.states().await?;
        let Some(version) = states.get(id).and_then(|model| model.model_version_status.first()) else {
            return Ok(State::Absent);
        };
        let failed = !["", "OK"].contains(&version.status.error_code.as_str());
        Ok(match version.state.as_str() {
            "AVAILABLE" => State::Available,
            "START" | "LOADING" if !failed => State::Coming,
            state => {
                let ErrorStatus { error_code, error_message } = &version.status;
                State::Failed(format!("the server says {state}, {error_code}: {error_message}; see the server's log"))
            }
        })
    }

    pub(super) async fn signature(&self, id: &str) -> Option<Signature> {
        self.oip.signature(id).await
    }

    async fn states(&self) -> Result<BTreeMap<String, Versions>, Status> {
        let (status, text) =
            self.ask(self.client.get(format!("{}/v1/config", self.rest)).timeout(STATE_TIMEOUT)).await?;
        if !status.is_success() {
            return Err(Status::unavailable(refusal(status, &text)));
        }
        serde_json::from_slice(&text).map_err(|error| Status::internal(format!("its list of models: {error}")))
    }

    async fn ask(&self, request: reqwest::RequestBuilder) -> Result<(StatusCode, Vec<u8>), Status> {
        let broken = |error| broken(&self.rest, error);
        let mut answer = request.send().await.map_err(broken)?;
        let mut text = Vec::new();
        while let Some(piece) = answer.chunk().await.map_err(broken)? {
            text.extend_from_slice(&piece);
            if text.len() > MAX_ANSWER_BYTES {
                return Err(Status::internal("its answer is longer than 16 MiB"));
            }
        }
        Ok((answer.status(), text))
    }
}

/// The status of a request without an answer, as gRPC's client has it: UNAVAILABLE where no connection could be made.
fn broken(rest: &str, error: reqwest::Error) -> Status {
    let code = if error.is_connect() { Code::Unavailable } else { Code::Unknown };
    let mut status = Status::new(code, format!("{rest}: {error}"));
    status.set_source(Arc::new(error));
    status
}

/// The words of a refusal: `{"error": "…"}`.
fn refusal(status: StatusCode, text: &[u8]) -> String {
    let said = serde_json::from_slice::<serde_json::Value>(text).ok();
    let said = said.as_ref().and_then(|said| said.get("error")?.as_str()).unwrap_or("no reason given");
    format!("the server answered {status}: {said}")
}

/// The content of [`LIST`] for these models: name, and path of the folder.
pub(super) fn list(models: &[(&str, PathBuf)]) -> String {
    let one = |(name, path): &(&str, PathBuf)| json!({"config": {"name": name, "base_path": shown(path)}});
    json!({"model_config_list": models.iter().map(one).collect::<Vec<_>>()}).to_string()
}
