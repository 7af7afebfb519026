//! Virtual models: setting, removing, and their state.
//!
//! ```text
//! Settled(active) ──another target──▶ Changing(active, target) ──target as often loaded as active──▶ Settled(target)
//!                                       └─ at once, where active has no copy, target has as many, or `force` ─┘
//! ```
//! That the active model has no copy counts only where a change begins. Later it may have left to make room for the target.

use std::{sync::Arc, time::Duration};

use berth_control::{
    Handle,
    handle::{ApplyAlias, ApplyMode, DeclaredAlias, DeleteAlias, DeleteRequest, Error, MissingTargets, Ownership},
    store::Rev,
};
use berth_spec::{DeploymentName, Origin};
use berth_wire::mmesh::{
    ModelInfo, VModelStatusInfo, model_status_info::ModelStatus, v_model_status_info::VModelStatus,
};
use tokio::time::{Instant, timeout_at};
use tonic::Status;

use crate::{
    code::{other_owner, status},
    ids::{self, OWNER, annotation},
    load,
    models::{self, ATTEMPTS},
    status::missing,
    transition::Transitions,
};

/// The longest that a synchronous change waits: ModelMesh's.
const CHANGE_WITHIN: Duration = Duration::from_secs(240);

/// A virtual model, read from the alias that it is stored as.
#[derive(Debug, Clone)]
pub(crate) struct VModel {
    pub(crate) name: DeploymentName,
    pub(crate) rev: Rev,
    /// The model that gets the requests: the target with a weight.
    pub(crate) active: DeploymentName,
    /// The model that is to get them, stored with weight 0; the active one where nothing changes.
    pub(crate) target: DeploymentName,
    pub(crate) owner: String,
}

/// Models that a virtual model leads to after a change: as in [`VModel`].
struct Targets {
    active: DeploymentName,
    target: DeploymentName,
}

/// A change of a virtual model as a call asks for it: the target, and the conditions.
pub(crate) struct Change {
    pub(crate) vmodel: DeploymentName,
    pub(crate) target: DeploymentName,
    /// The owner that must be the virtual model's; empty: any.
    pub(crate) owner: String,
    /// The owner of a new one where nobody says.
    pub(crate) default_owner: String,
    /// The target is registered with these attributes first, if it is not there.
    pub(crate) info: Option<ModelInfo>,
    pub(crate) expected: Option<DeploymentName>,
    pub(crate) update_only: bool,
    /// A target that this registers goes with the last virtual model that leads to it; one that was there stays as it is.
    pub(crate) auto_delete: bool,
    pub(crate) load_now: bool,
    pub(crate) force: bool,
    pub(crate) sync: bool,
}

impl VModel {
    fn of(found: &DeclaredAlias) -> Option<Self> {
        let targets = &found.alias.targets;
        let (active, _) = targets.iter().rev().max_by_key(|(_, weight)| *weight)?;
        let target = targets.iter().find(|(_, weight)| *weight == 0).map_or(active, |(target, _)| target);
        Some(Self {
            name: found.alias.name.clone(),
            rev: found.rev,
            active: active.clone(),
            target: target.clone(),
            owner: annotation(&found.manifest, OWNER).unwrap_or_default().to_owned(),
        })
    }

    fn leads_to(&self, targets: &Targets) -> bool {
        self.active == targets.active && self.target == targets.target
    }

    /// True while it changes to another target.
    pub(crate) fn changes(&self) -> bool {
        self.active != self.target
    }
}

/// Reads a virtual model; `None`: there is none.
pub(crate) async fn read(handle: &Handle, vmodel: &DeploymentName) -> Result<Option<VModel>, Status> {
    match handle.alias(vmodel).await {
        Ok(found) => Ok(VModel::of(&found)),
        Err(Error::NoAlias(_)) => Ok(None),
        Err(error) => Err(status(error)),
    }
}

/// Writes what a virtual model leads to, if it is still as it was read and its new target is still there. False: somebody else
/// was faster.
pub(crate) async fn write(
    handle: &Handle,
    vmodel: &DeploymentName,
    owner: &str,
    active: &DeploymentName,
    target: &DeploymentName,
    expect: Rev,
) -> Result<bool, Status> {
    let manifest = ids::vmodel(vmodel, active, target, owner)?;
    let (expect, missing) = (Some(expect), MissingTargets::Refuse);
    let request = ApplyAlias { expect, missing, ..ApplyAlias::new(manifest, Origin::API) };
    match handle.apply_alias(&request).await {
        Ok(_) => Ok(true),
        Err(Error::Stale { .. } | Error::NotFound(_)) => Ok(false),
        Err(error) => Err(status(error)),
    }
}

