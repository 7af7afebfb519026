//! Artifacts on this machine: used in place. Their digest is computed once per path, size and modification time, and
//! remembered across restarts.

use std::{
    io,
    path::{Path, PathBuf},
    time::{Instant, UNIX_EPOCH},
};

use berth_spec::{ByteSize, FailureCategory};
use tokio_util::sync::CancellationToken;

use super::{
    Artifact, Source,
    cache::{Cache, ContentRecord},
    checksum,
    fetch_request::FetchRequest,
    folder,
    location::Location,
};
use crate::fault::Fault;

/// Hashes a file or folder of this machine where it lies; nothing is copied.
pub(super) async fn check(
    cache: &Cache,
    location: &Location,
    path: PathBuf,
    request: &FetchRequest,
) -> Result<Artifact, Fault> {
    let (cache, key) = (cache.clone(), location.key());
    let cancel = CancellationToken::new();
    let _cancels_when_dropped = cancel.clone().drop_guard();
    let (place, graph) = (location.clone(), request.graph);
    let measured = tokio::task::spawn_blocking(move || match path.is_dir() && !graph {
        true => folder::on_disk(&cache, &place, path, &cancel),
        false => measure(&cache, &key, path, &cancel),
    })
    .await;
    let artifact = measured.map_err(Fault::internal)??;
    request.check(artifact.digest, location)?;
    Ok(artifact)
}

fn measure(cache: &Cache, key: &str, path: PathBuf, cancel: &CancellationToken) -> Result<Artifact, Fault> {
    let path = if path.is_dir() { graph_in(&path)? } else { path };
    let metadata = fs_err::metadata(&path).map_err(|error| read_fault(&error, &path))?;
    // A device or a pipe may have no end.
    if !metadata.is_file() {
        let message = format!(
            "{} is neither a file nor a folder: give the path of the model's file in spec.model.uri",
            path.display()
        );
        return Err(Fault::new(FailureCategory::InvalidModel, message));
    }
    let modified = metadata.modified().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
    let state = format!("{}:{}:{}", path.display(), metadata.len(), modified.as_nanos());
    let digest = match cache.known(key) {
        Some(known) if known.etag.as_deref() == Some(&state) => known.digest,
        _ => {
            let started = Instant::now();
            let digest = checksum::of_file(&path, cancel).map_err(|error| read_fault(&error, &path))?;
            tracing::debug!(event = "artifact_hashed", digest = %digest, duration_ms = started.elapsed().as_secs_f64() * 1e3);
            // Losing it costs hashing again.
            let _ = cache.remember(key, &ContentRecord { etag: Some(state), digest, size: metadata.len() });
            digest
        }
    };
    Ok(Artifact { source: Source::File(path), digest, size: ByteSize(metadata.len()) })
}

/// The graph in a folder: `model.onnx`, or the only `.onnx` file. Its external data lies beside it.
fn graph_in(dir: &Path) -> Result<PathBuf, Fault> {
    let named = dir.join("model.onnx");
    if named.is_file() {
        return Ok(named);
    }
    let graphs: Vec<_> = fs_err::read_dir(dir)
        .map_err(|error| read_fault(&error, dir))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "onnx"))
        .collect();
    match <[PathBuf; 1]>::try_from(graphs) {
        Ok([graph]) => Ok(graph),
        Err(graphs) => {
            let message = format!(
                "the folder {} has {} .onnx files and no model.onnx: name the file in spec.model.uri",
                dir.display(),
                graphs.len()
            );
            Err(Fault::new(FailureCategory::InvalidModel, message))
        }
    }
}

fn read_fault(error: &io::Error, path: &Path) -> Fault {
    let path = path.display();
    match error.kind() {
        io::ErrorKind::NotFound => {
            let message = format!("there is no file {path}: check spec.model.uri; it is a path on the worker");
            Fault::new(FailureCategory::NotFound, message)
        }
        io::ErrorKind::PermissionDenied => {
            let message = format!("{path} may not be read: let the worker's user read it");
            Fault::new(FailureCategory::Auth, message)
        }
        kind => Fault::new(FailureCategory::Disk, format!("{path} cannot be read ({kind}): check the disk")),
    }
}
