//! The artifact of a load, in the words of a runtime.

use std::path::Path;

use berth_spec::FailureCategory;
use berth_wire::mmesh::LoadModelRequest;

use super::layout;
use crate::{
    artifacts::Source,
    runtime::{LoadError, LoadRequest},
};

/// The texts that go to the runtime.
pub(super) fn asked(request: &LoadRequest, id: &str) -> Result<LoadModelRequest, LoadError> {
    let (model_type, model_path, model_key) = match &request.artifact {
        Source::Opaque { kind, path, key } => (kind.clone(), path.clone(), key.clone()),
        Source::File(path) | Source::Folder(path) => {
            let format = &request.revision.format;
            let size = disk_size(path).map_err(|error| {
                LoadError::new(FailureCategory::Internal, format!("the artifact is gone from the cache: {error}"))
            })?;
            let kind = serde_json::json!({ "name": format.name(), "version": format.version().unwrap_or_default() });
            let key = serde_json::json!({ "model_type": kind, "disk_size_bytes": size });
            (format.to_string(), path.to_string_lossy().into_owned(), key.to_string())
        }
    };
    Ok(LoadModelRequest { model_id: id.to_owned(), model_type, model_path, model_key })
}

/// The artifact for a server that is given folders: the path, and the name of the file that it came from.
pub(super) fn named(request: &LoadRequest, id: &str) -> Result<LoadModelRequest, LoadError> {
    let (Source::File(path) | Source::Folder(path)) = &request.artifact else {
        let message = "runtimes with a model repository take artifacts that Berth fetches, and no runtime: location";
        return Err(LoadError::new(FailureCategory::InvalidModel, message));
    };
    Ok(LoadModelRequest {
        model_id: id.to_owned(),
        model_type: request.revision.format.to_string(),
        model_path: path.to_string_lossy().into_owned(),
        model_key: layout::file_name(&request.revision.uri).to_owned(),
    })
}

/// The bytes of a file, or of all files in a folder.
pub(super) fn disk_size(path: &Path) -> std::io::Result<u64> {
    let metadata = fs_err::metadata(path)?;
    if !metadata.is_dir() {
        return Ok(metadata.len());
    }
    let sizes = fs_err::read_dir(path)?.map(|entry| disk_size(&entry?.path()));
    sizes.sum()
}
