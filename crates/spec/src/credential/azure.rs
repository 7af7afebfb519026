//! An account of Azure Blob Storage, and the connection strings that its portal hands out.

use super::{Secret, WrongField};

/// An account of Azure Blob Storage: its name and key, a connection string, or both if they agree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Azure {
    /// The storage account's name; `None`: the connection string names the account.
    pub account_name: Option<String>,
    /// The account's key, base64; `None`: the connection string has it, or a signature.
    pub account_key: Option<Secret>,
    /// The portal's connection string: `AccountName=…;AccountKey=…;EndpointSuffix=…`.
    pub connection_string: Option<Secret>,
}

impl Azure {
    /// There must be a name and a key, or a connection string that has an account.
    pub(super) fn new(
        account_name: Option<String>,
        account_key: Option<Secret>,
        connection_string: Option<Secret>,
    ) -> Result<Self, WrongField> {
        let azure = Self { account_name, account_key, connection_string };
        let Some(connection) = &azure.connection_string else {
            return match (&azure.account_name, &azure.account_key) {
                (Some(_), Some(_)) => Ok(azure),
                (None, Some(_)) => Err(WrongField::new("account_name", "whose key is it?", "add account_name")),
                _ => Err(WrongField::new(
                    "account_key",
                    "azure_blob_credentials lacks its key",
                    "add account_name and account_key, or connection_string",
                )),
            };
        };
        let wrong = |message: &str, remedy: &str| Err(WrongField::new("connection_string", message, remedy));
        if connection.expose().split(';').any(|part| !part.trim().is_empty() && !part.contains('=')) {
            return wrong("this is not a connection string", "write NAME=VALUE;NAME=VALUE as the portal shows it");
        }
        let named = azure.part("AccountName");
        if named.is_none() && azure.part("BlobEndpoint").is_none() {
            return wrong("it names no account", "it needs AccountName, or BlobEndpoint");
        }
        if azure.part("AccountKey").is_none() && azure.part("SharedAccessSignature").is_none() {
            return wrong("it has no key", "it needs AccountKey, or SharedAccessSignature");
        }
        if let (Some(name), Some(named)) = (&azure.account_name, named)
            && name != named
        {
            return wrong("it is of another account than account_name says", "leave one of them out");
        }
        Ok(azure)
    }

    /// The account's name, given or from the connection string; `None`: that has only its address.
    #[must_use]
    pub fn account(&self) -> Option<&str> {
        self.account_name.as_deref().or_else(|| self.part("AccountName"))
    }

    /// The account's key, given or from the connection string; `None`: that has a signature.
    #[must_use]
    pub fn key(&self) -> Option<&str> {
        self.account_key.as_ref().map(Secret::expose).or_else(|| self.part("AccountKey"))
    }

    /// The shared access signature, in place of a key.
    #[must_use]
    pub fn signature(&self) -> Option<&str> {
        self.part("SharedAccessSignature").map(|text| text.trim_start_matches('?'))
    }

    /// The service's address, if that is not the usual one: `BlobEndpoint`, or what `EndpointSuffix` makes of the account.
    #[must_use]
    pub fn endpoint(&self) -> Option<String> {
        if let Some(endpoint) = self.part("BlobEndpoint") {
            return Some(endpoint.to_owned());
        }
        let (suffix, account) = (self.part("EndpointSuffix")?, self.account()?);
        let scheme = self.part("DefaultEndpointsProtocol").unwrap_or("https");
        Some(format!("{scheme}://{account}.blob.{suffix}"))
    }

    /// A part of the connection string. Values may hold `=`: keys are base64.
    fn part(&self, name: &str) -> Option<&str> {
        let parts = self.connection_string.as_ref()?.expose().split(';');
        parts
            .filter_map(|part| part.trim().split_once('='))
            .find(|(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, v)| v)
    }
}
