//! Model cards' models: real Python, in real processes.

mod calls;
pub(crate) mod card;
mod faults;
mod frames;
mod frameworks;
mod interface;
mod networks;
