//! Demand: reports of gateways to the controller about use.

use crate::{DeploymentName, Time};

/// One deployment's use as one gateway saw it since it last spoke of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Demand {
    /// Which deployment.
    pub deployment: DeploymentName,
    /// Requests parked now.
    pub waiting: u32,
    /// Requests in flight now.
    pub in_flight: u32,
    /// When the last request came. Absolute: a registration in the past never looks recent.
    pub last_used: Time,
    /// Requests since the last word.
    pub requests: u64,
}

/// A message of a gateway to the controller.
#[derive(Debug, Clone, PartialEq)]
pub enum GatewayEvent {
    /// Use, coalesced per deployment. A deployment with `waiting > 0` is a miss and is planned for at once.
    Demand(Vec<Demand>),
    /// A client asked over the model repository protocol that an on-demand deployment be paged out now.
    PageOut(DeploymentName),
    /// Route changes up to this [`seq`](crate::RouteChange::seq) are in force: the next request is routed by them.
    Applied(u64),
    /// A route change builds on a state that this gateway does not have: it wants everything.
    AskWhole,
}
