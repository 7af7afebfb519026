//! Address of Vault, and the controller's login.

use std::{fmt, path::PathBuf};

use berth_spec::Secret;
use url::{Host, Url};

/// Source of the AppRole's secret id. Never the command line, which other users can see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SecretId {
    /// In a file, which is read at every login: it may be replaced while we run.
    File(PathBuf),
    /// Value from the environment.
    Given(Secret),
}

/// Address and login of Vault. Credentials are sent only there, whatever a registry says.
#[derive(Clone, PartialEq, Eq)]
pub struct Settings {
    /// Its address: `https://HOST[:PORT]`; `http` only on this machine.
    pub addr: Url,
    /// The Vault namespace of the AppRole; `None`: the root one.
    pub namespace: Option<String>,
    /// Mount point of the AppRole method.
    pub mount: String,
    /// Id of the AppRole's role. Not secret.
    pub role_id: String,
    /// Source of the secret that belongs to the role.
    pub secret_id: SecretId,
    /// The authority of Vault's certificate, if the machine does not know it: PEM.
    pub ca: Option<PathBuf>,
}

impl Settings {
    /// Checks the address.
    ///
    /// # Errors
    /// What is wrong with it, and what to write.
    pub fn new(addr: &str, role_id: &str, secret_id: SecretId) -> Result<Self, String> {
        if role_id.trim().is_empty() {
            return Err(
                "the role id of the AppRole is empty: vault read auth/approle/role/NAME/role-id says it".to_owned()
            );
        }
        Ok(Self {
            addr: address(addr)?,
            namespace: None,
            mount: "approle".to_owned(),
            role_id: role_id.trim().to_owned(),
            secret_id,
            ca: None,
        })
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("addr", &self.addr.as_str())
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

/// Reads the address of a Vault.
pub(super) fn address(text: &str) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|error| format!("{text:?} is no URL ({error}): write https://HOST[:PORT]"))?;
    let loopback = match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    };
    match url.scheme() {
        "https" => {}
        "http" if loopback => {}
        "http" => return Err(format!("{text} is not encrypted, and credentials go over it: write https://")),
        _ => return Err(format!("{text:?} is not a valid address of a Vault: write https://HOST[:PORT]")),
    }
    if !url.username().is_empty() || url.password().is_some() || url.query().is_some() || url.fragment().is_some() {
        return Err("an address of a Vault has no user, query or fragment: write https://HOST[:PORT]".to_owned());
    }
    if url.path() != "/" {
        return Err(format!("an address of a Vault has no path: leave {} out", url.path()));
    }
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_encrypted_addresses_leave_the_machine() {
        for fine in [
            "https://vault.acme.com",
            "https://10.0.0.1:8200",
            "http://127.0.0.1:8200",
            "http://[::1]:1",
            "http://localhost",
        ] {
            assert!(address(fine).is_ok(), "{fine}");
        }
        for bad in [
            "http://vault.acme.com",
            "vault.acme.com",
            "https://u:p@vault",
            "https://vault/v1",
            "ftp://vault",
            "http://127.0.0.1.evil.com",
        ] {
            assert!(address(bad).is_err(), "{bad}");
        }
    }
}
