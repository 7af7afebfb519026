//! A model server that is started for each of its models, and ends with it.
//!
//! ```text
//! load: a turn ─▶ settings of its own (ports, folder) ─▶ program ─▶ READY ─▶ the model, as in a server of many
//!                       ▲                                   └─ it died: another one, up to three
//!                       └──────────── a pause ◀─────────────────┘
//! end:  the model ─▶ the program ─▶ its folder goes
//! ```
//! Each process is a [`SpiRuntime`] of one model, which keeps it.

mod logs;

use std::{
    any::Any,
    fmt,
    path::{Path, PathBuf},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use berth_spec::{FailureCategory, Gpu, Isolation, IsolationOffer, RuntimeInfo};
use fs_err as fs;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use self::logs::Logs;
use super::{OpenError, Process, Protocol, Settings, SpiRuntime, layout, location};
use crate::runtime::{LoadError, LoadRequest, Loaded, Runtime, metrics::Families, process::backoff::Backoff};

/// Processes that start at once: each may read gigabytes.
const PARALLEL_LOADS: usize = 4;

/// Processes that may die before they are ready until their load has failed: one may be bad luck.
const MAX_DEATHS: u32 = 3;

/// The interval at which deaths and cancelled loads are looked for: nobody waits longer for them, and a look costs nothing.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// The time in which a model may be unloaded before its process ends: the end of the process frees its memory, too.
const UNLOAD: Duration = Duration::from_secs(5);

/// For people: what these processes lack.
const OPEN: &str = "this model server runs with the worker's files and network; remove runtime.isolation, or use a format that Berth runs by itself";

type Make = dyn Fn(OneModel<'_>) -> Result<Settings, String> + Send + Sync;

/// The model that a process has to itself.
#[derive(Debug, Clone, Copy)]
pub struct OneModel<'m> {
    /// A name that no other process has.
    pub process: &'m str,
    /// The name by which the process is asked for the model. Its log has it, too.
    pub name: &'m str,
    /// The artifact, and the name of the file or folder that it came from; `None`: the process is told where it is.
    pub artifact: Option<(&'m Path, &'m str)>,
}

/// Makes the settings of one model's process.
#[derive(Clone)]
pub struct SettingsFactory(Arc<Make>);

impl SettingsFactory {
    /// Wraps the function that computes the settings for each model.
    pub fn new(make: impl Fn(OneModel<'_>) -> Result<Settings, String> + Send + Sync + 'static) -> Self {
        Self(Arc::new(make))
    }

    /// The settings of the process for a model.
    ///
    /// # Errors
    /// What the declaration lacks, or this machine.
    pub fn make(&self, one: OneModel<'_>) -> Result<Settings, String> {
        (self.0)(one)
    }
}

impl fmt::Debug for SettingsFactory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SettingsFactory")
    }
}

/// A [`Runtime`] that starts a process of a model server for each model.
pub struct PerModel {
    settings: Settings,
    factory: SettingsFactory,
    gpus: Vec<Gpu>,
    families: Families,
    /// The number of the next process.
    next: AtomicU64,
    turns: StartLimit,
    logs: Arc<Logs>,
}

impl PerModel {
    /// Declares it; nothing is started before there is a model. `gpus` are those of the worker.
    #[must_use]
    pub fn new(settings: Settings, factory: SettingsFactory, gpus: Vec<Gpu>, families: Families) -> Self {
        if let Protocol::V2(repository) | Protocol::TensorFlow(repository) = &settings.protocol
            && repository.owned
        {
            // Of processes of an earlier run. What cannot be removed is not used again.
            let _ = fs::remove_dir_all(&repository.folder);
        }
        let folder = settings.program.as_ref().and_then(|program| program.log.parent());
        let logs = folder.map(|folder| Logs::find(folder, &format!("{}@", settings.name)));
        let (turns, logs) = (StartLimit::default(), Arc::new(logs.unwrap_or_default()));
        let next = AtomicU64::new(first_number(SystemTime::now()));
        Self { settings, factory, gpus, families, next, turns, logs }
    }

    /// Processes that it starts at once.
    #[must_use]
    pub fn parallel_loads(&self) -> usize {
        PARALLEL_LOADS
    }

