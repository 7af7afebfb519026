//! Functions as processes of this machine, behind the gateway's `/functions/NAME` and `/namespaces/NAMESPACE/functions/NAME`.
//!
//! ```text
//! deploy: unpack ──▶ start ──▶ health, probe ──▶ take the route ──▶ the version before drains and ends
//! call:   route ──▶ permit (concurrency, bounded line) ──▶ instance (started if there is none) ──▶ Unix socket
//! idle:   no request for `idleSeconds` ──▶ its process ends; the next request starts one
//! ```

mod answer;
mod egress;
mod exchange;
mod instance;
mod isolator;
mod record;
mod version;

pub(crate) use answer::refused;

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    io,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;
use berth_spec::id::DEFAULT_NAMESPACE;
use berth_worker::{cgroup::CgroupParents, config::IsolationSettings};
use bytes::Bytes;
use futures::{FutureExt as _, future::BoxFuture};

use self::{isolator::Isolator, record::Record, version::Version};
use super::{Target, revision};
use crate::{
    build::{ArtifactStore, Builder, Manifest, stoppable, unpack_zip},
    controller::{Deployed, Failure, Served, Task},
    deployment::{AuthLevel, path_of},
    driver::now,
    source::Metrics,
    status::ArtifactStatus,
};

/// Processes of functions at once. Further ones end the one that has been idle for longest.
const MOST_INSTANCES: usize = 64;

/// Limit for the requests inside a process that is to end: they have their own time-outs.
const DRAIN: Duration = Duration::from_secs(30);

/// Remark where a spec for Azure runs here.
const KEYS_NOT_ASKED: &str = "spec.target.authLevel does not hold on this machine: --auth tokens keeps callers out.";

/// Settings of the target.
#[derive(Debug, Clone)]
pub struct LocalConfig {
    /// Folder for unpacked artifacts.
    pub root: PathBuf,
    /// The gateway's address, as in `http://HOST:PORT`.
    pub gateway: String,
    /// Isolation of processes, and the most of the network that they reach.
    pub isolation: IsolationSettings,
}

/// Runs functions on this machine.
#[derive(Debug)]
pub struct LocalTarget {
    root: PathBuf,
    gateway: String,
    artifacts: Arc<ArtifactStore>,
    launcher: version::Launcher,
    routes: ArcSwap<BTreeMap<String, Arc<Version>>>,
    /// Held while routes are replaced.
    changing: Mutex<()>,
}

impl LocalTarget {
    /// Opens the folder and takes up what ran before. Blocks.
    ///
    /// # Errors
    /// If the folder cannot be used.
    pub(crate) fn open(config: LocalConfig, builder: &Builder, metrics: Arc<Metrics>) -> io::Result<Self> {
        fs_err::create_dir_all(&config.root)?;
        let root = fs_err::canonicalize(&config.root)?;
        // Berth's folder of data is two above: DATA/functions/run.
        let data = root.ancestors().nth(2).unwrap_or(&root).to_owned();
        let isolator = Isolator::new(config.isolation, Arc::clone(builder.bubblewrap()), data);
        let target = Self {
            root,
            gateway: config.gateway,
            artifacts: Arc::clone(builder.artifacts()),
            launcher: version::Launcher {
                toolchain: Arc::clone(builder.toolchain()),
                parents: CgroupParents::find(),
                isolator: Arc::new(isolator),
                metrics,
            },
            routes: ArcSwap::default(),
            changing: Mutex::default(),
        };
        instance::clear_left_behind();
        target.restore()?;
        Ok(target)
    }

    /// Routes what ran when the process before ended; processes start with the first request.
    fn restore(&self) -> io::Result<()> {
        for entry in fs_err::read_dir(&self.root)?.flatten() {
            let folder = entry.path();
            if let Some(record) = Record::read(&folder) {
                let name = record.key().into_owned();
                let version = Version::new(record, folder, self.launcher.clone());
                if let Some(other) = self.replace(&name, Some(Arc::new(version))) {
                    // The process before ended between two versions. The controller mends a wrong choice.
                    other.retire();
                }
            } else if folder.is_dir() {
                // Half of a deployment that was cut off.
                fs_err::remove_dir_all(&folder)?;
            }
        }
        Ok(())
    }

