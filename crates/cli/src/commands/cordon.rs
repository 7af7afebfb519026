//! `berth cordon`, `berth uncordon`: whether a node gets new replicas.

use berth_wire::api::NodeView;
use clap::Args;
use reqwest::Method;

use super::{
    nodes::NodeTarget,
    resource::{Resource, not_found},
};
use crate::{
    client::{ApiArgs, Client},
    failure::Failure,
    terminal,
};

pub(crate) const CORDON_EXAMPLES: &str = "Examples:
  berth cordon node/a                        its replicas stay, no new ones come
  berth get nodes                            shows cordoned nodes
  berth uncordon node/a                      undo; `berth drain` also moves replicas away";

pub(crate) const UNCORDON_EXAMPLES: &str = "Examples:
  berth uncordon node/a                      after `berth cordon` or `berth drain`
  berth uncordon node/a node/b";

#[derive(Debug, Args)]
pub(crate) struct CordonArgs {
    #[command(flatten)]
    target: NodeTarget,
    #[command(flatten)]
    api: ApiArgs,
}

/// Action on a node.
#[derive(Debug, Clone, Copy)]
pub(crate) enum NodeAction {
    Cordon,
    Uncordon,
    Drain,
}

impl NodeAction {
    const fn path(self) -> &'static str {
        match self {
            Self::Cordon => "cordon",
            Self::Uncordon => "uncordon",
            Self::Drain => "drain",
        }
    }
}

pub(crate) async fn run(args: &CordonArgs, wish: NodeAction) -> Result<(), Failure> {
    let client = args.api.client()?;
    for name in args.target.names()? {
        ask(&client, name, wish).await?;
        terminal::print(&format!("node/{name} {}ed", wish.path()))?;
    }
    Ok(())
}

/// Tells the server; the node as it is then.
pub(crate) async fn ask(client: &Client, name: &str, wish: NodeAction) -> Result<NodeView, Failure> {
    let request = client.request(Method::POST, &[Resource::Nodes.plural(), name, wish.path()], &[]);
    match client.json(request).await {
        Err(Failure::NotFound(_)) => Err(not_found(client, Resource::Nodes, name).await),
        other => other,
    }
}