    /// The settings of the process for a model, and what it has to itself. It sees the GPUs that the model was given; one that asks for
    /// none sees all, as in a server of many models.
    fn of_model(&self, request: &LoadRequest) -> Result<(Settings, OwnFiles), LoadError> {
        let id = &request.revision.id;
        let number = self.next.fetch_add(1, Relaxed);
        let process = format!("{}.{number}", layout::safe(&id.to_string()));
        let name = layout::safe(id.deployment().as_str());
        let asked = match &self.settings.protocol {
            Protocol::Spi => None,
            Protocol::V2(_) | Protocol::TensorFlow(_) => Some(location::named(request, &name)?),
        };
        let file = asked.as_ref().map(|asked| layout::plain(&asked.model_key)).unwrap_or_default();
        let artifact = asked.as_ref().map(|asked| (Path::new(&asked.model_path), file.as_str()));
        let made = self.factory.make(OneModel { process: &process, name: &name, artifact });
        let made = made.map_err(|why| LoadError::new(FailureCategory::Runtime, why))?;
        let is_given = |gpu: &&Gpu| request.devices.iter().any(|device| **device == *gpu.id);
        let given: Vec<Gpu> = self.gpus.iter().filter(is_given).cloned().collect();
        let seen = if given.is_empty() { &self.gpus } else { &given };
        let settings = Settings { program: made.program.map(|program| program.with_gpus(seen)), ..made };
        let own = OwnFiles::of(&settings, Arc::clone(&self.logs), request.pin.clone());
        Ok((settings, own))
    }

    /// Starts a process for a model, and waits until it is ready. After one that died comes another one with ports of its own: somebody else
    /// may have taken those of the first before it had them.
    fn start(&self, request: &LoadRequest) -> Result<SpiRuntime, LoadError> {
        let mut backoff = Backoff::default();
        while !request.cancel.is_cancelled() {
            let (settings, own) = self.of_model(request)?;
            let opened = SpiRuntime::open_within(settings, self.families.clone(), Some((&request.cancel, own)));
            let error = match opened {
                Ok(runtime) => return Ok(runtime),
                Err(error) => error,
            };
            let pause = backoff.after(Duration::ZERO);
            let category = match error {
                _ if request.cancel.is_cancelled() => break,
                OpenError::Dies { .. } if backoff.in_a_row() < MAX_DEATHS => {
                    wait(pause, &request.cancel);
                    continue;
                }
                OpenError::NotReady { .. } => FailureCategory::Timeout,
                _ => FailureCategory::Runtime,
            };
            return Err(LoadError::new(category, error.to_string()));
        }
        Err(given_up())
    }
}

/// The number of the first process of a run: milliseconds, as no run starts so many that the next one would have a number again. A
/// process of an earlier run may have outlived it, with its socket.
fn first_number(started: SystemTime) -> u64 {
    let since = started.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or_default()
}

fn given_up() -> LoadError {
    LoadError::new(FailureCategory::Internal, "the load was given up")
}

/// Waits for as long as a load is wanted. Blocks.
fn wait(time: Duration, cancel: &CancellationToken) {
    let end = Instant::now() + time;
    while Instant::now() < end && !cancel.is_cancelled() {
        std::thread::sleep(POLL_INTERVAL.min(time));
    }
}

impl Runtime for PerModel {
    fn info(&self) -> RuntimeInfo {
        RuntimeInfo {
            name: self.settings.name.clone(),
            formats: self.settings.formats.clone(),
            labels: self.settings.labels.clone(),
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
        let _turn = self.turns.take(&request.cancel).ok_or_else(given_up)?;
        self.start(request)?.load(request)
    }
}

/// Turns to load: [`PARALLEL_LOADS`] at once.
#[derive(Default)]
struct StartLimit {
    taken: Mutex<usize>,
    given_back: Condvar,
}

/// One of the turns of a [`StartLimit`].
struct StartPermit<'t>(&'t StartLimit);

impl StartLimit {
    /// Waits for a turn, as long as it is wanted. Blocks.
    fn take(&self, cancel: &CancellationToken) -> Option<StartPermit<'_>> {
        let mut taken = self.taken();
        while *taken >= PARALLEL_LOADS {
            if cancel.is_cancelled() {
                return None;
            }
            taken = self.given_back.wait_timeout(taken, POLL_INTERVAL).unwrap_or_else(PoisonError::into_inner).0;
        }
        *taken += 1;
        Some(StartPermit(self))
    }

    fn taken(&self) -> MutexGuard<'_, usize> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for StartPermit<'_> {
    fn drop(&mut self) {
        *self.0.taken() -= 1;
        self.0.given_back.notify_one();
    }
}

