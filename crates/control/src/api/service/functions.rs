//! Functions, as their host on this node shows them.

use std::sync::Arc;

use berth_spec::Class;
use berth_wire::api::{FunctionView, List};

use super::Service;
use crate::api::{error::ApiError, query::nearest};

impl Service {
    pub(crate) fn functions(&self) -> List<FunctionView> {
        List::of(self.functions.as_ref().map(|board| board.list()).unwrap_or_default())
    }

    pub(crate) fn function(&self, name: &str) -> Result<FunctionView, ApiError> {
        let all = self.functions().items;
        let found = all.iter().find(|function| function.metadata.name == name).cloned();
        found.ok_or_else(|| no_function(name, all.iter().map(|function| function.metadata.name.as_str())))
    }

    /// Reads the log beside the runtime: it may have megabytes.
    pub(crate) async fn function_log(&self, name: String) -> Result<String, ApiError> {
        let unknown = no_function(&name, std::iter::empty());
        let Some(board) = self.functions.as_ref().map(Arc::clone) else { return Err(unknown) };
        let read = tokio::task::spawn_blocking(move || board.log(&name)).await;
        let read = read.map_err(|error| ApiError::new(Class::Internal, format!("reading the log failed: {error}")))?;
        read.ok_or(unknown)
    }
}

fn no_function<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> ApiError {
    match nearest(name, known) {
        Some(near) => ApiError::not_found(format!("there is no function {name:?}: did you mean {near:?}?")),
        None => ApiError::not_found(format!("there is no function {name:?}: GET /v1/functions lists them")),
    }
}
