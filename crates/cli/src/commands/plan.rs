//! `berth plan`: what applying would change.

mod registry;

use std::{fmt::Write as _, path::PathBuf};

use berth_wire::api::{ApplyResult, FieldChange, Outcome, PlanView, StepKind};
use clap::Args;
use serde_json::Value;

use super::{
    apply::post,
    diff::{differing, fields},
    namespace::NamespaceArgs,
    output::{Form, print_value},
    resource::Resource,
};
use crate::{
    client::ApiArgs,
    failure::Failure,
    files::FileArgs,
    terminal::{self, Rows, size},
};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth plan -f iris.yaml                    fields that change, loads, evictions, memory before and after
  berth plan -f models/ -o json              the same for programs
  berth plan --registry .                    a registry's folder: the effect of a push, with deletions and broken
                                             contracts included
  berth plan --registry . --commit HEAD      the same of a commit, for pull requests

Changes nothing. The answer comes from the planner that makes the real decisions.

With --detailed-exitcode:
  0  nothing would change
  1  failed
  2  something would change")]
pub(crate) struct PlanArgs {
    /// Manifest, folder of manifests (all *.yaml, *.yml and *.json below it), or - for standard input
    #[arg(short = 'f', long = "filename", value_name = "PATH", required_unless_present = "registry")]
    filename: Vec<PathBuf>,
    #[command(flatten)]
    registry: registry::RegistryArgs,
    /// Exit with 2 if something would change
    #[arg(long)]
    detailed_exitcode: bool,
    /// Output format
    #[arg(short, long, value_enum, default_value_t, value_name = "FORM")]
    output: Form,
    #[command(flatten)]
    namespace: NamespaceArgs,
    #[command(flatten)]
    api: ApiArgs,
}

pub(crate) async fn run(args: &PlanArgs) -> Result<(), Failure> {
    let client = args.api.client()?;
    if let Some(wanted) = args.registry.read().await? {
        let changes = registry::run(wanted, &client, args.output).await?;
        return if changes && args.detailed_exitcode { Err(Failure::Changes) } else { Ok(()) };
    }
    let mut changes = false;
    let batches = FileArgs { filename: args.filename.clone() }.read_right()?;
    let requests = batches.iter().flat_map(|batch| batch.bodies().into_iter().map(move |body| (batch, body)));
    for (batch, body) in requests {
        let plan: PlanView = client.json(post(&client, "plan", &args.namespace.query(), batch, body)).await?;
        changes |= plan.documents.iter().any(differing);
        match args.output {
            Form::Json | Form::Yaml => print_value(&plan, args.output)?,
            _ => terminal::print(&render(&plan))?,
        }
    }
    if changes && args.detailed_exitcode { Err(Failure::Changes) } else { Ok(()) }
}

fn render(plan: &PlanView) -> String {
    let mut text = String::new();
    // Formatting into a string cannot fail.
    for document in &plan.documents {
        let _ = writeln!(
            text,
            "{}/{} would be {}",
            Resource::of_document(&document.kind),
            document.name,
            document.outcome.as_str()
        );
        fields(document, &mut text);
        if let Some(build) = build(document) {
            let _ = writeln!(text, "  build: {build}");
        }
        for warning in &document.warnings {
            let _ = writeln!(text, "  warning: {warning}");
        }
    }
    text.push('\n');
    if plan.steps.is_empty() {
        text.push_str("No worker would have to do anything.\n");
    } else {
        let mut guessed = false;
        let mut rows = Rows::new(&["STEP", "REVISION", "WORKER", "MEMORY", ""]);
        for step in &plan.steps {
            let (word, sign) = match step.action {
                StepKind::Evict => ("evict", "-"),
                StepKind::Unload => ("unload", "-"),
                StepKind::Reload => ("reload", "+"),
                StepKind::Load => ("load", "+"),
            };
            let from = step.from.as_ref().map(|from| format!("replaces {from}")).unwrap_or_default();
            let (guess, why) = match step.memory_from.as_deref() {
                Some("predicted") => ("~", "a guess from the artifact's size"),
                Some("default") => ("~", "a guess: its artifact is not known yet"),
                _ => ("", ""),
            };
            guessed |= !guess.is_empty();
            let from = [from.as_str(), why].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ");
            let memory = format!("{sign}{guess}{}", size(step.memory));
            rows.add([word.to_owned(), step.revision.clone(), step.worker.clone(), memory, from]);
        }
        text.push_str(&rows.render());
        if guessed {
            text.push_str("~ is corrected when the model is loaded; spec.resources.memory makes it certain.\n");
        }
    }
    if !plan.memory.is_empty() {
        let mut rows = Rows::new(&["WORKER", "TOTAL", "BEFORE", "PEAK", "AFTER"]);
        for change in &plan.memory {
            let numbers = [change.total, change.before, change.peak, change.after].map(size);
            rows.add([change.worker.clone()].into_iter().chain(numbers));
        }
        let _ = write!(text, "\n{}", rows.render());
    }
    for unplaced in &plan.unplaced {
        let _ = write!(text, "\n{} cannot be placed: {}\n", unplaced.deployment, unplaced.message);
    }
    text
}

