//! Access: who asks, and what they may do.
//!
//! ```text
//! request ─▶ Access::asker ─┬ Berth's token ────▶ table: hashes of tokens, learned from the store of the leader
//!                           ├ JSON Web Token ───▶ issuer: its keys, and the tokens that they have verified
//!                           └ certificate ──────▶ certificate: names and their roles
//!                                   └─▶ Asker ─▶ may(Action, Resource) ─▶ Ok, or Denied
//! ```
//! [`Action`] is the one table of roles: each route of the control API and each method of the gateway names an action, and each
//! action says which roles may do it. docs/security.md and the tests of every route × role are made from it.

mod action;
mod arrival;
mod certificate;
mod issuer;
mod jwt;
mod keys;
mod known;
mod principal;
mod rules;
mod sender;
mod table;
mod token;
mod unauthenticated;

pub use action::{Action, Reach, Role, markdown};
pub use arrival::Arrival;
pub use certificate::{CertificateRule, SubjectPattern};
pub use issuer::Issuer;
pub use jwt::{Algorithm, Jwt};
pub use keys::KeySet;
pub use principal::{Asker, Denied, Grant, Principal, Resource};
pub use rules::{Claim, ClaimRule, IssuerRules, Rules};
pub use sender::{CertificateHolder, sender_name};
pub use table::{Access, Snapshot};
pub use token::{Secret, TokenRecord, sha256};
pub use unauthenticated::Unauthenticated;
