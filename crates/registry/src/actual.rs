//! `transactions/actual-state.yaml`: what the workers hold, as the controller writes it back.
//!
//! Two states *mean* the same when a person would act the same on them. What changes all the time (the last word of a
//! worker, what it uses, how far a load is, how many requests came) is written along, and is never the reason to write.

use berth_spec::Time;
use serde::{Deserialize, Serialize};

/// Path of the actual state on its branch.
pub const ACTUAL_STATE: &str = "transactions/actual-state.yaml";

/// Folder of earlier states: `transactions/history/2025-10-28T10-45-00-state.yaml`.
pub const HISTORY: &str = "transactions/history/";

/// Actual state of the fleet: the models that each worker holds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ActualState {
    /// Workers in the order of their names.
    #[serde(default)]
    pub workers: Vec<WorkerEntry>,
}

/// State of one worker: health, capacity in use, models.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkerEntry {
    /// Worker's name.
    pub worker_id: String,
    /// Health of the worker, as the controller judges it.
    pub status: WorkerHealth,
    /// Time of the last sign of life.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_heartbeat: Option<String>,
    /// Memory, cores and models in use.
    #[serde(default)]
    pub capacity: CapacityUsed,
    /// By deployment and version.
    #[serde(default)]
    pub models: Vec<ModelEntry>,
}

/// Health of a worker in the actual state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WorkerHealth {
    /// Reachable and working.
    Healthy,
    /// Reachable, but something on it has failed or memory is short.
    Degraded,
    /// Its line is gone; others still see it.
    Suspect,
    /// Back, and has not reported its models yet.
    Recovering,
    /// Lost: neither the controller nor the other nodes reach it.
    Failed,
}

impl WorkerHealth {
    /// The word in the file, lower case.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Degraded => "degraded",
            Self::Suspect => "suspect",
            Self::Recovering => "recovering",
            Self::Failed => "failed",
        }
    }
}

/// Memory, cores and models in use on a worker.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CapacityUsed {
    /// Memory as a quantity, for example `8Gi`.
    pub used_memory: String,
    /// CPU cores in use over the last minute, to a tenth.
    pub used_cpu: f32,
    /// Number of ready models.
    pub loaded_models: u32,
}

/// One model on one worker: an entry for each deployment and version.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelEntry {
    /// The `id` of the manifest.
    pub deployment_id: String,
    /// State of the model there, in one of four words.
    pub status: ModelState,
    /// The `version` in the card's metadata.
    pub model_version: String,
    /// Time at which it became ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loaded_at: Option<String>,
    /// Time of the last request to this replica.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_inference: Option<String>,
    /// Requests that it was given since it was loaded, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_count: Option<u64>,
    /// Time at which loading was first seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loading_started: Option<String>,
    /// 0 to 1, while its artifact is fetched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<f32>,
    /// Cause of the failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Time of the failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_at: Option<String>,
    /// Attempts after the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_count: Option<u32>,
}

impl ModelEntry {
    /// Entry with the fields that every state has.
    #[must_use]
    pub const fn new(deployment_id: String, model_version: String, status: ModelState) -> Self {
        Self {
            deployment_id,
            status,
            model_version,
            loaded_at: None,
            last_inference: None,
            request_count: None,
            loading_started: None,
            progress: None,
            error: None,
            failed_at: None,
            retry_count: None,
        }
    }

    /// Returns true if it means the same as another entry of the same model.
    fn is_as(&self, other: &Self) -> bool {
        let meaning = |entry: &Self| entry.clone().without_changes();
        meaning(self) == meaning(other)
    }

    /// Without what changes all the time.
    fn without_changes(self) -> Self {
        // Each controller sees the beginning of a load, and a repeated attempt, for itself.
        Self {
            last_inference: None,
            request_count: None,
            progress: None,
            loading_started: None,
            failed_at: None,
            ..self
        }
    }
}

/// State of a model on a worker, coarser than its residency: four words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ModelState {
    /// Accepted, fetched, prepared or loaded: not ready yet.
    Loading,
    /// Ready to answer requests.
    Ready,
    /// Draining: finishes its requests, then goes.
    Unloading,
    /// Could not be loaded; `error` says why.
    Failed,
}

impl ActualState {
    /// The file. Equal states make equal files, but for the time in the second line.
    #[must_use]
    pub fn to_yaml(&self, now: Time) -> String {
        let body = serde_saphyr::to_string(&self.sorted()).expect("texts and finite numbers can be written");
        format!("# This file is managed by the broker - DO NOT EDIT MANUALLY\n# Last updated: {}\n{body}", stamp(now))
    }

