//! The settings of the store, as the store wants them: files are read here, once.

use berth_control::store::etcd::EtcdConfig;

use crate::{failure::Failure, settings::store::StoreSettings};

/// Reads what the settings name.
pub(super) fn config(settings: &StoreSettings) -> Result<EtcdConfig, Failure> {
    settings.access.add_to(EtcdConfig::from(settings.address.clone()), "--store")
}
