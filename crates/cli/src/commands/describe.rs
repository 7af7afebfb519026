//! `berth describe`: one thing with all that is known about it.

use std::{collections::BTreeMap, fmt::Write as _};

use berth_spec::{DeploymentName, dialect::kserve};
use berth_wire::api::{AliasView, DeploymentView, EventView, FailureView, Memory, ReplicaDetail, WorkerView};
use clap::Args;

use super::{
    namespace::{NamespaceArgs, events_in, path_in, path_of},
    output::{Form, progress, table, yaml},
    resource::{Resource, Target, not_found},
};
use crate::{
    client::{ApiArgs, Client},
    failure::Failure,
    terminal::{self, Rows, age, size},
};

/// The kinds that `berth describe` takes.
const DESCRIBED: [Resource; 6] = [
    Resource::Deployments,
    Resource::Aliases,
    Resource::Functions,
    Resource::Nodes,
    Resource::Sources,
    Resource::Workers,
];

#[derive(Debug, Args)]
#[command(mut_args(Target::words_of(&DESCRIBED)), after_help = "Examples:
  berth describe iris                        spec, status, replicas, inputs and outputs, events
  berth describe alias iris-live             targets with their shares, recent events
  berth describe node a                      capacity, load, replicas, drain progress, recent events
  berth describe function/words              phase, endpoint, artifact, last build, events
  berth describe source/registry             the applied and the refused revision, and why")]
pub(crate) struct DescribeArgs {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    namespace: NamespaceArgs,
    #[command(flatten)]
    api: ApiArgs,
}

pub(crate) async fn run(args: &DescribeArgs) -> Result<(), Failure> {
    let client = args.api.client()?;
    for (resource, name) in &args.target.find(&client, &args.namespace, &DESCRIBED).await? {
        let resource = *resource;
        let text = match resource {
            Resource::Deployments => {
                deployment(&client, &DeploymentName::new(name).map_err(|e| Failure::Usage(e.to_string()))?).await
            }
            Resource::Aliases => {
                alias(&client, &DeploymentName::new(name).map_err(|e| Failure::Usage(e.to_string()))?).await
            }
            Resource::Nodes => super::nodes::describe(&client, name).await,
            Resource::Workers => worker(&client, name).await,
            Resource::Sources => super::source::described(&client, name).await,
            Resource::Functions => {
                let name = DeploymentName::new(name).map_err(|e| Failure::Usage(e.to_string()))?;
                super::functions::described(&client, &name).await
            }
            other => {
                let known = "deployments, aliases, nodes, workers, sources and functions";
                Err(Failure::Usage(format!("describe knows {known}, not {}", other.plural())))
            }
        };
        match text {
            Ok(text) => terminal::print(&text)?,
            Err(Failure::NotFound(_)) => return Err(not_found(&client, resource, name).await),
            Err(other) => return Err(other),
        }
    }
    Ok(())
}

async fn deployment(client: &Client, name: &DeploymentName) -> Result<String, Failure> {
    let view: DeploymentView = client.get(&path_of(name)).await?;
    let events = events(client, name).await?;
    let (metadata, status) = (&view.metadata, &view.status);
    let mut text = facts(&[
        ("Name", metadata.name.clone()),
        ("Namespace", metadata.namespace.clone()),
        ("Labels", labels(&metadata.labels)),
        ("Declared by", format!("{}, {} ago", metadata.origin, age(metadata.creation_timestamp))),
        ("Generation", generation(metadata.generation, status.observed_generation)),
        ("Phase", status.phase.clone()),
        ("Replicas", format!("{} ready of {} wanted", status.replicas.ready, status.replicas.desired)),
        ("Revision", revision(&view)),
        ("Last used", status.last_used.map_or_else(|| "never".to_owned(), |at| format!("{} ago", age(Some(at))))),
    ]);
    let registry = in_registry(&metadata.annotations);
    if !registry.is_empty() {
        section(&mut text, "Registry", &facts(&registry));
    }
    let kserve = of_kserve(&metadata.annotations);
    if !kserve.is_empty() {
        section(&mut text, "KServe", &facts(&kserve));
    }
    section(&mut text, "Spec, with defaults", &yaml(&with_defaults(&view))?);
    let mut rows = Rows::new(&["CONDITION", "STATUS", "REASON", "MESSAGE"]);
    for condition in &status.conditions {
        rows.add([&condition.kind, &condition.status, &condition.reason, &condition.message].map(Clone::clone));
    }
    section(&mut text, "Conditions", &rows.render());
    if !status.replica_details.is_empty() {
        let mut rows = Rows::new(&["REVISION", "WORKER", "STATE", "MEMORY", "REQUESTS", "LAST USED", "MESSAGE"]);
        for replica in &status.replica_details {
            let memory = size(replica.memory) + if replica.measured { "" } else { " (set aside)" };
            let state = replica.state.clone() + &progress(replica.progress);
            let (requests, last_used) = used(replica);
            let (revision, worker) = (replica.revision.clone(), replica.worker.clone());
            rows.add([revision, worker, state, memory, requests, last_used, replica.message.clone()]);
        }
        section(&mut text, "Replicas", &rows.render());
    }
    if status.replicas.ready > 0 {
        super::signature::describe(client, name, &view, &mut text).await;
    }
    for replica in &status.replica_details {
        if let Some(failure) = &replica.failure {
            section(&mut text, &format!("Failure of {} on {}", replica.revision, replica.worker), &failed(failure));
        }
    }
    section(&mut text, "Events", &events);
    Ok(text)
}

