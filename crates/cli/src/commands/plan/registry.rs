//! `berth plan --registry`: what a registry would change if it were pushed.

mod terms;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    path::PathBuf,
};

use berth_registry::{Desired, WorkerConfig, contract, to_hub};
use berth_spec::{Origin, PinnedCard, dialect::ConversionError};
use berth_wire::api::{DeploymentView, NodeView, Outcome, PlanView, RegistryDraft, SourceView, WorkerDraft};
use clap::Args;
use reqwest::Method;
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
    /// Source of the server that follows this registry [default: its only Git source]
    #[arg(long, value_name = "NAME", requires = "registry")]
    source: Option<String>,
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

    /// Name of the source that follows the registry, if it was given.
    pub(super) fn source(&self) -> Option<&str> {
        self.source.as_deref()
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
    /// Changes to worker files, by worker; the plan accounts for them.
    workers: BTreeMap<String, Vec<String>>,
}

/// The annotation that says which commit last changed a deployment: where nothing else differs, that one stays.
const COMMIT: &str = "registry.berth.dev/commit";

/// Asks the controller, and prints what it says; true: something would change.
pub(super) async fn run(desired: Desired, source: Option<&str>, client: &Client, form: Form) -> Result<bool, Failure> {
    let sources = client.list::<SourceView>(&["sources"], &[]).await?.items;
    let owner = owner(&sources, source)?;
    let declared = client.list::<DeploymentView>(&["deployments"], &[]).await?.items;
    let wanted: BTreeSet<&str> = desired.deployments.iter().map(|deployment| deployment.id.as_str()).collect();
    let deleted = leaves(&declared, owner.as_ref(), &wanted);
    let since: BTreeMap<&str, Option<&String>> =
        declared.iter().map(|view| (view.metadata.name.as_str(), view.metadata.annotations.get(COMMIT))).collect();
    let manifests = desired.deployments.iter().map(|deployment| {
        let since = since.get(deployment.id.as_str()).copied().flatten();
        to_hub(deployment, since.map(String::as_str)).map(|document| document.written())
    });
    let manifests = manifests.collect::<Result<Vec<_>, _>>();
    let told = |errors: Vec<ConversionError>| errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    let settings = |file: &WorkerConfig| (file.worker_id.clone(), WorkerDraft::of(&file.terms()));
    let draft = RegistryDraft {
        manifests: manifests.map_err(|errors| Failure::Failed(told(errors)))?,
        deleted: deleted.clone(),
        workers: desired.workers.iter().map(settings).collect(),
        unknown_workers: desired.settings.unknown_workers.rule(),
    };
    let request = client.request(Method::POST, &["plan", "registry"], &[]).json(&draft);
    let mut plan: PlanView = client.json(request).await?;
    // The registry itself asks: that it owns what it declared is no news.
    let owned = |name: &str| declared.iter().any(|view| view.metadata.name == name && is_of(view, owner.as_ref()));
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

/// Owner of what the registry declares: the Git source of this name, or the only one; `None`: the server follows no registry.
fn owner(sources: &[SourceView], name: Option<&str>) -> Result<Option<Origin>, Failure> {
    let registries: Vec<&SourceView> = sources.iter().filter(|source| source.spec.kind == Origin::GIT).collect();
    let names = || registries.iter().map(|source| source.metadata.name.as_str()).collect::<Vec<_>>().join(", ");
    let found = match (name, registries.as_slice()) {
        (None, []) => return Ok(None),
        (None, [only]) => only,
        (None, _) => {
            return Err(Failure::Failed(format!(
                "the server follows several registries: name the source of this one, --source NAME, of {}",
                names()
            )));
        }
        (Some(name), []) => {
            return Err(Failure::NotFound(format!("there is no source {name:?}: the server follows no Git registry")));
        }
        (Some(name), _) => registries
            .iter()
            .find(|source| source.metadata.name == name)
            .ok_or_else(|| Failure::NotFound(format!("there is no Git source {name:?}: there are {}", names())))?,
    };
    let SourceView { spec, status, .. } = found;
    // A source that has not begun yet shows both as its place.
    let place = match status.details.get("branch") {
        Some(branch) => format!("{}#{branch}", spec.location),
        None => spec.location.clone(),
    };
    Ok(Some(Origin::git(&place)))
}

/// True if the deployment is declared by `owner`.
fn is_of(view: &DeploymentView, owner: Option<&Origin>) -> bool {
    owner.is_some_and(|owner| Origin::read(&view.metadata.origin) == *owner)
}

/// Deployments of `owner` that are no longer wanted.
fn leaves(declared: &[DeploymentView], owner: Option<&Origin>, wanted: &BTreeSet<&str>) -> Vec<String> {
    let leaves = |view: &&DeploymentView| {
        is_of(view, owner) && !view.metadata.deleting && !wanted.contains(view.metadata.name.as_str())
    };
    declared.iter().filter(leaves).map(|view| view.metadata.name.clone()).collect()
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
            text.push_str("The plan above accounts for these changes.\n");
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

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json};

    use super::*;

    fn source(name: &str, spec: &Value, details: &Value) -> SourceView {
        let view = json!({
            "apiVersion": "berth.dev/v1", "kind": "Source", "metadata": {"name": name}, "spec": spec,
            "status": {"details": details},
        });
        from_value(view).expect("a source")
    }

    fn git(name: &str, url: &str) -> SourceView {
        source(name, &json!({"kind": "git", "location": url}), &json!({"branch": "main"}))
    }

    fn deployment(name: &str, origin: &str, deleting: bool) -> DeploymentView {
        let view = json!({
            "apiVersion": "berth.dev/v1", "kind": "ModelDeployment",
            "metadata": {"name": name, "origin": origin, "deleting": deleting}, "spec": {},
        });
        from_value(view).expect("a deployment")
    }

    #[test]
    fn what_another_registry_declared_stays() {
        let declared = [
            deployment("kept", "git:https://h/a.git#main", false),
            deployment("gone", "git:https://h/a.git#main", false),
            deployment("going", "git:https://h/a.git#main", true),
            deployment("of-another-registry", "git:https://h/b.git#main", false),
            deployment("of-another-branch", "git:https://h/a.git#next", false),
            deployment("of-the-api", "api", false),
            deployment("of-a-folder", "directory:/srv/a", false),
        ];
        let owner = Origin::git("https://h/a.git#main");
        let wanted = BTreeSet::from(["kept", "new"]);
        assert_eq!(leaves(&declared, Some(&owner), &wanted), ["gone"]);
        assert!(leaves(&declared, None, &wanted).is_empty(), "no registry is followed");
        let owned: Vec<bool> = declared.iter().map(|view| is_of(view, Some(&owner))).collect();
        assert_eq!(owned, [true, true, true, false, false, false, false]);
    }

    #[test]
    fn the_owner_is_the_only_registry_or_the_one_that_is_named() {
        let folder = source("shared", &json!({"kind": "directory", "location": "/srv/a"}), &json!({}));
        let begins = source("c", &json!({"kind": "git", "location": "https://h/c.git#main"}), &json!({}));
        let (a, b) = (git("a", "https://h/a.git"), git("b", "https://h/b.git"));
        for (sources, name, found) in [
            (vec![folder.clone()], None, Ok(None)),
            (vec![folder.clone(), a.clone()], None, Ok(Some("git:https://h/a.git#main"))),
            (vec![begins], None, Ok(Some("git:https://h/c.git#main"))),
            (vec![a.clone(), b.clone()], Some("b"), Ok(Some("git:https://h/b.git#main"))),
            (vec![a.clone(), b.clone()], None, Err("of a, b")),
            (vec![a, b, folder.clone()], Some("shared"), Err("there is no Git source \"shared\": there are a, b")),
            (vec![folder], Some("x"), Err("the server follows no Git registry")),
        ] {
            match (owner(&sources, name), found) {
                (Ok(owner), Ok(found)) => assert_eq!(owner.map(|owner| owner.to_string()).as_deref(), found),
                (Err(failure), Err(says)) => assert!(failure.to_string().contains(says), "{failure}"),
                (owner, found) => panic!("{owner:?}, not {found:?}"),
            }
        }
    }
}
