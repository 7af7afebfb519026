//! The process that made a control group, by the group's name, and the end of groups whose maker is gone.

use std::{os::unix::fs::MetadataExt as _, path::Path, time::Duration};

use super::kill;

/// The beginning of the names of groups.
const GROUP_PREFIX: &str = "berth-process-";

/// The age at which a group is taken for forgotten if no process is in it and its maker cannot be looked up: whoever makes
/// a group starts a process in it at once.
const FORGOTTEN: Duration = Duration::from_secs(60);

/// The maker of a group. A process number means something in its process namespace alone: the same groups are seen from several,
/// where containers share them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Maker {
    namespace: u64,
    process: u32,
}

impl Maker {
    pub(super) fn this() -> Self {
        let process = std::process::id();
        let namespace = fs_err::metadata("/proc/self/ns/pid").map_or(0, |namespace| namespace.ino());
        Self { namespace, process }
    }

    /// The name of the group with this number.
    pub(super) fn name(self, number: u64) -> String {
        format!("{GROUP_PREFIX}{}-{}-{number}", self.namespace, self.process)
    }

    /// The maker of the group with this name.
    fn of(name: &str) -> Option<Self> {
        let mut parts = name.strip_prefix(GROUP_PREFIX)?.splitn(3, '-').map(str::parse::<u64>);
        let (namespace, process) = (parts.next()?.ok()?, parts.next()?.ok()?);
        parts.next()?.ok().and_then(|_| Some(Self { namespace, process: process.try_into().ok()? }))
    }
}

/// Ends and removes the groups of processes that are gone. Of makers that cannot be looked up, empty and old groups are removed.
pub(super) fn clear(parent: &Path, this: Maker, is_there: impl Fn(u32) -> bool) {
    let Ok(entries) = fs_err::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        let Some(maker) = Maker::of(&entry.file_name().to_string_lossy()) else { continue };
        // One with this process's number may be of this process, or of an earlier one in a container that was started again.
        let is_left = if maker.namespace != this.namespace || maker.process == this.process {
            age(&path).is_some_and(|age| age > FORGOTTEN)
        } else if is_there(maker.process) {
            false
        } else {
            kill(&path);
            true
        };
        if is_left {
            // The kernel refuses it while a process is in it.
            let _ = std::fs::remove_dir(path);
        }
    }
}

fn age(group: &Path) -> Option<Duration> {
    fs_err::metadata(group).ok()?.modified().ok()?.elapsed().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_groups_of_processes_that_are_gone_are_removed() {
        let root = tempfile::tempdir().expect("a folder");
        let this = Maker { namespace: 7, process: 100 };
        // Another namespace has its own process 300.
        let stays =
            [this.name(0), Maker { process: 200, ..this }.name(0), Maker { namespace: 8, process: 300 }.name(0)];
        let goes = Maker { process: 300, ..this }.name(5);
        for name in stays.iter().chain([&goes, &"berth-process-300-0".to_owned(), &"other".to_owned()]) {
            fs_err::create_dir(root.path().join(name)).expect("made");
        }
        let forgotten = this.name(1);
        fs_err::create_dir(root.path().join(&forgotten)).expect("made");
        let made = std::time::SystemTime::now() - FORGOTTEN * 2;
        std::fs::File::open(root.path().join(&forgotten)).and_then(|file| file.set_modified(made)).expect("aged");
        clear(root.path(), this, |process| process == 200);
        assert!(!root.path().join(&forgotten).exists(), "of an earlier process with this number");
        assert!(stays.iter().all(|name| root.path().join(name).exists()));
        assert!(!root.path().join(&goes).exists());
        assert!(root.path().join("other").exists());
        assert_eq!(Maker::of(&goes), Some(Maker { namespace: 7, process: 300 }));
        assert_eq!([Maker::of("berth-process-300-0"), Maker::of("berth-process-a-1-2")], [None, None]);
    }
}
