//! Stories, chaos, and fleets; and a fleet that follows a registry.

mod chaos;
mod fleet;
mod registry;
mod stories;
