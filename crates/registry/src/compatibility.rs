//! Step 5: whether some worker of each deployment can load its card; and, as warnings, whether it could hold it.

use std::collections::{BTreeMap, BTreeSet};

use berth_spec::{ModelCard, card::size};

use crate::{
    DeploymentManifest, WorkerConfig,
    matrix::Matrix,
    problem::{Problem, Step},
    settings::DeclaredWorkers,
};

/// Declared workers, and the matrix.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fleet<'a> {
    pub(crate) workers: &'a [&'a WorkerConfig],
    /// Some configuration could not be read: that a worker is missing may be its fault.
    pub(crate) is_partial: bool,
    pub(crate) declared: DeclaredWorkers,
    pub(crate) matrix: &'a Matrix,
}

impl Fleet<'_> {
    /// Checks a deployment against every declared worker. `at` locates a problem in the manifest.
    pub(crate) fn check(
        &self,
        manifest: &DeploymentManifest,
        card: &ModelCard,
        at: impl Fn(&str, &'static str, String) -> Problem,
    ) -> Vec<Problem> {
        let labels = manifest.required_labels();
        if let Some(problem) = self.empty_region(manifest, &labels, &at) {
            return vec![problem];
        }
        let matching: Vec<&WorkerConfig> =
            self.workers.iter().copied().filter(|worker| worker.matches(&labels)).collect();
        let wanted: Vec<String> = labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let wanted = wanted.join(", ");
        if matching.is_empty() {
            let message = format!("no worker in workers/ has {wanted}");
            let remedy = format!(
                "{}; where workers join without a file, set workers: elastic in registry.yaml",
                self.nearest(&labels)
            );
            let problem = at("/deployment_config/worker_selector", "no-worker", message).remedy(remedy);
            return vec![if self.may_come(manifest) { problem.warning() } else { problem }];
        }
        let version = card.schema_version.as_str();
        let able: Vec<&WorkerConfig> = matching
            .iter()
            .copied()
            .filter(|worker| self.matrix.supports(worker.supported_schema_versions.iter().map(String::as_str), version))
            .collect();
        if able.is_empty() {
            let supported: BTreeSet<String> = matching
                .iter()
                .map(|w| format!("{} reads {}", w.worker_id, w.supported_schema_versions.join(", ")))
                .collect();
            let supported: Vec<String> = supported.into_iter().take(MAX_NAMED_WORKERS).collect();
            let message = format!(
                "the card has schema version {version}, which none of the {} workers with {wanted} reads ({})",
                matching.len(),
                supported.join("; ")
            );
            let remedy = format!(
                "upgrade a worker, or move the card to a version that they read; the matrix: {}",
                self.matrix.lines().join("; ")
            );
            return vec![at("/model_card_ref/ref", "schema-version", message).remedy(remedy)];
        }
        self.room(manifest, card, &able, at)
    }

    /// Of several regions, the first without a worker.
    fn empty_region(
        &self,
        manifest: &DeploymentManifest,
        labels: &BTreeMap<String, String>,
        at: impl Fn(&str, &'static str, String) -> Problem,
    ) -> Option<Problem> {
        let is_in = |worker: &WorkerConfig, region: &str| worker.labels.get("region").is_some_and(|own| own == region);
        let mut regions = manifest.berth.regions.keys();
        let empty = regions
            .find(|region| !self.workers.iter().any(|worker| worker.matches(labels) && is_in(worker, region)))?;
        let message = format!("no worker in workers/ that the selector allows has region={empty}");
        let remedy = "remove the region, or add a worker there; where workers join without a file, set workers: elastic in \
                      registry.yaml";
        let problem = at("/berth/regions", "no-worker", message).remedy(remedy);
        Some(if self.may_come(manifest) { problem.warning() } else { problem })
    }

    /// Workers may join that `workers/` does not name, or does not name readably.
    fn may_come(&self, manifest: &DeploymentManifest) -> bool {
        self.declared == DeclaredWorkers::Elastic || manifest.wanted() == 0 || self.is_partial
    }

    /// Checks that the declared capacity suffices. Workers may have more than their files say, so the findings are
    /// warnings.
    fn room(
        &self,
        manifest: &DeploymentManifest,
        card: &ModelCard,
        able: &[&WorkerConfig],
        at: impl Fn(&str, &'static str, String) -> Problem,
    ) -> Vec<Problem> {
        let resources = card.resources.as_ref();
        let fits = |worker: &&&WorkerConfig| {
            resources.is_none_or(|needs| {
                let memory = needs.memory_bytes().zip(size(&worker.capacity.max_memory));
                memory.is_none_or(|(needed, there)| needed <= there)
                    && needs.cpu <= worker.capacity.max_cpu
                    && worker.capacity.max_gpu.is_none_or(|there| needs.gpu.unwrap_or(0) <= there)
            })
        };
        let fitting = able.iter().filter(fits).count();
        let mut found = Vec::new();
        if let (0, Some(needs)) = (fitting, resources) {
            let gpus = needs.gpu.filter(|gpus| *gpus > 0).map_or_else(String::new, |gpus| format!(", {gpus} GPUs"));
            let message = format!(
                "the model needs {} and {} cores{gpus}, which no worker that may hold it has by its file",
                needs.memory, needs.cpu
            );
            let remedy = "choose other workers, or enlarge one";
            found.push(at("/deployment_config/worker_selector", "too-small", message).remedy(remedy).warning());
        } else if manifest.wanted() as usize > fitting {
            let workers =
                if fitting == 1 { "1 worker of workers/".to_owned() } else { format!("{fitting} workers of workers/") };
            let message = format!("{} replicas are wanted, but only {workers} can hold one", manifest.wanted());
            found.push(
                at("/deployment_config/replicas", "too-few", message).remedy("add workers, or lower it").warning(),
            );
        }
        found
    }

    /// The worker that has most of the labels, and what it lacks.
    fn nearest(&self, labels: &BTreeMap<String, String>) -> String {
        let lacking = |worker: &WorkerConfig| labels.iter().filter(|(n, v)| worker.labels.get(*n) != Some(v)).count();
        match self.workers.iter().min_by_key(|worker| (lacking(worker), &worker.worker_id)) {
            None => "add the configuration of a worker to workers/".to_owned(),
            Some(worker) => {
                let mut differs = labels.iter().filter(|(name, value)| worker.labels.get(*name) != Some(value));
                let (name, value) = differs.next().map_or(("", ""), |(name, value)| (name.as_str(), value.as_str()));
                let own = worker.labels.get(name).map_or("none", String::as_str);
                format!("change the labels; the nearest is {}, whose {name} is {own}, not {value}", worker.worker_id)
            }
        }
    }
}

/// Workers that one message names.
const MAX_NAMED_WORKERS: usize = 5;

/// The step of these problems.
pub(crate) const STEP: Step = Step::Compatibility;
