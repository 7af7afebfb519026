//! The settings of the store, as the store wants them: files are read here, once.

use berth_control::store::etcd::{Credentials, EtcdConfig, EtcdTls, Patience};

use crate::{failure::Failure, settings::store::StoreSettings};

/// Where keys are unless the settings say otherwise.
const PREFIX: &str = "/berth";

/// Reads what the settings name.
pub(super) fn config(settings: &StoreSettings) -> Result<EtcdConfig, Failure> {
    let tls = settings.tls.as_ref().map(|tls| {
        let identity = tls.identity.as_ref().map(|(certificate, key)| (certificate.as_path(), key.as_path()));
        EtcdTls::read(tls.ca.as_deref(), identity).map_err(|error| Failure::Usage(format!("--store: {error}")))
    });
    let credentials = settings
        .login
        .as_ref()
        .map(|login| Ok::<_, Failure>(Credentials { user: login.user.clone(), password: login.password()? }));
    Ok(EtcdConfig {
        endpoints: settings.endpoints.clone(),
        prefix: settings.prefix.clone().unwrap_or_else(|| PREFIX.to_owned()),
        tls: tls.transpose()?,
        credentials: credentials.transpose()?,
        patience: Patience::default(),
    })
}
