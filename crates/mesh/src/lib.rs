//! The data plane of Berth.

pub mod local;
