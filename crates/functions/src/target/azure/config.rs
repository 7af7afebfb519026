//! Settings of deployments to Azure, from the variables that Azure's own tools read.

use std::{collections::BTreeMap, fmt, path::PathBuf};

use url::Url;

/// Container of packages, unless another one is named.
const CONTAINER: &str = "berth-functions";

/// Settings of deployments to Azure.
#[derive(Clone)]
pub(super) struct AzureConfig {
    /// The subscription of all resource groups.
    pub(super) subscription: String,
    /// Resource Manager, without a slash at its end.
    pub(super) manager: String,
    /// Storage account of packages.
    pub(super) account: String,
    /// Its key; without one, apps read packages by their own identity.
    pub(super) account_key: Option<String>,
    /// Container of packages.
    pub(super) container: String,
    /// All variables, for the store of packages.
    pub(super) variables: BTreeMap<String, String>,
    pub(super) identity: Identity,
}

/// The way to a token of Resource Manager.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Identity {
    /// A service principal with a secret.
    Secret { authority: String, tenant: String, client: String, secret: String },
    /// A service principal with a token of somebody else, e.g. of a Kubernetes service account.
    Federated { authority: String, tenant: String, client: String, file: PathBuf },
    /// The identity of an App Service or a container app.
    AppService { endpoint: Url, header: String, client: Option<String> },
    /// The identity of a virtual machine, of its metadata service.
    Machine { client: Option<String> },
}

impl fmt::Debug for AzureConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AzureConfig").field("subscription", &self.subscription).finish_non_exhaustive()
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Secret { .. } => "Secret",
            Self::Federated { .. } => "Federated",
            Self::AppService { .. } => "AppService",
            Self::Machine { .. } => "Machine",
        })
    }
}

impl AzureConfig {
    /// Reads the variables.
    ///
    /// # Errors
    /// The variables that are missing or wrong.
    pub(super) fn read(variables: &BTreeMap<String, String>) -> Result<Self, String> {
        let text = |name: &str| variables.get(name).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
        let needed = |name: &str, example: &str| {
            text(name).ok_or_else(|| {
                format!(
                    "Azure cannot be reached without {name}: start the controller with {name}={example}, or run functions on this \
                     machine with --function-target local"
                )
            })
        };
        let manager = text("AZURE_RESOURCE_MANAGER_ENDPOINT").unwrap_or("https://management.azure.com".to_owned());
        Ok(Self {
            subscription: needed("AZURE_SUBSCRIPTION_ID", "the ID of the subscription")?,
            account: needed("AZURE_STORAGE_ACCOUNT_NAME", "the storage account of packages")?,
            account_key: text("AZURE_STORAGE_ACCOUNT_KEY"),
            container: text("AZURE_STORAGE_PACKAGES_CONTAINER").unwrap_or(CONTAINER.to_owned()),
            manager: address("AZURE_RESOURCE_MANAGER_ENDPOINT", &manager)?,
            identity: identity(&text)?,
            variables: variables.clone(),
        })
    }

    /// Scheme of the apps' own addresses: that of Resource Manager.
    pub(super) fn scheme(&self) -> &'static str {
        if self.manager.starts_with("http://") { "http" } else { "https" }
    }
}

fn identity(text: &dyn Fn(&str) -> Option<String>) -> Result<Identity, String> {
    let client = text("AZURE_CLIENT_ID");
    if let (Some(tenant), Some(client)) = (text("AZURE_TENANT_ID"), client.clone()) {
        let authority = text("AZURE_AUTHORITY_HOST").unwrap_or("https://login.microsoftonline.com".to_owned());
        let authority = address("AZURE_AUTHORITY_HOST", &authority)?;
        if let Some(secret) = text("AZURE_CLIENT_SECRET") {
            return Ok(Identity::Secret { authority, tenant, client, secret });
        }
        if let Some(file) = text("AZURE_FEDERATED_TOKEN_FILE") {
            return Ok(Identity::Federated { authority, tenant, client, file: file.into() });
        }
    }
    match (text("IDENTITY_ENDPOINT"), text("IDENTITY_HEADER")) {
        (Some(endpoint), Some(header)) => {
            let endpoint = Url::parse(&endpoint).map_err(|error| format!("IDENTITY_ENDPOINT is no URL: {error}"))?;
            Ok(Identity::AppService { endpoint, header, client })
        }
        _ => Ok(Identity::Machine { client }),
    }
}

fn address(name: &str, text: &str) -> Result<String, String> {
    let text = text.trim_end_matches('/');
    match Url::parse(text) {
        Ok(url) if matches!(url.scheme(), "http" | "https") => Ok(text.to_owned()),
        _ => Err(format!("{name} is {text:?}, which is no https:// address")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(more: &[(&str, &str)]) -> Result<AzureConfig, String> {
        let always = [("AZURE_SUBSCRIPTION_ID", "s"), ("AZURE_STORAGE_ACCOUNT_NAME", "a")];
        let pairs = always.iter().chain(more).map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        AzureConfig::read(&pairs.collect())
    }

    #[test]
    fn an_identity_is_found_in_the_order_of_the_vendors_tools() {
        let principal = [("AZURE_TENANT_ID", "t"), ("AZURE_CLIENT_ID", "c")];
        let with = |more: &[(&str, &str)]| read(&[&principal[..], more].concat()).expect("right").identity;
        let app = [("IDENTITY_ENDPOINT", "http://127.0.0.1/token"), ("IDENTITY_HEADER", "h")];
        let secret = with(&[("AZURE_CLIENT_SECRET", "x"), app[0], app[1]]);
        assert!(
            matches!(&secret, Identity::Secret { authority, .. } if authority == "https://login.microsoftonline.com")
        );
        let file =
            [("AZURE_FEDERATED_TOKEN_FILE", "/token"), ("AZURE_AUTHORITY_HOST", "https://login.chinacloudapi.cn/")];
        let federated = with(&file);
        assert!(
            matches!(&federated, Identity::Federated { authority, .. } if authority == "https://login.chinacloudapi.cn")
        );
        assert!(matches!(with(&app), Identity::AppService { client: Some(_), .. }));
        assert_eq!(read(&[]).expect("right").identity, Identity::Machine { client: None });
    }

    #[test]
    fn what_is_missing_is_named() {
        let none = AzureConfig::read(&BTreeMap::new()).expect_err("nothing is there");
        assert!(none.contains("AZURE_SUBSCRIPTION_ID") && none.contains("--function-target local"), "{none}");
        let wrong = read(&[("AZURE_RESOURCE_MANAGER_ENDPOINT", "management")]).expect_err("no URL");
        assert!(wrong.contains("no https:// address"), "{wrong}");
    }
}
