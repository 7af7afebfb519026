//! The same models behind servers that are told a whole list: OpenVINO Model Server and TensorFlow Serving, as far as somebody who
//! manages their models sees them. Fakes, made from their documentation.
//!
//! ```text
//! POST /v1/config/reload            REPOSITORY/model_config_list.json ─▶ what is not listed goes, what is new is loaded
//! HandleReloadConfigRequest         the same for the list in the call
//! GET /v1/config, GetModelStatus    states
//! ```

use std::{collections::BTreeMap, path::Path};

use berth_wire::tensorflow_serving::{
    GetModelStatusRequest, GetModelStatusResponse, ModelVersionStatus, PredictRequest, ReloadConfigRequest,
    ReloadConfigResponse, StatusProto, model_server_config::Config, model_version_status::State,
};
use bytes::Bytes;
use fs_err as fs;
use http::{Method, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use prost::Message as _;
use serde_json::{Value, json};
use tonic::{Code, Status};

use super::{
    answers::{Body, framed, message, whole},
    models::Models,
    repository::script_in,
};

/// Path of the REST calls of OpenVINO Model Server.
pub(super) const CONFIG: &str = "/v1/config";

/// Path of TensorFlow Serving's service for managing models.
pub(super) const MODEL_SERVICE: &str = "/tensorflow.serving.ModelService/";

/// Path of TensorFlow Serving's service for inferences.
pub(super) const PREDICTION_SERVICE: &str = "/tensorflow.serving.PredictionService/";

/// Names of models and their folders.
type List = BTreeMap<String, String>;

/// Gets to a list, and says whether anything had to change. What cannot be loaded is noted.
async fn reach(models: &Models, list: &List) -> bool {
    let gone: Vec<String> = models.known().into_iter().filter(|name| !list.contains_key(name)).collect();
    let mut changed = !gone.is_empty();
    for name in gone {
        let _ = models.unload(&name).await;
        models.note(&name, None);
    }
    for (name, folder) in list.iter().filter(|(name, _)| !models.has(name)) {
        changed = true;
        let script = script_in(Path::new(folder)).map_err(|error| Status::invalid_argument(error.to_string()));
        let loaded = match script {
            Ok(script) => models.load(name.clone(), script).await.map(drop),
            Err(status) => Err(status),
        };
        models.note(name, loaded.err());
    }
    changed
}

/// Answers OpenVINO Model Server's calls about its list.
pub(super) async fn open_vino(models: &Models, repository: &Path, method: &Method, path: &str) -> Response<Body> {
    let reloads = *method == Method::POST && path == "/v1/config/reload";
    let status = match (reloads, *method == Method::GET && path == CONFIG) {
        (true, _) => match listed(repository) {
            Ok(list) if reach(models, &list).await => StatusCode::CREATED,
            Ok(_) => StatusCode::OK,
            Err(error) => return json_of(StatusCode::BAD_REQUEST, &json!({"error": error})),
        },
        (_, true) => StatusCode::OK,
        _ => return json_of(StatusCode::NOT_FOUND, &json!({"error": "Invalid request"})),
    };
    if reloads && !models.failures().is_empty() {
        return json_of(StatusCode::PRECONDITION_FAILED, &json!({"error": "Reloading config failed"}));
    }
    let state = |failed: bool| {
        let (state, code) = if failed { ("LOADING", "UNKNOWN") } else { ("AVAILABLE", "OK") };
        let version = json!({"version": "1", "state": state, "status": {"error_code": code, "error_message": code}});
        json!({"model_version_status": [version]})
    };
    let good = models.loaded().into_iter().map(|name| (name, state(false)));
    let bad = models.failures().into_keys().map(|name| (name, state(true)));
    json_of(status, &Value::Object(good.chain(bad).collect()))
}

fn listed(repository: &Path) -> Result<List, String> {
    let text = fs::read(repository.join("model_config_list.json")).map_err(|error| error.to_string())?;
    let list: Value = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
    let models = list["model_config_list"].as_array().ok_or("Configuration file is not in valid JSON format")?;
    let one = |model: &Value| {
        let field = |name: &str| model["config"][name].as_str().map(str::to_owned);
        Some((field("name")?, field("base_path")?))
    };
    models.iter().map(one).collect::<Option<_>>().ok_or_else(|| "a model has no name or no base_path".to_owned())
}

fn json_of(status: StatusCode, value: &Value) -> Response<Body> {
    let body = Full::new(Bytes::from(value.to_string())).map_err(|never| match never {});
    let mut response = Response::new(body.boxed_unsync());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    response
}

/// Answers TensorFlow Serving's calls about its models.
pub(super) async fn model_service(models: &Models, method: &str, body: Incoming) -> Result<Body, Status> {
    match method {
        "GetModelStatus" => {
            let GetModelStatusRequest { model_spec } = message(body).await?;
            let name = model_spec.unwrap_or_default().name;
            let (state, status) = match (models.has(&name), models.failures().remove(&name)) {
                (true, _) => (State::Available, StatusProto::default()),
                (false, Some(error)) => {
                    let error_message = error.message().to_owned();
                    (State::End, StatusProto { error_code: error.code() as i32, error_message })
                }
                (false, None) => {
                    return Err(Status::not_found(format!("Could not find any versions of model {name}")));
                }
            };
            let version = ModelVersionStatus { version: 1, state: state.into(), status: Some(status) };
            Ok(framed(&GetModelStatusResponse { model_version_status: vec![version] }))
        }
        "HandleReloadConfigRequest" => {
            let ReloadConfigRequest { config } = message(body).await?;
            let Some(Config::ModelConfigList(list)) = config.and_then(|config| config.config) else {
                return Err(Status::invalid_argument("Cannot transition to requested model config"));
            };
            let list = list.config.into_iter().map(|model| (model.name, model.base_path)).collect();
            reach(models, &list).await;
            match models.failures().into_iter().next() {
                Some((name, _)) => Err(Status::unknown(format!("{name}: 1 servable(s) did not become available"))),
                None => Ok(framed(&ReloadConfigResponse { status: Some(StatusProto::default()) })),
            }
        }
        _ => Err(Status::new(Code::Unimplemented, "")),
    }
}

/// Answers an inference of TensorFlow Serving, which names its model in its message, with that message.
pub(super) async fn predicted(models: &Models, body: Incoming) -> Result<(Body, String), Status> {
    let whole = whole(body).await?;
    let request = PredictRequest::decode(whole.clone());
    let request = request.map_err(|error| Status::invalid_argument(error.to_string()))?;
    let name = request.model_spec.unwrap_or_default().name;
    if !models.has(&name) {
        return Err(Status::not_found(format!("Servable not found for request: Latest({name})")));
    }
    Ok((super::answers::framed_bytes(&whole), name))
}
