//! The program of a card's model: a Python interpreter, its environment, and the model that it is told to load.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use berth_spec::{DeploymentName, FailureCategory, PinnedCard};

use crate::{
    prepare::Prepared,
    runtime::{
        LoadError, LoadRequest,
        process::{
            message::{Limits, Load},
            plan::{Executable, Program},
        },
    },
};

/// Python before this cannot run what we run in the model's process.
const OLDEST: (u32, u32) = (3, 8);

/// The variables from which libraries read the number of their threads.
const THREADS: [&str; 7] = [
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "RAYON_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
];

/// A card's model in an interpreter.
pub(super) struct Interpreter {
    deployment: DeploymentName,
    /// The folder of the package `berth`.
    package: PathBuf,
    /// Kept there by whoever prepared it, as its code and environment are.
    artifact: PathBuf,
    card: Arc<PinnedCard>,
    prepared: Arc<Prepared>,
    /// The value of `CUDA_VISIBLE_DEVICES`: the devices that it was given; empty if it has none.
    devices: String,
    arrays: Vec<String>,
}

impl Interpreter {
    /// Takes everything that a process needs, so that it can be started again.
    pub(super) fn new(request: &LoadRequest, package: &Path, arrays: &[&str]) -> Result<Self, LoadError> {
        let internal = |message: &str| LoadError::new(FailureCategory::Internal, message);
        let card = request.revision.card.clone().ok_or_else(|| internal("a Python model without its card"))?;
        let prepared = request.prepared.clone().ok_or_else(|| internal("a Python model that was not prepared"))?;
        check_version(&card.card.runtime.python_version)?;
        let disk = |error: io::Error| LoadError::new(FailureCategory::Disk, format!("the model's files: {error}"));
        // The process has another folder than we.
        let artifact = std::path::absolute(request.artifact.path().map_err(|fault| internal(&fault))?).map_err(disk)?;
        Ok(Self {
            deployment: request.serving.deployment.clone(),
            package: package.to_owned(),
            artifact,
            card,
            prepared,
            devices: request.devices.join(","),
            arrays: arrays.iter().map(|&name| name.to_owned()).collect(),
        })
    }
}

impl Program for Interpreter {
    fn name(&self) -> &'static str {
        "the model's Python"
    }

    fn executable(&self) -> Executable<'_> {
        Executable::File { path: &self.prepared.python, arguments: &["-s", "-m", "berth.host"] }
    }

    fn readable(&self) -> Vec<PathBuf> {
        let mut readable = vec![self.package.clone(), self.prepared.code.clone(), self.artifact.clone()];
        readable.extend(self.prepared.config.clone());
        readable.extend(prefixes(&self.prepared.python));
        readable
    }

    fn has_devices(&self) -> bool {
        !self.devices.is_empty()
    }

    fn environment(&self, scratch: &Path) -> Vec<(&'static str, String)> {
        let bin = self.prepared.python.parent().unwrap_or(Path::new("/usr/bin"));
        let cpus = self.card.card.resources.as_ref().map(|resources| resources.cpu);
        let threads = cpus.map_or(1, |cpus| cpus.ceil().max(1.0) as u32).to_string();
        let scratch = scratch.display().to_string();
        let mut environment = vec![
            ("PATH", format!("{}:/usr/local/bin:/usr/bin:/bin", bin.display())),
            ("HOME", scratch.clone()),
            ("TMPDIR", scratch),
            ("LANG", "C.UTF-8".to_owned()),
            ("PYTHONPATH", self.package.display().to_string()),
            ("PYTHONNOUSERSITE", "1".to_owned()),
            ("PYTHONUNBUFFERED", "1".to_owned()),
            ("PYTHONUTF8", "1".to_owned()),
            // What Python says of itself when native code crashes.
            ("PYTHONFAULTHANDLER", "1".to_owned()),
            ("BERTH_DEPLOYMENT", self.deployment.to_string()),
            ("BERTH_MODEL_VERSION", self.card.card.metadata.version.clone()),
            ("TOKENIZERS_PARALLELISM", "false".to_owned()),
        ];
        for name in THREADS {
            environment.push((name, threads.clone()));
        }
        environment.push(("CUDA_VISIBLE_DEVICES", self.devices.clone()));
        environment
    }

    fn load(&self, limits: Limits<'_>) -> io::Result<Vec<u8>> {
        let card = &self.card.card;
        let load = Load {
            limits,
            code: self.prepared.code.to_str().unwrap_or_default(),
            path: &card.code.path,
            framework: card.runtime.framework.as_str(),
            entrypoint: card.code.entrypoint.as_deref(),
            model_path: self.artifact.to_str().unwrap_or_default(),
            config_path: self.prepared.config.as_deref().and_then(Path::to_str),
            preprocessing: &card.preprocessing,
            postprocessing: &card.postprocessing,
            batch_size: card.interface.batch_size.unwrap_or(1).max(1),
            arrays: self.arrays.iter().map(String::as_str).collect(),
        };
        Ok(serde_json::to_vec(&load)?)
    }
}

fn check_version(version: &str) -> Result<(), LoadError> {
    let mut parts = version.split('.').map(|part| part.parse::<u32>().ok());
    match (parts.next().flatten(), parts.next().flatten()) {
        (Some(major), Some(minor)) if (major, minor) < OLDEST => {
            let (least_major, least_minor) = OLDEST;
            let message = format!(
                "runtime.python_version {version} is too old: models are run with Python {least_major}.{least_minor} or later"
            );
            Err(LoadError::new(FailureCategory::Dependencies, message))
        }
        _ => Ok(()),
    }
}

/// The folders of an interpreter: of an environment, those of the Python that it was made with, too.
#[must_use]
pub fn prefixes(python: &Path) -> Vec<PathBuf> {
    /// An environment's link, a version's link, and the file: more is a circle.
    const LINKS: usize = 8;
    let mut found = Vec::new();
    let mut at = python.to_owned();
    for _ in 0..LINKS {
        found.extend(at.parent().and_then(Path::parent).map(Path::to_owned));
        let Ok(target) = fs_err::read_link(&at) else { break };
        at = at.parent().unwrap_or(Path::new("/")).join(target);
    }
    let real = fs_err::canonicalize(python).ok();
    found.extend(real.as_deref().and_then(Path::parent).and_then(Path::parent).map(Path::to_owned));
    // `/bin/python3` is a part of the system.
    found.retain(|prefix| prefix.components().count() > 1);
    found
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn an_environment_stands_on_the_python_that_made_it() {
        let root = tempfile::tempdir().expect("a folder");
        let at = |path: &str| root.path().join(path);
        for folder in ["env/bin", "pythons/3.12.1/bin"] {
            fs_err::create_dir_all(at(folder)).expect("made");
        }
        fs_err::write(at("pythons/3.12.1/bin/python3.12"), "").expect("written");
        symlink("3.12.1", at("pythons/3.12")).expect("linked");
        symlink(at("pythons/3.12/bin/python3.12"), at("env/bin/python")).expect("linked");
        let found = prefixes(&at("env/bin/python"));
        for expected in ["env", "pythons/3.12", "pythons/3.12.1"] {
            assert!(found.contains(&at(expected)), "{expected}: {found:?}");
        }
        assert!(prefixes(Path::new("/python")).is_empty());
    }
}
