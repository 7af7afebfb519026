//! From text to [`Document`], with every problem at its place.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use berth_spec::{
    WorkerId,
    credential::{Field, Kind, MAX_VALUE},
    manifest::{
        closest,
        node::{Key, Node, Position, Value},
    },
};

use super::{Contents, Document, MAX_FILE, MAX_KEYS, MAX_SECRETS, SecretEntry, Stored, WrappedKey};
use crate::{
    envelope::{DataId, Sealed},
    problem::{Problem, Problems},
    vault,
};

/// The fields of a file of secrets, in the order in which it is written.
const FIELDS: [&str; 4] = ["worker_id", "secrets", "keys", "seal"];

/// The ending of the files of a registry, after the worker's name.
const ENDING: &str = "-secrets";

const ENCRYPT: &str = "encrypt it with `berth secrets encrypt`, and revoke this one: whoever saw the file has it";

pub(super) fn contents(text: &str, file: &str) -> Result<Contents, Vec<Problem>> {
    let mut problems = Problems::of(file);
    let contents = root(text, &mut problems).and_then(|root| {
        if !vault::is_declared(&root) {
            return whole(&root, text, file, &mut problems).map(Contents::Encrypted);
        }
        unknown(&root, &["worker_id", "secrets"], "", &mut problems);
        let worker = worker(&root, file, &mut problems);
        let declared = root.get("secrets").and_then(|secrets| vault::Declared::read(secrets, "secrets", &mut problems));
        Some(Contents::Vault(worker?, declared?))
    });
    match contents {
        Some(contents) => problems.or(contents),
        None => Err(problems.or(()).err().unwrap_or_default()),
    }
}

pub(super) fn document(text: &str, file: &str) -> Result<Document, Vec<Problem>> {
    match contents(text, file)? {
        Contents::Encrypted(document) => Ok(document),
        Contents::Vault(..) => {
            let mut problems = Problems::of(file);
            let remedy = "there is nothing to decrypt here; change it with any editor";
            problems.add(Position::default(), "secrets", "this file refers to Vault", remedy);
            Err(problems.or(()).err().unwrap_or_default())
        }
    }
}

/// The one mapping that a file is.
fn root(text: &str, problems: &mut Problems) -> Option<Node> {
    if text.len() > MAX_FILE {
        problems.add(
            Position::default(),
            "",
            format!("the file is larger than {MAX_FILE} bytes"),
            "give the worker fewer or smaller secrets",
        );
        return None;
    }
    let mut documents = match Node::documents(text) {
        Ok(documents) => documents,
        Err(error) => {
            let at = error.location().map(Position::from).unwrap_or_default();
            // The reader's words may quote the text: only their kind is told.
            problems.add(at, "", "the file is not well-formed YAML", "mend it here; nothing after it was read");
            return None;
        }
    };
    match (documents.len(), documents.pop()) {
        (1, Some(root)) if matches!(root.value, Value::Map(_)) => Some(root),
        (0 | 1, _) => {
            let remedy = "a file of secrets has worker_id and secrets: `berth secrets encrypt` writes one";
            problems.add(Position::default(), "", "this is not a file of secrets", remedy);
            None
        }
        (_, last) => {
            let at = last.map(|node| node.at).unwrap_or_default();
            problems.add(at, "", "a file of secrets is one document", "make one file for each worker");
            None
        }
    }
}

fn whole(root: &Node, text: &str, file: &str, problems: &mut Problems) -> Option<Document> {
    unknown(root, &FIELDS, "", problems);
    let worker = worker(root, file, problems);
    let secrets = secrets(root, problems);
    let keys = keys(root, problems);
    let seal = seal(root, problems);
    let (worker, secrets, keys, seal) = (worker?, secrets?, keys?, seal?);
    let head: Vec<String> = text.lines().take_while(|line| line.starts_with('#')).map(ToOwned::to_owned).collect();
    let comments = text.lines().filter(|line| line.trim_start().starts_with('#')).count();
    let document = Document { other_comments: comments - head.len(), head, worker, secrets, keys, seal };
    for data in document.used() {
        if !document.keys.iter().any(|key| key.data == data) {
            let message = format!("a value is encrypted with the data key {data}, which is missing in keys");
            problems.add(root.place_of("keys"), "keys", message, "take the entry of keys back from an older commit");
        }
    }
    Some(document)
}

