//! Settings of payload processors.

use berth_mesh::payload::{Processor, Settings};
use berth_spec::ByteSize;
use clap::Args;

use super::values;

/// Payload processors.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Payloads")]
pub(crate) struct PayloadArgs {
    /// Copy requests and answers of models to the log (logger://*?MODEL#METHOD), or to a service by HTTP POST
    /// (http://HOST/PATH?MODEL#METHOD); without MODEL or METHOD, all of them. Repeatable; docs/serving.md describes what is sent
    #[arg(long, value_name = "URI", env = "BERTH_PAYLOAD_PROCESSORS", hide_env_values = true, value_delimiter = ' ')]
    payload_processor: Vec<Processor>,
    /// Memory for payloads that wait for one processor; what does not fit is dropped
    #[arg(long, value_name = "SIZE", env = "BERTH_PAYLOAD_MEMORY", default_value = "64MiB", value_parser = values::size)]
    payload_memory: ByteSize,
}

impl PayloadArgs {
    /// As the gateway takes them.
    pub(super) fn settings(self) -> Settings {
        let memory = usize::try_from(self.payload_memory.0).unwrap_or(usize::MAX);
        Settings { processors: self.payload_processor, memory, ..Settings::default() }
    }
}
