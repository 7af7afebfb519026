//! The decisions of Berth, and nothing else: given all that is known, what should be where.
//!
//! [`plan`] is a pure function. It does no I/O, reads no clock, draws no random number and cannot fail: "nothing fits"
//! is a result with its reason. So it can be run dry ([`preview`]), explained ([`report`]), simulated for a year in
//! seconds, and checked by a second opinion that shares no code with it ([`lint`]). What differs between what is wanted and
//! what workers say, in the words of operators, is [`drift`].
//!
//! ```text
//! World ──▶ lost ─▶ scale ─▶ rollout ─▶ drain ─▶ place ─▶ route ──▶ Planned
//!   ▲      (who     (how     (which      (what    (where,  (traffic     │
//!   │       is       many)    revisions)  leaves)  who has  over what   │
//!   │       gone or                                to go)   is ready)   │
//!   │       leaves)                                                     │
//!   └───────────────────────── World::commit ◀──────────────────────────┘
//! ```
//! What takes time rather than an event is judged in the world when its time has come, and only read by plans: how many
//! copies load and use ask for (`world/copies.rs`), whether many workers were lost at once (`world/liveness.rs`), what may
//! come back into free room (`world/preload.rs`).
//!
//! Reading order: [`record`] is what is remembered of a decision; [`world`] all that is known; [`planned`] the result;
//! `draft` the plan in the making; then one file per step.

pub mod planned;
pub mod policy;
pub mod record;
pub mod world;

mod draft;

mod claim;
mod drain;
mod lost;
mod place;
mod proof;
mod readopt;
mod retry;
mod revisions;
mod rollout;
mod route;
mod scale;

mod finish;
mod open;
mod step;

pub mod drift;
pub mod lint;
pub mod preview;
pub mod report;

#[cfg(feature = "testing")]
pub mod fixture;

pub use claim::{Basis, Cores};
pub use draft::{LoadLevel, Queue};
pub use place::{Colocation, Evicts, Mismatch, Rejection, Score};
pub use planned::{Evicted, Observed, Planned, Scope};
pub use policy::{Policy, TypeRules};
pub use record::{Record, Replica, Rollout};
pub use revisions::Revisions;
pub use route::of_alias as alias_route;
pub use step::plan;
pub use world::{MassLoss, TotalUse, World};
