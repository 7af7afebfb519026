//! The settings of the store, as the store wants them: files are read here, once.

use std::path::Path;

use berth_control::store::etcd::{Credentials, EtcdConfig, EtcdTls};

use crate::{
    failure::Failure,
    settings::store::{StoreSettings, StoreTls},
};

/// Reads what the settings name.
pub(super) fn config(settings: &StoreSettings) -> Result<EtcdConfig, Failure> {
    let credentials = settings
        .login
        .as_ref()
        .map(|login| Ok::<_, Failure>(Credentials { user: login.user.clone(), password: login.password()? }));
    Ok(EtcdConfig {
        tls: settings.tls.as_ref().map(tls).transpose()?,
        credentials: credentials.transpose()?,
        ..EtcdConfig::from(settings.address.clone())
    })
}

fn tls(files: &StoreTls) -> Result<EtcdTls, Failure> {
    let StoreTls { ca, identity } = files;
    let named = ca.iter().map(|ca| ("--store-ca", ca));
    let named = named.chain(identity.iter().flat_map(|(cert, key)| [("--store-cert", cert), ("--store-key", key)]));
    for (flag, file) in named {
        readable(flag, file)?;
    }
    let identity = identity.as_ref().map(|(certificate, key)| (certificate.as_path(), key.as_path()));
    EtcdTls::read(ca.as_deref(), identity).map_err(|error| Failure::Usage(format!("the store's certificates: {error}")))
}

/// Says which setting names a file that is not there: three of them do.
fn readable(flag: &str, file: &Path) -> Result<(), Failure> {
    match std::fs::File::open(file) {
        Ok(_) => Ok(()),
        Err(error) => Err(Failure::Usage(format!("{flag} {}: {error}", file.display()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_not_there_is_told_by_its_flag() {
        let settings = |ca: &str| StoreSettings {
            address: "etcds://a:1".parse().expect("an address"),
            tls: Some(StoreTls { ca: Some(ca.into()), identity: None }),
            login: None,
        };
        let error = config(&settings("/nowhere/ca.pem")).expect_err("it is not there").to_string();
        assert_eq!(error, "--store-ca /nowhere/ca.pem: No such file or directory (os error 2)");
    }
}
