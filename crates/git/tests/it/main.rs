//! The crate against the real `git` program.

mod checkout;
mod fixture;
mod mirror;
mod mutations;
mod program;
mod redirects;
mod signatures;
mod writer;
