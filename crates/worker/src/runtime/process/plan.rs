//! The start of a model's process: everything that stays the same from one process of it to the next.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use berth_sandbox::User;
use berth_spec::{ByteSize, DeploymentName, FailureCategory};
use tokio_util::sync::CancellationToken;

use super::{Processes, isolation::Confinement, message::Limits};
use crate::runtime::{LoadError, LoadRequest};

/// The file that a process runs.
#[derive(Debug, Clone, Copy)]
pub(in crate::runtime) enum Executable<'a> {
    /// Another program.
    File {
        /// Path of the executable.
        path: &'a Path,
        arguments: &'a [&'a str],
    },
    /// This program, which goes on with what has this name once it is confined. Needs the launcher.
    Own(&'static str),
}

/// The program that holds a model: how it is started, and how it is told what to load.
pub(in crate::runtime) trait Program: Send + Sync + 'static {
    /// Its name in messages.
    fn name(&self) -> &'static str;

    /// The file that is run.
    fn executable(&self) -> Executable<'_>;

    /// Files and folders that it reads, beside those of the system.
    fn readable(&self) -> Vec<PathBuf>;

    /// All of its environment: nothing of ours is handed on.
    fn environment(&self, scratch: &Path) -> Vec<(&'static str, String)>;

    /// The head of the frame that tells it what to load.
    ///
    /// # Errors
    /// If what it loads is not what it was.
    fn load(&self, limits: Limits<'_>) -> io::Result<Vec<u8>>;

    /// The kind of failure where the process ends while it loads.
    fn fails_as(&self) -> FailureCategory {
        FailureCategory::Code
    }

    /// True if it was given GPUs.
    fn has_devices(&self) -> bool {
        false
    }

    /// True if a run can be stopped by a frame.
    fn stops_runs(&self) -> bool {
        false
    }

    /// True if runs are counted where they are answered; else whoever sends them does.
    fn is_counted(&self) -> bool {
        true
    }
}

/// Memory and processors that the processes of a model may take together.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::runtime) struct Bounds {
    pub(in crate::runtime) memory: Option<ByteSize>,
    /// Processors, in fractions of one; `None`: no limit.
    pub(in crate::runtime) cpus: Option<f32>,
}

/// All that starting a process of one replica takes, again and again: program, bounds, isolation, folder.
pub(in crate::runtime) struct Plan {
    pub(in crate::runtime) deployment: DeploymentName,
    pub(in crate::runtime) bounds: Bounds,
    pub(in crate::runtime) program: Box<dyn Program>,
    pub(in crate::runtime) processes: Arc<Processes>,
    pub(in crate::runtime) confinement: Confinement,
    /// The user that its processes have, where they have one of their own.
    pub(in crate::runtime) user: User,
    /// The folder of this replica, removed with it.
    home: PathBuf,
    cancel: CancellationToken,
    starts: AtomicU64,
}

impl Plan {
    /// A plan for the processes of one replica.
    pub(in crate::runtime) fn new(
        request: &LoadRequest,
        processes: &Arc<Processes>,
        confinement: Confinement,
        bounds: Bounds,
        program: Box<dyn Program>,
    ) -> Result<Self, LoadError> {
        let disk = |error: io::Error| LoadError::new(FailureCategory::Disk, format!("the replica's folder: {error}"));
        fs_err::create_dir_all(&processes.runs).map_err(disk)?;
        Ok(Self {
            deployment: request.serving.deployment.clone(),
            bounds,
            program,
            confinement,
            user: processes.isolator.user(),
            home: unused(&processes.runs).map_err(disk)?,
            processes: Arc::clone(processes),
            cancel: request.cancel.clone(),
            starts: AtomicU64::new(0),
        })
    }

    /// The bound on the memory of its processes together; `None`: there is none.
    pub(in crate::runtime) fn memory(&self) -> Option<ByteSize> {
        self.bounds.memory
    }

    /// Cancelled when nobody wants the model any more.
    pub(in crate::runtime) fn given_up(&self) -> &CancellationToken {
        &self.cancel
    }

    /// Makes an empty folder for the files of one process; it goes with the replica's folder at the latest.
    pub(in crate::runtime) fn scratch(&self) -> io::Result<PathBuf> {
        let number = self.starts.fetch_add(1, Ordering::Relaxed);
        let scratch = self.home.join(format!("scratch-{number}"));
        fs_err::create_dir(&scratch)?;
        Ok(scratch)
    }
}

impl Drop for Plan {
    fn drop(&mut self) {
        if let Err(error) = fs_err::remove_dir_all(&self.home) {
            tracing::warn!(event = "replica_folder_not_removed", %error);
        }
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
pub(in crate::runtime) fn sweep(runs: &Path) {
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
