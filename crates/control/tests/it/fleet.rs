//! The streams of the fleet and the relay of the API, over real connections between nodes with certificates.

mod others;
mod relay;
mod stage;
mod streams;
