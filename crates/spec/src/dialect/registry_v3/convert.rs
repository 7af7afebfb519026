//! The registry dialect to the hub version and back.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use super::{
    super::ConversionError, CardRef, Declaration, DeploymentConfig, DeploymentManifest, ENABLED, Extension,
    ManifestMetadata, PREFIX, REGION,
};
use crate::{
    PinnedCard,
    card::Resources,
    manifest::{
        Problem,
        raw::{
            Decimal, Label, Name, RawDeployment, RawGpu, RawModel, RawReplicas, RawResources, RawSelector, RawSpec,
            Size, Whole, Word,
        },
    },
};

/// The time that requests in flight have when a replica leaves, as the registry's document promises.
pub(super) const DRAIN: Duration = Duration::from_secs(60);

const ENVIRONMENT: &str = "environment";

impl Declaration {
    /// The hub version of a deployment.
    ///
    /// # Errors
    /// Every field that the hub does not take, by its path in the manifest of the registry.
    pub fn to_hub(&self) -> Result<RawDeployment, Vec<ConversionError>> {
        let mut errors = Errors::default();
        let Self { manifest, card, .. } = self;
        let config = &manifest.deployment_config;
        let name = Name::read(&manifest.id).map_err(|problem| vec![ConversionError::at("id", problem)])?;
        let mut spec = RawSpec::of(RawModel::of_card(Arc::clone(card)));
        let replicas = Whole::new(manifest.wanted());
        spec.replicas = manifest.berth.replicas(errors.take("deployment_config.replicas", replicas));
        spec.priority = errors.take("deployment_config.priority", Whole::new(config.priority.into()));
        spec.selector = RawSelector { required: errors.labels(manifest.required_labels()), ..RawSelector::default() };
        spec.resources = card.card.resources.as_ref().map(|needs| errors.resources(needs)).unwrap_or_default();
        manifest.berth.apply(&mut spec);
        spec.endpoint.clone_from(&config.endpoint);
        let mut document = RawDeployment::of(name, spec);
        for (key, value, path) in [
            (ENVIRONMENT, &self.environment, "folder"),
            (REGION, &config.region, "deployment_config.region"),
            ("model", &card.card.metadata.name, "model_card_ref.ref"),
            ("version", &card.card.metadata.version, "model_card_ref.ref"),
        ] {
            document.metadata.labels.insert(key.to_owned(), errors.take(path, Label::read(value)));
        }
        document.metadata.annotations = self.annotations();
        if errors.0.is_empty() { Ok(document) } else { Err(errors.0) }
    }

    fn annotations(&self) -> BTreeMap<String, String> {
        let Self { manifest, card, .. } = self;
        let enabled = if manifest.enabled { "true" } else { "false" };
        let notes = [
            ("commit", self.commit.clone()),
            ("path", Some(self.path.clone())),
            ("card", Some(written_reference(&manifest.model_card_ref))),
            ("enabled", Some(enabled.to_owned())),
            ("owner", manifest.metadata.owner.clone()),
            ("deployed-at", manifest.metadata.deployed_at.clone()),
            ("deployed-by", manifest.metadata.deployed_by.clone()),
            ("model-owner", Some(card.card.metadata.owner.clone())),
        ];
        notes.into_iter().filter_map(|(name, value)| Some((format!("{PREFIX}{name}"), value?))).collect()
    }

