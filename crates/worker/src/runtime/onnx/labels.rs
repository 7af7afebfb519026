//! Names of the classes of a classifier, for the classification extension: from the file `labels.txt` beside the graph, from
//! the graph's metadata (`labels` or `names`), or from the attribute `classlabels_strings` of a node, which converters of
//! scikit-learn write. The first of these that says something counts.

use std::{fs::File, io::Read as _, path::Path};

/// Name of the file in the model's folder: one label a line, the first of class 0.
const FILE: &str = "labels.txt";

/// The most labels: the largest sets that models are trained on have some 20,000.
pub(super) const MAX_LABELS: usize = 100_000;

/// The longest file that is read: 100,000 classes with long names.
const MAX_FILE_BYTES: u64 = 8 << 20;

/// Labels in the folder of a graph; none where there is no such file, or one that is not text.
pub(super) fn beside(folder: &Path) -> Vec<String> {
    let mut text = String::new();
    let file = File::open(folder.join(FILE)).map(|file| file.take(MAX_FILE_BYTES));
    if !file.is_ok_and(|mut file| file.read_to_string(&mut text).is_ok()) {
        return Vec::new();
    }
    let lines: Vec<String> = text.trim_end().lines().take(MAX_LABELS).map(|line| line.trim().to_owned()).collect();
    if lines.iter().all(String::is_empty) { Vec::new() } else { lines }
}

/// Labels in a value of the metadata: a list in JSON, an object from index to label as JSON or Python write it, or lines.
pub(super) fn of_metadata(value: &str) -> Vec<String> {
    let value = value.trim();
    if let Ok(list) = serde_json::from_str::<Vec<String>>(value) {
        return list;
    }
    if let Some(inside) = value.strip_prefix('{').and_then(|value| value.strip_suffix('}')) {
        return of_object(inside).unwrap_or_default();
    }
    if value.contains('\n') { value.lines().map(|line| line.trim().to_owned()).collect() } else { Vec::new() }
}

/// The inside of `{0: 'cat', 1: "dog"}` or `{"0": "cat"}`; `None`: it is something else, or an index is missing.
fn of_object(inside: &str) -> Option<Vec<String>> {
    let mut rest = inside.trim();
    let mut labels = Vec::new();
    while !rest.is_empty() {
        let (key, after) = rest.split_once(':')?;
        let index: usize = key.trim().trim_matches(['"', '\'']).parse().ok()?;
        let (label, after) = quoted(after.trim_start())?;
        if index != labels.len() || index >= MAX_LABELS {
            return None;
        }
        labels.push(label);
        let after = after.trim_start();
        rest = match after.strip_prefix(',') {
            Some(next) => next.trim_start(),
            None if after.is_empty() => after,
            None => return None,
        };
    }
    Some(labels)
}

/// A text in either quotes at the start of `text`, and what follows it.
fn quoted(text: &str) -> Option<(String, &str)> {
    let quote = text.chars().next().filter(|quote| matches!(quote, '"' | '\''))?;
    let mut label = String::new();
    let mut characters = text.char_indices().skip(1);
    while let Some((at, character)) = characters.next() {
        match character {
            '\\' => label.push(characters.next()?.1),
            end if end == quote => return Some((label, &text[at + 1..])),
            other => label.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_of_metadata() {
        for (value, labels) in [
            (r#"["cat", "dog"]"#, &["cat", "dog"][..]),
            ("{0: 'cat', 1: \"dog's\", 2: 'it\\'s'}", &["cat", "dog's", "it's"]),
            (r#"{"0": "cat", "1": "dog"}"#, &["cat", "dog"]),
            ("cat\ndog\n", &["cat", "dog"]),
            ("{1: 'cat'}", &[]),
            ("{0: 'cat' 1: 'dog'}", &[]),
            ("{0: 'cat}", &[]),
            ("{}", &[]),
            ("cat", &[]),
            ("", &[]),
        ] {
            assert_eq!(of_metadata(value), labels, "{value}");
        }
    }

    #[test]
    fn a_file_beside_the_graph() {
        let folder = tempfile::tempdir().expect("a folder");
        assert!(beside(folder.path()).is_empty());
        fs_err::write(folder.path().join(FILE), "setosa\nversicolor \r\nvirginica\n").expect("a file");
        assert_eq!(beside(folder.path()), ["setosa", "versicolor", "virginica"]);
        fs_err::write(folder.path().join(FILE), b"\xff\xfe").expect("a file");
        assert!(beside(folder.path()).is_empty());
    }
}
