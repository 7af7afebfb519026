//! Older versions of the custom resources, each by its differences to [`VERSION`], which is stored. Their schemas and
//! [`crate::conversion`] follow from the same lines, so that they cannot disagree.
//!
//! A field that is added to the stored version is named in [`Spoke::absent`]: older versions take no new fields.

use serde_json::{Value, json};

use super::VERSION;

/// A version that is served beside the stored one. Paths are those of a `ModelDeployment`'s spec.
#[derive(Debug)]
pub struct Spoke {
    /// The name of the version: `v1alpha1`.
    pub version: &'static str,
    /// The warning that API servers give to whoever uses it, if it is to go.
    pub deprecation: Option<&'static str>,
    /// Lists of `{ name: … }`, by their stored place, that are lists of names here.
    pub(crate) names: &'static [&'static str],
    /// Fields in other places: the stored one, and that of this version.
    pub(crate) moved: &'static [(&'static str, &'static str)],
    /// Stored fields that this version has not.
    pub(crate) absent: &'static [&'static str],
}

/// The older versions, newest first.
pub static SPOKES: [Spoke; 2] = [
    Spoke {
        version: "v1beta1",
        deprecation: None,
        names: &["pod.imagePullSecrets"],
        moved: &[],
        absent: &[
            "autoscaling",
            "executor.access",
            "fleet",
            "inferencePool",
            "parameters[].resources",
            "pod.affinity",
            "pod.priorityClassName",
            "pod.securityContext",
            "pod.topologySpreadConstraints",
        ],
    },
    Spoke {
        version: "v1alpha1",
        deprecation: Some("berth.dev/v1alpha1 is deprecated: write berth.dev/v1, which groups the settings of pods"),
        names: &["pod.imagePullSecrets"],
        moved: &[
            ("pod.labels", "podLabels"),
            ("pod.annotations", "podAnnotations"),
            ("pod.serviceAccountName", "serviceAccountName"),
            ("pod.imagePullSecrets", "imagePullSecrets"),
            ("pod.nodeSelector", "nodeSelector"),
            ("pod.tolerations", "tolerations"),
            ("pod.terminationGracePeriodSeconds", "terminationGracePeriodSeconds"),
        ],
        absent: &["autoscaling", "executor.access", "fleet", "inferencePool", "parameters[].resources", "pod"],
    },
];

/// The definitions whose objects are converted.
pub const CONVERTED: [&str; 2] = ["clopsdeployments.berth.dev", "modeldeployments.berth.dev"];

/// The place of a model's fields in the spec of a kind; `None` for kinds without older versions.
#[must_use]
pub fn model_place(kind: &str) -> Option<&'static [&'static str]> {
    match kind {
        "CLOpsDeployment" => Some(&["model"]),
        "ModelDeployment" => Some(&[]),
        _ => None,
    }
}

impl Spoke {
    /// The older version of this name.
    #[must_use]
    pub fn of(version: &str) -> Option<&'static Self> {
        SPOKES.iter().find(|spoke| spoke.version == version)
    }

    /// Fields that differ: the place in the stored version, and that in this one with its form, or nothing.
    #[must_use]
    pub fn differences(&self) -> Vec<(&'static str, Option<(&'static str, &'static str)>)> {
        let place = |stored| self.moved.iter().find(|(from, _)| *from == stored).map_or(stored, |(_, to)| *to);
        let form = |stored| if self.names.contains(&stored) { "names alone" } else { "" };
        let mut places: Vec<&str> =
            self.moved.iter().map(|(from, _)| *from).chain(self.names.iter().copied()).collect();
        places.sort_unstable();
        places.dedup();
        let said = places.into_iter().map(|stored| (stored, Some((place(stored), form(stored)))));
        said.chain(self.absent.iter().map(|stored| (*stored, None))).collect()
    }

    /// The schema of this version, from the stored one, for a kind whose model is at `place`.
    pub(super) fn schema(&self, stored: &Value, place: &[&str]) -> Value {
        let mut schema = stored.clone();
        let fields = ["spec"].iter().chain(place).try_fold(&mut schema, |at, name| at["properties"].get_mut(name));
        let Some(model) = fields else { return schema };
        for path in self.names {
            if let Some(list) = below(model, path) {
                list["items"] = json!({ "type": "string" });
            }
        }
        for (from, to) in self.moved {
            if let (Some(field), Some(fields)) = (take(model, from), model["properties"].as_object_mut()) {
                fields.insert((*to).to_owned(), field);
            }
        }
        for path in self.absent {
            take(model, path);
        }
        schema
    }
}

/// The schema of a field; `[]` after a name stands for the items of a list.
fn below<'a>(schema: &'a mut Value, path: &str) -> Option<&'a mut Value> {
    path.split('.').try_fold(schema, |at, step| match step.strip_suffix("[]") {
        Some(list) => at["properties"].get_mut(list)?.get_mut("items"),
        None => at["properties"].get_mut(step),
    })
}

fn take(schema: &mut Value, path: &str) -> Option<Value> {
    let (parent, name) = match path.rsplit_once('.') {
        Some((parent, name)) => (below(schema, parent)?, name),
        None => (schema, path),
    };
    parent["properties"].as_object_mut()?.remove(name)
}

/// All served versions, the stored one first.
#[must_use]
pub fn versions() -> Vec<&'static str> {
    std::iter::once(VERSION).chain(SPOKES.iter().map(|spoke| spoke.version)).collect()
}
