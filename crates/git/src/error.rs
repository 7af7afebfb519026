//! Failures of git, classified by what to do about them.

use std::fmt;

/// Kind of failure. Decides if a retry can help and who has to act.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Category {
    /// The other side cannot be reached, or the line broke.
    Network,
    /// The deadline passed.
    TimedOut,
    /// The other side does not let us in: no credentials, wrong ones, or a host key that is not known.
    Auth,
    /// The certificate of the other side is untrusted, expired, or for another name.
    Certificate,
    /// No such repository (or none that these credentials may see).
    NotFound,
    /// No such tag, branch or commit.
    RefNotFound,
    /// No such file in that commit.
    PathNotFound,
    /// The ref has moved: another push came first. Fetch, build on the new tip, push again.
    Moved,
    /// The other side refused the push: a hook, or a protected branch.
    Refused,
    /// No space, no permission, or a broken disk on this machine.
    Disk,
    /// Files of a local repository are damaged. A mirror is rebuilt with the next call to its remote.
    Corrupt,
    /// More than the caller allowed.
    TooLarge,
    /// The request is invalid, or unsafe to pass to git.
    Invalid,
    /// The signature is missing, wrong, or not by a trusted key.
    Signature,
    /// The caller's [`Stop`](crate::Stop) was triggered.
    Cancelled,
    /// Any other failure.
    Internal,
}

impl Category {
    /// True if the same call may succeed later without anybody acting.
    #[must_use]
    pub const fn is_transient(self) -> bool {
        matches!(self, Self::Network | Self::TimedOut | Self::Moved | Self::Cancelled | Self::Corrupt)
    }

    /// One word, for metrics and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Network => "network",
            Self::TimedOut => "timed_out",
            Self::Auth => "auth",
            Self::Certificate => "certificate",
            Self::NotFound => "not_found",
            Self::RefNotFound => "ref_not_found",
            Self::PathNotFound => "path_not_found",
            Self::Moved => "moved",
            Self::Refused => "refused",
            Self::Disk => "disk",
            Self::Corrupt => "corrupt",
            Self::TooLarge => "too_large",
            Self::Invalid => "invalid",
            Self::Signature => "signature",
            Self::Cancelled => "cancelled",
            Self::Internal => "internal",
        }
    }

    const fn remedy(self) -> &'static str {
        match self {
            Self::Auth => "check the credentials for this repository (and the host key, for ssh)",
            Self::Certificate => {
                "if it is by an authority of your own, name its file (PEM) in GIT_SSL_CAINFO; else its owner has to renew it"
            }
            Self::NotFound => "check the URL, and that the credentials may see the repository",
            Self::RefNotFound => "push the tag or commit, or name one that is there",
            Self::Disk => "make room, or mend the permissions of the data folder",
            Self::Corrupt => "a copy is made anew by itself; look after the disk",
            _ => "",
        }
    }

    /// Classifies git's output by [`PHRASES`].
    pub(crate) fn of(words: &str) -> Self {
        // What the other side says of its own files is no word about ours.
        let ours = words.lines().filter(|line| !line.starts_with("remote:")).collect::<Vec<_>>().join("\n");
        let said = |category: Category| if category == Self::Corrupt { ours.as_str() } else { words };
        PHRASES
            .iter()
            .find(|(category, phrases)| phrases.iter().any(|phrase| said(*category).contains(phrase)))
            .map_or(Self::Internal, |(category, _)| *category)
    }
}

/// Phrases of git's messages (C locale) by category; the first that matches counts. A broken connection also reports that the remote hung
/// up.
const PHRASES: [(Category, &[&str]); 9] = [
    (Category::Corrupt, &BROKEN),
    (Category::Disk, &["No space left", "Read-only file system", "Disk quota exceeded", "unable to write file"]),
    (
        Category::Auth,
        &[
            "Authentication failed",
            "could not read Username",
            "could not read Password",
            "terminal prompts disabled",
            "Permission denied (",
            "Host key verification failed",
            "returned error: 401",
            "returned error: 403",
            "Access denied",
            // A repository of this machine that belongs to somebody else.
            "dubious ownership",
        ],
    ),
    (
        Category::Certificate,
        &[
            "certificate verification failed",
            "certificate problem",
            "SSL: certificate subject name",
            "SSL: no alternative certificate subject name",
            "error setting certificate",
            "Problem with the SSL CA cert",
        ],
    ),
    (
        Category::Network,
        &[
            "Could not resolve host",
            "Temporary failure in name resolution",
            "Failed to connect",
            "Couldn't connect",
            "Connection refused",
            "Connection timed out",
            "Connection reset",
            "Connection closed by",
            "Network is unreachable",
            "No route to host",
            "Operation timed out",
            "Operation too slow",
            "early EOF",
            "RPC failed",
            "Empty reply from server",
            "gnutls_handshake",
            "SSL",
            "returned error: 429",
            "returned error: 5",
        ],
    ),
    (
        Category::RefNotFound,
        &["couldn't find remote ref", "not our ref", "unadvertised object", "Server does not allow request"],
    ),
    (
        Category::NotFound,
        &[
            "not found",
            "does not appear to be a git repository",
            "returned error: 404",
            "does not exist",
            "not a git repository",
        ],
    ),
    (Category::Disk, &["Permission denied", "cannot lock ref", "index.lock", "shallow.lock"]),
    (Category::Network, &["The remote end hung up", "Could not read from remote repository"]),
];

