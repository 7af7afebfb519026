//! Changes of virtual models to another target: the target is loaded as often as the active model, then requests switch.
//!
//! ```text
//! Loading ──as many ready as the active model has──▶ switched
//!    └ failed: told, and tried again as the planner does ┘
//! ```
//! The active model answers until then, also if it had to leave for its own successor: its next request loads it again.
//! One task per change, for as long as it lasts. What is to change is in the store, so a new leader goes on.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use berth_control::{
    Handle,
    handle::{
        DeclaredAlias, DeploymentPage, DeploymentView, Error, ListRequest, WatchEvent, WatchRequest, WatchStream,
    },
};
use berth_spec::DeploymentName;
use futures::StreamExt as _;
use tokio::{
    sync::{Semaphore, watch},
    time::{sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic::Status;

use crate::{
    code::status,
    load, models,
    status::ModelState,
    vmodels::{self, VModel},
};

/// The time after which a change looks again though nothing was told: somebody may have changed the alias elsewhere.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// The time for which a model keeps its copies after a switch: until the rate of its requests is known, which then decides.
const KEEP_COPIES_FOR: Duration = Duration::from_secs(60);

/// The time between two looks for models that were to go with their last virtual model and did not: nobody waits for them.
const LOOK_FOR_LEFT: Duration = Duration::from_secs(600);

/// Writes of virtual models at once, those whose callers have left included: as many as there are calls at once.
const WRITES: usize = 512;

/// The changes under way.
pub(crate) struct Transitions {
    handle: Handle,
    going: Going,
    tasks: TaskTracker,
    writes: Arc<Semaphore>,
    /// Counts steps of changes.
    progress: watch::Sender<u64>,
    stop: CancellationToken,
}

impl Transitions {
    pub(crate) fn new(handle: Handle) -> Arc<Self> {
        let (progress, _) = watch::channel(0);
        let (writes, stop) = (Arc::new(Semaphore::new(WRITES)), CancellationToken::new());
        Arc::new(Self { handle, going: Going::default(), tasks: TaskTracker::new(), writes, progress, stop })
    }

    /// Goes on with the changes that were under way when the last leader ended.
    pub(crate) fn resume(self: &Arc<Self>) {
        let (me, handle) = (Arc::downgrade(self), self.handle.clone());
        let labels = BTreeMap::from([(models::RAISED.to_owned(), "true".to_owned())]);
        let raised = ListRequest { labels, ..ListRequest::default() };
        self.tasks.spawn(self.stop.clone().run_until_cancelled_owned(async move {
            let cool = |found: DeploymentView| {
                if let Some(me) = me.upgrade() {
                    me.cool(&found.deployment.name);
                }
            };
            every(raised, |request| handle.list(request), cool).await;
            let go_on = |found: DeclaredAlias| {
                let changes = found.alias.targets.iter().any(|(_, weight)| *weight == 0);
                if let Some(me) = me.upgrade().filter(|_| changes) {
                    me.changed(&found.alias.name);
                }
            };
            every(ListRequest::default(), |request| handle.aliases(request), go_on).await;
        }));
    }

    /// Releases again and again the models that no virtual model leads to any more, and that are still there: the leader died before
    /// it had let go of them, or somebody deleted or changed the alias elsewhere.
    pub(crate) fn release_left(&self) {
        self.tasks.spawn(self.stop.clone().run_until_cancelled_owned(release_left(self.handle.clone())));
    }

    /// Leaves the number of copies of a model to requests again, after a while.
    pub(crate) fn cool(self: &Arc<Self>, model: &DeploymentName) {
        let (handle, stop, model) = (self.handle.clone(), self.stop.clone(), model.clone());
        self.tasks.spawn(stop.run_until_cancelled_owned(async move {
            sleep(KEEP_COPIES_FOR).await;
            if let Err(error) = lower_unless_awaited(&handle, &model).await {
                tracing::warn!(event = "model_kept_up", %model, %error, "the number of copies of a model stays as it was");
            }
        }));
    }

    /// Steps of changes as they come.
    pub(crate) fn progress(&self) -> watch::Receiver<u64> {
        self.progress.subscribe()
    }

    /// A virtual model was written: whoever waits looks again, and a change begins if there is one.
    pub(crate) fn changed(self: &Arc<Self>, vmodel: &DeploymentName) {
        self.stepped();
        if let Some(written) = self.going.begin(vmodel) {
            let change = follow(Arc::downgrade(self), self.handle.clone(), vmodel.clone(), written);
            self.tasks.spawn(self.stop.clone().run_until_cancelled_owned(change));
        }
    }

    /// True while a virtual model is being changed.
    pub(crate) fn is_going(&self, vmodel: &DeploymentName) -> bool {
        self.going.locked().contains_key(vmodel)
    }

    /// Runs a change to its end, also where its caller leaves half way.
    pub(crate) async fn finish<T: Send + 'static>(
        &self,
        change: impl Future<Output = Result<T, Status>> + Send + 'static,
    ) -> Result<T, Status> {
        to_its_end(&self.tasks, &self.writes, change).await
    }

    fn stepped(&self) {
        self.progress.send_modify(|count| *count += 1);
    }
}

/// Runs a change as a task. It counts until it has ended: callers who leave would make any number of them while the store is slow.
async fn to_its_end<T: Send + 'static>(
    tasks: &TaskTracker,
    writes: &Arc<Semaphore>,
    change: impl Future<Output = Result<T, Status>> + Send + 'static,
) -> Result<T, Status> {
    let full = |_| Status::unavailable(format!("{WRITES} changes are being written: try again in a second"));
    let place = Arc::clone(writes).try_acquire_owned().map_err(full)?;
    let counted = async move {
        let _place = place;
        change.await
    };
    let broke = |error| Status::internal(format!("the change broke, please report it: {error}"));
    tasks.spawn(counted).await.map_err(broke)?
}

