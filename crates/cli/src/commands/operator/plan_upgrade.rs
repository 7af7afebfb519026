//! `berth operator plan-upgrade`: models that a new version would change, field by field; `--adopt` moves them in waves.

use std::time::Duration;

use berth_operator::{
    driver::adoption,
    render::{Record, SHIPPED, Sidecars},
    upgrade::{Change, FieldChange, Plan, Unknown, plan},
};
use clap::Args;
use futures::future::join_all;
use serde::Serialize;
use serde_json::Value;

use super::client;
use crate::{
    commands::output::{Form, print_value},
    failure::Failure,
    terminal,
};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth operator plan-upgrade --image REGISTRY/berth:0.2.0           fields that would change
  berth operator plan-upgrade --image REGISTRY/berth:0.2.0 -o json   the same for programs
  berth operator plan-upgrade --image REGISTRY/berth:0.2.0 --adopt   move the models, 10 at once
  berth operator plan-upgrade iris --image REGISTRY/berth:0.2.0 -n shop --adopt

A new operator renders a model as before until its spec changes. --adopt moves models to the newest
rules without that: start the new operator first. Models that are not ready are moved only when they
are named. If one of a wave does not become ready, no further wave starts, and the exit code is 1;
what was moved stays.")]
pub(super) struct PlanUpgradeArgs {
    /// Names of models [default: all]
    #[arg(value_name = "NAME", requires = "namespace")]
    names: Vec<String>,
    /// Image of Berth that the new operator renders with: the value of its own --image
    #[arg(long, value_name = "IMAGE", env = "BERTH_OPERATOR_IMAGE")]
    image: String,
    /// Image of executors: the value of its --executor-image [default: that of --image]
    #[arg(long, value_name = "IMAGE", env = "BERTH_OPERATOR_EXECUTOR_IMAGE")]
    executor_image: Option<String>,
    /// Form of executors: the value of its --sidecars
    #[arg(long, value_name = "FORM", env = "BERTH_OPERATOR_SIDECARS", default_value = "auto", value_parser = super::sidecars)]
    sidecars: Sidecars,
    /// The only namespace to look at [default: all]
    #[arg(long, short, value_name = "NAME")]
    namespace: Option<String>,
    /// Move the models to the newest rules
    #[arg(long)]
    adopt: bool,
    /// Models that move at once
    #[arg(long, value_name = "COUNT", default_value_t = 10, requires = "adopt", value_parser = clap::value_parser!(u16).range(1..=100))]
    wave: u16,
    /// Time for each model to become ready
    #[arg(long, value_name = "TIME", default_value = "10m", requires = "adopt", value_parser = crate::settings::duration)]
    timeout: Duration,
    /// Output format: table, json or yaml
    #[arg(long, short, value_name = "FORM", default_value = "table", value_parser = form)]
    output: Form,
    /// Context of the kubeconfig [default: the current one]
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
}

fn form(text: &str) -> Result<Form, String> {
    match text {
        "table" => Ok(Form::Table),
        "json" => Ok(Form::Json),
        "yaml" => Ok(Form::Yaml),
        _ => Err("expected table, json or yaml".to_owned()),
    }
}

/// The outcome of an adoption, for programs.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Outcome {
    adopted: Vec<String>,
    failed: Vec<Unknown>,
    /// Not moved: not ready before, or in a wave after the one that failed.
    left: Vec<String>,
}

pub(super) async fn run(args: PlanUpgradeArgs) -> Result<(), Failure> {
    let client = client(args.context.as_deref()).await?;
    let models = adoption::models(&client, args.namespace.as_deref()).await;
    let mut models = models.map_err(|error| Failure::Failed(format!("the models cannot be listed: {error}")))?;
    if !args.names.is_empty() {
        models.retain(|model| model.metadata.name.as_ref().is_some_and(|name| args.names.contains(name)));
        let found = |name: &&String| models.iter().any(|model| model.metadata.name.as_ref() == Some(name));
        if let Some(missing) = args.names.iter().find(|name| !found(name)) {
            return Err(Failure::NotFound(format!("there is no ModelDeployment {missing} in this namespace")));
        }
    }
    let installation =
        super::installation(&client, args.image.clone(), args.executor_image.clone(), args.sidecars).await?;
    let plan = plan(&models, SHIPPED, &installation);
    if !args.adopt {
        return match args.output {
            Form::Table => Ok(terminal::print(&text(&plan))?),
            form => print_value(&plan, form),
        };
    }
    let outcome = adopt(&client, plan, &args).await;
    match args.output {
        Form::Table => terminal::print(&summary(&outcome))?,
        form => print_value(&outcome, form)?,
    }
    if outcome.failed.is_empty() {
        return Ok(());
    }
    let failed: Vec<String> =
        outcome.failed.iter().map(|one| format!("{}/{}: {}", one.namespace, one.name, one.reason)).collect();
    Err(Failure::Failed(failed.join("\n")))
}

