//! Memory across validations: the first commit seen for every tag, and the texts of cards.
//!
//! ```text
//! FOLDER/ledger.json          tags and abbreviated commits, by repository
//! FOLDER/cards/HASH.yaml      one card, by repository, commit and path: it can never change
//! FOLDER/mirrors/HASH/        one bare copy for each repository
//! ```

use std::{
    collections::BTreeMap,
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use berth_git::Oid;
use fs_err as fs;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// Cards kept on disk, a few KiB each. Suffices for large registries, so that a restart fetches nothing again.
const MOST_CARDS: usize = 20_000;

/// Remembers; shared by all threads of a pass.
#[derive(Debug)]
pub(crate) struct Ledger {
    folder: PathBuf,
    known: Mutex<LedgerData>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct LedgerData {
    /// Tags and abbreviated commits by the URL of their repository.
    repositories: BTreeMap<String, RepositoryTags>,
    /// Tags that were met in this pass; they count once a commit that names them is accepted.
    #[serde(skip)]
    met: BTreeMap<(String, String), Oid>,
    #[serde(skip)]
    changed: bool,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct RepositoryTags {
    tags: BTreeMap<String, Oid>,
    abbreviations: BTreeMap<String, Oid>,
}

impl LedgerData {
    fn read(folder: &Path) -> io::Result<Self> {
        let path = folder.join("ledger.json");
        match fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text).map_err(|error| {
                io::Error::other(format!(
                    "{} is broken: {error}; restore it, or remove it to trust tags anew",
                    path.display()
                ))
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error),
        }
    }

    /// Takes in what was written before; where a tag was first counts.
    fn join(&mut self, written: Self) {
        for (repository, of) in written.repositories {
            let own = self.repositories.entry(repository).or_default();
            own.tags.extend(of.tags);
            own.abbreviations.extend(of.abbreviations);
        }
    }
}

impl Ledger {
    /// Reads what is remembered in `folder`; a file that cannot be read is an error: without it a moved tag would pass.
    pub(crate) fn open(folder: &Path) -> io::Result<Self> {
        fs::create_dir_all(folder.join("cards"))?;
        let known = LedgerData::read(folder)?;
        Ok(Self { folder: folder.to_owned(), known: Mutex::new(known) })
    }

    /// The file that remembers tags.
    pub(crate) fn file(&self) -> PathBuf {
        self.folder.join("ledger.json")
    }

    /// First commit seen for a tag.
    pub(crate) fn tag(&self, repository: &str, tag: &str) -> Option<Oid> {
        self.with(|known| known.repositories.get(repository)?.tags.get(tag).cloned())
    }

    pub(crate) fn meet_tag(&self, repository: &str, tag: &str, commit: &Oid) {
        self.with(|known| known.met.insert((repository.to_owned(), tag.to_owned()), commit.clone()));
    }

    /// Ends a pass: tags that were met are remembered if the commit was accepted, and what is new is written.
    pub(crate) fn settle(&self, accepted: bool) -> io::Result<()> {
        self.with(|known| {
            for ((repository, tag), commit) in std::mem::take(&mut known.met).into_iter().filter(|_| accepted) {
                known.repositories.entry(repository).or_default().tags.entry(tag).or_insert(commit);
                known.changed = true;
            }
        });
        self.trim();
        self.save()
    }

    /// Forgets all cards when there are too many: those in use are read again.
    fn trim(&self) {
        let room = self.folder.join("cards");
        if fs::read_dir(&room).map_or(0, Iterator::count) > MOST_CARDS {
            let _ = fs::remove_dir_all(&room);
            let _ = fs::create_dir_all(&room);
        }
    }

    /// The commit whose name begins with `digits`.
    pub(crate) fn abbreviation(&self, repository: &str, digits: &str) -> Option<Oid> {
        self.with(|known| known.repositories.get(repository)?.abbreviations.get(digits).cloned())
    }

    pub(crate) fn note_abbreviation(&self, repository: &str, digits: &str, commit: &Oid) {
        self.with(|known| {
            let of = known.repositories.entry(repository.to_owned()).or_default();
            of.abbreviations.insert(digits.to_owned(), commit.clone());
            known.changed = true;
        });
    }

    fn with<T>(&self, work: impl FnOnce(&mut LedgerData) -> T) -> T {
        work(&mut self.known.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Writes what is new, beside what other processes wrote meanwhile: hooks of two pushes run at once.
    fn save(&self) -> io::Result<()> {
        self.with(|known| {
            if !known.changed {
                return Ok(());
            }
            // Held until the file is dropped.
            let lock = fs::File::create(self.folder.join("ledger.lock"))?;
            lock.file().lock()?;
            known.join(LedgerData::read(&self.folder)?);
            let text = serde_json::to_vec_pretty(known).map_err(io::Error::other)?;
            replace(&self.file(), &text)?;
            // Not before: a tag that was met while the disk was full would be trusted anew after a restart.
            known.changed = false;
            Ok(())
        })
    }

    fn card_file(&self, repository: &str, commit: &Oid, path: &str) -> PathBuf {
        self.folder.join("cards").join(format!("{}.yaml", hash(&[repository, commit.as_str(), path])))
    }

    /// The text of a card that was read before.
    pub(crate) fn card(&self, repository: &str, commit: &Oid, path: &str) -> Option<String> {
        fs::read_to_string(self.card_file(repository, commit, path)).ok()
    }

    /// Keeps the text of a card; that it could not is no reason to fail.
    pub(crate) fn note_card(&self, repository: &str, commit: &Oid, path: &str, text: &str) {
        let _ = replace(&self.card_file(repository, commit, path), text.as_bytes());
    }

    /// The folder of the bare copy of a repository.
    pub(crate) fn mirror_folder(&self, repository: &str) -> PathBuf {
        self.folder.join("mirrors").join(&hash(&[repository])[..32])
    }
}

/// Writes a file that is either the old one or the whole new one, also after a power cut.
fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(content)?;
    file.as_file().sync_data()?;
    file.persist(path).map(drop).map_err(|error| error.error)
}

fn hash(parts: &[&str]) -> String {
    let digest = Sha256::digest(parts.join("\0"));
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_processes_remember_together() {
        let folder = tempfile::tempdir().expect("a folder");
        let [first, second] = [0, 1].map(|_| Ledger::open(folder.path()).expect("opened"));
        let [here, there] = ["c", "d"].map(|digit| Oid::parse(&digit.repeat(40)).expect("an id"));
        first.meet_tag("url", "v1.0.0", &here);
        first.settle(true).expect("written");
        second.meet_tag("url", "v1.0.0", &there);
        second.meet_tag("url", "v1.1.0", &there);
        second.settle(true).expect("written");
        let third = Ledger::open(folder.path()).expect("opened");
        for ledger in [&second, &third] {
            assert_eq!(ledger.tag("url", "v1.0.0").as_ref(), Some(&here), "where it was first");
            assert_eq!(ledger.tag("url", "v1.1.0").as_ref(), Some(&there));
        }
    }

    #[test]
    fn what_could_not_be_written_is_written_the_next_time() {
        let folder = tempfile::tempdir().expect("a folder");
        let place = folder.path().join("memory");
        let ledger = Ledger::open(&place).expect("opened");
        let commit = Oid::parse(&"c".repeat(40)).expect("an id");
        fs::remove_dir_all(&place).expect("removed");
        ledger.meet_tag("url", "v1.0.0", &commit);
        ledger.settle(true).expect_err("there is no folder");
        fs::create_dir_all(place.join("cards")).expect("made");
        ledger.settle(true).expect("nothing was met since, and it is written all the same");
        assert_eq!(Ledger::open(&place).expect("opened").tag("url", "v1.0.0"), Some(commit));
    }
}
