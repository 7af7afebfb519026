//! The way out of a node that others depend on.
//!
//! ```text
//! Announced: not ready for load balancers; leadership handed over; "leaving" told to the leader
//!     │ its models are ready elsewhere and gone from here, or `patience` is over
//!     ▼
//! Drained: the gateway takes nothing new, requests in flight finish ──▶ the worker unloads the rest
//!     ▼
//! Gone: goodbye to the members; the port for other nodes, the control plane and gossip end
//! ```

use std::time::Duration;

use berth_peer::Members;
use berth_spec::Roles;
use tokio::time::timeout;

use super::compose::System;

/// How long to go on for the others' sake.
#[derive(Debug, Clone, Copy)]
pub(super) enum Haste {
    /// Models move first, for as long as this.
    Orderly {
        /// The longest wait for them to be elsewhere.
        patience: Duration,
    },
    /// A part has broken: only what is in flight is finished.
    AtOnce,
}

/// Leaves. Every wait in it is bounded.
pub(super) async fn leave(system: System, haste: Haste) {
    let System { members, mut running, control, candidacy, local, .. } = system;
    running.stop_gateway();
    // A single controller goes on deciding while its node's models move.
    let successor = others(&members, |roles| roles.controller);
    let candidacy = match candidacy {
        Some(candidacy) if successor => {
            candidacy.resign().await;
            None
        }
        candidacy => candidacy,
    };
    if let Haste::Orderly { patience } = haste
        && others(&members, |roles| roles.worker)
    {
        running.announce();
        let moved = timeout(patience, local.emptied()).await.is_ok();
        tracing::info!(event = "models_moved", all = moved, left = local.len());
    }
    let drained = running.gateway_drained().await;
    let stopped = running.stop_worker().await;
    members.leave().await;
    if let Some(candidacy) = candidacy {
        candidacy.resign().await;
    }
    control.stop().await;
    running.stop().await;
    tracing::info!(
        event = "stopped",
        finished = drained.map(|drained| drained.finished),
        cut = drained.map(|drained| drained.cut),
        unloaded = stopped.drained,
        left = stopped.left,
        "drained and stopped"
    );
}

/// Whether another node that may answer has such a role.
fn others(members: &Members, has: impl Fn(Roles) -> bool) -> bool {
    members.table().there().any(|member| member.name != *members.me() && has(member.roles))
}
