//! The mark beside a commit where people look at it: pending, success or failure, in the form of each host.
//!
//! | host | request |
//! |---|---|
//! | GitHub | `POST /repos/OWNER/NAME/statuses/SHA` |
//! | GitLab | `POST /projects/OWNER%2FNAME/statuses/SHA` |
//! | Gitea, Forgejo | `POST /repos/OWNER/NAME/statuses/SHA` |
//! | Bitbucket Cloud | `POST /repositories/OWNER/NAME/commit/SHA/statuses/build` |
//! | Bitbucket Server | `POST /rest/build-status/1.0/commits/SHA` |

use serde_json::{Value, json};
use url::Url;

use crate::settings::{CommitStatus, StatusProvider};

/// State shown beside a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// Being validated.
    Pending,
    /// Validated and in force.
    Success,
    /// Rejected; the description says why.
    Failure,
}

/// A request to be sent; the token is no part of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// URL of the POST request.
    pub url: String,
    /// Headers beside those of JSON.
    pub headers: Vec<(&'static str, String)>,
    /// Header for the token, which the sender adds.
    pub token: TokenHeader,
    /// JSON body in the form of the host.
    pub body: Value,
}

/// Header in which a host expects its token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenHeader {
    /// Sent as `Authorization: Bearer TOKEN`.
    Bearer,
    /// Sent as `Authorization: token TOKEN`.
    Token,
    /// Sent as `PRIVATE-TOKEN: TOKEN`.
    Private,
}

impl TokenHeader {
    /// The header's name and value.
    #[must_use]
    pub fn header(self, token: &str) -> (&'static str, String) {
        match self {
            Self::Bearer => ("authorization", format!("Bearer {token}")),
            Self::Token => ("authorization", format!("token {token}")),
            Self::Private => ("private-token", token.to_owned()),
        }
    }
}

/// The request that marks `sha`. `repository` is the URL of the registry, without credentials.
///
/// # Errors
/// If the settings do not say where it is, with the remedy.
pub fn request(
    settings: &CommitStatus,
    repository: &str,
    sha: &str,
    mark: Mark,
    words: &str,
) -> Result<Request, String> {
    let place = ApiEndpoint::of(settings, repository)?;
    let context = settings.context.clone();
    let ApiEndpoint { api, name } = &place;
    let form = |url: String, token, body| Request { url, headers: Vec::new(), token, body };
    Ok(match settings.provider {
        StatusProvider::Github => Request {
            headers: vec![
                ("accept", "application/vnd.github+json".to_owned()),
                ("x-github-api-version", "2022-11-28".to_owned()),
            ],
            ..form(
                format!("{api}/repos/{name}/statuses/{sha}"),
                TokenHeader::Bearer,
                json!({"state": plain(mark), "description": cut(words, 140), "context": context}),
            )
        },
        StatusProvider::Gitea => form(
            format!("{api}/repos/{name}/statuses/{sha}"),
            TokenHeader::Token,
            json!({"state": plain(mark), "description": cut(words, 255), "context": context}),
        ),
        StatusProvider::Gitlab => {
            let state = if mark == Mark::Failure { "failed" } else { plain(mark) };
            let body = json!({"state": state, "description": cut(words, 255), "name": context});
            form(format!("{api}/projects/{}/statuses/{sha}", name.replace('/', "%2F")), TokenHeader::Private, body)
        }
        StatusProvider::Bitbucket => {
            let state = match mark {
                Mark::Pending => "INPROGRESS",
                Mark::Success => "SUCCESSFUL",
                Mark::Failure => "FAILED",
            };
            // Both want an address to lead to; the commit itself is one that surely exists.
            let body = json!({
                "key": cut(&context, 40), "name": context, "state": state, "description": cut(words, 255),
                "url": web_address(repository, sha),
            });
            let cloud = api.contains("api.bitbucket.org");
            let url = if cloud {
                format!("{api}/repositories/{name}/commit/{sha}/statuses/build")
            } else {
                format!("{api}/rest/build-status/1.0/commits/{sha}")
            };
            form(url, TokenHeader::Bearer, body)
        }
    })
}

