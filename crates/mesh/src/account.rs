//! The account of one principal: its use, where it has limits, and what it has of the reserves.

use berth_spec::meter::Meter;

use crate::fair::ReserveUse;

/// A principal's use of this gateway, over all models.
#[derive(Debug, Default)]
pub(crate) struct Account {
    /// Its use, where it has limits.
    pub(crate) meter: Meter,
    pub(crate) inside: ReserveUse,
    pub(crate) parked: ReserveUse,
    pub(crate) memory: ReserveUse,
}