/// Fields of a function that decide what its build gives. Its name does, too, and does not change.
const INPUTS: [&str; 6] =
    ["spec.sourceUri", "spec.sourceSha256", "spec.type", "spec.entrypoint", "spec.runtime", "spec.build"];

/// A guess about the build of a function, which reads the code when it begins; `None` where nothing is built for sure.
fn build(document: &ApplyResult) -> Option<String> {
    if document.kind != "Function" || document.outcome == Outcome::Unchanged {
        return None;
    }
    if document.outcome == Outcome::Created {
        return Some("yes, unless the same code was built before (a guess: the code is not read)".to_owned());
    }
    let differ: Vec<&str> =
        document.changes.iter().filter(|change| is_input(change)).map(|c| c.path.as_str()).collect();
    Some(match differ.as_slice() {
        [] => "no, unless the code at spec.sourceUri has changed (a guess: the code is not read)".to_owned(),
        differ => {
            format!("likely, because of {} (a guess: the same code may have been built before)", differ.join(", "))
        }
    })
}

/// True of a field that a build depends on. An artifact for Azure brings a library along.
fn is_input(change: &FieldChange) -> bool {
    let path = change.path.as_str();
    let is_azure = |value: Option<&Value>| value.and_then(Value::as_str) == Some("azure-function");
    let below = |field: &str| path.strip_prefix(field).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    INPUTS.iter().any(|field| below(field))
        || (path == "spec.target.platform" && (is_azure(change.from.as_ref()) || is_azure(change.to.as_ref())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(outcome: Outcome, changes: &[(&str, &str)]) -> ApplyResult {
        let change = |(path, to): &(&str, &str)| FieldChange {
            path: (*path).to_owned(),
            from: Some("local".into()),
            to: Some((*to).into()),
        };
        ApplyResult {
            kind: "Function".to_owned(),
            name: "words".to_owned(),
            outcome,
            generation: 2,
            resource_version: "7".to_owned(),
            warnings: Vec::new(),
            changes: changes.iter().map(change).collect(),
        }
    }

    #[test]
    fn a_plan_guesses_whether_a_function_is_built() {
        let told = |outcome, changes: &[(&str, &str)]| build(&document(outcome, changes)).unwrap_or_default();
        assert_eq!(told(Outcome::Unchanged, &[]), "");
        assert!(told(Outcome::Created, &[]).starts_with("yes, unless"));
        let same = [("spec.env.A", "1"), ("spec.target.platform", "replica"), ("spec.buildings", "1")];
        assert!(told(Outcome::Configured, &same).starts_with("no, unless"));
        let other =
            [("spec.env.A", "1"), ("spec.runtime.pythonVersion", "3.12"), ("spec.target.platform", "azure-function")];
        let text = told(Outcome::Configured, &other);
        assert!(text.starts_with("likely, because of spec.runtime.pythonVersion, spec.target.platform ("), "{text}");
        let model = ApplyResult { kind: "ModelDeployment".to_owned(), ..document(Outcome::Created, &[]) };
        assert_eq!(build(&model), None);
    }
}
