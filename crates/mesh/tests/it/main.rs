//! The gateway over real loopback sockets, with a model that echoes and routes made by hand.

mod drain;
mod endpoints;
mod fixture;
mod grpc;
mod limits;
mod metrics;
mod parking;
mod repository;
