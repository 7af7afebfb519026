//! Names and versions of Python packages, as far as cards and locks need them compared.

use super::Framework;

/// The longest pin: names and versions of the index are far shorter.
const MAX_PIN_BYTES: usize = 200;

/// A package with one version: `NAME==VERSION` or `NAME[EXTRA]==VERSION`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pin<'a> {
    /// Name as written, without extras.
    pub name: &'a str,
    /// Version as written.
    pub version: &'a str,
}

impl<'a> Pin<'a> {
    /// Reads a pin; `None` for all that an installer would take for an option, a URL or a path.
    #[must_use]
    pub fn read(text: &'a str) -> Option<Self> {
        let (name, version) = text.split_once("==")?;
        let (name, extras) = match name.split_once('[') {
            Some((name, extras)) => (name, extras.strip_suffix(']')?),
            None => (name, "x"),
        };
        let word = |text: &str, also: &str| {
            text.starts_with(|c: char| c.is_ascii_alphanumeric())
                && text.chars().all(|c| c.is_ascii_alphanumeric() || also.contains(c))
        };
        let fits = text.len() <= MAX_PIN_BYTES && word(name, "-_.") && word(extras, "-_.,") && word(version, ".+!_-");
        fits.then_some(Self { name, version })
    }

    /// Reads a pin that may have an environment marker behind it: `NAME==VERSION ; python_version >= "3.11"`.
    #[must_use]
    pub fn read_marked(text: &'a str) -> Option<Self> {
        match text.split_once(';') {
            Some((pin, marker)) if is_marker(marker.trim()) => Self::read(pin.trim_end()),
            Some(_) => None,
            None => Self::read(text),
        }
    }

    /// The name as indexes compare it: `Scikit_Learn` is `scikit-learn`.
    #[must_use]
    pub fn normal_name(&self) -> String {
        normal_name(self.name)
    }

    /// True if an installed version is the pinned one: `1.0` is `1.0.0`, and a pin without a local part takes any.
    #[must_use]
    pub fn is_met_by(&self, version: &str) -> bool {
        let (wanted, wanted_local) = parts(self.version);
        let (given, given_local) = parts(version);
        wanted == given && wanted_local.is_none_or(|local| Some(local) == given_local)
    }
}

/// True for a text that may be an environment marker: an installer can take it for nothing else.
pub(super) fn is_marker(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || " ._-=<>!~()'\",".contains(c))
}

/// A package's name as indexes compare it.
#[must_use]
pub fn normal_name(name: &str) -> String {
    let parts = name.split(['-', '_', '.']).filter(|part| !part.is_empty());
    parts.collect::<Vec<_>>().join("-").to_ascii_lowercase()
}

/// The public part of a version, its release without zeros at the end, and the local part.
fn parts(version: &str) -> (String, Option<String>) {
    let version = version.to_ascii_lowercase();
    let (public, local) = match version.split_once('+') {
        Some((public, local)) => (public, Some(local.replace(['_', '-'], "."))),
        None => (version.as_str(), None),
    };
    let end = public.find(|c: char| !c.is_ascii_digit() && c != '.' && c != '!').unwrap_or(public.len());
    let (release, rest) = public.split_at(end);
    // The point before `post` and `dev` belongs to what follows.
    let rest = if release.ends_with('.') { format!(".{rest}") } else { rest.to_owned() };
    let numbers = release.trim_end_matches('.').split('.').map(|part| part.trim_start_matches('0'));
    let mut numbers: Vec<&str> = numbers.collect();
    while numbers.len() > 1 && numbers.last().is_some_and(|number| number.is_empty()) {
        numbers.pop();
    }
    (numbers.join(".") + &rest, local)
}

impl Framework {
    /// Packages of the framework in an index, the usual one first: any of them is it.
    #[must_use]
    pub const fn packages(self) -> &'static [&'static str] {
        match self {
            Self::Tensorflow => &["tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tensorflow-intel", "tf-nightly"],
            Self::Pytorch => &["torch"],
            Self::Sklearn => &["scikit-learn"],
            Self::Xgboost => &["xgboost", "xgboost-cpu"],
            Self::Onnx => &["onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino", "onnxruntime-directml"],
            Self::Custom => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_indexes_do() {
        for (pin, version, met) in [
            ("a==1.0", "1.0.0", true),
            ("a==1.0", "1", true),
            ("a==1.0", "1.0.1", false),
            ("a==2.9.0", "2.9.0+cpu", true),
            ("a==2.9.0+cpu", "2.9.0", false),
            ("a==2.9.0+cpu", "2.9.0+CPU", true),
            ("a==2025.02", "2025.2", true),
            ("a==2.9.0.post0", "2.9.0.post0", true),
            ("a==2.9.0.post0", "2.9.0", false),
            ("a==1.0rc1", "1.0rc1", true),
            ("a==10", "1", false),
        ] {
            assert_eq!(Pin::read(pin).expect(pin).is_met_by(version), met, "{pin} {version}");
        }
        assert_eq!(normal_name("Scikit_Learn"), "scikit-learn");
    }

    #[test]
    fn a_pin_may_have_a_marker_and_no_option() {
        let pin = Pin { name: "a", version: "1.0" };
        let marked = ["a==1.0; python_version < '3.13'", "a==1.0 ; sys_platform == \"linux\" and extra == 'x'"];
        for fine in ["a==1.0"].into_iter().chain(marked) {
            assert_eq!(Pin::read_marked(fine), Some(pin), "{fine}");
        }
        for odd in ["a==1.0 ;", "a ; os_name < '3'", "a==1.0 ; x --index-url=https://h", "a==1.0 ; x\n-r y", ";"] {
            assert_eq!(Pin::read_marked(odd), None, "{odd}");
        }
    }
}
