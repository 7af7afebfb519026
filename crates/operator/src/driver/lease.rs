//! Reads and writes the Lease of the election.

use std::time::{Duration, Instant};

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::OwnerReference, jiff::Timestamp};
use kube::{
    Api, Client, Error,
    api::{DynamicObject, PostParams},
    core::{ApiResource, GroupVersionKind},
};
use serde_json::{Value, json};
use tokio::time;
use tokio_util::sync::CancellationToken;

use super::{answered, kind::Kind};
use crate::election::{Election, INTERVAL};

/// The name of the Lease, and of the Deployment that it belongs to.
const NAME: &str = "berth-operator";

/// Limit for a look at the Lease with its renewal: an API server that is silent is asked once more before the leadership ends.
const STEP: Duration = Duration::from_secs(4);

/// The operator's part in the election.
pub(super) struct Leadership {
    api: Api<DynamicObject>,
    client: Client,
    /// The operator's own Deployment, where there is one: the Lease goes with it.
    owner: Option<OwnerReference>,
    namespace: String,
    election: Election,
}

impl Leadership {
    pub(super) fn new(client: &Client, namespace: &str, me: String) -> Self {
        let kind = GroupVersionKind::gvk("coordination.k8s.io", "v1", "Lease");
        let api = Api::namespaced_with(client.clone(), namespace, &ApiResource::from_gvk(&kind));
        let (client, namespace) = (client.clone(), namespace.to_owned());
        Self { api, client, owner: None, namespace, election: Election::new(me) }
    }

    /// The Deployment that an installation has.
    async fn find_owner(&self) -> Option<OwnerReference> {
        let api = Kind::Deployment.api(&self.client, Some(&self.namespace));
        let found = answered(api.get_opt(NAME)).await;
        let metadata = found.ok().flatten()?.metadata;
        Some(OwnerReference {
            api_version: "apps/v1".to_owned(),
            kind: "Deployment".to_owned(),
            name: metadata.name?,
            uid: metadata.uid?,
            ..OwnerReference::default()
        })
    }

    /// Returns when this operator leads; false if it is told to stop first.
    pub(super) async fn acquire(&mut self, shutdown: &CancellationToken) -> bool {
        let mut told = false;
        tokio::select! {
            () = shutdown.cancelled() => return false,
            owner = self.find_owner() => self.owner = owner,
        }
        loop {
            // Never cut off by the shutdown: a Lease that was taken is released.
            self.bounded_step().await;
            if self.election.leads(Instant::now()) {
                tracing::info!(event = "leading", namespace = self.namespace);
                return true;
            }
            if !std::mem::replace(&mut told, true) {
                tracing::info!(
                    event = "following",
                    namespace = self.namespace,
                    "another operator leads, or its lease has not ended"
                );
            }
            tokio::select! {
                () = shutdown.cancelled() => return false,
                () = time::sleep(INTERVAL) => {}
            }
        }
    }

    /// Renews the lease; returns when it is lost, no later than others may take it, also while the API server says nothing at all.
    pub(super) async fn keep(&mut self) {
        while let Some(until) = self.election.leads_until() {
            let renewal = async {
                time::sleep(INTERVAL).await;
                self.bounded_step().await;
            };
            if time::timeout_at(until.into(), renewal).await.is_err() {
                return;
            }
        }
    }

    /// The time for which no other can lead, unless the Lease is renewed.
    pub(super) fn left(&self) -> Duration {
        let until = self.election.leads_until();
        until.map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()))
    }

    /// Lets another lead at once.
    pub(super) async fn release(&self) {
        if time::timeout(STEP, self.give_up()).await.is_err() {
            tracing::debug!(event = "lease_not_released", error = "no answer");
        }
    }

    async fn give_up(&self) {
        let Ok(Some(lease)) = self.api.get_opt(NAME).await else { return };
        let Ok(value) = serde_json::to_value(&lease) else { return };
        if let Some(spec) = self.election.release(&value, &now())
            && let Err(error) = self.write(Some(lease), spec).await
        {
            tracing::debug!(event = "lease_not_released", %error);
        }
    }

    async fn bounded_step(&mut self) {
        if time::timeout(STEP, self.step()).await.is_err() {
            tracing::warn!(event = "lease_unread", error = "no answer from the API server");
        }
    }

    async fn step(&mut self) {
        let lease = match self.api.get_opt(NAME).await {
            Ok(lease) => lease,
            Err(error) => return tracing::warn!(event = "lease_unread", %error),
        };
        let value = lease.as_ref().and_then(|lease| serde_json::to_value(lease).ok());
        let Some(spec) = self.election.step(value.as_ref(), Instant::now(), &now()) else {
            return self.election.lost();
        };
        // The moment before the write: others count from when they see it.
        let asked = Instant::now();
        match self.write(lease, spec).await {
            Ok(()) => self.election.wrote(asked),
            Err(Error::Api(refusal)) if refusal.code == 409 => self.election.lost(),
            Err(error) => tracing::warn!(event = "lease_unwritten", %error),
        }
    }

    /// Writes over exactly the lease that was read.
    async fn write(&self, lease: Option<DynamicObject>, spec: Value) -> Result<(), Error> {
        let parameters = PostParams::default();
        match lease {
            Some(mut lease) => {
                lease.data = json!({ "spec": spec });
                self.own(&mut lease);
                self.api.replace(NAME, &parameters, &lease).await?;
            }
            None => {
                let kind = GroupVersionKind::gvk("coordination.k8s.io", "v1", "Lease");
                let mut lease = DynamicObject::new(NAME, &ApiResource::from_gvk(&kind)).data(json!({ "spec": spec }));
                self.own(&mut lease);
                self.api.create(&parameters, &lease).await?;
            }
        }
        Ok(())
    }

    fn own(&self, lease: &mut DynamicObject) {
        if lease.metadata.owner_references.as_ref().is_none_or(Vec::is_empty) {
            lease.metadata.owner_references = self.owner.clone().map(|owner| vec![owner]);
        }
    }
}

/// Now, with microseconds: the form of a Lease's times.
fn now() -> String {
    format!("{:.6}", Timestamp::now())
}
