//! Making what is declared equal to what a good commit wants.
//!
//! ```text
//! terms of workers ──▶ what is disabled, at once ──▶ the rest ──▶ deletions
//! ```
//! What a newer commit has [halted](super::halt) stays so.
//!
//! All of it is idempotent: what is stored as it should be is not written. The commit that a manifest is annotated with is
//! the one that last changed it.

use std::collections::{BTreeMap, BTreeSet};

use berth_registry::{Desired, DesiredDeployment, settings::UnknownWorkers as Unknown, to_hub};
use berth_spec::{
    Class, DeploymentName, Origin, UnknownWorkers, WorkerId, WorkerTerms,
    dialect::{ConversionError, registry_v3::COMMIT},
    manifest::{ManifestDeployment, ParseContext, raw::RawDeployment},
};
use serde_json::Value;

use crate::{
    Handle,
    handle::{ApplyRequest, DeleteRequest, Error, ListRequest, Ownership},
};

/// Deployments that are handed over at once: enough for full transactions, few enough to hold in memory.
const HANDED: usize = 1_000;

/// What was done.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Declared {
    /// Deployments that were created or changed.
    pub(super) changed: Vec<String>,
    /// Deployments that were deleted.
    pub(super) deleted: Vec<String>,
    /// What did not go through, and what to do about it.
    pub(super) conflicts: Vec<String>,
}

/// What is stored of a deployment of ours.
struct Known {
    manifest: Value,
    origin: Origin,
}

/// Declares what `desired` wants for `origin`, but no replica of what is `halted`; what `formerly` owned is taken over.
pub(super) async fn declare(
    handle: &Handle,
    desired: &Desired,
    origin: &Origin,
    formerly: Option<&Origin>,
    halted: &BTreeSet<String>,
) -> Result<Declared, Error> {
    handle.set_worker_terms(terms(desired), unknown(desired)).await?;
    let known = known(handle, origin, formerly).await?;
    let mut done = Declared::default();
    let (mut disabled, mut rest) = (Vec::new(), Vec::new());
    for deployment in &desired.deployments {
        let halted = halted.contains(&deployment.id);
        match wanted(deployment, desired, (&known, halted), origin) {
            Ok(None) => {}
            Ok(Some(request)) if halted || deployment.manifest.wanted() == 0 => disabled.push(request),
            Ok(Some(request)) => rest.push(request),
            Err(message) => done.conflicts.push(message),
        }
    }
    hand_over(handle, disabled, &mut done).await?;
    hand_over(handle, rest, &mut done).await?;
    let names: BTreeSet<&str> = desired.deployments.iter().map(|deployment| deployment.id.as_str()).collect();
    for (name, known) in known.iter().filter(|(name, _)| !names.contains(name.as_str())) {
        let request = DeleteRequest { origin: known.origin.clone(), expect: None, ownership: Ownership::Respect };
        match handle.start_delete(name, request).await {
            Ok(_) => done.deleted.push(name.to_string()),
            // Not there, or taken over by somebody else: no longer ours.
            Err(Error::NotFound(_) | Error::Owned { .. }) => {}
            Err(error) if is_general(&error) => return Err(error),
            Err(error) => done.conflicts.push(format!("{name} cannot be deleted: {error}")),
        }
    }
    Ok(done)
}

/// What to apply; `None`: it is so already.
fn wanted(
    deployment: &DesiredDeployment,
    desired: &Desired,
    (known, halted): (&BTreeMap<DeploymentName, Known>, bool),
    origin: &Origin,
) -> Result<Option<ApplyRequest>, String> {
    let commit = desired.commit.as_ref().map(berth_git::Oid::as_str);
    let told = |errors: Vec<ConversionError>| errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    let mut document = to_hub(deployment, commit).map_err(told)?;
    if halted {
        document.disable();
    }
    let manifest = checked(document, &deployment.path)?;
    let before = known.get(&manifest.name);
    if before.is_some_and(|before| before.origin == *origin && same(&before.manifest, &manifest.raw)) {
        return Ok(None);
    }
    let takes_over = before.is_some_and(|before| before.origin != *origin);
    let ownership = if takes_over { Ownership::TakeOver } else { Ownership::Respect };
    Ok(Some(ApplyRequest { ownership, ..ApplyRequest::new(manifest, origin.clone()) }))
}

