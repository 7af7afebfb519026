//! Several gateways over loopback, each with a peer port, and requests that go from one to the other.

mod answers;
mod faults;
mod functions;
mod routes;
mod streamed;
pub(crate) mod town;
