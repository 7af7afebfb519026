//! Control groups of builds and of functions: memory and processes. Version 1 below this process's own groups; version 2
//! where its group hands the controllers down. Where neither can be had, programs have no such limit, and the log says so.

use std::{
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};

/// Places where groups can be made.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Parents(Vec<(PathBuf, Controller)>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Controller {
    Memory,
    Pids,
    /// Both, in version 2.
    Unified,
}

impl Parents {
    /// Looks for them, and ends what processes left behind that are gone. Blocks.
    #[must_use]
    pub fn find() -> Self {
        let parents = Self::below(Path::new("/"));
        parents.0.iter().for_each(|(parent, _)| clear(parent));
        parents
    }

    fn below(root: &Path) -> Self {
        let mount = root.join("sys/fs/cgroup");
        let mut parents = Vec::new();
        for line in fs_err::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default().lines() {
            let mut fields = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
            let path = path.trim_start_matches('/');
            for (name, controller) in [("memory", Controller::Memory), ("pids", Controller::Pids)] {
                if controllers.split(',').any(|found| found == name) {
                    parents.push((mount.join(name).join(path), controller));
                }
            }
            let handed_down =
                fs_err::read_to_string(mount.join(path).join("cgroup.subtree_control")).unwrap_or_default();
            let has = |wanted| handed_down.split_whitespace().any(|found| found == wanted);
            if controllers.is_empty() && has("memory") && has("pids") {
                parents.push((mount.join(path), Controller::Unified));
            }
        }
        parents.retain(|(parent, _)| rustix::fs::access(parent, rustix::fs::Access::WRITE_OK).is_ok());
        Self(parents)
    }
}

fn clear(parent: &Path) {
    for entry in fs_err::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let owner = name.strip_prefix("berth-function-").and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
        if owner.is_some_and(|owner| owner != std::process::id() && !Path::new(&format!("/proc/{owner}")).exists()) {
            kill(&entry.path());
            let _ = std::fs::remove_dir(entry.path());
        }
    }
}

fn kill(group: &Path) {
    for process in fs_err::read_to_string(group.join("cgroup.procs")).unwrap_or_default().split_whitespace() {
        if let Some(process) = process.parse().ok().and_then(Pid::from_raw) {
            // It may just have ended.
            let _ = kill_process(process, Signal::KILL);
        }
    }
}

/// The groups of one program. Dropping it ends whatever is in them, and removes them.
#[derive(Debug, Default)]
pub struct Group {
    folders: Vec<PathBuf>,
}

impl Group {
    /// Makes groups with these limits; one that cannot be made is left out.
    #[must_use]
    pub fn make(parents: &Parents, memory_mib: u64, processes: u32) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("berth-function-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let (memory, processes) = ((memory_mib << 20).to_string(), processes.to_string());
        let mut folders = Vec::new();
        for (parent, controller) in &parents.0 {
            let folder = parent.join(&name);
            let limits: &[(&str, &str)] = match controller {
                Controller::Memory => &[("memory.limit_in_bytes", &memory)],
                Controller::Pids => &[("pids.max", &processes)],
                Controller::Unified => &[("memory.max", &memory), ("memory.swap.max", "0"), ("pids.max", &processes)],
            };
            let made = fs_err::create_dir(&folder).is_ok();
            let limited = limits.iter().all(|(file, value)| fs_err::write(folder.join(file), value).is_ok());
            if made && limited {
                folders.push(folder);
            } else if made {
                let _ = std::fs::remove_dir(&folder);
            }
        }
        Self { folders }
    }

    /// Files that a process writes its number into, to be in the groups.
    pub fn doors(&self) -> impl Iterator<Item = PathBuf> {
        self.folders.iter().map(|folder| folder.join("cgroup.procs"))
    }

    /// True if the kernel killed something in it for memory.
    #[must_use]
    pub fn ran_out_of_memory(&self) -> bool {
        self.folders
            .iter()
            .flat_map(|folder| ["memory.oom_control", "memory.events"].map(|file| folder.join(file)))
            .any(|file| {
                let text = std::fs::read_to_string(file).unwrap_or_default();
                text.lines().any(|line| line.strip_prefix("oom_kill ").is_some_and(|count| count.trim() != "0"))
            })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for folder in &self.folders {
            kill(folder);
            // A process that was killed is gone a moment later; until then the folder cannot go.
            for _ in 0..50 {
                if std::fs::remove_dir(folder).is_ok() || !folder.exists() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}
