//! One deployed version of a function: its line of requests, and its process while there is one.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use arc_swap::ArcSwapOption;
use berth_worker::{cgroup::CgroupParents, prepare::Toolchain};
use bytes::Bytes;
use serde_json::Value;
use tokio::sync::Semaphore;

use super::{
    answer::refused,
    exchange::CallError,
    instance::{Instance, Start},
    isolator::Isolator,
    record::Record,
};
use crate::{
    build::{BuildError, BuildLog},
    driver::now,
    source::Metrics,
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
    pub(super) isolator: Arc<Isolator>,
    pub(super) metrics: Arc<Metrics>,
}

/// A deployed version.
#[derive(Debug)]
pub(super) struct Version {
    record: Record,
    /// Spec and newest generation of it. A record of an earlier version of Berth lacks them.
    revision: ArcSwapOption<Revision>,
    folder: PathBuf,
    launcher: Launcher,
    permits: Semaphore,
    inside: AtomicUsize,
    instance: tokio::sync::Mutex<Option<Arc<Instance>>>,
    /// The same, to look at without waiting.
    seen: Mutex<InstanceState>,
    log: Mutex<Option<Arc<BuildLog>>>,
    /// Its files stay when it goes: the process ends, and another one takes them up.
    kept: AtomicBool,
}

#[derive(Debug)]
struct InstanceState {
    used: Instant,
    running: bool,
    failed: Option<(Instant, String)>,
}

impl Version {
    pub(super) fn new(record: Record, folder: PathBuf, launcher: Launcher) -> Self {
        Self {
            permits: Semaphore::new(record.limits.concurrency),
            kept: AtomicBool::new(Record::read(&folder).is_some()),
            revision: ArcSwapOption::from_pointee(record.revision.clone()),
            record,
            folder,
            launcher,
            inside: AtomicUsize::new(0),
            instance: tokio::sync::Mutex::default(),
            seen: Mutex::new(InstanceState { used: Instant::now(), running: false, failed: None }),
            log: Mutex::default(),
        }
    }

    pub(super) fn record(&self) -> &Record {
        &self.record
    }

    /// Its spec, as far as it is known.
    pub(super) fn revision(&self) -> Option<Arc<Revision>> {
        self.revision.load_full()
    }

