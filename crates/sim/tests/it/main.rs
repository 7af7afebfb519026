//! Stories, chaos, and fleets.

mod chaos;
mod fleet;
mod stories;
