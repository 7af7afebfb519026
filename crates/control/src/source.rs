//! Where deployments come from besides the API.

mod board;
pub mod directory;
pub mod git;

pub use board::{Board, Secrets, SourceBreaker, SourceView};
pub(crate) use board::{Hook, Trigger, Triggers};
pub(crate) use git::proved;
