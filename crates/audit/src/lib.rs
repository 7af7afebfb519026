//! The audit log: who did what to what, with which outcome.
//!
//! ```text
//! control API, gateway, sources, peer port ── record (waits for room) ──┐
//!                                          ── refuse ──▶ refusals ──────┤ (dropped and counted where there is no room)
//!                                                        counts those   ▼
//!                                                        that are alike queue ──▶ writer: a thread ──▶ file (rotated) or standard output
//!                                                                       └──▶ ring: the last records in memory, for `berth audit`
//! ```
//! What is recorded is in the noun, `berth_wire::api::AuditRecord`; here it is only kept. Reading order: [`log`], the handle;
//! `refusals`, which strangers cannot fill the disk with; `ring`; `writer`; `file`.

mod file;
pub mod log;
mod metrics;
mod refusals;
mod ring;
mod writer;

pub use file::RotatedFile;
pub use log::{AuditLog, Query, Settings, Target, Unwritable};
