//! The owner of a deployment: the control API, or a source of deployments.

use std::{fmt, sync::Arc};

/// The owner of a deployment; only it changes or deletes it, unless told to take over.
///
/// One text, `KIND:ID`, behind one pointer: each of 100,000 deployments has one. Displayed as that text; the API is `api`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Origin(pub(crate) Option<Arc<String>>);

impl Origin {
    /// The control API: `berth apply`, or any other client of it.
    pub const API: Self = Self(None);
    /// The kind of a folder of manifests; its id is the path.
    pub const DIRECTORY: &'static str = "directory";
    /// The kind of a Git registry; its id is `URL#BRANCH`, without credentials.
    pub const GIT: &'static str = "git";

    /// The source of this kind and id. A kind is a lower-case word.
    #[must_use]
    pub fn new(kind: &str, id: &str) -> Self {
        Self(Some(Arc::new(format!("{kind}:{id}"))))
    }

    /// The source that is the folder at `path`.
    #[must_use]
    pub fn directory(path: &str) -> Self {
        Self::new(Self::DIRECTORY, path)
    }

    /// The registry at `place`: `URL#BRANCH`.
    #[must_use]
    pub fn git(place: &str) -> Self {
        Self::new(Self::GIT, place)
    }

    /// Reads the text that [`Origin`] displays.
    #[must_use]
    pub fn read(text: &str) -> Self {
        if text == "api" { Self::API } else { Self(Some(Arc::new(text.to_owned()))) }
    }

    /// The kind: `api`, `directory`, `git`.
    #[must_use]
    pub fn kind(&self) -> &str {
        self.parts().0
    }

    /// The place: a path, a URL and branch; empty for the API.
    #[must_use]
    pub fn id(&self) -> &str {
        self.parts().1
    }

    fn parts(&self) -> (&str, &str) {
        match &self.0 {
            None => ("api", ""),
            Some(text) => text.split_once(':').unwrap_or((text, "")),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_ref().map_or("api", |text| text))
    }
}

impl fmt::Debug for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Origin({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kind_and_id_come_back_from_the_text() {
        for (origin, kind, id) in [
            (Origin::API, "api", ""),
            (Origin::directory("/srv/models"), "directory", "/srv/models"),
            (Origin::git("https://h:8443/r.git#main"), "git", "https://h:8443/r.git#main"),
        ] {
            assert_eq!((origin.kind(), origin.id()), (kind, id));
            assert_eq!(Origin::read(&origin.to_string()), origin);
        }
    }
}
