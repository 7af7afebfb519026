//! A file of requirements: packages that are pinned, as `pip freeze` and MLflow write them, or a lock with hashes.

use super::{
    lock::{Lock, LockError},
    package::Pin,
};

/// The most packages without hashes: enough for all that an environment rests on.
pub const MOST_PINS: usize = 500;

/// Packages that a file of requirements lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requirements {
    /// One a line; with markers, and with hashes where it is a lock.
    pub packages: Vec<String>,
    /// True if each has hashes: the environment gets no others.
    pub is_locked: bool,
}

impl Requirements {
    /// Reads the file: a lock where it has hashes.
    ///
    /// # Errors
    /// The first line that is no pinned package.
    pub fn read(text: &str) -> Result<Self, LockError> {
        if text.lines().any(|line| line.split('#').next().unwrap_or_default().contains("--hash")) {
            return Ok(Self { packages: Lock::read(text)?.into_packages(), is_locked: true });
        }
        let mut packages = pins(text)?;
        if packages.is_empty() || packages.len() > MOST_PINS {
            let message = format!("it lists {} packages: it must have 1 to {MOST_PINS}", packages.len());
            return Err(LockError { line: 0, message });
        }
        packages.sort();
        packages.dedup();
        Ok(Self { packages, is_locked: false })
    }
}

/// The packages of a file of requirements without hashes, in its order.
///
/// # Errors
/// The first line that is no pinned package, with the way to go on.
pub fn pins(text: &str) -> Result<Vec<String>, LockError> {
    let mut pins = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        if Pin::read_marked(line).is_none() {
            /// Enough to find it.
            const SHOWN: usize = 100;
            let shown: String = line.chars().take(SHOWN).collect();
            let message = format!("{shown:?} is no pinned package: {}", remedy(line));
            return Err(LockError { line: at + 1, message });
        }
        pins.push(line.to_owned());
    }
    Ok(pins)
}

/// The way to go on with a line that is no pinned package.
#[must_use]
pub fn remedy(line: &str) -> &'static str {
    let option = line.split([' ', '=']).next().unwrap_or_default();
    match option {
        "-r" | "--requirement" | "-c" | "--constraint" => "write the lines of that file here",
        "-i" | "--index-url" | "--extra-index-url" | "-f" | "--find-links" => {
            "remove it; --package-index URL names the index"
        }
        "-e" | "--editable" => "code of your own needs a card: `berth card new`",
        _ if option.starts_with('-') && !line.contains("--hash") => "remove the option",
        _ if line.contains("--hash") || line.ends_with('\\') => {
            "remove the hashes, each on its line too; a card takes them (runtime.dependencies_lock)"
        }
        _ => "write NAME==VERSION, as `pip freeze` does; a marker may follow (`; python_version < \"3.13\"`)",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_freeze_mlflow_and_locks_write_is_read() {
        let read = |text: &str| Requirements::read(text);
        let pinned = read("# MLflow\nb==2\n\na[x]==1 ; python_version < '3.13'  # why\nb==2\n").expect("pins");
        assert_eq!(pinned.packages, ["a[x]==1 ; python_version < '3.13'", "b==2"]);
        assert!(!pinned.is_locked);
        let hash = format!("--hash=sha256:{}", "0a".repeat(32));
        let locked = read(&format!("a==1 \\\n    {hash}\n")).expect("a lock");
        assert_eq!((locked.packages, locked.is_locked), (vec![format!("a==1 {hash}")], true));
    }

    #[test]
    fn nothing_else_is() {
        let hash = format!("--hash=sha256:{}", "0a".repeat(32));
        for (text, line, said) in [
            (String::new(), 0, "0 packages"),
            ("a==1\n".repeat(501), 0, "501 packages"),
            ("a==1\n-r other.txt".to_owned(), 2, "lines of that file"),
            ("a>=1".to_owned(), 1, "NAME==VERSION"),
            ("--index-url https://h\na==1".to_owned(), 1, "--package-index"),
            (format!("a==1 {hash}\nb==1"), 2, "b==1 has no hash"),
        ] {
            let error = Requirements::read(&text).expect_err("it is refused");
            assert!(error.line == line && error.message.contains(said), "{error}");
        }
    }
}
