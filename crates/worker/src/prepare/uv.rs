//! The `uv` program: where it is, and what it does here.
//!
//! It sees the proxies and the settings that say where packages are, and nothing else of this process's environment; it
//! keeps its files below our data folder, and reads no configuration but ours.

use std::{
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
    time::Duration,
};

use berth_spec::{
    CredentialSet, FailureCategory,
    credential::{Credential, Kind},
};
use url::Url;

use super::{
    Settings,
    environment::Order,
    program::{Program, ProgramOutput, RunError},
};
use crate::{breaker::Dependency, fault::Fault};

/// The version that is tested with.
pub const VERSION: &str = "0.13.8";

/// The time limit of one installation: gigabytes of packages pass over a slow line.
const INSTALL_LIMIT: Duration = Duration::from_secs(60 * 60);

/// The most time for what needs no network: unpacking a large environment on a slow disk takes a minute.
const LOCAL_LIMIT: Duration = Duration::from_secs(120);

/// The index of packages where nobody says another.
const PYPI: &str = "https://pypi.org/simple";

/// The program, and the folder where it keeps what it fetched.
#[derive(Debug)]
pub(super) struct Uv {
    program: PathBuf,
    home: PathBuf,
}

/// The sources from which an installation may get packages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PackageSource<'a> {
    /// From what was fetched before.
    Fetched,
    /// From the index, too.
    Index,
    /// From the index, too, and these anew though they are installed.
    Again(&'a [String]),
}

/// Packages to install.
#[derive(Debug, Clone, Copy)]
pub(super) struct RequirementsFile<'a> {
    /// A list of requirements.
    pub(super) file: &'a Path,
    /// True if each has hashes: nothing else is installed, and nothing with another hash.
    pub(super) is_locked: bool,
}

impl Uv {
    /// A program at a known place.
    #[cfg(test)]
    pub(super) fn at(program: PathBuf, home: PathBuf) -> Self {
        Self { program, home }
    }

    /// Finds the program: as named, beside ours, on the path, or where the development set-up puts it.
    pub(super) fn find(settings: &Settings, home: PathBuf) -> Result<Self, Fault> {
        let missing = |what: String| {
            let remedy = format!("`pip install uv=={VERSION}`, or say where it is with --uv");
            Fault::new(
                FailureCategory::Runtime,
                format!("{what}; environments of models in Python are made with it: {remedy}"),
            )
        };
        if let Some(named) = &settings.uv {
            let program = if named.is_dir() { named.join("uv") } else { named.clone() };
            let found = program.is_file().then_some(Self { program, home });
            return found.ok_or_else(|| missing(format!("there is no uv at {}", named.display())));
        }
        let own = std::env::current_exe().ok();
        let beside = own.as_deref().and_then(Path::parent).map(Path::to_owned);
        let path = settings.variable("PATH").map(|path| std::env::split_paths(path).collect::<Vec<_>>());
        let cache = own.as_deref().into_iter().flat_map(|own| own.ancestors().skip(1).take(5));
        let cache = cache.map(|above| above.join(".cache/uv/bin"));
        let folders = beside.into_iter().chain(path.unwrap_or_default()).chain(cache);
        let program = folders.map(|folder| folder.join("uv")).find(|program| program.is_file());
        let program = program.ok_or_else(|| missing("this worker has no uv".to_owned()))?;
        Ok(Self { program, home })
    }

    /// The program itself.
    pub(super) fn program(&self) -> &Path {
        &self.program
    }

    /// The host of the package index.
    pub(super) fn index(settings: &Settings) -> Dependency {
        let url = index_url(settings).and_then(|text| Url::parse(&text).ok());
        let origin = url.map(|url| url.origin().ascii_serialization()).filter(|origin| origin != "null");
        Dependency::packages(origin.as_deref().unwrap_or("https://pypi.org"))
    }

