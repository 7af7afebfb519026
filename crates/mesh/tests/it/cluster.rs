//! Several gateways over loopback, each with a peer port, and requests that go from one to the other.

mod answers;
mod faults;
mod functions;
pub(crate) mod nodes;
mod routes;
mod streamed;
