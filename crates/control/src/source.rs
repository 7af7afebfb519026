//! Where deployments come from besides the API.

pub mod directory;
