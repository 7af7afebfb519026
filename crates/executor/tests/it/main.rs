//! An executor before servers of this process, over real connections.

#![expect(clippy::disallowed_methods, reason = "a test's runtime ends with the test, and its tasks with it")]

mod access;
mod authority;
mod fixture;
mod jobs;
mod log;
mod lost;
mod memory;
mod requests;
mod serving;
mod upstream_tls;
