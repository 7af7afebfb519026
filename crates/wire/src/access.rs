//! Access: who asks, and what they may do.
//!
//! ```text
//! request ─▶ Access::asker (token, certificate) ─▶ Asker ─▶ may(Action, Resource) ─▶ Ok, or Denied
//!               ▲ lock-free table of token hashes
//!               └── Access::learn, from the store of the leader
//! ```
//! [`Action`] is the one table of roles: each route of the control API and each method of the gateway names an action, and each
//! action says which roles may do it. docs/security.md and the tests of every route × role are made from it.

mod action;
mod certificate;
mod principal;
mod table;
mod token;

pub use action::{Action, Reach, Role, markdown};
pub use certificate::CertificateGrant;
pub use principal::{Asker, Denied, Grant, Principal, Resource};
pub use table::{Access, Snapshot, Unauthenticated};
pub use token::{Secret, TokenRecord, sha256};
