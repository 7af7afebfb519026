//! One resolved, immutable model version of a deployment.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{
    ByteSize, Deployment, Digest, PinnedCard, RevisionId, Signature,
    deployment::{ModelFormat, RuntimeOptions},
    network::Destination,
};

/// Everything that a worker needs to load a model, and nothing that may change without loading it again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Revision {
    /// Names it; see [`Revision::id_of`].
    pub id: RevisionId,
    /// The kind of artifact.
    pub format: ModelFormat,
    /// The artifact's location.
    pub uri: String,
    /// The digest of the artifact, if it is known.
    pub digest: Option<Digest>,
    /// The version name that clients see.
    pub version: String,
    /// The signature that the author gave.
    pub signature: Option<Box<Signature>>,
    /// Settings of the engine.
    pub runtime: RuntimeOptions,
    /// The author's word on its memory.
    pub memory: Option<ByteSize>,
    /// The model card, for a model that has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub card: Option<Arc<PinnedCard>>,
}

impl Revision {
    /// The hosts that the model reaches: the deployment's word, or else its card's.
    #[must_use]
    pub fn hosts(&self) -> &[Destination] {
        let of_card = || self.card.as_ref().and_then(|card| card.card.network.as_ref());
        self.runtime.network.as_ref().or_else(of_card).map_or(&[], |network| &network.hosts)
    }

    /// The revision of a deployment's current spec; hashes it.
    #[must_use]
    pub fn of(deployment: &Deployment) -> Self {
        Self::with_id(deployment, Self::id_of(deployment))
    }

    /// The same where the id is known: hashing is most of the work.
    #[must_use]
    pub fn with_id(deployment: &Deployment, id: RevisionId) -> Self {
        let model = &deployment.spec.model;
        Self {
            format: model.format.clone(),
            uri: model.uri.to_string(),
            digest: model.sha256.or(deployment.digest),
            version: model.version.clone().unwrap_or_else(|| id.hash()),
            signature: model.signature.clone(),
            runtime: deployment.spec.runtime.clone(),
            memory: deployment.spec.memory,
            card: model.card.clone(),
            id,
        }
    }

    /// Hashes what decides what is loaded: the format, the artifact (its digest where that is known, else its
    /// location), the declared version and signature, the engine's settings, and `restart`. Labels, replica counts, priority,
    /// limits, warm-up and batching are not part of it: changing them loads nothing.
    #[must_use]
    pub fn id_of(deployment: &Deployment) -> RevisionId {
        let model = &deployment.spec.model;
        let artifact = match model.sha256.or(deployment.digest) {
            Some(digest) => digest.to_string(),
            None => model.uri.to_string(),
        };
        let RuntimeOptions { execution_provider, threads, isolation, network } = &deployment.spec.runtime;
        let content = format!(
            "berth revision 1\n{}\n{artifact}\n{:?}\n{:?}\nRuntimeOptions {{ execution_provider: {execution_provider:?}, threads: \
             {threads} }}",
            model.format.as_str(),
            model.version,
            model.signature,
        );
        let mut content = content.into_bytes();
        if let Some(isolation) = isolation {
            content.extend_from_slice(b"\nisolation ");
            content.extend_from_slice(isolation.as_str().as_bytes());
        }
        if let Some(network) = network {
            content.extend_from_slice(b"\nnetwork");
            network.hosts.iter().for_each(|host| content.extend_from_slice(format!(" {host}").as_bytes()));
        }
        if let Some(card) = &model.card {
            content.extend_from_slice(b"\ncard ");
            content.extend_from_slice(&card.content());
        }
        if let Some(restart) = &deployment.spec.restart {
            content.extend_from_slice(b"\nrestart ");
            content.extend_from_slice(restart.as_bytes());
        }
        RevisionId::of(deployment.name.clone(), &content)
    }
}
