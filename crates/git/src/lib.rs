//! Git by the `git` program, hardened: nothing of the machine's or the user's configuration counts, no hook of a
//! fetched repository runs, no prompt waits, no output is without a bound, and at a deadline the whole process group
//! goes.
//!
//! ```text
//! Remote + Credentials ──▶ Mirror ── ls_remote, fetch ──▶ bare repository on disk
//!                            │                               │
//!                            │ push                          ▼
//!                          Writer ◀── edits      Repository ── resolve, list, read, changed, log, verify, checkout
//! ```
//!
//! All calls block: run them where blocking is allowed, with a [`Stop`] that ends them. It knows nothing of models.
//! It does not merge, rebase or keep a working tree; a submodule or a file kept elsewhere (LFS) is reported, not
//! fetched.

mod error;
mod oid;
mod stop;

mod group;
mod program;

mod auth;
mod remote;

mod mirror;
mod repository;

mod blobs;
mod checkout;
mod history;
mod tree;
mod verify;
mod writer;

pub use auth::{Credentials, HostKeys};
pub use checkout::{CheckedOut, CheckoutLimits, LeftOut};
pub use error::{Category, GitError};
pub use history::{Change, CommitInfo, Person};
pub use mirror::{History, Mirror, RemoteRef, RemoteRefs};
pub use oid::{Oid, Rev};
pub use program::Git;
pub use remote::{Protocols, Remote};
pub use repository::{Quarantine, Repository};
pub use stop::Stop;
pub use tree::{Mode, TreeEntry};
pub use verify::{Signer, TrustedKeys};
pub use writer::{Draft, Edit, Identity, Pushed, SigningKey};
