//! Advice for incidents: one table by kind and category.

use berth_spec::residency::FailureCategory;

use super::{Incident, IncidentKind};

pub(super) fn recommended(incident: &Incident) -> Vec<String> {
    let deployment = incident.subject.deployment.as_deref().unwrap_or("the deployment");
    let worker = incident.subject.worker.as_deref().unwrap_or("the worker");
    let lines: &[&str] = match incident.subject.kind {
        IncidentKind::LoadFailure => by_category(incident.load_category()),
        IncidentKind::RuntimeFailure => &[
            "Look at the last words of the process, below and in `berth describe deployment {deployment}`",
            "Correct the model's code, or give it more memory in its card; release a new version",
            "Until then, go back to the last version that worked",
        ],
        IncidentKind::ValidationError => by_outcome(&incident.category),
        IncidentKind::WorkerFailure => &[
            "Look at the machine and the log of {worker}; start it again",
            "If it is gone for good, remove its file from workers/",
        ],
        IncidentKind::Capacity => &[
            "For an update: `berth.rollout.whenFull: recreate` in the manifest unloads the old version first",
            "Increase the capacity of workers that match {deployment}, or add one",
            "Lower the priority of other models, or raise that of {deployment}",
            "Reduce the replicas or the resources of {deployment}",
            "Ask `berth explain {deployment}` what each worker lacks",
        ],
        IncidentKind::Secret => &[
            "Check the file with `berth secrets check`, and that the controller's key is among its recipients",
            "Until then {worker} keeps the credentials that it has",
        ],
    };
    lines.iter().map(|line| line.replace("{deployment}", deployment).replace("{worker}", worker)).collect()
}

const fn by_category(category: Option<FailureCategory>) -> &'static [&'static str] {
    use FailureCategory as C;
    match category {
        Some(C::Network) => &[
            "Check that {worker} reaches the storage and the Git host of the model",
            "It is tried again by itself; push the ref once more after the last attempt",
        ],
        Some(C::Auth) => &["Check the credentials of {worker}: `berth get secrets`; rotate them in workers/secrets/"],
        Some(C::NotFound) => &["Upload the artifact, or correct artifacts.model_path or the refs in the model card"],
        Some(C::Checksum) => &["Upload the artifact again, or correct artifacts.checksum and release a new version"],
        Some(C::InvalidModel) => &["Check runtime.framework and the artifact; release a version that loads"],
        Some(C::Schema) => &["Upgrade {worker}, or write the card in a schema version that it supports"],
        Some(C::Dependencies) => {
            &["Correct runtime.dependencies and python_version in the model card; release a new version"]
        }
        Some(C::Code) => &[
            "Correct the model's code (see the stack trace); release a new version",
            "Until then, go back to the last version that worked",
        ],
        Some(C::Memory) => &[
            "Increase the memory of {worker}, or of another worker that matches",
            "Lower the priority of existing models",
            "Reduce the replicas of {deployment}, or correct resources.memory in its card",
        ],
        Some(C::Disk) => &["Make room on the disk of {worker}, or raise --cache"],
        Some(C::Validation) => &["Correct the model or the schemas of its interface; release a new version"],
        Some(C::Runtime) => &["Check the runtimes of {worker} (Python, ONNX Runtime) and its log"],
        Some(C::Timeout) => &["Check the size of the model and the load of {worker}; raise its startup timeout"],
        Some(C::Internal) | None => &["Read the log of {worker}; report it if it comes again"],
    }
}

fn by_outcome(outcome: &str) -> &'static [&'static str] {
    match outcome {
        "structure-violation" => &[
            "Restore the folders of the registry: `berth registry init` shows them",
            "Commit the correction; the last good commit stays in force until then",
        ],
        "unpinned-ref" => &[
            "Pin model_card_ref.ref to a tag like v1.2.3 or to a commit",
            "Commit the correction; the last good commit stays in force until then",
        ],
        "model-card-not-found" => &[
            "Push the tag, or correct repository, ref and path of model_card_ref",
            "If the repository is away or needs credentials, it is tried again by itself",
        ],
        "invalid-model-card" => &[
            "Ask the owner of the model for a corrected card: `berth card check` shows the errors",
            "Until then, reference the last version that was valid",
        ],
        "schema-incompatibility" => {
            &["Upgrade a worker that matches, or reference a card in a schema version that it supports"]
        }
        _ => &[
            "Correct what details say: `berth registry validate` says the same before the push",
            "The last good commit stays in force until then",
        ],
    }
}
