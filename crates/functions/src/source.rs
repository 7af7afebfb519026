//! The way in: a source that follows etcd, or Berth's own store, on the leader, and the host that runs functions on this machine.
//!
//! The host outlives terms: what is deployed goes on serving while nobody leads. It has threads of its own, so that no build
//! delays a plan or an inference.

mod etcd;
mod host;
mod metrics;
mod shared;
mod summary;

pub use self::{
    etcd::{DEFAULT_PREFIX, FunctionSource, address},
    host::{Host, HostConfig},
    summary::Summary,
};
pub(crate) use self::{
    metrics::Metrics,
    summary::{FunctionEvent, Report},
};
pub use crate::spans::{Join, TraceHook};