/// The host of a URL, for messages; empty where it has none.
#[must_use]
pub fn host(url: &str) -> String {
    Url::parse(url).ok().and_then(|url| url.host_str().map(str::to_owned)).unwrap_or_default()
}

/// True if `url` belongs to the host of `repository`. A credential of the repository may go only there.
#[must_use]
pub fn is_at_home(url: &str, repository: &str) -> bool {
    let origin = |text: &str| Url::parse(text).ok().filter(|url| url.has_host()).map(|url| url.origin());
    match (origin(url), origin(repository)) {
        (Some(api), Some(home)) if api == home => true,
        (Some(api), Some(home)) => {
            const ELSEWHERE: [(&str, &str); 2] = [
                ("https://github.com", "https://api.github.com"),
                ("https://bitbucket.org", "https://api.bitbucket.org"),
            ];
            let (home, api) = (home.ascii_serialization(), api.ascii_serialization());
            ELSEWHERE.contains(&(home.as_str(), api.as_str()))
        }
        _ => false,
    }
}

/// API address of a host, and its name of the repository.
struct ApiEndpoint {
    api: String,
    name: String,
}

impl ApiEndpoint {
    fn of(settings: &CommitStatus, repository: &str) -> Result<Self, String> {
        let (host, path) = host_and_path(repository).unwrap_or_default();
        let name = match &settings.repository {
            Some(name) => name.trim_matches('/').to_owned(),
            None => path,
        };
        if !name.contains('/') || name.chars().any(|c| c.is_control() || matches!(c, ' ' | '?' | '#' | '%')) {
            let remedy = "write commitStatus.repository: owner/name in registry.yaml";
            return Err(format!("{repository} does not say which repository of the host it is: {remedy}"));
        }
        // Over HTTP the interface is where the repository is, port and all; over ssh nothing is known but the host.
        let web = Url::parse(repository).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
        let home = web.map_or_else(|| format!("https://{host}"), |url| url.origin().ascii_serialization());
        let api = match (&settings.api, settings.provider) {
            (Some(api), _) => api.trim_end_matches('/').to_owned(),
            (None, _) if host.is_empty() => {
                return Err(format!("{repository} names no host: write commitStatus.api in registry.yaml"));
            }
            (None, StatusProvider::Github) if host == "github.com" => "https://api.github.com".to_owned(),
            (None, StatusProvider::Github) => format!("{home}/api/v3"),
            (None, StatusProvider::Gitlab) => format!("{home}/api/v4"),
            (None, StatusProvider::Gitea) => format!("{home}/api/v1"),
            (None, StatusProvider::Bitbucket) if host == "bitbucket.org" => "https://api.bitbucket.org/2.0".to_owned(),
            (None, StatusProvider::Bitbucket) => home,
        };
        Ok(Self { api, name })
    }
}

/// `https://host/owner/name.git` and `git@host:owner/name.git`.
fn host_and_path(repository: &str) -> Option<(String, String)> {
    let (host, path) = match Url::parse(repository) {
        Ok(url) => (url.host_str().unwrap_or_default().to_owned(), url.path().to_owned()),
        Err(_) => {
            let (place, path) = repository.split_once(':')?;
            (place.rsplit('@').next().unwrap_or(place).to_owned(), path.to_owned())
        }
    };
    let path = path.trim_matches('/').trim_end_matches(".git").to_owned();
    Some((host, path))
}

fn web_address(repository: &str, sha: &str) -> String {
    match host_and_path(repository) {
        Some((host, path)) if !host.is_empty() => format!("https://{host}/{path}/commits/{sha}"),
        _ => format!("https://localhost/{sha}"),
    }
}

const fn plain(mark: Mark) -> &'static str {
    match mark {
        Mark::Pending => "pending",
        Mark::Success => "success",
        Mark::Failure => "failure",
    }
}

