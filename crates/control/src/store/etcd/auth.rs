//! A token for a user and a password, kept until etcd no longer takes it.

use std::sync::{Mutex, PoisonError};

use berth_wire::etcd::{AuthenticateRequest, auth_client::AuthClient};
use tonic::{
    Request, Status,
    metadata::{Ascii, MetadataValue},
    service::Interceptor,
    transport::Channel,
};

use super::{config::EtcdCredentials, error::EtcdError};
use crate::store::StoreError;

type Token = MetadataValue<Ascii>;

/// Credentials, and the token obtained with them.
pub(super) struct Login {
    credentials: EtcdCredentials,
    /// Held only to look and to replace.
    token: Mutex<Option<Token>>,
}

impl Login {
    pub(super) fn new(credentials: EtcdCredentials) -> Self {
        Self { credentials, token: Mutex::new(None) }
    }

    /// The token, fetched over `channel` where there is none. Two that find none at once fetch two, and both are good.
    pub(super) async fn token(&self, channel: Channel, endpoint: &str) -> Result<Token, EtcdError> {
        if let Some(token) = self.token.lock().unwrap_or_else(PoisonError::into_inner).clone() {
            return Ok(token);
        }
        let EtcdCredentials { user, password } = self.credentials.clone();
        let answer = AuthClient::new(channel).authenticate(AuthenticateRequest { name: user, password }).await;
        // Whatever happened to it, nothing that was asked for has been sent.
        let answer = answer.map_err(|status| match EtcdError::of(&status, endpoint) {
            EtcdError::Lost(reason) => EtcdError::NotSent(reason),
            fault => fault,
        })?;
        let mut token: Token = answer.into_inner().token.parse().map_err(|_| {
            EtcdError::Final(StoreError::Failed(format!("etcd at {endpoint} gave a token that cannot be sent back")))
        })?;
        token.set_sensitive(true);
        *self.token.lock().unwrap_or_else(PoisonError::into_inner) = Some(token.clone());
        tracing::debug!(event = "store_token", endpoint);
        Ok(token)
    }

    /// The token is not good any more.
    pub(super) fn forget(&self) {
        *self.token.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// Metadata of every request: the token, and the requirement that the member has a leader. Without the latter, a
/// member that is cut off would keep a silent watch open forever.
#[derive(Clone)]
pub(super) struct CallMetadata(pub(super) Option<Token>);

impl Interceptor for CallMetadata {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        if let Some(token) = &self.0 {
            request.metadata_mut().insert("token", token.clone());
        }
        Ok(request)
    }
}
