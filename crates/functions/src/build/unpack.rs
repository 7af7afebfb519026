//! Archives of strangers: nothing gets out of the folder, and a small file does not become a large one.
//!
//! ```text
//! file ─▶ gzip ─▶ Metered ─▶ tar, each raw entry ─▶ Budget ─▶ folder
//! file ─────────▶ Metered ─▶ ZIP ──────────────────▶ Budget ─▶ folder
//! ```
//! [`Meter`] bounds the bytes that the readers of the formats take, headers included, and ends them when the [`StopSignal`] says so;
//! `Budget` bounds what is written. The readers are never asked to keep a header in memory whose length was not looked at.

mod zip_end;

use std::{
    cell::Cell,
    fmt,
    io::{self, Read, Seek, SeekFrom},
    path::{Component, Path, PathBuf},
    time::{Duration, Instant},
};

use berth_spec::ByteSize;
use flate2::read::GzDecoder;
use fs_err::File;
use tokio_util::sync::CancellationToken;

use super::{BuildError, blocking};

/// The most files of an archive: more than the packages of a large project have, and a bound on what one archive makes on
/// disk.
const MOST_FILES: usize = 50_000;

/// The most entries of a tar file: each file may have a long name and an extended header before it.
const MOST_ENTRIES: usize = 3 * MOST_FILES;

/// The most bytes that come out of an archive.
const MOST_BYTES: u64 = 2 << 30;

/// The most bytes that come out for each byte of the archive, beyond the first [`FREE`]: what compresses better is no code.
const RATIO: u64 = 200;

/// Bytes that may come out of any archive, however small: text of one letter compresses far better than [`RATIO`],
/// and this much is no danger.
const FREE: u64 = 16 << 20;

/// Bytes of headers and padding in a tar file, beside the bytes that come out: a KiB for each file.
const HEADERS: u64 = 1_024 * MOST_FILES as u64;

/// The largest directory of a ZIP file, which is read into memory: 500 bytes for each file, more than three times the usual.
const LARGEST_DIRECTORY: u64 = 24 << 20;

/// The longest path, in bytes: more than packages have, and below the 4,096 that the kernel takes together with the folder.
const LONGEST_PATH: usize = 1_024;

/// The longest name of a file or folder, as Linux has it.
const LONGEST_PART: usize = 255;

/// The longest name in an entry of its own (GNU tar), in bytes.
const LONGEST_NAME: u64 = 4 << 10;

/// The longest extended header (PAX): beside the path it may hold access rules and labels of files.
const LONGEST_HEADER: u64 = 64 << 10;

/// The longest time for one archive. 2 GiB take less than a minute on a slow disk.
const LONGEST_TIME: Duration = Duration::from_secs(600);

/// Tells a thread that unpacks to end: nobody waits for it any more, or its time is over.
pub(crate) struct StopSignal {
    cancelled: CancellationToken,
    until: Instant,
}

impl StopSignal {
    fn after(time: Duration) -> Self {
        Self { cancelled: CancellationToken::new(), until: Instant::now() + time }
    }
}

/// Runs what unpacks on a thread for that. The thread ends soon after the future was dropped, and within [`LONGEST_TIME`].
pub(crate) async fn stoppable<T: Send + 'static>(
    work: impl FnOnce(&StopSignal) -> Result<T, BuildError> + Send + 'static,
) -> Result<T, BuildError> {
    let stop = StopSignal::after(LONGEST_TIME);
    let _guard = stop.cancelled.clone().drop_guard();
    blocking(move || work(&stop)).await
}

/// Reason why no more is read.
#[derive(Debug, Clone, Copy)]
enum Refusal {
    /// More comes out than may.
    Output,
    /// The directory of a ZIP file is too large.
    Directory,
    /// A ZIP file is read again and again.
    Again,
    Late,
    Cancelled,
}

