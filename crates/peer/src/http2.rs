//! Connections of HTTP/2 that are one task each, and write once a turn.
//!
//! ```text
//! requests ──▶ Line ──▶ hyper ──▶ WriteBuffer ──▶ socket     one task: hyper, the bodies that it sends (Streams), and then
//!                                                            one write of all that they had to say (WriteBuffer)
//! ```
//! The other end is woken once for a request, and not for its head, its body and its end.

pub mod liveness;

mod line;
mod slot;
mod streams;
mod write_buffer;

pub use self::{
    line::{Line, Unsent},
    slot::Slot,
    streams::{StreamSpawner, Streams},
    write_buffer::WriteBuffer,
};
