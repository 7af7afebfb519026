//! Carries out what the controller decides, in one loop.
//!
//! ```text
//! follow ─Update─▶ ┐                     ┌──▶ build, deploy: tasks that can be cancelled
//! tasks  ──Event─▶ ├─▶ controller ──────▶├──▶ remove
//! timers ────────▶ ┘      │ Effect       └──▶ write a status (one at a time for each function)
//!                         └──▶ summaries: what people see
//! ```

use std::{
    collections::BTreeMap,
    io,
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use berth_control::store::Rev;
use berth_spec::{Time, event::Severity};
use tokio::{
    sync::mpsc,
    task::{JoinError, JoinSet},
    time::MissedTickBehavior,
};
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use crate::{
    build::append_to_log,
    controller::{Built, Controller, Deployed, Effect, Event, Failure, Served, Task},
    follow::{StoreUpdate, follow},
    objects::Objects,
    running_tasks::{RunningTasks, TaskKind},
    source::{FunctionEvent, Host, Report, Summary},
    spans::Spans,
    target::Target,
    writer,
};

/// News that wait for the controller: a burst of changes; senders wait beyond that.
const QUEUE: usize = 256;

/// Interval at which idle processes are looked for: their times are given in seconds.
const SWEEP: Duration = Duration::from_secs(1);

/// Sweeps between two clean-ups of the disk.
const CLEAN_EVERY: u32 = 60;

/// Clean-ups between two looks at functions that run elsewhere: Resource Manager counts the calls of an hour.
const VERIFY_EVERY: u32 = 10;

/// Pause before a function is removed again that a target could not remove: clouds take as long to get over most errors.
const REMOVE_AGAIN: Duration = Duration::from_secs(15);

/// Pause before a status is written again that the store did not take: an election of etcd takes about as long.
const WRITE_AGAIN: Duration = Duration::from_secs(1);

/// Reason and remedy where two write the same statuses.
const CONTENDED: &str = "somebody else writes its status again and again: have one server, or the nodes of one cluster, follow these \
                         objects, and give others a prefix of their own";

/// News that are told to people together: a store may tell of thousands at once.
const AT_ONCE: usize = 256;

/// Reach of news.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum NewsScope {
    /// Nothing new.
    Nothing,
    /// Something.
    News,
    /// All that there is.
    All,
}

/// The driver of one term.
pub(crate) struct Driver {
    objects: Objects,
    host: Arc<Host>,
    controller: Controller,
    reports: mpsc::Sender<Report>,
    events: Vec<FunctionEvent>,
    work: JoinSet<Option<Event>>,
    tasks: RunningTasks,
    spans: Spans,
    rev: Rev,
    /// The reason why nothing new is heard.
    problem: Option<String>,
}

impl Driver {
    /// A driver of objects; `replicas` are functions that have a deployment since before.
    pub(crate) fn new(
        objects: Objects,
        host: Arc<Host>,
        reports: mpsc::Sender<Report>,
        replicas: BTreeMap<String, Served>,
    ) -> Self {
        // Numbers of builds are times, so that those of two terms differ.
        let mut serving = host.serving();
        for (name, served) in replicas {
            serving.entry(name).or_insert(served);
        }
        let controller = Controller::new(host.policy(), now().as_millis(), serving);
        Self {
            objects,
            host,
            controller,
            reports,
            events: Vec::new(),
            work: JoinSet::new(),
            tasks: RunningTasks::default(),
            spans: Spans::default(),
            rev: Rev::NONE,
            problem: None,
        }
    }

