//! The engine's library and the example models.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use crate::{
    python::Environment,
    run::{run, step},
    workspace::Workspace,
};

/// Results of the set-up.
pub(crate) struct Made {
    /// The ONNX Runtime library.
    pub(crate) engine: PathBuf,
}

/// Installs ONNX Runtime's library and trains the example models, or finds them made.
pub(crate) fn engine_and_models(workspace: &Workspace) -> Result<Made> {
    let python = Environment::ensure(workspace, "models", "examples/models/requirements.txt")?;
    let engine = engine(workspace, &python)?;
    for profile in ["debug", "release", "release-lto"] {
        beside(&engine, &workspace.target(profile))?;
    }
    models(workspace, &python)?;
    Ok(Made { engine })
}

/// The shared library out of the `onnxruntime` wheel, in the place where tests and `berth` look for it.
fn engine(workspace: &Workspace, python: &Environment) -> Result<PathBuf> {
    let folder = workspace.cache("onnxruntime");
    let library = folder.join("libonnxruntime.so");
    if library.exists() {
        return Ok(library);
    }
    let wheel = python.packages()?.join("onnxruntime");
    let name = |path: &Path| path.file_name().is_some_and(|n| n.to_string_lossy().starts_with("libonnxruntime.so"));
    let found =
        fs_err::read_dir(wheel.join("capi"))?.filter_map(|entry| entry.ok().map(|e| e.path())).find(|path| name(path));
    let found = found.context("the onnxruntime wheel holds no libonnxruntime.so")?;
    fs_err::create_dir_all(&folder)?;
    fs_err::copy(wheel.join("LICENSE"), folder.join("LICENSE"))?;
    fs_err::copy(found, &library)?;
    Ok(library)
}

/// Puts the library where binaries look first: into their own folder. A link costs nothing; folders on another disk get
/// a copy.
fn beside(engine: &Path, folder: &Path) -> Result<()> {
    let name = engine.file_name().context("the library is a file")?;
    let place = folder.join(name);
    if place.exists() {
        return Ok(());
    }
    fs_err::create_dir_all(folder)?;
    if fs_err::hard_link(engine, &place).is_err() {
        fs_err::copy(engine, &place)?;
    }
    Ok(())
}

/// The example models, trained on data that comes with scikit-learn.
fn models(workspace: &Workspace, python: &Environment) -> Result<()> {
    let script = workspace.path("examples/models/train.py");
    let out = workspace.path("examples/models/artifacts");
    let stamp = out.join("train.stamp");
    let wanted = fs_err::read_to_string(&script)?;
    if fs_err::read_to_string(&stamp).is_ok_and(|made| made == wanted) {
        return Ok(());
    }
    step("training the example models");
    run(Command::new(python.program("python")).arg(&script).arg(&out))?;
    fs_err::write(stamp, wanted)?;
    Ok(())
}
