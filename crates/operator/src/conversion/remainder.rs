//! Parts of a stored spec that an older version has no words for.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::api::spokes::Spoke;

/// The missing parts, and the annotation that was in its place.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Remainder {
    /// Values with their places in the spec.
    fields: Vec<(Vec<Step>, Value)>,
    /// An annotation of the same name that the stored object has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) annotation: Option<String>,
}

/// One step on the way to a place.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
enum Step {
    Field(String),
    /// The entry of a list with this name; of several, the one after so many others.
    Named {
        name: String,
        #[serde(default, skip_serializing_if = "is_first")]
        after: usize,
    },
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_first(after: &usize) -> bool {
    *after == 0
}

impl Remainder {
    /// Reads an annotation, if this wrote it.
    pub(super) fn read(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// The parts of `whole` that `part` has not.
    pub(super) fn between(part: &Value, whole: &Value, annotation: Option<String>) -> Self {
        let mut fields = Vec::new();
        difference(part, whole, &mut Vec::new(), &mut fields);
        Self { fields, annotation }
    }

    /// True if the older version has to be told: without missing fields, an annotation that reads as none of these stays as it is.
    pub(super) fn is_needed(&self) -> bool {
        !self.fields.is_empty() || self.annotation.as_deref().is_some_and(|text| Self::read(text).is_some())
    }

    pub(super) fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Puts the values where nothing is. An object on the way is made only where the older version has no field for it: else it
    /// was removed by somebody, and its parts go with it.
    pub(super) fn fill(&self, spec: &mut Value, spoke: &Spoke, place: &[&str]) {
        for (path, value) in &self.fields {
            let Some((Step::Field(last), way)) = path.split_last() else { continue };
            let mut at = Some(&mut *spec);
            for (count, step) in way.iter().enumerate() {
                let is_unsayable = || {
                    let names = way[..=count].iter().map(|step| match step {
                        Step::Field(name) => name.as_str(),
                        Step::Named { .. } => "[]",
                    });
                    let names: Vec<&str> = names.collect();
                    names.strip_prefix(place).is_some_and(|path| spoke.absent.contains(&path.join(".").as_str()))
                };
                at = at.and_then(|at| match (step, at) {
                    (Step::Field(name), Value::Object(fields)) => {
                        if !fields.contains_key(name) && is_unsayable() {
                            fields.insert(name.clone(), Value::Object(Map::new()));
                        }
                        fields.get_mut(name)
                    }
                    (Step::Named { name, after }, Value::Array(items)) => {
                        items.iter_mut().filter(|item| item["name"].as_str() == Some(name.as_str())).nth(*after)
                    }
                    _ => None,
                });
            }
            if let Some(Value::Object(fields)) = at {
                fields.entry(last.clone()).or_insert_with(|| value.clone());
            }
        }
    }
}

fn difference(part: &Value, whole: &Value, path: &mut Vec<Step>, found: &mut Vec<(Vec<Step>, Value)>) {
    match (part, whole) {
        (Value::Object(part), Value::Object(whole)) => {
            for (name, whole) in whole {
                path.push(Step::Field(name.clone()));
                match part.get(name) {
                    Some(part) => difference(part, whole, path, found),
                    None => found.push((path.clone(), whole.clone())),
                }
                path.pop();
            }
        }
        (Value::Array(part), Value::Array(whole)) => {
            for (at, (part, item)) in part.iter().zip(whole).enumerate().filter(|(_, (part, item))| part != item) {
                let Some(name) = item["name"].as_str() else { continue };
                let after = whole[..at].iter().filter(|other| other["name"].as_str() == Some(name)).count();
                path.push(Step::Named { name: name.to_owned(), after });
                difference(part, item, path, found);
                path.pop();
            }
        }
        _ => {}
    }
}
