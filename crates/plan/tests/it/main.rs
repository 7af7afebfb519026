//! The planner as its callers see it: stories in tables, laws as properties.

mod eviction;
mod failures;
mod laws;
mod leaving;
mod lifecycle;
mod loss;
mod placement;
mod previews;
mod rollouts;
