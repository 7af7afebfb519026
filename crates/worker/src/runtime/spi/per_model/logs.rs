//! The logs of processes that one model has to itself. Those of models that have ended are kept for a while, to be read.

use std::{
    collections::{BTreeMap, VecDeque},
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    time::SystemTime,
};

use fs_err as fs;

/// Logs of models that have ended which are kept: 1 GiB at most, with the file before each.
const MAX_ENDED_LOGS: usize = 64;

/// The log files of one runtime's processes: those in use, and the last [`MAX_ENDED_LOGS`] of others.
#[derive(Default)]
pub(super) struct Logs(Mutex<LogFiles>);

#[derive(Default)]
struct LogFiles {
    /// Processes that write to each: a new revision's may begin before the old one's has ended.
    used: BTreeMap<PathBuf, usize>,
    /// The oldest first.
    ended: VecDeque<PathBuf>,
}

impl Logs {
    /// Finds those of an earlier run in a folder, by the beginning of their names.
    pub(super) fn find(folder: &Path, beginning: &str) -> Self {
        let mut found: Vec<(SystemTime, PathBuf)> = Vec::new();
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let is_one =
                entry.file_name().to_str().is_some_and(|name| name.starts_with(beginning) && name.ends_with(".log"));
            let written = entry.metadata().and_then(|about| about.modified());
            if let (true, Ok(written)) = (is_one, written) {
                found.push((written, entry.path()));
            }
        }
        found.sort();
        let logs = Self::default();
        for (_, path) in found {
            logs.files().keep(path);
        }
        logs
    }

    /// Notes that a process writes to `log`, which is then not removed.
    pub(super) fn begin(&self, log: &Path) {
        let mut files = self.files();
        *files.used.entry(log.to_owned()).or_default() += 1;
        files.ended.retain(|ended| ended != log);
    }

    /// Notes that a process has ended; once none writes to `log`, it counts among the kept.
    pub(super) fn end(&self, log: &Path) {
        let mut files = self.files();
        let Some(processes) = files.used.get_mut(log) else { return };
        *processes -= 1;
        if *processes == 0 {
            files.used.remove(log);
            files.keep(log.to_owned());
        }
    }

    fn files(&self) -> MutexGuard<'_, LogFiles> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LogFiles {
    fn keep(&mut self, log: PathBuf) {
        self.ended.push_back(log);
        while self.ended.len() > MAX_ENDED_LOGS {
            if let Some(oldest) = self.ended.pop_front() {
                // One that cannot be removed is found by the next run.
                let _ = fs::remove_file(oldest.with_extension("log.1"));
                let _ = fs::remove_file(oldest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_of_those_that_ended_go() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |n: usize| folder.path().join(format!("one@m{n}.log"));
        for n in 0..MAX_ENDED_LOGS {
            fs::write(path(n), "words").expect("a log");
        }
        fs::write(folder.path().join("one.log"), "of another runtime").expect("a log");
        let logs = Logs::find(folder.path(), "one@");
        let new = path(MAX_ENDED_LOGS);
        for log in [&new, &path(0)] {
            fs::write(log, "words").expect("a log");
            fs::write(log.with_extension("log.1"), "older words").expect("a log");
            logs.begin(log);
        }
        logs.begin(&new);
        logs.end(&new);
        let there = || fs::read_dir(folder.path()).expect("a folder").count();
        assert_eq!(there(), MAX_ENDED_LOGS + 4, "its other process writes still");
        logs.end(&new);
        logs.end(&path(0));
        assert!(path(0).exists() && new.exists(), "the newest stay");
        assert_eq!(there(), MAX_ENDED_LOGS + 3, "one has gone");
        for n in 1..=MAX_ENDED_LOGS {
            logs.begin(&path(n));
            logs.end(&path(n));
        }
        assert!(!path(0).exists() && !path(0).with_extension("log.1").exists());
        assert!(folder.path().join("one.log").exists(), "it is none of these");
    }
}
