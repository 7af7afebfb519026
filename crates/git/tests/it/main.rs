//! The crate against the real `git` program.

mod checkout;
mod fixture;
mod mirror;
mod program;
mod redirects;
mod signatures;
mod writer;
