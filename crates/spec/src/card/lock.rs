//! A lock of Python packages: every package with its version and the hashes of its files, in the form that
//! `uv pip compile --generate-hashes`, `uv export` and `pip-compile --generate-hashes` write.
//!
//! ```text
//! numpy==2.3.4 ; python_version >= '3.11' \
//!     --hash=sha256:035796aaaddfe2f9664b9a9372f089cfc88bd795a67bd1bfe15e6e770934cf64
//!     # via -r requirements.in
//! ```

use std::fmt;

use super::package::{Pin, is_marker, normal_name};

/// The most packages of a lock: far more than the largest environments have.
const MAX_PACKAGES: usize = 2_000;

/// The largest lock in bytes: `MAX_PACKAGES` packages with the hashes of all their files.
pub const LARGEST: usize = 8 << 20;

/// Packages that an environment gets, no more and no others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lock {
    /// In order of their names; each in one line, with marker and hashes.
    packages: Vec<String>,
}

/// A text that is no lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockError {
    /// From 1; 0 for the text as a whole.
    pub line: usize,
    /// For people, with the remedy.
    pub message: String,
}

impl fmt::Display for LockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line == 0 { f.write_str(&self.message) } else { write!(f, "line {}: {}", self.line, self.message) }
    }
}

impl Lock {
    /// Reads a lock.
    ///
    /// # Errors
    /// The first line that is no pinned package with hashes.
    pub fn read(text: &str) -> Result<Self, LockError> {
        let whole = |message: String| LockError { line: 0, message };
        if text.len() > LARGEST {
            return Err(whole(format!("the lock has {} bytes, and {LARGEST} are allowed", text.len())));
        }
        let mut packages = Vec::new();
        for (line, entry) in entries(text) {
            packages.push(package(&entry).map_err(|message| LockError { line, message })?);
        }
        if packages.is_empty() || packages.len() > MAX_PACKAGES {
            return Err(whole(format!("the lock has {} packages: it must have 1 to {MAX_PACKAGES}", packages.len())));
        }
        packages.sort();
        packages.dedup();
        Ok(Self { packages })
    }

    /// The packages, one a line, with marker and hashes.
    #[must_use]
    pub fn into_packages(self) -> Vec<String> {
        self.packages
    }

    /// The first of the wanted packages that the lock does not have so: it is older than the list.
    #[must_use]
    pub fn stale(&self, wanted: &[String]) -> Option<String> {
        let locked: Vec<Pin<'_>> = self.packages.iter().filter_map(|line| Pin::read(pin_of(line))).collect();
        wanted.iter().find_map(|wanted| {
            let pin = Pin::read(wanted)?;
            let versions: Vec<&str> = locked
                .iter()
                .filter(|locked| locked.normal_name() == pin.normal_name())
                .map(|locked| locked.version)
                .collect();
            if versions.iter().any(|version| pin.is_met_by(version)) {
                return None;
            }
            Some(match versions.first() {
                Some(version) => format!("it has {} {version}, and the card asks for {wanted}", normal_name(pin.name)),
                None => format!("it lacks {wanted}, which the card asks for"),
            })
        })
    }
}

/// Entries with the number of their first line: continued lines are joined, comments left out.
fn entries(text: &str) -> impl Iterator<Item = (usize, String)> {
    let mut lines = text.lines().enumerate();
    std::iter::from_fn(move || {
        let (mut first, mut entry, mut open) = (0, String::new(), false);
        for (at, line) in lines.by_ref() {
            let line = line.trim();
            let line = if line.starts_with('#') { "" } else { line.split(" #").next().unwrap_or_default().trim_end() };
            let (part, goes_on) = line.strip_suffix('\\').map_or((line, false), |part| (part, true));
            if entry.is_empty() {
                first = at + 1;
            }
            entry.push(' ');
            entry.push_str(part);
            open = goes_on;
            if !open {
                if entry.trim().is_empty() {
                    entry.clear();
                    continue;
                }
                return Some((first, entry.trim().to_owned()));
            }
        }
        (open && !entry.trim().is_empty()).then(|| (first, entry.trim().to_owned()))
    })
}

/// The pin at the beginning of an entry, before its marker.
fn pin_of(entry: &str) -> &str {
    entry.split([';', ' ']).next().unwrap_or_default()
}

