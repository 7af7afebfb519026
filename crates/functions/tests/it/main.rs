//! Tests of functions from etcd.

mod brain;
mod mutations;
mod swap;
