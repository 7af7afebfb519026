//! The behaviour of ModelMesh's management API, against the service over a real control plane.

#![expect(clippy::disallowed_methods, reason = "a test's runtime ends with the test, and its tasks with it")]

mod away;
mod models;
mod test_cluster;
mod vmodels;