    /// An interpreter of that version that `uv` itself has put on this machine, or otherwise knows of.
    pub(super) async fn python(&self, version: &str, settings: &Settings) -> Option<PathBuf> {
        let run = self.run(settings, &self.home).args(["python", "find", "--no-python-downloads", "--no-project"]);
        let said = run.arg(version).run(LOCAL_LIMIT).await.ok().filter(|said| said.status.success())?;
        let path = PathBuf::from(said.out.trim());
        (path.is_absolute() && !path.iter().any(|part| part == "shims")).then_some(path)
    }

    /// Makes an empty environment in `folder`.
    pub(super) async fn venv(
        &self,
        settings: &Settings,
        folder: &Path,
        python: &Path,
        sees_system: bool,
    ) -> Result<(), Fault> {
        let run = self.run(settings, &self.home).args(["venv", "--quiet", "--no-project", "--relocatable", "--python"]);
        let run = run.arg(python).args(sees_system.then_some("--system-site-packages")).arg(folder);
        let said = run.run(LOCAL_LIMIT).await.map_err(|error| not_run(&error))?;
        match said.status.success() {
            true => Ok(()),
            false => Err(of_words(&said, "make an environment", FailureCategory::Dependencies)),
        }
    }

    /// Installs what is wanted into the environment of `python`, and tells the progress.
    pub(super) async fn install(
        &self,
        order: Order<'_>,
        python: &Path,
        wanted: RequirementsFile<'_>,
        source: PackageSource<'_>,
    ) -> Result<(), Fault> {
        let Order { settings, keys, progress, .. } = order;
        progress.resolve();
        let run = self.run(settings, &self.home);
        let run = run.args(["pip", "install", "--strict", "--python"]).arg(python);
        let run = match source {
            PackageSource::Fetched => run.arg("--offline"),
            PackageSource::Index => run,
            PackageSource::Again(packages) => {
                run.args(packages.iter().flat_map(|name| ["--reinstall-package", name.as_str()]))
            }
        };
        let run = run.args(wanted.is_locked.then_some("--require-hashes"));
        let (run, secret) = with_index(run, settings, keys)?;
        let run = run.arg("-r").arg(wanted.file).run_heard(INSTALL_LIMIT, |line| progress.hear(line));
        let mut said = run.await.map_err(|error| not_run(&error))?;
        if said.status.success() {
            return Ok(());
        }
        said.words = without_progress(&said.words);
        let mut fault = of_words(&said, "install the packages", FailureCategory::Dependencies);
        if fault.category == FailureCategory::Auth {
            let about = match secret {
                Some(name) => format!(" (with the secret {name}, {})", Kind::Registry),
                None => format!(" (this worker has no {} for it)", Kind::Registry),
            };
            fault.message.push_str(&about);
        }
        Err(fault)
    }

    /// The packages that the lock of the project in `folder` has, as requirements with hashes. Nothing is built or fetched.
    pub(super) async fn export(&self, settings: &Settings, folder: &Path) -> Result<String, Fault> {
        let run = self.run(settings, &self.home).args(["export", "--quiet", "--frozen", "--offline", "--no-dev"]);
        let run = run.args(["--no-emit-workspace", "--no-header", "--no-annotate", "--format", "requirements.txt"]);
        let said = run.arg("--project").arg(folder).run(LOCAL_LIMIT).await.map_err(|error| not_run(&error))?;
        match said.status.success() {
            true => Ok(said.out),
            false => {
                Err(of_words(&said, "read uv.lock (its pyproject.toml is beside it?)", FailureCategory::Dependencies))
            }
        }
    }

    /// Throws away what was fetched of some packages.
    pub(super) async fn forget(&self, settings: &Settings, packages: &[String]) -> Result<(), Fault> {
        let run = self.run(settings, &self.home).args(["cache", "clean"]).args(packages);
        let said = run.run(LOCAL_LIMIT).await.map_err(|error| not_run(&error))?;
        match said.status.success() {
            true => Ok(()),
            false => Err(of_words(&said, "throw away damaged packages", FailureCategory::Internal)),
        }
    }

