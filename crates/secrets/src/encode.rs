//! Files as text: YAML in one form, so that a commit shows what changed and nothing else.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use berth_spec::credential::FieldValue;
use zeroize::Zeroizing;

use crate::{
    document::{Document, Stored},
    seal::Plain,
};

/// Words that YAML readers take for something else than text.
const WORDS: [&str; 11] = ["true", "false", "null", "yes", "no", "on", "off", "y", "n", "nan", "inf"];

impl Document {
    /// Encodes the document as the YAML of a file of secrets.
    #[must_use]
    pub fn to_yaml(&self) -> String {
        let mut out = String::new();
        for line in &self.head {
            line_of(&mut out, 0, line);
        }
        line_of(&mut out, 0, &format!("worker_id: {}", scalar(self.worker.as_str())));
        line_of(&mut out, 0, if self.secrets.is_empty() { "secrets: {}" } else { "secrets:" });
        for entry in &self.secrets {
            line_of(&mut out, 2, &format!("{}:", scalar(&entry.name)));
            line_of(&mut out, 4, &format!("type: {}", entry.kind));
            for (name, stored) in &entry.fields {
                match stored {
                    Stored::Sealed(sealed) => line_of(&mut out, 4, &format!("{name}: {sealed}")),
                    Stored::Plain(text) => text_of(&mut out, name, text),
                    Stored::List(items) => list_of(&mut out, name, items),
                }
            }
        }
        line_of(&mut out, 0, "keys:");
        for key in &self.keys {
            line_of(&mut out, 2, &format!("- data: {}", key.data));
            line_of(&mut out, 4, &format!("id: \"{}\"", key.id));
            line_of(&mut out, 4, &format!("created: {}", scalar(&key.created)));
            line_of(&mut out, 4, &format!("wrapped: \"{}\"", STANDARD.encode(&key.wrapped)));
        }
        line_of(&mut out, 0, &format!("seal: {}", self.seal));
        out
    }
}

impl Plain {
    /// The secrets in the clear, for the one who edits them. Wiped when it is dropped.
    #[must_use]
    pub fn to_yaml(&self) -> Zeroizing<String> {
        // Room for all, so that no copies are left behind by growing.
        let size: usize =
            self.secrets.iter().flat_map(|entry| &entry.fields).map(|(name, value)| name.len() + room(value)).sum();
        let mut out = Zeroizing::new(String::with_capacity(size + 256 * (self.secrets.len() + 1)));
        if let Some(worker) = &self.worker {
            line_of(&mut out, 0, &format!("worker_id: {}", scalar(worker.as_str())));
        }
        line_of(&mut out, 0, if self.secrets.is_empty() { "secrets: {}" } else { "secrets:" });
        for entry in &self.secrets {
            line_of(&mut out, 2, &format!("{}:", scalar(&entry.name)));
            line_of(&mut out, 4, &format!("type: {}", entry.kind));
            for (name, value) in &entry.fields {
                match value {
                    FieldValue::Text(text) => text_of(&mut out, name, text.expose()),
                    FieldValue::List(items) => list_of(&mut out, name, items),
                }
            }
        }
        out
    }
}

/// Bytes that a value may take, with escapes and indents.
fn room(value: &FieldValue) -> usize {
    match value {
        FieldValue::Text(text) => 64 + text.expose().len() * 2 + text.expose().lines().count() * 8,
        FieldValue::List(items) => items.iter().map(|item| 16 + item.len() * 2).sum(),
    }
}

fn line_of(out: &mut String, indent: usize, text: &str) {
    out.extend(std::iter::repeat_n(' ', indent));
    out.push_str(text);
    out.push('\n');
}

/// A field of a secret: in one line, or as a block where it has several.
fn text_of(out: &mut String, name: &str, text: &str) {
    let body = text.strip_suffix('\n').unwrap_or(text);
    let block = body.contains('\n')
        && !body.starts_with([' ', '\n'])
        && !body.ends_with('\n')
        && !body.contains('\r')
        && body.chars().all(|c| matches!(c, '\n' | '\t') || !c.is_control());
    if !block {
        line_of(out, 4, &format!("{name}: {}", *Zeroizing::new(scalar(text))));
        return;
    }
    let mark = if body.len() == text.len() { "|-" } else { "|" };
    line_of(out, 4, &format!("{name}: {mark}"));
    for line in body.split('\n') {
        line_of(out, if line.is_empty() { 0 } else { 6 }, line);
    }
}

fn list_of(out: &mut String, name: &str, items: &[String]) {
    line_of(out, 4, &format!("{name}:{}", if items.is_empty() { " []" } else { "" }));
    for item in items {
        line_of(out, 6, &format!("- {}", scalar(item)));
    }
}

/// As it is where every reader takes it for text, else in quotes. JSON's escapes are YAML's.
fn scalar(text: &str) -> String {
    let safe = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/' | ':' | '@');
    let plain = text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(safe)
        && !text.ends_with(':')
        && !WORDS.contains(&text.to_ascii_lowercase().as_str());
    if plain { text.to_owned() } else { serde_json::Value::from(text).to_string() }
}
