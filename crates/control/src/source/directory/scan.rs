//! Reading a folder: which manifests are in it now. Everything is bounded; what is beyond a bound is told.

use std::{
    collections::BTreeSet,
    io::Read,
    path::{Path, PathBuf},
};

use berth_spec::manifest;

/// Depth to which folders are scanned: deeper than people nest them, and a bound for loops of mounts.
const MAX_DEPTH: usize = 16;

/// Manifests in one folder. A manifest may declare many deployments.
const MAX_FILES: usize = 20_000;

/// Entries that are looked at, whatever they are: twice the 100,000 deployments that a fleet is measured with.
const MAX_ENTRIES: usize = 200_000;

/// Bytes of one manifest: a file of thousands of documents fits, and one that was put there by mistake is not read.
const MAX_BYTES: u64 = 8 << 20;

/// The manifests below a folder at one moment.
#[derive(Debug, Default)]
pub(super) struct Scanned {
    /// Manifests in the order of their paths, with their text.
    pub(super) files: Vec<(PathBuf, Text)>,
    /// Part of the folder was not looked at, for this reason: nothing may be taken for gone.
    pub(super) incomplete: Option<String>,
}

/// The text of a manifest, or why it could not be read.
pub(super) type Text = Result<String, String>;

/// Reads all manifests below `folder`; what was one before, `known`, is one whatever it says now. Blocks.
pub(super) fn scan(folder: &Path, known: &BTreeSet<PathBuf>) -> std::io::Result<Scanned> {
    let mut scanned = Scanned::default();
    let mut entries = 0;
    let mut folders = vec![(folder.to_owned(), 0)];
    while let Some((path, depth)) = folders.pop() {
        let reading = match fs_err::read_dir(&path) {
            Ok(reading) => reading,
            Err(error) if path == folder => return Err(error),
            Err(error) => {
                scanned.incomplete = Some(error.to_string());
                continue;
            }
        };
        for entry in reading {
            let entry = match entry {
                Ok(entry) => entry,
                // It may have been a manifest.
                Err(error) => {
                    scanned.incomplete = Some(format!("{}: {error}", path.display()));
                    continue;
                }
            };
            entries += 1;
            if entries > MAX_ENTRIES || scanned.files.len() >= MAX_FILES {
                scanned.incomplete =
                    Some(format!("the folder has more than {MAX_FILES} manifests or {MAX_ENTRIES} entries"));
                return Ok(sorted(scanned));
            }
            let (name, path) = (entry.file_name(), entry.path());
            if name.to_string_lossy().starts_with('.') {
                continue;
            }
            match entry.file_type() {
                // Links to folders are not followed: they could lead anywhere, also round in a circle.
                Ok(kind) if kind.is_dir() && depth < MAX_DEPTH => folders.push((path, depth + 1)),
                Ok(kind) if kind.is_dir() => {
                    scanned.incomplete = Some(format!(
                        "{} lies more than {MAX_DEPTH} folders deep, and is not looked into",
                        path.display()
                    ));
                }
                Ok(kind) if !kind.is_dir() && is_manifest(&path) => {
                    let text = read(&path);
                    if text.as_ref().is_ok_and(|text| !known.contains(&path) && !declares(&path, text)) {
                        tracing::debug!(event = "file_skipped", file = %path.display(), "not a manifest: it has no apiVersion");
                        continue;
                    }
                    scanned.files.push((path, text));
                }
                Ok(_) => {}
                Err(error) => scanned.incomplete = Some(format!("{}: {error}", path.display())),
            }
        }
    }
    Ok(sorted(scanned))
}

fn sorted(mut scanned: Scanned) -> Scanned {
    scanned.files.sort();
    scanned
}

fn is_manifest(path: &Path) -> bool {
    path.extension().is_some_and(|extension| ["yaml", "yml", "json"].iter().any(|known| extension == *known))
}

/// Model folders hold other YAML and JSON (a tokenizer, labels): what does not even look like a manifest is left alone.
/// YAML that cannot be read at all may have been meant as one, and its author is told.
fn declares(path: &Path, text: &str) -> bool {
    let is_json = path.extension().is_some_and(|extension| extension == "json");
    text.contains("apiVersion") || text.contains("ModelDeployment") || (!is_json && !manifest::is_well_formed(text))
}

fn read(path: &Path) -> Text {
    let metadata = fs_err::metadata(path).map_err(|error| error.to_string())?;
    if !metadata.is_file() {
        // A pipe or a device is not even opened: that alone may wait for ever.
        return Err(format!("{} is not a file: take it out of the folder", path.display()));
    }
    let mut bytes = Vec::new();
    let file = fs_err::File::open(path).map_err(|error| error.to_string())?;
    // It may grow while it is read, or, below /proc, be longer than it says.
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(format!("{} is larger than {MAX_BYTES} bytes: split it", path.display()));
    }
    String::from_utf8(bytes).map_err(|_| format!("{} is not UTF-8 text", path.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::{fs::symlink, net::UnixListener};

    use super::*;

    #[test]
    fn what_is_no_file_is_told_and_not_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let (socket, device) = (folder.path().join("a.yaml"), folder.path().join("b.yaml"));
        let _listening = UnixListener::bind(&socket).expect("a socket");
        symlink("/dev/zero", &device).expect("a link");
        let scanned = scan(folder.path(), &BTreeSet::new()).expect("it reads");
        assert_eq!(scanned.files.iter().map(|(path, _)| path).collect::<Vec<_>>(), [&socket, &device]);
        for (_, text) in &scanned.files {
            assert!(text.as_ref().is_err_and(|message| message.contains("not a file")), "{text:?}");
        }
    }

    #[test]
    fn what_lies_too_deep_is_told() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut deep = folder.path().to_owned();
        for _ in 0..MAX_DEPTH {
            deep.push("d");
        }
        fs_err::create_dir_all(&deep).expect("folders");
        fs_err::write(deep.join("a.yaml"), "apiVersion: x").expect("written");
        let scanned = scan(folder.path(), &BTreeSet::new()).expect("it reads");
        assert_eq!((scanned.files.len(), scanned.incomplete), (1, None));
        fs_err::create_dir_all(deep.join("d")).expect("one more");
        let scanned = scan(folder.path(), &BTreeSet::new()).expect("it reads");
        assert!(scanned.incomplete.is_some_and(|why| why.contains("16 folders deep")));
    }

    #[test]
    fn what_is_too_large_is_told() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.yaml");
        fs_err::File::create(&path).and_then(|file| file.set_len(MAX_BYTES + 1)).expect("a file");
        assert!(read(&path).is_err_and(|message| message.contains("split it")));
    }
}