    /// Lists the installed packages, one `NAME==VERSION` a line.
    pub(super) async fn freeze(&self, settings: &Settings, python: &Path) -> Result<String, Fault> {
        let run = self.run(settings, &self.home).args(["pip", "freeze", "--python"]).arg(python);
        let said = run.run(LOCAL_LIMIT).await.map_err(|error| not_run(&error))?;
        match said.status.success() {
            true => Ok(said.out),
            false => Err(of_words(&said, "list the packages", FailureCategory::Internal)),
        }
    }

    fn run(&self, settings: &Settings, folder: &Path) -> Program {
        let mut environment = settings.surroundings();
        environment.extend(settings.for_uv());
        let run = Program::new(&self.program, environment, folder).arg("--no-config").args(["--color", "never"]);
        run.arg("--no-progress").env("HOME", &self.home).env("UV_CACHE_DIR", self.home.join("fetched"))
    }
}

/// The URL of the index, as it is set.
fn index_url(settings: &Settings) -> Option<String> {
    if let Some(url) = &settings.package_index {
        return Some(url.clone());
    }
    let named = |name: &str| settings.for_uv().into_iter().find(|(found, _)| found == name);
    let (_, value): (OsString, OsString) = named("UV_DEFAULT_INDEX").or_else(|| named("UV_INDEX_URL"))?;
    // `NAME=URL` gives it a name.
    let value = value.into_string().ok()?;
    Some(value.split_once("=http").map(|(_, rest)| format!("http{rest}")).unwrap_or(value))
}

/// Points it to the index that is set, with what opens it. The name of the secret is told.
fn with_index(run: Program, settings: &Settings, keys: &CredentialSet) -> Result<(Program, Option<String>), Fault> {
    let mut run = match &settings.package_index {
        Some(url) if Url::parse(url).is_ok_and(|url| matches!(url.scheme(), "http" | "https" | "file")) => {
            run.env("UV_DEFAULT_INDEX", format!("berth={url}"))
        }
        Some(url) => {
            let message = format!("--package-index {url:?} is no URL of a package index: write e.g. {PYPI}");
            return Err(Fault::new(FailureCategory::Runtime, message));
        }
        None => run,
    };
    let url = index_url(settings).unwrap_or_else(|| PYPI.to_owned());
    let Some((name, granted)) = keys.granted(&url, Kind::Registry) else { return Ok((run, None)) };
    let Credential::Registry(registry) = &granted.credential else { return Ok((run, None)) };
    if !is_private(&url) {
        let message = format!(
            "the package index is at http, and the password of {name} ({}) would cross the network in the clear: write https in \
             --package-index",
            Kind::Registry
        );
        return Err(Fault::new(FailureCategory::Runtime, message));
    }
    run = run
        .env("UV_DEFAULT_INDEX", format!("berth={url}"))
        .env("UV_INDEX_BERTH_USERNAME", &registry.username)
        .env("UV_INDEX_BERTH_PASSWORD", registry.password.expose());
    Ok((run, Some(name.to_owned())))
}

/// True if nobody can read along: over TLS, or on this machine.
fn is_private(url: &str) -> bool {
    let Ok(url) = Url::parse(url) else { return false };
    let loopback = match url.host() {
        Some(url::Host::Domain(name)) => name == "localhost",
        Some(url::Host::Ipv4(address)) => address.is_loopback(),
        Some(url::Host::Ipv6(address)) => address.is_loopback(),
        None => true,
    };
    loopback || url.scheme() == "https"
}

/// The program did not come to an end.
fn not_run(error: &RunError) -> Fault {
    match error {
        RunError::Start { .. } => {
            Fault::new(FailureCategory::Runtime, format!("{error}: is it a program for this machine? (--uv)"))
        }
        RunError::TooLong { .. } => {
            Fault::new(FailureCategory::Timeout, format!("{error}: check the line to the package index"))
        }
    }
}

