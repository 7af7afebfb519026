//! The access file: roles of client certificates and of tokens of OpenID issuers. Who may do what with a role, and how a request
//! is held against these rules, is in `berth_wire::access`.
//!
//! ```text
//! access file ──read, every 5 s──▶ AccessFile ──▶ Access::rule
//!                  └── a change that cannot be used: one warning, the old rules stay
//! issuer ──discovery, keys──▶ Issuer::learn     in the background: when they are due, or a token names a key that is not known
//! ```

mod fetch;
mod file;
mod follow;
mod metrics;
mod schedule;

pub use file::{AccessFile, FileError};
pub use follow::Follower;
