//! The way out of a node that others depend on.
//!
//! ```text
//! Announced: not ready for load balancers; leadership handed over; "leaving" told to the leader and to the members
//!     │ its models are ready elsewhere and gone from here, or `patience` is over, or nobody is left who could take them
//!     ▼
//! Drained: the gateway takes nothing new, requests in flight finish ──▶ the worker unloads the rest
//!     ▼
//! Gone: goodbye to the members; the port for other nodes, the control plane and gossip end
//! ```
//! A node that is alone drains, ends its control plane and unloads. Where all are stopped at once, each is told of the others by themselves: nobody waits for one that goes as well.

use std::{sync::Arc, time::Duration};

use berth_mesh::{DrainReport, local::LocalReplicas};
use berth_peer::{MemberTable, Members};
use berth_spec::{Roles, WorkerId};
use berth_worker::Stopped;
use tokio::time::timeout;

use super::{
    compose::{Cluster, System},
    running::Running,
};
use crate::control_thread::ControlThread;

/// Consideration for other nodes at shutdown.
#[derive(Debug, Clone, Copy)]
pub(super) enum ShutdownMode {
    /// Models move first, for as long as this.
    Orderly {
        /// The longest wait for them to be elsewhere.
        patience: Duration,
    },
    /// A part has broken: only what is in flight is finished.
    AtOnce,
}

/// Leaves. Every wait in it is bounded.
pub(super) async fn leave(system: System, mode: ShutdownMode) {
    let System { mut running, control, local, cluster, .. } = system;
    running.stop_gateway();
    let (drained, stopped) = match cluster {
        Some(cluster) => leave_cluster(cluster, &mut running, control, &local, mode).await,
        None => {
            let drained = running.gateway_drained().await;
            // Before the worker: one that leaves an awake controller would be taken for lost.
            control.stop().await;
            (drained, running.stop_worker().await)
        }
    };
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

async fn leave_cluster(
    Cluster { members, election }: Cluster,
    running: &mut Running,
    control: ControlThread,
    local: &LocalReplicas,
    mode: ShutdownMode,
) -> (Option<DrainReport>, Stopped) {
    // A single controller goes on deciding while its node's models move.
    members.announce().await;
    let successor = others(&members.table(), members.me(), |roles| roles.controller);
    let election = match election {
        Some(election) if successor => {
            election.resign().await;
            None
        }
        election => election,
    };
    if let ShutdownMode::Orderly { patience } = mode
        && others(&members.table(), members.me(), |roles| roles.worker)
    {
        running.announce();
        let waited = timeout(patience, async {
            tokio::select! {
                () = local.emptied() => "all",
                () = nobody_left(&members) => "no other node is left",
            }
        });
        let moved = waited.await.unwrap_or("the time is over");
        tracing::info!(event = "models_moved", moved, left = local.len());
    }
    let drained = running.gateway_drained().await;
    let stopped = running.stop_worker().await;
    members.leave().await;
    if let Some(election) = election {
        election.resign().await;
    }
    control.stop().await;
    (drained, stopped)
}

/// True if another node has such a role, is reachable, and stays.
fn others(table: &MemberTable, me: &WorkerId, has: impl Fn(Roles) -> bool) -> bool {
    table.staying().any(|member| member.name != *me && has(member.roles))
}

/// Waits until no other worker is there that means to stay: no model will move any more.
async fn nobody_left(members: &Members) {
    let takers = |table: &Arc<MemberTable>| others(table, members.me(), |roles| roles.worker);
    // Membership has ended: nobody is known to be left.
    let _ = members.changed().wait_for(|table| !takers(table)).await;
}

#[cfg(test)]
mod tests {
    use berth_spec::{Health, Member};
    use futures::FutureExt;

    use super::*;

    fn member(name: &str, roles: Roles) -> Member {
        let at = "10.0.0.1:1".parse().expect("an address");
        Member {
            name: WorkerId::new(name).expect("a name"),
            incarnation: 1,
            gossip: at,
            peer: at,
            roles,
            labels: Default::default(),
            version: String::new(),
            protocol: (1, 1),
        }
    }

    /// Stopped together with all others, a node does not wait for them to take its models.
    #[test]
    fn nobody_is_waited_for_who_goes_as_well() {
        let (members, roster) = Members::by_hand(member("a", Roles::ALL));
        let waits = || nobody_left(&members).now_or_never().is_none();
        let decides = |others: &Members| super::others(&others.table(), others.me(), |roles| roles.controller);
        assert!(!waits() && !decides(&members), "it is alone");
        roster.set(member("b", Roles::ALL), Health::Alive);
        roster.set(member("c", Roles { controller: false, ..Roles::ALL }), Health::Suspect);
        roster.set(member("d", Roles { worker: false, ..Roles::ALL }), Health::Alive);
        assert!(waits());
        roster.set_leaving(&WorkerId::new("b").expect("a name"));
        assert!(waits() && decides(&members), "c and d are left");
        roster.set_health(&WorkerId::new("c").expect("a name"), Health::Failed);
        assert!(!waits() && decides(&members), "d holds no models, and may decide");
        roster.set_leaving(&WorkerId::new("d").expect("a name"));
        assert!(!decides(&members));
    }
}
