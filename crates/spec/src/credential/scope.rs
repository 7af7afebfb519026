//! Scope of a credential: hosts and URL prefixes, and the choice of the closest one for a location.

use url::Url;

use super::{Credential, Kind, WrongField};

/// Scope of a credential. Without any host or URL: everything of its type.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scope {
    hosts: Vec<Host>,
    urls: Vec<Url>,
}

/// `HOST`, `HOST:PORT`, or `*.DOMAIN` for every host below it. Of `s3`, `gs` and `az` locations the bucket or container.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Host {
    below: bool,
    name: String,
    port: Option<u16>,
}

/// Closeness of a scope to a location; the larger, the closer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Closeness {
    /// No host and no URL.
    Everything,
    /// A domain above the host, of so many letters.
    Below(usize),
    Host,
    /// The host and its port, where the scope names one.
    Port,
    /// The beginning of the URL, of so many letters.
    Url(usize),
}

impl Scope {
    /// Reads the lists. A registry's user is for that registry, unless they say something else.
    pub(super) fn new(hosts: &[String], urls: &[String], credential: &Credential) -> Result<Self, WrongField> {
        let kind = credential.kind();
        let mut scope = Self {
            hosts: hosts.iter().map(|text| Host::read(text)).collect::<Result<_, _>>()?,
            urls: urls
                .iter()
                .map(|text| {
                    place(text, kind).ok_or_else(|| {
                        WrongField::new("urls", format!("{text:?} is no URL"), "write SCHEME://HOST/PATH")
                    })
                })
                .collect::<Result<_, _>>()?,
        };
        if let (true, true, Credential::Registry(registry)) = (hosts.is_empty(), urls.is_empty(), credential) {
            scope.hosts.extend(place(&registry.registry_url, kind).as_ref().and_then(Host::of));
        }
        Ok(scope)
    }

    /// The hosts as they are written.
    #[must_use]
    pub fn hosts(&self) -> Vec<String> {
        self.hosts.iter().map(Host::written).collect()
    }

    /// The URL prefixes in normal form.
    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        self.urls.iter().map(Url::to_string).collect()
    }

    /// Closeness to a location; `None` if it does not fit.
    pub(super) fn closeness(&self, place: &Url) -> Option<Closeness> {
        if self.hosts.is_empty() && self.urls.is_empty() {
            return Some(Closeness::Everything);
        }
        let hosts = self.hosts.iter().filter_map(|host| host.closeness(place));
        let urls = self.urls.iter().filter(|url| begins(url, place)).map(|url| Closeness::Url(url.as_str().len()));
        hosts.chain(urls).max()
    }
}

impl Host {
    fn read(text: &str) -> Result<Self, WrongField> {
        let wrong = || {
            let message = format!("{text:?} is no host");
            WrongField::new("hosts", message, "write HOST, HOST:PORT or *.DOMAIN; a URL belongs into urls")
        };
        let (below, rest) = text.strip_prefix("*.").map_or((false, text), |rest| (true, rest));
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | '[' | ']' | ':');
        if rest.is_empty() || !rest.chars().all(plain) {
            return Err(wrong());
        }
        let url = Url::parse(&format!("any://{rest}")).map_err(|_| wrong())?;
        let name = url.host_str().ok_or_else(wrong)?.to_ascii_lowercase();
        Ok(Self { below, name, port: url.port() })
    }

    /// The exact host and port of a location, in lower case; `None`: it has none.
    fn of(url: &Url) -> Option<Self> {
        Some(Self { below: false, name: url.host_str()?.to_ascii_lowercase(), port: url.port() })
    }

    fn written(&self) -> String {
        let star = if self.below { "*." } else { "" };
        let port = self.port.map(|port| format!(":{port}")).unwrap_or_default();
        format!("{star}{}{port}", self.name)
    }

    fn closeness(&self, place: &Url) -> Option<Closeness> {
        let host = place.host_str()?.to_ascii_lowercase();
        if self.port.is_some() && self.port != port(place) {
            return None;
        }
        if self.below {
            let above = host.strip_suffix(&self.name)?;
            return (above.len() > 1 && above.ends_with('.')).then_some(Closeness::Below(self.name.len()));
        }
        let closeness = if self.port.is_some() { Closeness::Port } else { Closeness::Host };
        (host == self.name).then_some(closeness)
    }
}

fn port(url: &Url) -> Option<u16> {
    url.port_or_known_default().or((url.scheme() == "ssh").then_some(22))
}

/// True if `place` is `url` or lies below it: `…/team` begins `…/team/iris.git`, and not `…/teams`.
fn begins(url: &Url, place: &Url) -> bool {
    let same_host = match (url.host_str(), place.host_str()) {
        (Some(one), Some(other)) => one.eq_ignore_ascii_case(other),
        _ => false,
    };
    if url.scheme() != place.scheme() || !same_host || port(url) != port(place) {
        return false;
    }
    let above = url.path().trim_end_matches('/');
    let above = above.strip_suffix(".git").unwrap_or(above);
    place.path().strip_prefix(above).is_some_and(|rest| {
        let rest = rest.strip_prefix(".git").unwrap_or(rest);
        rest.is_empty() || rest.starts_with('/')
    })
}

/// The location as a URL without user, query and fragment: also `[USER@]HOST:PATH` of Git, and an image or a registry
/// without a scheme. `None` if it is none.
pub(super) fn place(text: &str, kind: Kind) -> Option<Url> {
    let text = text.trim();
    let full = match (text.contains("://"), kind) {
        (true, _) => text.to_owned(),
        (false, Kind::Git) => {
            let (host, path) = text.split_once(':')?;
            format!("ssh://{host}/{}", path.trim_start_matches('/'))
        }
        (false, Kind::Registry) => format!("https://{text}"),
        (false, _) => return None,
    };
    let mut url = Url::parse(&full).ok().filter(|url| url.host_str().is_some_and(|host| !host.is_empty()))?;
    // These fail only for URLs without a host.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.set_query(None);
    url.set_fragment(None);
    Some(url)
}
