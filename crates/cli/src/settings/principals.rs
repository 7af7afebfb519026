//! Limits on what principals use: of all that have none of their own, and of one token.

use berth_spec::{ByteSize, UseLimits};
use clap::Args;

use super::values;
use crate::failure::Failure;

/// Limits of every principal whose token has none of its own.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct PrincipalArgs {
    /// Requests per second of one principal at one gateway, where its token has no limits of its own [default: no limit]
    #[arg(long, value_name = "N", env = "BERTH_PRINCIPAL_RATE")]
    pub(crate) principal_rate: Option<u32>,
    /// Requests that a principal may send at one moment after a pause [default: as many as --principal-rate]
    #[arg(long, value_name = "N", env = "BERTH_PRINCIPAL_BURST")]
    pub(crate) principal_burst: Option<u32>,
    /// Requests at once of one principal at one gateway, those that wait included [default: no limit]
    #[arg(long, value_name = "N", env = "BERTH_PRINCIPAL_IN_FLIGHT")]
    pub(crate) principal_in_flight: Option<u32>,
    /// Bytes of request bodies per second of one principal at one gateway [default: no limit]
    #[arg(long, value_name = "SIZE", env = "BERTH_PRINCIPAL_BYTES", value_parser = values::size)]
    pub(crate) principal_bytes: Option<ByteSize>,
}

impl PrincipalArgs {
    /// Checks the limits together.
    pub(super) fn limits(&self) -> Result<UseLimits, Failure> {
        let limits = UseLimits {
            rate: self.principal_rate,
            burst: self.principal_burst,
            in_flight: self.principal_in_flight,
            bytes_per_second: self.principal_bytes,
            max_wait: None,
        };
        match limits.check() {
            Ok(()) => Ok(limits),
            Err((_, message)) => Err(Failure::Usage(format!("--principal-…: {message}"))),
        }
    }
}