impl Drop for Transitions {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// The virtual models that are being changed, and a word for each change that it was written again.
#[derive(Default)]
struct Going(Mutex<BTreeMap<DeploymentName, watch::Sender<()>>>);

impl Going {
    /// Begins a change, which hears of later writes; `None`: it is under way, and hears of this one.
    fn begin(&self, vmodel: &DeploymentName) -> Option<watch::Receiver<()>> {
        let mut going = self.locked();
        if let Some(change) = going.get(vmodel) {
            change.send_replace(());
            return None;
        }
        let (change, written) = watch::channel(());
        going.insert(vmodel.clone(), change);
        Some(written)
    }

    /// Ends a change. False: the virtual model was written since that was last seen.
    fn end(&self, vmodel: &DeploymentName, written: &watch::Receiver<()>) -> bool {
        let mut going = self.locked();
        let ends = !written.has_changed().unwrap_or(false);
        if ends {
            going.remove(vmodel);
        }
        ends
    }

    fn locked(&self) -> MutexGuard<'_, BTreeMap<DeploymentName, watch::Sender<()>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Follows a virtual model until it changes no more.
async fn follow(of: Weak<Transitions>, handle: Handle, vmodel: DeploymentName, mut written: watch::Receiver<()>) {
    loop {
        written.mark_unchanged();
        let found = match vmodels::read(&handle, &vmodel).await {
            Ok(found) => found.filter(VModel::changes),
            Err(error) => {
                tracing::warn!(event = "vmodel_unread", %vmodel, %error, "a virtual model cannot be read: trying again");
                sleep(LOOK_AGAIN).await;
                continue;
            }
        };
        let Some(found) = found else {
            let Some(me) = of.upgrade() else { return };
            if me.going.end(&vmodel, &written) {
                return me.stepped();
            }
            continue;
        };
        match watched_step(&handle, &found).await {
            Ok(None) => {
                tracing::info!(event = "vmodel_switched", %vmodel, model = %found.target, "requests go to the new target");
                if let Some(me) = of.upgrade() {
                    me.cool(&found.target);
                }
            }
            Ok(Some(changes)) => wait(changes, &mut written).await,
            Err(error) => {
                tracing::warn!(event = "vmodel_stuck", %vmodel, %error, "the change of a virtual model is tried again");
                sleep(LOOK_AGAIN).await;
            }
        }
        let Some(me) = of.upgrade() else { return };
        me.stepped();
    }
}

/// Releases models that are left, first once a term has begun for good, then every [`LOOK_FOR_LEFT`].
async fn release_left(handle: Handle) {
    // Callers repeat what the last leader had begun.
    let (mut before, mut pause) = (handle.now(), KEEP_COPIES_FOR);
    loop {
        sleep(pause).await;
        let now = handle.now();
        if let Err(error) = models::release_left(&handle, before).await {
            tracing::warn!(event = "models_unread", %error, "models that no virtual model leads to are not found: trying again later");
        }
        // Of those that came since, some are about to be led to.
        (before, pause) = (now, LOOK_FOR_LEFT);
    }
}

/// Hands on each item of a list that has pages. A page that cannot be read is asked for again.
async fn every<T, F>(request: ListRequest, list: impl Fn(ListRequest) -> F, hand_on: impl Fn(T))
where
    F: Future<Output = Result<DeploymentPage<T>, Error>>,
{
    let mut after = None;
    loop {
        match list(ListRequest { after: after.clone(), ..request.clone() }).await {
            Ok(page) => {
                page.items.into_iter().for_each(&hand_on);
                after = page.next;
                if after.is_none() {
                    return;
                }
            }
            Err(error) => {
                tracing::warn!(event = "vmodels_unread", %error, "models and virtual models cannot be listed: trying again");
                sleep(LOOK_AGAIN).await;
            }
        }
    }
}

/// Leaves the number of copies to requests, unless a virtual model is on its way to this model.
async fn lower_unless_awaited(handle: &Handle, model: &DeploymentName) -> Result<(), Status> {
    for vmodel in handle.aliases_of(model).await.map_err(status)? {
        if vmodels::read(handle, &vmodel).await?.is_some_and(|found| found.changes() && found.target == *model) {
            return Ok(());
        }
    }
    models::lower(handle, model).await
}

/// A step, and what happens to the target from before it looked; `None`: switched. What came between a look and a later
/// subscription would not wake it.
async fn watched_step(handle: &Handle, found: &VModel) -> Result<Option<WatchStream>, Status> {
    let request = WatchRequest { name: Some(found.target.clone()), ..WatchRequest::default() };
    let changes = handle.watch(request).await.map_err(status)?;
    Ok((!step(handle, found).await?).then_some(changes))
}

/// Switches if the target is ready for it, else has it loaded. True: switched.
async fn step(handle: &Handle, found: &VModel) -> Result<bool, Status> {
    let (active, target) = (load::state(handle, &found.active).await, load::state(handle, &found.target).await);
    let copies = wanted_of(&active);
    if takes_over(&target, copies, planned_for(handle, &found.target).await) {
        let (vmodel, owner, target) = (&found.name, found.owner.as_str(), &found.target);
        let switched = vmodels::write(handle, vmodel, owner, target, target, found.rev).await?;
        if switched && let Err(error) = vmodels::settle(handle, found, target, target).await {
            let model = &found.active;
            tracing::warn!(event = "model_not_released", %model, %error, "no virtual model leads to the model, which stays");
        }
        return Ok(switched);
    }
    if copies > 1 {
        models::raise(handle, &found.target, copies).await?;
    }
    load::start(handle, &found.target, None).await?;
    Ok(false)
}

/// The copies that a target should have before requests switch. At least one, also where the active model has none any
/// more: it may have left for this very target, which may fail.
fn wanted_of(active: &ModelState) -> u32 {
    active.ready.max(1)
}

/// Returns true if requests switch to a target that should have so many copies. Once its plan was made for as many, fewer
/// are enough: there is no room for more.
fn takes_over(target: &ModelState, copies: u32, planned_for: u32) -> bool {
    let all_there_is = target.coming == 0 && planned_for >= copies;
    target.ready > 0 && (target.ready >= copies || all_there_is)
}

/// The least number of copies that a model's last plan was made for; 0: no plan since it was changed.
async fn planned_for(handle: &Handle, model: &DeploymentName) -> u32 {
    let Ok(view) = handle.get(model).await else { return 0 };
    let seen = view.status.as_ref().is_some_and(|status| status.observed_generation == view.deployment.generation);
    if seen { view.deployment.spec.replicas.min } else { 0 }
}

/// Waits until something may have changed.
async fn wait(mut changes: WatchStream, written: &mut watch::Receiver<()>) {
    let told = async {
        // What there was at the beginning was looked at.
        let mut present = true;
        while let Some(Ok(event)) = changes.next().await {
            match event {
                WatchEvent::Bookmark(_) => present = false,
                _ if present => {}
                _ => return,
            }
        }
    };
    let change = async {
        tokio::select! {
            () = told => {}
            _ = written.changed() => {}
        }
    };
    // Over either way: it looks again.
    let _looks_again = timeout(LOOK_AGAIN, change).await.is_err();
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn a_change_counts_until_it_has_ended_though_its_caller_has_left() {
        let (tasks, writes) = (TaskTracker::new(), Arc::new(Semaphore::new(1)));
        let (end, ended) = oneshot::channel();
        let change = async move { ended.await.map_err(|_| Status::internal("nobody ends it")) };
        assert!(to_its_end(&tasks, &writes, change).now_or_never().is_none(), "its caller leaves");
        let refused = to_its_end(&tasks, &writes, async { Ok(()) }).await.expect_err("it goes on");
        assert_eq!(refused.code(), tonic::Code::Unavailable);
        end.send(()).expect("it goes on");
        drop(writes.acquire().await.expect("open"));
        to_its_end(&tasks, &writes, async { Ok(()) }).await.expect("it has ended");
    }

    /// A write in the moment in which a change had ended was followed by nobody, and two changes woke each other for ever.
    #[test]
    fn a_change_hears_of_writes_of_its_own_virtual_model_and_ends_once_it_has_seen_all() {
        let (going, name) = (Going::default(), |text: &str| DeploymentName::new(text).expect("a name"));
        let mut written = going.begin(&name("v")).expect("it begins");
        let other = going.begin(&name("w")).expect("so does another one");
        assert!(going.begin(&name("v")).is_none(), "it is under way");
        assert!(!going.end(&name("v"), &written), "it was written again");
        written.mark_unchanged();
        assert!(going.end(&name("v"), &written));
        assert!(going.begin(&name("v")).is_some(), "the next one");
        assert!(!other.has_changed().expect("it is under way"));
    }

    /// A model with copies that answer, and others on their way.
    fn copies(ready: u32, coming: u32) -> ModelState {
        ModelState { ready, coming, ..ModelState::not_found() }
    }

    #[test]
    fn a_target_takes_over_with_as_many_copies_as_there_should_be_or_can_be_and_never_without_any() {
        for (active, target, planned_for, switches) in [
            (1, (1, 0), 0, true),
            (1, (0, 1), 0, false),
            (2, (2, 0), 2, true),
            (2, (1, 1), 2, false),
            (2, (1, 0), 0, false),
            (2, (1, 0), 2, true),
            // The target failed.
            (1, (0, 0), 0, false),
            (2, (0, 0), 2, false),
            // And the active model had left to make room for it.
            (0, (0, 0), 0, false),
            (0, (0, 0), 1, false),
            (0, (0, 1), 0, false),
            (0, (1, 0), 0, true),
        ] {
            let (active, target) = (copies(active, 0), copies(target.0, target.1));
            let told = takes_over(&target, wanted_of(&active), planned_for);
            assert_eq!(told, switches, "{active:?} {target:?} {planned_for}");
        }
    }
}
