//! Takes places of this machine out of what callers are told: they have no use for them, and learn from them how it is set up. Logs
//! and the control API name them in full.

use std::borrow::Cow;

/// The same text, with absolute paths cut to `…/` and their last part.
pub(crate) fn without_places(text: &str) -> Cow<'_, str> {
    let mut told = String::new();
    let mut rest = text;
    while let Some(at) = path_in(rest) {
        let end = rest[at..].find(is_end).map_or(rest.len(), |end| at + end);
        let path = rest[at..end].trim_end_matches(['.', ':', '/']);
        let last = path.rsplit('/').next().unwrap_or_default();
        told.push_str(&rest[..at]);
        told.push_str("…/");
        told.push_str(last);
        rest = &rest[at + path.len()..];
    }
    if told.is_empty() {
        return Cow::Borrowed(text);
    }
    told.push_str(rest);
    Cow::Owned(told)
}

/// The first absolute path of two parts or more. What follows a scheme is no path, but for `file:`.
fn path_in(text: &str) -> Option<usize> {
    let mut from = 0;
    while let Some(found) = text[from..].find('/') {
        let at = from + found;
        let before = &text[..at];
        let end = text[at..].find(is_end).map_or(text.len(), |end| at + end);
        let (word, path) = (before.rsplit(is_end).next().unwrap_or_default(), &text[at..end]);
        let begins = word.is_empty()
            || word.ends_with(['=', ','])
            || word == "file:"
            || word.ends_with(':') && !path.starts_with("//");
        if begins && path.trim_matches('/').contains('/') {
            return Some(at);
        }
        // The rest of the word belongs to it: an address, a relative path, a unit.
        from = end.max(at + 1);
        if from >= text.len() {
            return None;
        }
    }
    None
}

/// True for what stands behind a path.
fn is_end(c: char) -> bool {
    c.is_whitespace() || matches!(c, '"' | '\'' | '`' | '(' | ')' | '[' | ']' | '<' | '>' | ';' | '|')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_cut_to_their_last_part_and_nothing_else_is_changed() {
        for (text, told) in [
            ("cannot read /srv/models/iris.onnx: denied", "cannot read …/iris.onnx: denied"),
            ("file:///srv/models/iris.onnx is missing.", "file:…/iris.onnx is missing."),
            ("no file at \"/srv/a b\"", "no file at \"…/a b\""),
            ("File \"/var/lib/berth/code/x.py\", line 3", "File \"…/x.py\", line 3"),
            ("PATH=/usr/bin/python3:x", "PATH=…/python3:x"),
            ("in (/srv/models/) and /opt/berth/lib.", "in (…/models/) and …/lib."),
            ("https://host/a/b.onnx answers 404", "https://host/a/b.onnx answers 404"),
            ("s3://bucket/a/b.onnx is missing", "s3://bucket/a/b.onnx is missing"),
            ("12 MiB/s, 3/4 of it", "12 MiB/s, 3/4 of it"),
            ("see docs/models.md", "see docs/models.md"),
            ("see /v2", "see /v2"),
            ("", ""),
            ("/", "/"),
            ("a /", "a /"),
        ] {
            assert_eq!(without_places(text), told, "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_absolute_path_is_left(text in "([a-z:=\" ]{0,4}/[a-zé]{0,3}){0,6}") {
            let told = without_places(&text).into_owned();
            proptest::prop_assert!(path_in(&told).is_none(), "{text:?} became {told:?}");
        }
    }
}