async fn adopt(client: &kube::Client, plan: Plan, args: &PlanUpgradeArgs) -> Outcome {
    let movable = |change: &Change| change.ready || !args.names.is_empty();
    let (changes, waiting): (Vec<_>, Vec<_>) = plan.changes.into_iter().partition(movable);
    let mut outcome = Outcome { adopted: Vec::new(), failed: Vec::new(), left: waiting.iter().map(name).collect() };
    for wave in changes.chunks(usize::from(args.wave)) {
        if !outcome.failed.is_empty() {
            outcome.left.extend(wave.iter().map(name));
            continue;
        }
        let results = join_all(wave.iter().map(|change| adoption::adopt(client, change, args.timeout))).await;
        for (change, result) in wave.iter().zip(results) {
            match result {
                Ok(()) => outcome.adopted.push(name(change)),
                Err(error) => outcome.failed.push(Unknown {
                    namespace: change.namespace.clone(),
                    name: change.name.clone(),
                    reason: error.to_string(),
                }),
            }
        }
        // For people who wait; the result goes to standard output.
        eprintln!("{} of {} adopted", outcome.adopted.len(), changes.len());
    }
    outcome
}

fn name(change: &Change) -> String {
    format!("{}/{}", change.namespace, change.name)
}

fn summary(outcome: &Outcome) -> String {
    let left: String = outcome.left.iter().map(|name| format!("left as it is: {name}\n")).collect();
    let adopted: String = outcome.adopted.iter().map(|name| format!("adopted: {name}\n")).collect();
    let counts =
        format!("{} adopted, {} failed, {} left\n", outcome.adopted.len(), outcome.failed.len(), outcome.left.len());
    adopted + &left + &counts
}

fn text(plan: &Plan) -> String {
    let mut text = String::new();
    for change in &plan.changes {
        let consequence = if change.restarts_pods { "restarts its pods" } else { "restarts no pod" };
        let state = if change.ready { "" } else { ", not ready now" };
        let (from, to) = (rules(&change.from), rules(&change.to));
        text += &format!("{}: {from} → {to}, {consequence}{state}\n", name(change));
        for object in &change.objects {
            text += &format!("  {} {}\n", object.kind, object.name);
            object.fields.iter().for_each(|field| text += &line(field));
        }
    }
    for unknown in &plan.unknown {
        text += &format!("{}/{}: not compared: {}\n", unknown.namespace, unknown.name, unknown.reason);
    }
    let restarts = plan.changes.iter().filter(|change| change.restarts_pods).count();
    let (changes, unchanged) = (plan.changes.len(), plan.unchanged);
    text + &format!(
        "{changes} would change, {restarts} of them with a restart of their pods; {unchanged} are as they would be.\n"
    )
}

/// One change. What is made, or applied no more, is one as a whole.
fn line(field: &FieldChange) -> String {
    match (field.path.is_empty(), &field.before) {
        (true, None) => "    it is made\n".to_owned(),
        (true, Some(_)) => "    it is no longer applied\n".to_owned(),
        (false, _) => format!("    {}: {} → {}\n", field.path, value(&field.before), value(&field.after)),
    }
}

fn rules(record: &Record) -> String {
    format!("rules {} with {}", record.version, record.image)
}

fn value(value: &Option<Value>) -> String {
    value.as_ref().map_or_else(|| "nothing".to_owned(), Value::to_string)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_whole_object_is_one_line() {
        let change = |path: &str, before: Option<Value>, after: Option<Value>| {
            line(&FieldChange { path: path.to_owned(), before, after })
        };
        let object = || Some(json!({ "kind": "ConfigMap", "data": { "executor.yaml": "{}" } }));
        assert_eq!(change("", None, object()), "    it is made\n");
        assert_eq!(change("", object(), None), "    it is no longer applied\n");
        assert_eq!(change("spec.replicas", Some(json!(1)), None), "    spec.replicas: 1 → nothing\n");
    }
}
