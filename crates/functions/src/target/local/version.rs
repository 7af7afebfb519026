//! One deployed version of a function: its line of requests, and its process while there is one.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use berth_spec::Time;
use berth_worker::{cgroup::CgroupParents, prepare::Toolchain};
use bytes::Bytes;
use serde_json::Value;
use tokio::sync::Semaphore;

use super::{
    answer::refused,
    instance::{CallError, Instance, Start},
    record::Record,
};
use crate::{
    build::{Bubblewrap, BuildError, BuildLog},
    status::Revision,
};

/// Requests that may wait for each that may run: a burst is taken, an overload is shed.
const WAITING: usize = 32;

/// The longest start: a large framework is imported from a cold disk.
const START: Duration = Duration::from_secs(120);

/// Pause after a start that failed, so that a function that dies at once does not take a processor.
const AFTER_FAILURE: Duration = Duration::from_secs(2);

/// Programs and limits of processes.
#[derive(Debug, Clone)]
pub(super) struct Launcher {
    pub(super) toolchain: Arc<Toolchain>,
    pub(super) parents: CgroupParents,
    /// Without it, processes see what this one sees.
    pub(super) bubblewrap: Arc<Bubblewrap>,
}

/// A deployed version.
#[derive(Debug)]
pub(super) struct Version {
    record: Record,
    /// Spec and generation, which a record of an earlier version of Berth lacks.
    noted: OnceLock<Revision>,
    folder: PathBuf,
    launcher: Launcher,
    permits: Semaphore,
    inside: AtomicUsize,
    instance: tokio::sync::Mutex<Option<Arc<Instance>>>,
    /// The same, to look at without waiting.
    seen: Mutex<Seen>,
    log: Mutex<Option<Arc<BuildLog>>>,
    /// Its files stay when it goes: the process ends, and another one takes them up.
    kept: AtomicBool,
}

#[derive(Debug)]
struct Seen {
    used: Instant,
    running: bool,
    failed: Option<(Instant, String)>,
}

impl Version {
    pub(super) fn new(record: Record, folder: PathBuf, launcher: Launcher) -> Self {
        Self {
            permits: Semaphore::new(record.limits.concurrency),
            kept: AtomicBool::new(Record::read(&folder).is_some()),
            record,
            noted: OnceLock::new(),
            folder,
            launcher,
            inside: AtomicUsize::new(0),
            instance: tokio::sync::Mutex::default(),
            seen: Mutex::new(Seen { used: Instant::now(), running: false, failed: None }),
            log: Mutex::default(),
        }
    }

    pub(super) fn record(&self) -> &Record {
        &self.record
    }

    /// Its spec, as far as it is known.
    pub(super) fn revision(&self) -> Option<&Revision> {
        self.record.revision.as_ref().or_else(|| self.noted.get())
    }

    /// Adds its spec to a record of an earlier version of Berth; `revision` is asked where there is none.
    pub(super) fn note(&self, revision: impl FnOnce(Option<Time>) -> Revision) -> io::Result<()> {
        if self.revision().is_some() {
            return Ok(());
        }
        let revision = revision(Record::since(&self.folder));
        Record { revision: Some(revision.clone()), ..self.record.clone() }.write(&self.folder)?;
        // Another task may have noted the same.
        let _ = self.noted.set(revision);
        Ok(())
    }

    pub(super) fn is_running(&self) -> bool {
        self.look().running
    }

    pub(super) fn idle_since(&self) -> Instant {
        self.look().used
    }

    pub(super) fn in_flight(&self) -> usize {
        self.inside.load(Ordering::Relaxed)
    }

    pub(super) fn said(&self) -> String {
        let log = self.log.lock().unwrap_or_else(PoisonError::into_inner).clone();
        log.map(|log| log.end()).unwrap_or_default()
    }