impl From<Refusal> for BuildError {
    fn from(refusal: Refusal) -> Self {
        let too_large = |message: String| Self::lasting("TooLarge", message);
        match refusal {
            Refusal::Output => too_large(format!(
                "more than {}, or {RATIO} times its own size, come out of the archive: leave out what the code does not need",
                ByteSize(MOST_BYTES)
            )),
            Refusal::Directory => {
                too_large(format!("the directory of the ZIP file has more than {LARGEST_DIRECTORY} bytes"))
            }
            Refusal::Again => too_large("files of the ZIP file share their compressed bytes".to_owned()),
            Refusal::Late => {
                let time = LONGEST_TIME.as_secs();
                let message = format!("the archive was not unpacked within {time} s: check the disk of --data");
                Self::passing("DiskError", message)
            }
            Refusal::Cancelled => Self::passing("Cancelled", "the build was cancelled"),
        }
    }
}

/// Bounds the bytes that are read, and the time.
struct Meter<'a> {
    stop: &'a StopSignal,
    left: Cell<u64>,
    /// The reason to give where more is asked for than is left.
    bound: Cell<Refusal>,
    refused: Cell<Option<Refusal>>,
}

impl<'a> Meter<'a> {
    fn new(stop: &'a StopSignal, bytes: u64, bound: Refusal) -> Self {
        Self { stop, left: Cell::new(bytes), bound: Cell::new(bound), refused: Cell::new(None) }
    }

    /// Begins anew with other bounds.
    fn allow(&self, bytes: u64, bound: Refusal) {
        self.left.set(bytes);
        self.bound.set(bound);
    }

    /// Bytes that may be read now.
    fn admit(&self, wanted: usize) -> io::Result<usize> {
        let refusal = if self.stop.cancelled.is_cancelled() {
            Refusal::Cancelled
        } else if Instant::now() >= self.stop.until {
            Refusal::Late
        } else if self.left.get() == 0 {
            self.bound.get()
        } else {
            return Ok(usize::try_from(self.left.get()).unwrap_or(usize::MAX).min(wanted));
        };
        self.refused.set(Some(refusal));
        Err(io::Error::other("no more is read"))
    }

    /// The reason of an error: what was refused here, else what the reader of the format found.
    fn reason(&self, of: impl fmt::Display) -> BuildError {
        self.refused.get().map_or_else(|| invalid(format!("the archive is damaged: {of}")), BuildError::from)
    }
}

/// A reader that a [`Meter`] bounds.
struct Metered<'a, R> {
    inner: R,
    meter: &'a Meter<'a>,
}

impl<R: Read> Read for Metered<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let admitted = self.meter.admit(buffer.len())?;
        let read = self.inner.read(&mut buffer[..admitted])?;
        self.meter.left.set(self.meter.left.get().saturating_sub(read as u64));
        Ok(read)
    }
}

impl<R: Seek> Seek for Metered<'_, R> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.inner.seek(to)
    }
}

/// Counts what comes out.
struct Budget {
    files: usize,
    entries: usize,
    bytes: u64,
}

impl Budget {
    fn of(archive: &Path) -> Result<Self, BuildError> {
        let size = archive.metadata()?.len();
        let bytes = (size.saturating_mul(RATIO) + FREE).min(MOST_BYTES);
        Ok(Self { files: MOST_FILES, entries: MOST_ENTRIES, bytes })
    }

    /// Writes one file and counts it.
    fn file(&mut self, mut from: impl Read, to: &Path, runs: bool, meter: &Meter<'_>) -> Result<(), BuildError> {
        use std::os::unix::fs::OpenOptionsExt as _;
        self.one_more()?;
        if let Some(parent) = to.parent() {
            make_folder(parent)?;
        }
        let mode = if runs { 0o755 } else { 0o644 };
        let file = std::fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(to);
        let mut file = file.map_err(|error| {
            let name = to.file_name().unwrap_or_default().to_string_lossy();
            match error.kind() {
                io::ErrorKind::AlreadyExists if to.is_dir() => {
                    invalid(format!("the archive holds {name:?} both as a file and as a folder"))
                }
                io::ErrorKind::AlreadyExists => invalid(format!("the archive holds {name:?} twice")),
                _ => invalid(format!("cannot write {}: {error}", to.display())),
            }
        })?;
        let written = io::copy(&mut (&mut from).take(self.bytes + 1), &mut file);
        let written = written.map_err(|error| meter.reason(error))?;
        if written > self.bytes {
            return Err(Refusal::Output.into());
        }
        self.bytes -= written;
        Ok(())
    }

