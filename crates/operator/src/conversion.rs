//! Conversion of objects between the served versions of the API. No I/O.
//!
//! ```text
//! v1alpha1 ─┐
//!           ├─▶ v1, stored ─┬▶ v1alpha1      a spoke is converted by way of the stored version
//! v1beta1 ──┘               └▶ v1beta1
//! ```
//! Nothing is lost: fields that an older version has not ride in its annotation [`REMAINDER`], and come back from there. Where both say
//! something, the fields count: the annotation only fills in. Entries of a list are found again by their `name`; those of an entry that was
//! removed are dropped with it.

mod remainder;
mod review;

use serde_json::{Map, Value};

use self::remainder::Remainder;
pub use self::review::{Malformed, Review};
use crate::api::{
    GROUP, VERSION,
    spokes::{self, Spoke},
};

/// Annotation of an object in an older version: fields that this version has not.
pub const REMAINDER: &str = "berth.dev/newer-fields";

/// Reason why an object cannot be converted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A version or a kind that is not served.
    #[error("there is no {kind} of {version}: versions are {}", spokes::versions().join(", "))]
    Unknown {
        /// The kind as the object names it.
        kind: String,
        /// The API version, with its group.
        version: String,
    },
    /// A field of another version.
    #[error("spec.{0}: this field is not of the object's version")]
    Foreign(String),
    /// An object that no schema allows.
    #[error("its form is not that of any version, and {0} could not say all of it")]
    Inexpressible(String),
}

/// The object in the stored version.
///
/// # Errors
/// It is of no served version, or has a field of another one.
pub fn to_stored(object: Value) -> Result<Value, Error> {
    convert(object, &format!("{GROUP}/{VERSION}"))
}

/// The object in another version of its group.
///
/// # Errors
/// It is of no served version, or not of a form that its version allows.
pub fn convert(mut object: Value, wanted: &str) -> Result<Value, Error> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (present, kind) = (text(&object["apiVersion"]), text(&object["kind"]));
    let unknown = |version: &str| Error::Unknown { kind: kind.clone(), version: version.to_owned() };
    let place = spokes::model_place(&kind).ok_or_else(|| unknown(&present))?;
    let spoke = |version: &str| match version.strip_prefix(GROUP).and_then(|rest| rest.strip_prefix('/')) {
        Some(VERSION) => Ok(None),
        Some(name) => Spoke::of(name).map(Some).ok_or_else(|| unknown(version)),
        None => Err(unknown(version)),
    };
    let (from, to) = (spoke(&present)?, spoke(wanted)?);
    if present == wanted {
        return Ok(object);
    }
    if let Some(from) = from {
        rise(&mut object, from, place)?;
    }
    if let Some(to) = to {
        descend(&mut object, to, place)?;
    }
    object["apiVersion"] = Value::from(wanted);
    Ok(object)
}

/// From an older version to the stored one.
fn rise(object: &mut Value, from: &Spoke, place: &[&str]) -> Result<(), Error> {
    if let Some(model) = model_of(object, place) {
        fields_up(model, from)?;
    }
    if let Some(remainder) = annotation(object).and_then(|text| Remainder::read(&text)) {
        if let Some(spec) = object.get_mut("spec") {
            remainder.fill(spec, from, place);
        }
        set_annotation(object, remainder.annotation);
    }
    Ok(())
}

/// From the stored version to an older one.
fn descend(object: &mut Value, to: &Spoke, place: &[&str]) -> Result<(), Error> {
    let stored = object["spec"].clone();
    if let Some(model) = model_of(object, place) {
        fields_down(model, to)?;
    }
    let mut again = object.clone();
    if let Some(model) = model_of(&mut again, place) {
        fields_up(model, to)?;
    }
    let annotation = annotation(object);
    let remainder = Remainder::between(&again["spec"], &stored, annotation);
    remainder.fill(&mut again["spec"], to, place);
    let is_said = again["spec"] == stored && (!remainder.is_needed() || set_annotation(object, Some(remainder.text())));
    is_said.then_some(()).ok_or_else(|| Error::Inexpressible(to.version.to_owned()))
}

