//! The sample with constant labels: `MM_INFO_METRICS`.

use std::fmt::Write as _;

/// The most labels.
const LABELS: usize = 5;

/// A gauge that is 1, with labels that describe the instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Info {
    name: String,
    labels: Vec<(String, String)>,
}

impl Info {
    /// Reads `NAME;LABEL=VARIABLE,…`. `variable` gives the value of an environment variable.
    ///
    /// # Errors
    /// For people: what is wrong in it.
    pub(crate) fn parse(said: &str, variable: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let form = || format!("{said:?} is not understood: it is NAME;LABEL=VARIABLE,LABEL=VARIABLE");
        let (name, pairs) = said.split_once(';').ok_or_else(form)?;
        let word = |text: &str, colons: bool| {
            text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
                && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || (colons && c == ':'))
        };
        if !word(name, true) {
            return Err(form());
        }
        let mut labels = Vec::new();
        for pair in pairs.split(',').filter(|pair| !pair.is_empty()) {
            let (label, from) = pair.split_once('=').filter(|(label, _)| word(label, false)).ok_or_else(form)?;
            let value =
                variable(from).ok_or_else(|| format!("{from} is not set, and the label {label} is its value"))?;
            labels.push((label.to_owned(), value));
        }
        if labels.len() > LABELS {
            return Err(format!("{said:?} has {} labels: at most {LABELS} are told", labels.len()));
        }
        Ok(Self { name: name.to_owned(), labels })
    }

    pub(super) fn write(&self, out: &mut String) {
        let escaped = |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let labels = self.labels.iter().map(|(label, value)| format!("{label}=\"{}\"", escaped(value)));
        let (name, labels) = (&self.name, labels.collect::<Vec<_>>().join(","));
        let _ = writeln!(out, "# HELP {name} Info Metrics\n# TYPE {name} gauge\n{name}{{{labels}}} 1");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_values_of_variables() {
        let variable = |name: &str| (name != "NONE").then(|| format!("the \"{name}\""));
        let info = Info::parse("deployment_info:relabel;slot=SLOT,group=GROUP", variable).expect("understood");
        let mut text = String::new();
        info.write(&mut text);
        let sample = r#"deployment_info:relabel{slot="the \"SLOT\"",group="the \"GROUP\""} 1"#;
        assert_eq!(text.lines().nth(2), Some(sample));
        for wrong in ["info", "in fo;a=B", "info;a", "info;a:b=C", "info;a=NONE", "i;a=A,b=B,c=C,d=D,e=E,f=F"] {
            assert!(Info::parse(wrong, variable).is_err(), "{wrong}");
        }
    }
}