    /// Counts a file or a folder.
    fn one_more(&mut self) -> Result<(), BuildError> {
        self.files = self.files.checked_sub(1).ok_or_else(too_many_files)?;
        Ok(())
    }

    /// Counts an entry of a tar file, headers among them.
    fn entry(&mut self) -> Result<(), BuildError> {
        let too_many =
            || BuildError::lasting("TooLarge", format!("the archive holds more than {MOST_ENTRIES} files and headers"));
        self.entries = self.entries.checked_sub(1).ok_or_else(too_many)?;
        Ok(())
    }
}

fn too_many_files() -> BuildError {
    BuildError::lasting("TooLarge", format!("the archive holds more than {MOST_FILES} files"))
}

/// Makes a folder of an archive.
fn make_folder(folder: &Path) -> Result<(), BuildError> {
    fs_err::create_dir_all(folder).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory => {
            let name = folder.file_name().unwrap_or_default().to_string_lossy();
            invalid(format!("the archive holds {name:?} both as a file and as a folder"))
        }
        _ => error.into(),
    })
}

fn invalid(message: impl Into<String>) -> BuildError {
    BuildError::lasting("InvalidSource", message)
}

/// Unpacks a ZIP, tar or tar.gz file into `folder`, by its first bytes. Where everything is in one folder that is not
/// `named` by the entrypoint, its content is taken.
pub(super) fn unpack(archive: &Path, folder: &Path, named: &str, stop: &StopSignal) -> Result<(), BuildError> {
    let mut first = [0; 512];
    let read = read_some(&mut File::open(archive)?, &mut first)?;
    let is_tar = read == first.len() && &first[257..262] == b"ustar";
    fs_err::create_dir_all(folder)?;
    match first {
        [b'P', b'K', 3 | 5, 4 | 6, ..] => unpack_zip(archive, folder, stop)?,
        [0x1f, 0x8b, ..] => tar(GzDecoder::new(File::open(archive)?), Budget::of(archive)?, folder, stop)?,
        _ if is_tar => tar(File::open(archive)?, Budget::of(archive)?, folder, stop)?,
        _ => return Err(invalid("the code is neither a ZIP file nor a tar or tar.gz archive")),
    }
    lift(folder, named)
}

fn read_some(file: &mut File, buffer: &mut [u8]) -> io::Result<usize> {
    let mut read = 0;
    while read < buffer.len() {
        match file.read(&mut buffer[read..])? {
            0 => break,
            more => read += more,
        }
    }
    Ok(read)
}

/// Unpacks a ZIP file.
///
/// # Errors
/// The archive is damaged, too large, or leads out of the folder; the message says which.
pub(crate) fn unpack_zip(archive: &Path, folder: &Path, stop: &StopSignal) -> Result<(), BuildError> {
    let mut file = File::open(archive)?;
    let size = file.metadata()?.len();
    match zip_end::counted(&mut file, size)? {
        Some(count) if count <= MOST_FILES as u64 => {}
        Some(_) => return Err(too_many_files()),
        None => {
            return Err(invalid(
                "the ZIP file is damaged: it has no end record that fits, as one that did not arrive whole",
            ));
        }
    }
    let mut budget = Budget::of(archive)?;
    let meter = Meter::new(stop, LARGEST_DIRECTORY, Refusal::Directory);
    let damaged = |error: zip::result::ZipError| meter.reason(error);
    let reader = Metered { inner: io::BufReader::new(file), meter: &meter };
    let mut zip = zip::ZipArchive::new(reader).map_err(damaged)?;
    if zip.len() > MOST_FILES {
        return Err(too_many_files());
    }
    // Each compressed byte is read once; the heads of the files come on top.
    meter.allow(size.saturating_mul(2) + FREE, Refusal::Again);
    for at in 0..zip.len() {
        let mut entry = zip.by_index(at).map_err(damaged)?;
        let name = entry.name().to_owned();
        let Some(path) = inside(&name)? else { continue };
        let mode = entry.unix_mode().unwrap_or(0o644);
        if entry.is_dir() {
            budget.one_more()?;
            make_folder(&folder.join(path))?;
        } else if entry.is_symlink() || mode & 0o170_000 == 0o120_000 {
            return Err(link(&name));
        } else {
            budget.file(&mut entry, &folder.join(path), mode & 0o111 != 0, &meter)?;
        }
    }
    Ok(())
}

