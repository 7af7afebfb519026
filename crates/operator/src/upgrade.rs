//! Newer rules for objects whose spec does not change: what would become of each, field by field, and who asked for it.
//!
//! Somebody asks by the annotation [`ADOPT`] of a `ModelDeployment`. It holds the record to render by, with the generation of the
//! spec, so that it says nothing about a later spec.

use kube::ResourceExt;
use serde::Serialize;
use serde_json::Value;

use crate::{
    api::ModelDeployment,
    render::{self, DIGEST, Installation, RECORD, Record, Rules, TEMPLATE},
};

/// Annotation of a `ModelDeployment`: the record that its objects are to be rendered by.
pub const ADOPT: &str = "berth.dev/adopt";

/// The record that somebody asked for, if it is about the spec as it is.
#[must_use]
pub fn asked(model: &ModelDeployment) -> Option<Record> {
    let record: Record = serde_json::from_str(model.annotations().get(ADOPT)?).ok()?;
    (Some(record.generation) == model.metadata.generation).then_some(record)
}

/// The consequences of newer rules, for all models.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// Models that would change, those without a restart first.
    pub changes: Vec<Change>,
    /// Models that are rendered by these rules.
    pub unchanged: usize,
    /// Models that cannot be compared, and why.
    pub unknown: Vec<Unknown>,
}

/// A model that would change.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Change {
    /// The namespace of the `ModelDeployment`.
    pub namespace: String,
    /// The name of the `ModelDeployment`.
    pub name: String,
    /// The rules that it is rendered by.
    pub from: Record,
    /// The newest rules.
    pub to: Record,
    /// True if a pod template changes.
    pub restarts_pods: bool,
    /// True if all its pods are ready.
    pub ready: bool,
    /// The objects that change.
    pub objects: Vec<ObjectChange>,
}

/// An object that would change.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectChange {
    /// `kind` of a rendered object: `Deployment`.
    pub kind: String,
    /// Name of the object, in the namespace of the model.
    pub name: String,
    /// The fields that change, sorted.
    pub fields: Vec<FieldChange>,
}

/// A field that would change.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FieldChange {
    /// The place: `spec.template.spec.initContainers[fetch-weights].image`.
    pub path: String,
    /// The value by the old rules; left out where there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<Value>,
    /// The value by the new rules; left out where there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<Value>,
}

/// A model that cannot be compared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Unknown {
    /// The namespace of the `ModelDeployment`.
    pub namespace: String,
    /// The name of the `ModelDeployment`.
    pub name: String,
    /// The reason, and what helps.
    pub reason: String,
}

/// The consequences of rendering these models by the newest rules, with these images.
#[must_use]
pub fn plan<'a>(
    models: impl IntoIterator<Item = &'a ModelDeployment>,
    rules: Rules,
    installation: &Installation,
) -> Plan {
    let mut plan = Plan::default();
    for model in models.into_iter().filter(|model| model.spec.fleet.is_none()) {
        match change(model, rules, installation) {
            Ok(Some(change)) => plan.changes.push(change),
            Ok(None) => plan.unchanged += 1,
            Err(reason) => plan.unknown.push(Unknown {
                namespace: model.namespace().unwrap_or_default(),
                name: model.name_any(),
                reason,
            }),
        }
    }
    plan.changes.sort_by_cached_key(|one| (one.restarts_pods, one.namespace.clone(), one.name.clone()));
    plan
}

fn change(model: &ModelDeployment, rules: Rules, installation: &Installation) -> Result<Option<Change>, String> {
    let generation = model.metadata.generation.unwrap_or_default();
    let status = model.status.as_ref();
    let from = status.and_then(|status| status.render.clone()).filter(|record| record.generation == generation);
    let Some(from) = from else {
        return Err("no operator has rendered its spec yet: it will be rendered by the newest rules".to_owned());
    };
    let to = rules.record(installation, generation);
    if from == to {
        return Ok(None);
    }
    let rendered = |record: &Record| -> Result<Vec<Value>, String> {
        let failed = |error: render::Error| error.to_string();
        let mut objects = rules.render(model, record).map_err(failed)?;
        objects.extend(render::endpoint_picker(model, record, "").map_err(failed)?);
        Ok(objects)
    };
    let objects = differing(&rendered(&from)?, &rendered(&to)?);
    Ok(Some(Change {
        namespace: model.namespace().unwrap_or_default(),
        name: model.name_any(),
        from,
        to,
        restarts_pods: objects.iter().any(|object| object.restarts_pods_of(model)),
        ready: status.and_then(|status| status.condition("Ready")).is_some_and(|ready| ready.status == "True"),
        objects,
    }))
}

