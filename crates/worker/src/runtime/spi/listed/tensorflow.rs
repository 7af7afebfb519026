//! TensorFlow Serving: its list goes in a call, and its inferences name their model in a message of their own.

use std::{fmt::Write as _, path::PathBuf, time::Duration};

use berth_wire::{
    mmesh::{
        RuntimeStatusResponse,
        runtime_status_response::{MethodInfo, Status as Ready},
    },
    tensorflow_serving::{
        GetModelStatusRequest, ModelConfig, ModelConfigList, ModelServerConfig, ModelSpec, ReloadConfigRequest,
        StatusProto, model_server_config::Config, model_service_client::ModelServiceClient,
        model_version_status::State as Reported,
    },
};
use tonic::{Code, Status, transport::Channel};

use super::{State, shown};
use crate::runtime::spi::control::within;

/// The file with the list, in the text form of protobuf.
pub(super) const LIST: &str = "models.config";

/// The time limit of a question: servers answer within milliseconds, and slower while they load.
const STATE_TIMEOUT: Duration = Duration::from_secs(10);

/// Methods that callers may use; each has the name of the model at 1.1.
const METHODS: [&str; 4] = ["Predict", "Classify", "Regress", "GetModelMetadata"];

/// The name of no model: the answer about it says that the server is there.
const NOBODY: &str = "-";

pub(super) struct TensorFlow {
    client: ModelServiceClient<Channel>,
}

impl TensorFlow {
    pub(super) fn new(channel: Channel) -> Self {
        Self { client: ModelServiceClient::new(channel) }
    }

    pub(super) async fn status(&self) -> Result<RuntimeStatusResponse, Status> {
        match self.asked(NOBODY).await {
            Err(status) if status.code() != Code::NotFound => return Err(status),
            _ => {}
        }
        let named = |method: &str| {
            (format!("tensorflow.serving.PredictionService/{method}"), MethodInfo { id_injection_path: vec![1, 1] })
        };
        Ok(RuntimeStatusResponse {
            status: Ready::Ready.into(),
            max_loading_concurrency: 1,
            method_infos: METHODS.into_iter().map(named).collect(),
            ..RuntimeStatusResponse::default()
        })
    }

    /// Gives it the list. The answer comes once new models are loaded or have failed. Without an end of its own, as a load is.
    pub(super) async fn reload(&self, models: &[(&str, PathBuf)]) -> Result<(), Status> {
        let one = |(name, path): &(&str, PathBuf)| ModelConfig {
            name: (*name).to_owned(),
            base_path: shown(path),
            model_platform: "tensorflow".to_owned(),
        };
        let list = ModelConfigList { config: models.iter().map(one).collect() };
        let config = ModelServerConfig { config: Some(Config::ModelConfigList(list)) };
        let request = ReloadConfigRequest { config: Some(config) };
        let answer = self.client.clone().handle_reload_config_request(request).await?.into_inner();
        match answer.status {
            Some(StatusProto { error_code, error_message }) if error_code != 0 => {
                Err(Status::new(Code::from_i32(error_code), error_message))
            }
            _ => Ok(()),
        }
    }

    pub(super) async fn state(&self, id: &str) -> Result<State, Status> {
        let versions = match self.asked(id).await {
            Err(status) if status.code() == Code::NotFound => return Ok(State::Absent),
            answer => answer?,
        };
        // The version that was loaded last is told first.
        let Some(version) = versions.first() else { return Ok(State::Absent) };
        let said = version.status.clone().unwrap_or_default();
        Ok(match version.state() {
            Reported::Available => State::Available,
            Reported::Start | Reported::Loading if said.error_code == 0 => State::Coming,
            Reported::Unloading | Reported::End if said.error_code == 0 => State::Absent,
            state => State::Failed(format!("the server says {}: {}", state.as_str_name(), said.error_message)),
        })
    }

    async fn asked(&self, id: &str) -> Result<Vec<berth_wire::tensorflow_serving::ModelVersionStatus>, Status> {
        let request = GetModelStatusRequest { model_spec: Some(ModelSpec { name: id.to_owned() }) };
        let answer = self.client.clone().get_model_status(within(request, STATE_TIMEOUT)).await?;
        Ok(answer.into_inner().model_version_status)
    }
}

/// The content of [`LIST`] for these models: name, and path of the folder.
pub(super) fn list(models: &[(&str, PathBuf)]) -> String {
    let quoted = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let mut text = "model_config_list {\n".to_owned();
    for (name, path) in models {
        let (name, path) = (quoted(name), quoted(&shown(path)));
        let _ = writeln!(text, "  config {{ name: \"{name}\" base_path: \"{path}\" model_platform: \"tensorflow\" }}");
    }
    text + "}\n"
}
