//! The `git` program and the only surroundings in which it is run.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use crate::{
    Category, GitError, Stop,
    error::STARTING,
    group::{self, DiskQuota, Finished, RunError},
};

/// Environment variables passed on to git: paths of programs and network settings. Everything else (`GIT_DIR` of a
/// hook, an agent's socket, a home folder) is withheld.
const PASSED_ON: [&str; 12] = [
    "PATH",
    "TMPDIR",
    "http_proxy",
    "https_proxy",
    "HTTPS_PROXY",
    "all_proxy",
    "ALL_PROXY",
    "no_proxy",
    "NO_PROXY",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "GIT_SSL_CAINFO",
];

/// Set for every run.
const SURROUNDINGS: [(&str, &str); 12] = [
    ("GIT_TERMINAL_PROMPT", "0"),
    ("GIT_CONFIG_NOSYSTEM", "1"),
    ("GIT_CONFIG_GLOBAL", "/dev/null"),
    ("GIT_ATTR_NOSYSTEM", "1"),
    ("GIT_NO_REPLACE_OBJECTS", "1"),
    ("GIT_NO_LAZY_FETCH", "1"),
    ("GIT_LITERAL_PATHSPECS", "1"),
    ("GIT_OPTIONAL_LOCKS", "0"),
    ("GIT_ADVICE", "0"),
    ("GIT_PROTOCOL_FROM_USER", "0"),
    // No ~/.netrc, no ~/.ssh: credentials are given per call or not at all.
    ("HOME", "/nonexistent"),
    ("LC_ALL", "C"),
];

/// Configuration of every run; it wins over what a repository says.
const CONFIGURATION: [(&str, &str); 12] = [
    ("core.hooksPath", "/dev/null"),
    ("core.fsmonitor", "false"),
    ("core.quotePath", "false"),
    // An empty helper clears the list.
    ("credential.helper", ""),
    ("gc.autoDetach", "false"),
    ("maintenance.autoDetach", "false"),
    ("http.lowSpeedLimit", "1000"),
    ("http.lowSpeedTime", "30"),
    ("log.showSignature", "false"),
    // Objects are checked when they come: what a host sends must not be what breaks git later. Old tools wrote two harmless
    // faults into real repositories.
    ("transfer.fsckObjects", "true"),
    ("fetch.fsck.zeroPaddedFilemode", "ignore"),
    ("fetch.fsck.badTimezone", "ignore"),
];

/// The `git` program of this machine.
#[derive(Debug, Clone)]
pub struct Git {
    program: PathBuf,
    environment: Vec<(OsString, OsString)>,
}

impl Git {
    /// With the process's environment, of which only what [`Git`] needs is passed on (`PATH`, proxies, CA files).
    #[must_use]
    pub fn new(environment: impl IntoIterator<Item = (OsString, OsString)>) -> Self {
        let mut environment: Vec<_> = environment
            .into_iter()
            .filter(|(name, _)| PASSED_ON.iter().any(|passed| name.as_os_str() == OsStr::new(passed)))
            .collect();
        if !environment.iter().any(|(name, _)| name == "PATH") {
            environment.push(("PATH".into(), "/usr/local/bin:/usr/bin:/bin".into()));
        }
        Self { program: "git".into(), environment }
    }

    /// Another program instead of `git`.
    #[must_use]
    pub fn with_program(mut self, program: impl Into<PathBuf>) -> Self {
        self.program = program.into();
        self
    }

    /// The version, as (2, 39); older ones than 2.31 are refused: they do not read their configuration from the
    /// environment, which is how credentials reach git.
    ///
    /// # Errors
    /// If there is no git, or an old one.
    pub fn version(&self, stop: &Stop) -> Result<(u32, u32), GitError> {
        let out = self.run("ask git for its version").arg("version").ok(&stop.at_most(Duration::from_secs(10)))?;
        let text = String::from_utf8_lossy(&out);
        let mut numbers = text.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse().ok());
        let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        if version < (2, 31) {
            let detail = format!("{} is too old: git 2.31 or newer is needed", text.trim());
            return Err(GitError::new(Category::Internal, "use git", detail));
        }
        Ok(version)
    }

    /// A run to be filled in; `doing` completes "cannot …".
    pub(crate) fn run(&self, doing: &'static str) -> Run<'_> {
        Run {
            git: self,
            doing,
            remote: String::new(),
            arguments: Vec::new(),
            configuration: Vec::new(),
            environment: Vec::new(),
            input: None,
            most: MOST_OUTPUT,
            into: None,
            room: None,
            doubt: None,
        }
    }
}

/// Default limit of output in bytes. Holds a tree or a list of refs with a few 100,000 lines, and bounds memory.
const MOST_OUTPUT: usize = 64 << 20;

/// One run of git before it starts: arguments, surroundings and limits.
#[must_use]
pub(crate) struct Run<'a> {
    git: &'a Git,
    doing: &'static str,
    remote: String,
    arguments: Vec<OsString>,
    configuration: Vec<(String, String)>,
    environment: Vec<(OsString, OsString)>,
    input: Option<Vec<u8>>,
    most: usize,
    into: Option<File>,
    room: Option<DiskQuota>,
    doubt: Option<Arc<AtomicBool>>,
}

