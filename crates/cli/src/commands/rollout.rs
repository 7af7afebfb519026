//! `berth rollout`: how far an update is, the end of a canary, earlier generations, back to one of them, and fresh replicas.

use std::time::Duration;

use berth_spec::{
    DeploymentName,
    manifest::{FieldChange, changes},
};
use berth_wire::api::{PastGeneration, RolloutHistory};
use clap::{Args, Subcommand};
use reqwest::Method;
use serde_json::Value;

use super::{
    change::{change, manifest_of, read, write},
    functions,
    namespace::{NamespaceArgs, path_of},
    output::{Form, print_value},
    resource::{ParsedTarget, Resource, Target, not_found},
    wait::{Until, until_all},
};
use crate::{
    client::{ApiArgs, Client},
    failure::Failure,
    terminal::{self, Rows, age},
};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth rollout status iris                  wait until the new revision serves, or fails
  berth rollout history iris                 the last generations, and what changed
  berth rollout undo iris                    back to the generation before
  berth rollout undo iris --to-generation 3
  berth rollout promote iris                 end a canary: the new revision gets all requests
  berth rollout restart iris                 fresh replicas of the same model
  berth rollout undo function/words          status, history and undo take functions, too

promote, undo and restart change the declaration on the server. What a folder or a Git repository
declares is changed there: remove spec.rollout.canary, revert its commit, or write another text into
spec.restart.")]
pub(crate) struct RolloutArgs {
    #[command(subcommand)]
    what: RolloutCommand,
}

#[derive(Debug, Subcommand)]
enum RolloutCommand {
    /// Wait until a rollout has ended, and say how
    Status(StatusArgs),
    /// List earlier generations of a deployment
    History(HistoryArgs),
    /// Declare an earlier generation again
    Undo(UndoArgs),
    /// Give all requests to the new revision of a canary
    Promote(PromoteArgs),
    /// Replace all replicas by fresh ones
    Restart(RestartArgs),
}

/// The kinds whose rollouts are followed and undone.
const FOLLOWED: [Resource; 2] = [Resource::Deployments, Resource::Functions];

/// A deployment, and where it is.
#[derive(Debug, Args)]
struct OneArgs {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    namespace: NamespaceArgs,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Debug, Args)]
#[command(mut_args(Target::words_of(&FOLLOWED)), after_help = "Examples:
  berth rollout status iris                  wait until the new revision serves
  berth rollout status iris digits           one after the other
  berth rollout status iris --timeout 60s    with a limit: exit code 5
  berth rollout status function/words

Exit code 1 as soon as it is certain that the rollout failed, with the reason. A replica that finds
no worker is no such failure: a worker may join. Meanwhile the command says what it waits for, and
at the limit why. A canary (spec.rollout.canary) ends the wait once the new revision gets its share
of requests.")]
struct StatusArgs {
    #[command(flatten)]
    one: OneArgs,
    /// Give up after this long
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = crate::settings::duration)]
    timeout: Duration,
}

#[derive(Debug, Args)]
#[command(mut_args(Target::words_of(&FOLLOWED)), after_help = "Examples:
  berth rollout history iris                 the last generations, and what changed
  berth rollout history iris --generation 3  the manifest of one of them
  berth rollout history iris -o json")]
struct HistoryArgs {
    #[command(flatten)]
    one: OneArgs,
    /// Print the manifest of this generation
    #[arg(long, value_name = "N")]
    generation: Option<u64>,
    /// Output format
    #[arg(short, long, value_parser = Form::among(&Form::NAMELESS), default_value = "table", value_name = "FORM")]
    output: Form,
}

#[derive(Debug, Args)]
#[command(mut_args(Target::words_of(&FOLLOWED)), after_help = "Examples:
  berth rollout undo iris                    back to the generation before
  berth rollout undo iris --to-generation 3  back to one that `berth rollout history iris` lists
  berth rollout undo function/words

The way back is a new generation with the old manifest: undo it to go forward again.")]
struct UndoArgs {
    #[command(flatten)]
    one: OneArgs,
    /// Generation to go back to [default: the one before]
    #[arg(long, aliases = ["to", "to-revision"], value_name = "N")]
    to_generation: Option<u64>,
    /// Take over what belongs to another source, such as a folder
    #[arg(long)]
    force: bool,
}

#[derive(Debug, Args)]
#[command(mut_args(Target::words_of(&[Resource::Deployments])), after_help = "Examples:
  berth rollout restart iris                 fresh replicas of the same model
  berth rollout restart iris digits && berth rollout status iris digits

Each new replica is ready before an old one goes, where both fit (spec.rollout.whenFull).")]
struct RestartArgs {
    #[command(flatten)]
    one: OneArgs,
    /// Take over what belongs to another source, such as a folder
    #[arg(long)]
    force: bool,
}

#[derive(Debug, Args)]
#[command(mut_args(Target::words_of(&[Resource::Deployments])), after_help = "Examples:
  berth rollout promote iris                 the new revision gets all requests
  berth rollout promote iris && berth rollout status iris

