//! Tests of functions from etcd.

mod brain;
mod swap;
