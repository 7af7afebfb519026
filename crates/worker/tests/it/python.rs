//! Model cards' models: real Python, in real processes.

mod calls;
mod card;
mod faults;
mod frames;
mod frameworks;
mod interface;
