//! The streams between the controller that decides and the nodes: `berth.fleet.v1`, generated from `proto/fleet.proto`, and
//! its conversions from and to the types of `berth_spec`.
//!
//! ```text
//! AssignmentChange ┐           parts of ≤ about 1 MiB            ┌ AssignmentChange
//! InventoryChange  ├─ in_parts ──▶ part 0, 1, … last ──▶ Assembly ┤ InventoryChange
//! RouteChange      ┘                                             └ RouteChange
//! ```
//! What a later version says and this one does not understand is left out and counted, never a reason to end a stream:
//! see [`Assembly::left_out`].
//!
//! Names are not repeated where they can be concluded: a worker's from its first word, a revision's deployment from the
//! route that it is in, a version's name from its hash. A miss at a thousand workers is a few hundred bytes to one worker
//! and to each gateway; `tests/it/fleet.rs` measures it.

mod aliases;
mod assignment;
mod inventory;
mod name;
mod node;
mod outcomes;
mod parts;
mod routes;

/// Generated messages, client and server.
pub mod v1 {
    #![expect(missing_docs, reason = "generated; proto/fleet.proto says what the fields mean")]
    #![expect(
        clippy::allow_attributes,
        clippy::large_enum_variant,
        clippy::too_many_lines,
        reason = "generated code; the one first word of a stream is larger than those that follow"
    )]

    tonic::include_proto!("berth.fleet.v1");
}

pub use inventory::Reporter;
pub use node::Unnamed;
pub use outcomes::{MOST_OUTCOMES, outcomes_of, outcomes_to};
pub use parts::{Assembly, InParts, OutOfOrder, PART};
pub use routes::{MOST_DEMANDS, demands_of, demands_to};

/// Bytes that a message may have: several times [`PART`], since one replica with a long warm-up request is not cut.
pub const MESSAGE: usize = 8 * PART;

/// The metadata with which a node that does not lead names the leader.
pub const LEADER: &str = "berth-leader";

/// The metadata with which it names the leader's term.
pub const EPOCH: &str = "berth-epoch";

/// The metadata with which it names the leader's address for other nodes, for people who read logs.
pub const LEADER_PEER: &str = "berth-leader-peer";

/// The header with which a stream says which protocol its first word is in.
pub const PROTOCOL: &str = "berth-protocol";
