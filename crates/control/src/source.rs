//! Where deployments come from besides the API.

mod board;
pub mod directory;
pub mod git;

pub use board::{Board, Secrets, SourceView};
pub(crate) use board::{Hook, Trigger};
pub(crate) use git::proved;
