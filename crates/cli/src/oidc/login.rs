//! A login as it is kept beside its context, and the renewal of its token.

use std::{
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use berth_spec::Secret;
use berth_wire::access::Jwt;
use clap::Args;
use serde::{Deserialize, Serialize};

use super::{
    device,
    issuer::{Issuer, IssuerError, Tokens},
};
use crate::{contexts, failure::Failure};

/// A token is renewed so many seconds before it ends: clocks differ, and commands take a while.
const RENEW_BEFORE_SECONDS: u64 = 60;

/// The place to log in to.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct OidcArgs {
    /// Log in at this OpenID issuer with a code for a browser on any machine (device authorization grant). The token is kept with
    /// the context and renewed by itself
    #[arg(long = "oidc", value_name = "ISSUER", help_heading = "OpenID", conflicts_with_all = ["token", "token_file", "client_cert"])]
    issuer: Option<String>,
    /// Name of this program at the issuer
    #[arg(
        long = "oidc-client-id",
        value_name = "ID",
        default_value = "berth",
        requires = "issuer",
        help_heading = "OpenID"
    )]
    client_id: String,
    /// File with the client's secret, where the issuer wants one; it stays where it is
    #[arg(long = "oidc-client-secret-file", value_name = "FILE", requires = "issuer", help_heading = "OpenID")]
    client_secret_file: Option<PathBuf>,
    /// Scopes to ask for; without offline_access most issuers give no token to renew the login with
    #[arg(
        long = "oidc-scope",
        value_name = "SCOPES",
        default_value = "openid offline_access",
        requires = "issuer",
        help_heading = "OpenID"
    )]
    scope: String,
    /// CA certificates of the issuer (PEM) [default: the system's CAs]
    #[arg(long = "oidc-ca", value_name = "FILE", requires = "issuer", help_heading = "OpenID")]
    oidc_ca: Option<PathBuf>,
    /// Send the access token to servers, not the ID token: for issuers whose access tokens are signed and name the audience
    #[arg(long = "oidc-access-token", requires = "issuer", help_heading = "OpenID")]
    access_token: bool,
}

/// A login at an issuer. Not `Debug`: it has a token that gives others.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct Login {
    issuer: String,
    client_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    client_secret_file: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ca: Option<PathBuf>,
    #[serde(default)]
    access_token: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    refresh_token: Option<String>,
    /// The token for servers. It is here, too, so that it and the refresh token are replaced in one step.
    #[serde(default)]
    token: String,
    /// When it ends, in seconds since the Unix epoch, as far as that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ends: Option<u64>,
}

impl OidcArgs {
    /// Logs in, where somebody asks for it.
    ///
    /// # Errors
    /// The issuer cannot be used, or gives no token.
    pub(crate) async fn log_in(&self) -> Result<Option<(Login, Secret)>, Failure> {
        let Some(issuer) = &self.issuer else { return Ok(None) };
        let absolute = |path: &PathBuf| fs_err::canonicalize(path);
        let mut login = Login {
            issuer: issuer.clone(),
            client_id: self.client_id.clone(),
            client_secret_file: self.client_secret_file.as_ref().map(absolute).transpose()?,
            ca: self.oidc_ca.as_ref().map(absolute).transpose()?,
            access_token: self.access_token,
            refresh_token: None,
            token: String::new(),
            ends: None,
        };
        let tokens = device::log_in(&login.issuer().await?, &self.scope).await?;
        let token = login.take(tokens)?;
        Ok(Some((login, token)))
    }
}

impl Login {
    async fn issuer(&self) -> Result<Issuer, Failure> {
        let read = |path: &PathBuf| fs_err::read_to_string(path).map(|text| Secret::new(text.trim()));
        let secret = self.client_secret_file.as_ref().map(read).transpose()?;
        Issuer::discover(&self.issuer, self.ca.as_deref(), &self.client_id, secret).await
    }

