//! The operator's decisions, without a cluster.

mod brain;
mod conversion;
mod fixtures;
mod golden;
mod mutations;
mod packages;
mod page;
mod upgrade;