    /// The declaration that a deployment of the hub came from.
    ///
    /// # Errors
    /// The fields that a registry's manifest cannot say, by their path in the hub.
    pub fn from_hub(document: &RawDeployment) -> Result<Self, Vec<ConversionError>> {
        let RawDeployment { metadata, spec, .. } = document;
        let error = |path: &str, message: &str| vec![ConversionError::new(path, message, "")];
        let annotation = |name: &str| metadata.annotations.get(&format!("{PREFIX}{name}")).cloned();
        let label = |name: &str| metadata.labels.get(name).map(|label| label.0.clone());
        let card = spec.model.card.as_ref().and_then(|card| card.pinned());
        let Some(card) = card else { return Err(error("spec.model.card", "a registry declares model cards only")) };
        let (berth, replicas) = Extension::of(spec);
        let (Some(region), Some(environment)) = (label(REGION), label(ENVIRONMENT)) else {
            return Err(error("metadata.labels", "the labels region and environment are missing"));
        };
        let required = spec.selector.required.iter().map(|(key, Label(value))| (key.clone(), value.clone()));
        let declaration = Self {
            manifest: Arc::new(DeploymentManifest {
                id: metadata.name.0.name().to_owned(),
                model_card_ref: read_reference(&card, annotation("card").as_deref()),
                enabled: annotation("enabled").as_deref() == Some("true"),
                deployment_config: DeploymentConfig {
                    replicas: replicas.get(),
                    priority: u8::try_from(spec.priority.get()).unwrap_or(u8::MAX),
                    worker_selector: required.filter(|(key, value)| key != REGION || *value != region).collect(),
                    region,
                    endpoint: spec.endpoint.clone(),
                },
                metadata: ManifestMetadata {
                    owner: annotation("owner"),
                    deployed_at: annotation("deployed-at"),
                    deployed_by: annotation("deployed-by"),
                },
                berth,
            }),
            card,
            environment,
            path: annotation("path").unwrap_or_default(),
            commit: annotation("commit"),
        };
        // Whatever the way back does not bring is something that the dialect has no word for.
        let back = declaration.to_hub()?;
        let lost = back.differing(document);
        if lost.is_empty() {
            return Ok(declaration);
        }
        let lost = lost.into_iter().map(|path| ConversionError::new(path, "a registry's manifest cannot say this", ""));
        Err(lost.collect())
    }
}

impl RawDeployment {
    /// Takes all replicas away and marks the deployment as disabled; false if it has none anyway.
    pub fn disable(&mut self) -> bool {
        let none = RawReplicas::Exactly(Whole::default());
        if self.spec.replicas == none {
            return false;
        }
        self.spec.replicas = none;
        self.metadata.annotations.insert(ENABLED.to_owned(), "false".to_owned());
        true
    }
}

fn written_reference(card: &CardRef) -> String {
    format!("{}@{}:{}", card.repository, card.reference, card.path)
}

/// The path of the card stands in the annotation alone.
fn read_reference(card: &PinnedCard, annotation: Option<&str>) -> CardRef {
    let PinnedCard { repository, reference, .. } = card;
    let path = annotation.and_then(|text| text.strip_prefix(&format!("{repository}@{reference}:"))).unwrap_or_default();
    CardRef { repository: repository.clone(), path: path.to_owned(), reference: reference.clone() }
}

/// The errors of one conversion, collected so that all are told at once.
#[derive(Default)]
struct Errors(Vec<ConversionError>);

impl Errors {
    /// Unwraps a value; notes its error and goes on with the default.
    fn take<T: Default>(&mut self, path: &str, value: Result<T, Problem>) -> T {
        value.unwrap_or_else(|problem| {
            self.0.push(ConversionError::at(path, problem));
            T::default()
        })
    }

    fn labels(&mut self, labels: BTreeMap<String, String>) -> BTreeMap<String, Label> {
        let read =
            |(key, value): (String, String)| (key, self.take("deployment_config.worker_selector", Label::read(&value)));
        labels.into_iter().map(read).collect()
    }

    fn resources(&mut self, needs: &Resources) -> RawResources {
        const PATH: &str = "model_card_ref.ref";
        let gpu = needs.gpu.filter(|count| *count > 0).map(|count| RawGpu {
            count: self.take(PATH, Whole::new(count)),
            kind: needs.gpu_type.as_deref().map(|kind| self.take(PATH, Word::read(kind))),
            memory: None,
        });
        RawResources { memory: needs.memory_bytes().map(Size), cpu: Some(Decimal(needs.cpu)), gpu }
    }
}
