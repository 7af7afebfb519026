//! Regions of system shared memory that clients on this machine have registered: inputs are read from them and outputs are
//! written to them, so that tensors do not go over the connection.
//!
//! A region is a part of a file below `/dev/shm`, which is what `shm_open` makes. It is read and written as a file and never
//! mapped: a client that makes it shorter meanwhile gets an error, and this process no signal. Only clients of a loopback address
//! may name regions, and only where the operator has turned it on. Registering one needs the right to operate the server:
//! whoever may do that reads and writes the shared memory of every program that lets this user do so.

use std::{
    collections::BTreeMap,
    fs::{File, OpenOptions},
    io,
    os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use berth_spec::{ByteSize, InferError};
use bytes::Bytes;
use http::Extensions;
use rustix::fs::OFlags;

use crate::{
    body::memory::{Charge, RequestMemory},
    oip::{Decoded, Range, Region},
};

/// Folder of the system's shared memory.
const SHM_FOLDER: &str = "/dev/shm";

/// The most regions: each holds an open file.
const MAX_REGIONS: usize = 1_024;

/// Regions by the names that clients gave them.
#[derive(Default)]
pub(crate) struct Regions {
    registered: Mutex<BTreeMap<String, RegisteredRegion>>,
}

struct RegisteredRegion {
    region: Region,
    file: Arc<File>,
}

/// The regions, for requests whose client may use them.
#[derive(Clone)]
struct RegionAccess(Arc<Regions>);

impl Regions {
    /// Lets the client of a request use the regions.
    pub(crate) fn allow(self: &Arc<Self>, extensions: &mut Extensions) {
        extensions.insert(RegionAccess(Arc::clone(self)));
    }

    /// The regions that the client of a request may use.
    pub(crate) fn of(extensions: &Extensions) -> Result<&Arc<Self>, InferError> {
        extensions.get().map(|RegionAccess(regions)| regions).ok_or_else(|| {
            InferError::Unsupported(
                "shared memory is not to be had here: it is for clients on the machine of the node that has the model, where \
                 --shared-memory turns it on; send the data in the request"
                    .to_owned(),
            )
        })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, RegisteredRegion>> {
        self.registered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a region by its name below [`SHM_FOLDER`]. Fails if the name is taken, there are [`MAX_REGIONS`], or it is not there.
    pub(crate) fn register(&self, region: Region) -> Result<(), InferError> {
        let name = region.name.clone();
        let file = open(Path::new(SHM_FOLDER), &region)
            .map_err(|why| InferError::Invalid(format!("shared memory region {name:?}: {why}")))?;
        let mut registered = self.lock();
        if registered.contains_key(&name) {
            return Err(InferError::Invalid(format!("shared memory region {name:?} is registered already")));
        }
        if registered.len() >= MAX_REGIONS {
            return Err(InferError::TooLarge(format!(
                "{MAX_REGIONS} regions are registered, and there may be no more"
            )));
        }
        registered.insert(name, RegisteredRegion { region, file: Arc::new(file) });
        Ok(())
    }

    /// Forgets a region, or all of them. One that is not there is forgotten already.
    pub(crate) fn unregister(&self, name: Option<&str>) {
        match name {
            Some(name) => drop(self.lock().remove(name)),
            None => self.lock().clear(),
        }
    }

    /// The registered regions in the order of their names, or the one of this name. Fails if that is not registered.
    pub(crate) fn status(&self, name: Option<&str>) -> Result<Vec<Region>, InferError> {
        let registered = self.lock();
        match name {
            None => Ok(registered.values().map(|one| one.region.clone()).collect()),
            Some(name) => registered
                .get(name)
                .map(|one| vec![one.region.clone()])
                .ok_or_else(|| InferError::NotFound(unknown(name))),
        }
    }

    /// The file of a range, and where it begins there.
    fn place(&self, range: &Range) -> Result<(Arc<File>, u64), InferError> {
        let registered = self.lock();
        let one = registered.get(&range.region).ok_or_else(|| InferError::Invalid(unknown(&range.region)))?;
        let end = range.offset.checked_add(range.size).filter(|end| *end <= one.region.size);
        if end.is_none() {
            return Err(InferError::Invalid(format!(
                "{} bytes from {} are beyond the {} bytes of the shared memory region {:?}",
                range.size, range.offset, one.region.size, range.region
            )));
        }
        Ok((Arc::clone(&one.file), one.region.offset + range.offset))
    }
}

fn unknown(name: &str) -> String {
    format!("shared memory region {name:?} is not registered")
}

/// Opens the file of a region below `folder`.
fn open(folder: &Path, region: &Region) -> Result<File, String> {
    let name = region.key.strip_prefix('/').unwrap_or(&region.key);
    if name.is_empty() || name.starts_with('.') || name.contains(['/', '\0']) {
        return Err(format!("the key {:?} is no name of shared memory", region.key));
    }
    let flags = i32::try_from((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits()).unwrap_or_default();
    let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(folder.join(name));
    let file = file.map_err(|error| format!("the key {:?} cannot be opened: {}", region.key, error.kind()))?;
    let about = file.metadata().map_err(|error| error.kind().to_string())?;
    // The superuser can open everything, which is no sign that anybody wants it.
    let ours = about.uid() == rustix::process::geteuid().as_raw() || about.mode() & 0o006 == 0o006;
    if !about.is_file() || !ours {
        return Err(format!("the key {:?} is not this user's shared memory", region.key));
    }
    if region.offset.checked_add(region.size).is_none_or(|end| end > about.len()) {
        return Err(format!("the key {:?} has {} bytes, which is less", region.key, about.len()));
    }
    Ok(file)
}

/// Reads the inputs of a request that are in shared memory. `Some`: what they take of `memory` until it is dropped.
pub(crate) fn read_inputs(
    decoded: &mut Decoded,
    extensions: &Extensions,
    memory: &Arc<RequestMemory>,
) -> Result<Option<Charge>, InferError> {
    if decoded.shared.is_empty() {
        return Ok(None);
    }
    let regions = Regions::of(extensions)?;
    let length = |range: &Range| usize::try_from(range.size).unwrap_or(usize::MAX);
    let mut placed = Vec::with_capacity(decoded.shared.len());
    for (index, range) in std::mem::take(&mut decoded.shared) {
        let (file, at) = regions.place(&range)?;
        placed.push((index, range, file, at));
    }
    let all = placed.iter().fold(0, |sum: usize, (_, range, ..)| sum.saturating_add(length(range)));
    // A sparse file may say that it has any size.
    if all > memory.most() {
        let most = ByteSize(memory.most() as u64);
        return Err(InferError::TooLarge(format!(
            "{all} bytes in shared memory are more than the {most} of all requests"
        )));
    }
    let charge = memory.take(all)?;
    for (index, range, file, at) in placed {
        let mut data = vec![0; length(&range)];
        file.read_exact_at(&mut data, at).map_err(|error| broken(&range, &error))?;
        decoded.fill(index, data.into())?;
    }
    Ok(Some(charge))
}

/// Writes an output to the place in shared memory that its client chose; gives how much was written.
pub(crate) fn write_output(data: &Bytes, range: &Range, extensions: &Extensions) -> Result<u64, InferError> {
    let (file, at) = Regions::of(extensions)?.place(range)?;
    let length = data.len() as u64;
    if length > range.size {
        return Err(InferError::Invalid(format!(
            "an output has {length} bytes, and its place in the shared memory region {:?} has {}",
            range.region, range.size
        )));
    }
    file.write_all_at(data, at).map_err(|error| broken(range, &error))?;
    Ok(length)
}

fn broken(range: &Range, error: &io::Error) -> InferError {
    InferError::Invalid(format!(
        "shared memory region {:?} is no longer what was registered: {}",
        range.region,
        error.kind()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(key: &str, offset: u64, size: u64) -> Region {
        Region { name: "r".to_owned(), key: key.to_owned(), offset, size }
    }

    #[test]
    fn only_a_file_of_this_user_right_in_the_folder_is_opened() {
        let folder = tempfile::tempdir().expect("a folder");
        fs_err::write(folder.path().join("good"), [0; 64]).expect("a file");
        fs_err::create_dir(folder.path().join("sub")).expect("a folder");
        std::os::unix::fs::symlink("/etc/passwd", folder.path().join("link")).expect("a link");
        for (key, offset, size, opens) in [
            ("good", 0, 64, true),
            ("/good", 32, 32, true),
            ("good", 1, 64, false),
            ("good", u64::MAX, 2, false),
            ("link", 0, 1, false),
            ("sub", 0, 0, false),
            ("sub/../good", 0, 1, false),
            ("..", 0, 0, false),
            ("", 0, 0, false),
            ("none", 0, 0, false),
        ] {
            assert_eq!(open(folder.path(), &region(key, offset, size)).is_ok(), opens, "{key:?} {offset} {size}");
        }
    }
}
