//! The same models behind the Open Inference Protocol: a server with a model repository, as Triton and MLServer are.
//!
//! ```text
//! RepositoryModelLoad NAME ─▶ REPOSITORY/NAME: the first line of the model's file is its script ─▶ models
//! ```
//! The file is that in `1/` (Triton's layout), or the one that `model-settings.json` names (MLServer's). Nothing is loaded at the
//! start, as by Triton with `--model-control-mode=explicit`.

use std::{
    io,
    path::{Component, Path, PathBuf},
};

use berth_wire::oip::{
    ModelMetadataRequest, ModelMetadataResponse, ModelReadyRequest, ModelReadyResponse, RepositoryIndexRequest,
    RepositoryIndexResponse, RepositoryModelLoadRequest, RepositoryModelLoadResponse, RepositoryModelUnloadRequest,
    RepositoryModelUnloadResponse, ServerLiveRequest, ServerLiveResponse, ServerMetadataRequest,
    ServerMetadataResponse, ServerReadyRequest, ServerReadyResponse, repository_index_response::ModelIndex,
};
use fs_err as fs;
use hyper::body::Incoming;
use serde_json::Value;
use tonic::Status;

use super::{
    answers::{Body, framed, message},
    models::Models,
};

/// Path of the service.
pub(super) const SERVICE: &str = "/inference.GRPCInferenceService/";

/// Settings of a model in MLServer's layout.
const SETTINGS: &str = "model-settings.json";

/// The longest script.
const MAX_SCRIPT_BYTES: usize = 4096;

