//! Settings for the preparation of model cards.

use std::{ffi::OsString, fmt, path::PathBuf, str::FromStr};

/// The settings for code and environments of model cards.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// The `uv` program; `None`: the usual places are searched.
    pub uv: Option<PathBuf>,
    /// The package index; `None`: what the environment names, else PyPI.
    pub package_index: Option<String>,
    /// The treatment of packages of the operating system.
    pub system_packages: SystemPackages,
    /// True if code may come from repositories of this machine (`file:`): whoever writes a card can then read what this
    /// process can.
    pub local_repositories: bool,
    /// True if code may come over `http:` from other machines: whoever is between can change it.
    pub http_repositories: bool,
    /// The process's environment. Only what finds programs and reaches the network is handed on to others: see
    /// [`passes_on`](Self::passes_on).
    pub environment: Vec<(OsString, OsString)>,
}

/// Names that every program may see: where programs are, the language of messages, and how the network is reached.
const PASSED_ON: [&str; 13] = [
    "PATH",
    "TMPDIR",
    "LANG",
    "http_proxy",
    "https_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "all_proxy",
    "ALL_PROXY",
    "no_proxy",
    "NO_PROXY",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
];

/// Variables of `uv` that are not passed on: Berth decides where it keeps things, and publishes nothing.
const NOT_FOR_UV: [&str; 6] =
    ["UV_PUBLISH_", "UV_CACHE_DIR", "UV_PYTHON", "UV_PROJECT", "UV_SYSTEM_PYTHON", "UV_BREAK_SYSTEM_PACKAGES"];

impl Settings {
    /// True if a variable of the environment may be seen by the programs that prepare a model.
    #[must_use]
    pub fn passes_on(name: &str) -> bool {
        PASSED_ON.contains(&name)
    }

    /// A variable of the environment, if it has text.
    pub(super) fn variable(&self, name: &str) -> Option<&str> {
        let (_, value) = self.environment.iter().find(|(found, _)| found == name)?;
        value.to_str().filter(|value| !value.is_empty())
    }

    /// The environment of a program that prepares a model.
    pub(super) fn surroundings(&self) -> Vec<(OsString, OsString)> {
        let passed = |(name, _): &&(OsString, OsString)| name.to_str().is_some_and(Self::passes_on);
        let mut kept: Vec<_> = self.environment.iter().filter(passed).cloned().collect();
        if !kept.iter().any(|(name, _)| name == "PATH") {
            kept.push(("PATH".into(), "/usr/local/bin:/usr/bin:/bin".into()));
        }
        kept
    }

    /// The settings of `uv` and of `pip` that say where packages are, as `uv` names them.
    pub(super) fn for_uv(&self) -> Vec<(OsString, OsString)> {
        let own = |name: &str| name.starts_with("UV_") && !NOT_FOR_UV.iter().any(|not| name.starts_with(not));
        let mut kept: Vec<(OsString, OsString)> =
            self.environment.iter().filter(|(name, _)| name.to_str().is_some_and(own)).cloned().collect();
        for (pip, uv) in [
            ("PIP_INDEX_URL", "UV_DEFAULT_INDEX"),
            ("PIP_EXTRA_INDEX_URL", "UV_INDEX"),
            ("PIP_FIND_LINKS", "UV_FIND_LINKS"),
            ("PIP_CERT", "SSL_CERT_FILE"),
        ] {
            let has = |name: &str| self.variable(name).is_some();
            let named = has(uv) || (uv == "UV_DEFAULT_INDEX" && has("UV_INDEX_URL"));
            if let Some(value) = self.variable(pip).filter(|_| !named) {
                kept.push((uv.into(), value.into()));
            }
        }
        kept
    }
}

/// The treatment of a card's packages of the operating system.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SystemPackages {
    /// Must be installed; missing ones are an error.
    #[default]
    Check,
    /// Missing ones are installed, where this process may (root).
    Install,
    /// Nobody looks.
    Ignore,
}

impl SystemPackages {
    /// The words for it.
    pub const WORDS: [(&'static str, Self); 3] =
        [("check", Self::Check), ("install", Self::Install), ("ignore", Self::Ignore)];
}

impl fmt::Display for SystemPackages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::WORDS.iter().find(|(_, value)| value == self).map_or("check", |(word, _)| word))
    }
}

impl FromStr for SystemPackages {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::WORDS.iter().find(|(word, _)| *word == text);
        found.map(|(_, value)| *value).ok_or_else(|| "write check, install or ignore".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_secret_reaches_another_program() {
        let environment = [
            ("PATH", "/bin"),
            ("HOME", "/root"),
            ("AWS_SECRET_ACCESS_KEY", "s"),
            ("https_proxy", "http://p:1"),
            ("UV_DEFAULT_INDEX", "https://i/simple"),
            ("UV_PUBLISH_TOKEN", "s"),
            ("UV_CACHE_DIR", "/elsewhere"),
            ("PIP_INDEX_URL", "https://other/simple"),
            ("PIP_FIND_LINKS", "/wheels"),
            ("PYTHONPATH", "/x"),
        ];
        let environment = environment.map(|(name, value)| (name.into(), value.into())).to_vec();
        let settings = Settings { environment, ..Settings::default() };
        let names = |list: Vec<(OsString, OsString)>| list.into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        assert_eq!(names(settings.surroundings()), ["PATH", "https_proxy"]);
        assert_eq!(names(settings.for_uv()), ["UV_DEFAULT_INDEX", "UV_FIND_LINKS"]);
        assert_eq!(Settings::default().surroundings().len(), 1, "programs are found where nobody says where");
    }
}
