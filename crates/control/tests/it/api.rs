//! The control API over loopback, on a real control plane with a store in memory.

mod aliases;
mod dashboard;
mod formats;
mod functions;
mod nodes;
mod rest;
mod watching;
mod webhooks;
pub(crate) mod world;
