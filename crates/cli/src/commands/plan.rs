//! `berth plan`: what applying would change.

mod builds;
mod registry;

use std::{fmt::Write as _, path::PathBuf};

use berth_wire::api::{PlanView, StepKind};
use clap::Args;
use serde::Serialize;

use self::builds::BuildGuess;
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
  berth plan -f iris.yaml                    fields that change, loads, evictions, memory
  berth plan -f models/ -o json              the same for programs
  berth plan --registry .                    effect of a push, deletions and broken contracts too
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
    #[arg(short, long, value_parser = Form::among(&Form::NAMELESS), default_value = "table", value_name = "FORM")]
    output: Form,
    #[command(flatten)]
    namespace: NamespaceArgs,
    #[command(flatten)]
    api: ApiArgs,
}

/// Plan in the form printed for programs.
#[derive(Serialize)]
struct ForPrograms<'a> {
    #[serde(flatten)]
    plan: &'a PlanView,
    /// Functions that change, with guesses about their builds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    builds: Vec<BuildGuess>,
}

impl<'a> ForPrograms<'a> {
    fn of(plan: &'a PlanView) -> Self {
        Self { plan, builds: plan.documents.iter().filter_map(BuildGuess::of).collect() }
    }
}

pub(crate) async fn run(args: &PlanArgs) -> Result<(), Failure> {
    let client = args.api.client()?;
    if let Some(wanted) = args.registry.read().await? {
        let changes = registry::run(wanted, args.registry.source(), &client, args.output).await?;
        return if changes && args.detailed_exitcode { Err(Failure::Changes) } else { Ok(()) };
    }
    let mut changes = false;
    let batches = FileArgs { filename: args.filename.clone() }.read_right()?;
    let requests = batches.iter().flat_map(|batch| batch.bodies().into_iter().map(move |body| (batch, body)));
    for (batch, body) in requests {
        let plan: PlanView = client.json(post(&client, "plan", &args.namespace.query(), batch, body)).await?;
        changes |= plan.documents.iter().any(differing);
        match args.output {
            Form::Json | Form::Yaml => print_value(&ForPrograms::of(&plan), args.output)?,
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
        if let Some(build) = BuildGuess::of(document) {
            let _ = writeln!(text, "  build: {}", build.message);
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