The old revision is unloaded once enough of the new one answers. To give up a canary, declare the
old model again.")]
struct PromoteArgs {
    #[command(flatten)]
    one: OneArgs,
    /// Take over what belongs to another source, such as a folder
    #[arg(long)]
    force: bool,
}

impl OneArgs {
    async fn names(&self, client: &Client) -> Result<Vec<DeploymentName>, Failure> {
        let named = self.target.find(client, &self.namespace, &[Resource::Deployments]).await?;
        let name = |(_, name): &(Resource, String)| DeploymentName::new(name);
        named.iter().map(name).collect::<Result<_, _>>().map_err(|error| Failure::Usage(error.to_string()))
    }

    /// The function, where the words name one.
    fn function(&self) -> Result<Option<DeploymentName>, Failure> {
        match self.target.read() {
            ParsedTarget::Some(names) => match names.as_slice() {
                [(Some(Resource::Functions), name)] => self.namespace.name_of(Resource::Functions, name).map(Some),
                _ => Ok(None),
            },
            ParsedTarget::All(_) => Ok(None),
        }
    }

    async fn only(&self, client: &Client) -> Result<DeploymentName, Failure> {
        let mut names = self.names(client).await?;
        match (names.pop(), names.is_empty()) {
            (Some(name), true) => Ok(name),
            _ => Err(Failure::Usage("name one deployment".to_owned())),
        }
    }
}

pub(crate) async fn run(args: &RolloutArgs) -> Result<(), Failure> {
    match &args.what {
        RolloutCommand::Status(args) => status(args).await,
        RolloutCommand::History(args) => history(args).await,
        RolloutCommand::Undo(args) => undo(args).await,
        RolloutCommand::Promote(args) => promote(args).await,
        RolloutCommand::Restart(args) => restart(args).await,
    }
}

async fn status(args: &StatusArgs) -> Result<(), Failure> {
    let client = args.one.api.client()?;
    let mut named = args.one.target.find(&client, &args.one.namespace, &FOLLOWED).await?;
    let is_function = |(kind, _): &(Resource, String)| *kind == Resource::Functions;
    for (_, name) in named.iter().filter(|named| is_function(named)) {
        let name = DeploymentName::new(name).map_err(|error| Failure::Usage(error.to_string()))?;
        functions::rolled_out(&client, &name, args.timeout).await?;
    }
    named.retain(|named| !is_function(named));
    if named.is_empty() {
        return Ok(());
    }
    for (_, name) in &named {
        let name = DeploymentName::new(name).map_err(|error| Failure::Usage(error.to_string()))?;
        // One that does not exist is a mistake here, not something to wait for.
        read(&client, &name).await?;
    }
    until_all(&client, &named, &Until::RolledOut, args.timeout).await
}

async fn past(client: &Client, name: &DeploymentName) -> Result<RolloutHistory, Failure> {
    let path = [path_of(name), vec!["history"]].concat();
    match client.json(client.request(Method::GET, &path, &[])).await {
        Err(Failure::NotFound(_)) => Err(not_found(client, Resource::Deployments, name.as_str()).await),
        other => other,
    }
}

async fn history(args: &HistoryArgs) -> Result<(), Failure> {
    let client = args.one.api.client()?;
    if let Some(name) = args.one.function()? {
        return functions::history(&client, &name, args.generation, args.output).await;
    }
    let name = args.one.only(&client).await?;
    let past = past(&client, &name).await?;
    let view = read(&client, &name).await?;
    if let Some(number) = args.generation {
        let manifest = match past.items.iter().find(|one| one.generation == number) {
            Some(one) => one.manifest.clone(),
            None if number == view.metadata.generation => manifest_of(&view),
            None => return Err(unknown(&name, number, &past.items)),
        };
        return print_value(&manifest, if args.output == Form::Json { Form::Json } else { Form::Yaml });
    }
    if let form @ (Form::Json | Form::Yaml) = args.output {
        return print_value(&past, form);
    }
    let now = manifest_of(&view);
    let mut rows = Rows::new(&["GENERATION", "REVISION", "REPLACED", "FROM", "CHANGES"]);
    let metadata = &view.metadata;
    let before = past.items.first().map(|one| &one.manifest);
    rows.add([
        metadata.generation.to_string(),
        view.status.revision.wanted.clone(),
        "-".to_owned(),
        metadata.origin.clone(),
        told(before, &now),
    ]);
    for (at, one) in past.items.iter().enumerate() {
        rows.add([
            one.generation.to_string(),
            one.revision.clone(),
            format!("{} ago", age(Some(one.replaced_at))),
            one.origin.clone(),
            told(past.items.get(at + 1).map(|before| &before.manifest), &one.manifest),
        ]);
    }
    Ok(terminal::print(&rows.render())?)
}

/// The fields of the spec in which a generation differs from the one before, in a line.
fn told(before: Option<&Value>, after: &Value) -> String {
    /// Fields that are told; more are counted.
    const TOLD: usize = 3;
    let Some(before) = before else { return "-".to_owned() };
    let fields = changes(&before["spec"], &after["spec"]);
    let mut words: Vec<String> = fields.iter().take(TOLD).map(FieldChange::to_string).collect();
    if fields.len() > TOLD {
        words.push(format!("{} more", fields.len() - TOLD));
    }
    if words.is_empty() { "the artifact's content".to_owned() } else { words.join(", ") }
}

