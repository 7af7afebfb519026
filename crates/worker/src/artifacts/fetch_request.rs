//! The request for a fetch: its location, the deployment that it is for, and the names of the author's fields.

use std::time::Duration;

use berth_spec::{DeploymentName, Digest, FailureCategory, ModelFormat, Revision};

use super::location::Location;
use crate::fault::Fault;

/// A location to fetch, the digest to check it against, and the deployment that it is for.
#[derive(Debug, Clone)]
pub struct FetchRequest {
    /// URI of the file or folder, as its author wrote it.
    pub uri: String,
    /// The expected digest of its bytes, if that is known.
    pub digest: Option<Digest>,
    /// The deployment that it is for, in the log.
    pub deployment: DeploymentName,
    /// The command that wants it, in the log.
    pub correlation: Option<String>,
    /// Of a folder of this machine, the ONNX graph in it is meant.
    pub(super) graph: bool,
    /// The author's names for location and digest.
    fields: (&'static str, &'static str),
}

/// The fields of a manifest: messages name these unless something else is wanted.
const MANIFEST: (&str, &str) = ("spec.model.uri", "spec.model.sha256");

impl FetchRequest {
    /// The request for a revision's artifact, with the names that its fields have in a manifest or a card.
    #[must_use]
    pub fn artifact_of(revision: &Revision, correlation: Option<String>) -> Self {
        let fields = match revision.card {
            Some(_) => ("artifacts.model_path of the card", "artifacts.checksum"),
            None => MANIFEST,
        };
        let (uri, digest, deployment) = (revision.uri.clone(), revision.digest, revision.id.deployment().clone());
        let graph = revision.format.name() == ModelFormat::ONNX.name();
        Self { uri, digest, deployment, correlation, graph, fields }
    }

    /// The files at a location that no deployment declares.
    #[must_use]
    pub fn location(uri: String, digest: Option<Digest>, deployment: DeploymentName) -> Self {
        Self { uri, digest, deployment, correlation: None, graph: false, fields: ("the location", "the digest") }
    }

    /// The configuration of a revision that is a model card with one.
    #[must_use]
    pub fn configuration_of(revision: &Revision, correlation: Option<String>) -> Option<Self> {
        let uri = revision.card.as_ref()?.card.artifacts.config_path.clone()?;
        let fields = ("artifacts.config_path of the card", "artifacts.checksum");
        let deployment = revision.id.deployment().clone();
        Some(Self { uri, digest: None, deployment, correlation, graph: false, fields })
    }

    /// One file of it, where it is a folder: its digest is not known by itself.
    pub(super) fn part(&self, uri: String) -> Self {
        Self { uri, digest: None, ..self.clone() }
    }

    /// The location for people and logs, without what may be secret in it.
    #[must_use]
    pub fn shown(&self) -> String {
        Location::parse(&self.uri).map_or_else(|_| "not a location".to_owned(), |location| location.shown())
    }

    /// A message about it, naming the fields as the author knows them.
    pub(super) fn in_its_words(&self, message: String) -> String {
        if self.fields == MANIFEST {
            return message;
        }
        message.replace(MANIFEST.0, self.fields.0).replace(MANIFEST.1, self.fields.1)
    }

    pub(super) fn told_validated(&self, digest: Digest, took: Duration) {
        tracing::debug!(
            event = "checksum_validation_success",
            deployment_id = %self.deployment,
            checksum = %digest,
            expected = self.digest.is_some(),
            duration_ms = took.as_secs_f64() * 1e3,
            correlation_id = self.correlation,
        );
    }

    /// Compares the digest of the bytes with the declared one; the error names both.
    pub(super) fn check(&self, actual: Digest, location: &Location) -> Result<(), Fault> {
        let Some(expected) = self.digest.filter(|expected| *expected != actual) else { return Ok(()) };
        let message = format!(
            "{} has SHA-256 {actual}, declared is {expected}: the file was changed or damaged, or {} is wrong",
            location.shown(),
            self.fields.1
        );
        tracing::error!(
            event = "checksum_validation_failed",
            deployment_id = %self.deployment,
            artifact_path = location.shown(),
            expected_checksum = %expected,
            actual_checksum = %actual,
            error_message = message,
            correlation_id = self.correlation,
        );
        Err(Fault::new(FailureCategory::Checksum, message))
    }
}