/// One entry in the form that is kept; or why it is none.
fn package(entry: &str) -> Result<String, String> {
    /// Enough to find it.
    const MAX_SHOWN_CHARS: usize = 60;
    let shown: String = entry.chars().take(MAX_SHOWN_CHARS).collect();
    let (head, hashes) = entry.split_at(entry.find("--hash").unwrap_or(entry.len()));
    let (pin, marker) =
        head.split_once(';').map_or((head.trim(), None), |(pin, marker)| (pin.trim(), Some(marker.trim())));
    if Pin::read(pin).is_none() {
        return Err(format!(
            "{shown:?} is no pinned package: a lock has NAME==VERSION with hashes, and no options or URLs"
        ));
    }
    if marker.is_some_and(|marker| !is_marker(marker)) {
        return Err(format!("the marker of {pin} cannot be read"));
    }
    let mut hashes: Vec<&str> = hashes.split_whitespace().collect();
    if hashes.is_empty() {
        return Err(format!("{pin} has no hash: write the lock with `uv pip compile --generate-hashes`"));
    }
    if let Some(odd) = hashes.iter().find(|hash| !is_hash(hash)) {
        let odd: String = odd.chars().take(MAX_SHOWN_CHARS).collect();
        return Err(format!("{odd:?} of {pin} is no hash: write --hash=sha256: and 64 digits"));
    }
    hashes.sort_unstable();
    let marker = marker.map_or_else(String::new, |marker| format!(" ; {marker}"));
    Ok(format!("{pin}{marker} {}", hashes.join(" ")))
}

fn is_hash(word: &str) -> bool {
    let Some((algorithm, digits)) = word.strip_prefix("--hash=").and_then(|hash| hash.split_once(':')) else {
        return false;
    };
    let length = match algorithm {
        "sha256" => 64,
        "sha384" => 96,
        "sha512" => 128,
        _ => return false,
    };
    digits.len() == length && digits.bytes().all(|b| b.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text(lines: &str) -> String {
        lines.replace("HASH", &format!("--hash=sha256:{}", "0a".repeat(32)))
    }

    fn read(lines: &str) -> Result<Lock, LockError> {
        Lock::read(&text(lines))
    }

    #[test]
    fn what_uv_writes_is_read() {
        let lock = read(
            "# This file was autogenerated by uv\nnumpy==2.3.4 ; python_version >= '3.11' \\\n    HASH \\\n    HASH\n    # via -r \
             in\nuvicorn[standard]==0.38.0 HASH  # via x\n\ntorch==2.9.0+cpu \\\n  HASH",
        )
        .expect("a lock");
        let names: Vec<&str> = lock.packages.iter().map(|line| pin_of(line)).collect();
        assert_eq!(names, ["numpy==2.3.4", "torch==2.9.0+cpu", "uvicorn[standard]==0.38.0"]);
        assert_eq!(Lock::read(&lock.clone().into_packages().join("\n")), Ok(lock), "what is kept reads the same");
    }

    #[test]
    fn nothing_but_pinned_packages_with_hashes() {
        for (lines, line, part) in [
            ("", 0, "0 packages"),
            ("a==1.0 HASH\nb==1.0", 2, "b==1.0 has no hash"),
            ("--index-url https://h\na==1.0 HASH", 1, "no options or URLs"),
            ("-e . HASH", 1, "no pinned package"),
            ("a @ https://h/a.whl HASH", 1, "no pinned package"),
            ("a>=1.0 HASH", 1, "no pinned package"),
            ("a==1.0 --hash=md5:00", 1, "is no hash"),
            ("a==1.0 HASH --pre", 1, "\"--pre\" of a==1.0 is no hash"),
            ("a==1.0 ; os_name == `id` HASH", 1, "marker"),
        ] {
            let error = read(lines).expect_err(lines);
            assert_eq!(error.line, line, "{error}");
            assert!(error.message.contains(part), "{error}");
        }
    }

    #[test]
    fn a_list_that_is_newer_than_the_lock_is_found() {
        let lock = read("numpy==2.3.3 HASH\ntorch==2.9.0+cpu HASH").expect("a lock");
        let stale = |wanted: &[&str]| lock.stale(&wanted.iter().map(|&one| one.to_owned()).collect::<Vec<_>>());
        assert_eq!(stale(&["torch==2.9.0", "NumPy==2.3.3"]), None);
        assert_eq!(stale(&["numpy==2.3.4"]).as_deref(), Some("it has numpy 2.3.3, and the card asks for numpy==2.3.4"));
        assert_eq!(stale(&["joblib==1"]).as_deref(), Some("it lacks joblib==1, which the card asks for"));
    }

    proptest! {
        #[test]
        fn what_is_kept_is_no_option_and_reads_the_same(text in "([a-z=\\[\\]0-9.;# '-]{0,20}(==1|HASH| \\\\|\n|--hash=sha256:[0-9a-f]{64}){0,3}){0,6}") {
            if let Ok(lock) = read(&text) {
                for line in &lock.packages {
                    prop_assert!(Pin::read(pin_of(line)).is_some() && !line.contains('\n'), "{line}");
                }
                prop_assert_eq!(Lock::read(&lock.clone().into_packages().join("\n")), Ok(lock));
            }
        }
    }
}