async fn undo(args: &UndoArgs) -> Result<(), Failure> {
    let client = args.one.api.client()?;
    if let Some(name) = args.one.function()? {
        return functions::undo(&client, &name, args.to_generation, args.force).await;
    }
    let name = args.one.only(&client).await?;
    let view = read(&client, &name).await?;
    let past = past(&client, &name).await?.items;
    let wanted = match args.to_generation {
        Some(number) => {
            past.iter().find(|one| one.generation == number).ok_or_else(|| unknown(&name, number, &past))?
        }
        None => past.first().ok_or_else(|| {
            Failure::NotFound(format!("deployment/{name} has no earlier generation: its spec never changed"))
        })?,
    };
    let result = write(&client, &name, &wanted.manifest, &view.metadata.resource_version, args.force).await;
    let result = match result {
        Err(Failure::Conflict(_)) => {
            return Err(Failure::Failed(format!("deployment/{name} changed meanwhile; nothing was undone: try again")));
        }
        other => other?,
    };
    let (outcome, back) = (result.outcome.as_str(), wanted.generation);
    terminal::print(&format!(
        "deployment/{name} {outcome}: generation {} is as {back} was ({})",
        result.generation, wanted.revision
    ))?;
    Ok(())
}

fn unknown(name: &DeploymentName, number: u64, past: &[PastGeneration]) -> Failure {
    let known: Vec<String> = past.iter().map(|one| one.generation.to_string()).collect();
    let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    Failure::NotFound(format!("generation {number} of deployment/{name} is not kept: there are {known}"))
}

async fn restart(args: &RestartArgs) -> Result<(), Failure> {
    let client = args.one.api.client()?;
    for name in args.one.names(&client).await? {
        // The time, without what a word may not hold.
        let now = terminal::now().to_string().replace(':', "");
        change(&client, &name, args.force, |_, manifest| {
            manifest["spec"]["restart"] = now.as_str().into();
            Ok(())
        })
        .await?;
        terminal::print(&format!("deployment/{name} restarts: `berth rollout status {name}` waits for the end"))?;
    }
    Ok(())
}

async fn promote(args: &PromoteArgs) -> Result<(), Failure> {
    let client = args.one.api.client()?;
    for name in args.one.names(&client).await? {
        change(&client, &name, args.force, |_, manifest| without_canary(&name, manifest)).await?;
        terminal::print(&format!("deployment/{name} is promoted: `berth rollout status {name}` waits for the end"))?;
    }
    Ok(())
}

/// Removes the share of requests of a new revision, so that it gets all.
fn without_canary(name: &DeploymentName, manifest: &mut Value) -> Result<(), Failure> {
    let rollout = manifest.pointer_mut("/spec/rollout").and_then(Value::as_object_mut);
    let Some(rollout) = rollout.filter(|rollout| rollout.contains_key("canary")) else {
        return Err(Failure::Failed(format!(
            "deployment/{name} has no spec.rollout.canary: there is nothing to promote"
        )));
    };
    rollout.remove("canary");
    if rollout.is_empty()
        && let Some(spec) = manifest["spec"].as_object_mut()
    {
        spec.remove("rollout");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_promotion_removes_the_share_and_nothing_else() {
        let name = DeploymentName::new("iris").expect("a name");
        for (before, after) in [
            (json!({"priority": 7, "rollout": {"canary": 10}}), json!({"priority": 7})),
            (json!({"rollout": {"canary": 0, "deadline": "1m"}}), json!({"rollout": {"deadline": "1m"}})),
        ] {
            let mut manifest = json!({"spec": before});
            without_canary(&name, &mut manifest).expect("there is one");
            assert_eq!(manifest, json!({"spec": after}));
        }
        for before in [json!({}), json!({"rollout": {"whenFull": "wait"}})] {
            let mut manifest = json!({"spec": before.clone()});
            assert!(
                without_canary(&name, &mut manifest).is_err_and(|why| why.to_string().contains("nothing to promote"))
            );
            assert_eq!(manifest, json!({"spec": before}), "nothing changed");
        }
    }

    #[test]
    fn a_generation_tells_what_it_changed() {
        let manifest = |spec: Value| json!({"metadata": {"name": "iris"}, "spec": spec});
        let before = manifest(json!({"a": 1, "b": 1, "c": 1, "d": 1}));
        assert_eq!(told(Some(&before), &manifest(json!({"a": 2, "b": 1, "c": 1, "d": 1}))), "a: 1 → 2");
        let many = told(Some(&before), &manifest(json!({"a": 2, "b": 2, "c": 2, "d": 2})));
        assert!(many.ends_with("c: 1 → 2, 1 more"), "{many}");
        assert_eq!(
            (told(Some(&before), &before).as_str(), told(None, &before).as_str()),
            ("the artifact's content", "-")
        );
    }
}
