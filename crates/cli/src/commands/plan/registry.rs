//! `berth plan --registry`: what a registry would change if it were pushed.

mod terms;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    path::PathBuf,
};

use berth_registry::{Desired, contract, to_hub};
use berth_spec::{PinnedCard, dialect::ConversionError};
use berth_wire::api::{DeploymentView, NodeView, Outcome, PlanView};
use clap::Args;
use reqwest::{Method, header::CONTENT_TYPE};
use serde::{Deserialize as _, Serialize};

use super::{super::registry, render};
use crate::{
    client::Client,
    commands::output::{Form, print_value},
    failure::Failure,
    files::plural,
    terminal,
};

/// Registry to plan, and access to the repositories that it names.
#[derive(Debug, Args)]
pub(super) struct RegistryArgs {
    /// Registry: a folder or a bare repository
    #[arg(long, value_name = "DIR|REPOSITORY", conflicts_with = "filename")]
    registry: Option<PathBuf>,
    /// Commit of the registry: a branch, tag, commit id or HEAD
    #[arg(long, value_name = "COMMIT", requires = "registry")]
    commit: Option<String>,
    #[command(flatten)]
    access: registry::AccessArgs,
}

impl RegistryArgs {
    /// Desired state of the registry, if it is valid; `None` without a registry.
    pub(super) async fn read(&self) -> Result<Option<Desired>, Failure> {
        let Some(path) = self.registry.clone() else { return Ok(None) };
        let (commit, access) = (self.commit.clone(), self.access.clone());
        let read = tokio::task::spawn_blocking(move || registry::wanted(&path, commit.as_deref(), &access));
        read.await.map_err(|e| Failure::doing("the registry could not be read", e))?.map(Some)
    }
}

/// Plan in the form printed for programs.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RegistryPlan {
    #[serde(flatten)]
    plan: PlanView,
    /// Deployments to be deleted.
    deleted: Vec<String>,
    /// Contract changes for clients of the running versions, by deployment.
    contract: BTreeMap<String, Vec<String>>,
    /// Changes to worker files, by worker; the plan does not account for them.
    workers: BTreeMap<String, Vec<String>>,
}

/// The annotation that says which commit last changed a deployment: where nothing else differs, that one stays.
const COMMIT: &str = "registry.berth.dev/commit";

/// Asks the controller, and prints what it says; true: something would change.
pub(super) async fn run(desired: Desired, client: &Client, form: Form) -> Result<bool, Failure> {
    let declared = client.list::<DeploymentView>(&["deployments"], &[]).await?.items;
    let wanted: BTreeSet<&str> = desired.deployments.iter().map(|deployment| deployment.id.as_str()).collect();
    let leaves = |view: &&DeploymentView| {
        let DeploymentView { metadata, .. } = view;
        metadata.origin.starts_with("git:") && !metadata.deleting && !wanted.contains(metadata.name.as_str())
    };
    let deleted: Vec<String> = declared.iter().filter(leaves).map(|view| view.metadata.name.clone()).collect();
    let since: BTreeMap<&str, Option<&String>> =
        declared.iter().map(|view| (view.metadata.name.as_str(), view.metadata.annotations.get(COMMIT))).collect();
    let manifests = desired.deployments.iter().map(|deployment| {
        let since = since.get(deployment.id.as_str()).copied().flatten();
        to_hub(deployment, since.map(String::as_str)).map(|document| document.written().to_string())
    });
    let manifests = manifests.collect::<Result<Vec<_>, _>>();
    let told = |errors: Vec<ConversionError>| errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    let body = manifests.map_err(|errors| Failure::Failed(told(errors)))?.join("\n---\n");
    let query = [("delete", deleted.join(","))];
    let request = client.request(Method::POST, &["plan"], &query).header(CONTENT_TYPE, "application/yaml").body(body);
    let mut plan: PlanView = client.json(request).await?;
    // The registry itself asks: that it owns what it declared is no news.
    let owned = |name: &str| declared.iter().any(|v| v.metadata.name == name && v.metadata.origin.starts_with("git:"));
    plan.documents.iter_mut().filter(|document| owned(&document.name)).for_each(|document| document.warnings.clear());
    let contract = broken(&desired, &declared);
    let nodes = client.list::<NodeView>(&["nodes"], &[]).await?.items;
    let whole = RegistryPlan { plan, deleted, contract, workers: terms::changed(&desired.workers, &nodes) };
    match form {
        Form::Json | Form::Yaml => print_value(&whole, form)?,
        _ => terminal::print(&whole.text())?,
    }
    let changes = whole.plan.documents.iter().any(|document| document.outcome != Outcome::Unchanged);
    Ok(changes || !whole.deleted.is_empty() || !whole.workers.is_empty())
}

/// Contract changes for clients of each deployment that runs from a card.
fn broken(desired: &Desired, declared: &[DeploymentView]) -> BTreeMap<String, Vec<String>> {
    let card = |view: &DeploymentView| PinnedCard::deserialize(view.spec.pointer("/model/card")?).ok();
    let now: BTreeMap<&str, PinnedCard> =
        declared.iter().filter_map(|view| Some((view.metadata.name.as_str(), card(view)?))).collect();
    let breaks = desired.deployments.iter().filter_map(|deployment| {
        let before = now.get(deployment.id.as_str())?;
        let breaks = contract::breaks(&before.card.interface, &deployment.card.interface);
        (!breaks.is_empty()).then(|| (deployment.id.clone(), breaks.iter().map(ToString::to_string).collect()))
    });
    breaks.collect()
}

impl RegistryPlan {
    fn text(&self) -> String {
        let mut text = String::new();
        // Formatting into a string cannot fail.
        for name in &self.deleted {
            let _ = writeln!(text, "deployment/{name} would be deleted");
        }
        let (same, documents): (Vec<_>, Vec<_>) =
            self.plan.documents.iter().cloned().partition(|document| document.outcome == Outcome::Unchanged);
        if !same.is_empty() {
            let _ = writeln!(text, "{} unchanged", plural(same.len(), "deployment"));
        }
        text.push_str(&render(&PlanView { documents, ..self.plan.clone() }));
        for (worker, changes) in &self.workers {
            let _ = write!(text, "\nworker/{worker}: {}\n", changes.join(", "));
        }
        if !self.workers.is_empty() {
            text.push_str("The plan above reckons with what workers may hold now, not with these changes.\n");
        }
        for (deployment, breaks) in &self.contract {
            let _ = write!(text, "\n{deployment}: clients of the version that runs now would notice\n");
            for one in breaks {
                let _ = writeln!(text, "  {one}");
            }
        }
        text
    }
}
