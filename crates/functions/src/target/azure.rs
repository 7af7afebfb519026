//! Azure Functions: an app of its own for each function, which runs the artifact from Azure Blob Storage.
//!
//! ```text
//! read the app ──nothing differs──▶ its endpoint
//!      │ differs
//!      ▼
//! upload ─┬─ no app yet ──▶ plan, app, settings ──▶ probe
//!         └─ an app ──▶ slot, settings ──▶ probe ──▶ swap ──▶ probe ──fails──▶ swap back
//! ```
//! What served before serves until the swap, and stays in the slot after it. An app of another function is left alone; one that
//! Berth did not create is stopped, not deleted, when the function goes.

mod app;
mod config;
mod identity;
mod package;
mod record;
mod resource;

use std::{
    collections::BTreeMap,
    io,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{FutureExt as _, future::BoxFuture};
use http::{HeaderMap, Method, StatusCode, header::CONTENT_TYPE};
use serde_json::{Value, json};

use self::{
    app::{DeploymentSlot, Paths},
    config::AzureConfig,
    package::Packages,
    record::{Record, Records, Version},
    resource::{AzureError, Manager, NOT_ALLOWED},
};
use super::Target;
use crate::{
    build::{ArtifactStore, Builder},
    controller::{Deployed, Failure, Retry, Served, Task},
    dependencies::{self, BreakerOpen, Dependencies},
    deployment::{AuthLevel, AzureApp, FunctionSpec, Platform},
    driver::now,
    status::ArtifactStatus,
};

/// The longest that a new version may take until it answers: a consumption plan starts cold and reads its package first.
const LONGEST_START: Duration = Duration::from_secs(300);

/// The characters of an answer that an error message quotes: the first line of a Python error and its reason fit.
const BEGINNING: usize = 300;

/// Pause between two probes: a new version takes some ten seconds to start, and each probe is an execution that is paid
/// for.
const PROBE_AGAIN: Duration = Duration::from_secs(2);

/// Deploys to Azure Functions.
pub(crate) struct AzureTarget {
    /// The account, or the reason why there is none.
    account: Result<Account, AzureError>,
    artifacts: Arc<ArtifactStore>,
    dependencies: Arc<Dependencies>,
    records: Records,
}

/// An Azure account.
struct Account {
    config: AzureConfig,
    manager: Manager,
    packages: Packages,
}

/// A function on its way into an app.
struct Deployment<'a> {
    account: &'a Account,
    spec: &'a FunctionSpec,
    paths: Paths,
    /// Settings that the app has to have.
    settings: BTreeMap<String, String>,
    /// Settings of the earlier spec.
    earlier: Vec<String>,
}

impl AzureTarget {
    /// Reads the settings. Without them every deployment fails, and says what is missing.
    ///
    /// # Errors
    /// If the folder of the records cannot be used.
    pub(crate) fn open(root: &Path, variables: &BTreeMap<String, String>, builder: &Builder) -> io::Result<Self> {
        let account = AzureConfig::read(variables).map_err(|why| AzureError::lasting("PlatformUnavailable", why));
        let account = account.and_then(|config| {
            let (manager, packages) = (Manager::new(&config)?, Packages::open(&config)?);
            Ok(Account { config, manager, packages })
        });
        let (artifacts, dependencies) = (Arc::clone(builder.artifacts()), Arc::clone(builder.dependencies()));
        Ok(Self { account, artifacts, dependencies, records: Records::open(root)? })
    }

    /// Functions that were deployed from here, with the versions that serve.
    pub(crate) fn serving(&self) -> BTreeMap<String, Served> {
        let served = |name: String| {
            // Where it moves, the app that it leaves has one.
            let version = self.records.read(&name).into_iter().find_map(|record| record.version);
            (name, version.map(Served::from).unwrap_or_default())
        };
        self.records.all().into_iter().map(served).collect()
    }