/// Creates a virtual model, or gives it another target.
pub(crate) async fn set(
    handle: &Handle,
    transitions: &Arc<Transitions>,
    change: Change,
) -> Result<VModelStatusInfo, Status> {
    let began = handle.now();
    let (vmodel, target) = (change.vmodel.clone(), change.target.clone());
    let (load_now, sync) = (change.load_now, change.sync);
    let changes = transitions.finish(make(handle.clone(), Arc::clone(transitions), change)).await?;
    if sync {
        settled(handle, transitions, &vmodel).await?;
        if load_now && !changes {
            load::finished(handle, &target, began).await?;
        }
    }
    tell(handle, &vmodel, None).await
}

/// Makes a change. True: it goes on until its target is loaded.
async fn make(handle: Handle, transitions: Arc<Transitions>, change: Change) -> Result<bool, Status> {
    let made = begin(&handle, &transitions, &change).await;
    // Also where that failed half way: a change that is written goes on.
    transitions.changed(&change.vmodel);
    made
}

async fn begin(handle: &Handle, transitions: &Arc<Transitions>, change: &Change) -> Result<bool, Status> {
    let mut registered = false;
    let (before, after) = match lead(handle, change, &mut registered).await {
        Ok(led) => led,
        Err(refused) if registered => return Err(taken_back(handle, &change.target, refused).await),
        Err(refused) => return Err(refused),
    };
    if let Some(before) = before {
        transitions.cool(&after.active);
        settle(handle, &before, &after.active, &after.target).await?;
    }
    let changes = after.active != after.target;
    if change.load_now {
        // One that nobody has called yet makes no model leave that is in use, unless it follows on such a one.
        let used = (!changes).then(|| models::registered_use(handle));
        load::start(handle, &change.target, used).await?;
    }
    Ok(changes)
}

/// Has a virtual model lead to its active model and its target, and tells what it led to before. `registered`: the target was
/// not there before.
async fn lead(handle: &Handle, change: &Change, registered: &mut bool) -> Result<(Option<VModel>, Targets), Status> {
    for _ in 0..ATTEMPTS {
        let before = read(handle, &change.vmodel).await?;
        check(change, before.as_ref())?;
        *registered |= prepare(handle, change).await?;
        let after = wanted(handle, change, before.as_ref()).await;
        let unchanged = before.as_ref().is_some_and(|before| before.leads_to(&after));
        if !unchanged {
            let rev = before.as_ref().map_or(Rev::NONE, |before| before.rev);
            // Who changes it without saying an owner leaves it as it was.
            let new = if change.owner.is_empty() { &change.default_owner } else { &change.owner };
            let owner = before.as_ref().map_or(new, |before| &before.owner);
            if !write(handle, &change.vmodel, owner, &after.active, &after.target, rev).await? {
                continue;
            }
            if after.active != after.target {
                // Counts as used just now, so that it is the last one to leave for its successor.
                load::start(handle, &after.active, None).await?;
            }
        }
        return Ok((before, after));
    }
    Err(status(Error::Contended(change.vmodel.clone())))
}

/// Removes a target that was registered for a change that is refused, if it was to go with its last virtual model: another
/// caller was faster, or a model has the name of the virtual model.
async fn taken_back(handle: &Handle, target: &DeploymentName, refused: Status) -> Status {
    if let Err(error) = models::release(handle, target).await {
        tracing::warn!(event = "model_not_released", model = %target, %error, "no virtual model leads to the model, which stays");
    }
    refused
}

/// The rules that concern what is there.
fn check(change: &Change, before: Option<&VModel>) -> Result<(), Status> {
    let expected = |found: Option<&DeploymentName>| match &change.expected {
        Some(expected) if found != Some(expected) => {
            let found = found.map_or_else(|| "none".to_owned(), ToString::to_string);
            let message = format!("the target of vmodel {} is {found}, not {expected}", change.vmodel);
            Err(Status::failed_precondition(message))
        }
        _ => Ok(()),
    };
    match before {
        None if change.update_only => Err(Status::not_found("vmodel not found")),
        // Expecting what is asked for means: absent, or so already.
        None if change.expected.as_ref() == Some(&change.target) => Ok(()),
        None => expected(None),
        Some(before) if !change.owner.is_empty() && before.owner != change.owner => {
            Err(other_owner(&change.vmodel, &before.owner))
        }
        // Asking again for what is so already is no conflict.
        Some(before) if before.target == change.target => Ok(()),
        Some(before) => expected(Some(&before.target)),
    }
}

/// Registers the target, or finds it. True: it was not there.
async fn prepare(handle: &Handle, change: &Change) -> Result<bool, Status> {
    match &change.info {
        Some(info) => models::declare(handle, &change.target, info, change.auto_delete).await,
        None if load::state(handle, &change.target).await.status() == ModelStatus::NotFound => {
            Err(missing(&change.target))
        }
        None => Ok(false),
    }
}

