//! The control plane from outside: stores, the brain, the driver, restarts, folders.

mod conformance;
mod crash;
mod fixture;
mod model;