/// Messages of git about its own damaged files.
const BROKEN: [&str; 10] = [
    "error: index file",
    "is corrupt",
    "error: object file",
    "inflate: data stream error",
    "unable to unpack",
    "unable to read tree",
    "unable to read sha1 file",
    "error: packfile",
    "does not point to a valid object",
    "bad config line",
];

/// A call to git that failed. The text names what was being done, where, git's own words, and a remedy; it never
/// holds a credential.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GitError {
    /// Kind of failure.
    pub category: Category,
    /// Operation that failed, for example `fetch`.
    pub doing: String,
    /// The repository, without credentials; empty for a local question.
    pub remote: String,
    /// The words of git or of the machine, shortened.
    pub detail: String,
}

impl GitError {
    pub(crate) fn new(category: Category, doing: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { category, doing: doing.into(), remote: String::new(), detail: detail.into() }
    }

    /// From what git wrote to standard error.
    pub(crate) fn said(doing: &str, words: &str) -> Self {
        Self::new(Category::of(words), doing, gist(words))
    }

    /// Wraps a system error.
    pub(crate) fn io(doing: &str, error: &std::io::Error) -> Self {
        let category = match error.kind() {
            std::io::ErrorKind::NotFound if doing == STARTING => Category::Internal,
            _ => Category::Disk,
        };
        Self::new(category, doing, error.to_string())
    }

    pub(crate) fn at(mut self, remote: &str) -> Self {
        remote.clone_into(&mut self.remote);
        self
    }

    /// True if the same call may succeed later without anybody acting.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        self.category.is_transient()
    }
}

/// Name of the operation that starts the program, as errors show it.
pub(crate) const STARTING: &str = "start git";

/// The lines that say why, without progress and hints; bounded.
fn gist(words: &str) -> String {
    /// Longest detail in bytes. Holds the report of a hook, and stops a hostile server from filling logs.
    const LONGEST: usize = 4_096;
    let telling = |line: &&str| {
        let line = line.trim();
        !line.is_empty()
            && !line.starts_with("hint:")
            && !line.starts_with("Please make sure you have the correct access rights")
            && !line.starts_with("and the repository exists")
            && !line.starts_with("remote: Enumerating")
            && !line.starts_with("remote: Counting")
            && !line.starts_with("remote: Compressing")
    };
    let printable = |c: char| if c.is_control() && c != '\n' { ' ' } else { c };
    let mut text: String =
        words.lines().filter(telling).map(|line| line.trim_end().to_owned() + "\n").collect::<String>();
    if text.len() > LONGEST {
        let end = (0..=LONGEST).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
        text.truncate(end);
        text.push_str(" … (shortened)");
    }
    text.trim().chars().map(printable).collect()
}

impl GitError {
    /// Message without the remedy, for places that show [`Self::remedy`] beside it.
    #[must_use]
    pub fn what(&self) -> String {
        let mut text = format!("cannot {}", self.doing);
        for (before, part) in [(" ", &self.remote), (": ", &self.detail)] {
            if !part.is_empty() {
                text.push_str(before);
                text.push_str(part);
            }
        }
        text
    }

    /// Remedy. Empty if the detail contains one or nobody has to act.
    #[must_use]
    pub const fn remedy(&self) -> &'static str {
        self.category.remedy()
    }
}

impl fmt::Display for GitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what())?;
        let remedy = self.remedy();
        if remedy.is_empty() { Ok(()) } else { write!(f, "; {remedy}") }
    }
}

impl std::error::Error for GitError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gits_words_are_sorted() {
        for (words, category) in [
            ("fatal: could not read Username for 'https://h': terminal prompts disabled", Category::Auth),
            ("git@h: Permission denied (publickey).\nfatal: Could not read from remote repository.", Category::Auth),
            ("fatal: unable to access 'https://h/': Could not resolve host: h", Category::Network),
            ("error: RPC failed; curl 56\nfatal: the remote end hung up unexpectedly", Category::Network),
            ("fatal: unable to access 'https://h/': The requested URL returned error: 503", Category::Network),
            (
                "fatal: unable to access 'https://h/': server certificate verification failed. CAfile: none CRLfile: none",
                Category::Certificate,
            ),
            (
                "fatal: unable to access 'https://h/': SSL certificate problem: self-signed certificate",
                Category::Certificate,
            ),
            (
                "fatal: unable to access 'https://h/': gnutls_handshake() failed: The TLS connection was",
                Category::Network,
            ),
            ("fatal: repository 'https://h/x/' not found", Category::NotFound),
            ("fatal: '/srv/x' does not appear to be a git repository", Category::NotFound),
            ("fatal: couldn't find remote ref refs/tags/v9", Category::RefNotFound),
            ("error: Server does not allow request for unadvertised object 1234", Category::RefNotFound),
            (
                "fatal: detected dubious ownership in repository at '/x'\nfatal: Could not read from remote",
                Category::Auth,
            ),
            ("fatal: write error: No space left on device", Category::Disk),
            ("error: object file ./objects/ab/cd is empty\nfatal: loose object abcd is corrupt", Category::Corrupt),
            ("remote: fatal: loose object abcd is corrupt\nfatal: early EOF", Category::Network),
            ("fatal: something else", Category::Internal),
        ] {
            assert_eq!(GitError::said("fetch", words).category, category, "{words}");
        }
    }

    #[test]
    fn long_words_are_cut() {
        assert!(GitError::said("fetch", &"é".repeat(10_000)).detail.len() < 5_000);
    }
}
