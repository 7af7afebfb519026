//! Secrets before they are encrypted, as people write them: the same YAML, with values in the clear.

use berth_spec::{
    Secret, WorkerId,
    credential::{FieldValue, Kind},
    manifest::node::{Node, Position, Value},
};

use crate::{
    document::{Document, is_name, unknown},
    envelope::Sealed,
    open::{Keyring, OpenError},
    problem::{Problem, Problems},
};

/// Secrets in the clear. Printing one prints no value.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plain {
    /// Worker, if the file names one.
    pub worker: Option<WorkerId>,
    /// Secrets in the order of the text.
    pub secrets: Vec<PlainEntry>,
}

/// One secret in the clear.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlainEntry {
    /// Name of the secret, unique in the text.
    pub name: String,
    /// Type of the secret.
    pub kind: Kind,
    /// Its fields, without `type`.
    pub fields: Vec<(String, FieldValue)>,
}

/// Reads secrets that a person wrote: `secrets: {NAME: {type: …, …}}`, or only what is below `secrets`.
///
/// # Errors
/// All that is wrong with the form. Whether a secret can be used is said when it is encrypted.
pub fn plain_of(text: &str, file: &str) -> Result<Plain, Vec<Problem>> {
    let mut problems = Problems::of(file);
    let root = match Node::documents(text) {
        Ok(mut documents) if documents.len() == 1 => documents.pop(),
        Ok(_) => None,
        Err(error) => {
            let at = error.location().map(Position::from).unwrap_or_default();
            problems.add(at, "", "this is not well-formed YAML", "mend it here; nothing after it was read");
            return Err(problems.or(()).err().unwrap_or_default());
        }
    };
    let Some(root) = root.filter(|root| matches!(root.value, Value::Map(_))) else {
        problems.add(Position::default(), "", "these are no secrets", "write secrets: {NAME: {type: …, …}}");
        return Err(problems.or(()).err().unwrap_or_default());
    };
    let (path, node) = match root.get("secrets") {
        Some(node) => {
            unknown(&root, &["worker_id", "secrets"], "", &mut problems);
            ("secrets.", node)
        }
        None => ("", &root),
    };
    let worker = match root.get("worker_id").map(|node| (node.at, WorkerId::new(node.text().unwrap_or_default()))) {
        None => None,
        Some((_, Ok(worker))) => Some(worker),
        Some((at, Err(error))) => {
            problems.add(at, "worker_id", error.to_string(), "write the worker's id");
            None
        }
    };
    let mut secrets = Vec::new();
    match &node.value {
        Value::Map(entries) => {
            for (key, value) in entries {
                if is_name(&key.name) {
                    secrets.extend(entry(&key.name, value, &format!("{path}{}", key.name), &mut problems));
                } else {
                    let remedy = "use letters, digits, '_', '-' and '.', at most 63";
                    problems.add(key.at, path.trim_end_matches('.'), "this cannot be the name of a secret", remedy);
                }
            }
        }
        _ => problems.add(node.at, "secrets", "this is no mapping", "write secrets: {NAME: {type: …, …}}"),
    }
    problems.or(Plain { worker, secrets })
}

fn entry(name: &str, node: &Node, path: &str, problems: &mut Problems) -> Option<PlainEntry> {
    let Value::Map(fields) = &node.value else {
        problems.add(node.at, path, "this is no mapping", "write type and the fields of the secret");
        return None;
    };
    let kind = match node.get("type").and_then(Node::text).map(str::parse::<Kind>) {
        Some(Ok(kind)) => kind,
        Some(Err(remedy)) => {
            problems.add(node.place_of("type"), format!("{path}.type"), "there is no such type", remedy);
            return None;
        }
        None => {
            let remedy = format!("write one of {}", Kind::names());
            problems.add(node.at, format!("{path}.type"), "its type is missing", remedy);
            return None;
        }
    };
    let mut read = Vec::with_capacity(fields.len());
    for (key, value) in fields.iter().filter(|(key, _)| key.name != "type") {
        let path = format!("{path}.{}", key.name);
        if let Err(wrong) = kind.field(&key.name) {
            problems.add(key.at, path, wrong.message, wrong.remedy);
            continue;
        }
        match &value.value {
            Value::Text(text) if Sealed::looks_like(text) => {
                problems.add(value.at, path, "this is encrypted already", "write the value itself");
            }
            Value::Text(text) => read.push((key.name.clone(), FieldValue::Text(Secret::new(text.as_str())))),
            Value::List(items) => {
                let texts: Option<Vec<String>> = items.iter().map(|item| item.text().map(ToOwned::to_owned)).collect();
                match texts {
                    Some(texts) => read.push((key.name.clone(), FieldValue::List(texts))),
                    None => problems.add(value.at, path, "its items are texts", "put quotes around them"),
                }
            }
            _ => problems.add(value.at, path, format!("this is {}, not text", value.kind()), "put quotes around it"),
        }
    }
    Some(PlainEntry { name: name.to_owned(), kind, fields: read })
}

impl Plain {
    /// Decrypts all secrets of a file.
    ///
    /// # Errors
    /// It cannot be decrypted.
    pub fn opened(document: &Document, keyring: &Keyring) -> Result<Self, OpenError> {
        keyring.verify(document)?;
        let secrets = document.secrets.iter().map(|entry| {
            let mut opened = entry.fields(|field, sealed| keyring.value(document, entry, field, sealed))?;
            let fields = entry.fields.iter().filter_map(|(name, _)| opened.remove_entry(name)).collect();
            Ok(PlainEntry { name: entry.name.clone(), kind: entry.kind, fields })
        });
        let secrets = secrets.collect::<Result<_, OpenError>>()?;
        Ok(Self { worker: Some(document.worker.clone()), secrets })
    }
}
