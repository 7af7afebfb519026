//! Answers the webhook's questions. What people write is reviewed with the cluster's context: the API server is asked what it thinks
//! of the Deployment and the Service, in a dry run. Objects are converted without any.

use std::time::Duration;

use kube::{
    Api, Client, Error,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

use super::{
    answered,
    kind::{Key, Kind},
};
use crate::{
    FIELD_MANAGER,
    admission::{Request, Verdict, bundle},
    api::{ModelDeployment, spokes::CONVERTED},
    brain::ApplyError,
    conversion,
    driver::attempt::{is_controlled_by, trouble},
    metrics::OperatorMetrics,
    render::{self, Installation},
};

/// Time for a review: less than the API server waits, so that it hears why nothing was checked.
const PATIENCE: Duration = Duration::from_secs(7);

/// The name of the webhook's configuration.
const CONFIGURATION: &str = "berth-operator";

/// Answers the API server's questions.
#[derive(Clone)]
pub struct Gatekeeper {
    client: Client,
    installation: Installation,
    metrics: OperatorMetrics,
}

impl Gatekeeper {
    /// A gatekeeper that renders with these images.
    #[must_use]
    pub fn new(client: Client, installation: Installation, metrics: OperatorMetrics) -> Self {
        Self { client, installation, metrics }
    }

    /// The answer to an AdmissionReview.
    pub async fn review(&self, request: &Request) -> Value {
        let verdict = self.verdict(request).await;
        self.metrics.reviewed(match verdict {
            Verdict::Allowed | Verdict::Cautioned(_) => "allowed",
            Verdict::Warned(_) => "unchecked",
            Verdict::Denied(_) => "denied",
        });
        request.answer(&verdict)
    }

    async fn verdict(&self, request: &Request) -> Verdict {
        if !request.needs_review() {
            return Verdict::Allowed;
        }
        match request.model() {
            Err(message) => Verdict::Denied(message),
            Ok(model) => {
                let cautions = request.cautions(&model);
                match tokio::time::timeout(PATIENCE, self.tried(request, model)).await {
                    Ok(Ok(())) if cautions.is_empty() => Verdict::Allowed,
                    Ok(Ok(())) => Verdict::Cautioned(cautions),
                    Ok(Err(ApplyError::NameTaken(message) | ApplyError::Refused(message))) => Verdict::Denied(message),
                    Ok(Err(ApplyError::Unreachable(message))) => unchecked(&message),
                    Err(_) => unchecked("the API server did not answer in time"),
                }
            }
        }
    }

    /// Asks the API server about the model's objects.
    async fn tried(&self, request: &Request, mut model: ModelDeployment) -> Result<(), ApplyError> {
        let name = model.metadata.name.clone().unwrap_or_default();
        let namespace = model.metadata.namespace.clone().unwrap_or_default();
        if request.is_written_by_people() {
            let key = Key { kind: Kind::Model, namespace, name };
            if let Some(child) = self.read(&key, model.metadata.uid.as_deref()).await? {
                // The objects belong to the one between.
                model.metadata.uid = child["metadata"]["uid"].as_str().map(str::to_owned);
            }
        }
        if model.spec.fleet.is_some() {
            return Ok(());
        }
        let record = render::SHIPPED.record(&self.installation, model.metadata.generation.unwrap_or_default());
        let objects =
            render::SHIPPED.render(&model, &record).map_err(|error| ApplyError::Refused(error.to_string()))?;
        for object in objects.into_iter().map(|object| self.installation.adapt(object)) {
            let Some(kind) = Kind::of(&object) else { continue };
            let key = Key::of(kind, &object);
            self.read(&key, model.metadata.uid.as_deref()).await?;
            let parameters = PatchParams { dry_run: true, ..PatchParams::apply(FIELD_MANAGER).force() };
            let api = kind.api(&self.client, Some(&key.namespace));
            match api.patch(&key.name, &parameters, &Patch::Apply(&object)).await {
                // Its custom resource is not installed: the status tells that, and what is installed later is applied then.
                Err(Error::Api(refusal)) if kind.is_optional() && refusal.code == 404 => {}
                tried => drop(tried.map_err(|error| trouble(format!("{key} could not be applied"), &error))?),
            }
        }
        Ok(())
    }

    /// The object, which must not belong to somebody else.
    async fn read(&self, key: &Key, owner: Option<&str>) -> Result<Option<Value>, ApplyError> {
        let found = key.kind.api(&self.client, Some(&key.namespace)).get_opt(&key.name).await;
        let found = found.map_err(|error| trouble(format!("{key} cannot be read"), &error))?;
        match found {
            Some(found) if !is_controlled_by(&found, owner) => Err(ApplyError::taken(key)),
            found => Ok(found.and_then(|found| serde_json::to_value(found).ok())),
        }
    }

    /// The answer to a ConversionReview. Blocking for as long as its list is.
    ///
    /// # Errors
    /// It is none.
    pub fn convert(&self, review: &[u8]) -> Result<String, conversion::Malformed> {
        let answered = conversion::Review::read(review).and_then(|review| review.answer());
        match &answered {
            Ok((_, Some(objects))) => self.metrics.converted("succeeded", *objects),
            Ok((_, None)) | Err(_) => self.metrics.converted("failed", 1),
        }
        answered.map(|(answer, _)| answer)
    }

    /// Puts the certificate of this operator among those that the API server trusts. True if it was not there.
    ///
    /// # Errors
    /// The API server refuses or does not answer, or somebody else wrote at the same time.
    pub async fn publish(&self, certificate: &str) -> Result<bool, Error> {
        answered(self.publish_to_all(certificate)).await
    }

    async fn publish_to_all(&self, certificate: &str) -> Result<bool, Error> {
        // Whoever may not write one of them may write the others.
        let mut outcome = self.publish_for_admission(certificate).await;
        for name in CONVERTED {
            let published = self.publish_for_conversion(name, certificate).await;
            outcome = outcome.and_then(|before| Ok(published? || before));
        }
        outcome
    }

    async fn publish_for_admission(&self, certificate: &str) -> Result<bool, Error> {
        use k8s_openapi::{ByteString, api::admissionregistration::v1::ValidatingWebhookConfiguration};

        let api: Api<ValidatingWebhookConfiguration> = Api::all(self.client.clone());
        let Some(mut configuration) = api.get_opt(CONFIGURATION).await? else { return Ok(false) };
        let mut changed = false;
        for webhook in configuration.webhooks.iter_mut().flatten() {
            let present = webhook.client_config.ca_bundle.as_ref().map_or(&[][..], |bundle| &bundle.0);
            if let Some(more) = bundle(&String::from_utf8_lossy(present), certificate) {
                webhook.client_config.ca_bundle = Some(ByteString(more.into_bytes()));
                changed = true;
            }
        }
        if changed {
            // Over exactly what was read: operators write here at the same time.
            api.replace(CONFIGURATION, &kube::api::PostParams::default(), &configuration).await?;
        }
        Ok(changed)
    }

    async fn publish_for_conversion(&self, name: &str, certificate: &str) -> Result<bool, Error> {
        use k8s_openapi::{
            ByteString, apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
        };

        let api: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        let Some(definition) = api.get_opt(name).await? else { return Ok(false) };
        let webhook = definition.spec.conversion.and_then(|conversion| conversion.webhook);
        let Some(client) = webhook.and_then(|webhook| webhook.client_config) else { return Ok(false) };
        let present = client.ca_bundle.map(|bundle| bundle.0).unwrap_or_default();
        let Some(more) = bundle(&String::from_utf8_lossy(&present), certificate) else { return Ok(false) };
        let more = ByteString(more.into_bytes());
        // The version that was read stands for "nobody wrote meanwhile"; nothing else of the definition is written.
        let patch = json!({
            "metadata": { "resourceVersion": definition.metadata.resource_version },
            "spec": { "conversion": { "webhook": { "clientConfig": { "caBundle": more } } } },
        });
        api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(true)
    }
}

fn unchecked(reason: &str) -> Verdict {
    Verdict::Warned(format!("berth could not check this against the cluster: {reason}"))
}
