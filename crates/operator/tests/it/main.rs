//! The operator's decisions, without a cluster.

mod async_api;
mod brain;
mod conversion;
mod fixtures;
mod golden;
mod mutations;
mod packages;
mod page;
mod picker;
mod pool;
mod upgrade;
