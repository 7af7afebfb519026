//! Connections of HTTP/2 that are one task each, and write once a turn.
//!
//! ```text
//! requests ──▶ Line ──▶ hyper ──▶ Held ──▶ socket     one task: hyper, the bodies that it sends (Streams), and then
//!                                                     one write of all that they had to say (Held)
//! ```
//! The other end is woken once for a request, and not for its head, its body and its end.

pub mod liveness;

mod held;
mod line;
mod slot;
mod streams;

pub use self::{
    held::Held,
    line::{Line, Unsent},
    slot::Slot,
    streams::{StreamSpawner, Streams},
};
