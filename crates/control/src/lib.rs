//! The control plane of one system: what people declare goes into the [`store`], the [`controller`] decides with
//! `berth_plan` and sends workers their assignments and gateways their routes.
//!
//! ```text
//! source / api ──apply──▶ handle ──txn──▶ store ──watch──▶ driver ──Event──▶ controller (brain) ──▶ plan()
//!                                           ▲                 │ ◀──Effect──        │
//!                                           └──records (CAS)──┤                    └ World
//!                                                             ├── assignments ──▶ workers ──reports──▶ driver
//!                                                             └── routes ──▶ gateways ──demand──▶ driver
//! ```
//!
//! Not here: what is decided (`berth_plan`), what a worker does with it (`berth_worker`), requests for inference
//! (`berth_mesh`).
//!
//! In a cluster the workers and gateways are on other nodes: [`uplink`] is there, [`fleet`] is where the leader is, and
//! [`leadership`] says where that is.
//!
//! Reading order: [`store`] and its layout; [`leadership`], the election and one controller per term; [`controller`], the brain;
//! [`driver`], which runs it; [`handle`], the way in; [`fleet`] and [`uplink`], the
//! streams; [`source`], where deployments come from besides the API; [`api`], the control API.

pub mod leadership;
pub mod store;

pub mod controller;
mod debouncer;
pub mod driver;
pub mod events;
mod mailbox;
mod metrics;

pub mod handle;
mod resolve;

pub mod fleet;
pub mod functions;
pub mod uplink;

pub mod api;
pub mod source;

pub use driver::{Config, Control, Ended, build, build_with};
pub use handle::Handle;
pub use metrics::Metrics;