/// The declared generation, and the one that the status is about where that is an earlier one.
fn generation(declared: u64, observed: u64) -> String {
    match declared == observed {
        true => declared.to_string(),
        false => format!("{declared} (the status is still that of {observed})"),
    }
}

/// Recent events about a deployment or an alias. A role that is limited to models reads none: the page is shown without them.
async fn events(client: &Client, name: &DeploymentName) -> Result<String, Failure> {
    let namespace = name.to_namespace();
    let about = client.list::<EventView>(&events_in(&namespace), &[("deployment", name.name().to_owned())]).await;
    let about = match about {
        // A server of before has them at one address alone.
        Err(Failure::NotFound(_)) => client.list::<EventView>(&["events"], &[("deployment", name.to_string())]).await,
        about => about,
    };
    match about {
        Ok(events) if events.items.is_empty() => Ok("none lately\n".to_owned()),
        Ok(events) => Ok(table(&events.items, Form::Table)),
        Err(Failure::Forbidden(_)) => Ok("not shown: events need a role on the whole namespace\n".to_owned()),
        Err(other) => Err(other),
    }
}

async fn alias(client: &Client, name: &DeploymentName) -> Result<String, Failure> {
    let view: AliasView = client.get(&path_in(Resource::Aliases, name)).await?;
    let events = events(client, name).await?;
    let metadata = &view.metadata;
    let mut text = facts(&[
        ("Name", metadata.name.clone()),
        ("Namespace", metadata.namespace.clone()),
        ("Labels", labels(&metadata.labels)),
        ("Declared by", format!("{}, {} ago", metadata.origin, age(metadata.creation_timestamp))),
        ("Generation", metadata.generation.to_string()),
    ]);
    section(&mut text, "Spec", &yaml(&view.spec)?);
    let mut rows = Rows::new(&["TARGET", "WEIGHT", "SHARE", "PHASE"]);
    for target in &view.status.targets {
        let share = format!("{}%", target.share);
        rows.add([target.deployment.clone(), target.weight.to_string(), share, target.phase.clone()]);
    }
    section(&mut text, "Targets", &rows.render());
    section(&mut text, "Events", &events);
    Ok(text)
}

/// The object of KServe or ModelMesh that a deployment came from, and the fields of it that have no effect.
fn of_kserve(annotations: &BTreeMap<String, String>) -> Vec<(&'static str, String)> {
    [("Kind", kserve::KIND), ("Runtime", kserve::RUNTIME), ("Ignored", kserve::IGNORED)]
        .into_iter()
        .filter_map(|(head, name)| Some((head, annotations.get(name)?.clone())))
        .collect()
}

/// Rows about a deployment's Git registry: the last commit that changed it, and its owner.
fn in_registry(annotations: &BTreeMap<String, String>) -> Vec<(&'static str, String)> {
    const KNOWN: [(&str, &str); 7] = [
        ("commit", "Changed by"),
        ("path", "Manifest"),
        ("card", "Model card"),
        ("owner", "Owner"),
        ("deployed-by", "Deployed by"),
        ("deployed-at", "Deployed at"),
        ("model-owner", "Model's owner"),
    ];
    let said = |(key, name): (&str, &'static str)| {
        annotations.get(&format!("registry.berth.dev/{key}")).map(|value| (name, value.clone()))
    };
    KNOWN.into_iter().filter_map(said).collect()
}

