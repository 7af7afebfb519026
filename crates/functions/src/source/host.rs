//! Functions of this machine: what builds them, what runs them, and what people see of them.

mod declared;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use berth_control::handle::Error;
use berth_spec::network::Destination;
use berth_worker::{config::IsolationSettings, prepare::Settings};
use bytes::Bytes;
use prometheus_client::registry::Registry;
use tokio::{runtime::Runtime, sync::watch};
use tokio_util::task::AbortOnDropHandle;

use super::{Summary, metrics::Metrics};
use crate::{
    build::{BuildConfig, Builder},
    controller::{Built, Failure, Policy, Served},
    deployment::{FunctionSpec, Platform, path_of},
    objects::Objects,
    spans::TraceHook,
    status::{Phase, Status},
    target::{
        AzureTarget, ReplicaTarget, Target,
        local::{LocalConfig, LocalTarget, name_in, refused},
    },
};

/// Limit for the first listing: a store that is away answers no sooner.
const ATTACH: Duration = Duration::from_secs(10);

/// Time between two looks at processes that are to end: a request may have started one again.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Choices of a node about the functions that it builds and runs.
#[derive(Debug, Clone)]
pub struct HostConfig {
    /// Folder of builds and artifacts, of the versions that run here, and of records about apps in Azure.
    pub root: PathBuf,
    /// The gateway's address, as in `http://HOST:PORT`.
    pub gateway: String,
    /// Credentials of object stores, by the variable names of their own tools.
    pub credentials: BTreeMap<String, String>,
    /// Settings of `uv` and interpreters.
    pub python: Settings,
    /// True if all functions run on this machine, whatever their specs say.
    pub all_local: bool,
    /// Builds at once.
    pub parallel: usize,
    /// Artifacts that are kept beyond those in use.
    pub artifacts: usize,
    /// The image of podman that builds run in; `None`: they run with the tools of this machine.
    pub builder_image: Option<String>,
    /// Hosts that builds fetch packages from beside the registries that the environment names.
    pub build_hosts: Vec<Destination>,
    /// The program that gives builds a network of their own: one that calls [`berth_sandbox::entered`] first. `None`: there is none.
    pub launcher: Option<PathBuf>,
    /// Joins spans to the traces of who has put an object; `None` where traces go nowhere.
    pub traces: Option<TraceHook>,
    /// True in a cluster: another node may have led while this one was away.
    pub in_cluster: bool,
    /// Isolation of functions on this machine, and the most of the network that they reach.
    pub isolation: IsolationSettings,
}

/// Functions of this machine.
pub struct Host {
    builder: Builder,
    local: LocalTarget,
    azure: AzureTarget,
    replicas: ReplicaTarget,
    all_local: bool,
    parallel: usize,
    traces: Option<TraceHook>,
    summaries: Mutex<Summaries>,
    /// Objects that are followed, once it is known what there is.
    objects: watch::Sender<Option<Objects>>,
    /// Another node has led since this one knew what there is: what is deployed here may be out of date.
    overtaken: AtomicBool,
    /// Ends processes after another node has taken over.
    resting: Mutex<Option<AbortOnDropHandle<()>>>,
    metrics: Arc<Metrics>,
    runtime: Threads,
}

/// Functions as people see them.
#[derive(Default)]
struct Summaries {
    functions: BTreeMap<String, Summary>,
    /// Those of an earlier term, until a listing tells what there is: others may have been deleted while another node led.
    earlier: BTreeSet<String>,
}

/// Threads of functions. They end in the background: the process ends with them.
struct Threads(Option<Runtime>);