fn model_of<'a>(object: &'a mut Value, place: &[&str]) -> Option<&'a mut Map<String, Value>> {
    let spec = object.get_mut("spec")?;
    place.iter().try_fold(spec, |at, name| at.get_mut(name))?.as_object_mut()
}

fn fields_up(model: &mut Map<String, Value>, from: &Spoke) -> Result<(), Error> {
    for (stored, here) in from.moved {
        let Some(value) = model.remove(*here) else { continue };
        if !put(model, stored, value) {
            return Err(Error::Foreign((*stored).to_owned()));
        }
    }
    for path in from.names {
        if let Some(names) = find(model, path).and_then(Value::as_array_mut) {
            for name in names.iter_mut().filter(|name| name.is_string()) {
                *name = Value::Object(Map::from_iter([("name".to_owned(), name.take())]));
            }
        }
    }
    Ok(())
}

fn fields_down(model: &mut Map<String, Value>, to: &Spoke) -> Result<(), Error> {
    for path in to.names {
        if let Some(references) = find(model, path).and_then(Value::as_array_mut) {
            let is_plain =
                |item: &Value| item.as_object().is_some_and(|all| all.len() == 1 && item["name"].is_string());
            for reference in references.iter_mut().filter(|item| is_plain(item)) {
                *reference = reference["name"].take();
            }
        }
    }
    for (stored, here) in to.moved {
        let Some(value) = take(model, stored) else { continue };
        if model.insert((*here).to_owned(), value).is_some() {
            return Err(Error::Foreign((*here).to_owned()));
        }
    }
    for path in to.absent {
        remove(model, path);
    }
    Ok(())
}

fn find<'a>(model: &'a mut Map<String, Value>, path: &str) -> Option<&'a mut Value> {
    let mut steps = path.split('.');
    let first = model.get_mut(steps.next()?)?;
    steps.try_fold(first, |at, step| at.get_mut(step))
}

/// Takes a field out, and with its last field the object that held it.
fn take(model: &mut Map<String, Value>, path: &str) -> Option<Value> {
    let Some((parent, name)) = path.split_once('.') else { return model.remove(path) };
    let inner = model.get_mut(parent)?.as_object_mut()?;
    let value = take(inner, name)?;
    if inner.is_empty() {
        model.remove(parent);
    }
    Some(value)
}

/// Puts a field where none is. False if one is.
fn put(model: &mut Map<String, Value>, path: &str, value: Value) -> bool {
    match path.split_once('.') {
        None => model.insert(path.to_owned(), value).is_none(),
        Some((parent, name)) => {
            let inner = model.entry(parent).or_insert_with(|| Value::Object(Map::new()));
            inner.as_object_mut().is_some_and(|inner| put(inner, name, value))
        }
    }
}

/// Removes a field; `[]` after a name stands for each item of a list.
fn remove(model: &mut Map<String, Value>, path: &str) {
    let Some((step, rest)) = path.split_once('.') else {
        model.remove(path);
        return;
    };
    match step.strip_suffix("[]") {
        Some(list) => {
            let items = model.get_mut(list).and_then(Value::as_array_mut);
            items.into_iter().flatten().filter_map(Value::as_object_mut).for_each(|item| remove(item, rest));
        }
        None => {
            if let Some(inner) = model.get_mut(step).and_then(Value::as_object_mut) {
                remove(inner, rest);
            }
        }
    }
}

fn annotation(object: &Value) -> Option<String> {
    object["metadata"]["annotations"][REMAINDER].as_str().map(str::to_owned)
}

/// Sets the annotation, or removes it, and with it an empty list of annotations. False where nothing can have one.
fn set_annotation(object: &mut Value, text: Option<String>) -> bool {
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else { return false };
    let annotations = metadata.entry("annotations").or_insert_with(|| Value::Object(Map::new()));
    let Some(all) = annotations.as_object_mut() else { return false };
    match text {
        Some(text) => drop(all.insert(REMAINDER.to_owned(), Value::String(text))),
        None => drop(all.remove(REMAINDER)),
    }
    if all.is_empty() {
        metadata.remove("annotations");
    }
    true
}