    /// Runs until the end of the term. What is deployed goes on serving.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let (news, mut heard) = mpsc::channel(QUEUE);
        let mut following = JoinSet::new();
        following.spawn(follow(self.objects.clone(), news));
        let (mut sweep, mut sweeps, mut looks) = (tokio::time::interval(SWEEP), 0_u32, 0_u32);
        sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let wake = self.controller.wake_at().map_or(SWEEP, |at| at.since(now()));
            tokio::select! {
                () = stop.cancelled() => break,
                Some(told) = heard.recv() => {
                    let mut heard_now = self.hear(told);
                    for _ in 1..AT_ONCE {
                        let Ok(told) = heard.try_recv() else { break };
                        heard_now = heard_now.max(self.hear(told));
                    }
                    if heard_now != NewsScope::Nothing {
                        self.report().await;
                    }
                    // A term that has ended takes nothing on: another node may have it by now.
                    if heard_now == NewsScope::All && !stop.is_cancelled() {
                        // From now on it is known what there is, and whose it is.
                        self.host.attach(Some(self.objects.clone()));
                    }
                }
                Some(done) = self.work.join_next(), if !self.work.is_empty() => {
                    let mut is_news = self.ended(done);
                    for _ in 1..AT_ONCE {
                        let Some(done) = self.work.try_join_next() else { break };
                        is_news |= self.ended(done);
                    }
                    if is_news {
                        self.report().await;
                    }
                }
                () = tokio::time::sleep(wake) => self.on(Event::Tick),
                _ = sweep.tick() => {
                    self.host.sweep(Instant::now());
                    sweeps = (sweeps + 1) % CLEAN_EVERY;
                    if sweeps == 0 {
                        self.clean();
                        looks = (looks + 1) % VERIFY_EVERY;
                        if looks == 0 {
                            self.on(Event::Verify);
                        }
                    }
                }
            }
        }
        self.host.attach(None);
        self.work.shutdown().await;
        following.shutdown().await;
    }

    fn hear(&mut self, told: StoreUpdate) -> NewsScope {
        match told {
            StoreUpdate::Event(event, rev) => {
                self.rev = rev;
                let heard = if matches!(event, Event::Listed(_)) { NewsScope::All } else { NewsScope::News };
                self.on(event);
                heard
            }
            StoreUpdate::Unavailable(problem) => {
                self.problem = Some(problem);
                NewsScope::News
            }
            StoreUpdate::Available if self.problem.take().is_some() => NewsScope::News,
            StoreUpdate::Available => NewsScope::Nothing,
        }
    }

    /// Takes in the end of a task; true if it tells of something.
    fn ended(&mut self, done: Result<Option<Event>, JoinError>) -> bool {
        let event = match done {
            Ok(event) => event,
            Err(error) if error.is_cancelled() => None,
            Err(error) => {
                tracing::error!(event = "function_task_broke", %error, "please report it");
                self.tasks.broke(&error).inspect(|event| self.count(event))
            }
        };
        let Some(event) = event else { return false };
        self.tasks.ended(&event);
        self.on(event);
        true
    }

    /// Counts a build whose task could not.
    fn count(&self, event: &Event) {
        if let Event::Built(id, built) = event
            && let Some(name) = self.controller.name_of(*id)
        {
            self.host.count(name, built);
        }
    }

    fn on(&mut self, event: Event) {
        self.events.extend(function_event(&event, &self.controller));
        self.spans.ended(&event);
        let effects = self.controller.on(event, now());
        for effect in effects {
            self.perform(effect);
        }
    }

    fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Build(id, task) => {
                let host = Arc::clone(&self.host);
                let turn = self.spans.begin(id, &task, host.traces());
                let span = tracing::info_span!(parent: &turn, "build", source = %task.spec.source);
                let work = async move {
                    let built = match host.refusal(&task.spec) {
                        None => host.builder().build(id, &task).await,
                        Some(refusal) => Err(refusal),
                    };
                    tell_built(&task, &built);
                    host.count(task.spec.name.as_str(), &built);
                    Some(Event::Built(id, Box::new(built)))
                };
                self.tasks.begin(id, TaskKind::Build, self.work.spawn(work.instrument(span)));
            }
            Effect::Deploy(id, task, artifact) => {
                let host = Arc::clone(&self.host);
                let span =
                    tracing::info_span!(parent: &self.spans.of(id), "deploy", artifact = artifact.digest.as_str());
                let work = async move {
                    let deployed = host.target(&task.spec.platform).deploy(&task, &artifact).await;
                    tell_deployed(&task, &deployed);
                    match &deployed {
                        Ok(_) => {
                            leave(host.others(&task.spec.platform).into_iter(), task.spec.name.as_str()).await;
                        }
                        Err(failure) => keep_output(&host, task.spec.name.as_str(), &failure.log_tail).await,
                    }
                    Some(Event::Deployed(id, deployed))
                };
                self.tasks.begin(id, TaskKind::Deployment, self.work.spawn(work.instrument(span)));
            }
            Effect::Cancel(id) => {
                self.spans.cancelled(id);
                self.tasks.cancel(id);
            }
            Effect::Remove(key) => {
                let host = Arc::clone(&self.host);
                self.work.spawn(async move {
                    // What a cloud refuses now it may do later; the object stays Terminating until then.
                    while !leave(host.targets().into_iter(), &key).await {
                        tokio::time::sleep(REMOVE_AGAIN).await;
                    }
                    forget_log(&host, &key).await;
                    tracing::info!(event = "function_removed", function = %key, "nothing of it is left");
                    Some(Event::Removed(key))
                });
            }
            Effect::Delete(key, identity) => {
                let objects = self.objects.clone();
                self.work.spawn(async move {
                    while let Err(error) = writer::remove(&*objects.store, &objects.key(&key), &identity).await {
                        tracing::debug!(event = "function_not_deleted", function = %key, %error);
                        tokio::time::sleep(WRITE_AGAIN).await;
                    }
                    None
                });
            }
            Effect::Contended(key) => {
                tracing::warn!(event = "function_status_contended", function = %key, "{CONTENDED}");
                self.events.push(event_of(&key, Severity::Warning, "FunctionContended", CONTENDED));
            }
            Effect::Write(key, identity, status) => {
                let objects = self.objects.clone();
                self.work.spawn(async move {
                    loop {
                        match writer::write(&*objects.store, &objects.key(&key), &identity, &status).await {
                            Ok(written) => return Some(Event::Written(key, status, written)),
                            Err(error) => tracing::debug!(event = "function_status_unwritten", function = %key, %error),
                        }
                        tokio::time::sleep(WRITE_AGAIN).await;
                    }
                });
            }
        }
    }

    /// Tells people how things stand.
    async fn report(&mut self) {
        let counts = self.controller.counts();
        let changed = self.controller.changed().into_iter();
        self.host.show(changed.map(|(name, view)| (name, view.map(|view| Summary::of(&view)))), &counts);
        let events = std::mem::take(&mut self.events);
        let report = Report { rev: self.rev, problem: self.problem.clone(), functions: counts, events };
        // Nobody listens at the end of a term.
        let _ = self.reports.send(report).await;
    }

    fn clean(&mut self) {
        let mut used = self.host.local().used();
        used.extend(self.controller.view().flat_map(|view| view.status.artifacts()).map(str::to_owned));
        let host = Arc::clone(&self.host);
        self.work.spawn(async move {
            let swept = tokio::task::spawn_blocking(move || {
                if let Err(error) = host.builder().artifacts().sweep(&used) {
                    tracing::warn!(event = "artifacts_not_swept", %error);
                }
                if let Err(error) = host.builder().sweep_packages() {
                    tracing::warn!(event = "function_packages_not_cleared", %error);
                }
            });
            // One that panics has told so, and is made anew.
            let _ = swept.await;
            None
        });
    }
}