    /// Reads a file; `None` for what no controller has written.
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        serde_saphyr::from_str(text).ok()
    }

    /// Without what changes all the time: two states that mean the same are equal.
    #[must_use]
    pub fn meaning(&self) -> Self {
        let mut state = self.sorted();
        for worker in &mut state.workers {
            worker.last_heartbeat = None;
            worker.capacity = CapacityUsed { loaded_models: worker.capacity.loaded_models, ..CapacityUsed::default() };
            worker.models = std::mem::take(&mut worker.models).into_iter().map(ModelEntry::without_changes).collect();
        }
        state
    }

    fn sorted(&self) -> Self {
        let mut state = self.clone();
        state.workers.sort_by(|one, other| one.worker_id.cmp(&other.worker_id));
        for worker in &mut state.workers {
            worker.models.sort_by(|one, other| {
                (&one.deployment_id, &one.model_version, one.status).cmp(&(
                    &other.deployment_id,
                    &other.model_version,
                    other.status,
                ))
            });
        }
        state
    }

    /// Summary of the differences in meaning, short enough for the first line of a commit.
    #[must_use]
    pub fn changes_since(&self, before: &Self) -> String {
        /// Changes named in a summary. Four fit on one line and cover a rollout over four workers.
        const MAX_NAMED_CHANGES: usize = 4;
        let mut told = Vec::new();
        for worker in &self.workers {
            let old = before.workers.iter().find(|old| old.worker_id == worker.worker_id);
            let so_far = told.len();
            if old.is_none_or(|old| old.status != worker.status) {
                told.push(format!("{} is {}", worker.worker_id, worker.status.as_str()));
            }
            let known = old.map(|old| old.models.as_slice()).unwrap_or_default();
            for model in &worker.models {
                let same = |old: &ModelEntry| {
                    old.deployment_id == model.deployment_id && old.model_version == model.model_version
                };
                if known.iter().any(|old| old.is_as(model)) {
                    continue;
                }
                // One that drains may be there beside the one that was loaded again.
                let repeated = known.iter().any(|old| same(old) && old.status == model.status);
                let (state, again) = (model.status.as_str(), if repeated { " again" } else { "" });
                told.push(format!(
                    "{} {} is {state} on {}{again}",
                    model.deployment_id, model.model_version, worker.worker_id
                ));
            }
            for old in known {
                let same = |model: &ModelEntry| {
                    old.deployment_id == model.deployment_id && old.model_version == model.model_version
                };
                if !worker.models.iter().any(same) {
                    told.push(format!("{} {} left {}", old.deployment_id, old.model_version, worker.worker_id));
                }
            }
            // Models that are not in the registry count, too, and have no entry.
            let loaded = worker.capacity.loaded_models;
            if told.len() == so_far && old.is_some_and(|old| old.capacity.loaded_models != loaded) {
                told.push(format!("{} has {loaded} models loaded", worker.worker_id));
            }
        }
        let gone =
            before.workers.iter().filter(|old| !self.workers.iter().any(|worker| worker.worker_id == old.worker_id));
        told.extend(gone.map(|old| format!("{} is forgotten", old.worker_id)));
        match told.len() {
            0 => "the same as before".to_owned(),
            n if n <= MAX_NAMED_CHANGES => told.join(", "),
            n => format!("{}, and {} more changes", told[..MAX_NAMED_CHANGES].join(", "), n - MAX_NAMED_CHANGES),
        }
    }
}

impl ModelState {
    /// The word in the file, lower case.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Loading => "loading",
            Self::Ready => "ready",
            Self::Unloading => "unloading",
            Self::Failed => "failed",
        }
    }
}

/// A point in time as these files have it: RFC 3339 to the second.
#[must_use]
pub fn stamp(at: Time) -> String {
    let text = at.to_string();
    match text.split_once('.') {
        Some((seconds, _)) => format!("{seconds}Z"),
        None => text,
    }
}

/// The same for the name of a file: `2025-10-28T10-45-00`.
#[must_use]
pub fn file_stamp(at: Time) -> String {
    stamp(at).trim_end_matches('Z').replace(':', "-")
}

