//! Leadership: the brain under a model of etcd, and real candidates on a real etcd.

mod brain;
mod real;