    /// Versions that answer, by the names of their functions.
    #[must_use]
    pub fn serving(&self) -> BTreeMap<String, Served> {
        let routes = self.routes.load();
        let served = |(name, version): (&String, &Arc<Version>)| {
            let (artifact, revision) =
                (version.record().artifact.clone(), version.revision().map(Arc::unwrap_or_clone));
            (name.clone(), Served { endpoint: Some(self.endpoint(name)), artifact: Some(artifact), revision })
        };
        routes.iter().map(served).collect()
    }

    /// True if a function answers here.
    pub(crate) fn serves(&self, name: &str) -> bool {
        self.routes.load().contains_key(name)
    }

    fn endpoint(&self, name: &str) -> String {
        format!("{}{}", self.gateway, path_of(name))
    }

    /// Digests of artifacts in use.
    #[must_use]
    pub fn used(&self) -> BTreeSet<String> {
        self.routes.load().values().map(|version| version.record().artifact.digest.clone()).collect()
    }

    /// Processes that run, and requests in flight.
    #[must_use]
    pub fn load(&self) -> (usize, usize) {
        let routes = self.routes.load();
        let running = routes.values().filter(|version| version.is_running()).count();
        (running, routes.values().map(|version| version.in_flight()).sum())
    }

    /// The end of what a function's processes have said.
    #[must_use]
    pub fn said(&self, name: &str) -> Option<String> {
        self.routes.load().get(name).map(|version| version.said())
    }

    /// Puts a version in the place of another, which ends when its last request has.
    fn replace(&self, name: &str, version: Option<Arc<Version>>) -> Option<Arc<Version>> {
        let _one = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut routes = BTreeMap::clone(&self.routes.load());
        let before = match version {
            Some(version) => routes.insert(name.to_owned(), version),
            None => routes.remove(name),
        };
        self.routes.store(Arc::new(routes));
        before
    }

    /// Ends processes that nobody has asked for long enough, and those that are too many. Call it every second or so.
    pub fn sweep(&self, now: Instant) {
        let routes = self.routes.load();
        let mut running: Vec<&Arc<Version>> = routes.values().filter(|version| version.is_running()).collect();
        running.sort_by_key(|version| version.idle_since());
        let surplus = running.len().saturating_sub(MOST_INSTANCES);
        for (at, version) in running.into_iter().enumerate() {
            let idle = now.saturating_duration_since(version.idle_since());
            if version.in_flight() == 0 && (at < surplus || idle >= version.record().limits.idle) {
                version.rest();
            }
        }
    }

    /// Ends all processes, each with its last request. What is deployed stays: the next request starts one.
    pub(crate) async fn rest(&self) {
        let versions: Vec<_> = self.routes.load().values().cloned().collect();
        futures::future::join_all(versions.iter().map(|version| version.emptied(DRAIN))).await;
    }

    /// Answers a request whose path is that of a function.
    pub async fn call(&self, request: http::Request<Bytes>) -> http::Response<Bytes> {
        let name = name_in(request.uri().path()).into_owned();
        let found = self.routes.load().get(&name).cloned();
        match found {
            Some(version) => version.call(request).await,
            None => refused(404, &format!("there is no function {name:?}: `berth get functions` lists them")),
        }
    }

    async fn place(&self, task: &Task, artifact: &ArtifactStatus) -> Result<Version, crate::build::BuildError> {
        let record = Record {
            namespace: task.spec.name.to_namespace(),
            manifest: Manifest::of(&task.spec),
            artifact: artifact.clone(),
            env: task.spec.env.clone(),
            hosts: task.spec.hosts.clone(),
            limits: task.spec.limits.clone(),
            revision: Some(revision(task, artifact, now().to_string())),
        };
        // Folders outlive this process. In a container the next one has the same number, and counts from the start: a random name is
        // taken by no version that serves.
        let folder = self.root.join(format!("{}-{:016x}", record.manifest.name, rand::random::<u64>()));
        let half = Half(Some(folder.clone()));
        let zip = self.artifacts.path(&artifact.digest).filter(|path| path.is_file());
        let zip = zip.ok_or_else(ArtifactStore::gone)?;
        let to = folder.join("app");
        stoppable(move |stop| {
            fs_err::create_dir_all(&to)?;
            unpack_zip(&zip, &to, stop)
        })
        .await?;
        let version = Version::new(record, folder, self.launcher.clone());
        half.done();
        Ok(version)
    }

