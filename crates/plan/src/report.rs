//! Reports for people: computed from the world whenever somebody asks, never stored.

mod alias;
mod conditions;
mod explain;
mod failing;
mod leaving;
mod queued;
mod status;
mod why;

pub use alias::targets as alias_targets;
pub use explain::{Explanation, WorkerVerdict, WorkerView, explain};
pub use failing::failing;
pub use leaving::Leaving;
pub use queued::waits;
pub use status::status;