fn worker(root: &Node, file: &str, problems: &mut Problems) -> Option<WorkerId> {
    let at = root.place_of("worker_id");
    let Some(name) = root.get("worker_id").and_then(Node::text) else {
        problems.add(at, "worker_id", "it is missing, or no text", "write worker_id: NAME");
        return None;
    };
    let worker = match WorkerId::new(name) {
        Ok(worker) => worker,
        Err(error) => {
            problems.add(at, "worker_id", error.to_string(), "write the worker's id");
            return None;
        }
    };
    let stem = std::path::Path::new(file).file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    if let Some(other) = stem.strip_suffix(ENDING).filter(|other| *other != name) {
        let message = format!("the file is called after {other}, and says that it is {name}'s");
        problems.add(at, "worker_id", message, format!("rename it {name}{ENDING}.yaml, or encrypt it for {other}"));
    }
    Some(worker)
}

fn seal(root: &Node, problems: &mut Problems) -> Option<Sealed> {
    let at = root.place_of("seal");
    let remedy = "a file is sealed by `berth secrets encrypt` or `edit`; take it back from an older commit";
    let Some(text) = root.get("seal").and_then(Node::text) else {
        problems.add(at, "seal", "the file has no seal: entries could be dropped or mixed", remedy);
        return None;
    };
    text.parse().map_err(|error| problems.add(at, "seal", format!("{error}"), remedy)).ok()
}

fn secrets(root: &Node, problems: &mut Problems) -> Option<Vec<SecretEntry>> {
    let Some(node) = root.get("secrets") else {
        problems.add(root.at, "secrets", "it is missing", "write secrets: {} where there are none");
        return None;
    };
    let Value::Map(entries) = &node.value else {
        problems.add(node.at, "secrets", "this is no mapping", "write secrets: {NAME: {type: …}}");
        return None;
    };
    if entries.len() > MAX_SECRETS {
        let message = format!("{} secrets are more than the {MAX_SECRETS} of one worker", entries.len());
        problems.add(node.at, "secrets", message, "remove those that it does not need");
        return None;
    }
    let read: Vec<Option<SecretEntry>> = entries.iter().map(|(key, value)| entry(key, value, problems)).collect();
    read.into_iter().collect()
}

fn entry(key: &Key, node: &Node, problems: &mut Problems) -> Option<SecretEntry> {
    let path = format!("secrets.{}", key.name);
    if !is_name(&key.name) {
        let remedy = "use letters, digits, '_', '-' and '.', at most 63";
        problems.add(key.at, "secrets", "this cannot be the name of a secret", remedy);
        return None;
    }
    let Value::Map(fields) = &node.value else {
        problems.add(node.at, path, "this is no mapping", "write type and the fields of the secret");
        return None;
    };
    let kind = match node.get("type").and_then(Node::text) {
        None => Err(format!("write one of {}", Kind::names())),
        Some(text) => text.parse::<Kind>(),
    };
    let kind = match kind {
        Ok(kind) => kind,
        Err(remedy) => {
            let message = "its type is missing or unknown";
            problems.add(node.place_of("type"), format!("{path}.type"), message, remedy);
            return None;
        }
    };
    let before = problems.none();
    let mut read = Vec::with_capacity(fields.len());
    for (key, value) in fields.iter().filter(|(key, _)| key.name != "type") {
        let path = format!("{path}.{}", key.name);
        match kind.field(&key.name) {
            Err(wrong) => problems.add(key.at, path, wrong.message, wrong.remedy),
            Ok(field) => read.extend(stored(field, value, &path, problems).map(|stored| (key.name.clone(), stored))),
        }
    }
    for field in kind.fields().iter().filter(|field| field.required && node.get(field.name).is_none()) {
        let message = format!("{kind} lacks its field {}", field.name);
        problems.add(node.at, format!("{path}.{}", field.name), message, format!("add {}", field.name));
    }
    (before == problems.none()).then(|| SecretEntry { name: key.name.clone(), kind, fields: read })
}

