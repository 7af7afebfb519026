//! `berth explain`: why it is where it is, or why it is nowhere.

use std::fmt::Write as _;

use berth_spec::DeploymentName;
use berth_wire::api::{AliasView, ConditionView, ExplainView, WorkerVerdict, WorkerVerdictKind};
use clap::Args;

use super::{
    functions,
    namespace::{NamespaceArgs, path_in, path_of},
    output::{Form, print_value},
    resource::{Resource, Target, not_found},
};
use crate::{
    client::{ApiArgs, Client},
    failure::Failure,
    terminal::{self, Rows, age, size},
};

/// The kinds that are explained.
const EXPLAINED: [Resource; 3] = [Resource::Deployments, Resource::Functions, Resource::Aliases];

#[derive(Debug, Args)]
#[command(mut_args(Target::words_of(&EXPLAINED)), after_help = "Examples:
  berth explain iris                         verdict per worker, with numbers
  berth explain iris --all                   every worker of a large cluster, not groups
  berth explain deployment iris              the same, with its kind
  berth explain iris -o json                 the same for programs
  berth explain alias/live                   each deployment that an alias leads to
  berth explain function/words               what a function is doing, and what would help

Verdicts: Holds, the worker has a replica; Fits, it could take one, perhaps when others leave;
Rejected, it cannot, for the reason beside it. FREE is memory that is set aside for nobody, OVERHEAD
what the worker's process takes beside its models.")]
pub(crate) struct ExplainArgs {
    #[command(flatten)]
    target: Target,
    /// List every worker, however many there are
    #[arg(long)]
    all: bool,
    /// Output format
    #[arg(short, long, value_parser = Form::among(&Form::NAMELESS), default_value = "table", value_name = "FORM")]
    output: Form,
    #[command(flatten)]
    namespace: NamespaceArgs,
    #[command(flatten)]
    api: ApiArgs,
}

/// Presentation of workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Listing {
    Each,
    Grouped,
}

/// Most workers listed one by one by default. More are grouped, so that the answer fits a terminal.
const MAX_LISTED_WORKERS: usize = 12;

/// Names that a group tells before it counts the rest.
const MAX_NAMES: usize = 6;

pub(crate) async fn run(args: &ExplainArgs) -> Result<(), Failure> {
    let client = args.api.client()?;
    let named = args.target.find(&client, &args.namespace, &EXPLAINED).await?;
    let [(kind, name)] = named.as_slice() else {
        return Err(Failure::Usage("explain one name at a time".to_owned()));
    };
    let name = DeploymentName::new(name).map_err(|error| Failure::Usage(error.to_string()))?;
    match kind {
        Resource::Functions => functions::explain(&client, &name, args.output).await,
        Resource::Aliases => alias(&client, &name, args).await,
        _ => {
            let view = explanation(&client, &name).await?;
            if let Form::Json | Form::Yaml = args.output {
                return print_value(&view, args.output);
            }
            Ok(terminal::print(&render(&view, args.listing()))?)
        }
    }
}

impl ExplainArgs {
    fn listing(&self) -> Listing {
        if self.all { Listing::Each } else { Listing::Grouped }
    }
}

async fn explanation(client: &Client, name: &DeploymentName) -> Result<ExplainView, Failure> {
    match client.get(&[path_of(name), vec!["explain"]].concat()).await {
        Err(Failure::NotFound(_)) => Err(not_found(client, Resource::Deployments, name.as_str()).await),
        other => other,
    }
}

/// Explains what an alias leads to: its shares, and each deployment that there is.
async fn alias(client: &Client, name: &DeploymentName, args: &ExplainArgs) -> Result<(), Failure> {
    let view: AliasView = match client.get(&path_in(Resource::Aliases, name)).await {
        Err(Failure::NotFound(_)) => return Err(not_found(client, Resource::Aliases, name.as_str()).await),
        other => other?,
    };
    let (targets, missing) = (&view.status.targets, &view.status.missing);
    let mut explained = Vec::new();
    for target in targets.iter().filter(|target| !missing.contains(&target.deployment)) {
        let target =
            DeploymentName::new(&target.deployment).map_err(|error| Failure::doing("cannot explain", error))?;
        explained.push(explanation(client, &target).await?);
    }
    if let Form::Json | Form::Yaml = args.output {
        return print_value(&explained, args.output);
    }
    let shares = targets.iter().map(|target| match missing.contains(&target.deployment) {
        true => format!("{} (which is not declared)", target.deployment),
        false => format!("{} ({}% of its requests)", target.deployment, target.share),
    });
    let mut sections = vec![format!("{} leads to {}", view.metadata.name, shares.collect::<Vec<_>>().join(", "))];
    sections.extend(explained.iter().map(|target| render(target, args.listing()).trim_end().to_owned()));
    Ok(terminal::print(&sections.join("\n\n"))?)
}

fn render(view: &ExplainView, listing: Listing) -> String {
    // The summary begins with the phase.
    let mut text = format!("{}: {}\n\n", view.metadata.name, view.summary);
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
    let mut workers: Vec<&WorkerVerdict> = view.workers.iter().collect();
    workers.sort_by_key(|worker| (rank(worker.verdict), worker.rank));
    text.push_str(&match (workers.len(), listing) {
        (0, _) => "There is no worker.\n".to_owned(),
        (many, Listing::Grouped) if many > MAX_LISTED_WORKERS => grouped(&workers),
        _ => listed(&workers),
    });
    for eviction in &view.evictions {
        let whom = eviction.room_for.as_deref().map_or_else(
            || "since its worker has less room than was claimed".to_owned(),
            |whom| format!("to make room for {whom}"),
        );
        let when = age(Some(eviction.at));
        let _ = writeln!(text, "\n{} left {} {when} ago {whom}", eviction.revision, eviction.worker);
    }
    let tells = |condition: &&ConditionView| condition.status != "True" && condition.reason != "Settled";
    for condition in view.conditions.iter().filter(tells) {
        let _ =
            write!(text, "\n{} is {}: {} ({})", condition.kind, condition.status, condition.message, condition.reason);
    }
    text
}

