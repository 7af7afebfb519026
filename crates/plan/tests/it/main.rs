//! The planner as its callers see it: stories in tables, laws as properties.

mod aliases;
mod canaries;
mod copies;
mod drifting;
mod eviction;
mod failures;
mod fleet;
mod laws;
mod leaving;
mod lifecycle;
mod loss;
mod paging;
mod placement;
mod previews;
mod refusals;
mod regions;
mod registered;
mod rollouts;
mod runtimes;