/// Waits until a process is ready, as long as it is wanted. `None`: it is not.
///
/// # Errors
/// As of `ready`; or its program has died.
pub(super) async fn awaited<T>(
    ready: impl Future<Output = Result<T, OpenError>>,
    cancel: &CancellationToken,
    deaths: &AtomicU32,
    name: &str,
) -> Option<Result<T, OpenError>> {
    let dies = async {
        while deaths.load(Relaxed) == 0 {
            sleep(POLL_INTERVAL).await;
        }
    };
    tokio::select! {
        biased;
        found = ready => Some(found),
        () = cancel.cancelled() => None,
        () = dies => Some(Err(OpenError::Dies { name: name.to_owned(), words: String::new() })),
    }
}

/// Files that a process of one model has to itself; they go when this is dropped, after its end.
pub(super) struct OwnFiles {
    folder: Option<PathBuf>,
    log: Option<PathBuf>,
    logs: Arc<Logs>,
    /// Keeps the artifact, which the process reads again when it is started again.
    _pin: Option<Arc<dyn Any + Send + Sync>>,
}

impl OwnFiles {
    fn of(settings: &Settings, logs: Arc<Logs>, pin: Option<Arc<dyn Any + Send + Sync>>) -> Self {
        let folder = match &settings.protocol {
            Protocol::V2(repository) | Protocol::TensorFlow(repository) if repository.owned => {
                Some(repository.folder.clone())
            }
            _ => None,
        };
        let log = settings.program.as_ref().map(|program| program.log.clone());
        if let Some(log) = &log {
            logs.begin(log);
        }
        Self { folder, log, logs, _pin: pin }
    }
}

impl Drop for OwnFiles {
    fn drop(&mut self) {
        if let Some(folder) = &self.folder {
            // The next start of the worker removes it else.
            let _ = fs::remove_dir_all(folder);
        }
        if let Some(log) = &self.log {
            self.logs.end(log);
        }
    }
}

impl Process {
    /// Unloads the one model of this process, and ends the process.
    pub(super) async fn end_with(&self, id: &str) {
        // It ends whatever it answers.
        let _ = timeout(UNLOAD, self.control.unload(id)).await;
        let running = std::mem::take(&mut *self.running.lock().unwrap_or_else(PoisonError::into_inner));
        let _ = tokio::task::spawn_blocking(move || drop(running)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first model of each run had a process of the same name, and so the socket and the folder of one that was still there.
    #[test]
    fn two_runs_number_their_processes_differently() {
        let run = |seconds: u64| first_number(UNIX_EPOCH + Duration::from_secs(seconds));
        assert!(run(1_800_000_001) >= run(1_800_000_000) + 1_000);
    }

    #[test]
    fn so_many_load_at_once() {
        let (turns, cancel) = (StartLimit::default(), CancellationToken::new());
        let mut all: Vec<_> = (0..PARALLEL_LOADS).filter_map(|_| turns.take(&cancel)).collect();
        assert_eq!(all.len(), PARALLEL_LOADS);
        std::thread::scope(|scope| {
            let next = scope.spawn(|| turns.take(&cancel).is_some());
            drop(all.pop());
            assert!(next.join().expect("it ends"), "one has ended");
        });
        let again = turns.take(&cancel);
        cancel.cancel();
        assert!(again.is_some() && turns.take(&cancel).is_none(), "nobody waits for it any more");
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_is_awaited_as_long_as_it_is_wanted_and_may_yet_come_up() {
        let (cancel, deaths) = (CancellationToken::new(), Arc::<AtomicU32>::default());
        let found = awaited(async { Ok(7) }, &cancel, &deaths, "one").await;
        assert!(matches!(found, Some(Ok(7))));
        let late = async {
            sleep(POLL_INTERVAL * 3).await;
            deaths.fetch_add(1, Relaxed);
            std::future::pending::<Result<(), OpenError>>().await
        };
        let died = awaited(late, &cancel, &deaths, "one").await;
        assert!(matches!(died, Some(Err(OpenError::Dies { name, .. })) if name == "one"));
        deaths.store(0, Relaxed);
        cancel.cancel();
        assert!(awaited(std::future::pending::<Result<(), OpenError>>(), &cancel, &deaths, "one").await.is_none());
    }
}