/// A line for each worker.
fn listed(workers: &[&WorkerVerdict]) -> String {
    let mut rows = Rows::new(&["WORKER", "VERDICT", "FREE", "OVERHEAD", "TOTAL", "WHY"]);
    for worker in workers {
        let memory = &worker.memory;
        rows.add([
            worker.worker.clone(),
            word(worker).to_owned(),
            size(memory.free),
            size(memory.overhead),
            size(memory.total),
            worker.message.clone(),
        ]);
    }
    rows.render()
}

/// Workers that hold a replica each in a line, the others by what they are to the deployment and why.
fn grouped(workers: &[&WorkerVerdict]) -> String {
    let mut groups: Vec<(String, Vec<&WorkerVerdict>)> = Vec::new();
    for &worker in workers {
        let kind = kind(worker);
        match groups.iter_mut().find(|(other, _)| *other == kind) {
            Some((_, members)) => members.push(worker),
            None => groups.push((kind, vec![worker])),
        }
    }
    groups.sort_by_key(|(_, members)| (rank(members[0].verdict), std::cmp::Reverse(members.len())));
    let mut rows = Rows::new(&["VERDICT", "WORKERS", "FREE", "WHY", "WHICH"]);
    for (_, members) in &groups {
        let free = members.iter().map(|worker| worker.memory.free);
        let (least, most) = (free.clone().min().unwrap_or(0), free.max().unwrap_or(0));
        let free = if least == most { size(most) } else { format!("{}–{}", size(least), size(most)) };
        let mut which: Vec<&str> = members.iter().take(MAX_NAMES).map(|worker| worker.worker.as_str()).collect();
        let rest = format!("{} more", members.len().saturating_sub(MAX_NAMES));
        if members.len() > MAX_NAMES {
            which.push(&rest);
        }
        let same = members.iter().all(|worker| worker.message == members[0].message);
        let why = if same {
            members[0].message.clone()
        } else {
            format!("such as {}: {}", members[0].worker, members[0].message)
        };
        rows.add([word(members[0]).to_owned(), members.len().to_string(), free, why, which.join(", ")]);
    }
    rows.render() + "\n`--all` lists every worker.\n"
}

/// Text that workers of one group share.
fn kind(worker: &WorkerVerdict) -> String {
    match worker.verdict {
        WorkerVerdictKind::Holds => worker.worker.clone(),
        WorkerVerdictKind::Fits if worker.would_evict.is_empty() => "\0fits".to_owned(),
        WorkerVerdictKind::Fits => "\0fits when others go".to_owned(),
        WorkerVerdictKind::Rejected => {
            format!("\0{}", worker.rejection.as_ref().map_or(worker.message.as_str(), |rejection| &rejection.reason))
        }
    }
}

fn rank(verdict: WorkerVerdictKind) -> u8 {
    match verdict {
        WorkerVerdictKind::Holds => 0,
        WorkerVerdictKind::Fits => 1,
        WorkerVerdictKind::Rejected => 2,
    }
}

fn word(worker: &WorkerVerdict) -> &'static str {
    match worker.verdict {
        WorkerVerdictKind::Holds => "Holds",
        WorkerVerdictKind::Fits => "Fits",
        WorkerVerdictKind::Rejected => "Rejected",
    }
}

#[cfg(test)]
mod tests {
    use berth_wire::api::{Memory, Rejection};

    use super::*;

    fn worker(at: usize) -> WorkerVerdict {
        let (verdict, reason, message) = match at {
            0 => (WorkerVerdictKind::Holds, None, "it is ready".to_owned()),
            1..=20 => (WorkerVerdictKind::Fits, None, "it could hold it".to_owned()),
            21..=40 => (WorkerVerdictKind::Rejected, Some("Memory"), format!("needs 9GiB, {at}MiB are free")),
            _ => (WorkerVerdictKind::Rejected, Some("Label"), "has no label pool=production".to_owned()),
        };
        WorkerVerdict {
            worker: format!("w{at}"),
            verdict,
            message,
            rank: (verdict == WorkerVerdictKind::Fits).then_some(at as u32),
            memory: Memory { total: 8 << 30, used: 0, overhead: 4 << 20, free: (at as u64) << 20 },
            state: None,
            rejection: reason.map(|reason| Rejection { reason: reason.to_owned(), ..Rejection::default() }),
            would_evict: Vec::new(),
        }
    }

    #[test]
    fn fifty_workers_fit_a_terminal() {
        let workers: Vec<WorkerVerdict> = (0..50).map(worker).collect();
        let workers: Vec<&WorkerVerdict> = workers.iter().collect();
        let text = grouped(&workers);
        assert!(text.lines().count() <= 12, "{text}");
        for words in
            ["Holds     1", "Fits      20", "w1, w2, w3, w4, w5, w6, 14 more", "such as w21", "pool=production"]
        {
            assert!(text.contains(words), "{words:?} is not in\n{text}");
        }
        let text = listed(&workers);
        assert_eq!(text.lines().count(), 51);
        let columns: Vec<&str> = text.lines().nth(1).unwrap_or_default().split_whitespace().take(5).collect();
        assert_eq!(columns, ["w0", "Holds", "0B", "4MiB", "8GiB"]);
    }
}
