//! Finding and loading the shared library of ONNX Runtime: once per process, and never a panic when it is not there.

use std::{
    env,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use berth_spec::format::ONNX_ENGINE_REMEDY;
use ort::{environment::Environment, logging::LogLevel};

/// The name of the library's file; versions follow it after a dot.
const FILE: &str = "libonnxruntime.so";

/// The reason why the engine is not there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The library is in none of the places that were searched.
    #[error("no {FILE} in {}: {ONNX_ENGINE_REMEDY}", places(.0))]
    NotFound(Vec<PathBuf>),
    /// A wheel, as `pip download` brings it.
    #[error(
        "{} is a package that is not unpacked: unpack it with `unzip`, and name the folder onnxruntime that comes out of it, or \
         `pip install onnxruntime` and name site-packages/onnxruntime",
        .0.display()
    )]
    Packed(PathBuf),
    /// The library is there but not usable.
    #[error("{} is not a usable ONNX Runtime 1.24 or later: {message}", path.display())]
    Unusable {
        /// The file that was tried.
        path: PathBuf,
        /// The message of the dynamic linker, or of ONNX Runtime.
        message: String,
    },
    /// Another one is loaded in this process already.
    #[error("{} is loaded in this process already: restart it to use {}", loaded.display(), wanted.display())]
    Other {
        /// Path of the library that is loaded.
        loaded: PathBuf,
        /// Path of the library that was asked for.
        wanted: PathBuf,
    },
}

fn places(looked: &[PathBuf]) -> String {
    let looked: Vec<String> = looked.iter().map(|path| path.display().to_string()).collect();
    looked.join(", ")
}

/// The library and the environment made from it; kept until the process ends, as ONNX Runtime wants it.
static LOADED: Mutex<Option<(PathBuf, Environment)>> = Mutex::new(None);

/// Loads the library at `explicit`, or the first one in the usual places.
pub(super) fn open(explicit: Option<&Path>) -> Result<Environment, OpenError> {
    let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    let path = match (explicit, &*loaded) {
        (None, Some((_, environment))) => return Ok(environment.clone()),
        (explicit, _) => find(explicit)?,
    };
    if let Some((loaded, environment)) = &*loaded {
        let (loaded, wanted) = (loaded.clone(), path);
        return if loaded == wanted { Ok(environment.clone()) } else { Err(OpenError::Other { loaded, wanted }) };
    }
    let unusable = |message: String| OpenError::Unusable { path: path.clone(), message };
    let builder = ort::init_from(&path).map_err(|error| unusable(error.to_string()))?;
    let environment = builder.with_name("berth").with_telemetry(false).with_logger(std::sync::Arc::new(log));
    let environment = environment.build().map_err(|error| unusable(error.to_string()))?;
    environment.set_log_level(LogLevel::Warning);
    super::session::warm(&environment).map_err(|error| unusable(error.to_string()))?;
    tracing::info!(event = "onnx_runtime_loaded", path = %path.display(), "onnx runtime loaded");
    *loaded = Some((path, environment.clone()));
    Ok(environment)
}

/// The library that [`open`] would load, loaded to see that it is usable.
pub(super) fn probe(explicit: Option<&Path>) -> Result<PathBuf, OpenError> {
    open(explicit)?;
    Ok(loaded())
}

/// The file of the library that is loaded; empty: none is.
pub(super) fn loaded() -> PathBuf {
    let loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    loaded.as_ref().map(|(path, _)| path.clone()).unwrap_or_default()
}

/// Passes the library's own words on; its warnings are about models, not about Berth.
fn log(level: LogLevel, category: &str, _id: &str, _place: &str, message: &str) {
    match level {
        LogLevel::Error | LogLevel::Fatal => tracing::warn!(target: "onnxruntime", category, "{message}"),
        LogLevel::Warning => tracing::debug!(target: "onnxruntime", category, "{message}"),
        LogLevel::Info | LogLevel::Verbose => tracing::trace!(target: "onnxruntime", category, "{message}"),
    }
}