    /// The reason why a function cannot be deployed, before anything is built.
    pub(crate) fn refusal(&self, spec: &FunctionSpec) -> Option<Failure> {
        let wrong = match &self.account {
            Err(error) => Some(error.clone()),
            Ok(_) => app::misnamed(&spec.name).map(|why| AzureError::lasting("NameRefused", why)),
        };
        wrong.map(|error| failure(error, Duration::ZERO))
    }

    async fn bring_up(&self, task: &Task, artifact: &ArtifactStatus) -> Result<Deployed, AzureError> {
        let account = self.account.as_ref().map_err(Clone::clone)?;
        let Platform::Azure(wanted) = &task.spec.platform else {
            return Err(AzureError::lasting("Internal", "this function does not belong to Azure"));
        };
        let (spec, name) = (&*task.spec, task.spec.name.as_str());
        let here = |record: &Record| record.group == wanted.group && record.app == wanted.app;
        let (mine, others): (Vec<_>, Vec<_>) = self.records.read(name).into_iter().partition(here);
        let mine = mine.into_iter().next();
        let package = account.packages.url(name, artifact).await?;
        let deployment = Deployment {
            account,
            spec,
            paths: Paths::of(&account.config, wanted),
            settings: app::settings(&account.config, spec, artifact, &package),
            earlier: mine.as_ref().map(|record| record.env.clone()).unwrap_or_default(),
        };
        let found = deployment.app(DeploymentSlot::Production).await?;
        let deployed = |endpoint: String| Deployed { endpoint, note: app::limits_left_out(spec) };
        // The earlier version serves until the new one answers.
        let earlier = mine.and_then(|record| record.version);
        let record = Record {
            group: wanted.group.clone(),
            app: wanted.app.clone(),
            env: app::wanted(spec).into_keys().collect(),
            version: earlier.clone(),
        };
        let serving = |endpoint: &str| {
            let version = Version::of(task, artifact, endpoint, earlier.as_ref());
            Record { version: Some(version), ..record.clone() }
        };
        if let Some(app) = &found {
            deployment.may_have(app, wanted)?;
            deployment.own(app).await?;
            let has = deployment.has(DeploymentSlot::Production).await?;
            let differs = app::drift(app, &has, &deployment.settings, &deployment.earlier, spec);
            if differs.is_empty() {
                let endpoint = deployment.endpoint(app)?;
                self.arrived(account, name, serving(&endpoint), &others).await?;
                return Ok(deployed(endpoint));
            }
            if task.proved {
                tracing::warn!(
                    event = "function_drifted",
                    function = name,
                    app = wanted.app,
                    differs = differs.join("; "),
                    "correcting it"
                );
            }
        }
        account.packages.upload(spec, artifact, &self.artifacts).await?;
        // Noted first: what is half done has to be removed as well. The settings of the earlier spec are there until the swap.
        let mut begun = record.clone();
        begun.env.extend(deployment.earlier.iter().filter(|name| !record.env.contains(name)).cloned());
        self.note(name, others.iter().chain([&begun]))?;
        let endpoint = match &found {
            None => deployment.create().await?,
            Some(app) => deployment.replace(app).await?,
        };
        account.packages.sweep(name, artifact).await?;
        self.arrived(account, name, serving(&endpoint), &others).await?;
        Ok(deployed(endpoint))
    }

    /// Removes the apps that the function was in before.
    async fn arrived(
        &self,
        account: &Account,
        name: &str,
        record: Record,
        others: &[Record],
    ) -> Result<(), AzureError> {
        for old in others {
            remove(account, name, old).await?;
        }
        self.note(name, [&record])
    }

    fn note<'r>(&self, name: &str, apps: impl IntoIterator<Item = &'r Record>) -> Result<(), AzureError> {
        let apps: Vec<Record> = apps.into_iter().cloned().collect();
        if self.records.read(name) == apps {
            return Ok(());
        }
        self.records.write(name, &apps).map_err(|error| disk(&error))
    }

    async fn take_down(&self, name: &str) -> Result<(), AzureError> {
        let apps = self.records.read(name);
        if apps.is_empty() {
            return Ok(());
        }
        let account = self.account.as_ref().map_err(Clone::clone)?;
        for record in &apps {
            remove(account, name, record).await?;
        }
        account.packages.remove(name).await?;
        self.records.forget(name).map_err(|error| disk(&error))
    }
}

