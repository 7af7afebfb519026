//! `berth fetch`: an artifact into a folder, as workers fetch it: in parts, resumed, checked. Init containers of the operator
//! run it.

use std::path::{Path, PathBuf};

use berth_spec::{ByteSize, DeploymentName, Digest};
use berth_worker::{
    artifacts::{Artifacts, FetchRequest, Source},
    metrics::CacheMetrics,
};
use clap::Args;
use fs_err as fs;

use crate::{failure::Failure, settings, terminal};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth fetch s3://models/iris/1/ --to /parameters/iris            a folder: ends with a slash
  berth fetch https://example.com/m.onnx --to . --sha256 9f86d0…   a file, checked
  AWS_ENDPOINT_URL=http://minio:9000 berth fetch s3://models/m.bin --to /parameters

Credentials are in the environment, with the names of the stores' own tools (AWS_*, GOOGLE_*,
AZURE_*). To continue a fetch that broke off, run the command again.")]
pub(crate) struct FetchArgs {
    /// Location: s3, gs, az, http, https, file, storage or pvc. A folder ends with a slash
    #[arg(value_name = "URI")]
    uri: String,
    /// Folder that gets the files; made where it is missing
    #[arg(long, value_name = "DIR")]
    to: PathBuf,
    /// SHA-256 of the file; of a folder, that of its sorted lines `DIGEST  PATH`
    #[arg(long, value_name = "HEX")]
    sha256: Option<Digest>,
    #[command(flatten)]
    storages: settings::storages::StorageArgs,
}

pub(crate) async fn run(args: &FetchArgs) -> Result<(), Failure> {
    let deployment: DeploymentName = "fetch".parse().map_err(|e| Failure::doing("no name for the fetch", e))?;
    let request = FetchRequest::location(args.uri.clone(), args.sha256, deployment);
    fs::create_dir_all(&args.to)?;
    // Beside the files, so that they are moved, not copied, and a second attempt finds what the first got.
    let partial = args.to.join(".berth-fetch");
    let failed = |fault: berth_worker::Fault| Failure::Failed(format!("{}: {fault}", args.uri));
    let artifacts = Artifacts::open(
        partial.clone(),
        ByteSize(u64::MAX / 2),
        settings::store_credentials(),
        CacheMetrics::default(),
    )
    .map_err(failed)?
    .with_storages(args.storages.settings());
    let (artifact, _pin) = artifacts.get(&request, std::sync::Arc::new(|_, _| ())).await.map_err(failed)?;
    // A file of this machine belongs to somebody else: it is copied, and stays as it is.
    let is_local = artifact.source.path().is_ok_and(|path| !path.starts_with(&partial));
    let count = match &artifact.source {
        Source::File(path) => {
            place(path, &args.to.join(file_name(&args.uri)), is_local)?;
            1
        }
        Source::Folder(path) => place_folder(path, &args.to, is_local)?,
        Source::Opaque { .. } => return Err(Failure::Invalid(format!("{} cannot be fetched", args.uri))),
    };
    fs::remove_dir_all(&partial)?;
    let size = terminal::size(artifact.size.0);
    terminal::print(&format!(
        "{count} file{}, {size}, sha256 {}, in {}",
        if count == 1 { "" } else { "s" },
        artifact.digest,
        args.to.display()
    ))?;
    Ok(())
}

/// The last part of a location's path.
fn file_name(uri: &str) -> String {
    let path = uri.split(['?', '#']).next().unwrap_or(uri);
    path.rsplit('/').find(|part| !part.is_empty()).unwrap_or("model").to_owned()
}

/// Links a file to its place, readable for whatever user the model runs as.
fn place(from: &Path, to: &Path, is_local: bool) -> Result<(), Failure> {
    use std::os::unix::fs::PermissionsExt as _;

    let from = fs::canonicalize(from)?;
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder)?;
    }
    if to.exists() {
        fs::remove_file(to)?;
    }
    if is_local || fs::hard_link(&from, to).is_err() {
        fs::copy(&from, to)?;
    }
    Ok(fs::set_permissions(to, std::fs::Permissions::from_mode(0o644))?)
}

/// Places all files of a folder; returns how many.
fn place_folder(from: &Path, to: &Path, is_local: bool) -> Result<usize, Failure> {
    let mut count = 0;
    for entry in fs::read_dir(from)? {
        let (path, name) = entry.map(|entry| (entry.path(), entry.file_name()))?;
        count += match path.is_dir() {
            true => place_folder(&path, &to.join(name), is_local)?,
            false => place(&path, &to.join(name), is_local).map(|()| 1)?,
        };
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_keeps_its_name() {
        assert_eq!(file_name("s3://models/iris/model.onnx"), "model.onnx");
        assert_eq!(file_name("https://host/m.bin?versionId=3"), "m.bin");
    }

    #[tokio::test]
    async fn a_word_that_is_no_location_is_told_the_form_of_one() {
        let dir = tempfile::tempdir().expect("a folder");
        let args = FetchArgs {
            uri: "foo".to_owned(),
            to: dir.path().to_owned(),
            sha256: None,
            storages: settings::storages::StorageArgs::default(),
        };
        let refused = run(&args).await.expect_err("no location").to_string();
        assert!(refused.starts_with("foo: the location is no uri") && refused.contains("file:///"), "{refused}");
    }

    #[tokio::test]
    async fn a_file_of_this_machine_is_checked_and_placed() {
        let dir = tempfile::tempdir().expect("a folder");
        let from = dir.path().join("m.bin");
        fs::write(&from, b"parameters").expect("written");
        let args = |sha256: &str| FetchArgs {
            uri: format!("file://{}", from.display()),
            to: dir.path().join("to"),
            sha256: Some(sha256.parse().expect("a digest")),
            storages: settings::storages::StorageArgs::default(),
        };
        let right = "f6b1d6ef4eb2e0dc3d2f8e0f0b7ae2c0c9c5e3d1c1fa6e0c6e3f5f3b0c4fbb1a";
        let refused = run(&args(right)).await.expect_err("another file").to_string();
        let actual = refused.split("SHA-256 ").nth(1).and_then(|rest| rest.split(',').next()).expect("the digest");
        run(&args(actual)).await.expect("the file");
        assert_eq!(fs::read(dir.path().join("to/m.bin")).expect("placed"), b"parameters");
        assert!(!dir.path().join("to/.berth-fetch").exists());
    }
}