    /// Deploys a version; `said` takes the output of one that fails.
    async fn bring_up(
        &self,
        task: &Task,
        artifact: &ArtifactStatus,
        said: &mut String,
    ) -> Result<Deployed, crate::build::BuildError> {
        let name = task.spec.name.as_str();
        let mut note = self.launcher.isolator.note().await;
        if task.spec.entry.auth == AuthLevel::Function {
            note = format!("{KEYS_NOT_ASKED} {note}").trim_end().to_owned();
        }
        let deployed = Deployed { endpoint: self.endpoint(name), note };
        let serving = self.routes.load().get(name).filter(|version| is_wanted(version, task, artifact)).cloned();
        // Another generation of the same goes on where it answers; what does not is deployed anew.
        if let Some(version) = serving
            && (task.proved || version.still_answers(task.spec.probe.as_ref()).await)
        {
            let noted = version.note(|since| revision(task, artifact, since));
            if let Err(error) = noted {
                // It serves. The next start tries again.
                tracing::warn!(event = "function_record_not_written", function = name, %error);
            }
            return Ok(deployed);
        }
        let version = self.place(task, artifact).await?;
        if !task.proved
            && let Err(error) = version.prove(task.spec.probe.as_ref()).await
        {
            *said = version.said();
            return Err(error);
        }
        version.keep()?;
        if let Some(before) = self.replace(name, Some(Arc::new(version))) {
            before.retire();
        }
        Ok(deployed)
    }
}

/// True of a version that a deployment would only repeat.
fn is_wanted(version: &Version, task: &Task, artifact: &ArtifactStatus) -> bool {
    let record = version.record();
    let same = (&record.artifact.digest, &record.limits, &record.env, &record.hosts)
        == (&artifact.digest, &task.spec.limits, &task.spec.env, &task.spec.hosts)
        && record.manifest == Manifest::of(&task.spec);
    let is_proved = || version.revision().is_some_and(|revision| revision.spec.0 == task.text);
    same && (task.proved || is_proved())
}

/// The key of the function that a path is for. Neither its namespace nor its name is decoded: names have no characters that are coded.
pub(crate) fn name_in(path: &str) -> Cow<'_, str> {
    let (namespace, rest) = match path.strip_prefix("/namespaces/").and_then(|rest| rest.split_once('/')) {
        Some((namespace, rest)) => (namespace, rest),
        None => (DEFAULT_NAMESPACE, path.strip_prefix('/').unwrap_or_default()),
    };
    let rest = rest.strip_prefix("functions/").unwrap_or_default();
    let name = rest.split('/').next().unwrap_or_default();
    if namespace == DEFAULT_NAMESPACE { name.into() } else { format!("{namespace}/{name}").into() }
}

/// Removes a folder unless its making is done.
struct Half(Option<PathBuf>);

impl Half {
    fn done(mut self) {
        self.0 = None;
    }
}

impl Drop for Half {
    fn drop(&mut self) {
        if let Some(folder) = &self.0 {
            // What cannot be removed goes at the next start.
            let _ = fs_err::remove_dir_all(folder);
        }
    }
}

impl Target for LocalTarget {
    fn deploy<'a>(&'a self, task: &'a Task, artifact: &'a ArtifactStatus) -> BoxFuture<'a, Result<Deployed, Failure>> {
        async move {
            let started = Instant::now();
            let mut said = String::new();
            let done = self.bring_up(task, artifact, &mut said).await;
            done.map_err(|error| error.into_failure(said, started.elapsed()))
        }
        .boxed()
    }

    fn remove<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), Failure>> {
        async move {
            if let Some(version) = self.replace(name, None) {
                version.retire();
                version.emptied(DRAIN).await;
            }
            Ok(())
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_for_a_function_of_its_namespace() {
        for (path, key) in [
            ("/functions/words", "words"),
            ("/functions/words/more?x=1", "words"),
            ("/namespaces/team/functions/words", "team/words"),
            ("/namespaces/team/functions/words/a/b", "team/words"),
            ("/namespaces/default/functions/words", "words"),
            // One segment is one name: a coded slash leads to no other namespace.
            ("/functions/team%2Fwords", "team%2Fwords"),
            ("/functions/team/words", "team"),
            ("/namespaces/team/v2/words", "team/"),
            ("/namespaces/team", ""),
            ("/functions/", ""),
            ("", ""),
        ] {
            assert_eq!(name_in(path), key, "{path}");
        }
        for key in ["words", "team/words"] {
            assert_eq!(name_in(&path_of(key)), key, "and back");
        }
    }
}