/// Headers that speak of the entry after them.
#[derive(Default)]
struct ExtendedHeaders {
    /// Long name (GNU).
    name: Option<Vec<u8>>,
    /// Extended header (PAX).
    pax: Option<Vec<u8>>,
    /// Any header came.
    any: bool,
}

impl ExtendedHeaders {
    /// Path of the entry, as `tar` would know it: the long name, else the path of the extended header, else its own.
    fn path(&self, header: &tar::Header) -> Vec<u8> {
        let of_name = self.name.as_ref().map(|name| name.strip_suffix(b"\0").unwrap_or(name).to_vec());
        of_name.or_else(|| self.value("path").map(<[u8]>::to_vec)).unwrap_or_else(|| header.path_bytes().into_owned())
    }

    /// Value of the extended header.
    fn value(&self, key: &str) -> Option<&[u8]> {
        let all = tar::PaxExtensions::new(self.pax.as_deref()?);
        all.filter_map(Result::ok).find(|one| one.key_bytes() == key.as_bytes()).map(|one| one.value_bytes())
    }
}

/// Unpacks a tar file. Its entries come raw: the library would read headers of any length into memory.
fn tar(reader: impl Read, mut budget: Budget, folder: &Path, stop: &StopSignal) -> Result<(), BuildError> {
    let meter = Meter::new(stop, budget.bytes.saturating_add(HEADERS), Refusal::Output);
    let damaged = |error: io::Error| meter.reason(error);
    let mut tar = tar::Archive::new(Metered { inner: reader, meter: &meter });
    let mut headers = ExtendedHeaders::default();
    for entry in tar.entries().map_err(damaged)?.raw(true) {
        let mut entry = entry.map_err(damaged)?;
        budget.entry()?;
        let kind = entry.header().entry_type();
        match kind {
            // Names of commits and the like, for all entries.
            tar::EntryType::XGlobalHeader => {
                bounded(entry.size(), LONGEST_HEADER)?;
                continue;
            }
            tar::EntryType::XHeader if headers.pax.is_none() => {
                headers.pax = Some(header(&mut entry, LONGEST_HEADER, &meter)?);
                headers.any = true;
                continue;
            }
            tar::EntryType::GNULongName if headers.name.is_none() => {
                headers.name = Some(header(&mut entry, LONGEST_NAME, &meter)?);
                headers.any = true;
                continue;
            }
            tar::EntryType::XHeader | tar::EntryType::GNULongName => {
                return Err(invalid("the archive is damaged: a file has two headers of one kind"));
            }
            // The entry after it is a link, and refused.
            tar::EntryType::GNULongLink => {
                bounded(entry.size(), LONGEST_NAME)?;
                headers.any = true;
                continue;
            }
            _ => {}
        }
        let headers = std::mem::take(&mut headers);
        let name = String::from_utf8_lossy(&headers.path(entry.header())).into_owned();
        let size = headers.value("size").map(|text| str::from_utf8(text).ok()?.parse::<u64>().ok());
        if size.is_some_and(|size| size != Some(entry.size())) {
            return Err(invalid(format!("the headers of {name:?} in the archive disagree about its size")));
        }
        let Some(path) = inside(&name)? else { continue };
        let runs = entry.header().mode().map_err(damaged)? & 0o111 != 0;
        match kind {
            tar::EntryType::Directory => {
                budget.one_more()?;
                make_folder(&folder.join(path))?;
            }
            tar::EntryType::Regular | tar::EntryType::Continuous => {
                budget.file(&mut entry, &folder.join(path), runs, &meter)?
            }
            tar::EntryType::Symlink | tar::EntryType::Link => return Err(link(&name)),
            _ => return Err(invalid(format!("{name:?} in the archive is neither a file nor a folder"))),
        }
    }
    if headers.any {
        return Err(invalid("the archive is damaged: it ends after the header of a file"));
    }
    Ok(())
}

