//! Fields of an object, read by path. Mistakes are collected, so that a person sees all of them at once.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

/// The most mistakes that are told: the first ones explain the rest.
const MAX_MISTAKES: usize = 8;

/// Mistakes and unknown fields of one object.
#[derive(Debug, Default)]
pub(super) struct Mistakes {
    wrong: Vec<String>,
    /// Mistakes that are not told.
    more: usize,
    unknown: Vec<String>,
    /// Unknown fields that are not told.
    more_unknown: usize,
}

impl Mistakes {
    pub(super) fn add(&mut self, message: impl Into<String>) {
        if self.wrong.len() < MAX_MISTAKES {
            self.wrong.push(message.into());
        } else {
            self.more += 1;
        }
    }

    /// Keeps what is right, and tells what is not.
    pub(super) fn check<T>(&mut self, result: Result<T, String>) -> Option<T> {
        result.map_err(|message| self.add(message)).ok()
    }

    /// Mistakes, then unknown fields; more than are told are counted.
    pub(super) fn done(self) -> (Vec<String>, Vec<String>) {
        (counted(self.wrong, self.more), counted(self.unknown, self.more_unknown))
    }
}

/// An object at a path.
#[derive(Clone, Copy)]
pub(super) struct Object<'a> {
    path: &'a str,
    fields: Option<&'a Map<String, Value>>,
}

impl<'a> Object<'a> {
    /// The object in `field` of `parent`; an absent one has no fields.
    pub(super) fn of(parent: &'a Map<String, Value>, field: &str, path: &'a str, mistakes: &mut Mistakes) -> Self {
        let fields = match parent.get(field) {
            None | Some(Value::Null) => None,
            Some(Value::Object(fields)) => Some(fields),
            Some(other) => {
                mistakes.add(format!("{path} must be an object, not {}", shown(other)));
                None
            }
        };
        Self { path, fields }
    }

    /// The object below a field.
    pub(super) fn below(&self, field: &str, path: &'a str, mistakes: &mut Mistakes) -> Self {
        match self.fields {
            Some(fields) => Self::of(fields, field, path, mistakes),
            None => Self { path, fields: None },
        }
    }

    pub(super) fn is_there(&self) -> bool {
        self.fields.is_some()
    }

    pub(super) fn text(&self, field: &str, mistakes: &mut Mistakes) -> Option<&'a str> {
        match self.fields?.get(field)? {
            Value::Null => None,
            Value::String(text) if text.trim().is_empty() => {
                mistakes.add(format!("{}.{field} is empty", self.path));
                None
            }
            Value::String(text) => Some(text),
            other => {
                mistakes.add(format!("{}.{field} must be a string, not {}", self.path, shown(other)));
                None
            }
        }
    }

    /// A text that has to be there; `example` says what to write.
    pub(super) fn required(&self, field: &str, example: &str, mistakes: &mut Mistakes) -> Option<&'a str> {
        let absent = self.fields.and_then(|fields| fields.get(field)).is_none_or(Value::is_null);
        if absent {
            mistakes.add(format!("{}.{field} is missing: write e.g. {example}", self.path));
            return None;
        }
        self.text(field, mistakes)
    }

    pub(super) fn whole(&self, field: &str, within: RangeInclusive<u64>, mistakes: &mut Mistakes) -> Option<u64> {
        let value = self.fields?.get(field).filter(|value| !value.is_null())?;
        let number = value.as_u64().filter(|number| within.contains(number));
        if number.is_none() {
            mistakes.add(format!(
                "{}.{field} must be a whole number from {} to {}, not {}",
                self.path,
                within.start(),
                within.end(),
                shown(value)
            ));
        }
        number
    }

    pub(super) fn value(&self, field: &str) -> Option<&'a Value> {
        self.fields?.get(field).filter(|value| !value.is_null())
    }

    pub(super) fn fields(&self) -> impl Iterator<Item = (&'a String, &'a Value)> {
        self.fields.into_iter().flatten()
    }

    /// Notes fields that are not among `known`.
    pub(super) fn only(&self, known: &[&str], mistakes: &mut Mistakes) {
        for (field, _) in self.fields().filter(|(field, _)| !known.contains(&field.as_str())) {
            if mistakes.unknown.len() < MAX_MISTAKES {
                mistakes.unknown.push(format!("{}.{field}", self.path));
            } else {
                mistakes.more_unknown += 1;
            }
        }
    }
}

fn counted(mut told: Vec<String>, more: usize) -> Vec<String> {
    if more > 0 {
        told.push(format!("and {more} more"));
    }
    told
}

/// A value in a message: short, and not a secret of an object.
fn shown(value: &Value) -> String {
    match value {
        Value::Object(_) => "an object".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        other => other.to_string().chars().take(60).collect(),
    }
}
