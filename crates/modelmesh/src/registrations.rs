//! Models that the configuration of an instance registers when it starts: `MM_AUTO_REGISTER_MODELS`.
//!
//! ```text
//! list ─▶ registerModel, or setVModel, one after another ─▶ ensureLoaded of those that must be ─▶ the instance is ready
//!                        └── refused, or the load failed ──▶ the instance ends
//! ```

use std::{collections::BTreeSet, convert::Infallible, time::Duration};

use axum::{BoxError, body::Bytes};
use berth_control::api::ApiRouter;
use berth_spec::DeploymentName;
use berth_wire::mmesh::{
    EnsureLoadedRequest, ModelInfo, RegisterModelRequest, SetVModelRequest, model_mesh_client::ModelMeshClient,
    model_status_info::ModelStatus,
};
use http_body_util::combinators::UnsyncBoxBody;
use serde::Deserialize;
use tokio::time::Instant;
use tonic::{Code, Status, body::Body, client::GrpcService};

use crate::{gateway, load::LOAD_WITHIN};

type Reply = UnsyncBoxBody<Bytes, BoxError>;

/// Pause before a call is repeated that nobody could answer: an election takes seconds.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Age that the use of such a model is given: it changes nothing about one that was used since.
const LONG_AGO: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// A model of the list. Fields that are not known are passed over, as ModelMesh does.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Registration {
    model_id: String,
    model_info: Attributes,
    v_model_id: Option<String>,
    #[serde(default)]
    retain_after_transition: bool,
    #[serde(default)]
    ensure_loaded: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct Attributes {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    path: String,
    #[serde(default)]
    key: String,
}

impl Registration {
    /// Reads a list in JSON.
    ///
    /// # Errors
    /// It is no list of registrations; a model lacks its id or its type.
    pub fn parse(json: &str) -> Result<Vec<Self>, String> {
        let list: Vec<Self> = serde_json::from_str(json).map_err(|error| error.to_string())?;
        for (index, one) in list.iter().enumerate() {
            let at = |what: &str| Err(format!("[{index}] {:?}: {what}", one.model_id));
            if one.model_id.is_empty() {
                return at("modelId is empty");
            }
            if one.model_info.kind.is_empty() {
                return at("modelInfo.type is empty");
            }
            if one.v_model_id.is_none() && one.retain_after_transition {
                return at("retainAfterTransition needs a vModelId");
            }
        }
        Ok(list)
    }

    fn info(&self) -> ModelInfo {
        let Attributes { kind, path, key } = self.model_info.clone();
        ModelInfo { r#type: kind, path, key }
    }
}

/// Registers all models, and waits for those that must be loaded.
///
/// # Errors
/// A model is refused, or its load failed; in the words of the API.
pub async fn register(api: &ApiRouter, list: &[Registration]) -> Result<(), String> {
    let until = Instant::now() + LOAD_WITHIN;
    for one in list {
        let told = repeated(until, || register_one(api, one)).await;
        told.map_err(|refused| format!("model {:?} cannot be registered: {}", one.model_id, refused.message()))?;
    }
    for one in list.iter().filter(|one| one.ensure_loaded) {
        let told = repeated(until, || have_loaded(api, one)).await;
        told.map_err(|refused| format!("model {:?} is not loaded: {}", one.model_id, refused.message()))?;
        tracing::info!(event = "registered_model_loaded", model = one.model_id);
    }
    Ok(())
}

async fn register_one(api: &ApiRouter, one: &Registration) -> Result<(), Status> {
    let (model, info) = (one.model_id.clone(), Some(one.info()));
    match &one.v_model_id {
        None => {
            let load_now = one.ensure_loaded;
            let request = RegisterModelRequest { model_id: model, model_info: info, load_now, ..Default::default() };
            client(api).register_model(request).await.map(drop)
        }
        Some(vmodel) => {
            let request = SetVModelRequest {
                v_model_id: vmodel.clone(),
                target_model_id: model,
                model_info: info,
                auto_delete_target_model: !one.retain_after_transition,
                load_now: one.ensure_loaded,
                ..Default::default()
            };
            client(api).set_v_model(request).await.map(drop)
        }
    }
}

async fn have_loaded(api: &ApiRouter, one: &Registration) -> Result<(), Status> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let last_used_time = u64::try_from(now.saturating_sub(LONG_AGO).as_millis()).unwrap_or_default();
    let request = EnsureLoadedRequest { model_id: one.model_id.clone(), last_used_time, sync: true };
    let told = client(api).ensure_loaded(request).await?.into_inner();
    match told.status() {
        ModelStatus::LoadingFailed => Err(Status::aborted(told.errors.join("; "))),
        ModelStatus::NotFound => Err(Status::not_found("it was removed meanwhile")),
        _ => Ok(()),
    }
}

/// Repeats a call that nobody could answer yet: an instance may start before any other that decides.
async fn repeated<F>(until: Instant, call: impl Fn() -> F) -> Result<(), Status>
where
    F: Future<Output = Result<(), Status>>,
{
    loop {
        match call().await {
            Err(refused) if refused.code() == Code::Unavailable && Instant::now() + RETRY_PAUSE < until => {
                tracing::info!(event = "registration_waits", reason = refused.message());
                tokio::time::sleep(RETRY_PAUSE).await;
            }
            told => return told,
        }
    }
}

/// A client of the API in this process.
fn client(
    api: &ApiRouter,
) -> ModelMeshClient<impl GrpcService<Body, ResponseBody = Reply, Error = Infallible, Future: Send>> {
    let api = api.clone();
    ModelMeshClient::new(tower::service_fn(move |request| {
        let api = api.clone();
        // Models are registered where there is a leader: no state is told from here.
        async move { Ok(gateway::answer(api, request, &|_: &DeploymentName| BTreeSet::new()).await) }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_modelmeshs() {
        let list = r#"[{"modelId": "a", "modelInfo": {"type": "T", "path": "p"}, "new": 1},
            {"modelId": "b", "modelInfo": {"type": "T"}, "vModelId": "v", "retainAfterTransition": true, "ensureLoaded": true}]"#;
        let read = Registration::parse(list).expect("it is a list");
        assert_eq!(read[0].info(), ModelInfo { r#type: "T".into(), path: "p".into(), key: String::new() });
        assert!(read[1].ensure_loaded && read[1].retain_after_transition && read[1].v_model_id.as_deref() == Some("v"));
        for (wrong, says) in [
            ("{}", "expected a sequence"),
            (r#"[{"modelInfo": {"type": "T"}}]"#, "modelId"),
            (r#"[{"modelId": "", "modelInfo": {"type": "T"}}]"#, "[0] \"\": modelId is empty"),
            (r#"[{"modelId": "a", "modelInfo": {"type": ""}}]"#, "modelInfo.type is empty"),
            (r#"[{"modelId": "a", "modelInfo": {"type": "T"}, "retainAfterTransition": true}]"#, "needs a vModelId"),
        ] {
            let error = Registration::parse(wrong).expect_err(wrong);
            assert!(error.contains(says), "{wrong}: {error}");
        }
    }
}
