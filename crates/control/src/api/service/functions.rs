//! Functions, as the controller of functions shows them.

use std::sync::Arc;

use berth_spec::{Class, DeploymentName, Namespace, Origin};
use berth_wire::api::{ApplyResult, FunctionView, List};

use super::{Delete, FUNCTION, Service};
use crate::{
    api::{error::ApiError, query::nearest, view},
    functions::{DeleteFunction, FunctionHost, FunctionText},
    handle::Error,
};

impl Service {
    /// Functions of a namespace, or of all.
    pub(crate) fn functions(&self, inside: Option<&Namespace>) -> List<FunctionView> {
        let mut all = self.handle.functions.as_ref().map(|host| host.list()).unwrap_or_default();
        all.retain(|function| inside.is_none_or(|inside| function.metadata.namespace == inside.as_str()));
        List::of(all)
    }

    pub(crate) fn function(&self, name: &DeploymentName) -> Result<FunctionView, ApiError> {
        let found = self.handle.functions.as_ref().and_then(|host| host.get(name));
        found.ok_or_else(|| self.no_function(name))
    }

    /// Reads beside the runtime: a log may have megabytes.
    pub(crate) async fn function_text(&self, name: DeploymentName, text: FunctionText) -> Result<String, ApiError> {
        self.function(&name)?;
        let written = name.as_str();
        let unknown = match text {
            FunctionText::Log => self.no_function(&name),
            FunctionText::Sbom | FunctionText::Provenance => ApiError::not_found(format!(
                "the function {written:?} has no artifact with documents: nothing of it is deployed, or an earlier version of Berth built it"
            )),
            FunctionText::Lock => ApiError::not_found(format!(
                "no lock of the function {written:?} was made: its code has one or has no packages, or nothing of it is deployed"
            )),
        };
        let Some(host) = self.handle.functions.as_ref().map(Arc::clone) else { return Err(unknown) };
        let read = tokio::task::spawn_blocking(move || host.text(&name, text)).await;
        let read = read.map_err(|error| ApiError::new(Class::Internal, format!("reading failed: {error}")))?;
        read.ok_or(unknown)
    }

    /// Asks for a function to go.
    pub(crate) async fn delete_function(&self, name: DeploymentName, delete: Delete) -> Result<ApplyResult, ApiError> {
        let host = self.function_host().map_err(ApiError::from)?;
        let (mode, ownership) = (delete.write.mode, delete.write.ownership);
        let request =
            DeleteFunction { name: name.clone(), origin: Origin::API, expect: delete.expect.rev(), mode, ownership };
        match host.delete(request).await {
            Ok(deleted) => Ok(view::deleted(FUNCTION, name.as_str(), deleted.generation.0, deleted.rev.to_string())),
            Err(Error::NoFunction(_)) => Err(self.no_function(&name)),
            Err(error) => Err(delete.expect.refused(error)),
        }
    }

    pub(super) fn function_host(&self) -> Result<Arc<dyn FunctionHost>, Error> {
        self.handle.functions.clone().ok_or(Error::NoFunctions)
    }

    fn no_function(&self, name: &DeploymentName) -> ApiError {
        // Whoever asks may see this namespace, and perhaps no other.
        let names: Vec<String> =
            self.functions(Some(&name.to_namespace())).items.iter().map(|one| one.metadata.written()).collect();
        let written = name.as_str();
        match nearest(written, names.iter().map(String::as_str)) {
            Some(near) => ApiError::not_found(format!("there is no function {written:?}: did you mean {near:?}?")),
            None => ApiError::not_found(format!("there is no function {written:?}: GET /v1/functions lists them")),
        }
    }
}