impl Drop for Threads {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl Host {
    /// Opens the folders, takes up what ran before, and starts its threads. Blocks.
    ///
    /// # Errors
    /// If a folder cannot be used.
    pub fn open(config: HostConfig, registry: &mut Registry) -> io::Result<Arc<Self>> {
        let HostConfig { root, gateway, credentials, python, all_local, parallel, artifacts, .. } = config;
        let HostConfig { builder_image, build_hosts: hosts, launcher, .. } = config;
        let HostConfig { traces, in_cluster, isolation, .. } = config;
        let variables = credentials.clone();
        let (build_root, kept, image) = (root.join("builds"), artifacts, builder_image);
        let build = BuildConfig { root: build_root, credentials, python, all_local, kept, image, hosts, launcher };
        let builder = Builder::open(build)?;
        let replicas = ReplicaTarget::new(builder.artifacts(), &gateway);
        let local = LocalConfig { root: root.join("run"), gateway, isolation };
        let metrics = Arc::new(Metrics::register(registry));
        let local = LocalTarget::open(local, &builder, Arc::clone(&metrics))?;
        let azure = AzureTarget::open(&root.join("azure"), &variables, &builder)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("berth-functions")
            .enable_all()
            .build()?;
        // They answer before it is known what there is.
        let restored = local.serving();
        metrics.name(&restored);
        tracing::debug!(event = "functions_ready", restored = restored.len());
        Ok(Arc::new(Self {
            builder,
            local,
            azure,
            replicas,
            all_local,
            parallel: parallel.max(1),
            traces,
            summaries: Mutex::default(),
            objects: watch::Sender::new(None),
            overtaken: AtomicBool::new(in_cluster),
            resting: Mutex::default(),
            metrics,
            runtime: Threads(Some(runtime)),
        }))
    }

    pub(crate) fn builder(&self) -> &Builder {
        &self.builder
    }

    pub(crate) fn local(&self) -> &LocalTarget {
        &self.local
    }

    /// Functions that a target serves since before the start.
    pub(crate) fn serving(&self) -> BTreeMap<String, Served> {
        let mut serving = self.local.serving();
        for (name, served) in self.azure.serving() {
            serving.entry(name).or_insert(served);
        }
        serving
    }

    /// The reason why a function cannot be deployed from here.
    pub(crate) fn refusal(&self, spec: &FunctionSpec) -> Option<Failure> {
        match self.effective(&spec.platform) {
            Platform::Azure(_) => self.azure.refusal(spec),
            Platform::Local | Platform::Replica { .. } => None,
        }
    }

