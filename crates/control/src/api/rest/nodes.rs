//! Nodes: see them, keep new replicas off them, move what they hold elsewhere.

use std::sync::Arc;

use axum::{Json, extract::State};
use berth_spec::Cordon;
use berth_wire::api::{ErrorBody, NodeList, NodeView};

use super::ask::{Answer, NamedRequest, RawParameters};
use crate::api::service::Service;

/// Every node with its capacity and load, and who leads.
#[utoipa::path(
    get, path = "/v1/nodes", tag = "tell",
    params(("labelSelector" = Option<String>, Query, description = "`key=value`, `key!=value`, `key`, `!key`, joined by commas")),
    responses(
        (status = 200, description = "By name; `status.leader` says who leads", body = NodeList),
        (status = 400, description = "A parameter is wrong", body = ErrorBody),
    )
)]
pub(super) async fn nodes(State(service): State<Arc<Service>>, asked: RawParameters) -> Answer<NodeList> {
    let query = asked.read(&["labelSelector"])?;
    let selector = query.text("labelSelector").unwrap_or_default().parse()?;
    service.nodes(&selector).await.map(Json)
}

/// Show a node.
#[utoipa::path(
    get, path = "/v1/nodes/{name}", tag = "tell",
    params(("name" = String, Path, description = "The node")),
    responses(
        (status = 200, description = "The node", body = NodeView),
        (status = 404, description = "There is none of that name", body = ErrorBody),
    )
)]
pub(super) async fn node(NamedRequest { service, name }: NamedRequest) -> Answer<NodeView> {
    service.node(&name).await.map(Json)
}

/// Keeps new replicas off a node. Those that it holds stay.
#[utoipa::path(
    post, path = "/v1/nodes/{name}/cordon", tag = "operate", operation_id = "cordon_node",
    params(("name" = String, Path, description = "The node")),
    responses(
        (status = 200, description = "The node as it is now", body = NodeView),
        (status = 404, description = "There is none of that name", body = ErrorBody),
        (status = 409, description = "It holds no models", body = ErrorBody),
    )
)]
pub(super) async fn cordon(NamedRequest { service, name }: NamedRequest) -> Answer<NodeView> {
    service.cordon_node(&name, Cordon::Cordoned).await.map(Json)
}

/// Lets a node take new replicas again, also one that was drained.
#[utoipa::path(
    post, path = "/v1/nodes/{name}/uncordon", tag = "operate", operation_id = "uncordon_node",
    params(("name" = String, Path, description = "The node")),
    responses(
        (status = 200, description = "The node as it is now", body = NodeView),
        (status = 404, description = "There is none of that name", body = ErrorBody),
        (status = 409, description = "It holds no models", body = ErrorBody),
    )
)]
pub(super) async fn uncordon(NamedRequest { service, name }: NamedRequest) -> Answer<NodeView> {
    service.cordon_node(&name, Cordon::Open).await.map(Json)
}

/// Moves the replicas of a node elsewhere: copies first, then they leave. It goes on answering meanwhile;
/// `status.drain` of the node says how far it is.
#[utoipa::path(
    post, path = "/v1/nodes/{name}/drain", tag = "operate", operation_id = "drain_node",
    params(("name" = String, Path, description = "The node")),
    responses(
        (status = 200, description = "The node as it is now", body = NodeView),
        (status = 404, description = "There is none of that name", body = ErrorBody),
        (status = 409, description = "It holds no models", body = ErrorBody),
    )
)]
pub(super) async fn drain(NamedRequest { service, name }: NamedRequest) -> Answer<NodeView> {
    service.cordon_node(&name, Cordon::Draining).await.map(Json)
}
