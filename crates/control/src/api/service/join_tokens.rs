//! Join tokens: made, listed, revoked.

use berth_peer::pki::JoinToken;
use berth_spec::{Class, Roles, Time, WorkerId};
use berth_wire::{
    access::Secret,
    api::{
        API_VERSION, CreatedJoinToken, JoinTokenSpec, JoinTokenStatus, JoinTokenView, Kind as _, List, Metadata,
        NewJoinToken, Timestamp,
    },
};

use super::Service;
use crate::{
    api::{certify::ISSUES_NOTHING, error::ApiError, tokens::now},
    store::{Rev, join_tokens::JoinTokenRecord},
};

/// The most join tokens. Expired ones go when the next is made.
const MAX_JOIN_TOKENS: usize = 1_000;

/// The most nodes that join with one token: more than a group of machines that starts at once, and a bound for a stolen
/// one.
const MOST_USES: u32 = 1_000;

/// Longest description, in bytes: a line of a table.
const MAX_DESCRIPTION_BYTES: usize = 128;

/// Default validity, in seconds. Enough to start some machines, short for a text in a log.
const DEFAULT: u64 = 3_600;

/// Longest validity, in seconds: thirty days. A token is for nodes that are about to join.
const MAX_VALIDITY_SECONDS: u64 = 30 * 24 * 3_600;

/// The most controllers that a token names: more than any cluster runs, and few enough for a text that is pasted.
const ADDRESSES: usize = 16;

impl Service {
    /// Makes a join token. Its secret is in the answer and nowhere else.
    pub(crate) async fn create_join_token(&self, by: &str, new: NewJoinToken) -> Result<CreatedJoinToken, ApiError> {
        let Some(issuing) = &self.issuing else {
            return Err(ApiError::new(Class::Conflict, ISSUES_NOTHING));
        };
        let (roles, node) = checked(&new)?;
        let now = now();
        let all = self.handle.join_tokens().await?;
        let expired = all.iter().filter(|record| record.expires <= now).map(|record| record.id.as_str());
        self.handle.remove_join_tokens(expired).await.map_err(crate::handle::Error::from)?;
        if all.iter().filter(|record| record.expires > now).count() >= MAX_JOIN_TOKENS {
            let message = format!(
                "there are {MAX_JOIN_TOKENS} join tokens, as many as may be: `berth join-token revoke` removes one"
            );
            return Err(ApiError::new(Class::Conflict, message));
        }
        let secret = Secret::generate();
        let record = JoinTokenRecord {
            id: secret.id().to_owned(),
            hash: secret.hash(),
            roles,
            node,
            uses: new.spec.uses,
            joined: Vec::new(),
            description: new.spec.description,
            created_by: by.to_owned(),
            created: now,
            expires: now + new.expires_in_seconds.unwrap_or(DEFAULT),
        };
        let at = (self.members)();
        let at = at.iter().filter(|(member, health)| member.roles.controller && health.is_there());
        let at: Vec<String> = at.map(|(member, _)| member.peer.to_string()).take(ADDRESSES).collect();
        let (secret, ca) = (secret.reveal().to_owned(), issuing.authority().fingerprint().to_owned());
        let token = JoinToken { secret, ca, at, roles: Some(roles) };
        if !self.handle.put_join_token(record.clone(), Rev::NONE).await? {
            return Err(ApiError::new(Class::Conflict, "another join token was made at the same moment: try again"));
        }
        tracing::info!(event = "join_token_created", id = record.id, %roles, uses = record.uses, by, "a join token was made");
        Ok(CreatedJoinToken { token: view(&record, now), secret: token.text() })
    }

    /// All join tokens, by the time of their creation.
    pub(crate) async fn join_tokens(&self) -> Result<List<JoinTokenView>, ApiError> {
        let (mut all, now) = (self.handle.join_tokens().await?, now());
        all.sort_by(|one, other| (one.created, &one.id).cmp(&(other.created, &other.id)));
        Ok(List::of(all.iter().map(|record| view(record, now)).collect()))
    }

    /// Revokes a join token: no node joins with it any more. Those that have joined stay.
    pub(crate) async fn revoke_join_token(&self, by: &str, id: &str) -> Result<JoinTokenView, ApiError> {
        let known = self.handle.join_tokens().await?.into_iter().find(|record| record.id == id);
        let Some(record) = known else {
            let message = format!("there is no join token {id:?}: `berth join-token list` shows them");
            return Err(ApiError::not_found(message));
        };
        self.handle.remove_join_tokens([id]).await.map_err(crate::handle::Error::from)?;
        tracing::info!(event = "join_token_revoked", id, by, "a join token was revoked");
        Ok(view(&record, now()))
    }
}

fn checked(new: &NewJoinToken) -> Result<(Roles, Option<WorkerId>), ApiError> {
    let spec = &new.spec;
    let roles = spec.roles.parse::<Roles>().ok().filter(|roles| *roles != Roles::NONE).ok_or_else(|| {
        let message = format!("{:?} names no roles", spec.roles);
        ApiError::invalid("spec.roles", message, "write controller, worker, gateway, or several with commas")
    })?;
    let node = spec.node.as_deref().map(WorkerId::new).transpose().map_err(|error| {
        ApiError::invalid("spec.node", format!("this is not the name of a node: {error}"), "write its name")
    })?;
    if spec.uses == 0 || spec.uses > MOST_USES || (spec.uses > 1 && node.is_some()) {
        let message = format!("uses is {}: it may be 1 to {MOST_USES}, and 1 where spec.node is given", spec.uses);
        return Err(ApiError::invalid("spec.uses", message, "make a token for each node, or leave spec.node out"));
    }
    if spec.description.len() > MAX_DESCRIPTION_BYTES || spec.description.chars().any(char::is_control) {
        let message = format!("the description may have {MAX_DESCRIPTION_BYTES} bytes, in one line");
        return Err(ApiError::invalid("spec.description", message, "shorten it"));
    }
    match new.expires_in_seconds {
        Some(seconds) if seconds == 0 || seconds > MAX_VALIDITY_SECONDS => {
            let message = format!("expiresInSeconds is {seconds}: it may be 1 to {MAX_VALIDITY_SECONDS}, thirty days");
            Err(ApiError::invalid("expiresInSeconds", message, "leave it out for an hour"))
        }
        _ => Ok((roles, node)),
    }
}

fn view(record: &JoinTokenRecord, now: u64) -> JoinTokenView {
    let at = |seconds: u64| Some(Timestamp(Time(seconds.saturating_mul(1_000_000_000))));
    JoinTokenView {
        api_version: API_VERSION.to_owned(),
        kind: JoinTokenView::KIND.to_owned(),
        metadata: Metadata { name: record.id.clone(), ..Metadata::default() },
        spec: JoinTokenSpec {
            roles: record.roles.to_string(),
            node: record.node.as_ref().map(ToString::to_string),
            uses: record.uses,
            description: record.description.clone(),
        },
        status: JoinTokenStatus {
            created_by: record.created_by.clone(),
            created_at: at(record.created),
            expires_at: at(record.expires),
            expired: record.expires <= now,
            nodes: record.joined.iter().map(|joined| joined.node.to_string()).collect(),
        },
    }
}