    /// The platform that runs a function whose spec names `platform`.
    const fn effective<'a>(&self, platform: &'a Platform) -> &'a Platform {
        if self.all_local { &Platform::Local } else { platform }
    }

    /// Targets other than that of a platform: a function may have been there before.
    pub(crate) fn others(&self, platform: &Platform) -> [&dyn Target; 2] {
        match self.effective(platform) {
            Platform::Local => [&self.azure, &self.replicas],
            Platform::Azure(_) => [&self.local, &self.replicas],
            Platform::Replica { .. } => [&self.local, &self.azure],
        }
    }

    /// Bounds of the controller.
    pub(crate) fn policy(&self) -> Policy {
        let mut policy = Policy { parallel: self.parallel, ..Policy::default() };
        if self.all_local {
            // Specs that name a cloud are deployed on this machine, too.
            policy.elsewhere = 0;
        }
        policy
    }

    /// The target of a platform.
    pub(crate) fn target(&self, platform: &Platform) -> &dyn Target {
        match self.effective(platform) {
            Platform::Local => &self.local,
            Platform::Azure(_) => &self.azure,
            Platform::Replica { .. } => &self.replicas,
        }
    }

    /// The target that needs the control plane of the term.
    pub(crate) const fn replicas(&self) -> &ReplicaTarget {
        &self.replicas
    }

    /// All targets: a removed function may have been on any of them.
    pub(crate) fn targets(&self) -> [&dyn Target; 3] {
        [&self.local, &self.azure, &self.replicas]
    }

    /// Starts work on the threads of functions. Dropping the handle ends it.
    pub(crate) fn start<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Option<AbortOnDropHandle<T>> {
        let runtime = self.runtime.0.as_ref()?;
        Some(AbortOnDropHandle::new(runtime.handle().spawn(work)))
    }

    /// Answers a request to a function.
    pub async fn call(self: Arc<Self>, request: http::Request<Bytes>) -> http::Response<Bytes> {
        let uri = request.uri().clone();
        let asked = name_in(uri.path());
        if let Some(why) = self.awaited(&asked) {
            return again(&why);
        }
        let host = Arc::clone(&self);
        let answer = match self.start(async move { host.local.call(request).await }) {
            Some(running) => running.await.ok(),
            None => None,
        };
        let answer = answer.unwrap_or_else(|| again("the server is stopping"));
        self.metrics.answered(self.local.serves(&asked).then_some(&*asked), answer.status().as_u16());
        answer
    }

    /// Reason why a request is worth another attempt; `None`: it is answered here.
    fn awaited(&self, name: &str) -> Option<String> {
        if !self.is_current() {
            return Some("this node has just begun to lead and does not know the functions yet".to_owned());
        }
        if self.local.serves(name) {
            return None;
        }
        awaited(name, &self.function(name)?.status)
    }

    /// True if what is deployed here is what was deployed last, by any node.
    #[must_use]
    pub fn is_current(&self) -> bool {
        !self.overtaken.load(Relaxed) || self.objects.borrow().is_some()
    }

    /// Another node leads: ends the processes of functions, each with its last request. Their files stay for another term.
    pub fn stand_aside(self: &Arc<Self>) {
        if self.overtaken.swap(true, Relaxed) {
            return;
        }
        let host = Arc::clone(self);
        let resting = self.start(async move {
            // Requests that still waited may have started a process again.
            let running = loop {
                host.local.rest().await;
                let (running, inside) = host.local.load();
                if (running == 0 && inside == 0) || host.is_current() {
                    break running;
                }
                tokio::time::sleep(LOOK_AGAIN).await;
            };
            host.metrics.processes(running);
            tracing::info!(event = "functions_stood_aside", running, "another node leads and runs the functions");
        });
        *self.resting.lock().unwrap_or_else(PoisonError::into_inner) = resting;
    }

    /// Joins spans to traces.
    pub(crate) const fn traces(&self) -> Option<&TraceHook> {
        self.traces.as_ref()
    }

    /// Digests of the artifacts of all functions; `None`: this node does not know yet what there is.
    pub(super) fn artifacts_in_use(&self) -> Option<BTreeSet<String>> {
        self.objects.borrow().as_ref()?;
        let (mut used, summaries) = (self.local.used(), self.summaries());
        used.extend(summaries.functions.values().flat_map(|function| function.status.artifacts()).map(str::to_owned));
        Some(used)
    }

    /// Counts a part of an artifact that was copied from the leader, or was to be.
    pub fn count_copy(&self, is_copied: bool) {
        self.metrics.copied(is_copied);
    }

    /// A term begins: what people see is from an earlier one.
    pub(crate) fn begin(&self) {
        let mut summaries = self.summaries();
        summaries.earlier = summaries.functions.keys().cloned().collect();
    }

    /// Takes declarations for these objects, all of which people see by now, or for none.
    pub(crate) fn attach(&self, objects: Option<Objects>) {
        if objects.is_some() {
            self.overtaken.store(false, Relaxed);
            let mut summaries = self.summaries();
            for gone in std::mem::take(&mut summaries.earlier) {
                summaries.functions.remove(&gone);
            }
            self.metrics.name(&summaries.functions);
        } else {
            // Another node counts them from now on.
            self.metrics.functions(&Phase::ALL.iter().map(|phase| (phase.as_str(), 0)).collect());
        }
        self.objects.send_replace(objects);
    }

    /// Counts a build.
    pub(crate) fn count(&self, function: &str, built: &Result<Built, Failure>) {
        match built {
            Ok(built) if built.restored => {}
            Ok(built) => self.metrics.built(function, if built.cached { "cached" } else { "built" }),
            Err(_) => self.metrics.built(function, "failed"),
        }
    }

    /// The objects that are followed; waits for them, not for long.
    async fn objects(&self) -> Result<Objects, Error> {
        let mut followed = self.objects.subscribe();
        let found = tokio::time::timeout(ATTACH, followed.wait_for(Option::is_some)).await;
        let found = found.ok().and_then(|found| found.ok()?.clone());
        found.ok_or(Error::Busy { retry_in: ATTACH })
    }

    /// Changes what people see.
    pub(crate) fn show(
        &self,
        changed: impl Iterator<Item = (String, Option<Summary>)>,
        counts: &BTreeMap<&'static str, usize>,
    ) {
        let mut summaries = self.summaries();
        let mut others = false;
        for (name, summary) in changed {
            summaries.earlier.remove(&name);
            others |= match summary {
                Some(summary) => summaries.functions.insert(name, summary).is_none(),
                None => summaries.functions.remove(&name).is_some(),
            };
        }
        if others {
            self.metrics.name(&summaries.functions);
        }
        drop(summaries);
        self.metrics.shown();
        self.metrics.functions(counts);
        self.metrics.breakers(&self.builder.dependencies().told());
    }

    /// Ends processes that nobody needs.
    pub(crate) fn sweep(&self, now: Instant) {
        self.local.sweep(now);
        self.metrics.processes(self.local.load().0);
    }

    /// Every function, by its key.
    #[must_use]
    pub fn functions(&self) -> Vec<Summary> {
        self.summaries().functions.values().cloned().collect()
    }

    /// One function, by its key.
    #[must_use]
    pub fn function(&self, name: &str) -> Option<Summary> {
        self.summaries().functions.get(name).cloned()
    }

    fn summaries(&self) -> MutexGuard<'_, Summaries> {
        self.summaries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reason why a function that does not answer here yet is worth another attempt.