/// Requests, and how long the last one is ago; nothing where the worker has not said.
fn used(replica: &ReplicaDetail) -> (String, String) {
    match replica.requests {
        Some(0) => ("0".to_owned(), "never".to_owned()),
        Some(requests) => (requests.to_string(), format!("{} ago", age(replica.last_used))),
        None => ("-".to_owned(), "-".to_owned()),
    }
}

/// Every attempt, when the next one is, and the last words of the model's own code.
fn failed(failure: &FailureView) -> String {
    /// Lines of a trace that are shown, the last ones: that is where the cause is. `-o json` has all of it.
    const TRACE: usize = 20;
    let mut rows = Rows::new(&["ATTEMPT", "ENDED", "KIND", "WHAT"]);
    let before = failure.history.iter().map(|attempt| (attempt.at, &attempt.category, &attempt.message));
    let attempts = before.chain([(failure.at, &failure.category, &failure.message)]);
    let first = failure.attempts.saturating_sub(u32::try_from(failure.history.len()).unwrap_or(u32::MAX)).max(1);
    for (number, (at, category, message)) in (first..).zip(attempts) {
        rows.add([number.to_string(), format!("{} ago", age(Some(at))), category.clone(), message.clone()]);
    }
    let mut text = rows.render();
    match failure.retry_at {
        Some(at) => text.push_str(&format!("next attempt at {}\n", String::from(at))),
        None => text.push_str("not tried again by itself\n"),
    }
    if let Some(trace) = &failure.trace {
        let lines: Vec<&str> = trace.lines().collect();
        let left_out = lines.len().saturating_sub(TRACE);
        if left_out > 0 {
            text.push_str(&format!("... {left_out} lines before\n"));
        }
        lines[left_out..].iter().for_each(|line| text.push_str(&format!("{line}\n")));
    }
    text
}

/// The spec as it is understood; as it was written where this version of berth does not understand it.
fn with_defaults(view: &DeploymentView) -> serde_json::Value {
    let raw = serde_json::json!({
        "apiVersion": view.api_version, "kind": view.kind, "metadata": {"name": view.metadata.name}, "spec": view.spec,
    });
    let understood = berth_spec::manifest::with_defaults(&raw);
    understood.and_then(|raw| raw.get("spec").cloned()).unwrap_or_else(|| view.spec.clone())
}

fn revision(view: &DeploymentView) -> String {
    let pair = &view.status.revision;
    match &pair.serving {
        Some(serving) if *serving == pair.wanted => format!("{serving} (serving)"),
        Some(serving) => format!("{serving} serves, {} is wanted", pair.wanted),
        None => format!("{} (nothing serves)", pair.wanted),
    }
}

async fn worker(client: &Client, name: &str) -> Result<String, Failure> {
    let view: WorkerView = client.get(&["workers", name]).await?;
    let status = &view.status;
    let mut text = facts(&[
        ("Name", view.metadata.name.clone()),
        ("Labels", labels(&view.metadata.labels)),
        ("State", format!("{}{}", status.state, if view.spec.cordoned { ", cordoned" } else { "" })),
        ("Memory", memory(&status.memory)),
        ("CPUs", status.cpus.to_string()),
        ("Formats", status.formats.join(", ")),
        ("Version", format!("{}, incarnation {}", status.version, status.incarnation)),
    ]);
    let models: String = status.models.iter().map(|model| format!("{model}\n")).collect();
    section(&mut text, "Replicas", if models.is_empty() { "none\n" } else { &models });
    Ok(text)
}

/// Memory of a worker, in words.
pub(super) fn memory(memory: &Memory) -> String {
    let [total, used, overhead, free] = [memory.total, memory.used, memory.overhead, memory.free].map(size);
    format!("{total} for models: {used} used, {overhead} overhead of the process, {free} free")
}

pub(super) fn labels(labels: &std::collections::BTreeMap<String, String>) -> String {
    let pairs: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    if pairs.is_empty() { "none".to_owned() } else { pairs.join(", ") }
}

/// `Name:  value` lines, values in one column.
pub(super) fn facts(facts: &[(&str, String)]) -> String {
    let width = facts.iter().map(|(name, _)| name.len()).max().unwrap_or(0) + 1;
    facts.iter().map(|(name, value)| format!("{:width$}  {value}\n", format!("{name}:"))).collect()
}

/// A heading and a block below it, moved in.
pub(super) fn section(text: &mut String, heading: &str, block: &str) {
    // Formatting into a string cannot fail.
    let _ = write!(text, "\n{heading}:\n");
    for line in block.lines() {
        let _ = writeln!(text, "  {line}");
    }
}