/// Removes the app of a function. One that was there before Berth is stopped, and one that belongs to somebody else by now stays.
async fn remove(account: &Account, function: &str, record: &Record) -> Result<(), AzureError> {
    let app = AzureApp { group: record.group.clone(), app: record.app.clone() };
    let paths = Paths::of(&account.config, &app);
    let Some(found) = account.manager.get(&paths.site(DeploymentSlot::Production, "")).await? else { return Ok(()) };
    if app::owner(&found) != Some(function) {
        tracing::warn!(
            event = "function_app_left",
            function,
            app = record.app,
            "the app belongs to somebody else: it stays"
        );
        return Ok(());
    }
    if app::is_created(&found) {
        // Azure deletes a plan with its last app, and an app with its slots.
        account.manager.run(Method::DELETE, &paths.site(DeploymentSlot::Production, ""), None).await?;
        return Ok(());
    }
    account.manager.run(Method::DELETE, &paths.site(DeploymentSlot::Slot, ""), None).await?;
    account.manager.run(Method::POST, &paths.site(DeploymentSlot::Production, "/stop"), None).await.map(drop)
}

impl Deployment<'_> {
    async fn app(&self, slot: DeploymentSlot) -> Result<Option<Value>, AzureError> {
        self.account.manager.get(&self.paths.site(slot, "")).await
    }

    async fn has(&self, slot: DeploymentSlot) -> Result<BTreeMap<String, String>, AzureError> {
        let path = self.paths.site(slot, "/config/appsettings/list");
        Ok(app::listed(&self.account.manager.run(Method::POST, &path, None).await?))
    }

    fn may_have(&self, app: &Value, wanted: &AzureApp) -> Result<(), AzureError> {
        match app::owner(app).filter(|owner| *owner != self.spec.name.as_str()) {
            Some(other) => {
                let message = format!(
                    "the app {} belongs to the function {other}: choose another spec.target.appName",
                    wanted.app
                );
                Err(AzureError::lasting("AppTaken", message))
            }
            None => Ok(()),
        }
    }

    /// Marks an app that was there before as the function's, so that no other function takes it.
    async fn own(&self, app: &Value) -> Result<(), AzureError> {
        if app::owner(app).is_some() {
            return Ok(());
        }
        let body = app::owned_by(self.spec.name.as_str());
        self.account.manager.run(Method::PATCH, &self.paths.tags(), Some(&body)).await.map(drop)
    }

    fn endpoint(&self, app: &Value) -> Result<String, AzureError> {
        let none = || AzureError::passing("NoAddress", "Azure names no address of the app yet");
        app::endpoint(&self.account.config, app, self.spec).ok_or_else(none)
    }

    /// Writes the settings of a place over those that it has, or over those of production.
    async fn set(&self, slot: DeploymentSlot, from: DeploymentSlot) -> Result<(), AzureError> {
        let settings = app::merged(&self.has(from).await?, &self.settings, &self.earlier);
        let path = self.paths.site(slot, "/config/appsettings");
        self.account.manager.run(Method::PUT, &path, Some(&json!({"properties": settings}))).await.map(drop)
    }

    /// Creates the app with its plan. Nothing serves yet, so that no slot is needed.
    async fn create(&self) -> Result<String, AzureError> {
        let manager = &self.account.manager;
        let group = manager.get(&self.paths.group()).await?;
        let location = group.as_ref().and_then(|group| group.get("location")?.as_str());
        let none = || {
            AzureError::passing(
                "NoResourceGroup",
                "there is no such resource group: create it, or change spec.target.resourceGroup",
            )
        };
        let location = location.ok_or_else(none)?;
        manager.run(Method::PUT, &self.paths.plan(), Some(&app::plan(location))).await?;
        let body = app::site(&self.paths, location, self.spec, None);
        manager.run(Method::PUT, &self.paths.site(DeploymentSlot::Production, ""), Some(&body)).await?;
        self.set(DeploymentSlot::Production, DeploymentSlot::Production).await?;
        let endpoint = self.proved(DeploymentSlot::Production).await?;
        self.announce().await?;
        Ok(endpoint)
    }

    /// Deploys into the slot, and swaps it with production once it answers.
    async fn replace(&self, app: &Value) -> Result<String, AzureError> {
        let manager = &self.account.manager;
        let location = app.get("location").and_then(Value::as_str).unwrap_or_default();
        let body = app::site(&self.paths, location, self.spec, Some(app));
        manager.run(Method::PUT, &self.paths.site(DeploymentSlot::Slot, ""), Some(&body)).await?;
        self.set(DeploymentSlot::Slot, DeploymentSlot::Production).await?;
        manager.run(Method::POST, &self.paths.site(DeploymentSlot::Slot, "/start"), None).await?;
        self.proved(DeploymentSlot::Slot).await?;
        self.swap().await?;
        // A swap whose answer was lost is asked for again, and the second undoes the first.
        if !app::runs(&self.has(DeploymentSlot::Production).await?, &self.settings) {
            return Err(AzureError::passing(
                "SwapUndone",
                "the earlier version serves after the swap: it is tried again",
            ));
        }
        if app.pointer("/properties/state").and_then(Value::as_str) != Some("Running") {
            manager.run(Method::POST, &self.paths.site(DeploymentSlot::Production, "/start"), None).await?;
        }
        match self.proved(DeploymentSlot::Production).await {
            Ok(endpoint) => {
                self.announce().await?;
                Ok(endpoint)
            }
            Err(error) => {
                self.swap().await?;
                let message = format!("{}; the earlier version was swapped back", error.message);
                Err(AzureError { message, ..error })
            }
        }
    }

    async fn swap(&self) -> Result<(), AzureError> {
        let path = self.paths.site(DeploymentSlot::Slot, "/slotsswap");
        self.account.manager.run(Method::POST, &path, Some(&app::swap())).await.map(drop)
    }

    /// Tells Azure's scaling of the functions in the package: it does not read a package at a URL by itself.
    async fn announce(&self) -> Result<(), AzureError> {
        let path = self.paths.site(DeploymentSlot::Production, "/syncfunctiontriggers");
        self.account.manager.run(Method::POST, &path, None).await.map(drop)
    }

    /// Asks the function in a place until it answers; its endpoint.
    async fn proved(&self, slot: DeploymentSlot) -> Result<String, AzureError> {
        let none = || AzureError::passing("NotFound", "the app has gone: somebody deletes it meanwhile");
        let endpoint = self.endpoint(&self.app(slot).await?.ok_or_else(none)?)?;
        let deadline = Instant::now() + LONGEST_START;
        let mut key = None;
        loop {
            let Some(said) = self.ask(slot, &endpoint, &mut key).await? else { return Ok(endpoint) };
            if Instant::now() >= deadline {
                let message = format!(
                    "the new version does not answer at {endpoint} within {} s: {said}",
                    LONGEST_START.as_secs()
                );
                return Err(AzureError::lasting("NotStarted", message));
            }
            tokio::time::sleep(PROBE_AGAIN).await;
        }
    }

    /// Asks the function once. `None`: it answers; else what is said while it starts. `key` is kept for the next attempt.
    async fn ask(
        &self,
        slot: DeploymentSlot,
        endpoint: &str,
        key: &mut Option<String>,
    ) -> Result<Option<String>, AzureError> {
        let manager = &self.account.manager;
        if self.spec.entry.auth == AuthLevel::Function && key.is_none() {
            match manager.run(Method::POST, &self.paths.site(slot, app::KEYS), None).await {
                Ok(listed) => *key = app::key(&listed),
                Err(error) if error.reason == NOT_ALLOWED => return Err(error),
                // The host of the app keeps the keys, and has not started.
                Err(error) => return Ok(Some(error.message)),
            }
            if key.is_none() {
                return Ok(Some("the app has no key yet".to_owned()));
            }
        }
        let body = self.spec.probe.as_ref().map_or("{}".to_owned(), Value::to_string);
        let mut asked = manager.http().post(endpoint).header(CONTENT_TYPE, "application/json").body(body);
        if let Some(key) = key.as_deref() {
            asked = asked.header("x-functions-key", key);
        }
        let answer = match asked.send().await {
            Ok(answer) => answer,
            Err(error) => return Ok(Some(error.without_url().to_string())),
        };
        let status = answer.status();
        // Somebody has renewed the key, or the host does not know it yet.
        let is_stale = status == StatusCode::UNAUTHORIZED && key.take().is_some();
        let starts = is_stale || starts(status, answer.headers());
        if status.is_success() || (self.spec.probe.is_none() && !starts) {
            return Ok(None);
        }
        let said = format!("{status} {}", beginning(answer).await);
        if starts {
            return Ok(Some(said));
        }
        Err(AzureError::lasting("ProbeFailed", format!("the new version answers spec.probe with {said}")))
    }
}

