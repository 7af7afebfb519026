//! Descriptions of servers and models: metadata, configuration, statistics, the index.
//!
//! Each has a plain struct that serializes to the REST body (`serde_json::to_vec`) and a function to the gRPC message.

mod config;
mod metadata;
mod repository;
pub(crate) mod settings;
mod statistics;

pub use config::ModelConfig;
pub use metadata::{ModelMetadata, ModelReady, ServerMetadata, TensorMetadata};
pub use repository::{IndexEntry, RepositoryParameters, State, index_ready_only};
pub use statistics::{ModelStatistics, ModelStats};