/// Removes a function from some targets; true if nothing of it is left there.
async fn leave(targets: impl Iterator<Item = &dyn Target>, name: &str) -> bool {
    let mut left = true;
    for target in targets {
        if let Err(failure) = target.remove(name).await {
            tracing::warn!(event = "function_not_removed", function = name, reason = failure.message);
            left = false;
        }
    }
    left
}

/// Adds the output of a version that did not start to the log of its build: its own files are gone.
async fn keep_output(host: &Host, name: &str, output: &str) {
    if output.is_empty() {
        return;
    }
    let path = host.builder().log_path(name);
    let text = format!("--- output of the version that failed ---\n{}\n", output.trim_end());
    let kept = tokio::task::spawn_blocking(move || append_to_log(&path, &text)).await;
    if let Ok(Err(error)) = kept {
        tracing::debug!(event = "function_output_not_kept", function = name, %error);
    }
}

/// Deletes the log of a function that is gone: the next one of its name may be somebody else's.
async fn forget_log(host: &Host, name: &str) {
    let path = host.builder().log_path(name);
    let deleted = tokio::task::spawn_blocking(move || fs_err::remove_file(path)).await;
    if let Ok(Err(error)) = deleted
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::debug!(event = "function_log_not_deleted", function = name, %error);
    }
}

/// The time.
pub(crate) fn now() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

/// Tells people of an event.
fn function_event(event: &Event, controller: &Controller) -> Option<FunctionEvent> {
    let (severity, reason, task, message) = match event {
        Event::Deployed(task, Ok(deployed)) if !controller.is_proved(*task) => {
            (Severity::Normal, "FunctionDeployed", task, format!("answers at {}", deployed.endpoint))
        }
        Event::Deployed(task, Err(failure)) => {
            (Severity::Warning, "FunctionNotDeployed", task, failure.message.clone())
        }
        Event::Built(task, built) => match &**built {
            Err(failure) => (Severity::Warning, "FunctionNotBuilt", task, failure.message.clone()),
            Ok(built) if built.restored || built.cached => return None,
            Ok(built) => {
                let text = format!("{} was built in {:.1} s", built.artifact.digest, built.took.as_secs_f64());
                (Severity::Normal, "FunctionBuilt", task, text)
            }
        },
        Event::Removed(name) => {
            return Some(event_of(name, Severity::Normal, "FunctionRemoved", "is removed"));
        }
        _ => return None,
    };
    Some(event_of(controller.name_of(*task)?, severity, reason, &message))
}

fn event_of(name: &str, severity: Severity, reason: &'static str, message: &str) -> FunctionEvent {
    FunctionEvent { severity, reason, function: name.to_owned(), message: format!("function {name}: {message}") }
}

fn tell_built(task: &Task, built: &Result<Built, Failure>) {
    let function = &task.spec.name;
    match built {
        Ok(built) if built.restored => {}
        Ok(built) => tracing::info!(
            event = "function_built", %function, artifact = built.artifact.digest, size = built.artifact.size,
            cached = built.cached, took_ms = u64::try_from(built.took.as_millis()).unwrap_or(u64::MAX), "built"
        ),
        Err(failure) => {
            tracing::warn!(event = "function_build_failed", %function, reason = failure.reason, message = failure.message);
        }
    }
}

fn tell_deployed(task: &Task, deployed: &Result<Deployed, Failure>) {
    let function = &task.spec.name;
    match deployed {
        Ok(deployed) => tracing::info!(event = "function_deployed", %function, endpoint = deployed.endpoint, "serving"),
        Err(failure) => {
            tracing::warn!(event = "function_deploy_failed", %function, reason = failure.reason, message = failure.message);
        }
    }
}
