//! The snapshot of a good commit: its manifests, with what a newer commit disables at once, and its settings of workers.

use std::collections::{BTreeMap, BTreeSet};

use berth_control::source::{Prune, Snapshot, WorkerSettings};
use berth_registry::{Desired, DesiredDeployment, to_hub};
use berth_spec::{
    DeploymentName, WorkerId,
    manifest::{ManifestDeployment, ParseContext},
};

/// Makes the snapshot of a commit, without a replica of what is `stopped`. Deployments that this version cannot declare are
/// left as they are, and named in the second part.
pub(crate) fn snapshot(desired: &Desired, stopped: &BTreeSet<String>) -> (Snapshot, Vec<String>) {
    let commit = desired.commit.as_ref().map(berth_git::Oid::as_str);
    let (mut deployments, mut problems, mut unread) = (Vec::new(), Vec::new(), BTreeSet::new());
    for deployment in &desired.deployments {
        match manifest_of(deployment, commit, stopped.contains(&deployment.id)) {
            Ok(manifest) => deployments.push(manifest),
            Err(problem) => {
                unread.extend(DeploymentName::new(&deployment.id).ok());
                problems.push(problem);
            }
        }
    }
    let revision = commit.unwrap_or_default().to_owned();
    let prune = if unread.is_empty() { Prune::All } else { Prune::Except(unread) };
    let (aliases, functions) = (desired.aliases.clone(), desired.functions.clone());
    let snapshot = Snapshot { revision, deployments, aliases, functions, prune, workers: Some(workers(desired)) };
    (snapshot, problems)
}

fn manifest_of(
    deployment: &DesiredDeployment,
    commit: Option<&str>,
    stopped: bool,
) -> Result<ManifestDeployment, String> {
    let mut document = to_hub(deployment, commit).map_err(|errors| joined(&errors))?;
    if stopped {
        document.disable();
    }
    let context = ParseContext { file: deployment.path.clone(), ..ParseContext::default() };
    ManifestDeployment::of(document, &context).map_err(|errors| joined(&errors))
}

fn joined(errors: &[impl ToString]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

fn workers(desired: &Desired) -> WorkerSettings {
    let named =
        desired.workers.iter().filter_map(|worker| Some((WorkerId::new(&worker.worker_id).ok()?, worker.terms())));
    WorkerSettings { terms: named.collect::<BTreeMap<_, _>>(), unknown: desired.settings.unknown_workers.rule() }
}
