//! The control plane from outside: stores, the brain, the driver, restarts, folders.

mod api;
mod brain;
mod conformance;
mod crash;
mod directory;
mod driver;
mod fixture;
mod model;
mod restart;
