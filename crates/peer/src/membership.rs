//! Membership by SWIM (Das, Gupta, Motivala 2002) with suspicion, on top of the crate foca.
//!
//! ```text
//!             a probe fails, directly and through others            nobody heard from it for `suspect_for`
//!   Alive ────────────────────────────────────────────→ Suspect ──────────────────────────────────────→ Failed
//!     ↑                                                    │          and it does not answer a last word    │
//!     │←──── it says "I am here" with a new number ────────┘                                                │
//!     │←──── it hears that it is taken for dead, and comes back under a new number (Recovering) ────────────┘
//!     └─── it says that it goes ──→ Left
//! ```
//!
//! [`Membership`] is the brain: no socket, no clock. [`Gossip`] drives it: one UDP socket, one thread of its own, so
//! that probes are answered while all others compute. What foca leaves to others is here:
//! - a process asks whether its name is free before it goes by it (`name_check`);
//! - whoever is alone, or newly in, announces again and again: foca never repeats a lost announcement (`brain`);
//! - what a node says of itself (its *card*) is asked for until it is here, for gossip may be lost (`cards`);
//! - who is accused is told so directly, and may refute before it is buried (`suspect_probe`);
//! - who was buried alive comes back without an opinion of its own on who is dead (`brain`);
//! - after a pause of this process nobody is judged by it (`clock`).

mod brain;
mod cards;
mod clock;
mod driver;
mod hints;
mod isolation_warning;
mod metrics;
mod name_check;
mod node;
mod packet;
mod policy;
mod replay_guard;
mod rtt;
mod suspect_probe;
mod swim;
mod view;

pub use self::{
    brain::{Effect, Event, Membership},
    driver::{Gossip, GossipConfig, GossipError},
    metrics::Metrics,
    policy::Policy,
};