    /// Notes what the issuer gave, and gives the token for servers.
    fn take(&mut self, tokens: Tokens) -> Result<Secret, Failure> {
        let lasts = tokens.lasts();
        let Tokens { access_token, id_token, refresh_token, .. } = tokens;
        let token = match (self.access_token, id_token) {
            (false, Some(id_token)) => id_token,
            (false, None) => {
                let message =
                    "the issuer gave no ID token: ask for the scope openid, or log in with --oidc-access-token";
                return Err(Failure::Failed(message.to_owned()));
            }
            (true, _) => access_token,
        };
        let said = Jwt::parse(&token).and_then(|jwt| jwt.claims.get("exp")?.as_f64()).map(|exp| exp.max(0.0) as u64);
        let by_issuer = || Some(now().saturating_add(lasts.filter(|_| self.access_token)?));
        self.ends = said.or_else(by_issuer);
        // Issuers that do not change it need not say it again.
        self.refresh_token = refresh_token.or(self.refresh_token.take());
        self.token.clone_from(&token);
        Ok(Secret::new(token))
    }

    /// True if the token has ended, or will soon.
    fn is_ending(&self, within: u64) -> bool {
        self.ends.is_some_and(|ends| ends <= now().saturating_add(within))
    }

    /// Renews the token in `token` if it is about to end, in the file `login`. Processes that find the same do so one after the
    /// other: issuers that change the refresh token take a second use of the old one for theft.
    ///
    /// # Errors
    /// The login has ended, or the issuer cannot be asked and the token has ended.
    pub(crate) async fn renew(login: &Path, token: &Path) -> Result<(), Failure> {
        let Some(kept) = Self::read(login)? else { return Ok(()) };
        if !kept.is_ending(RENEW_BEFORE_SECONDS) && kept.is_in(token) {
            return Ok(());
        }
        let _turn = contexts::lock(login)?;
        // Somebody else may have done it meanwhile, or have logged out.
        let Some(mut kept) = Self::read(login)? else { return Ok(()) };
        if kept.is_ending(RENEW_BEFORE_SECONDS) {
            match kept.renewed().await {
                Ok(_) => kept.write(login)?,
                Err(_) if !kept.is_ending(0) => {}
                Err(failure) => return Err(failure),
            }
        }
        match kept.is_in(token) {
            true => Ok(()),
            false => contexts::write(token, &format!("{}\n", kept.token)),
        }
    }

    /// True if a file has its token: somebody may have been stopped between the two files.
    fn is_in(&self, token: &Path) -> bool {
        fs_err::read_to_string(token).is_ok_and(|text| text.trim() == self.token)
    }

    async fn renewed(&mut self) -> Result<Secret, Failure> {
        let Some(refresh) = self.refresh_token.clone() else {
            return Err(self.over("the issuer gave nothing to renew it with (--oidc-scope asks for offline_access)"));
        };
        let issuer = self.issuer().await?;
        let fields = [("grant_type", "refresh_token"), ("refresh_token", refresh.as_str())];
        match issuer.ask::<Tokens>(&issuer.token, &fields).await {
            Ok(tokens) => self.take(tokens),
            Err(IssuerError::Refused(refusal)) => Err(self.over(&format!("the issuer says {}", refusal.text()))),
            Err(trouble) => {
                Err(trouble.failure(&format!("the token has ended, and {} cannot renew it now", self.issuer)))
            }
        }
    }

    fn over(&self, why: &str) -> Failure {
        Failure::Failed(format!(
            "the login at {} has ended: {why}; `berth login … --oidc {}` begins a new one",
            self.issuer, self.issuer
        ))
    }

    /// Reads the file; `None`: there is none.
    pub(crate) fn read(path: &Path) -> Result<Option<Self>, Failure> {
        match fs_err::read_to_string(path) {
            Ok(text) => serde_json::from_str(&text).map(Some).map_err(|error| {
                // Line and column alone: the text has tokens.
                let (line, column) = (error.line(), error.column());
                Failure::Invalid(format!(
                    "{}:{line}:{column}: this is no login of Berth's: log in again",
                    path.display()
                ))
            }),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes the file, for its owner alone.
    pub(crate) fn write(&self, path: &Path) -> Result<(), Failure> {
        let text = serde_json::to_string(self).map_err(|error| Failure::doing("cannot write JSON", error))?;
        contexts::write(path, &text)
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
