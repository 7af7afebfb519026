//! Label requirements for all models of a type.
//!
//! A type is what a manifest says in `spec.model.type`, or its format (`onnx`).

use std::collections::BTreeMap;

use berth_spec::deployment::Selector;

use crate::failure::Failure;

/// One label for one type, as it is written: `onnx:required:pool=production`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TypeLabel {
    of: String,
    wish: Strength,
    key: String,
    value: String,
}

/// Strength of a requirement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Strength {
    Required,
    Preferred,
}

impl TypeLabel {
    /// Reads `TYPE:required:KEY=VALUE` or `TYPE:preferred:KEY=VALUE`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let how = || {
            "write TYPE:required:KEY=VALUE or TYPE:preferred:KEY=VALUE, for example onnx:required:pool=production"
                .to_owned()
        };
        let mut parts = text.splitn(3, ':');
        let (Some(of), Some(wish), Some(label)) = (parts.next(), parts.next(), parts.next()) else { return Err(how()) };
        let wish = match wish {
            "required" => Strength::Required,
            "preferred" => Strength::Preferred,
            other => return Err(format!("{other:?} is neither required nor preferred: {}", how())),
        };
        if !is_type(of) {
            return Err(format!("{of:?} is no type of models: copy it from spec.model.type, or say onnx"));
        }
        let (key, value) = label.split_once('=').ok_or_else(how)?;
        for said in [key, value] {
            if said.is_empty()
                || said != said.trim()
                || said.contains(['=', '!', ','])
                || said.contains(char::is_control)
            {
                return Err(format!("{said:?} cannot be in the label {label:?}: no worker has such a one"));
            }
        }
        Ok(Self { of: of.to_owned(), wish, key: key.to_owned(), value: value.to_owned() })
    }
}

/// True if the text is a valid `spec.model.type`.
fn is_type(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.len() <= 63 && text.chars().all(plain)
}

/// All of them by type. A key with two values for one type is a mistake: no worker has both.
///
/// # Errors
/// [`Failure::Usage`]: such a key.
pub(super) fn by_type(labels: Vec<TypeLabel>) -> Result<BTreeMap<String, Selector>, Failure> {
    let mut types: BTreeMap<String, Selector> = BTreeMap::new();
    for TypeLabel { of, wish, key, value } in labels {
        let selector = types.entry(of.clone()).or_default();
        let of_wish = match wish {
            Strength::Required => &mut selector.required,
            Strength::Preferred => &mut selector.preferred,
        };
        if let Some(other) = of_wish.insert(key.clone(), value.clone()).filter(|other| *other != value) {
            return Err(Failure::Usage(format!(
                "--model-type says of {of} that the label {key} is both {other:?} and {value:?}: give it once"
            )));
        }
    }
    Ok(types)
}

/// The labels as they are written, in one order whatever order they came in.
pub(super) fn as_text(types: &BTreeMap<String, Selector>) -> String {
    let labels = types.iter().flat_map(|(of, selector)| {
        let required = selector.required.iter().map(move |label| (of, "required", label));
        required.chain(selector.preferred.iter().map(move |label| (of, "preferred", label)))
    });
    labels.map(|(of, wish, (key, value))| format!("{of}:{wish}:{key}={value}")).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn types(words: &[&str]) -> Result<BTreeMap<String, Selector>, String> {
        let labels = words.iter().map(|word| TypeLabel::parse(word)).collect::<Result<Vec<_>, _>>()?;
        by_type(labels).map_err(|error| error.to_string())
    }

    #[test]
    fn labels_come_together_by_type() {
        let types = types(&[
            "onnx:required:pool=production",
            "onnx:required:zone=a",
            "onnx:required:zone=a",
            "onnx:preferred:zone=b",
            "ranker.v2:preferred:disk=nvme:4",
        ]);
        let labels = |labels: &[(&str, &str)]| {
            labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect::<BTreeMap<_, _>>()
        };
        let onnx = Selector {
            required: labels(&[("pool", "production"), ("zone", "a")]),
            preferred: labels(&[("zone", "b")]),
        };
        let ranker = Selector { required: labels(&[]), preferred: labels(&[("disk", "nvme:4")]) };
        let types = types.expect("they agree");
        assert_eq!(
            as_text(&types),
            "onnx:required:pool=production,onnx:required:zone=a,onnx:preferred:zone=b,ranker.v2:preferred:disk=nvme:4"
        );
        assert_eq!(types, [("onnx".to_owned(), onnx), ("ranker.v2".to_owned(), ranker)].into());
    }

    #[test]
    fn what_means_nothing_is_refused_with_how_to_write_it() {
        for (word, says) in [
            ("", "TYPE:required:KEY=VALUE"),
            ("onnx", "TYPE:required:KEY=VALUE"),
            ("onnx:pool=production", "TYPE:required:KEY=VALUE"),
            ("onnx:pool=production:x", "neither required nor preferred"),
            ("onnx:Required:pool=production", "neither required nor preferred"),
            ("onnx:required:pool", "TYPE:required:KEY=VALUE"),
            ("onnx:required:=production", "no worker has such a one"),
            ("onnx:required:pool=", "no worker has such a one"),
            ("onnx:required:pool = x", "no worker has such a one"),
            ("onnx:required:pool=a=b", "no worker has such a one"),
            (":required:pool=a", "no type of models"),
            ("on nx:required:pool=a", "no type of models"),
        ] {
            let error = types(&[word]).expect_err(word);
            assert!(error.contains(says), "{word}: {error}");
        }
        let error = types(&["onnx:required:pool=a", "onnx:required:pool=b"]).expect_err("both");
        assert!(error.contains(r#"pool is both "a" and "b""#), "{error}");
    }
}
