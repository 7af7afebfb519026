//! Functions: their rows, what `berth describe function` tells, their logs, and the ways back.

mod log;

use std::time::{Duration, Instant};

use berth_spec::{
    DeploymentName,
    id::DEFAULT_NAMESPACE,
    manifest::{FieldChange, changes},
};
use berth_wire::api::{ApplyResult, EventView, FunctionRevision, FunctionView, Timestamp};
use reqwest::{
    Method,
    header::{CONTENT_TYPE, IF_MATCH},
};
use serde_json::{Value, json};

pub(super) use self::log::{LogWanted, print_log};
use super::{
    describe::{facts, section},
    namespace::{events_in, path_in},
    output::{Form, Row, or_dash, print_value, table},
    resource::{Resource, not_found},
};
use crate::{
    client::Client,
    failure::Failure,
    terminal::{self, Rows, age, size},
};

/// Attempts of a change that lost to another writer: statuses are written while a function is built.
const ATTEMPTS: usize = 8;

/// The annotation that asks for the artifact of an earlier deployment.
const ARTIFACT: &str = "berth.dev/artifact";

/// Interval at which a rollout is looked at: people see each step.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// All that is known about a function.
pub(super) async fn described(client: &Client, name: &DeploymentName) -> Result<String, Failure> {
    let function: FunctionView = client.get(&path_in(Resource::Functions, name)).await?;
    let (metadata, status) = (&function.metadata, &function.status);
    let artifact = status.artifact.as_ref().map(|artifact| format!("{} ({})", artifact.digest, size(artifact.size)));
    let mut text = facts(&[
        ("Name", metadata.name.clone()),
        ("Namespace", metadata.namespace.clone()),
        ("Type", or_dash(function.text("/type"))),
        ("Source", or_dash(function.text("/sourceUri"))),
        ("Platform", or_dash(function.text("/target/platform"))),
        ("Declared by", metadata.origin.clone()),
        ("Generation", format!("{} (status speaks of {})", metadata.generation, status.observed_generation)),
        ("Phase", status.phase.clone()),
        ("Message", status.message.clone()),
        ("Endpoint", or_dash(status.endpoint.as_deref().unwrap_or_default())),
        ("Artifact", or_dash(artifact.as_deref().unwrap_or_default())),
    ]);
    let mut rows = Rows::new(&["CONDITION", "STATUS", "REASON", "FOR", "MESSAGE"]);
    for fact in &status.conditions {
        let since = age(fact.last_transition_time.parse::<Timestamp>().ok());
        let (name, holds, reason) = (fact.r#type.clone(), fact.status.clone(), fact.reason.clone());
        rows.add([name, holds, reason, since, fact.message.clone()]);
    }
    section(&mut text, "Conditions", &rows.render_inside(2));
    if let Some(build) = &status.build {
        let how = if build.cached { ", the same inputs were built before" } else { "" };
        let took = if build.took.is_empty() { String::new() } else { format!(", took {}{how}", build.took) };
        let head = format!("{} began at {}{took}\n", build.id, build.started);
        section(&mut text, "Build", &format!("{head}{}\n", build.log_tail.trim_end()));
    }
    section(&mut text, "Events", &events(client, name).await?);
    Ok(text)
}

/// Recent events about a function.
async fn events(client: &Client, name: &DeploymentName) -> Result<String, Failure> {
    let (namespace, about) = (name.to_namespace(), [("function", name.name().to_owned())]);
    let events = client.list::<EventView>(&events_in(&namespace), &about).await?.items;
    Ok(if events.is_empty() { "none lately\n".to_owned() } else { table(&events, Form::Table) })
}

async fn read(client: &Client, name: &DeploymentName) -> Result<FunctionView, Failure> {
    match client.get(&path_in(Resource::Functions, name)).await {
        Err(Failure::NotFound(_)) => Err(not_found(client, Resource::Functions, name.as_str()).await),
        other => other,
    }
}

/// Prints what a function is doing, why, and what would help.
pub(super) async fn explain(client: &Client, name: &DeploymentName, form: Form) -> Result<(), Failure> {
    let function = read(client, name).await?;
    match form {
        Form::Json | Form::Yaml => print_value(&function.status, form),
        _ => Ok(terminal::print(&explained(&function))?),
    }
}

fn explained(function: &FunctionView) -> String {
    let (name, status) = (function.metadata.written(), &function.status);
    let mut text = format!("{name}: {}: {}\n", status.phase, status.message);
    let wanted = i64::try_from(function.metadata.generation).unwrap_or(i64::MAX);
    if wanted != status.observed_generation {
        text.push_str(&format!(
            "Generation {wanted} is under way; the status speaks of {}.\n",
            status.observed_generation
        ));
    }
    match (status.history.first(), &status.endpoint) {
        (Some(served), Some(endpoint)) => {
            let since = format!("Generation {} serves at {endpoint} since {}", served.generation, served.deployed);
            let differs = match changes(&served.spec, &function.spec) {
                _ if !function.spec.is_object() => "; what is wanted now has no spec that can be read".to_owned(),
                fields if fields.is_empty() => String::new(),
                fields => format!("; wanted is {}", told(&fields)),
            };
            text.push_str(&format!("{since}{differs}.\n"));
        }
        _ => text.push_str("Nothing of it serves.\n"),
    }
    for fact in status.conditions.iter().filter(|fact| fact.status != "True") {
        let says = if fact.message.is_empty() { String::new() } else { format!(": {}", fact.message) };
        text.push_str(&format!("{} is {}{says} ({})\n", fact.r#type, fact.status, fact.reason));
    }
    text + &help(function)
}

/// Commands that help in a state; empty where there are none.
fn help(function: &FunctionView) -> String {
    let (name, status) = (function.metadata.written(), &function.status);
    let mut help = Vec::new();
    match status.phase.as_str() {
        "Failed" => {
            if status.build.is_some() {
                help.push(format!("`berth logs function/{name}` has the whole log"));
            }
            if status.history.iter().any(|past| past.spec != function.spec) {
                help.push(format!("`berth rollout undo function/{name}` goes back to what served"));
            }
        }
        "Pending" => help.push("Builds take turns: `berth get functions` shows which run".to_owned()),
        "Building" => help.push(format!("`berth logs function/{name} -f` follows the build")),
        _ => {}
    }
    if help.is_empty() { String::new() } else { format!("{}.\n", help.join("; ")) }
}

/// A message in a cell of a table; `…` marks what is left out.
fn shortened(message: &str) -> String {
    /// Characters of a cell: three lines of a narrow terminal.
    const MOST: usize = 120;
    let line = message.lines().next().unwrap_or_default();
    let mut text: String = line.chars().take(MOST).collect();
    if text.len() < message.trim_end().len() {
        text.push('…');
    }
    text
}

/// A name in a cell of a table: a key of etcd may be any text, and a row is a line.
fn name_in_a_cell(name: &str) -> String {
    /// Characters of the longest name of a function with its namespace.
    const MOST: usize = 127;
    let mut text: String = name.chars().take(MOST).collect::<String>().replace('\n', "\\n");
    if name.chars().nth(MOST).is_some() {
        text.push('…');
    }
    text
}

/// Changed fields in a line.
fn told(fields: &[FieldChange]) -> String {
    /// Fields that are told; more are counted.
    const TOLD: usize = 3;
    let mut words: Vec<String> = fields.iter().take(TOLD).map(FieldChange::to_string).collect();
    if fields.len() > TOLD {
        words.push(format!("{} more", fields.len() - TOLD));
    }
    words.join(", ")
}

/// Waits until the newest generation of a function serves or has failed.
pub(super) async fn rolled_out(client: &Client, name: &DeploymentName, timeout: Duration) -> Result<(), Failure> {
    let end = Instant::now() + timeout;
    loop {
        let function = read(client, name).await?;
        let status = &function.status;
        let observed = u64::try_from(status.observed_generation).unwrap_or_default();
        if observed >= function.metadata.generation {
            match status.phase.as_str() {
                "Succeeded" => {
                    let endpoint = or_dash(status.endpoint.as_deref().unwrap_or_default());
                    return Ok(terminal::print(&format!("function/{name} answers at {endpoint}"))?);
                }
                "Failed" => return Err(Failure::Failed(format!("function/{name}: {}", status.message))),
                _ => {}
            }
        }
        if Instant::now() >= end {
            let message =
                format!("function/{name} is {} after {} s: {}", status.phase, timeout.as_secs(), status.message);
            return Err(Failure::Failed(message));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Prints the specs that were deployed, or one of them as a manifest.
pub(super) async fn history(
    client: &Client,
    name: &DeploymentName,
    generation: Option<u64>,
    form: Form,
) -> Result<(), Failure> {
    let function = read(client, name).await?;
    let past = &function.status.history;
    if let Some(number) = generation {
        let found = past.iter().find(|one| u64::try_from(one.generation) == Ok(number));
        let found = found.ok_or_else(|| unknown(name, number, past))?;
        let form = if form == Form::Json { Form::Json } else { Form::Yaml };
        return print_value(&manifest(&function, &found.spec), form);
    }
    if let form @ (Form::Json | Form::Yaml) = form {
        return print_value(past, form);
    }
    let mut rows = Rows::new(&["GENERATION", "ARTIFACT", "DEPLOYED", "CHANGES"]);
    for (at, one) in past.iter().enumerate() {
        let before = past.get(at + 1).map(|before| told(&changes(&before.spec, &one.spec)));
        rows.add([
            one.generation.to_string(),
            or_dash(one.artifact.get(..19).unwrap_or(&one.artifact)),
            one.deployed.clone(),
            or_dash(&before.unwrap_or_default()),
        ]);
    }
    Ok(terminal::print(&rows.render())?)
}

/// Declares again what was deployed before: its spec, and its artifact where that is still kept.
pub(super) async fn undo(client: &Client, name: &DeploymentName, to: Option<u64>, force: bool) -> Result<(), Failure> {
    for _ in 1..ATTEMPTS {
        let function = read(client, name).await?;
        let past = &function.status.history;
        let wanted = match to {
            Some(number) => {
                let found = past.iter().find(|one| u64::try_from(one.generation) == Ok(number));
                found.ok_or_else(|| unknown(name, number, past))?
            }
            None => past.iter().find(|one| is_other(one, &function)).ok_or_else(|| {
                Failure::NotFound(format!("function/{name} has no earlier generation that was deployed"))
            })?,
        };
        let query: &[_] = if force { &[("force", "true".to_owned())] } else { &[] };
        let request = client
            .request(Method::PUT, &path_in(Resource::Functions, name), query)
            .header(CONTENT_TYPE, "application/json")
            .header(IF_MATCH, format!("\"{}\"", function.metadata.resource_version))
            .body(way_back(&function, wanted).to_string());
        match client.json::<ApplyResult>(request).await {
            // A status was written meanwhile.
            Err(Failure::Conflict(_)) => {}
            Err(other) => return Err(other),
            Ok(result) => {
                let (from, now) = (wanted.generation, result.generation);
                return Ok(terminal::print(&format!("function/{name}: generation {now} is what {from} was"))?);
            }
        }
    }
    Err(Failure::Failed(format!("function/{name} changes all the time: nothing was changed; try again")))
}

/// True of a version that differs from what is wanted, or from what serves: code may change at the same place.
fn is_other(past: &FunctionRevision, function: &FunctionView) -> bool {
    let serves = function.status.artifact.as_ref();
    past.spec != function.spec || serves.is_some_and(|artifact| artifact.digest != past.artifact)
}

/// A manifest that asks for a version that was deployed before.
fn way_back(function: &FunctionView, past: &FunctionRevision) -> Value {
    let mut manifest = manifest(function, &past.spec);
    if !past.artifact.is_empty() {
        manifest["metadata"]["annotations"][ARTIFACT] = past.artifact.as_str().into();
    }
    manifest
}

/// A manifest of the function with this spec.
fn manifest(function: &FunctionView, spec: &Value) -> Value {
    let metadata = &function.metadata;
    let mut own = json!({"name": metadata.name});
    if !matches!(metadata.namespace.as_str(), "" | DEFAULT_NAMESPACE) {
        own["namespace"] = json!(metadata.namespace);
    }
    if !metadata.labels.is_empty() {
        own["labels"] = json!(metadata.labels);
    }
    let mut annotations = metadata.annotations.clone();
    // It is of another version.
    annotations.remove(ARTIFACT);
    if !annotations.is_empty() {
        own["annotations"] = json!(annotations);
    }
    json!({"apiVersion": function.api_version, "kind": function.kind, "metadata": own, "spec": spec})
}

fn unknown(name: &DeploymentName, number: u64, past: &[FunctionRevision]) -> Failure {
    let known: Vec<String> = past.iter().map(|one| one.generation.to_string()).collect();
    let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    Failure::NotFound(format!("generation {number} of function/{name} is not kept: there are {known}"))
}

impl Row for FunctionView {
    const HEADS: (&'static [&'static str], &'static [&'static str]) =
        (&["NAME", "PHASE", "GENERATION", "MESSAGE"], &["ENDPOINT", "TYPE", "PLATFORM", "SOURCE", "ARTIFACT"]);

    fn name(&self) -> String {
        self.metadata.written()
    }

    fn namespace(&self) -> Option<String> {
        Some(self.metadata.namespace.clone())
    }

    fn name_within(&self) -> Option<String> {
        Some(name_in_a_cell(&self.metadata.name))
    }

    fn cells(&self) -> Vec<String> {
        let status = &self.status;
        let artifact = status.artifact.as_ref().map(|artifact| artifact.digest.clone()).unwrap_or_default();
        vec![
            name_in_a_cell(&self.metadata.written()),
            status.phase.clone(),
            self.metadata.generation.to_string(),
            shortened(&status.message),
            or_dash(status.endpoint.as_deref().unwrap_or_default()),
            or_dash(self.text("/type")),
            or_dash(self.text("/target/platform")),
            or_dash(self.text("/sourceUri")),
            or_dash(artifact.get(..19).unwrap_or(&artifact)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use berth_wire::api::{FunctionArtifact, FunctionCondition, FunctionMetadata, FunctionStatus};

    use super::*;

    fn failed(spec: Value, history: Vec<FunctionRevision>) -> FunctionView {
        let conditions = ["", "its process ended"].map(|message| FunctionCondition {
            r#type: "Ready".to_owned(),
            status: "False".to_owned(),
            reason: "StartFailed".to_owned(),
            message: message.to_owned(),
            ..FunctionCondition::default()
        });
        FunctionView {
            api_version: "berth.dev/v1".to_owned(),
            kind: "Function".to_owned(),
            metadata: FunctionMetadata { name: "f".to_owned(), generation: 2, ..FunctionMetadata::default() },
            spec,
            status: FunctionStatus {
                phase: "Failed".to_owned(),
                message: "no".to_owned(),
                observed_generation: 2,
                conditions: conditions.into(),
                endpoint: history.first().map(|_| "http://h/functions/f".to_owned()),
                history,
                ..FunctionStatus::default()
            },
        }
    }

    #[test]
    fn an_explanation_offers_what_there_is() {
        let text = explained(&failed(json!({"type": "python"}), Vec::new()));
        assert_eq!(
            text,
            "f: Failed: no\nNothing of it serves.\nReady is False (StartFailed)\nReady is False: its process ended (StartFailed)\n"
        );
        let served = FunctionRevision {
            generation: 1,
            deployed: "2026-01-01T00:00:00.000Z".to_owned(),
            spec: json!({"type": "keras"}),
            ..FunctionRevision::default()
        };
        let text = explained(&failed(json!({"type": "python"}), vec![served.clone()]));
        assert!(text.contains("wanted is spec") || text.contains("wanted is type"), "{text}");
        assert!(text.ends_with("`berth rollout undo function/f` goes back to what served.\n"), "{text}");
        let text = explained(&failed(Value::Null, vec![served]));
        assert!(
            text.contains("; what is wanted now has no spec that can be read.") && !text.contains("null"),
            "{text}"
        );
    }

    #[test]
    fn a_function_of_another_namespace_is_told_and_printed_with_it() {
        let mut function = failed(json!({"type": "python"}), Vec::new());
        let metadata = |function: &FunctionView| manifest(function, &function.spec)["metadata"].clone();
        assert_eq!((function.name(), metadata(&function)), ("f".to_owned(), json!({"name": "f"})));
        function.metadata.namespace = "team".to_owned();
        assert_eq!((function.name(), function.name_within()), ("team/f".to_owned(), Some("f".to_owned())));
        assert_eq!(metadata(&function), json!({"name": "f", "namespace": "team"}));
        function.status.build = Some(berth_wire::api::FunctionBuild::default());
        let text = explained(&function);
        assert!(text.starts_with("team/f: Failed") && text.contains("`berth logs function/team/f`"), "{text}");
    }

    #[test]
    fn the_way_back_names_the_artifact_where_the_spec_is_the_same() {
        let past = |artifact: &str| FunctionRevision {
            artifact: artifact.to_owned(),
            spec: json!({"type": "keras"}),
            ..FunctionRevision::default()
        };
        let mut function = failed(json!({"type": "keras"}), Vec::new());
        assert!(!is_other(&past("sha256:1"), &function), "nothing serves");
        function.status.artifact = Some(FunctionArtifact { digest: "sha256:2".to_owned(), size: 1 });
        assert!(is_other(&past("sha256:1"), &function) && !is_other(&past("sha256:2"), &function));
        function.metadata.annotations.insert(ARTIFACT.to_owned(), "sha256:2 7".to_owned());
        let metadata = &way_back(&function, &past("sha256:1"))["metadata"];
        assert_eq!(metadata["annotations"], json!({"berth.dev/artifact": "sha256:1"}));
        assert!(way_back(&function, &past(""))["metadata"].get("annotations").is_none());
    }

    #[test]
    fn a_key_that_is_no_name_stays_in_its_row() {
        assert_eq!(name_in_a_cell("words"), "words");
        assert_eq!(name_in_a_cell("a\nb"), "a\\nb");
        assert_eq!(name_in_a_cell(&"ü".repeat(128)), format!("{}…", "ü".repeat(127)));
    }

    #[test]
    fn a_message_in_a_table_is_marked_where_it_is_cut() {
        assert_eq!(shortened("short.\n"), "short.");
        assert_eq!(shortened("first\nsecond"), "first…");
        assert_eq!(shortened(&"é".repeat(200)), format!("{}…", "é".repeat(120)));
    }
}
