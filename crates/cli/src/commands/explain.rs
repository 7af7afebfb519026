//! `berth explain`: why it is where it is, or why it is nowhere.

use std::fmt::Write as _;

use berth_wire::api::{ExplainView, WorkerVerdictKind};
use clap::Args;

use super::{
    output::{Form, print_value},
    resource::{Resource, not_found},
};
use crate::{
    client::ApiArgs,
    failure::Failure,
    terminal::{self, Rows, size},
};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth explain iris                         per worker: holds it, could, or why not, with numbers
  berth explain iris -o json                 the same for programs")]
pub(crate) struct ExplainArgs {
    /// The deployment
    #[arg(value_name = "NAME")]
    name: String,
    /// How to print
    #[arg(short, long, value_enum, default_value_t, value_name = "FORM")]
    output: Form,
    #[command(flatten)]
    api: ApiArgs,
}

pub(crate) async fn run(args: &ExplainArgs) -> Result<(), Failure> {
    let name = args.name.strip_prefix("deployment/").unwrap_or(&args.name);
    let client = args.api.client()?;
    let view: ExplainView = match client.get(&["deployments", name, "explain"]).await {
        Err(Failure::NotFound(_)) => return Err(not_found(&client, Resource::Deployments, name).await),
        other => other?,
    };
    match args.output {
        Form::Json | Form::Yaml => print_value(&view, args.output),
        _ => Ok(terminal::print(&render(&view))?),
    }
}

fn render(view: &ExplainView) -> String {
    let mut text = format!("{}: {}. {}\n\n", view.metadata.name, view.phase, view.summary);
    let from = match view.need_from.as_str() {
        "declared" => "as its manifest says",
        "measured" => "as measured",
        "predicted" => "as predicted from its artifact",
        _ => "until its artifact is known",
    };
    // Formatting into a string cannot fail.
    let _ = writeln!(
        text,
        "One replica of {} needs {} of memory, {from}; {} wanted.\n",
        view.revision,
        size(view.need),
        view.desired
    );
    let mut rows = Rows::new(&["WORKER", "VERDICT", "FREE", "TOTAL", "WHY"]);
    for worker in &view.workers {
        let verdict = match worker.verdict {
            WorkerVerdictKind::Holds => "Holds",
            WorkerVerdictKind::Fits => "Fits",
            WorkerVerdictKind::Rejected => "Rejected",
        };
        let mut why = worker.message.clone();
        if !worker.would_evict.is_empty() {
            let victims: Vec<&str> = worker.would_evict.iter().map(|victim| victim.revision.as_str()).collect();
            why = format!("{why}; would evict {}", victims.join(", "));
        }
        let memory = &worker.memory;
        rows.add([worker.worker.clone(), verdict.to_owned(), size(memory.free), size(memory.total), why]);
    }
    text.push_str(&if view.workers.is_empty() { "There is no worker.\n".to_owned() } else { rows.render() });
    for condition in view.conditions.iter().filter(|condition| condition.status != "True") {
        let _ =
            write!(text, "\n{} is {}: {} ({})", condition.kind, condition.status, condition.message, condition.reason);
    }
    text
}
