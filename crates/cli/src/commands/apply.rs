//! `berth apply`: declares models and aliases.

use berth_wire::api::{Applied, BASE_URI_HEADER};
use clap::Args;
use reqwest::{Method, header::CONTENT_TYPE};

use super::{namespace::NamespaceArgs, resource::Resource};
use crate::{
    client::{ApiArgs, Client},
    failure::Failure,
    files::{Batch, FileArgs},
    terminal,
};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth apply -f iris.yaml                   one file
  berth apply -f models/                     every manifest below a folder
  cat iris.yaml | berth apply -f -           standard input
  berth apply -f iris.yaml -n team           documents that name no namespace go to team
  berth apply -f iris.yaml --dry-run         validate only; `berth plan` shows more

All manifests are validated before anything is sent. Relative file: locations start at the
manifest's folder.")]
pub(crate) struct ApplyArgs {
    #[command(flatten)]
    files: FileArgs,
    /// Validate and print the result for each document without changing anything
    #[arg(long)]
    dry_run: bool,
    /// Take over what belongs to another source, such as a folder
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    namespace: NamespaceArgs,
    #[command(flatten)]
    api: ApiArgs,
}

pub(crate) async fn run(args: &ApplyArgs) -> Result<(), Failure> {
    let batches = args.files.read_right()?;
    let client = args.api.client()?;
    let mut query = args.namespace.query();
    if args.dry_run {
        query.push(("dryRun", "true".to_owned()));
    }
    if args.force {
        query.push(("force", "true".to_owned()));
    }
    for batch in &batches {
        for body in batch.bodies() {
            let request = post(&client, "apply", &query, batch, body);
            let applied: Applied = client.json(request).await?;
            print(&applied)?;
        }
    }
    Ok(())
}

/// A request that carries manifests.
pub(crate) fn post(
    client: &Client,
    path: &str,
    query: &[(&str, String)],
    batch: &Batch,
    body: String,
) -> reqwest::RequestBuilder {
    client
        .request(Method::POST, &[path], query)
        .header(CONTENT_TYPE, "application/yaml")
        .header(BASE_URI_HEADER, &batch.base)
        .body(body)
}

fn print(applied: &Applied) -> Result<(), Failure> {
    let mut text = String::new();
    let suffix = if applied.dry_run { " (dry run)" } else { "" };
    for result in &applied.results {
        text.push_str(&format!(
            "{}/{} {}{suffix}\n",
            Resource::of_document(&result.kind),
            result.name,
            result.outcome.as_str()
        ));
        for warning in &result.warnings {
            eprintln!("warning: {}: {warning}", result.name);
        }
    }
    if text.is_empty() { Ok(()) } else { Ok(terminal::print(&text)?) }
}
