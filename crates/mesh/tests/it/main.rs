//! The gateway over real loopback sockets, with a model that echoes and routes made by hand; and its codec.

#![expect(clippy::disallowed_methods, reason = "a test's runtime ends with the test, and its tasks with it")]

mod alias;
mod cluster;
mod document;
mod drain;
mod endpoints;
mod exchange;
mod fixture;
mod grpc;
mod layers;
mod limits;
mod metrics;
#[path = "../../../../fuzz/mutator.rs"]
mod mutator;
mod oip;
mod outcomes;
mod panics;
mod parking;
mod quota;
mod repository;
mod routes;
mod strangers;