impl ObjectChange {
    /// Those of the picker are none of the model.
    fn restarts_pods_of(&self, model: &ModelDeployment) -> bool {
        self.kind == "Deployment"
            && self.name == model.name_any()
            && self.fields.iter().any(|field| field.path.starts_with("spec.template"))
    }
}

fn differing(before: &[Value], after: &[Value]) -> Vec<ObjectChange> {
    let identity = |object: &Value| {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        (text(&object["kind"]), text(&object["metadata"]["name"]))
    };
    let mut names: Vec<_> = before.iter().chain(after).map(identity).collect();
    names.sort();
    names.dedup();
    let objects = names.into_iter().map(|name| {
        let find = |objects: &[Value]| objects.iter().find(|object| identity(object) == name).cloned();
        let mut fields = Vec::new();
        differences("", find(before), find(after), &mut fields);
        // They say by which rules an object was rendered, and what differs anyway.
        let told = [RECORD, DIGEST, TEMPLATE].map(|annotation| format!("metadata.annotations[{annotation}]"));
        fields.retain(|field| !told.contains(&field.path));
        ObjectChange { kind: name.0, name: name.1, fields }
    });
    objects.filter(|object| !object.fields.is_empty()).collect()
}

/// Puts the places that differ into `found`.
fn differences(path: &str, before: Option<Value>, after: Option<Value>, found: &mut Vec<FieldChange>) {
    match (before, after) {
        (before, after) if before == after => {}
        (Some(Value::Object(mut before)), Some(Value::Object(mut after))) => {
            let mut names: Vec<String> = before.keys().chain(after.keys()).cloned().collect();
            names.sort();
            names.dedup();
            for name in names {
                differences(&below(path, &name), before.remove(&name), after.remove(&name), found);
            }
        }
        (Some(Value::Array(before)), Some(Value::Array(after))) => {
            let keys = if named(&before) && named(&after) { name } else { place };
            let mut old: Vec<_> = before.into_iter().enumerate().map(|(at, item)| (keys(at, &item), item)).collect();
            let new = after.into_iter().enumerate().map(|(at, item)| (keys(at, &item), item));
            for (key, item) in new {
                let known = old.iter().position(|(one, _)| *one == key).map(|at| old.remove(at).1);
                differences(&format!("{path}[{key}]"), known, Some(item), found);
            }
            for (key, item) in old {
                differences(&format!("{path}[{key}]"), Some(item), None, found);
            }
        }
        (before, after) => found.push(FieldChange { path: path.to_owned(), before, after }),
    }
}

fn below(path: &str, name: &str) -> String {
    match name.contains(['.', '/']) {
        true => format!("{path}[{name}]"),
        false if path.is_empty() => name.to_owned(),
        false => format!("{path}.{name}"),
    }
}

/// True if each item has a name of its own.
fn named(items: &[Value]) -> bool {
    let mut seen = std::collections::BTreeSet::new();
    items.iter().all(|item| item["name"].as_str().is_some_and(|name| seen.insert(name)))
}

fn name(_: usize, item: &Value) -> String {
    item["name"].as_str().unwrap_or_default().to_owned()
}

fn place(at: usize, _: &Value) -> String {
    at.to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn differences_name_their_places() {
        let cases = [
            (json!({"a": 1}), json!({"a": 1}), vec![]),
            (json!({"a": {"b": 1}}), json!({"a": {"b": 2}}), vec!["a.b 1 2"]),
            (json!({"a": 1}), json!({}), vec!["a 1 -"]),
            (json!({"m": {"x.y/z": 1}}), json!({"m": {"x.y/z": 2, "w": 3}}), vec!["m.w - 3", "m[x.y/z] 1 2"]),
            (json!({"l": [1, 2]}), json!({"l": [1, 3, 4]}), vec!["l[1] 2 3", "l[2] - 4"]),
            (
                json!({"l": [{"name": "a", "v": 1}, {"name": "b"}]}),
                json!({"l": [{"name": "c"}, {"name": "a", "v": 2}]}),
                vec![r#"l[c] - {"name":"c"}"#, "l[a].v 1 2", r#"l[b] {"name":"b"} -"#],
            ),
        ];
        for (before, after, expected) in cases {
            let mut found = Vec::new();
            differences("", Some(before), Some(after), &mut found);
            let text = |value: &Option<Value>| value.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string);
            let found: Vec<String> =
                found.iter().map(|one| format!("{} {} {}", one.path, text(&one.before), text(&one.after))).collect();
            assert_eq!(found, expected);
        }
    }
}
