//! The account of one principal: its use, where it has limits, and what it has of the reserves.

use berth_spec::meter::Meter;

use crate::fair::Drawn;

/// One principal.
#[derive(Debug, Default)]
pub(crate) struct Account {
    /// Its use, where it has limits.
    pub(crate) meter: Meter,
    pub(crate) inside: Drawn,
    pub(crate) parked: Drawn,
    pub(crate) memory: Drawn,
}