/// Content of a header that speaks of the next entry.
fn header(entry: &mut impl Read, most: u64, meter: &Meter<'_>) -> Result<Vec<u8>, BuildError> {
    let mut content = Vec::new();
    entry.take(most + 1).read_to_end(&mut content).map_err(|error| meter.reason(error))?;
    bounded(content.len() as u64, most)?;
    Ok(content)
}

fn bounded(size: u64, most: u64) -> Result<(), BuildError> {
    let message = || format!("a name or an extended header in the archive has more than {most} bytes");
    if size > most { Err(BuildError::lasting("TooLarge", message())) } else { Ok(()) }
}

fn link(name: &str) -> BuildError {
    invalid(format!("{name:?} in the archive is a link: the code must hold no links"))
}

/// A path that stays inside; `None` for the root itself.
fn inside(name: &str) -> Result<Option<PathBuf>, BuildError> {
    let refused = || invalid(format!("the archive holds the path {name:?}, which leads out of its folder"));
    if name.len() > LONGEST_PATH {
        let message = format!("the archive holds a path of {} bytes: {LONGEST_PATH} are the most", name.len());
        return Err(invalid(message));
    }
    if name.contains(['\0', '\\']) {
        return Err(refused());
    }
    let mut path = PathBuf::new();
    for part in Path::new(name).components() {
        match part {
            Component::Normal(part) if part.len() > LONGEST_PART => {
                let message = format!("the archive holds a name of {} bytes: {LONGEST_PART} are the most", part.len());
                return Err(invalid(message));
            }
            Component::Normal(part) => path.push(part),
            Component::CurDir => {}
            _ => return Err(refused()),
        }
    }
    Ok((!path.as_os_str().is_empty()).then_some(path))
}