/// The active model and the target after a change.
async fn wanted(handle: &Handle, change: &Change, before: Option<&VModel>) -> Targets {
    let target = change.target.clone();
    let Some(before) = before.filter(|before| before.active != target && !change.force) else {
        return Targets { active: target.clone(), target };
    };
    if before.target == target {
        return Targets { active: before.active.clone(), target }; // it is under way
    }
    let (active, new) = (load::state(handle, &before.active).await, load::state(handle, &target).await);
    if active.ready == 0 || new.ready >= active.ready {
        return Targets { active: target.clone(), target };
    }
    Targets { active: before.active.clone(), target }
}

/// Lets go of what a virtual model led to before.
pub(crate) async fn settle(
    handle: &Handle,
    before: &VModel,
    active: &DeploymentName,
    target: &DeploymentName,
) -> Result<(), Status> {
    let mut left = vec![&before.active, &before.target];
    left.retain(|old| *old != active && *old != target);
    let_go(handle, &left).await
}

/// Leaves models to their requests, and removes those that were to go with their last virtual model. Where one fails, the others go.
async fn let_go(handle: &Handle, left: &[&DeploymentName]) -> Result<(), Status> {
    let mut done = Ok(());
    for model in left {
        let gone = async {
            models::lower(handle, model).await?;
            models::release(handle, model).await
        };
        done = done.and(gone.await);
    }
    done
}

/// Waits until a change is done, or has failed, or the time is over.
async fn settled(handle: &Handle, transitions: &Transitions, vmodel: &DeploymentName) -> Result<(), Status> {
    let deadline = Instant::now() + CHANGE_WITHIN;
    let mut progress = transitions.progress();
    loop {
        progress.mark_unchanged();
        let told = tell(handle, vmodel, None).await?;
        // Defined, and what it led to before is let go of.
        if told.status() != VModelStatus::Transitioning
            && (told.status() != VModelStatus::Defined || !transitions.is_going(vmodel))
        {
            return Ok(());
        }
        match timeout_at(deadline, progress.changed()).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return Err(Status::unavailable("the controller is stopping: try again")),
            Err(_) => return Ok(()),
        }
    }
}

/// The state of a virtual model. One of another owner is not found.
pub(crate) async fn tell(
    handle: &Handle,
    vmodel: &DeploymentName,
    owner: Option<&str>,
) -> Result<VModelStatusInfo, Status> {
    let found = read(handle, vmodel).await?.filter(|found| owner.is_none_or(|owner| owner == found.owner));
    let Some(found) = found else { return Ok(VModelStatusInfo::default()) };
    let (active, target) = (load::state(handle, &found.active).await, load::state(handle, &found.target).await);
    let target = if found.changes() { target.on_its_way() } else { target };
    let status = match (found.changes(), target.status()) {
        (false, _) => VModelStatus::Defined,
        (true, ModelStatus::LoadingFailed | ModelStatus::NotFound) => VModelStatus::TransitionFailed,
        (true, _) => VModelStatus::Transitioning,
    };
    Ok(VModelStatusInfo {
        status: status.into(),
        active_model_id: found.active.name().to_owned(),
        target_model_id: found.target.name().to_owned(),
        active_model_status: Some(active.info),
        target_model_status: found.changes().then_some(target.info),
        owner: found.owner,
    })
}

/// Removes a virtual model. One that is not there, or of another owner, is no error.
pub(crate) async fn remove(
    handle: &Handle,
    transitions: &Arc<Transitions>,
    vmodel: DeploymentName,
    owner: String,
) -> Result<(), Status> {
    transitions.finish(remove_now(handle.clone(), Arc::clone(transitions), vmodel, owner)).await
}

async fn remove_now(
    handle: Handle,
    transitions: Arc<Transitions>,
    vmodel: DeploymentName,
    owner: String,
) -> Result<(), Status> {
    for _ in 0..ATTEMPTS {
        let found = read(&handle, &vmodel).await?.filter(|found| owner.is_empty() || owner == found.owner);
        let Some(found) = found else { return Ok(()) };
        let of = DeleteRequest { origin: Origin::API, expect: Some(found.rev), ownership: Ownership::Respect };
        match handle.delete_alias(&vmodel, DeleteAlias { mode: ApplyMode::Commit, of }).await {
            Ok(_) => {
                transitions.changed(&vmodel);
                return let_go(&handle, &[&found.active, &found.target]).await;
            }
            Err(Error::NoAlias(_)) => return Ok(()),
            Err(Error::Stale { .. }) => {}
            Err(error) => return Err(status(error)),
        }
    }
    Err(status(Error::Contended(vmodel)))
}
