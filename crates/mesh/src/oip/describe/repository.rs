//! The model repository extension: the index, and the bodies of load and unload.

use berth_spec::InferError;
use berth_wire::oip::{
    ModelRepositoryParameter, model_repository_parameter::ParameterChoice, repository_index_response,
};
use serde::{Deserialize, Serialize};

/// A model's state in the words of the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum State {
    /// Nothing is known of its state.
    Unknown,
    /// The model answers.
    Ready,
    /// Does not answer; the reason says why.
    Unavailable,
    /// The model is being loaded.
    Loading,
    /// Is being taken away.
    Unloading,
}

impl State {
    /// The word for it in both protocols.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "UNKNOWN",
            Self::Ready => "READY",
            Self::Unavailable => "UNAVAILABLE",
            Self::Loading => "LOADING",
            Self::Unloading => "UNLOADING",
        }
    }
}

/// One entry of the index: `POST /v2/repository/index` answers with an array of them.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct IndexEntry<'a> {
    /// Name of the model.
    pub name: &'a str,
    /// The version; empty where there is none yet.
    pub version: &'a str,
    /// State of that version.
    pub state: State,
    /// The reason, where that needs saying.
    pub reason: &'a str,
}

impl IndexEntry<'_> {
    /// The same as an entry of `RepositoryIndexResponse` over gRPC.
    #[must_use]
    pub fn to_proto(&self) -> repository_index_response::ModelIndex {
        repository_index_response::ModelIndex {
            name: self.name.to_owned(),
            version: self.version.to_owned(),
            state: self.state.as_str().to_owned(),
            reason: self.reason.to_owned(),
        }
    }
}

/// The parameters of a load or unload, beyond the model's name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RepositoryParameters {
    /// A `config` or `file:…` parameter: the model would be another one than the declared one.
    pub overrides: bool,
    /// `unload_dependents`: nothing depends on a model here, so it changes nothing.
    pub unload_dependents: bool,
}

#[derive(Deserialize)]
struct Body {
    #[serde(default)]
    parameters: Option<serde_json::Map<String, serde_json::Value>>,
}

#[derive(Deserialize)]
struct IndexBody {
    #[serde(default)]
    ready: Option<bool>,
}

/// The body of an index request: whether only ready models are asked for. An empty body asks for all.
pub fn index_ready_only(body: &[u8]) -> Result<bool, InferError> {
    if body.trim_ascii().is_empty() {
        return Ok(false);
    }
    let body: IndexBody = serde_json::from_slice(body).map_err(|error| {
        InferError::Invalid(format!("the body of an index request is not {{\"ready\": bool}}: {error}"))
    })?;
    Ok(body.ready.unwrap_or(false))
}

impl RepositoryParameters {
    /// From the body of a REST load or unload; an empty one asks for nothing more.
    pub fn from_json(body: &[u8]) -> Result<Self, InferError> {
        if body.trim_ascii().is_empty() {
            return Ok(Self::default());
        }
        let body: Body = serde_json::from_slice(body).map_err(|error| {
            InferError::Invalid(format!("the body of a load or unload is not {{\"parameters\": {{…}}}}: {error}"))
        })?;
        let mut parameters = Self::default();
        for (name, value) in body.parameters.iter().flatten() {
            parameters.take(name, value.as_bool());
        }
        Ok(parameters)
    }

    /// From the parameters of a gRPC load or unload.
    #[must_use]
    pub fn from_proto<'a>(parameters: impl IntoIterator<Item = (&'a String, &'a ModelRepositoryParameter)>) -> Self {
        let mut taken = Self::default();
        for (name, value) in parameters {
            let flag = match value.parameter_choice {
                Some(ParameterChoice::BoolParam(flag)) => Some(flag),
                _ => None,
            };
            taken.take(name, flag);
        }
        taken
    }

    fn take(&mut self, name: &str, flag: Option<bool>) {
        self.overrides |= name == "config" || name.starts_with("file:");
        self.unload_dependents |= name == "unload_dependents" && flag == Some(true);
    }
}
