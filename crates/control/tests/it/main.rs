//! The control plane from outside: stores, the brain, the driver, restarts, folders.

mod alerts;
mod aliases;
mod api;
mod brain;
mod conformance;
mod crash;
mod directory;
mod driver;
mod etcd;
mod fixture;
mod fleet;
mod leader_loop;
mod leadership;
mod model;
mod names;
mod registered;
mod restart;
mod sources;
mod uplink;
