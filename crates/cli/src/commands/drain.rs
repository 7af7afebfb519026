//! `berth drain`: moves what a node holds elsewhere, and waits until it is empty.
//!
//! ```text
//! asked ──▶ draining ──nothing left──▶ drained        exit 0
//!              │ └── it has left the cluster ──▶ gone  exit 0
//!              ├── opened again by somebody, or lost ──▶ failed
//!              └── the deadline passes ──▶ timed out: what is left, and why
//! ```
//! A terminal shows meanwhile what moves and what is blocked.

use std::time::Duration;

use berth_wire::api::{DrainView, NodeView};
use clap::Args;
use tokio::time::{Instant, sleep, timeout_at};

use super::{
    cordon::{NodeAction, ask},
    nodes::{NodeTarget, steps},
    resource::Resource,
    wait::StatusLine,
};
use crate::{
    client::{ApiArgs, Client},
    failure::Failure,
    terminal,
};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth drain node/a                         load copies elsewhere, then empty it
  berth drain node/a --timeout 30m           wait longer, for large models
  berth drain node/a --no-wait && berth describe node a
  berth uncordon node/a                      stop the drain, and allow replicas again

The node keeps answering, and no request is lost. Stopping a node also moves its replicas: drain it
first if that may take long. Exit code 5 after the timeout; the drain continues.")]
pub(crate) struct DrainArgs {
    #[command(flatten)]
    target: NodeTarget,
    /// Time to wait
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = crate::settings::duration)]
    timeout: Duration,
    /// Do not wait until the node is empty
    #[arg(long)]
    no_wait: bool,
    #[command(flatten)]
    api: ApiArgs,
}

/// Interval between looks at the node. Short enough that the end is noticed at once.
const POLL_INTERVAL: Duration = Duration::from_millis(300);

pub(crate) async fn run(args: &DrainArgs) -> Result<(), Failure> {
    let client = args.api.client()?;
    let names = args.target.names()?;
    let deadline = Instant::now() + args.timeout;
    for name in &names {
        let node = ask(&client, name, NodeAction::Drain).await?;
        if args.no_wait {
            let left = node.status.drain.map_or(0, |drain| drain.left);
            terminal::print(&format!("node/{name} draining, {} left", replicas(left)))?;
        }
    }
    if args.no_wait {
        return Ok(());
    }
    for name in names {
        let mut seen = DrainProgress { last: None, line: StatusLine::new(&format!("node/{name}")) };
        let waited = timeout_at(deadline, wait(&client, name, &mut seen)).await;
        let DrainProgress { last, line } = seen;
        drop(line);
        let end = waited.map_err(|_| late(name, args.timeout, last))??;
        terminal::print(&format!("node/{name} {end}"))?;
    }
    Ok(())
}

fn replicas(count: u32) -> String {
    if count == 1 { "1 replica".to_owned() } else { format!("{count} replicas") }
}

/// Latest state of the drain, and the status line.
struct DrainProgress {
    last: Option<Result<DrainView, Failure>>,
    line: StatusLine,
}

