//! Parts of the inference port that are off unless somebody wants them.

use clap::{ArgAction, Args};

/// Further parts of the inference port.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Inference port")]
pub(crate) struct ProtocolArgs {
    /// Serve metrics at /metrics of the inference port as well
    #[arg(long, value_name = "BOOL", env = "BERTH_HTTP_METRICS", default_value = "false", default_missing_value = "true",
          num_args = 0..=1, require_equals = true, action = ArgAction::Set, hide_default_value = true, hide_possible_values = true)]
    pub(crate) http_metrics: bool,
    /// Count a model on demand as ready while a request would load it: for clients that wait for ready before they ask
    #[arg(long, value_name = "BOOL", env = "BERTH_ON_DEMAND_READY", default_value = "false", default_missing_value = "true",
          num_args = 0..=1, require_equals = true, action = ArgAction::Set, hide_default_value = true, hide_possible_values = true)]
    pub(crate) on_demand_ready: bool,
    /// Let clients on this machine pass tensors in regions of shared memory that an operator has registered
    #[arg(long, value_name = "BOOL", env = "BERTH_SHARED_MEMORY", default_value = "false", default_missing_value = "true",
          num_args = 0..=1, require_equals = true, action = ArgAction::Set, hide_default_value = true, hide_possible_values = true)]
    pub(crate) shared_memory: bool,
}