fn find(explicit: Option<&Path>) -> Result<PathBuf, OpenError> {
    if let Some(path) = explicit {
        if path.is_file() && path.extension().is_some_and(|ending| ending == "whl") {
            return Err(OpenError::Packed(path.to_owned()));
        }
        let found = if path.is_dir() { in_package(path) } else { path.is_file().then(|| path.to_owned()) };
        return found.map(canonical).ok_or_else(|| OpenError::NotFound(vec![path.to_owned()]));
    }
    let looked = directories();
    match looked.iter().find_map(|directory| in_directory(directory)) {
        Some(path) => Ok(canonical(path)),
        None => Err(OpenError::NotFound(looked)),
    }
}

fn canonical(path: PathBuf) -> PathBuf {
    path.canonicalize().unwrap_or(path)
}

/// The folders that are searched when nobody says where it is, in this order.
fn directories() -> Vec<PathBuf> {
    let mut directories = Vec::new();
    if let Some(beside) = env::current_exe().ok().as_deref().and_then(Path::parent) {
        directories.push(beside.to_owned());
        directories.push(beside.join("../lib/berth"));
        directories.push(beside.join("../lib"));
    }
    if let Some(home) = env::home_dir() {
        directories.push(home.join(".local/share/berth"));
    }
    let machine = format!("/usr/lib/{}-linux-gnu", env::consts::ARCH);
    directories.extend(["/usr/local/lib", &machine, "/usr/lib64", "/usr/lib"].map(PathBuf::from));
    directories
}

/// The library in a folder, or where packages of ONNX Runtime have it: Python's in `capi`, the release's in `lib`.
fn in_package(folder: &Path) -> Option<PathBuf> {
    let below = ["", "capi", "onnxruntime/capi", "lib"];
    below.iter().find_map(|below| in_directory(&folder.join(below)))
}

/// The library in `directory`: the plain name, or the last version by name.
fn in_directory(directory: &Path) -> Option<PathBuf> {
    let plain = directory.join(FILE);
    if plain.is_file() {
        return Some(plain);
    }
    let entries = directory.read_dir().ok()?.flatten();
    let versions = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("libonnxruntime.so."));
    versions.map(|entry| entry.path()).filter(|path| path.is_file()).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_where_it_looked_and_how_to_get_it() {
        let error = open(Some(Path::new("/nonexistent/onnx"))).map(|_| ()).expect_err("there is nothing there");
        let message = error.to_string();
        assert!(message.contains("/nonexistent/onnx") && message.contains("pip install onnxruntime"), "{message}");
        assert!(!message.contains('\n'));
    }

    #[test]
    fn takes_the_folder_of_a_package_and_names_a_wheel() {
        let directory = tempfile::tempdir().expect("a folder");
        let file = directory.path().join("onnxruntime/capi/libonnxruntime.so.1.32.0");
        fs_err::create_dir_all(file.parent().expect("a folder")).expect("made");
        fs_err::write(&file, "").expect("a file");
        for named in ["", "onnxruntime", "onnxruntime/capi"] {
            assert_eq!(find(Some(&directory.path().join(named))), Ok(canonical(file.clone())), "{named}");
        }
        let wheel = directory.path().join("onnxruntime-1.32.0-py3-none-any.whl");
        fs_err::write(&wheel, "").expect("a file");
        assert_eq!(find(Some(&wheel)), Err(OpenError::Packed(wheel)));
    }

    #[test]
    fn prefers_the_plain_name_and_the_last_version() {
        let directory = tempfile::tempdir().expect("a folder");
        for name in ["libonnxruntime.so.1.24.4", "libonnxruntime.so.1.31.1", "libonnxruntime_providers_shared.so"] {
            fs_err::write(directory.path().join(name), "").expect("a file");
        }
        assert_eq!(in_directory(directory.path()), Some(directory.path().join("libonnxruntime.so.1.31.1")));
        fs_err::write(directory.path().join(FILE), "").expect("a file");
        assert_eq!(in_directory(directory.path()), Some(directory.path().join(FILE)));
    }
}
