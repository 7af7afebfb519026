//! `berth source`: the sources of deployments; and the rows of sources and secrets.

use berth_wire::api::{List, SecretView, SourceBreaker, SourceStatus, SourceView, Timestamp};
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
  berth source list                          every source, its state and problems
  berth source sync registry                 read it now, and validate a refused revision again
  berth source pause registry                its deployments stay, changes wait
  berth source resume registry
  berth source describe                      the applied and the refused revision, and why
  berth get secrets                          which worker has which credentials; never their values

The name may be left out where there is only one source.")]
pub(crate) struct SourceArgs {
    #[command(subcommand)]
    what: SourceCommand,
}

#[derive(Debug, Subcommand)]
enum SourceCommand {
    /// Read a source now
    #[command(after_help = "Examples:
  berth source sync                          the only source
  berth source sync registry                 now, and a refused revision is validated again

It does not wait for the result: `berth source describe` shows it.")]
    Sync(OneArgs),
    /// Pause a source: its deployments stay, and changes wait
    #[command(after_help = "Examples:
  berth source pause registry                its deployments stay, changes wait")]
    Pause(OneArgs),
    /// Resume a source that is paused
    #[command(after_help = "Examples:
  berth source resume registry               what changed meanwhile is applied now")]
    Resume(OneArgs),
    /// List the sources of deployments
    #[command(after_help = "Examples:
  berth source list                          the applied revision, and problems
  berth source list -o wide                  also branch, author, signer, breakers")]
    List(ListArgs),
    /// Show all that is known about a source
    #[command(after_help = "Examples:
  berth source describe                      the only source
  berth source describe registry             the applied and the refused revision, and why")]
    Describe(OneArgs),
}

#[derive(Debug, Args)]
struct OneArgs {
    /// Name of the source [default: the only one]
    #[arg(value_name = "NAME", add = super::completing::sources())]
    name: Option<String>,
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
        SourceCommand::Sync(one) => one.ask("sync", "is read now; `berth source describe` shows the result").await,
        SourceCommand::Pause(one) => one.ask("pause", "is paused; what it declared stays").await,
        SourceCommand::Resume(one) => one.ask("resume", "is resumed, and read now").await,
        SourceCommand::List(list) => {
            let sources = list.api.client()?.list::<SourceView>(&["sources"], &[]).await?;
            match list.output {
                form @ (Form::Json | Form::Yaml) => print_value(&sources, form),
                Form::Name => Ok(terminal::print(&names(&sources.items))?),
                _ if sources.items.is_empty() => {
                    eprintln!("no sources yet");
                    Ok(())
                }
                form => Ok(terminal::print(&table(&sources.items, form))?),
            }
        }
        SourceCommand::Describe(one) => {
            let client = one.api.client()?;
            let name = one.name(&client).await?;
            Ok(terminal::print(&described(&client, &name).await?)?)
        }
    }
}

impl OneArgs {
    /// The name; where none is given, that of the only source.
    async fn name(&self, client: &Client) -> Result<String, Failure> {
        if let Some(name) = &self.name {
            let name = name.strip_prefix("source/").or_else(|| name.strip_prefix("src/")).unwrap_or(name);
            return Ok(name.to_owned());
        }
        let sources: List<SourceView> = client.list(&["sources"], &[]).await?;
        match sources.items.as_slice() {
            [only] => Ok(only.metadata.name.clone()),
            [] => {
                Err(Failure::Usage("there are no sources: `berth up FOLDER`, or --source, configures them".to_owned()))
            }
            several => {
                let names: Vec<&str> = several.iter().map(|source| source.metadata.name.as_str()).collect();
                Err(Failure::Usage(format!("there are several sources: name one of {}", names.join(", "))))
            }
        }
    }

