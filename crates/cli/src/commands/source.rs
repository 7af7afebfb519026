//! `berth source`: the registry that is followed; and the rows of sources and secrets.

use berth_wire::api::{SecretView, SourceBreaker, SourceView};
use clap::{Args, Subcommand};
use reqwest::Method;

use super::{
    describe::{facts, section},
    output::{Form, Row, or_dash, print_value, table},
};
use crate::{
    client::{ApiArgs, Client},
    failure::Failure,
    terminal,
};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth source sync                          poll now, and validate a refused commit again
  berth source describe                      applied and refused commits, reasons, write-back
  berth get sources                          the same as a table row
  berth get secrets                          credentials by worker, without values")]
pub(crate) struct SourceArgs {
    #[command(subcommand)]
    what: SourceCommand,
}

#[derive(Debug, Subcommand)]
enum SourceCommand {
    /// Poll the registry now
    Sync(OneArgs),
    /// List the sources of deployments
    List(ListArgs),
    /// Show all details of a source
    Describe(OneArgs),
}

#[derive(Debug, Args)]
struct OneArgs {
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Debug, Args)]
struct ListArgs {
    /// Output format
    #[arg(short, long, value_enum, default_value_t, value_name = "FORM")]
    output: Form,
    #[command(flatten)]
    api: ApiArgs,
}

pub(crate) async fn run(args: &SourceArgs) -> Result<(), Failure> {
    match &args.what {
        SourceCommand::Sync(one) => {
            let client = one.api.client()?;
            let _before: SourceView =
                client.json(client.request(Method::POST, &["sources", "git", "sync"], &[])).await?;
            terminal::print("source/git is looked at now; `berth source describe` says what comes of it")?;
            Ok(())
        }
        SourceCommand::List(list) => {
            let sources = list.api.client()?.list::<SourceView>(&["sources"], &[]).await?;
            match list.output {
                form @ (Form::Json | Form::Yaml) => print_value(&sources, form),
                Form::Name => Ok(terminal::print(&names(&sources.items))?),
                form => Ok(terminal::print(&table(&sources.items, form))?),
            }
        }
        SourceCommand::Describe(one) => Ok(terminal::print(&described(&one.api.client()?, "git").await?)?),
    }
}

fn names(sources: &[SourceView]) -> String {
    sources.iter().map(|source| format!("source/{}\n", source.metadata.name)).collect()
}

/// All that is known about a source.
pub(super) async fn described(client: &Client, name: &str) -> Result<String, Failure> {
    let source: SourceView = client.get(&["sources", name]).await?;
    let (spec, status) = (&source.spec, &source.status);
    let text = |value: &Option<String>| or_dash(value.as_deref().unwrap_or_default());
    let time = |value: &Option<berth_wire::api::Timestamp>| value.map_or_else(|| "-".to_owned(), |at| at.to_string());
    let mut shown = facts(&[
        ("Registry", spec.url.clone()),
        ("Branch", spec.branch.clone()),
        ("State", status.state.clone()),
        ("In force", text(&status.applied)),
        ("Since", time(&status.applied_at)),
        ("Author", or_dash(&status.author)),
        ("Signed by", or_dash(&status.signer)),
        ("Subject", or_dash(&status.subject)),
        ("Deployments", status.deployments.to_string()),
        ("Seen", text(&status.seen)),
        ("Looked at", time(&status.checked_at)),
        ("Next look", time(&status.next_check)),
        ("Written to", or_dash(&status.write_back.to)),
        ("Written", text(&status.write_back.commit)),
    ]);
    if let Some(refused) = &status.refused {
        let again =
            refused.validated_again.map_or_else(|| "when something changes".to_owned(), |at| format!("at {at}"));
        section(&mut shown, "Refused", &format!("{}: {}\nvalidated again {again}\n", refused.commit, refused.outcome));
    }
    if let Some(problem) = &status.problem {
        section(&mut shown, "Problem", &format!("{problem}\n"));
    }
    if let Some(problem) = &status.write_back.problem {
        section(&mut shown, "Not written", &format!("{problem}\n"));
    }
    let breaker = |breaker: &SourceBreaker| match (breaker.failures, breaker.retry_at) {
        (0, _) => format!("{}: {}\n", breaker.dependency, breaker.state),
        (times, at) => {
            let again = at.map_or_else(String::new, |at| format!(", tried again at {at}"));
            let times = if times == 1 { "once".to_owned() } else { format!("{times} times in a row") };
            format!("{}: {}, failed {times}{again}\n", breaker.dependency, breaker.state)
        }
    };
    let breakers: String = status.breakers.iter().map(breaker).collect();
    if !breakers.is_empty() {
        section(&mut shown, "Breakers", &breakers);
    }
    Ok(shown)
}

impl Row for SourceView {
    const HEADS: (&'static [&'static str], &'static [&'static str]) = (
        &["NAME", "STATE", "BRANCH", "APPLIED", "SEEN", "DEPLOYMENTS", "PROBLEM"],
        &["URL", "AUTHOR", "SIGNED BY", "LOOKED AT", "WRITTEN TO", "BREAKERS"],
    );

    fn name(&self) -> &str {
        &self.metadata.name
    }

    fn cells(&self) -> Vec<String> {
        let status = &self.status;
        let short = |commit: &Option<String>| {
            let commit = commit.as_deref().unwrap_or_default();
            or_dash(commit.get(..12).unwrap_or(commit))
        };
        let problem = status.problem.as_deref().unwrap_or_default().lines().next().unwrap_or_default();
        let open = status.breakers.iter().filter(|breaker| breaker.state != "closed");
        vec![
            self.metadata.name.clone(),
            or_dash(&status.state),
            self.spec.branch.clone(),
            short(&status.applied),
            short(&status.seen),
            status.deployments.to_string(),
            or_dash(problem),
            self.spec.url.clone(),
            or_dash(&status.author),
            or_dash(&status.signer),
            status.checked_at.map_or_else(|| "-".to_owned(), |at| at.to_string()),
            or_dash(&status.write_back.to),
            or_dash(
                &open.map(|breaker| format!("{} {}", breaker.dependency, breaker.state)).collect::<Vec<_>>().join(", "),
            ),
        ]
    }
}

impl Row for SecretView {
    const HEADS: (&'static [&'static str], &'static [&'static str]) = (
        &["WORKER", "NAME", "TYPE", "BACKEND", "GENERATION", "ADOPTED", "EXPIRES", "PROBLEM"],
        &["KEYS OR LEASE", "RENEWED"],
    );

    fn name(&self) -> &str {
        &self.metadata.name
    }

    fn cells(&self) -> Vec<String> {
        let status = &self.status;
        let time = |at: &Option<berth_wire::api::Timestamp>| at.map_or_else(|| "-".to_owned(), |at| at.to_string());
        vec![
            status.worker.clone(),
            status.name.clone(),
            or_dash(&status.kind),
            status.backend.clone(),
            status.generation.to_string(),
            if status.adopted { "yes".to_owned() } else { "no".to_owned() },
            time(&status.expires_at),
            or_dash(status.problem.as_deref().unwrap_or_default().lines().next().unwrap_or_default()),
            or_dash(&status.held_by),
            time(&status.renewed_at),
        ]
    }
}
