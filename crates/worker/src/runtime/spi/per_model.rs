//! A model server that is started for each of its models, and ends with it.
//!
//! ```text
//! load: settings of its own (ports, folder) ─▶ program ─▶ READY ─▶ the model, as in a server of many
//! end:  the model ─▶ the program ─▶ its folder goes
//! ```
//! Each process is a [`SpiRuntime`] of one model, which keeps it.

use std::{
    fmt,
    path::PathBuf,
    sync::{
        Arc, PoisonError,
        atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use berth_spec::{FailureCategory, Gpu, Isolation, IsolationOffer, RuntimeInfo};
use fs_err as fs;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::{OpenError, Process, Protocol, Settings, SpiRuntime, layout};
use crate::runtime::{LoadError, LoadRequest, Loaded, Runtime, metrics::Families};

/// Processes that start at once: each may read gigabytes.
const STARTS: usize = 4;

/// Deaths of a program before it was ready after which its load has failed: one may be bad luck.
const DEATHS: u32 = 3;

/// The interval at which deaths are looked for: requests meet a dead process no longer than that, and a look costs nothing.
const LOOK: Duration = Duration::from_millis(200);

/// The time in which a model may be unloaded before its process ends.
const UNLOAD: Duration = Duration::from_secs(5);

/// For people: what these processes lack.
const OPEN: &str = "this model server runs with the worker's files and network; remove runtime.isolation, or use a format that Berth runs by itself";

type Make = dyn Fn(&str, &str) -> Result<Settings, String> + Send + Sync;

/// Makes the settings of one model's process, from a name that no other process has, and the name of its log.
#[derive(Clone)]
pub struct Each(Arc<Make>);

impl Each {
    /// Makes them by a function.
    pub fn new(make: impl Fn(&str, &str) -> Result<Settings, String> + Send + Sync + 'static) -> Self {
        Self(Arc::new(make))
    }

    /// The settings of a process with this name, and a log of that.
    ///
    /// # Errors
    /// What the declaration lacks, or this machine.
    pub fn make(&self, name: &str, log: &str) -> Result<Settings, String> {
        (self.0)(name, log)
    }
}

impl fmt::Debug for Each {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Each")
    }
}

/// The runtime.
pub struct PerModel {
    settings: Settings,
    each: Each,
    gpus: Vec<Gpu>,
    families: Families,
    /// Processes so far.
    started: AtomicU64,
}

impl PerModel {
    /// Declares it; nothing is started before there is a model. `gpus` are those of the worker.
    #[must_use]
    pub fn new(settings: Settings, each: Each, gpus: Vec<Gpu>, families: Families) -> Self {
        if let Protocol::V2(repository) | Protocol::TensorFlow(repository) = &settings.protocol
            && repository.owned
        {
            // Of processes of an earlier run. What cannot be removed is not used again.
            let _ = fs::remove_dir_all(&repository.folder);
        }
        Self { settings, each, gpus, families, started: AtomicU64::new(0) }
    }

    /// Loads at once that it takes.
    #[must_use]
    pub fn parallel_loads(&self) -> usize {
        STARTS
    }

    /// The settings of the process for a model. It sees the GPUs that the model was given; one that asks for none sees all, as in a
    /// server of many models.
    fn of_model(&self, request: &LoadRequest) -> Result<Settings, LoadError> {
        let id = &request.revision.id;
        let number = self.started.fetch_add(1, Relaxed);
        let name = format!("{}.{number}", layout::safe(&id.to_string()));
        let log = layout::safe(id.deployment().as_str());
        let made = self.each.make(&name, &log).map_err(|why| LoadError::new(FailureCategory::Runtime, why))?;
        let is_given = |gpu: &&Gpu| request.devices.iter().any(|device| **device == *gpu.id);
        let given: Vec<Gpu> = self.gpus.iter().filter(is_given).cloned().collect();
        let seen = if given.is_empty() { &self.gpus } else { &given };
        Ok(Settings { program: made.program.map(|program| program.with_gpus(seen)), ..made })
    }
}

impl Runtime for PerModel {
    fn info(&self) -> RuntimeInfo {
        RuntimeInfo {
            name: self.settings.name.clone(),
            formats: self.settings.formats.clone(),
            memory: self.settings.memory,
            max_models: self.settings.max_models,
            device_memory: self.settings.device_memory,
            default_size: None,
            isolation: Some(IsolationOffer { most: Isolation::None, lacks: OPEN.to_owned() }),
        }
    }

    fn is_interruptible(&self) -> bool {
        true
    }

    fn bounds_loads(&self) -> bool {
        true
    }

    fn load(&self, request: &LoadRequest) -> Result<Loaded, LoadError> {
        if let Some(asked) = request.revision.runtime.isolation.filter(|asked| *asked > Isolation::None) {
            let message = format!("the deployment asks for runtime.isolation {:?}: {OPEN}", asked.as_str());
            return Err(LoadError::new(FailureCategory::Runtime, message));
        }
        let settings = self.of_model(request)?;
        let folder = OwnFolder::of(&settings);
        let opened = SpiRuntime::open_within(settings, self.families.clone(), Some(&request.cancel));
        let runtime = opened.map_err(|error| {
            folder.remove();
            let category = match error {
                _ if request.cancel.is_cancelled() => {
                    return LoadError::new(FailureCategory::Internal, "the load was given up");
                }
                OpenError::NotReady { .. } => FailureCategory::Timeout,
                _ => FailureCategory::Runtime,
            };
            LoadError::new(category, error.to_string())
        })?;
        runtime.load(request)
    }
}

/// Waits until a process is ready, as long as it is wanted. `None`: it is not.
///
/// # Errors
/// As of `ready`; or its program dies again and again.
pub(super) async fn awaited<T>(
    ready: impl Future<Output = Result<T, OpenError>>,
    (cancel, deaths): (CancellationToken, Arc<AtomicU32>),
    name: &str,
) -> Option<Result<T, OpenError>> {
    let dies = async {
        while deaths.load(Relaxed) < DEATHS {
            sleep(LOOK).await;
        }
    };
    tokio::select! {
        biased;
        found = ready => Some(found),
        () = cancel.cancelled() => None,
        () = dies => Some(Err(OpenError::Dies { name: name.to_owned(), words: String::new() })),
    }
}

/// The folder of one model's process.
#[derive(Debug, Clone, Default)]
pub(super) struct OwnFolder(Option<PathBuf>);

impl OwnFolder {
    pub(super) fn of(settings: &Settings) -> Self {
        match &settings.protocol {
            Protocol::V2(repository) | Protocol::TensorFlow(repository) if repository.owned => {
                Self(Some(repository.folder.clone()))
            }
            _ => Self(None),
        }
    }

    /// Removes it, with what is in it. Blocks.
    fn remove(&self) {
        if let Some(folder) = &self.0 {
            // The next start of the worker removes it else.
            let _ = fs::remove_dir_all(folder);
        }
    }
}

impl Process {
    /// Unloads the one model of this process, and ends the process.
    pub(super) async fn end_with(&self, id: &str, folder: &OwnFolder) {
        // It ends whatever it answers.
        let _ = timeout(UNLOAD, self.control.unload(id)).await;
        let program = self.program.lock().unwrap_or_else(PoisonError::into_inner).take();
        let folder = folder.clone();
        let ended = tokio::task::spawn_blocking(move || {
            drop(program);
            folder.remove();
        });
        let _ = ended.await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_process_is_awaited_as_long_as_it_is_wanted_and_may_yet_come_up() {
        let (cancel, deaths) = (CancellationToken::new(), Arc::new(AtomicU32::new(DEATHS - 1)));
        let both = || (cancel.clone(), Arc::clone(&deaths));
        let found = awaited(async { Ok(7) }, both(), "one").await;
        assert!(matches!(found, Some(Ok(7))));
        let late = async {
            sleep(LOOK * 3).await;
            deaths.fetch_add(1, Relaxed);
            std::future::pending::<Result<(), OpenError>>().await
        };
        let died = awaited(late, both(), "one").await;
        assert!(matches!(died, Some(Err(OpenError::Dies { name, .. })) if name == "one"));
        deaths.store(0, Relaxed);
        cancel.cancel();
        assert!(awaited(std::future::pending::<Result<(), OpenError>>(), both(), "one").await.is_none());
    }
}