    async fn ask(&self, what: &str, done: &str) -> Result<(), Failure> {
        let client = self.api.client()?;
        let name = self.name(&client).await?;
        let _now: SourceView = client.json(client.request(Method::POST, &["sources", &name, what], &[])).await?;
        terminal::print(&format!("source/{name} {done}"))?;
        Ok(())
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
    let time = |value: &Option<Timestamp>| value.map_or_else(|| "-".to_owned(), |at| at.to_string());
    let labels: Vec<(String, String)> = status
        .details
        .iter()
        .filter(|(key, _)| *key != "writeProblem")
        .map(|(key, value)| (label(key), value.clone()))
        .collect();
    let common = [
        ("Name", source.metadata.name.clone()),
        ("Kind", spec.kind.clone()),
        ("Location", spec.location.clone()),
        ("State", status.state.clone()),
        ("In force", text(&status.applied)),
        ("Since", time(&status.applied_at)),
        ("Seen", text(&status.seen)),
        ("Deployments", status.deployments.to_string()),
        ("Disabled", status.disabled.to_string()),
        ("Stuck", stuck(status)),
        ("Checked at", time(&status.checked_at)),
        ("Next check", time(&status.next_check)),
    ];
    let details = labels.iter().map(|(label, value)| (label.as_str(), value.clone()));
    let mut shown = facts(&common.into_iter().chain(details).collect::<Vec<_>>());
    if let Some(refused) = &status.refused {
        let again =
            refused.validated_again.map_or_else(|| "when something changes".to_owned(), |at| format!("at {at}"));
        section(&mut shown, "Refused", &format!("{}: {}\nvalidated again {again}\n", refused.commit, refused.outcome));
    }
    if let Some(stuck) = status.stuck.as_ref().filter(|stuck| stuck.count > 0) {
        let more = stuck.count.saturating_sub(stuck.first.len() as u64);
        let more = if more > 0 { format!("and {more} more\n") } else { String::new() };
        section(&mut shown, "Stuck", &format!("{}\n{more}", stuck.first.join("\n")));
    }
    if let Some(problem) = &status.problem {
        section(&mut shown, "Problem", &format!("{problem}\n"));
    }
    if let Some(problem) = status.details.get("writeProblem") {
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

/// The number of deployments that do not get on, where it is known.
fn stuck(status: &SourceStatus) -> String {
    status.stuck.as_ref().map_or_else(|| "-".to_owned(), |stuck| stuck.count.to_string())
}

/// The key of a detail as people read it: `signedBy` becomes `Signed by`.
fn label(key: &str) -> String {
    let mut label = String::with_capacity(key.len() + 2);
    for c in key.chars() {
        match c {
            c if label.is_empty() => label.extend(c.to_uppercase()),
            c if c.is_uppercase() => {
                label.push(' ');
                label.extend(c.to_lowercase());
            }
            c => label.push(c),
        }
    }
    label
}

impl Row for SourceView {
    const HEADS: (&'static [&'static str], &'static [&'static str]) = (
        &["NAME", "KIND", "STATE", "APPLIED", "SEEN", "DEPLOYMENTS", "STUCK", "PROBLEM"],
        &["LOCATION", "BRANCH", "AUTHOR", "SIGNED BY", "CHECKED AT", "WRITTEN TO", "BREAKERS"],
    );

    fn name(&self) -> String {
        self.metadata.name.clone()
    }

    fn cells(&self) -> Vec<String> {
        let status = &self.status;
        let short = |revision: &Option<String>| {
            let revision = revision.as_deref().unwrap_or_default();
            or_dash(revision.get(..12).unwrap_or(revision))
        };
        let problem = status.problem.as_deref().unwrap_or_default().lines().next().unwrap_or_default();
        let open = status.breakers.iter().filter(|breaker| breaker.state != "closed");
        let detail = |key: &str| or_dash(status.details.get(key).map(String::as_str).unwrap_or_default());
        vec![
            self.metadata.name.clone(),
            self.spec.kind.clone(),
            or_dash(&status.state),
            short(&status.applied),
            short(&status.seen),
            status.deployments.to_string(),
            stuck(status),
            or_dash(problem),
            self.spec.location.clone(),
            detail("branch"),
            detail("author"),
            detail("signedBy"),
            status.checked_at.map_or_else(|| "-".to_owned(), |at| at.to_string()),
            detail("writtenTo"),
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

    fn name(&self) -> String {
        self.metadata.name.clone()
    }

    fn cells(&self) -> Vec<String> {
        let status = &self.status;
        let time = |at: &Option<Timestamp>| at.map_or_else(|| "-".to_owned(), |at| at.to_string());
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