impl Run<'_> {
    pub(crate) fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.arguments.push(argument.as_ref().to_owned());
        self
    }

    pub(crate) fn args(mut self, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        self.arguments.extend(arguments.into_iter().map(|argument| argument.as_ref().to_owned()));
        self
    }

    pub(crate) fn config(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.configuration.push((name.into(), value.into()));
        self
    }

    pub(crate) fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    pub(crate) fn input(mut self, input: Vec<u8>) -> Self {
        self.input = Some(input);
        self
    }

    pub(crate) fn most(mut self, bytes: usize) -> Self {
        self.most = bytes;
        self
    }

    /// Standard output goes to this file.
    pub(crate) fn into_file(mut self, file: File) -> Self {
        self.into = Some(file);
        self
    }

    /// The run ends when the files of this folder have more bytes in sum.
    pub(crate) fn within(mut self, folder: PathBuf, most: u64) -> Self {
        self.room = Some(DiskQuota { folder, most });
        self
    }

    /// Raised if the run fails because the repository's own files are broken.
    pub(crate) fn doubt(mut self, doubt: &Arc<AtomicBool>) -> Self {
        self.doubt = Some(Arc::clone(doubt));
        self
    }

    /// The repository that errors name.
    pub(crate) fn remote(mut self, shown: &str) -> Self {
        shown.clone_into(&mut self.remote);
        self
    }

    pub(crate) fn repository(self, folder: &Path) -> Self {
        let safe = folder.to_string_lossy().into_owned();
        let mut option = OsString::from("--git-dir=");
        option.push(folder);
        let mut run = self.config("safe.directory", safe);
        run.arguments.insert(0, option);
        run
    }

    /// The output of a run that ended well.
    pub(crate) fn ok(self, stop: &Stop) -> Result<Vec<u8>, GitError> {
        let (doing, remote) = (self.doing, self.remote.clone());
        let finished = self.finish(stop)?;
        if finished.status.success() {
            return Ok(finished.out);
        }
        Err(failed(doing, &finished).at(&remote))
    }

    /// The output as text; bytes that are not UTF-8 are replaced.
    pub(crate) fn text(self, stop: &Stop) -> Result<String, GitError> {
        Ok(String::from_utf8_lossy(&self.ok(stop)?).into_owned())
    }

    /// Waits for the end of the run.
    pub(crate) fn finish(mut self, stop: &Stop) -> Result<Finished, GitError> {
        let command = self.command();
        let finished = group::run(command, self.input, self.most, self.room.as_ref(), stop);
        if let (Ok(finished), Some(doubt)) = (&finished, &self.doubt)
            && !finished.status.success()
            && Category::of(&finished.words) == Category::Corrupt
        {
            doubt.store(true, Ordering::Relaxed);
        }
        finished.map_err(|ended| {
            let doing = self.doing;
            match ended {
                RunError::Io(error) => GitError::io(
                    STARTING,
                    &std::io::Error::new(error.kind(), format!("{}: {error}", self.git.program.display())),
                ),
                RunError::TooMuch => {
                    GitError::new(Category::TooLarge, doing, format!("git wrote more than {} bytes", self.most))
                }
                RunError::Full => {
                    let most = self.room.map_or(0, |room| room.most);
                    GitError::new(Category::TooLarge, doing, format!("its copy takes more than {most} bytes on disk"))
                }
                RunError::Cancelled => GitError::new(Category::Cancelled, doing, "cancelled"),
                RunError::TimedOut => GitError::new(Category::TimedOut, doing, "not done before the deadline"),
            }
            .at(&self.remote)
        })
    }

    fn command(&mut self) -> Command {
        let mut command = Command::new(&self.git.program);
        command.env_clear().envs(self.git.environment.iter().map(|(name, value)| (name, value)));
        command.envs(SURROUNDINGS);
        let fixed = CONFIGURATION.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let mut count = 0;
        // In the environment, never in the arguments, which every user of the machine can see.
        for (name, value) in fixed.chain(self.configuration.drain(..)) {
            command.env(format!("GIT_CONFIG_KEY_{count}"), name).env(format!("GIT_CONFIG_VALUE_{count}"), value);
            count += 1;
        }
        command.env("GIT_CONFIG_COUNT", count.to_string());
        command.envs(self.environment.drain(..)).args(&self.arguments);
        command.stdin(if self.input.is_some() { Stdio::piped() } else { Stdio::null() });
        command.stdout(self.into.take().map_or_else(Stdio::piped, Stdio::from)).stderr(Stdio::piped());
        command
    }
}

/// A run that did not end well.
pub(crate) fn failed(doing: &str, finished: &Finished) -> GitError {
    let words = match finished.words.trim() {
        "" => group::ending(finished.status),
        words => words.to_owned(),
    };
    GitError::said(doing, &words)
}
