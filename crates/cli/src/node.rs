//! `berth node`: one node of a cluster.

pub(crate) mod settings;

use self::settings::{NodeArgs, NodeSettings};
use crate::failure::Failure;

/// Starts a node and serves until it is told to stop.
pub(crate) fn run(args: NodeArgs) -> Result<(), Failure> {
    let settings = NodeSettings::new(args, |_| Err(Failure::Failed("this build cannot read certificates".to_owned())))?;
    Err(Failure::Failed(format!("this build cannot start the node {}", settings.server.name)))
}
