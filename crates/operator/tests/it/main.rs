//! The operator's decisions, without a cluster.

mod brain;
mod fixtures;
mod golden;
mod mutations;
mod packages;
mod page;
mod upgrade;