/// Classifies a failure by the messages of `uv`; `otherwise` if none of the known ones is there.
fn of_words(said: &ProgramOutput, doing: &str, otherwise: FailureCategory) -> Fault {
    let words = said.reason();
    let category = category(&words).unwrap_or(otherwise);
    let remedy = match category {
        FailureCategory::Network => "; check that the worker reaches the package index (--package-index, proxies)",
        FailureCategory::Auth => "; check the credentials for the package index",
        FailureCategory::Disk => "; free some space, or lower --cache",
        FailureCategory::Dependencies => {
            "; change runtime.dependencies of the card, or spec.model.environment of a model without one"
        }
        _ => "",
    };
    Fault::new(category, format!("cannot {doing}: {}{remedy}", gist(&words))).with_trace(&words)
}

/// The words of a failure, without the progress that was told before it.
fn without_progress(words: &str) -> String {
    const PROGRESS: [&str; 11] = [
        "Using",
        "Resolved",
        "Downloading",
        "Downloaded",
        "Updating",
        "Updated",
        "Building",
        "Built",
        "Prepared",
        "Installed",
        "warning:",
    ];
    let is_error = |line: &&str| line.starts_with("error") || line.trim_start().starts_with('×');
    let is_progress = |line: &&str| line.split_whitespace().next().is_none_or(|word| PROGRESS.contains(&word));
    let lines: Vec<&str> = words.split_inclusive('\n').collect();
    match lines.iter().position(is_error) {
        Some(first) => lines[first..].concat(),
        // A program that was killed has said nothing of it.
        None => lines.into_iter().filter(|line| !is_progress(line)).collect(),
    }
}

fn category(words: &str) -> Option<FailureCategory> {
    const KNOWN: [(FailureCategory, &[&str]); 4] = [
        (FailureCategory::Disk, &["No space left on device", "Disk quota exceeded", "Read-only file system"]),
        (FailureCategory::Auth, &["401 Unauthorized", "403 Forbidden", "authentication credentials"]),
        (
            FailureCategory::Network,
            &[
                "error sending request",
                "dns error",
                "Connection refused",
                "Connection reset",
                "connection closed",
                "timed out",
                "tcp connect error",
                "Network is unreachable",
                "429 Too Many Requests",
                "500 Internal Server Error",
                "502 Bad Gateway",
                "503 Service Unavailable",
                "504 Gateway Timeout",
                "error decoding response body",
                "client error (Connect)",
                "peer closed connection",
            ],
        ),
        (
            FailureCategory::Dependencies,
            &["No solution found", "was not found in the package registry", "Failed to build", "no matching wheel"],
        ),
    ];
    KNOWN.iter().find(|(_, phrases)| phrases.iter().any(|phrase| words.contains(phrase))).map(|(category, _)| *category)
}

