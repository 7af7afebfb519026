//! Nodes: who they are, and what operators ask of them.

use berth_spec::{Class, Cordon, WorkerId};
use berth_wire::api::{NodeList, NodeView};

use super::Service;
use crate::api::{
    error::ApiError,
    node::{self, NodeInputs},
    query::nearest,
    selector::LabelSelector,
};

/// Names that an error lists: a line or two.
const MAX_NAMES: usize = 10;

impl Service {
    /// Every node that the selector matches, and who leads.
    pub(crate) async fn nodes(&self, selector: &LabelSelector) -> Result<NodeList, ApiError> {
        let mut nodes = self.known_nodes().await?;
        nodes.items.retain(|node| selector.matches(&node.metadata.labels));
        self.peer_queries.remark(&mut nodes.items, self.rules.as_deref()).await;
        Ok(nodes)
    }

    /// Reads one node.
    pub(crate) async fn node(&self, name: &str) -> Result<NodeView, ApiError> {
        let nodes = self.known_nodes().await?.items;
        let (mut found, peer_queries): (Vec<NodeView>, Vec<NodeView>) =
            nodes.into_iter().partition(|node| node.metadata.name == name);
        self.peer_queries.remark(&mut found, self.rules.as_deref()).await;
        let known = peer_queries.iter().map(|node| node.metadata.name.as_str());
        found.into_iter().next().ok_or_else(|| nobody("node", name, known))
    }

    pub(super) async fn known_nodes(&self) -> Result<NodeList, ApiError> {
        let (workers, loss) = (self.handle.workers().await?, self.handle.mass_loss().await?);
        let expected = self.handle.expected().await?;
        let known = NodeInputs { members: (self.members)(), workers, expected, leader: (self.leader)(), loss };
        Ok(node::nodes(known, self.handle.now()))
    }

    /// Keeps new replicas off a node, moves those that it holds elsewhere, or lets them in again.
    pub(crate) async fn cordon_node(&self, name: &str, cordon: Cordon) -> Result<NodeView, ApiError> {
        let node = self.node(name).await?;
        if node.status.capacity.is_none() {
            let what = match node.status.roles.iter().any(|role| role == "worker") {
                true => "has not come to the leader yet: try again",
                false => "holds no models, so there is nothing to keep off it: stop it when you like",
            };
            return Err(ApiError::new(Class::Conflict, format!("{name} {what}")));
        }
        let Ok(id) = WorkerId::new(name) else { return Ok(node) };
        self.handle.cordon(&id, cordon).await?;
        self.node(name).await
    }
}

/// The error for a name that nothing has, with what was probably meant.
pub(super) fn nobody<'a>(kind: &str, name: &str, known: impl Iterator<Item = &'a str> + Clone) -> ApiError {
    let hint = match nearest(name, known.clone()) {
        Some(near) => format!("did you mean {near:?}?"),
        None => {
            let mut names: Vec<&str> = known.take(MAX_NAMES + 1).collect();
            if names.len() > MAX_NAMES {
                names[MAX_NAMES] = "…";
            }
            if names.is_empty() { "none is attached".to_owned() } else { format!("there is {}", names.join(", ")) }
        }
    };
    ApiError::not_found(format!("there is no {kind} {name:?}: {hint}"))
}
