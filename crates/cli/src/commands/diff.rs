//! `berth diff`: what applying manifests would change, field by field; and the lines in which a preview says so.

use std::fmt::Write as _;

use berth_spec::manifest;
use berth_wire::api::{Applied, ApplyResult, Outcome};
use clap::Args;

use super::{
    apply::post,
    namespace::NamespaceArgs,
    output::{Form, print_value},
    resource::Resource,
};
use crate::{client::ApiArgs, failure::Failure, files::FileArgs, terminal};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth diff -f iris.yaml                    fields that differ from what is declared
  berth get iris -o yaml | berth diff -f -   nothing
  berth diff -f models/ --detailed-exitcode  for scripts

With --detailed-exitcode:
  0  nothing differs
  1  failed
  2  something differs")]
pub(crate) struct DiffArgs {
    #[command(flatten)]
    files: FileArgs,
    /// Exit with 2 if something differs
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

pub(crate) async fn run(args: &DiffArgs) -> Result<(), Failure> {
    let batches = args.files.read_right()?;
    let client = args.api.client()?;
    let mut query = args.namespace.query();
    query.push(("dryRun", "true".to_owned()));
    // Nothing is written, so what a folder or a registry declares may be compared as well.
    query.push(("force", "true".to_owned()));
    let mut differs = false;
    for batch in &batches {
        for body in batch.bodies() {
            let applied: Applied = client.json(post(&client, "apply", &query, batch, body)).await?;
            differs |= applied.results.iter().any(fields_differ);
            match args.output {
                form @ (Form::Json | Form::Yaml) => print_value(&applied, form)?,
                _ => {
                    let text: String =
                        applied.results.iter().filter(|result| fields_differ(result)).map(shown).collect();
                    if !text.is_empty() {
                        terminal::print(&text)?;
                    }
                }
            }
        }
    }
    if differs && args.detailed_exitcode { Err(Failure::Changes) } else { Ok(()) }
}

/// Applying it would change something.
pub(super) fn differing(result: &ApplyResult) -> bool {
    result.outcome != Outcome::Unchanged
}

/// Tells an object that is new, or of which a field would change. A difference of owners alone is none.
fn fields_differ(result: &ApplyResult) -> bool {
    differing(result) && (result.outcome == Outcome::Created || !result.changes.is_empty())
}

/// A document and its fields that differ, one to a line.
fn shown(result: &ApplyResult) -> String {
    let what = if result.outcome == Outcome::Created { "is new" } else { "differs" };
    let mut text = format!("{}/{} {what}\n", Resource::of_document(&result.kind), result.name);
    fields(result, &mut text);
    text
}

/// The fields that differ: green what is new, red what is gone.
pub(super) fn fields(result: &ApplyResult, text: &mut String) {
    let colours = terminal::colours();
    for change in &result.changes {
        let change =
            manifest::FieldChange { path: change.path.clone(), from: change.from.clone(), to: change.to.clone() };
        let code = match (&change.from, &change.to) {
            (None, _) => "32",
            (_, None) => "31",
            _ => "33",
        };
        // Formatting into a string cannot fail.
        let _ = match colours {
            true => writeln!(text, "  \x1b[{code}m{change}\x1b[0m"),
            false => writeln!(text, "  {change}"),
        };
    }
}