/// The words of `uv` in a line or two: without its signs, hints on its own use, and what comes after the cause.
fn gist(words: &str) -> String {
    /// The most characters of a message: the packages that conflict fit, and tables of statuses stay readable.
    const LONGEST: usize = 600;
    let sign = |c: char| matches!(c, '×' | '╰' | '─' | '▶' | '│' | '├' | ' ');
    let lines = words.lines().map(|line| line.trim_start_matches(sign).trim());
    let lines = lines
        .filter(|line| !line.is_empty() && !line.starts_with("warning:"))
        .filter(|line| !line.starts_with("hint:") || line.contains("authentication credentials"));
    let text = lines.collect::<Vec<_>>().join(" ");
    let text = text.trim_start_matches("error: ").trim_end_matches('.');
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// The interpreter of an environment.
pub(super) fn python_of(environment: &Path) -> PathBuf {
    environment.join(OsStr::new("bin/python"))
}

#[cfg(test)]
mod tests {
    use berth_spec::{
        Secret,
        credential::{FieldValue, Granted, Scope},
    };

    use super::*;

    #[test]
    fn words_are_sorted_and_shortened() {
        let conflict = "  × No solution found when resolving dependencies:\n  ╰─▶ Because a==1.0.0 depends on b>=2 and you \
                        require b==1.0.0, we can conclude that your requirements are unsatisfiable.\n\n  hint: x";
        for (words, expected) in [
            (conflict, Some(FailureCategory::Dependencies)),
            (
                "error: Failed to fetch: `http://h/simple/a/`\n  Caused by: error sending request",
                Some(FailureCategory::Network),
            ),
            (
                "error: Failed to fetch: `http://h/a`\n  Caused by: HTTP status server error (503 Service Unavailable)",
                Some(FailureCategory::Network),
            ),
            ("error: HTTP status client error (401 Unauthorized) for url (http://h)", Some(FailureCategory::Auth)),
            ("error: failed to write: No space left on device (os error 28)", Some(FailureCategory::Disk)),
            (
                "  × Failed to build `a==1.0.0`\n  ├─▶ The build backend returned an error",
                Some(FailureCategory::Dependencies),
            ),
            ("error: something new", None),
        ] {
            assert_eq!(category(words), expected, "{words}");
        }
        let short = "No solution found when resolving dependencies: Because a==1.0.0 depends on b>=2 and you require \
                     b==1.0.0, we can conclude that your requirements are unsatisfiable";
        assert_eq!(gist(conflict), short);
        let after_progress = format!("Resolved 2 packages in 8ms\nDownloading a (1.0MiB)\nwarning: x\n{conflict}");
        assert_eq!(without_progress(&after_progress), conflict);
        assert_eq!(without_progress("Resolved 2 packages in 8ms\n Downloaded a\n"), "");
        assert_eq!(without_progress("Resolved 2 packages in 8ms\nsomething new\n"), "something new\n");
        assert!(gist(&"é".repeat(5_000)).len() < 2_000);
    }

    #[test]
    fn a_password_of_an_index_does_not_cross_the_network_in_the_clear() {
        let text = |value: &str| FieldValue::Text(Secret::new(value));
        let fields = [("registry_url", "https://packages"), ("username", "u"), ("password", "hush")];
        let fields = fields.into_iter().map(|(name, value)| (name.to_owned(), text(value))).collect();
        let (credential, _) = Credential::build(Kind::Registry, fields).expect("a credential");
        let granted = Granted { credential, scope: Scope::default(), expires: None };
        let keys = CredentialSet { secrets: [("index".to_owned(), granted)].into(), ..CredentialSet::default() };
        let with = |url: &str| {
            let settings = Settings { package_index: Some(url.to_owned()), ..Settings::default() };
            with_index(Program::new("uv", Vec::new(), Path::new("/")), &settings, &keys).map(|(_, name)| name)
        };
        assert_eq!(with("https://packages/simple"), Ok(Some("index".to_owned())));
        assert_eq!(with("http://127.0.0.1:1/simple"), Ok(Some("index".to_owned())));
        let refused = with("http://packages/simple").expect_err("everybody could read it");
        assert!(refused.message.contains("write https") && !refused.message.contains("hush"), "{refused}");
    }

    #[test]
    fn the_index_is_the_one_that_is_set() {
        let of = |index: Option<&str>, variables: &[(&str, &str)]| {
            let environment = variables.iter().map(|(name, value)| (name.into(), value.into())).collect();
            let settings = Settings { package_index: index.map(str::to_owned), environment, ..Settings::default() };
            Uv::index(&settings).name().to_owned()
        };
        assert_eq!(of(None, &[]), "https://pypi.org");
        assert_eq!(of(Some("https://u:p@mirror:8443/simple"), &[]), "https://mirror:8443");
        assert_eq!(of(None, &[("UV_DEFAULT_INDEX", "corp=https://corp/simple")]), "https://corp");
        assert_eq!(of(None, &[("PIP_INDEX_URL", "http://pip/simple")]), "http://pip");
    }
}