    /// Notes the spec and the generation that it serves, with the time since when it does.
    pub(super) fn note(&self, revision: impl FnOnce(String) -> Revision) -> io::Result<()> {
        let known = self.revision();
        let since = match &known {
            Some(known) => known.deployed.clone(),
            None => Record::since(&self.folder).unwrap_or_else(now).to_string(),
        };
        let revision = revision(since);
        if known.is_some_and(|known| *known == revision) {
            return Ok(());
        }
        Record { revision: Some(revision.clone()), ..self.record.clone() }.write(&self.folder)?;
        self.revision.store(Some(Arc::new(revision)));
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

    fn look(&self) -> std::sync::MutexGuard<'_, InstanceState> {
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

    /// Ends its process once no request is inside, or the time is up.
    pub(super) async fn emptied(&self, limit: Duration) {
        let end = Instant::now() + limit;
        while self.in_flight() > 0 && Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        *self.instance.lock().await = None;
        self.look().running = false;
    }

    /// Starts it and asks it once.
    pub(super) async fn prove(&self, probe: Option<&Value>) -> Result<(), BuildError> {
        let instance = self.running().await.map_err(|message| BuildError::lasting("StartFailed", message))?;
        match probe {
            Some(probe) => self.ask(&instance, probe).await,
            None => Ok(()),
        }
    }

    /// True if it goes on as it is: its process answers, and `probe` as well. The probe takes the place of a request, so that no
    /// more are at once than its limits allow. Where all places stay taken it is busy, which is no fault.
    pub(super) async fn still_answers(&self, probe: Option<&Value>) -> bool {
        let _inside = RequestGuard::enter(&self.inside);
        let Ok(instance) = self.running().await else { return false };
        if !instance.is_healthy().await {
            return false;
        }
        let Some(probe) = probe else { return true };
        match tokio::time::timeout(self.record.limits.timeout, self.permits.acquire()).await {
            Ok(Ok(_permit)) => self.ask(&instance, probe).await.is_ok(),
            Ok(Err(_)) => false,
            Err(_) => true,
        }
    }

    async fn ask(&self, instance: &Instance, probe: &Value) -> Result<(), BuildError> {
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
            key: &self.record.key(),
            manifest: &self.record.manifest,
            app: &self.folder.join("app"),
            env: &self.record.env,
            hosts: &self.record.hosts,
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

    /// The same for a caller who may leave before it has started. The start goes on: else a function that takes longer than its callers
    /// wait would never be up.
    async fn started(self: &Arc<Self>) -> Result<Arc<Instance>, String> {
        if self.is_running() {
            return self.running().await;
        }
        let version = Arc::clone(self);
        let start = tokio::runtime::Handle::current().spawn(async move { version.running().await });
        start.await.map_err(|error| format!("its start broke: {error}"))?
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
    pub(super) async fn call(self: &Arc<Self>, request: http::Request<Bytes>) -> http::Response<Bytes> {
        let limits = &self.record.limits;
        let _inside = RequestGuard::enter(&self.inside);
        if self.in_flight() > limits.concurrency * (1 + WAITING) {
            return refused(429, &format!("the function {} has too many requests: try again later", self.record.key()));
        }
        let answered = tokio::time::timeout(START + limits.timeout, self.admitted(request)).await;
        self.look().used = Instant::now();
        answered.unwrap_or_else(|_| refused(503, "the function was too busy to take the request in time"))
    }

    async fn admitted(self: &Arc<Self>, request: http::Request<Bytes>) -> http::Response<Bytes> {
        let name = self.record.key();
        let Ok(_permit) = self.permits.acquire().await else { return refused(503, "the function is being removed") };
        let instance = match self.started().await {
            Ok(instance) => instance,
            Err(why) => return refused(502, &format!("the function {name} does not start: {why}")),
        };
        let timeout = self.record.limits.timeout;
        match tokio::time::timeout(timeout, instance.call(request)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error @ (CallError::TooLarge | CallError::LongHead(_) | CallError::EndlessHead))) => {
                refused(502, &format!("the function {name}: {error}"))
            }
            Ok(Err(error @ CallError::Gone(_))) => {
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
struct RequestGuard<'a>(&'a AtomicUsize);

impl<'a> RequestGuard<'a> {
    fn enter(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for RequestGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use berth_control::store::Rev;
    use berth_worker::{config::IsolationSettings, prepare::Settings};
    use serde_json::json;

    use super::*;
    use crate::{
        build::Manifest,
        deployment::Declared,
        status::{ArtifactStatus, SpecText},
    };

    /// A launcher without a sandbox.
    fn launcher(home: &Path) -> Launcher {
        Launcher {
            toolchain: Arc::new(Toolchain::new(Settings::default(), home.to_owned())),
            parents: CgroupParents::find(),
            isolator: Arc::new(Isolator::new(IsolationSettings::default(), Arc::default(), home.to_owned())),
            metrics: Arc::default(),
        }
    }

    #[test]
    fn another_generation_of_the_same_is_noted_and_serves_since_the_first() {
        let home = tempfile::tempdir().expect("a folder");
        let object = json!({
            "apiVersion": "v1alpha1", "kind": "ModelDeployment", "metadata": {"name": "words"},
            "spec": {"type": "python", "sourceUri": "file:/code/a.zip", "entrypoint": "handler.predict",
                     "target": {"platform": "local"}},
        });
        let declared = Declared::read("words", object.to_string().as_bytes(), Rev(1));
        let spec = declared.spec.expect("a right spec");
        let (digest, text) = ("sha256:1".to_owned(), declared.text);
        let revision = |generation: i64, deployed: &str| Revision {
            generation,
            deployed: deployed.to_owned(),
            artifact: digest.clone(),
            spec: SpecText(Arc::clone(&text)),
        };
        let first = "2026-01-01T00:00:00.000Z";
        let record = Record {
            namespace: berth_spec::Namespace::DEFAULT,
            manifest: Manifest::of(&spec),
            artifact: ArtifactStatus { digest: digest.clone(), size: 7 },
            env: spec.env.clone(),
            hosts: spec.hosts.clone(),
            limits: spec.limits.clone(),
            revision: Some(revision(1, first)),
        };
        record.write(home.path()).expect("written");
        let version = Version::new(record, home.path().to_owned(), launcher(home.path()));
        version.note(|since| revision(2, &since)).expect("written");
        assert_eq!(version.revision().as_deref(), Some(&revision(2, first)));
        assert_eq!(Record::read(home.path()).and_then(|record| record.revision), Some(revision(2, first)));
    }
}