/// True of an answer that a host gives while it starts: 403 where it is still stopped, 404 where it has not found its functions. Its 404 is
/// empty or a page; one with JSON is the function's own.
fn starts(status: StatusCode, headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let is_json = kind.trim_start().to_ascii_lowercase().starts_with("application/json");
    matches!(status.as_u16(), 403 | 502 | 503 | 504) || (status == StatusCode::NOT_FOUND && !is_json)
}

/// The first words of an answer, which comes from code that may send anything.
async fn beginning(mut answer: reqwest::Response) -> String {
    let mut bytes = Vec::new();
    while bytes.len() < BEGINNING {
        let Ok(Some(piece)) = answer.chunk().await else { break };
        bytes.extend_from_slice(&piece[..piece.len().min(BEGINNING)]);
    }
    String::from_utf8_lossy(&bytes).chars().take(BEGINNING).collect()
}

fn disk(error: &io::Error) -> AzureError {
    AzureError::passing("DiskError", format!("{error}: check the disk of --data"))
}

fn failure(error: AzureError, took: Duration) -> Failure {
    let AzureError { reason, message, retry, .. } = error;
    Failure { reason, message, retry, log_tail: String::new(), took }
}

impl Target for AzureTarget {
    fn deploy<'a>(&'a self, task: &'a Task, artifact: &'a ArtifactStatus) -> BoxFuture<'a, Result<Deployed, Failure>> {
        async move {
            let started = Instant::now();
            let done = match self.dependencies.admit(dependencies::of_azure(), now()) {
                Ok(permit) => {
                    let done = self.bring_up(task, artifact).await;
                    match &done {
                        Ok(_) => permit.answered(),
                        Err(error) if error.away => permit.failed(now()),
                        Err(_) => {}
                    }
                    done
                }
                Err(BreakerOpen { message, until }) => {
                    Err(AzureError { retry: Retry::At(until), ..AzureError::passing("LeftAlone", message) })
                }
            };
            done.map_err(|error| failure(error, started.elapsed()))
        }
        .boxed()
    }

    fn remove<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), Failure>> {
        async move { self.take_down(name).await.map_err(|error| failure(error, Duration::ZERO)) }.boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_404_with_json_is_the_functions_own() {
        for (status, kind, waits) in [
            (404, "", true),
            (404, "text/html; charset=utf-8", true),
            (404, "application/json", false),
            (404, "Application/JSON; charset=utf-8", false),
            (403, "application/json", true),
            (503, "text/plain", true),
            (500, "", false),
            (401, "", false),
            (200, "application/json", false),
        ] {
            let mut headers = HeaderMap::new();
            if !kind.is_empty() {
                headers.insert(CONTENT_TYPE, kind.parse().expect("a header"));
            }
            let code = StatusCode::from_u16(status).expect("a status");
            assert_eq!(starts(code, &headers), waits, "{status} {kind}");
        }
    }
}
