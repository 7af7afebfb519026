//! Access to the ports: tokens, client certificates and tokens of OpenID issuers, by the rules of Berth's other ports (`berth_wire::access`).
//!
//! ```text
//! request ─▶ dot segments? (400) ─▶ open path? ─▶ asker (401) ─▶ may it ask this model? (403) ─▶ within its limits? (429) ─▶ on, without its token
//! tokens' file, access file ── followed, every 5 s ──▶ rules
//! ```

mod settings;
mod tokens;
mod usage;

use std::sync::Arc;

use berth_access::{AccessFile, Follower};
use berth_spec::ClientCertificate;
use berth_wire::access::{Access, Action, Asker, Resource};
use http::{HeaderMap, header};
use prometheus_client::registry::Registry;

pub(crate) use self::{settings::AccessSettings, usage::UsageGuard};
use self::{tokens::TokenFile, usage::Usage};
use crate::{refusal::Refusal, template::has_dot_segments};

/// The guard of all ports.
pub(crate) struct Guard {
    settings: AccessSettings,
    access: Arc<Access>,
    usage: Usage,
}

/// Name of who sends a request, among its extensions.
#[derive(Clone)]
pub(crate) struct Sender(pub(crate) Arc<str>);

/// The standing of somebody who was let in: it may end before their request does.
#[derive(Clone)]
pub(crate) struct LiveAccess {
    access: Arc<Access>,
    asker: Asker,
}

impl LiveAccess {
    #[cfg(test)]
    pub(crate) const fn new(access: Arc<Access>, asker: Asker) -> Self {
        Self { access, asker }
    }

    /// False for one whose token was revoked, or is over.
    pub(crate) fn holds(&self) -> bool {
        self.access.still_knows(&self.asker)
    }
}

/// Somebody who was let in.
pub(crate) struct Admitted {
    pub(crate) principal: Arc<str>,
    pub(crate) standing: LiveAccess,
    /// Counts against the limits until it is dropped.
    pub(crate) used: Option<UsageGuard>,
}

/// The files of a guard, to be followed.
pub(crate) struct Followed {
    tokens: Option<TokenFile>,
    file: Option<Follower>,
    access: Arc<Access>,
}

impl Guard {
    /// Reads the files. Blocking.
    ///
    /// # Errors
    /// A file that cannot be used.
    pub(crate) fn open(settings: AccessSettings, registry: &mut Registry) -> Result<(Arc<Self>, Followed), String> {
        let access = Arc::new(Access::required());
        let tokens = match &settings.tokens {
            None => None,
            Some(path) => Some(TokenFile::read(path, &access).map_err(|error| format!("access.tokens: {error}"))?),
        };
        if tokens.is_none() {
            // There are none, which is known.
            access.learn(&berth_wire::access::Snapshot::default());
        }
        let file = match &settings.file {
            None => None,
            Some(path) => {
                let file = AccessFile::read(path, false).map_err(|error| format!("access.file: {error}"))?;
                Some(Follower::new(file, false, Arc::clone(&access), registry))
            }
        };
        let followed = Followed { tokens, file, access: Arc::clone(&access) };
        let usage = Usage::new(settings.limits);
        Ok((Arc::new(Self { settings, access, usage }), followed))
    }

    /// Lets a request in, or says why not. `None`: its path is open to everybody. Its token is taken off.
    ///
    /// # Errors
    /// The refusal.
    pub(crate) fn admit(
        &self,
        path: &str,
        headers: &mut HeaderMap,
        certificate: Option<&ClientCertificate>,
        bytes: u64,
    ) -> Result<Option<Admitted>, Refusal> {
        let AccessSettings { model, open, .. } = &self.settings;
        // An open path would lead out of itself, since servers leave such segments out.
        if has_dot_segments(path) {
            return Err(Refusal::DotSegments);
        }
        if open.iter().any(|template| template.matches(path)) {
            headers.remove(header::AUTHORIZATION);
            return Ok(None);
        }
        let asker = self.access.asker(headers, certificate).map_err(Refusal::Unknown)?;
        // The model must not learn it.
        headers.remove(header::AUTHORIZATION);
        asker
            .may(Action::Infer, Resource::Model(model.key()))
            .map_err(|denied| Refusal::Denied(denied.to_string().into()))?;
        let Some(principal) = &asker.0 else { return Ok(None) };
        let used = self.usage.enter(principal, bytes)?;
        let principal = Arc::clone(&principal.name);
        Ok(Some(Admitted { principal, standing: LiveAccess { access: Arc::clone(&self.access), asker }, used }))
    }
}

impl Followed {
    /// Follows the files, for as long as it is polled.
    pub(crate) async fn run(self) {
        let Self { tokens, file, access } = self;
        let tokens = async {
            match tokens {
                Some(tokens) => tokens.follow(&access).await,
                None => std::future::pending().await,
            }
        };
        let file = async {
            match file {
                Some(file) => file.run().await,
                None => std::future::pending().await,
            }
        };
        tokio::join!(tokens, file);
    }
}