/// Takes all replicas from those of `ids` that are `origin`'s and have some.
pub(super) async fn halt(handle: &Handle, origin: &Origin, ids: &BTreeSet<String>) -> Result<Declared, Error> {
    let mut done = Declared::default();
    let mut requests = Vec::new();
    for (name, known) in known(handle, origin, None).await? {
        if !ids.contains(name.as_str()) {
            continue;
        }
        let document = RawDeployment::read(&known.manifest).map(|mut document| document.disable().then_some(document));
        match document
            .and_then(|document| document.map(|document| checked(document, "the manifest in force")).transpose())
        {
            Ok(None) => {}
            Ok(Some(manifest)) => requests.push(ApplyRequest::new(manifest, origin.clone())),
            Err(message) => done.conflicts.push(message),
        }
    }
    hand_over(handle, requests, &mut done).await?;
    Ok(done)
}

fn checked(document: RawDeployment, file: &str) -> Result<ManifestDeployment, String> {
    let context = ParseContext { file: file.to_owned(), ..ParseContext::default() };
    ManifestDeployment::of(document, &context)
        .map_err(|errors| errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
}

/// Whether two manifests say the same, but for the commit that they are from.
fn same(one: &Value, other: &Value) -> bool {
    let plain = |value: &Value| {
        let mut value = value.clone();
        if let Some(annotations) = value.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
            annotations.remove(COMMIT);
        }
        value
    };
    plain(one) == plain(other)
}

async fn hand_over(handle: &Handle, mut requests: Vec<ApplyRequest>, done: &mut Declared) -> Result<(), Error> {
    while !requests.is_empty() {
        let part: Vec<ApplyRequest> = requests.drain(..requests.len().min(HANDED)).collect();
        let names: Vec<DeploymentName> = part.iter().map(|request| request.manifest.name.clone()).collect();
        for (name, result) in names.into_iter().zip(handle.apply_all(part).await) {
            match result {
                Ok(_) => done.changed.push(name.to_string()),
                Err(error) if is_general(&error) => return Err(error),
                Err(error) => done.conflicts.push(format!("{name} is not declared: {error}")),
            }
        }
    }
    Ok(())
}

/// Whether an error is of the control plane, and not of one deployment: then all of it is tried again later.
fn is_general(error: &Error) -> bool {
    matches!(error, Error::Stopped)
        || matches!(error.class(), Class::Waiting { .. } | Class::Internal | Class::TimedOut)
}

/// What is ours, and not on its way out.
async fn known(
    handle: &Handle,
    origin: &Origin,
    formerly: Option<&Origin>,
) -> Result<BTreeMap<DeploymentName, Known>, Error> {
    let mut known = BTreeMap::new();
    let mut request = ListRequest::default();
    loop {
        let page = handle.list(request).await?;
        for view in page.items {
            let deployment = &view.deployment;
            if !deployment.deleting && (deployment.origin == *origin || Some(&deployment.origin) == formerly) {
                let entry = Known { manifest: view.manifest, origin: deployment.origin.clone() };
                known.insert(deployment.name.clone(), entry);
            }
        }
        match page.next {
            Some(after) => request = ListRequest { after: Some(after), ..ListRequest::default() },
            None => return Ok(known),
        }
    }
}

fn terms(desired: &Desired) -> BTreeMap<WorkerId, WorkerTerms> {
    let named =
        desired.workers.iter().filter_map(|worker| Some((WorkerId::new(&worker.worker_id).ok()?, worker.terms())));
    named.collect()
}

const fn unknown(desired: &Desired) -> UnknownWorkers {
    match desired.settings.unknown_workers {
        Unknown::Allow => UnknownWorkers::Allow,
        Unknown::Ignore => UnknownWorkers::Ignore,
        Unknown::Refuse => UnknownWorkers::Refuse,
    }
}
