//! The planner as its callers see it: stories in tables, laws as properties.

mod copies;
mod eviction;
mod failures;
mod fleet;
mod laws;
mod leaving;
mod lifecycle;
mod loss;
mod placement;
mod previews;
mod regions;
mod rollouts;