/// Until nothing is left; how it ended.
async fn wait(client: &Client, name: &str, seen: &mut DrainProgress) -> Result<&'static str, Failure> {
    loop {
        match client.get::<NodeView>(&[Resource::Nodes.plural(), name]).await {
            Ok(node) => {
                if let Some(end) = ended(name, &node) {
                    return end;
                }
                let drain = node.status.drain.unwrap_or_default();
                seen.line.show(&summary(&drain));
                seen.last = Some(Ok(drain));
            }
            Err(Failure::NotFound(_)) => return Ok("drained and gone"),
            // A leader that changes is not there for a moment.
            Err(failure @ (Failure::Failed(_) | Failure::TimedOut(_))) => {
                seen.line.show("no leader answers");
                seen.last = Some(Err(failure));
            }
            Err(other) => return Err(other),
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// Result of the drain, once it has ended.
fn ended(name: &str, node: &NodeView) -> Option<Result<&'static str, Failure>> {
    let left = node.status.drain.as_ref().map_or(0, |drain| drain.left);
    match node.status.state.as_str() {
        "Drained" => Some(Ok("drained")),
        "Leaving" if left == 0 => Some(Ok("drained and leaving")),
        "Lost" if left == 0 => Some(Ok("drained and gone")),
        "Lost" => Some(Err(Failure::Failed(format!(
            "node/{name} was lost while it was drained; what it held is placed elsewhere"
        )))),
        _ if node.spec.cordon != "draining" && node.status.state != "Leaving" => Some(Err(Failure::Failed(format!(
            "node/{name} is {} again: somebody changed it meanwhile",
            node.spec.cordon
        )))),
        _ => None,
    }
}

/// Summary of moving and blocked replicas in one line.
fn summary(drain: &DrainView) -> String {
    let mut text = format!("{} left", replicas(drain.left));
    if let Some(step) = drain.blocked.first() {
        text.push_str(&format!(", {} blocked: {}: {}", drain.blocked.len(), step.revision, step.message));
    } else if let Some(step) = drain.waiting_for.first() {
        text.push_str(&format!("; {}: {}", step.revision, step.message));
    }
    text
}

/// The time is over: what is left, and why.
fn late(name: &str, after: Duration, last: Option<Result<DrainView, Failure>>) -> Failure {
    let after = terminal::short(after);
    match last {
        Some(Ok(drain)) => {
            let lines: String =
                steps("  blocked", &drain.blocked).chain(steps("  moving ", &drain.waiting_for)).collect();
            let how = if drain.blocked.is_empty() {
                "it goes on; wait for it with the same command"
            } else {
                "the drain continues when there is room: add a node, lower replicas, or `berth uncordon` it"
            };
            Failure::TimedOut(format!(
                "node/{name} is not drained after {after}: {} left\n{lines}{how}",
                replicas(drain.left)
            ))
        }
        Some(Err(failure)) => Failure::TimedOut(format!("node/{name} is not drained after {after}: {failure}")),
        None => Failure::TimedOut(format!("node/{name}: no answer after {after}")),
    }
}

#[cfg(test)]
mod tests {
    use berth_wire::api::DrainStep;

    use super::*;

    fn node(state: &str, cordon: &str, left: u32) -> NodeView {
        serde_json::from_value(serde_json::json!({
            "apiVersion": "berth.dev/v1", "kind": "Node", "metadata": {"name": "a"}, "spec": {"cordon": cordon},
            "status": {"state": state, "drain": {"left": left}}
        }))
        .expect("a node")
    }

    #[test]
    fn how_a_drain_ends() {
        for (state, cordon, left, end) in [
            ("Draining", "draining", 2, None),
            ("Joining", "draining", 2, None),
            ("Drained", "draining", 0, Some(Ok("drained"))),
            ("Leaving", "open", 1, None),
            ("Leaving", "draining", 0, Some(Ok("drained and leaving"))),
            ("Lost", "draining", 0, Some(Ok("drained and gone"))),
            ("Lost", "draining", 1, Some(Err("was lost"))),
            ("Ready", "open", 1, Some(Err("is open again"))),
        ] {
            match (ended("a", &node(state, cordon, left)), end) {
                (None, None) => {}
                (Some(Ok(found)), Some(Ok(wanted))) => assert_eq!(found, wanted),
                (Some(Err(found)), Some(Err(wanted))) => assert!(found.to_string().contains(wanted), "{found}"),
                (found, wanted) => panic!("{state} {cordon} {left}: {found:?}, not {wanted:?}"),
            }
        }
    }

    #[test]
    fn what_is_left_is_told_with_its_reason() {
        let step = |message: &str| DrainStep { revision: "iris@1".to_owned(), message: message.to_owned() };
        let moving = DrainView { left: 1, waiting_for: vec![step("a copy on b is Loading")], ..DrainView::default() };
        assert_eq!(summary(&moving), "1 replica left; iris@1: a copy on b is Loading");
        let blocked = DrainView { left: 2, blocked: vec![step("needs 9GiB")], ..moving };
        assert_eq!(summary(&blocked), "2 replicas left, 1 blocked: iris@1: needs 9GiB");
        let failure = late("a", Duration::from_secs(60), Some(Ok(blocked))).to_string();
        assert!(failure.contains("blocked  iris@1: needs 9GiB\n") && failure.contains("berth uncordon"), "{failure}");
    }
}
