//! Sources of deployments besides the API: folders here, others in crates of their own, each behind one seam.
//!
//! ```text
//! run (the term's sources) ──▶ Source::run(Context, Requests)
//!                                 │   ▲ sync, webhook, pause, resume ◀── Sources ◀── /v1/sources/{name}
//!                                 ├── apply(Snapshot) ──▶ Reconciler: owned × snapshot ──▶ apply, disable, delete
//!                                 ├── update_status ──▶ Sources ──▶ /v1/sources, `berth get sources`
//!                                 └── checkpoint: bytes of its own in the store, for the next leader
//! ```
//! Only the leader runs sources, for its term. Deployments stay when a source ends or is taken out of the configuration.
//!
//! To add a source: implement [`Source`], and name its kind in `cli/src/settings/source.rs`.

mod checkpoint;
mod context;
pub mod directory;
mod migrate;
mod name;
mod reconcile;
mod requests;
mod run;
mod snapshot;
mod sources;
mod status;

pub use checkpoint::Checkpoint;
pub use context::{Context, Source};
pub use name::SourceName;
pub use reconcile::{Problem, Reconciled};
pub use requests::{Request, Requests, Webhook};
pub use run::{Setup, SetupError, run};
pub(crate) use snapshot::without_revision;
pub use snapshot::{Prune, REVISION, Snapshot, WorkerSettings};
pub use sources::Sources;
pub use status::{Counts, Refused, SourceBreaker, SourceState, SourceStatus, WorkerSecret};
