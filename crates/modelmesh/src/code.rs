//! gRPC codes of errors: ModelMesh's where it had a good one, else that of the error's class.

use berth_control::{handle::Error, store::StoreError};
use berth_spec::DeploymentName;
use tonic::Status;

use crate::failover::term_ended;

/// The gRPC status that ModelMesh's clients get for an error of the control plane.
pub(crate) fn status(error: Error) -> Status {
    match &error {
        Error::NotFound(_) => Status::not_found("model not found"),
        Error::NoAlias(_) => Status::not_found("vmodel not found"),
        Error::NameInUse { .. } => Status::already_exists(error.to_string()),
        Error::Owned { .. } => Status::failed_precondition(error.to_string()),
        // Another caller was faster, again and again.
        Error::Stale { .. } | Error::Contended(_) => Status::aborted(error.to_string()),
        Error::Stopped | Error::Store(StoreError::Deposed) => term_ended(error.to_string()),
        _ => Status::new(berth_wire::status::grpc_code(error.class()), error.to_string()),
    }
}

/// ALREADY_EXISTS for a model that is registered with other attributes, those of `uri`.
pub(crate) fn other_attributes(model: &DeploymentName, uri: &str) -> Status {
    Status::already_exists(format!("model {model} is already registered with other attributes: {uri}"))
}

/// ALREADY_EXISTS for a virtual model that belongs to `owner`, somebody else.
pub(crate) fn other_owner(vmodel: &DeploymentName, owner: &str) -> Status {
    Status::already_exists(format!("vmodel {vmodel} already exists with different owner \"{owner}\""))
}
