//! Properties that hold for any text as a file of secrets.

use berth_secrets::{Contents, Sealed, check};

/// Problems have words and remedies; what is accepted is written so that it reads the same again; an encrypted value has one
/// form.
pub(crate) fn secrets(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(sealed) = text.trim().parse::<Sealed>() {
        assert_eq!(sealed.to_string(), text.trim());
    }
    match Contents::parse(text, "-") {
        Err(problems) => {
            assert!(!problems.is_empty());
            assert!(problems.iter().all(|problem| !problem.message.is_empty() && !problem.remedy.is_empty()));
            assert_eq!(check(text, "-"), problems);
        }
        Ok(Contents::Vault(..)) => {}
        Ok(Contents::Encrypted(mut document)) => {
            // Comments within are not kept, and a rewritten file says so beforehand.
            document.other_comments = 0;
            assert_eq!(Contents::parse(&document.to_yaml(), "-"), Ok(Contents::Encrypted(document)));
        }
    }
}