/// Takes the content of an only folder: archives of Git hosts have one around everything.
fn lift(folder: &Path, named: &str) -> Result<(), BuildError> {
    let entries: Vec<_> = fs_err::read_dir(folder)?.collect::<io::Result<_>>()?;
    let [only] = entries.as_slice() else { return Ok(()) };
    if !only.file_type()?.is_dir() || only.file_name() == named {
        return Ok(());
    }
    let aside = folder.with_extension("lifted");
    fs_err::rename(only.path(), &aside)?;
    fs_err::remove_dir(folder)?;
    fs_err::rename(aside, folder)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use zip::{ZipWriter, write::SimpleFileOptions};

    use super::*;
    use crate::{controller::Retry, mutator};

    fn stop() -> StopSignal {
        StopSignal::after(LONGEST_TIME)
    }

    fn zip_of(path: &Path, files: &[(&str, &[u8])]) {
        let mut zip = ZipWriter::new(File::create(path).expect("a file"));
        for (name, content) in files {
            zip.start_file(*name, SimpleFileOptions::default()).expect("begun");
            zip.write_all(content).expect("written");
        }
        zip.finish().expect("a ZIP file");
    }

    #[test]
    fn archives_stay_inside_and_small() {
        let home = tempfile::tempdir().expect("a folder");
        let (archive, out) = (home.path().join("a.zip"), home.path().join("out"));
        zip_of(&archive, &[("top/handler.py", b"x = 1\n"), ("top/data/a.txt", b"a")]);
        unpack(&archive, &out, "handler", &stop()).expect("unpacked");
        assert!(out.join("handler.py").is_file() && out.join("data/a.txt").is_file(), "the only folder is lifted");
        for (name, says) in
            [("../x", "leads out"), ("/etc/x", "leads out"), ("a/../../x", "leads out"), ("a\\b", "leads out")]
        {
            zip_of(&archive, &[(name, b"x")]);
            let error = unpack(&archive, &home.path().join("bad"), "x", &stop()).expect_err(name);
            assert!(error.message.contains(says), "{name}: {}", error.message);
        }
        assert!(!home.path().join("x").exists());
        for (at, names) in [["a", "a/b"], ["a/b", "a"]].into_iter().enumerate() {
            zip_of(&archive, &names.map(|name| (name, b"x".as_slice())));
            let folder = home.path().join(format!("both-{at}"));
            let error = unpack(&archive, &folder, "x", &stop()).expect_err("a file and a folder");
            assert_eq!((error.reason, error.retry), ("InvalidSource", Retry::Never), "{}", error.message);
            assert!(error.message.contains("both as a file and as a folder"), "{}", error.message);
        }
        zip_of(&archive, &[("bomb", &vec![0; 40 << 20])]);
        let error = unpack(&archive, &home.path().join("bomb"), "x", &stop()).expect_err("a bomb");
        assert_eq!(error.reason, "TooLarge");
        fs_err::write(&archive, b"hello").expect("written");
        let error = unpack(&archive, &home.path().join("none"), "x", &stop()).expect_err("text");
        assert!(error.message.contains("neither a ZIP file"), "{}", error.message);
    }

    #[test]
    fn links_in_tar_files_are_refused() {
        let home = tempfile::tempdir().expect("a folder");
        let archive = home.path().join("a.tar");
        let mut tar = tar::Builder::new(File::create(&archive).expect("a file"));
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Symlink);
        header.set_size(0);
        header.set_mode(0o777);
        tar.append_link(&mut header, "x", "/etc/passwd").expect("a link");
        tar.finish().expect("a tar file");
        drop(tar);
        let error = unpack(&archive, &home.path().join("out"), "x", &stop()).expect_err("a link");
        assert!(error.message.contains("\"x\" in the archive is a link"), "{}", error.message);
    }

    /// The header of an entry of a tar file.
    fn head(kind: tar::EntryType, size: u64) -> Vec<u8> {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_path("x").expect("a short path");
        header.set_mode(0o644);
        header.set_size(size);
        header.set_cksum();
        header.as_bytes().to_vec()
    }

    /// An extended header with one record, and its head.
    fn extended(record: &str) -> Vec<u8> {
        let mut bytes = head(tar::EntryType::XHeader, record.len() as u64);
        bytes.extend_from_slice(record.as_bytes());
        bytes.resize(1_024, 0);
        bytes
    }

    #[test]
    fn hostile_tar_files_are_refused_before_they_take_memory_or_time() {
        use tar::EntryType::{Directory, GNULongLink, GNULongName, Regular, XGlobalHeader, XHeader};
        // Zeros follow each of these without end: who believes the first header reads 7 GiB.
        let huge = |kind| head(kind, 7 << 30);
        for (begin, reason, says) in [
            (huge(GNULongName), "TooLarge", "has more than 4096 bytes"),
            (huge(GNULongLink), "TooLarge", "has more than 4096 bytes"),
            (huge(XHeader), "TooLarge", "has more than 65536 bytes"),
            (huge(XGlobalHeader), "TooLarge", "has more than 65536 bytes"),
            (huge(Regular), "TooLarge", "come out of the archive"),
            // Folders have no content; what follows is skipped, and counts.
            (huge(Directory), "TooLarge", "come out of the archive"),
            (head(XGlobalHeader, 0).repeat(11), "TooLarge", "more than 150000 files and headers"),
            ([head(XHeader, 0), head(XHeader, 0)].concat(), "InvalidSource", "two headers of one kind"),
            (head(GNULongName, 0), "InvalidSource", "ends after the header of a file"),
            (
                [extended("12 size=999\n"), head(Regular, 0)].concat(),
                "InvalidSource",
                "the headers of \"x\" in the archive disagree about its size",
            ),
        ] {
            let home = tempfile::tempdir().expect("a folder");
            let budget = Budget { files: 10, entries: 10, bytes: 1 << 20 };
            let error = tar(begin.as_slice().chain(io::repeat(0)), budget, home.path(), &stop()).expect_err(says);
            assert_eq!(error.reason, reason, "{says}: {}", error.message);
            assert!(error.message.contains(says), "{says}: {}", error.message);
        }
    }

    #[test]
    fn long_names_of_tar_files_are_read_in_both_forms() {
        let home = tempfile::tempdir().expect("a folder");
        let (archive, out) = (home.path().join("a.tar.gz"), home.path().join("out"));
        let long = format!("{}handler.py", "deep/".repeat(40));
        let mut file = flate2::write::GzEncoder::new(File::create(&archive).expect("a file"), Default::default());
        let mut tar = tar::Builder::new(&mut file);
        let mut header = tar::Header::new_gnu();
        header.set_size(5);
        header.set_mode(0o644);
        tar.append_data(&mut header, &long, &b"x = 1"[..]).expect("a file with a long name");
        tar.finish().expect("a tar file");
        drop(tar);
        file.finish().expect("compressed");
        unpack(&archive, &out, "deep", &stop()).expect("unpacked");
        assert_eq!(fs_err::read(out.join(&long)).expect("unpacked"), b"x = 1");

        let record = |text: &str| format!("{} path={text}\n", text.len() + 9);
        let bytes = [extended(&record("in/a/folder")), head(tar::EntryType::Regular, 0)].concat();
        let budget = Budget { files: 10, entries: 10, bytes: 1 << 20 };
        super::tar(bytes.as_slice(), budget, &home.path().join("pax"), &stop()).expect("unpacked");
        assert!(home.path().join("pax/in/a/folder").is_file());
    }

    /// A ZIP file whose directory names one stored file again and again, with a comment for each.
    fn repeated(content: &[u8], times: u16, comment: u16) -> Vec<u8> {
        let mut crc = flate2::Crc::new();
        crc.update(content);
        let numbers = |numbers: &[u16]| -> Vec<u8> { numbers.iter().flat_map(|number| number.to_le_bytes()).collect() };
        let length = (content.len() as u32).to_le_bytes();
        let about = [&crc.sum().to_le_bytes()[..], &length, &length].concat();
        let mut bytes =
            [&b"PK\x03\x04"[..], &numbers(&[20, 0, 0, 0, 0x21]), &about, &numbers(&[5, 0]), b"00000"].concat();
        bytes.extend_from_slice(content);
        let directory = bytes.len() as u32;
        for at in 0..times {
            let lengths = numbers(&[5, 0, comment, 0, 0, 0, 0, 0, 0]);
            bytes.extend([&b"PK\x01\x02"[..], &numbers(&[20, 20, 0, 0, 0, 0x21]), &about, &lengths].concat());
            bytes.extend_from_slice(format!("{at:05}").as_bytes());
            bytes.resize(bytes.len() + usize::from(comment), b'c');
        }
        let size = bytes.len() as u32 - directory;
        bytes.extend(end_of_zip(times, size, directory));
        bytes
    }

    fn end_of_zip(count: u16, size: u32, directory: u32) -> Vec<u8> {
        let counts = [0, 0, count, count].map(u16::to_le_bytes).concat();
        [&b"PK\x05\x06"[..], &counts, &size.to_le_bytes(), &directory.to_le_bytes(), &[0, 0]].concat()
    }

    #[test]
    fn hostile_zip_files_are_refused_before_they_take_memory_or_time() {
        let home = tempfile::tempdir().expect("a folder");
        let archive = home.path().join("a.zip");
        // A record with larger numbers, and its locator: as many files as bytes in a TiB.
        let mut larger = [&b"PK\x06\x06"[..], &44_u64.to_le_bytes(), &[0; 12], &(1_u64 << 40).to_le_bytes()].concat();
        larger.extend(
            [&(1_u64 << 40).to_le_bytes()[..], &[0; 16], b"PK\x06\x07", &[0; 12], &1_u32.to_le_bytes()].concat(),
        );
        larger.extend(end_of_zip(u16::MAX, 0, u32::MAX));
        for (name, bytes, says) in [
            ("count", end_of_zip(50_001, 0, 0), "holds more than 50000 files"),
            ("larger count", larger, "holds more than 50000 files"),
            ("directory", repeated(b"", 500, 60_000), "the directory of the ZIP file has more than 25165824 bytes"),
            ("again", repeated(&[0; 2 << 20], 12, 0), "files of the ZIP file share their compressed bytes"),
        ] {
            fs_err::write(&archive, bytes).expect("written");
            let error = unpack_zip(&archive, &home.path().join(name), &stop()).expect_err(name);
            assert_eq!(error.reason, "TooLarge", "{name}: {}", error.message);
            assert!(error.message.contains(says), "{name}: {}", error.message);
        }
        fs_err::write(&archive, repeated(b"x = 1", 2, 3)).expect("written");
        unpack_zip(&archive, &home.path().join("right"), &stop()).expect("small enough");
        assert_eq!(fs_err::read(home.path().join("right/00001")).expect("unpacked"), b"x = 1");
    }

    #[test]
    fn a_stop_ends_the_reader() {
        let home = tempfile::tempdir().expect("a folder");
        let cancelled = stop();
        cancelled.cancelled.cancel();
        for (stop, reason) in [(cancelled, "Cancelled"), (StopSignal::after(Duration::ZERO), "DiskError")] {
            let budget = Budget { files: 10, entries: 10, bytes: 1 << 20 };
            let error = tar(io::repeat(0), budget, home.path(), &stop).expect_err(reason);
            assert_eq!(error.reason, reason, "{}", error.message);
        }
    }

    #[tokio::test]
    async fn the_thread_of_a_cancelled_build_is_told_to_end() {
        let (tell, told) = std::sync::mpsc::channel();
        let work = stoppable(move |stop| {
            while !stop.cancelled.is_cancelled() {
                std::thread::yield_now();
            }
            tell.send(()).map_err(|_| invalid("nobody listens"))
        });
        tokio::select! {
            biased;
            _ = work => panic!("it ends when it is cancelled"),
            () = std::future::ready(()) => {}
        }
        told.recv_timeout(Duration::from_secs(60)).expect("the thread ends");
    }

    /// Archives of strangers against changed seeds: a short fuzz run, the same each time (`cargo xtask fuzz` for a long one).
    /// What comes out is within the folder; what is refused has words, and is no fault of ours.
    #[test]
    fn fuzz_archive() {
        let home = tempfile::tempdir().expect("a folder");
        let (archive, folder) = (home.path().join("archive"), home.path().join("code"));
        let beside = || -> Vec<_> {
            let entries = fs_err::read_dir(home.path()).expect("a folder");
            entries.map(|entry| entry.expect("an entry").file_name()).filter(|name| name != "archive").collect()
        };
        mutator::run("archive", |data| {
            // Sums of headers are put right, so that changes reach what is behind them.
            let mut right = data.to_vec();
            for block in right.as_chunks_mut::<512>().0.iter_mut().filter(|block| block[257..262] == *b"ustar") {
                let mut header = tar::Header::new_old();
                header.as_mut_bytes().copy_from_slice(block);
                header.set_cksum();
                block.copy_from_slice(header.as_bytes());
            }
            fs_err::write(&archive, &right).expect("written");
            if let Err(error) = unpack(&archive, &folder, "handler", &stop()) {
                assert!(!error.message.is_empty() && error.retry == Retry::Never, "{error:?}");
            }
            assert!(beside().iter().all(|name| name == "code" || name == "code.lifted"), "{:?}", beside());
            for name in beside() {
                fs_err::remove_dir_all(home.path().join(name)).expect("removed");
            }
        });
    }
}
