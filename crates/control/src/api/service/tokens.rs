//! Tokens: made, listed, revoked.

use std::collections::HashMap;

use berth_spec::{Class, Namespace, UseLimits};
use berth_wire::{
    access::{Secret, TokenRecord},
    api::{CreatedToken, List, NewToken, TokenView},
};

use super::Service;
use crate::api::{error::ApiError, tokens::now};

/// The most tokens, the expired ones included. All of them are in the memory of every node, and travel whole.
const MAX_TOKENS: usize = 2_000;

/// The most namespaces, and patterns, of one token: its rights travel in a header between nodes.
const MOST_PLACES: usize = 16;

/// Longest pattern and description, in bytes: patterns travel in a header between nodes, descriptions are a line of a
/// table.
const MAX_TEXT_BYTES: usize = 128;

/// Longest validity, in seconds: some ninety years.
const MAX_VALIDITY_SECONDS: u64 = 90 * 366 * 24 * 3_600;

impl Service {
    /// Makes a token. Its secret is in the answer and nowhere else.
    pub(crate) async fn create_token(&self, by: &str, new: NewToken) -> Result<CreatedToken, ApiError> {
        check(&new)?;
        if self.handle.tokens().await?.tokens.len() >= MAX_TOKENS {
            let message = format!("there are {MAX_TOKENS} tokens, as many as may be: `berth token revoke` removes one");
            return Err(ApiError::new(Class::Conflict, message));
        }
        let (secret, now) = (Secret::generate(), now());
        let record = TokenRecord {
            id: secret.id().to_owned(),
            hash: secret.hash(),
            grant: new.spec.grant(),
            description: new.spec.description,
            created_by: by.to_owned(),
            created: now,
            expires: new.expires_in_seconds.map(|seconds| now.saturating_add(seconds)),
            limits: new.spec.limits.map(UseLimits::from),
        };
        self.handle.add_token(record.clone()).await?;
        // Whoever asks this node next is known.
        self.access.learn(&self.handle.tokens().await?);
        tracing::info!(event = "token_created", id = record.id, role = %record.grant.role, by, "a token was made");
        Ok(CreatedToken { token: TokenView::of(&record, None, now), secret: secret.reveal().to_owned() })
    }

    /// All tokens, by the time of their creation, with their last use on any gateway.
    pub(crate) async fn tokens(&self) -> Result<List<TokenView>, ApiError> {
        let (mut snapshot, now) = (self.handle.tokens().await?, now());
        let mut used: HashMap<String, u64> = self.access.uses();
        for (id, at) in self.peer_queries.uses().await.into_iter().flatten() {
            let latest = used.entry(id).or_default();
            *latest = at.max(*latest);
        }
        snapshot.tokens.sort_by(|one, other| (one.created, &one.id).cmp(&(other.created, &other.id)));
        let views = snapshot.tokens.iter().map(|record| TokenView::of(record, used.get(&record.id).copied(), now));
        Ok(List::of(views.collect()))
    }

    /// Revokes a token: here at once, on the other nodes within seconds.
    pub(crate) async fn revoke_token(&self, by: &str, id: &str) -> Result<TokenView, ApiError> {
        let before = self.handle.tokens().await?.tokens.into_iter().find(|record| record.id == id);
        let Some(record) = before.filter(|_| id.bytes().all(|byte| byte.is_ascii_alphanumeric())) else {
            return Err(ApiError::not_found(format!("there is no token {id:?}: `berth token list` shows them")));
        };
        self.handle.revoke_token(id).await?;
        self.access.learn(&self.handle.tokens().await?);
        tracing::info!(event = "token_revoked", id, by, "a token was revoked");
        Ok(TokenView::of(&record, None, now()))
    }
}

/// Checks the spec of a new token.
fn check(new: &NewToken) -> Result<(), ApiError> {
    let spec = &new.spec;
    for (path, places) in [("spec.namespaces", &spec.namespaces), ("spec.models", &spec.models)] {
        if places.len() > MOST_PLACES {
            let message = format!("{path} has {} entries, and may have {MOST_PLACES}", places.len());
            return Err(ApiError::invalid(path, message, "make several tokens, or use * in a pattern"));
        }
    }
    for namespace in &spec.namespaces {
        if let Err(error) = Namespace::new(namespace) {
            let message = format!("{namespace:?} is not a namespace: {error}");
            return Err(ApiError::invalid("spec.namespaces", message, ""));
        }
    }
    if let Some(pattern) = spec.models.iter().find(|pattern| pattern.is_empty() || pattern.len() > MAX_TEXT_BYTES) {
        let message = format!("{pattern:?} is no pattern of names: it must have 1 to {MAX_TEXT_BYTES} bytes");
        return Err(ApiError::invalid("spec.models", message, "write for example fraud-*"));
    }
    if spec.description.len() > MAX_TEXT_BYTES || spec.description.chars().any(char::is_control) {
        let message = format!("the description may have {MAX_TEXT_BYTES} bytes, in one line");
        return Err(ApiError::invalid("spec.description", message, "shorten it"));
    }
    if let Err((field, message)) = UseLimits::from(spec.limits.unwrap_or_default()).check() {
        return Err(ApiError::invalid(&format!("spec.limits.{field}"), message, "or leave it out"));
    }
    match new.expires_in_seconds {
        Some(seconds) if seconds == 0 || seconds > MAX_VALIDITY_SECONDS => {
            let message = format!("expiresInSeconds is {seconds}");
            Err(ApiError::invalid("expiresInSeconds", message, "write a number from 1 to 2846016000, or leave it out"))
        }
        _ => Ok(()),
    }
}
