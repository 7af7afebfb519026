//! Properties that hold for any text as the place of a repository, or as what points into one.

use berth_git::{Oid, Protocols, Remote, Rev};

/// A URL that is let through can be no option, no helper and no file of this machine, and shows nobody a user or password; what is
/// wrong is told without it.
pub(crate) fn git_url(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match Remote::parse(text, Protocols::default()) {
        Ok(remote) => {
            let url = remote.url();
            assert!(!url.starts_with(['-', '/']) && !url.contains("::") && !url.contains(char::is_whitespace), "{url}");
            assert!(matches!(remote.scheme(), "https" | "http" | "ssh"), "{url}");
            assert!(!remote.host().is_empty() && !remote.host().starts_with('-'), "{url}");
            let shown = remote.shown();
            let place = shown.split_once("://").map(|(_, rest)| rest.split('/').next().unwrap_or_default());
            assert!(place.is_none_or(|place| !place.contains('@')), "{shown}");
            // What git is given reads the same again.
            let again = Remote::parse(url, Protocols::default()).expect("it was let through");
            assert_eq!((again.url(), again.origin()), (url, remote.origin()));
        }
        Err(error) => assert!(!error.to_string().contains(char::is_control), "{error}"),
    }
    if let Some(rev) = Rev::pinned(text) {
        assert!(rev.is_safe() && !text.starts_with('-'), "{text}");
    }
    for rev in [Rev::Tag(text.to_owned()), Rev::Branch(text.to_owned())] {
        let name = rev.ref_name().filter(|_| rev.is_safe());
        assert!(name.is_none_or(|name| !name.contains([' ', ':', '*', '\n']) && !name.contains("..")), "{text}");
    }
    if let Some(oid) = Oid::parse(text) {
        assert_eq!(Oid::parse(oid.as_str()).as_ref(), Some(&oid));
    }
}
