//! The port for other nodes: who is asked for what.
//!
//! ```text
//! /berth.fleet.v1.Fleet/…   streams of workers and gateways    ──▶ the controller, if it decides here
//! /relay/…                  calls of the control API           ──▶ the same
//! /own/…                    what this node tells of itself     ──▶ its gateway's counters, its rules
//! everything else           inference that was forwarded here  ──▶ the replicas of this node
//! ```

use std::sync::Arc;

use berth_control::{api::ApiRouter, fleet::FleetService};
use berth_mesh::PeerService;
use berth_peer::{PeerBody, PeerHandler};
use berth_spec::WorkerId;
use futures::future::BoxFuture;
use http::{Request, Response};
use hyper::body::Incoming;

/// Handler of requests from other nodes.
pub(super) struct PeerPort {
    pub(super) fleet: FleetService,
    pub(super) front: ApiRouter,
    pub(super) inference: PeerService,
}

impl PeerHandler for PeerPort {
    fn serve(self: Arc<Self>, caller: &WorkerId, request: Request<Incoming>) -> BoxFuture<'static, Response<PeerBody>> {
        let path = request.uri().path();
        if path.starts_with(berth_control::fleet::PATH) {
            self.fleet.serve(caller, request)
        } else if ApiRouter::is_relayed(path) {
            self.front.relayed(caller, request)
        } else if ApiRouter::is_own(path) {
            self.front.own(&request)
        } else {
            self.inference.serve(request)
        }
    }
}
