//! Certificates, lines and the peer port over real sockets.

mod gossip;
mod lead;
mod lines;
mod mutations;
mod node;
mod pki;
mod proxy;
mod refused;
mod swim;