fn awaited(name: &str, status: &Status) -> Option<String> {
    let is_on_its_way = match status.phase {
        Phase::Pending | Phase::Building | Phase::Deploying => true,
        // A gateway answers for it, that of the node which led before: this one builds it anew, and the status stays until that is done.
        Phase::Succeeded => status.endpoint.as_ref().is_some_and(|endpoint| endpoint.ends_with(&path_of(name))),
        // The new leader starts the version that served before.
        Phase::Failed => status.is_taken_over(),
        Phase::Terminating => false,
    };
    is_on_its_way
        .then(|| format!("the function {name} is not deployed yet: `berth explain function/{name}` says how far it is"))
}

/// A refusal that passes: 503, to be tried again after a second.
fn again(why: &str) -> http::Response<Bytes> {
    let mut response = refused(503, why);
    response.headers_mut().insert(http::header::RETRY_AFTER, http::HeaderValue::from_static("1"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::TAKING_OVER;

    #[test]
    fn what_is_on_its_way_is_worth_another_attempt() {
        let here = Some("http://10.0.0.7:8080/functions/words");
        for (phase, endpoint, expected) in [
            (Phase::Pending, None, true),
            (Phase::Building, None, true),
            (Phase::Deploying, None, true),
            // Another node led when it was deployed.
            (Phase::Succeeded, here, true),
            (Phase::Succeeded, Some("https://words-prod.azurewebsites.net/api/words"), false),
            (Phase::Succeeded, Some("http://10.0.0.7:8080/replicas/words"), false),
            (Phase::Failed, here, false),
            (Phase::Terminating, None, false),
        ] {
            let status = Status { phase, endpoint: endpoint.map(str::to_owned), ..Status::default() };
            assert_eq!(awaited("words", &status).is_some(), expected, "{phase:?} {endpoint:?}");
        }
        let mut status = Status { phase: Phase::Failed, ..Status::default() };
        status.set("Ready", false, TAKING_OVER, "", "t");
        assert!(awaited("words", &status).is_some(), "the version that served before is on its way");
        let refused = again("no");
        assert_eq!((refused.status().as_u16(), refused.body().as_ref()), (503, br#"{"error":"no"}"#.as_slice()));
        assert_eq!(refused.headers()["retry-after"], "1");
    }
}
