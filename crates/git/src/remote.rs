//! Location of a repository: a URL that is safe for git and safe to show.

use std::fmt;

use url::Url;

use crate::{Category, GitError};

/// Ways to a repository that are let through. The default is `https`, `ssh`, and `http` on this machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Protocols {
    local: bool,
    http: bool,
}

impl Protocols {
    /// Also allows repositories on this machine (`file:`, absolute paths). The author of the URL can then read every
    /// file that this process can.
    #[must_use]
    pub const fn with_local(self) -> Self {
        Self { local: true, ..self }
    }

    /// `http:` to other machines, too: whoever is between can change what is fetched, and what is fetched runs.
    #[must_use]
    pub const fn with_http(self) -> Self {
        Self { http: true, ..self }
    }

    fn allows(self, remote: &Remote) -> bool {
        match remote.scheme {
            "https" | "ssh" => true,
            "http" => self.http || remote.is_loopback(),
            "file" => self.local,
            // `git:` neither hides nor proves anything.
            _ => false,
        }
    }
}

/// The URL of a repository, checked.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Remote {
    url: String,
    scheme: &'static str,
    host: String,
    user: String,
    port: Option<u16>,
}

/// Protocols git may use. Each call allows only the scheme of its remote.
const SCHEMES: [&str; 5] = ["https", "http", "ssh", "file", "git"];

/// Longer ones are no URLs that people write.
const MAX_URL_LEN: usize = 2_048;

impl Remote {
    /// Checks a URL: `https://host/path.git`, `ssh://git@host/path.git`, `git@host:path.git`, and where they are
    /// allowed `file:///path.git` or an absolute path.
    ///
    /// # Errors
    /// For another protocol, a password inside the URL, and what git would take for an option.
    pub fn parse(text: &str, protocols: Protocols) -> Result<Self, GitError> {
        let refused = |why: &str| Err(GitError::new(Category::Invalid, "use the URL", why).at(&redact(text)));
        if text.is_empty() || text.len() > MAX_URL_LEN {
            return refused("it is empty or too long");
        }
        if text.starts_with('-') || text.chars().any(|c| c.is_control() || c == ' ') {
            return refused("it begins with a dash, or holds blanks or control characters");
        }
        if text.contains("::") {
            return refused("remote helpers (`name::address`) are not used");
        }
        let parsed = if text.starts_with('/') {
            Self { url: text.to_owned(), scheme: "file", host: String::new(), user: String::new(), port: None }
        } else if text.contains("://") {
            match Self::of_url(text) {
                Ok(remote) => remote,
                Err(why) => return refused(why),
            }
        } else if let Some(remote) = Self::of_short_form(text) {
            remote
        } else {
            return refused("write https://host/path.git, ssh://git@host/path.git or git@host:path.git");
        };
        if !protocols.allows(&parsed) {
            let why = match parsed.scheme {
                "file" => "repositories of this machine are not allowed here: write an https or ssh URL",
                "http" => {
                    "over http, whoever is between can change the code: write an https or ssh URL, or say --http-repositories"
                }
                _ => "this protocol is not allowed: write an https or ssh URL",
            };
            return refused(why);
        }
        Ok(parsed)
    }