    fn look(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its files outlive this process.
    pub(super) fn keep(&self) -> Result<(), BuildError> {
        self.record.write(&self.folder)?;
        self.kept.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Another version has taken over, or the function is removed: it goes with its last request.
    pub(super) fn retire(&self) {
        self.kept.store(false, Ordering::Relaxed);
    }

    /// Ends its process; the next request starts one.
    pub(super) fn rest(&self) {
        if let Ok(mut instance) = self.instance.try_lock() {
            *instance = None;
            self.look().running = false;
        }
    }

    /// Waits until no request is inside, or the time is up.
    pub(super) async fn emptied(&self, limit: Duration) {
        let end = Instant::now() + limit;
        while self.in_flight() > 0 && Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        *self.instance.lock().await = None;
    }

    /// Starts it and asks it once.
    pub(super) async fn prove(&self, probe: Option<&Value>) -> Result<(), BuildError> {
        let instance = self.running().await.map_err(|message| BuildError::lasting("StartFailed", message))?;
        let Some(probe) = probe else { return Ok(()) };
        let request = http::Request::post("/")
            .header("content-type", "application/json")
            .body(Bytes::from(probe.to_string()))
            .map_err(|error| BuildError::lasting("Internal", error.to_string()))?;
        let asked = tokio::time::timeout(self.record.limits.timeout, instance.call(request)).await;
        let failed = |why: String| {
            BuildError::lasting("ProbeFailed", format!("the new version did not answer spec.probe: {why}"))
        };
        match asked {
            Err(_) => Err(failed(format!("nothing came within {} s", self.record.limits.timeout.as_secs()))),
            Ok(Err(error)) => Err(failed(error.to_string())),
            Ok(Ok(answer)) if answer.status().is_success() => Ok(()),
            Ok(Ok(answer)) => {
                let body: String = String::from_utf8_lossy(answer.body()).chars().take(300).collect();
                Err(failed(format!("it answered {}: {body}", answer.status())))
            }
        }
    }

    /// Its process, started if there is none.
    async fn running(&self) -> Result<Arc<Instance>, String> {
        let mut place = self.instance.lock().await;
        if let Some(instance) = place.as_ref().filter(|instance| instance.is_alive()) {
            return Ok(Arc::clone(instance));
        }
        *place = None;
        self.look().running = false;
        if let Some((at, why)) = &self.look().failed
            && at.elapsed() < AFTER_FAILURE
        {
            return Err(why.clone());
        }
        let log = self.open_log()?;
        let start = Start {
            manifest: &self.record.manifest,
            app: &self.folder.join("app"),
            env: &self.record.env,
            memory_mib: self.record.limits.memory_mib,
            limit: START,
        };
        let started = Instance::start(start, &self.launcher, log).await;
        let mut seen = self.look();
        match started {
            Ok(instance) => {
                let instance = Arc::new(instance);
                *place = Some(Arc::clone(&instance));
                (seen.running, seen.failed, seen.used) = (true, None, Instant::now());
                Ok(instance)
            }
            Err(why) => {
                seen.failed = Some((Instant::now(), why.clone()));
                Err(why)
            }
        }
    }

    fn open_log(&self) -> Result<Arc<BuildLog>, String> {
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(log) = &*log {
            return Ok(Arc::clone(log));
        }
        let made = BuildLog::create(&self.folder.join("output.log")).map_err(|error| error.to_string())?;
        Ok(Arc::clone(log.insert(Arc::new(made))))
    }

    /// Answers a request.
    pub(super) async fn call(&self, request: http::Request<Bytes>) -> http::Response<Bytes> {
        let limits = &self.record.limits;
        let _inside = Inside::enter(&self.inside);
        if self.in_flight() > limits.concurrency * (1 + WAITING) {
            return refused(
                429,
                &format!("the function {} has too many requests: try again later", self.record.manifest.name),
            );
        }
        let answered = tokio::time::timeout(START + limits.timeout, self.admitted(request)).await;
        self.look().used = Instant::now();
        answered.unwrap_or_else(|_| refused(503, "the function was too busy to take the request in time"))
    }

    async fn admitted(&self, request: http::Request<Bytes>) -> http::Response<Bytes> {
        let name = &self.record.manifest.name;
        let Ok(_permit) = self.permits.acquire().await else { return refused(503, "the function is being removed") };
        let instance = match self.running().await {
            Ok(instance) => instance,
            Err(why) => return refused(502, &format!("the function {name} does not start: {why}")),
        };
        let timeout = self.record.limits.timeout;
        match tokio::time::timeout(timeout, instance.call(request)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error @ CallError::TooLarge)) => refused(502, &format!("the function {name}: {error}")),
            Ok(Err(error)) => {
                self.forget(&instance).await;
                refused(502, &format!("the function {name} broke off: {error}"))
            }
            Err(_) => {
                // A process that hangs would take the permits of others: the next request starts another one.
                self.forget(&instance).await;
                refused(
                    504,
                    &format!(
                        "the function {name} did not answer within {} s (spec.limits.timeoutSeconds)",
                        timeout.as_secs()
                    ),
                )
            }
        }
    }

    /// Takes a process out of use. It ends with its last request.
    async fn forget(&self, instance: &Arc<Instance>) {
        let mut place = self.instance.lock().await;
        if place.as_ref().is_some_and(|current| Arc::ptr_eq(current, instance)) {
            *place = None;
            self.look().running = false;
        }
    }
}

impl Drop for Version {
    fn drop(&mut self) {
        // The process first: it reads these files.
        *self.instance.get_mut() = None;
        if !self.kept.load(Ordering::Relaxed) {
            remove(&self.folder);
        }
    }
}

fn remove(folder: &Path) {
    // What cannot be removed goes at the next start, when there is no record of it.
    let _ = std::fs::remove_file(folder.join("record.json"));
    let _ = std::fs::remove_dir_all(folder);
}

/// Counts a request while it is inside.
struct Inside<'a>(&'a AtomicUsize);

impl<'a> Inside<'a> {
    fn enter(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