/// Memory as people write it here: whole `Gi` where it is, else `Mi`.
#[must_use]
pub fn memory(bytes: u64) -> String {
    const MI: u64 = 1 << 20;
    let mebibytes = bytes.div_ceil(MI);
    if mebibytes > 0 && mebibytes.is_multiple_of(1024) {
        format!("{}Gi", mebibytes / 1024)
    } else {
        format!("{mebibytes}Mi")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn model(id: &str, status: ModelState) -> ModelEntry {
        ModelEntry::new(id.to_owned(), "1.2.3".to_owned(), status)
    }

    fn state() -> ActualState {
        let ready = ModelEntry {
            loaded_at: Some("2025-10-28T10:35:00Z".to_owned()),
            last_inference: Some("2025-10-28T10:44:50Z".to_owned()),
            request_count: Some(15_234),
            ..model("sentiment-prod-useast", ModelState::Ready)
        };
        let loading = ModelEntry { progress: Some(0.65), ..model("fraud", ModelState::Loading) };
        let worker = |id: &str, models: Vec<ModelEntry>| WorkerEntry {
            worker_id: id.to_owned(),
            status: WorkerHealth::Healthy,
            last_heartbeat: Some("2025-10-28T10:44:55Z".to_owned()),
            capacity: CapacityUsed { used_memory: memory(8 << 30), used_cpu: 4.0, loaded_models: 1 },
            models,
        };
        ActualState { workers: vec![worker("b", vec![]), worker("a", vec![ready, loading])] }
    }

    #[test]
    fn the_file_is_the_one_of_the_specification_and_comes_back() {
        let text = state().to_yaml(Time(1_761_648_300_000_000_000));
        for line in [
            "# This file is managed by the broker - DO NOT EDIT MANUALLY",
            "# Last updated: 2025-10-28T10:45:00Z",
            "worker_id: a",
            "used_memory: 8Gi",
            "loaded_models: 1",
            "deployment_id: sentiment-prod-useast",
            "status: ready",
            "request_count: 15234",
            "progress: 0.65",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
        assert_eq!(ActualState::read(&text), Some(state().sorted()));
        assert!(text.find("worker_id: a") < text.find("worker_id: b"), "always in the same order");
    }

    #[test]
    fn what_changes_all_the_time_means_nothing() {
        let (before, mut after) = (state(), state());
        after.workers.reverse();
        let worker = &mut after.workers[0];
        worker.last_heartbeat = Some("2025-10-28T11:00:00Z".to_owned());
        worker.capacity.used_cpu = 7.5;
        worker.models[0].request_count = Some(99_999);
        worker.models[1].progress = Some(0.9);
        assert_eq!(before.meaning(), after.meaning());
        assert_eq!(after.changes_since(&before), "the same as before");
        after.workers[0].models[1].status = ModelState::Failed;
        assert_ne!(before.meaning(), after.meaning());
        assert_eq!(after.changes_since(&before), "fraud 1.2.3 is failed on a");
    }

    #[test]
    fn a_change_without_a_new_state_of_a_model_has_words() {
        type Change = fn(&mut WorkerEntry);
        let changes: [(Change, &str); 4] = [
            (|worker| worker.status = WorkerHealth::Failed, "a is failed"),
            (
                |worker| worker.models[0].loaded_at = Some("2025-10-28T11:00:00Z".to_owned()),
                "sentiment-prod-useast 1.2.3 is ready on a again",
            ),
            (|worker| worker.models[1].retry_count = Some(1), "fraud 1.2.3 is loading on a again"),
            (|worker| worker.capacity.loaded_models = 2, "a has 2 models loaded"),
        ];
        for (change, words) in changes {
            let (before, mut after) = (state(), state());
            change(&mut after.workers[1]);
            assert_ne!(before.meaning(), after.meaning(), "{words}");
            assert_eq!(after.changes_since(&before), words);
        }
    }

    #[test]
    fn a_repeated_load_is_told_as_such_beside_one_that_drains() {
        let mut before = state();
        before.workers[1].models.insert(0, model("fraud", ModelState::Unloading));
        let mut after = before.clone();
        after.workers[1].models[2].retry_count = Some(1);
        assert_eq!(after.changes_since(&before), "fraud 1.2.3 is loading on a again");
    }

    #[test]
    fn sizes_and_times() {
        assert_eq!(
            (memory(0), memory(1), memory(1 << 30), memory(1536 << 20)),
            ("0Mi".into(), "1Mi".into(), "1Gi".into(), "1536Mi".into())
        );
        assert_eq!(file_stamp(Time(1_761_648_300_123_000_000)), "2025-10-28T10-45-00");
    }
}