/// A field's value: a secret one must be encrypted, any other may be.
fn stored(field: &Field, node: &Node, path: &str, problems: &mut Problems) -> Option<Stored> {
    if field.list {
        let Value::List(items) = &node.value else {
            problems.add(node.at, path, "this is a list", format!("write {}: [ONE, ANOTHER]", field.name));
            return None;
        };
        let texts: Option<Vec<String>> = items.iter().map(|item| item.text().map(ToOwned::to_owned)).collect();
        if texts.is_none() {
            problems.add(node.at, path, "its items are texts", "put quotes around them");
        }
        return texts.map(Stored::List);
    }
    match node.text() {
        Some(text) if Sealed::looks_like(text) => {
            let remedy = "encrypt it again, or take it back from an older commit";
            text.parse()
                .map_err(|error| problems.add(node.at, path, format!("{error}"), remedy))
                .ok()
                .map(Stored::Sealed)
        }
        // Whatever its type: an unquoted number may be a password.
        _ if field.secret => {
            problems.add(node.at, path, "this is a secret in plain text", ENCRYPT);
            None
        }
        Some(text) if text.len() > MAX_VALUE => {
            problems.add(node.at, path, format!("it is longer than {MAX_VALUE} bytes"), "write a shorter one");
            None
        }
        Some(text) => Some(Stored::Plain(text.to_owned())),
        None => {
            problems.add(node.at, path, format!("this is {}, not text", node.kind()), "put quotes around it");
            None
        }
    }
}

fn keys(root: &Node, problems: &mut Problems) -> Option<Vec<WrappedKey>> {
    let remedy = "`berth secrets encrypt` writes it";
    let Some(node) = root.get("keys") else {
        problems.add(root.at, "keys", "the file has no keys, so nobody could decrypt it", remedy);
        return None;
    };
    let items = match &node.value {
        Value::List(items) if (1..=MAX_KEYS).contains(&items.len()) => items,
        Value::List(_) => {
            let message = format!("there must be one to {MAX_KEYS} of them");
            problems.add(node.at, "keys", message, "run `berth secrets rotate --values`: it leaves one data key");
            return None;
        }
        _ => {
            problems.add(node.at, "keys", "this is no list", remedy);
            return None;
        }
    };
    let read: Vec<Option<WrappedKey>> =
        items.iter().enumerate().map(|(n, item)| wrapped(item, &format!("keys[{n}]"), problems)).collect();
    read.into_iter().collect()
}

fn wrapped(node: &Node, path: &str, problems: &mut Problems) -> Option<WrappedKey> {
    unknown(node, &["data", "id", "created", "wrapped"], path, problems);
    let mut field = |name: &str| -> Option<(Position, &str)> {
        let found = node.get(name).and_then(|value| Some((value.at, value.text()?)));
        if found.is_none() {
            problems.add(
                node.at,
                format!("{path}.{name}"),
                "it is missing, or no text",
                "take it back from an older commit",
            );
        }
        found
    };
    let (data, id, created, wrapped) = (field("data")?, field("id")?, field("created")?, field("wrapped")?);
    let parsed: Result<DataId, _> = data.1.parse();
    let data = parsed.map_err(|e| problems.add(data.0, format!("{path}.data"), e.to_string(), "write d1")).ok()?;
    let id = id.1.parse().map_err(|e: String| problems.add(id.0, format!("{path}.id"), "this is no id", e)).ok()?;
    let bytes = STANDARD.decode(wrapped.1).ok().filter(|bytes| (256..=1024).contains(&bytes.len()));
    let Some(bytes) = bytes else {
        let remedy = "take it back from an older commit";
        problems.add(wrapped.0, format!("{path}.wrapped"), "this is no wrapped key", remedy);
        return None;
    };
    if created.1.len() > 40 {
        problems.add(created.0, format!("{path}.created"), "this is no time", "write for example 2026-11-22T00:30:00Z");
        return None;
    }
    Some(WrappedKey { data, id, created: created.1.to_owned(), wrapped: bytes })
}

/// Fields that are none.
pub(crate) fn unknown(node: &Node, known: &[&str], path: &str, problems: &mut Problems) {
    let Value::Map(fields) = &node.value else { return };
    for (key, _) in fields.iter().filter(|(key, _)| !known.contains(&key.name.as_str())) {
        let remedy = match closest(&key.name, known.iter().copied()) {
            Some(near) => format!("did you mean {near}?"),
            None => format!("there are {}", known.join(", ")),
        };
        problems.add(key.at, path, format!("there is no field {:?} here", key.name), remedy);
    }
}

/// True if the text is a valid name of a secret.
pub(crate) fn is_name(name: &str) -> bool {
    let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    (1..=63).contains(&name.len()) && name.chars().all(fine)
}
