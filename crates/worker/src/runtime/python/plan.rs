//! The start of a card's model: everything that stays the same from one process of it to the next.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use berth_spec::{ByteSize, DeploymentName, FailureCategory, PinnedCard};

use tokio_util::sync::CancellationToken;

use super::{
    isolation::{self, Isolator},
    message::{Limits, Load},
};
use crate::{
    prepare::Prepared,
    runtime::{LoadError, LoadRequest},
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

/// The instructions for starting it.
pub(super) struct Plan {
    pub(super) deployment: DeploymentName,
    pub(super) python: PathBuf,
    pub(super) memory: Option<ByteSize>,
    pub(super) cpus: Option<f32>,
    /// The folder of the package `berth`.
    package: PathBuf,
    /// The folder of this replica, removed with it.
    home: PathBuf,
    /// Kept there by whoever prepared it, as its code and environment are.
    artifact: PathBuf,
    card: Arc<PinnedCard>,
    prepared: Arc<Prepared>,
    /// The value of `CUDA_VISIBLE_DEVICES`: the devices that it was given; empty if it has none.
    devices: String,
    cancel: CancellationToken,
    arrays: Vec<String>,
    starts: AtomicU64,
    pub(super) isolator: Arc<Isolator>,
    /// The user that its processes have, where they have one of their own.
    pub(super) user: u32,
}

impl Plan {
    /// Takes everything that a process needs, so that it can be started again.
    pub(super) fn new(
        request: &LoadRequest,
        package: &Path,
        runs: &Path,
        arrays: &[&str],
        isolator: &Arc<Isolator>,
    ) -> Result<Self, LoadError> {
        let revision = &request.revision;
        let internal = |message: &str| LoadError::new(FailureCategory::Internal, message);
        let card = revision.card.clone().ok_or_else(|| internal("a Python model without its card"))?;
        let prepared = request.prepared.clone().ok_or_else(|| internal("a Python model that was not prepared"))?;
        check_version(&card.card.runtime.python_version)?;
        let disk = |error: io::Error| LoadError::new(FailureCategory::Disk, format!("the replica's folder: {error}"));
        fs_err::create_dir_all(runs).map_err(disk)?;
        let home = unused(runs).map_err(disk)?;
        // The process has another folder than we.
        let artifact = std::path::absolute(request.artifact.path().map_err(|fault| internal(&fault))?).map_err(disk)?;
        Ok(Self {
            deployment: request.serving.deployment.clone(),
            python: prepared.python.clone(),
            memory: card.card.resources.as_ref().and_then(|resources| resources.memory_bytes()).or(revision.memory),
            cpus: card.card.resources.as_ref().map(|resources| resources.cpu),
            package: package.to_owned(),
            home,
            artifact,
            card,
            prepared,
            devices: request.devices.join(","),
            cancel: request.cancel.clone(),
            arrays: arrays.iter().map(|&name| name.to_owned()).collect(),
            starts: AtomicU64::new(0),
            isolator: Arc::clone(isolator),
            user: isolator.user(),
        })
    }

    /// Cancelled when nobody wants the model any more.
    pub(super) fn given_up(&self) -> &CancellationToken {
        &self.cancel
    }

    /// An empty folder for one process.
    pub(super) fn scratch(&self) -> io::Result<PathBuf> {
        let number = self.starts.fetch_add(1, Ordering::Relaxed);
        let scratch = self.home.join(format!("scratch-{number}"));
        fs_err::create_dir(&scratch)?;
        Ok(scratch)
    }

    /// Files and folders that a process reads: its package, its code, its environment and its weights.
    pub(super) fn readable(&self) -> Vec<PathBuf> {
        let mut readable = vec![self.package.clone(), self.prepared.code.clone(), self.artifact.clone()];
        readable.extend(self.prepared.config.clone());
        readable.extend(isolation::prefixes(&self.python));
        readable
    }

    /// True if it was given GPUs.
    pub(super) fn has_devices(&self) -> bool {
        !self.devices.is_empty()
    }

    /// All of a process's environment: nothing of ours is handed on.
    pub(super) fn environment(&self, scratch: &Path) -> Vec<(&'static str, String)> {
        let bin = self.python.parent().unwrap_or(Path::new("/usr/bin"));
        let threads = self.cpus.map_or(1, |cpus| cpus.ceil().max(1.0) as u32).to_string();
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

    /// The load command for a process.
    pub(super) fn load<'a>(&'a self, limits: Limits<'a>) -> Load<'a> {
        let card = &self.card.card;
        Load {
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
        }
    }
}

impl Drop for Plan {
    fn drop(&mut self) {
        if let Err(error) = fs_err::remove_dir_all(&self.home) {
            tracing::warn!(event = "replica_folder_not_removed", %error);
        }
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

/// A folder of this process that is not there yet.
fn unused(runs: &Path) -> io::Result<PathBuf> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let home = runs.join(format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
    match fs_err::remove_dir_all(&home) {
        // Of an earlier process that happened to have the same number.
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    fs_err::create_dir(&home)?;
    Ok(home)
}

/// Removes the folders of processes that are gone. Called before this one has any: what has its number is of an earlier
/// one, as in a container, where all have the same.
pub(super) fn sweep(runs: &Path) {
    let Ok(entries) = fs_err::read_dir(runs) else { return };
    for entry in entries.flatten() {
        let owner = entry.file_name().to_string_lossy().split('-').next().and_then(|owner| owner.parse::<u32>().ok());
        if owner.is_some_and(|owner| owner == std::process::id() || !Path::new(&format!("/proc/{owner}")).exists()) {
            // What is left behind costs disk, nothing else.
            let _ = fs_err::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_of_others_is_swept_and_what_is_in_use_stays() {
        let runs = tempfile::tempdir().expect("a folder");
        let parent = std::os::unix::process::parent_id();
        // No process has the second number: it is above what the kernel gives.
        let names =
            [format!("{}-0", std::process::id()), "4194305-3".to_owned(), format!("{parent}-1"), "x".to_owned()];
        for name in &names {
            fs_err::create_dir(runs.path().join(name)).expect("made");
        }
        sweep(runs.path());
        let there = names.iter().map(|name| runs.path().join(name).exists());
        assert_eq!(there.collect::<Vec<_>>(), [false, false, true, true]);
    }
}