/// Answers the methods that manage models; `Err` gives the body back: it is an inference.
pub(super) async fn of(
    models: &Models,
    repository: &Path,
    method: &str,
    body: Incoming,
) -> Result<Result<Body, Status>, Incoming> {
    Ok(match method {
        "ServerLive" => answer(body, |_: ServerLiveRequest| Ok(ServerLiveResponse { live: true })).await,
        "ServerReady" => answer(body, |_: ServerReadyRequest| Ok(ServerReadyResponse { ready: models.is_up() })).await,
        "ServerMetadata" => {
            let metadata = ServerMetadataResponse {
                name: "berth testing runtime".to_owned(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                extensions: vec!["model_repository".to_owned()],
            };
            answer(body, |_: ServerMetadataRequest| Ok(metadata)).await
        }
        "ModelReady" => {
            answer(body, |asked: ModelReadyRequest| Ok(ModelReadyResponse { ready: models.has(&asked.name) })).await
        }
        "ModelMetadata" => answer(body, |asked: ModelMetadataRequest| metadata(models, asked.name)).await,
        "RepositoryIndex" => answer(body, |_: RepositoryIndexRequest| index(models, repository)).await,
        "RepositoryModelLoad" => load(models, repository, body).await,
        "RepositoryModelUnload" => unload(models, body).await,
        _ => return Err(body),
    })
}

/// The status of a call for a model that is not loaded, in Triton's words.
pub(super) fn unknown(name: &str) -> Status {
    Status::unavailable(format!("Request for unknown model: '{name}' is not found"))
}

async fn answer<Q, A>(body: Incoming, answer: impl FnOnce(Q) -> Result<A, Status>) -> Result<Body, Status>
where
    Q: prost::Message + Default,
    A: prost::Message,
{
    answer(message(body).await?).map(|answer| framed(&answer))
}

async fn load(models: &Models, repository: &Path, body: Incoming) -> Result<Body, Status> {
    let RepositoryModelLoadRequest { model_name, .. } = message(body).await?;
    let read = script(repository, &model_name);
    let script = read.map_err(|error| Status::invalid_argument(format!("model '{model_name}': {error}")))?;
    models.load(model_name, script).await?;
    Ok(framed(&RepositoryModelLoadResponse {}))
}

async fn unload(models: &Models, body: Incoming) -> Result<Body, Status> {
    let RepositoryModelUnloadRequest { model_name, .. } = message(body).await?;
    models.unload(&model_name).await?;
    Ok(framed(&RepositoryModelUnloadResponse {}))
}

/// Tensors are not told: any are taken.
fn metadata(models: &Models, name: String) -> Result<ModelMetadataResponse, Status> {
    if !models.has(&name) {
        return Err(unknown(&name));
    }
    let platform = "scripted".to_owned();
    Ok(ModelMetadataResponse { name, versions: vec!["1".to_owned()], platform, ..ModelMetadataResponse::default() })
}

fn index(models: &Models, repository: &Path) -> Result<RepositoryIndexResponse, Status> {
    let names = folders(repository).map_err(|error| Status::internal(error.to_string()))?;
    let one = |name: String| {
        let state = if models.has(&name) { "READY" } else { "UNAVAILABLE" };
        ModelIndex { name, version: "1".to_owned(), state: state.to_owned(), ..ModelIndex::default() }
    };
    Ok(RepositoryIndexResponse { models: names.into_iter().map(one).collect() })
}

fn folders(repository: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(repository)? {
        let entry = entry?;
        names.extend(entry.file_name().into_string().ok().filter(|_| entry.path().is_dir()));
    }
    names.sort();
    Ok(names)
}

/// The script of a model: the first line of its file.
fn script(repository: &Path, name: &str) -> io::Result<String> {
    let mut parts = Path::new(name).components();
    let (Some(Component::Normal(folder)), None) = (parts.next(), parts.next()) else {
        return Err(io::Error::other("it cannot name a folder"));
    };
    script_in(&repository.join(folder))
}

/// The same of the model in a folder.
pub(super) fn script_in(folder: &Path) -> io::Result<String> {
    let text = fs::read(file(folder)?)?;
    let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
    // A real model's bytes are no script: it is loaded at once.
    Ok(std::str::from_utf8(&line[..line.len().min(MAX_SCRIPT_BYTES)]).unwrap_or_default().trim().to_owned())
}

fn file(folder: &Path) -> io::Result<PathBuf> {
    let path = match fs::read(folder.join(SETTINGS)) {
        Ok(text) => {
            let settings: Value = serde_json::from_slice(&text)?;
            let uri = settings["parameters"]["uri"].as_str();
            folder.join(uri.ok_or_else(|| io::Error::other(format!("{SETTINGS} has no parameters.uri")))?)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => folder.join("1"),
        Err(error) => return Err(error),
    };
    if !path.is_dir() {
        return Ok(path);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(&path)? {
        let entry = entry?;
        files.extend(Some(entry.path()).filter(|path| path.is_file() && entry.file_name() != SETTINGS));
    }
    files.into_iter().min().ok_or_else(|| io::Error::other(format!("{} has no file", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_are_found_in_both_layouts() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        fs::create_dir_all(root.join("triton/1")).expect("made");
        fs::write(root.join("triton/1/model.txt"), "SIZE_5_1\nmore").expect("written");
        fs::create_dir_all(root.join("mlserver")).expect("made");
        let settings = serde_json::json!({"parameters": {"uri": root.join("weights")}});
        fs::write(root.join("mlserver").join(SETTINGS), settings.to_string()).expect("written");
        fs::write(root.join("weights"), "FAIL_no").expect("written");
        fs::create_dir_all(root.join("binary/1")).expect("made");
        fs::write(root.join("binary/1/model.onnx"), [8, 0xff, 0xfe]).expect("written");
        let read = |name| script(root, name).map_err(|_| ());
        assert_eq!((read("triton"), read("mlserver")), (Ok("SIZE_5_1".to_owned()), Ok("FAIL_no".to_owned())));
        assert_eq!((read("binary"), read("none"), read("../triton")), (Ok(String::new()), Err(()), Err(())));
        assert_eq!(folders(root).expect("a list"), ["binary", "mlserver", "triton"]);
    }
}