    fn of_url(text: &str) -> Result<Self, &'static str> {
        let url = Url::parse(text).map_err(|_| "it is no URL")?;
        let scheme =
            SCHEMES.into_iter().find(|scheme| *scheme == url.scheme()).ok_or("its protocol is not one of git's")?;
        if url.password().is_some() {
            return Err("it holds a password: put credentials into the secrets instead");
        }
        let host = url.host_str().unwrap_or_default().to_owned();
        if scheme != "file" && (host.is_empty() || host.starts_with('-') || url.username().starts_with('-')) {
            return Err("it has no proper host");
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err("a repository's URL has no ? and no #");
        }
        let user = url.username().to_owned();
        let mut plain = url.clone();
        // Git is given the URL as an argument, which everybody on the machine sees, and many write a token there.
        let text = match scheme {
            "https" | "http" if !user.is_empty() && plain.set_username("").is_ok() => plain.to_string(),
            _ => text.to_owned(),
        };
        Ok(Self { url: text, scheme, host, user, port: url.port() })
    }

    /// `user@host:path`, which is ssh.
    fn of_short_form(text: &str) -> Option<Self> {
        let (place, path) = text.split_once(':')?;
        let (user, host) = place.split_once('@').unwrap_or(("", place));
        let proper = |part: &str| !part.starts_with('-') && !part.contains(['/', '@']);
        let fine = proper(user) && proper(host) && !host.is_empty() && !path.is_empty() && !path.starts_with('-');
        fine.then(|| Self {
            url: text.to_owned(),
            scheme: "ssh",
            host: host.to_owned(),
            user: user.to_owned(),
            port: None,
        })
    }

    /// As git gets it.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// For people: without user and password.
    #[must_use]
    pub fn shown(&self) -> String {
        redact(&self.url)
    }

    /// `https`, `http`, `ssh`, `file` or `git`.
    #[must_use]
    pub const fn scheme(&self) -> &'static str {
        self.scheme
    }

    /// The host; empty for a repository of this machine.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Host of the remote as the key of a circuit breaker: `https://host:port`.
    #[must_use]
    pub fn origin(&self) -> String {
        match self.port {
            Some(port) => format!("{}://{}:{port}", self.scheme, self.host),
            None => format!("{}://{}", self.scheme, self.host),
        }
    }

    pub(crate) fn user(&self) -> &str {
        &self.user
    }

    /// True if the remote is on this machine.
    pub(crate) fn is_loopback(&self) -> bool {
        let host = self.host.trim_matches(['[', ']']);
        host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
    }
}

impl fmt::Display for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown())
    }
}

/// A URL without what stands between `://` and `@`, in printable characters.
fn redact(text: &str) -> String {
    let plain: String = text.chars().take(MAX_URL_LEN).map(|c| if c.is_control() { '?' } else { c }).collect();
    let Some((scheme, rest)) = plain.split_once("://") else { return plain };
    let (place, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    match place.rsplit_once('@') {
        Some((_, host)) => format!("{scheme}://{host}{path}"),
        None => plain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_urls_that_are_safe_and_allowed_pass() {
        let plain = Protocols::default();
        for text in [
            "https://h/x.git",
            "https://user@h:8443/x.git",
            "ssh://git@h:22/x.git",
            "git@h:team/x.git",
            "http://127.0.0.1:80/x",
        ] {
            assert!(Remote::parse(text, plain).is_ok(), "{text}");
        }
        for text in [
            "",
            "-x",
            "--upload-pack=touch /tmp/x",
            "ext::sh -c true",
            "fd::3",
            "file:///srv/x.git",
            "/srv/x.git",
            "git://h/x",
            "https://u:p@h/x",
            "ssh://-oProxyCommand=x/y",
            "ssh://-o@h/y",
            "-oProxyCommand=x:y",
            "git@-h:x",
            "https://h/x?y",
            "h/x",
            "ftp://h/x",
            "https://h/a\nb",
        ] {
            assert!(Remote::parse(text, plain).is_err(), "{text}");
        }
        assert!(Remote::parse("/srv/x.git", plain.with_local()).is_ok());
    }

    #[test]
    fn nobody_sees_the_user_or_password() {
        let error = Remote::parse("https://u:hunter2@h/x", Protocols::default()).expect_err("a password");
        assert!(!error.to_string().contains("hunter2") && error.to_string().contains("https://h/x"), "{error}");
        let remote = Remote::parse("https://tok3n@h/x", Protocols::default()).expect("a user");
        assert_eq!((remote.shown().as_str(), remote.origin().as_str()), ("https://h/x", "https://h"));
        assert_eq!((remote.url(), remote.user()), ("https://h/x", "tok3n"), "others see arguments");
    }
}