fn cut(text: &str, most: usize) -> String {
    let line = text.lines().next().unwrap_or_default();
    if line.chars().count() <= most {
        return line.to_owned();
    }
    let mut short: String = line.chars().take(most.saturating_sub(1)).collect();
    short.push('…');
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(provider: StatusProvider, api: Option<&str>, repository: Option<&str>) -> CommitStatus {
        CommitStatus {
            provider,
            api: api.map(str::to_owned),
            repository: repository.map(str::to_owned),
            secret_ref: None,
            context: "berth/prod".to_owned(),
        }
    }

    #[test]
    fn every_host_gets_what_it_documents() {
        use StatusProvider::{Bitbucket, Gitea, Github, Gitlab};
        let sha = "a".repeat(40);
        for (provider, repository, api, url, state) in [
            (
                Github,
                "https://github.com/acme/reg.git",
                None,
                format!("https://api.github.com/repos/acme/reg/statuses/{sha}"),
                "failure",
            ),
            (
                Github,
                "git@ghe.example.com:acme/reg.git",
                None,
                format!("https://ghe.example.com/api/v3/repos/acme/reg/statuses/{sha}"),
                "failure",
            ),
            (
                Gitlab,
                "https://gitlab.com/acme/ml/reg",
                None,
                format!("https://gitlab.com/api/v4/projects/acme%2Fml%2Freg/statuses/{sha}"),
                "failed",
            ),
            (
                Gitea,
                "http://git.example.com:3000/acme/reg.git",
                None,
                format!("http://git.example.com:3000/api/v1/repos/acme/reg/statuses/{sha}"),
                "failure",
            ),
            (
                Gitea,
                "https://codeberg.org/acme/reg.git",
                None,
                format!("https://codeberg.org/api/v1/repos/acme/reg/statuses/{sha}"),
                "failure",
            ),
            (
                Bitbucket,
                "https://bitbucket.org/acme/reg.git",
                None,
                format!("https://api.bitbucket.org/2.0/repositories/acme/reg/commit/{sha}/statuses/build"),
                "FAILED",
            ),
            (
                Bitbucket,
                "https://git.example.com/scm/acme/reg.git",
                Some("https://git.example.com/"),
                format!("https://git.example.com/rest/build-status/1.0/commits/{sha}"),
                "FAILED",
            ),
        ] {
            let long = "x".repeat(300);
            let request =
                request(&settings(provider, api, None), repository, &sha, Mark::Failure, &long).expect("a request");
            assert_eq!(
                (request.url.as_str(), request.body["state"].as_str()),
                (url.as_str(), Some(state)),
                "{repository}"
            );
            assert!(request.body["description"].as_str().is_some_and(|words| words.chars().count() <= 255));
            let named = ["context", "name", "key"].iter().any(|field| request.body[field] == "berth/prod");
            assert!(named, "{}", request.body);
        }
    }

    #[test]
    fn a_token_of_the_repository_goes_to_its_own_host_alone() {
        for (api, repository, home) in [
            ("https://api.github.com/repos/a/b", "https://github.com/a/b.git", true),
            ("https://api.bitbucket.org/2.0", "https://bitbucket.org/a/b", true),
            ("https://git.example.com:3000/api/v1", "https://git.example.com:3000/a/b.git", true),
            ("https://evil.example.com/api/v1", "https://git.example.com/a/b.git", false),
            ("https://git.example.com:81/api/v1", "https://git.example.com/a/b.git", false),
            ("http://git.example.com/api/v1", "https://git.example.com/a/b.git", false),
            ("https://api.github.com.evil.com/", "https://github.com/a/b.git", false),
            ("https://api.github.com", "https://gitlab.com/a/b", false),
            ("file:///srv/a", "file:///srv/a", false),
        ] {
            assert_eq!(is_at_home(api, repository), home, "{api} for {repository}");
        }
    }

    #[test]
    fn what_is_not_said_is_asked_for() {
        let settings = settings(StatusProvider::Github, None, None);
        let error = request(&settings, "file:///srv/reg.git", "abc", Mark::Pending, "").expect_err("no host");
        assert!(error.contains("registry.yaml"), "{error}");
    }
}
