//! The way out of a network that has nothing but a loopback: a proxy to the hosts that are allowed, and to no others.
//!
//! ```text
//! program ─▶ 127.0.0.1:3128 of its own network ─▶ here: CONNECT, GET http://…, SOCKS5 ─▶ allowed? ─▶ resolve ─▶ allowed? ─▶ host
//!                                                                                           └─▶ a proxy of the operator ─▶ host
//! ```
//! A launcher (`berth_sandbox`) makes the listener in that network and hands it over; it is accepted from outside: no bridge runs in
//! the sandbox. Names are resolved here. `allow` decides, `request` reads what is asked for, `proxy` does it, `upstream`
//! speaks to a proxy that the operator names. Models use it for the hosts that are declared for them, and builds of functions for
//! registries of packages.

mod allow;
mod proxy;
mod request;
mod upstream;

pub use self::{
    allow::{Allowed, Refusal},
    proxy::{Client, EgressPolicy, Outcome, serve},
    upstream::Upstream,
};

/// The port of the proxy in each such network: nobody else is there.
pub const PORT: u16 = 3128;

/// The address of the proxy, as programs take it.
#[must_use]
pub fn address() -> String {
    format!("http://127.0.0.1:{PORT}")
}
